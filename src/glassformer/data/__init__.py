"""Files of pairs to arrays of token ids on disk, by several processes, kept for the next training.

It may import `text`. Open `preparation` first: it calls the other files in the order in which they are needed.
"""
