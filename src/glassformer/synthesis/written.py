"""The second stage, and the third if there is one: a run translates lines, here or elsewhere.

What it leaves is byte for byte what `glassformer translate RUN --input TEXT --output WRITTEN --scores` writes, with the
settings of the search. So anything that translates like that command may be the `Writer`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from glassformer.errors import DataError
from glassformer.files import replacing
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import translate_once
from glassformer.generation.translator import Translator
from glassformer.pairs.lines import read_lines

Writer = Callable[[Sequence[Path], Path, Path, SearchConfig], None]
"""It takes the runs that write together, the file of text, the file to write and a search. Called again after a stop,
it goes on."""
BACK = SearchConfig(beam=1)
"""The search of the way back, which needs no more than the gist."""


def write_here(
    runs: Sequence[Path],
    text: Path,
    output: Path,
    search: SearchConfig,
    *,
    device: str = "auto",
    precision: str = "auto",
) -> None:
    """Translate the lines of a file on this machine, as a `Writer` does."""
    translate_once(Translator.load_ensemble(runs, device, precision), text, output, search)


def read_written(text: Path, written: Path, n_best: int) -> Iterator[tuple[str, float, str]]:
    """Yield each line of text, and the score and the text of a translation of it, `n_best` times at most.

    Raises DataError where the file isn't what a `Writer` leaves.
    """
    lines = read_lines(text)
    number, line = 0, ""
    for place, row in enumerate(read_lines(written), start=1):
        numbers, score, translation = _columns(row, n_best, f"{written}, line {place}")
        belongs = numbers or number + 1
        if belongs > number:
            line = next(islice(lines, belongs - number - 1, None), "")
            number = belongs
        yield line, score, translation
    if next(lines, None) is not None:
        raise DataError(f"{written} has no translation of line {number + 1:,} of {text}: remove it to write it anew")


def count_written(text: Path, written: Path, n_best: int) -> int:
    """Return the number of translations; those of empty lines, which are gaps in the text, don't count."""
    return sum(bool(line) for line, _, _ in read_written(text, written, n_best))


def _columns(row: str, n_best: int, place: str) -> tuple[int, float, str]:
    """Return the number of a row's line, 0 where it has none, the score and the translation."""
    try:
        *numbers, score, translation = row.split("\t", 1 + (n_best > 1))
        return int(numbers[0]) if n_best > 1 else 0, float(score), translation
    except (ValueError, IndexError):
        expected = f"{'number<tab>' * (n_best > 1)}score<tab>translation"
        raise DataError(f"{place}: expected {expected}: remove the file to write it anew") from None


def write_hypotheses(text: Path, written: Path, n_best: int, path: Path) -> int:
    """Write the translations alone, a line each; return how many they are."""
    count = 0
    with replacing(path) as file:
        for _, _, translation in read_written(text, written, n_best):
            file.write(f"{translation}\n".encode())
            count += 1
    return count
