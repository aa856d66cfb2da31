"""Text to learn vocabularies from: all of a small corpus, a part of a large one; of symbols always all."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import compress

from glassformer.data.held_out import HeldOut
from glassformer.data.processes import map_in_order
from glassformer.text.pairs import PairBlock, PairFiles
from glassformer.text.tokenizer import count_symbols

LINES, SYMBOLS, NOTHING = "lines", "symbols", "nothing"
TextSample = list[str] | Counter[str]
"""Lines, or how often each symbol occurs."""


@dataclass(frozen=True)
class TextSampler:
    """Draws from blocks, for `map_in_order`: of each side what it wants, lines with the probability `share`."""

    wants: Sequence[str]
    """Of the sources and of the targets: LINES, SYMBOLS or NOTHING."""
    share: float
    seed: int
    ranks: Sequence[int]
    """Of the pairs that are held out (see `HeldOut`)."""

    def __call__(self, parts: list[bytes]) -> list[bytes]:
        block = PairBlock.from_parts(parts)
        sides = block.pairs()
        drawn = self._drawn(sides[0], block.first, self.share)
        training = self._drawn(sides[0], block.first, 1.0) if SYMBOLS in self.wants else []
        samples: list[Iterable[str]] = []
        for want, side in zip(self.wants, sides, strict=True):
            if want == SYMBOLS:
                samples.append(count_symbols(compress(side, training)))
            else:
                samples.append(list(compress(side, drawn)) if want == LINES else [])
        return [json.dumps(part, ensure_ascii=False).encode() for part in ((block.lines, block.share), *samples)]

    def _drawn(self, sources: list[str], first: int, share: float) -> list[bool]:
        """Which pairs are drawn, none that is held out; the same whichever process draws."""
        draw, split = random.Random(self.seed << 40 | first), HeldOut(self.seed, self.ranks)
        return [(share >= 1 or draw.random() < share) and not split.includes(source) for source in sources]


def sample_text(
    files: PairFiles,
    *,
    wants: Sequence[str],
    share: float,
    split: HeldOut,
    workers: int,
    progress: Callable[[int, float], None] = lambda pairs, share: None,
) -> tuple[TextSample, TextSample]:
    """Text of the sources and of the targets that are for training, in the order of the files.

    Of a side that wants LINES each is taken with the probability `share`; if both do, line n of one belongs to line n
    of the other. SYMBOLS are counted in all of them. `progress` is as in `scan`.
    """
    samples: list[TextSample] = [Counter() if want == SYMBOLS else [] for want in wants]
    pairs = 0
    blocks = (block.to_parts() for block in files.blocks())
    sampler = TextSampler(wants, share, split.seed, split.ranks)
    with closing(map_in_order(sampler, blocks, workers)) as drawn:
        for figures, *sides in drawn:
            lines, read = json.loads(figures)
            for have, side in zip(samples, sides, strict=True):
                more = json.loads(side)
                if isinstance(have, Counter):
                    have.update(more)
                else:
                    have += more
            pairs += lines
            progress(pairs, read)
    source, target = samples
    return source, target
