"""Scores of translations, and how sure the difference of two scores is.

It imports nothing but errors. Open `scores` first; `bootstrap` draws the lines anew.
"""
