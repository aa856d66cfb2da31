"""One HTML file that shows attention, for a browser or a notebook; it needs no network.

It may import `capture`, `insight` and `generation`. Open `report` first; `web/` holds its scripts and style.
"""
