"""The first stage: the lines that are translated, each once."""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from glassformer.errors import DataError
from glassformer.files import replacing
from glassformer.pairs.lines import read_lines
from glassformer.pairs.mixture import unweighted
from glassformer.synthesis.config import SynthesisConfig
from glassformer.synthesis.stages import Counts


def digest_of(*texts: str) -> bytes:
    """Return eight bytes that stand for these texts: a set of them holds more than a set of lines."""
    return blake2b("\0".join(texts).encode(), digest_size=8).digest()


def write_text(config: SynthesisConfig, path: Path) -> Counts:
    """Write the lines that the run shall translate, without empty ones and repetitions; return their counts."""
    lines = empty = 0
    seen: set[bytes] = set()
    with replacing(path) as file:
        for line in _lines(config):
            lines += 1
            if not line.strip():
                empty += 1
            elif (digest := digest_of(line)) not in seen:
                seen.add(digest)
                file.write(f"{line}\n".encode())
        if not seen:
            raise DataError(f"there is no text to translate: all of the {lines:,} lines of {_name(config)} are empty")
    return {"text": {"lines": lines, "empty": empty, "repeated": lines - empty - len(seen), "left": len(seen)}}


def _lines(config: SynthesisConfig) -> Iterator[str]:
    if config.text:
        for path in config.text:
            yield from read_lines(path)
        return
    for source, target in unweighted(config.student.pairs):
        yield source if config.given == "source" else target


def _name(config: SynthesisConfig) -> str:
    return " and ".join(map(str, config.text)) or config.student.pairs.name
