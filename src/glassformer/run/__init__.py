"""The run folder: what training leaves, and what every other tool starts from.

It may import `text` and `transformer`. Open `folder` first; `names` has the names of the files, `metrics` the
figures of a training, written and read, and `listing` finds runs.
"""
