"""Attention and the Transformer written out step by step: what the fast forms are tested against. Imports torch only."""
