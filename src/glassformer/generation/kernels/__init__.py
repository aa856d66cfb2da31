"""Compute a step of generation beside its products: weights of eight bits, and passes over rows.

It imports nothing of ours but `attention` and `errors`. Open `passes.py` first: it names each pass and picks its form.
"""
