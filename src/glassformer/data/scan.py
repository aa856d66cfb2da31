"""The first pass over the pairs: it finds unreadable lines, counts the pairs, and digests their content."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from glassformer.data.held_out import source_rank
from glassformer.data.processes import map_in_order
from glassformer.errors import DataError
from glassformer.text.pairs import PairBlock, PairFiles


@dataclass(frozen=True)
class ScanResult:
    """Facts about the pairs of some files that one pass tells."""

    pairs: int
    characters: int
    """Characters of both sides together."""
    digest: str
    """Hexadecimal digest of the content. The files' names, and whether they are packed, don't change it."""
    lowest: Mapping[int, int]
    """The lowest ranks of sources (see `source_rank`), and how many pairs have each."""


@dataclass(frozen=True)
class PairScanner:
    """Work for `map_in_order`: from a block to its pairs, characters, digest, and `most` lowest ranks."""

    seed: int
    most: int

    def __call__(self, parts: list[bytes]) -> list[bytes]:
        block = PairBlock.from_parts(parts)
        sources, targets = block.pairs()
        frequency = Counter(source_rank(source, self.seed) for source in sources) if self.most else {}
        ranks = sorted(frequency)[: self.most]
        figures = len(sources), sum(map(len, sources)) + sum(map(len, targets)), block.share
        digest = hashlib.blake2b(block.source).digest() + hashlib.blake2b(block.target).digest()
        counts = array("q", (frequency[rank] for rank in ranks))
        return [json.dumps(figures).encode(), digest, array("Q", ranks).tobytes(), counts.tobytes()]


def scan_pairs(
    files: PairFiles,
    *,
    seed: int,
    most: int,
    workers: int,
    progress: Callable[[int, float], None] = lambda pairs, share: None,
) -> ScanResult:
    """Read all pairs once and return what that tells, with the `most` lowest ranks for this seed.

    `progress` is called with the number of pairs read so far, and the share of the source file. Raises DataError where
    a file or line can't be used, or the files are empty.
    """
    files.check()
    pairs = characters = 0
    digest = hashlib.blake2b(digest_size=16)
    lowest: Counter[int] = Counter()
    blocks = (block.to_parts() for block in files.blocks())
    with closing(map_in_order(PairScanner(seed, most), blocks, workers)) as scanned:
        for figures, content, ranks, counts in scanned:
            more, length, share = json.loads(figures)
            pairs, characters = pairs + more, characters + length
            digest.update(content)
            lowest.update(dict(zip(array("Q", ranks), array("q", counts), strict=True)))
            for high in sorted(lowest)[most:]:  # none of the `most` lowest of all is ever among these
                del lowest[high]
            progress(pairs, share)
    if not pairs:
        raise DataError(f"{files.source} is empty: at least one pair is needed")
    return ScanResult(pairs, characters, digest.hexdigest(), dict(lowest))
