"""Characters as their parts (Unicode's canonical decomposition, NFD), as rules for sentencepiece."""

import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def decomposition_rules() -> Iterator[Path]:
    """A file in sentencepiece's form, a line for each character that has parts: 한 into its three letters, é into e and
    an accent. Text that is composed (NFC), as text mostly is, becomes its NFD."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nfd.tsv"
        path.write_text("".join(_rules()), encoding="ascii")
        yield path


def _rules() -> Iterator[str]:
    for character in map(chr, range(sys.maxunicode + 1)):
        parts = unicodedata.normalize("NFD", character)
        if parts != character:
            yield f"{ord(character):X}\t{' '.join(f'{ord(part):X}' for part in parts)}\n"
