"""Text to token ids and back, and token ids to batches.

It may import `transformer` and `attention`. Open `tokenizer` first; `pairs` reads the user's files, `batching` makes
batches.
"""
