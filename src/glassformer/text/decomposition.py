"""Rules for sentencepiece that read characters as their parts (Unicode's canonical decomposition, NFD)."""

import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def decomposition_rules() -> Iterator[Path]:
    """Write a file of rules, a line for each character that has parts: 한 is three letters, é is e and an accent.

    Composed text (NFC), which most text is, becomes its NFD. The file is removed at the end of the `with`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nfd.tsv"
        path.write_text("".join(_rules()), encoding="ascii")
        yield path


def _rules() -> Iterator[str]:
    for character in map(chr, range(sys.maxunicode + 1)):
        parts = unicodedata.normalize("NFD", character)
        if parts != character:
            yield f"{ord(character):X}\t{' '.join(f'{ord(part):X}' for part in parts)}\n"
