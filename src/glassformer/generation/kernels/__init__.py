"""How a step of generation is computed beside its products: eight-bit weights, and passes over rows.

Imports nothing of ours but `attention` and `errors`. Open `passes.py` first: it names each pass and picks its form.
"""
