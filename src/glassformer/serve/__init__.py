"""Serving runs over HTTP: LibreTranslate's API, and a richer one of our own. Needs the extra `serve`.

It may import `page`, `generation` and what lies below them; only `commands` imports it. Open `app` first: it has the
routes. `config` holds every limit, `schemas` the JSON, `guard/` is what a request passes before it reaches a route,
`workers/` are the processes that own the models.
"""
