"""Text with tags: they leave before translation, and come back on the words that their words became.

It may import `alignment`, `generation` and what is below. Open `translate` first. `scan` cuts HTML and XML into tags
and text, `segments` makes texts to translate of them, `place` puts tags back. These three load no torch: the server
uses them too.
"""
