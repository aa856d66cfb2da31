"""The demonstration: a model that reads dates in 16 languages, trained in about two minutes without a download.

It may import `training`, `generation` and what they import. Open `demonstration` first; `dates` makes the data.
"""
