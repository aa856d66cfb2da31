"""Attention and the Transformer step by step: what the fast forms are tested against. Imports torch only."""
