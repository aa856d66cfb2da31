"""Text to token ids, files to token arrays, token arrays to batches."""
