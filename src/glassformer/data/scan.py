"""The first pass over the pairs: it finds unreadable lines, counts the pairs, and digests their content."""

import hashlib
import heapq
import json
import random
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from glassformer.data.held_out import is_usable, source_rank
from glassformer.data.processes import map_in_order
from glassformer.decoding import decode_message
from glassformer.errors import DataError
from glassformer.pairs.files import Pair, PairBlock
from glassformer.pairs.mixture import Pairs

SAMPLED, SAMPLED_CHARACTERS = 4_000, 1 << 14
"""Most pairs that are drawn at random, to say what the text is like, and most characters of a side of one."""


@dataclass(frozen=True)
class ScanResult:
    """Facts about the pairs of some files that one pass tells."""

    pairs: int
    characters: int
    """Characters of both sides together."""
    digest: str
    """Hexadecimal digest of the content. The files' names, and whether they are packed, don't change it."""
    lowest: Mapping[int, int]
    """The lowest ranks of the sources of usable pairs (see `source_rank`), and how many of these have each."""
    usable: int
    """Pairs with text on both sides, each counted once, however often its file is read."""
    with_text: int
    """Pairs with text on both sides, each counted as often as its file is read."""
    sample: Sequence[Pair] = ()
    """Some of the pairs, drawn at random."""

    def usable_sample(self) -> list[Pair]:
        """Return those of the sample that have text on both sides."""
        return [pair for pair in self.sample if is_usable(*pair)]


@dataclass(frozen=True)
class PairScanner:
    """Work for `map_in_order`: from a block to its figures, digest, `most` lowest ranks, and a sample of its pairs."""

    seed: int
    most: int

    def __call__(self, parts: list[bytes]) -> list[bytes]:
        block = PairBlock.from_parts(parts)
        sources, targets = block.pairs()
        with_text = [source for source, target in zip(sources, targets, strict=True) if is_usable(source, target)]
        usable = [] if block.repeated else with_text
        frequency = Counter(source_rank(source, self.seed) for source in usable) if self.most else {}
        ranks = sorted(frequency)[: self.most]
        characters = sum(map(len, sources)) + sum(map(len, targets))
        figures = len(sources), characters, block.share, len(usable), len(with_text)
        digest = hashlib.blake2b(block.source).digest() + hashlib.blake2b(block.target).digest()
        drawn = [] if block.repeated else self._draw(sources, targets, digest, block.first)
        counts = array("q", (frequency[rank] for rank in ranks))
        shown = json.dumps(drawn).encode()
        content = digest + b"again" if block.repeated else digest  # a file counted twice isn't two with the same pairs
        return [json.dumps(figures).encode(), content, array("Q", ranks).tobytes(), counts.tobytes(), shown]

    def _draw(
        self, sources: Sequence[str], targets: Sequence[str], digest: bytes, first: int
    ) -> list[tuple[float, str, str]]:
        """Return a random number with each pair that may be among the `SAMPLED` lowest of all files.

        So many of the lines up to the end of this block have numbers below `highest`, and half as many more.
        """
        draw = random.Random(digest + self.seed.to_bytes(8, "little"))
        highest = 1.5 * SAMPLED / (first - 1 + len(sources))
        numbered = zip((draw.random() for _ in sources), sources, targets, strict=True)
        return [
            (number, source[:SAMPLED_CHARACTERS], target[:SAMPLED_CHARACTERS])
            for number, source, target in numbered
            if number < highest
        ]


def scan_pairs(
    files: Pairs,
    *,
    seed: int,
    most: int,
    workers: int,
    progress: Callable[[int, float], None] = lambda pairs, share: None,
    say: Callable[[str], object] = lambda said: None,
) -> ScanResult:
    """Read all pairs once and return what that tells, with the `most` lowest ranks for this seed.

    `progress` is called with the number of pairs read so far, and the share of the source file; `say` with
    what was taken for the pair, where there was a choice. Raises DataError where a file or line can't be used, or the
    files are empty.
    """
    files.check()
    pairs = characters = usable = with_text = 0
    digest = hashlib.blake2b(digest_size=16)
    lowest: Counter[int] = Counter()
    sample: list[tuple[float, str, str]] = []
    blocks = (block.to_parts() for block in files.blocks(say))
    with closing(map_in_order(PairScanner(seed, most), blocks, workers)) as scanned:
        for figures, content, ranks, counts, drawn in scanned:
            more, length, share, more_usable, more_with_text = decode_message(figures)
            pairs, characters = pairs + more, characters + length
            usable, with_text = usable + more_usable, with_text + more_with_text
            digest.update(content)
            lowest.update(dict(zip(array("Q", ranks), array("q", counts), strict=True)))
            for high in sorted(lowest)[most:]:  # none of the `most` lowest of all is ever among these
                del lowest[high]
            sample = heapq.nsmallest(SAMPLED, [*sample, *map(tuple, decode_message(drawn))])
            progress(pairs, share)
    if not pairs:
        raise DataError(f"{files.name} is empty: at least one pair is needed")
    drawn_pairs = [(source, target) for _, source, target in sample]
    return ScanResult(pairs, characters, digest.hexdigest(), dict(lowest), usable, with_text, drawn_pairs)
