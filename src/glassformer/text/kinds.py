"""The kinds of tokenizer, by name. Loads neither torch nor sentencepiece."""

SUBWORD_KINDS = ("unigram", "bpe", "char", "word")
KINDS = (*SUBWORD_KINDS, "symbols")
SUBWORD_ENDINGS = (".model", ".spm")
"""How the names of sentencepiece models end: sentencepiece's own, and those of run folders."""
