"""What a translation must contain: terms of a glossary, and placeholders that are copied.

It may import `generation`'s config, engine and search beside what these import. Open `glossary` and `placeholders` first,
then `demands`, which follows a hypothesis's text, then `search`.
"""
