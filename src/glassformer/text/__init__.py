"""Text to token ids and back, token ids to batches, and scores of text.

It may import `transformer` and `attention`. Open `tokenizer` first; `pairs` reads the user's files, `batching` makes
batches.
"""
