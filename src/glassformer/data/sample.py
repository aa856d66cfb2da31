"""The text that vocabularies are trained on: all of a small corpus, a part of a large one, and always all symbols."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import compress

from glassformer.data.held_out import HeldOut
from glassformer.data.processes import map_in_order
from glassformer.decoding import decode_message
from glassformer.pairs.files import PairBlock
from glassformer.pairs.mixture import Pairs
from glassformer.text.tokenizer import count_symbols

LINES, SYMBOLS, NOTHING = "lines", "symbols", "nothing"
TextSample = list[str] | Counter[str]
"""Lines of one side, or how often each of its symbols occurs."""


@dataclass(frozen=True)
class TextSampler:
    """Work for `map_in_order`: draws from a block what each side wants, a line with probability `share`."""

    wants: Sequence[str]
    """LINES, SYMBOLS or NOTHING, for the sources and for the targets."""
    share: float
    seed: int
    ranks: Sequence[int]
    """Ranks of the pairs that are held out (see `HeldOut`)."""

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
        """Return whether each pair is drawn; held-out pairs never are. The same whichever process draws."""
        draw, held_out = random.Random(self.seed << 40 | first), HeldOut(self.seed, self.ranks)
        return [(share >= 1 or draw.random() < share) and not held_out.includes(source) for source in sources]


def sample_text(
    files: Pairs,
    *,
    wants: Sequence[str],
    share: float,
    held_out: HeldOut,
    workers: int,
    progress: Callable[[int, float], None] = lambda pairs, share: None,
) -> tuple[TextSample, TextSample]:
    """Return text of the sources and of the targets of the training pairs, in the order of the files.

    A side that wants LINES gets each line with probability `share`; if both sides do, line n of one belongs to line n
    of the other. SYMBOLS are counted in all lines. `progress` is called as by `scan_pairs`.
    """
    samples: list[TextSample] = [Counter() if want == SYMBOLS else [] for want in wants]
    pairs = 0
    blocks = (block.to_parts() for block in files.blocks())
    sampler = TextSampler(wants, share, held_out.seed, held_out.ranks)
    with closing(map_in_order(sampler, blocks, workers)) as drawn:
        for figures, *sides in drawn:
            lines, read = decode_message(figures)
            for have, side in zip(samples, sides, strict=True):
                more = decode_message(side)
                if isinstance(have, Counter):
                    have.update(more)
                else:
                    have += more
            pairs += lines
            progress(pairs, read)
    source, target = samples
    return source, target
