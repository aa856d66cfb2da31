"""How far a translation is to be trusted: calibrated probabilities of its words, and source words that it leaves out.

It may import `alignment` and what is below. Open `estimate` first: it fits a calibration and applies one. `words` says
which word counts as right, `features` what is known of a word, `calibration` holds what was fitted and its error.
"""
