"""The page: one HTML file that shows attention in a browser or a notebook, without a network.

It may import `capture`, `insight` and `generation`. Open `report` first: it has the public function `page`. `web/`
holds the page's scripts and style, and `inspection` makes the page of a run.
"""
