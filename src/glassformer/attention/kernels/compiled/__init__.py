"""Attention and facts about its weights compiled by numba, if that is installed: the weights never leave the cache.

Nothing here is imported until `choose` says that it serves: numba takes a third of a second. Start with `attend`, whose
queries `forward` and `backward` compute; `rows` and `registers` are what they are made of.
"""
