"""Attention and the Transformer written out step by step; the fast forms are tested against them. Imports torch only."""
