"""Tracking: the figures of a run where a team looks already, in TensorBoard, in trackio, or in an object such as wandb.

It may import `run` and `capture`. Open `tracker` first: it says what a tracker is, and opens those with a name.
`session` gives one the figures, and keeps its failures from the work; `curves` is about a training that may go on,
`results` about scores and prunings.
"""
