"""The run folder: what training leaves, and what every other tool starts from.

It may import `text` and `transformer`. Open `folder` first; `names` has the names of the files, `listing` finds runs.
"""
