"""Models prepared to write token by token: one, or several together, in the numbers that are fastest.

It may import the kernels of generation, `run`, `transformer` and `attention`. Open `engine` first, then `cache`, which
holds what was written.
"""
