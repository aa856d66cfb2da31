"""A trained model as a static folder: a page that translates in the browser, with no server behind it.

It may import `interop`, `page` and `run`. Open `folder` first: it writes the folder. `web/` holds the page's own
scripts; those that it shares with the server's page are in `page/translator`.
"""
