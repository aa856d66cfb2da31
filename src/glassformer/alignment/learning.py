"""Expectation maximisation: the two directions of an alignment, estimated side by side from pairs of ids."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.alignment.hmm import MOST_FERTILE, Direction, Lengths
from glassformer.alignment.jumps import LONGEST_JUMP

INDEPENDENT, CHAINED, FERTILE = 3, 2, 2
"""Rounds: with each token by itself, with chains, and with chains and fertilities. More fit rare words too closely."""
AGREEMENT = 0.25
"""Weight of the other direction in what a link counts for."""
PRIOR = 1e-4
"""Pseudo-count: how often each translation of each token counts as seen before any pair is read."""
BACKED = 20.0
"""Pseudo-counts that draw the translations of a token to those of its kin, and those to the translations' own kin."""
FERTILITY_BACKED = 5.0
"""Pseudo-counts that draw the fertility of a token to that of all."""
NONE_BACKED = 100.0
"""Pseudo-counts that draw the tokens that stand for nothing to all of them."""
LARGEST_RATIO = 20.0
"""Most that fertility can favour one more link."""
AT_ONCE = 1 << 17
"""Most cells, source tokens times target tokens, of a batch, padding included."""
LONGEST = 1 << 20
"""Most cells of a pair that is learned from: in a longer one nearly every token could stand for every other."""

Shares = Float[Tensor, "batch target_len source_len"]
Kin = Int[Tensor, " _"] | None


def learn(
    source: Sequence[Tensor], target: Sequence[Tensor], vocabularies: tuple[int, int], kin: tuple[Kin, Kin]
) -> tuple[Direction, Direction]:
    """Return the direction that explains the target's tokens by the source's, and the other one."""
    pairs = _Pairs.of(source, target, *vocabularies)
    forward, backward = _Learner(pairs, *kin), _Learner(pairs.turned(), *reversed(kin))
    for rounds, expected in ((INDEPENDENT, _independent), (CHAINED, _chained), (FERTILE, _fertile)):
        for _ in range(rounds):
            for here, there in zip(forward.pairs.batches, backward.pairs.batches, strict=True):
                ours, theirs = expected(forward.direction, here), expected(backward.direction, there)
                if expected is not _independent:
                    both = ours.shares, theirs.shares
                    ours.shares, theirs.shares = _agreed(*both), _agreed(*reversed(both))
                forward.add(here, ours)
                backward.add(there, theirs)
            forward.update()
            backward.update()
    return forward.direction, backward.direction


@dataclass
class _Expected:
    """Holds the expected counts of a batch in one round."""

    shares: Shares
    """The probability of each link."""
    jumps: Float[Tensor, " widths"] | None = None
    """Jumps of each width, where there is a chain."""


def _independent(direction: Direction, batch: "_Batch") -> _Expected:
    """Align each token for itself."""
    return _Expected(direction.independent(batch.emissions(direction), batch.target, batch.targets, batch.sources))


def _chained(direction: Direction, batch: "_Batch") -> _Expected:
    """Align the tokens as a chain."""
    return _Expected(*direction.chain(batch.emissions(direction), batch.target, batch.targets, batch.sources))


def _fertile(direction: Direction, batch: "_Batch") -> _Expected:
    """Align the tokens as a chain in which the fertility of the source's tokens counts."""
    emissions, lengths = batch.emissions(direction), (batch.targets, batch.sources)
    shares, _ = direction.chain(emissions, batch.target, *lengths)
    return _Expected(*direction.chain(direction.reweighted(emissions, shares, batch.source), batch.target, *lengths))


def _agreed(ours: Shares, theirs: Float[Tensor, "batch source_len target_len"]) -> Shares:
    """Return what our links count for where the other direction has a say (after Liang et al. 2006)."""
    return ours.pow(1 - AGREEMENT) * theirs.mT.pow(AGREEMENT)


@dataclass(frozen=True)
class _Batch:
    """Pairs of similar lengths, padded with zeros."""

    source: Int[Tensor, "batch source_len"]
    target: Int[Tensor, "batch target_len"]
    sources: Lengths
    targets: Lengths
    entry: Int[Tensor, "batch target_len source_len"]
    """The number of each cell among those that occur; zero outside the pair."""
    inside: Bool[Tensor, "batch target_len source_len"]

    def emissions(self, direction: Direction) -> Shares:
        """Return p(y | x) of each cell."""
        return torch.where(self.inside, direction.likely[self.entry], 0.0)

    def turned(self, entry: Tensor) -> "_Batch":
        """Return the same pairs with source and target exchanged."""
        return _Batch(self.target, self.source, self.targets, self.sources, entry, self.inside.mT)


@dataclass(frozen=True)
class _Pairs:
    """Pairs in batches, and the cells that occur in them."""

    cells: Int[Tensor, " entries"]
    batches: list[_Batch]
    source_vocab: int
    target_vocab: int

    @classmethod
    def of(cls, source: Sequence[Tensor], target: Sequence[Tensor], source_vocab: int, target_vocab: int) -> "_Pairs":
        """Make batches of pairs of ids."""
        found, own = list[_Batch](), list[Tensor]()
        for numbers in batches_of_cells([(len(x), len(y)) for x, y in zip(source, target, strict=True)]):
            sides = [[side[n].long() for n in numbers] for side in (source, target)]
            x, y = (pad_sequence(side, batch_first=True) for side in sides)
            sources, targets = (torch.tensor([len(ids) for ids in side]) for side in sides)
            of_x, of_y = torch.arange(x.shape[1]) < sources[:, None], torch.arange(y.shape[1]) < targets[:, None]
            cells, inside = x[:, None, :] * target_vocab + y[:, :, None], of_y[:, :, None] & of_x[:, None, :]
            found.append(_Batch(x, y, sources, targets, cells, inside))
            own.append(cells[inside])
        known, entries = torch.cat(own).unique(return_inverse=True)
        batches = list[_Batch]()
        for batch, numbers in zip(found, entries.split([len(cells) for cells in own]), strict=True):
            entry = torch.zeros_like(batch.entry).masked_scatter_(batch.inside, numbers)
            batches.append(_Batch(batch.source, batch.target, batch.sources, batch.targets, entry, batch.inside))
        return cls(known, batches, source_vocab, target_vocab)

    def turned(self) -> "_Pairs":
        """Return the same pairs in the same batches with source and target exchanged."""
        x, y = self.cells // self.target_vocab, self.cells % self.target_vocab
        cells, order = (y * self.source_vocab + x).sort()
        number = torch.empty_like(order)
        number[order] = torch.arange(len(order))
        batches = [batch.turned((number[batch.entry] * batch.inside).mT) for batch in self.batches]
        return _Pairs(cells, batches, self.target_vocab, self.source_vocab)


def choose_pairs(cells: Int[Tensor, " pairs"], most: int) -> list[int]:
    """Return the numbers of as many pairs, evenly spread, as have `most` cells together.

    Pairs without any, and those with more than LONGEST or `most`, are never chosen.
    """
    short = ((cells > 0) & (cells <= min(LONGEST, most))).nonzero().flatten()
    step = max(1.0, cells[short].sum().item() / most)
    spread = short[[int(n * step) for n in range(math.ceil(len(short) / step))]]
    chosen, room = list[int](), most
    for number, count in zip(spread.tolist(), cells[spread].tolist(), strict=True):
        if count <= room:  # long pairs among these may need more than their share
            chosen.append(number)
            room -= count
    return chosen


def batches_of_cells(lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the numbers of pairs, given by their lengths, in batches of similar ones with at most AT_ONCE cells."""
    batch, widest = list[int](), 0
    for n in sorted(range(len(lengths)), key=lambda n: lengths[n][::-1]):
        source, target = lengths[n]
        if batch and max(widest, source) * target * (len(batch) + 1) > AT_ONCE:
            yield batch
            batch, widest = [], 0
        batch.append(n)
        widest = max(widest, source)
    if batch:
        yield batch


class _Learner:
    """Collects what a round expects, and makes the direction of the next round of it."""

    def __init__(self, pairs: _Pairs, source_kin: Kin, target_kin: Kin) -> None:
        self.pairs = pairs
        tokens = torch.cat([batch.target[batch.inside.any(2)] for batch in pairs.batches])
        self._frequency = tokens.bincount(minlength=pairs.target_vocab).double() / len(tokens)
        self._source, self._target = pairs.cells // pairs.target_vocab, pairs.cells % pairs.target_vocab
        own = torch.arange(max(pairs.source_vocab, pairs.target_vocab))
        self._backing = _Backing(
            self._source,
            self._target,
            self._frequency,
            own[: pairs.source_vocab] if source_kin is None else source_kin,
            own[: pairs.target_vocab] if target_kin is None else target_kin,
        )
        self.direction = Direction(
            pairs.cells,
            torch.full((len(pairs.cells),), 1 / pairs.target_vocab),
            self._frequency.float(),
            torch.full((2 * LONGEST_JUMP + 1,), 1 / (2 * LONGEST_JUMP + 1)),
            torch.ones(pairs.source_vocab, MOST_FERTILE),
        )
        self._clear()

    def _clear(self) -> None:
        sizes = self.pairs.source_vocab, self.pairs.target_vocab
        self._links = torch.zeros(len(self.pairs.cells), dtype=torch.double)
        self._none = torch.zeros(sizes[1], dtype=torch.double)
        self._jumps = torch.zeros(2 * LONGEST_JUMP + 1, dtype=torch.double)
        self._fertilities = torch.zeros(sizes[0] * (MOST_FERTILE + 1), dtype=torch.double)

    def add(self, batch: _Batch, expected: _Expected) -> None:
        """Add what is expected of a batch."""
        shares = expected.shares.double()
        self._links.index_add_(0, batch.entry[batch.inside], shares[batch.inside])
        real = batch.inside.any(2)
        self._none.index_add_(0, batch.target[real], (1 - shares.sum(2)).clamp_(min=0)[real])
        if expected.jumps is not None:
            self._jumps += expected.jumps
        real = batch.inside.any(1)
        links = shares.sum(1)[real].clamp_(max=MOST_FERTILE)
        below = links.floor().clamp_(max=MOST_FERTILE - 1)  # shared out between two whole numbers
        at = batch.source[real] * (MOST_FERTILE + 1) + below.long()
        self._fertilities.index_add_(0, at, 1 - (links - below)).index_add_(0, at + 1, links - below)

    def update(self) -> None:
        """Estimate the direction anew, and begin to count again."""
        given = _summed(self._links, self._source, self.pairs.source_vocab)
        drawn = self._links + PRIOR + BACKED * self._backing.translations(self._links)
        likely = drawn / (given + PRIOR * self.pairs.target_vocab + BACKED)[self._source]
        none = self._none + NONE_BACKED * self._frequency
        jumps = self._jumps + 0.5
        fertilities = self._fertilities.view(-1, MOST_FERTILE + 1)
        of_all = fertilities.sum(0) + 1
        smooth = fertilities + FERTILITY_BACKED * of_all / of_all.sum()
        ratios = (smooth[:, 1:] / smooth[:, :-1].clamp(min=1e-9)).clamp_(max=LARGEST_RATIO)
        self.direction = Direction(
            self.pairs.cells,
            likely.float(),
            (none / none.sum()).float(),
            (jumps / jumps.sum()).float(),
            ratios.float(),
        )
        self._clear()


class _Backing:
    """Draws the translations of a token to those of its kin, and these to those that kin have among the kin of each.

    Without kin, each token is its own: then nothing is drawn anywhere.
    """

    def __init__(
        self, source: Tensor, target: Tensor, frequency: Tensor, source_kin: Tensor, target_kin: Tensor
    ) -> None:
        """`source` and `target` are the tokens of each cell; `frequency` is p(y)."""
        families = int(target_kin.max()) + 1
        by_token, self._by_token = (source_kin[source] * len(frequency) + target).unique(return_inverse=True)
        family, token = by_token // len(frequency), by_token % len(frequency)
        by_family, self._by_family = (family * families + target_kin[token]).unique(return_inverse=True)
        self._family, self._family_again = family, by_family // families
        self._families = int(source_kin.max()) + 1
        of_kin = torch.zeros(families, dtype=torch.double).index_add_(0, target_kin, frequency)
        self._among_kin = (frequency / of_kin[target_kin].clamp(min=1e-30))[token]

    def translations(self, links: Float[Tensor, " entries"]) -> Float[Tensor, " entries"]:
        """Return p(y | kin of x) of each cell, from the links counted in each."""
        tokens = _summed(links, self._by_token, len(self._family))
        families = _summed(tokens, self._by_family, len(self._family_again))
        given = _summed(families, self._family_again, self._families)
        coarse = families / given[self._family_again].clamp(min=1e-30)
        drawn = tokens + BACKED * coarse[self._by_family] * self._among_kin
        return (drawn / (given[self._family] + BACKED))[self._by_token]


def _summed(values: Float[Tensor, " _"], groups: Int[Tensor, " _"], count: int) -> Float[Tensor, " {count}"]:
    """Return the sum of each group's values."""
    return values.new_zeros(count).index_add_(0, groups, values)
