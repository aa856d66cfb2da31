"""A trained model to translations: searches over ids, and the Translator from text to text.

It may import `run`, `text`, `transformer` and `attention`. Open `translator` first, then `search`, then `engines`,
which compute a step.
"""
