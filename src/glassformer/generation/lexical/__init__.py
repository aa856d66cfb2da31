"""Terms of a glossary that a translation must contain, and placeholders that it copies.

It may import the search, the engine and what these import. Open `glossary` and `placeholders` first, then `lines`,
which joins both, then `demands`, which follows a hypothesis's text, and `search`.
"""
