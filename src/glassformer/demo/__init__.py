"""Dates in 16 languages to ISO 8601: a model that trains in a minute and a half, without a download.

It may import `training` and `generation`. Open `demonstration` first.
"""
