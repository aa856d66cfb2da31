"""From pairs of text to a run folder: one visible loop."""
