"""Pairs of text to a trained run folder.

It may import `generation`, `run` and `data`, and what they import. Open `loop` first; `config` holds every setting,
`step` is one update.
"""
