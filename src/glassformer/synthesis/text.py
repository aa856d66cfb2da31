"""The first stage: the lines that are translated, each once."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from glassformer.errors import DataError
from glassformer.files import replacing
from glassformer.pairs.lines import read_lines
from glassformer.synthesis.config import SynthesisConfig
from glassformer.synthesis.stages import Counts


def digest_of(*texts: str) -> bytes:
    """Return eight bytes that stand for these texts: a set of them holds more than a set of lines."""
    return blake2b("\0".join(texts).encode(), digest_size=8).digest()


def write_text(config: SynthesisConfig, path: Path) -> Counts:
    """Write the lines that the run shall translate, without empty ones and repetitions; return their counts.

    Where the student joins neighbours, an empty line stands between two that weren't.
    """
    lines = empty = 0
    seen: set[bytes] = set()
    with replacing(path) as file:
        for text in _texts(config):
            is_first = True
            for line in text:
                lines += 1
                if line.strip() and (digest := digest_of(line)) not in seen:
                    if is_first and seen and config.joins:
                        file.write(b"\n")
                    seen.add(digest)
                    file.write(f"{line}\n".encode())
                    is_first = False
                    continue
                empty += not line.strip()
                is_first = True
        if not seen:
            raise DataError(f"there is no text to translate: all of the {lines:,} lines of {_name(config)} are empty")
    return {"text": {"lines": lines, "empty": empty, "repeated": lines - empty - len(seen), "left": len(seen)}}


def _texts(config: SynthesisConfig) -> Iterator[Iterable[str]]:
    """Yield the lines of each file."""
    if config.text:
        yield from map(read_lines, config.text)
    else:
        yield from (map(config.given_of, files) for files, _ in config.real_parts)


def _name(config: SynthesisConfig) -> str:
    return " and ".join(map(str, config.text)) or config.student.pairs.name
