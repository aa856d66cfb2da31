"""Confidence in translations: calibrated probabilities of their words, and source words that they leave out.

It may import `alignment` and what is below. Open `estimate` first: it fits a calibration and applies one. `words` says
which word counts as right, `features` what is known of a word, `calibration` holds what was fitted and its error.
"""
