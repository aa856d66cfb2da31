"""Pairs of several files, each as often as its weight says: `a.tmx:3 b.tsv`."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glassformer.errors import ConfigError
from glassformer.pairs.files import Pair, PairBlock, PairFiles

MOST_TIMES = 1000
"""The greatest weight of a file."""


@dataclass(frozen=True)
class PairMixture:
    """The pairs of several files, one file after the other. Those of a file with weight 3 come three times.

    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("a", "b"):
    ...     _ = (folder / f"{name}.tsv").write_text(f"{name} source\\t{name} target\\n")
    >>> list(PairMixture.of([folder / "a.tsv:2", folder / "b.tsv"]))
    [('a source', 'a target'), ('a source', 'a target'), ('b source', 'b target')]
    """

    parts: tuple[tuple[PairFiles, int], ...]
    """Files and their weights."""

    @classmethod
    def of(
        cls, sources: Sequence[Path], targets: Sequence[Path] = (), columns: tuple[str, str] | None = None
    ) -> "PairMixture":
        """Return the mixture of files of both sides, or of as many files of sources as of targets.

        A colon and a number behind the name of a source file, as in a.tsv:3, are its weight. Raises ConfigError where
        the numbers of files differ.
        """
        if targets and len(targets) != len(sources):
            raise ConfigError(
                f"there must be as many files of targets as of sources, got {len(sources)} of sources and "
                f"{len(targets)} of targets"
            )
        weighted = [_weighted(path) for path in sources]
        beside: Sequence[Path | None] = targets or [None] * len(sources)
        parts = [
            (PairFiles(path, target, columns), weight) for (path, weight), target in zip(weighted, beside, strict=True)
        ]
        return cls(tuple(parts))

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [path for files, _ in self.parts for path in files.paths]

    @property
    def name(self) -> str:
        """The files of both sides, or of the sources, in words."""
        return " and ".join(files.name for files, _ in self.parts)

    def check(self) -> None:
        """Raise DataError where a file can't be used (see `PairFiles.check`)."""
        for files, _ in self.parts:
            files.check()

    def __iter__(self) -> Iterator[Pair]:
        for block in self.blocks():
            yield from zip(*block.pairs(), strict=True)

    def blocks(self, say: Callable[[str], object] = lambda said: None) -> Iterator[PairBlock]:
        """Yield all lines in order, in blocks, and say once what was taken for the pair (see `PairFiles.blocks`)."""
        total = sum(weight for _, weight in self.parts)
        done = 0
        for files, weight in self.parts:
            for time in range(weight):
                for block in files.blocks(*([say] if time == 0 else [])):
                    yield replace(block, share=(done + block.share) / total, repeated=time > 0)
                done += 1


Pairs = PairFiles | PairMixture
Paths = Path | tuple[Path, ...]


def open_pairs(source: Paths, target: Paths | None = None, columns: tuple[str, str] | None = None) -> Pairs:
    """Return the pairs of one file, of two parallel ones, or of several (see `PairMixture.of`)."""
    sources, targets = (() if one is None else (one,) if isinstance(one, Path) else one for one in (source, target))
    mixture = PairMixture.of(sources, targets, columns)
    return mixture.parts[0][0] if [weight for _, weight in mixture.parts] == [1] else mixture


def are_weighted(sources: Paths) -> bool:
    """Return whether the pairs of one of these files come several times."""
    return any(_weighted(path)[1] > 1 for path in ((sources,) if isinstance(sources, Path) else sources))


def unweighted(pairs: Pairs) -> Pairs:
    """Return the pairs of the same files, each file once."""
    return pairs if isinstance(pairs, PairFiles) else PairMixture(tuple((files, 1) for files, _ in pairs.parts))


def _weighted(path: Path) -> tuple[Path, int]:
    """Return a file and its weight, which stands behind a colon unless there is a file of this very name."""
    found = re.fullmatch(r"(.+):(\d+)", str(path))
    if found is None or path.exists():
        return path, 1
    if not (len(found[2]) <= 4 and 1 <= int(found[2]) <= MOST_TIMES):
        raise ConfigError(
            f"the weight of a file, how often its pairs are read, must be a whole number from 1 to {MOST_TIMES:,}, "
            f"got {path}"
        )
    return Path(found[1]), int(found[2])
