"""The encoder-decoder Transformer: its sizes, layers, positions and cache.

It may import `attention`. Open `model` first, then `layers`; `config` holds every size and its default.
"""
