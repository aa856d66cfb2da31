"""Attention and the Transformer step by step, in the form that the papers' equations have: the tests' oracle.

It imports torch and nothing of ours, so that it can be read, copied and trusted alone; its one error, `InputError`, is
therefore a ValueError and an AssertionError, but not a GlassformerError. Open `self_attention` first (one head), then
`multi_head` (sequence first), then `transformer` (encoder and decoder); `weights` converts to the fast forms and back.
"""
