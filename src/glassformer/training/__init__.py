"""Pairs of text to a trained run folder.

It may import `generation`, `run` and `data`, and what they import. Open `train` first, which has the doors; `loop` goes
from update to update, `step` is one of them, `state` is what a checkpoint keeps, `config` has every setting.
"""
