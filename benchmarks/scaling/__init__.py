"""A small model of the time and memory of training and of bulk translation on many devices.

Open `work` first: it counts what an update computes. `local` predicts this machine's processes from what `calibrate`
measured on one of them, `cluster` predicts GPUs from published constants, and `worker` is what torchrun starts.
"""
