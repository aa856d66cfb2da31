"""The kinds of tokenizer, by name. Loads neither torch nor sentencepiece."""

SUBWORD_KINDS = ("unigram", "bpe", "char", "word", "features")
KINDS = (*SUBWORD_KINDS, "symbols")
WHOLE_KINDS = ("char", "word", "features", "symbols")
"""Kinds that split a text in one way only."""
SUBWORD_ENDINGS = (".model", ".spm")
"""Endings of sentencepiece models' names: sentencepiece's own, and that of run folders."""
AUTO = "auto"
"""The value of a setting that the data decide."""
