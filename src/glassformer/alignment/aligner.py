"""Words aligned without any model of translation: the Aligner learns from pairs of lines alone."""

import logging
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.alignment.learning import LONGEST, choose_pairs
from glassformer.alignment.links import Link, Symmetrization, check_symmetrization, symmetrize
from glassformer.alignment.model import AlignmentModel
from glassformer.errors import ArgumentError, DataError, check_sequence, shown
from glassformer.text.words import split_words

Line = str | Sequence[str]
"""A line, or its words."""

STEM = 4
"""Words with the same first letters, so many, are kin: they may be forms of one word."""
LIKELY = 0.2
"""Least probability of a link."""
CELLS = 1 << 25
"""Most source words times target words, summed over the pairs that are learned from: they need about 2 GB."""
MOST_ALIGNED = 1 << 25
"""Most source words times target words of a pair that is aligned: it needs about 2 GB, and some twenty seconds."""


class Aligner:
    """Tells which word of a line each word of its translation stands for, learned from pairs of lines alone.

    It needs no model and no GPU; a few thousand pairs take some seconds. See `AlignmentModel` for the mathematics.

    >>> sources = ["das Haus", "das Buch", "ein Buch", "ein Haus"]
    >>> targets = ["the house", "the book", "a book", "a house"]
    >>> aligner = Aligner.train(sources, targets)
    >>> [link[:2] for link in aligner.align(["das Buch"], ["the book"])[0]]
    [(0, 0), (1, 1)]
    """

    def __init__(self, model: AlignmentModel, source_words: dict[str, int], target_words: dict[str, int]) -> None:
        """Join a model and the ids of its words."""
        self._model, self._source_words, self._target_words = model, source_words, target_words

    @classmethod
    def train(cls, sources: Sequence[Line], targets: Sequence[Line]) -> "Aligner":
        """Learn from pairs of lines, or of lists of words; letters may be capital or small.

        What is to be aligned should be among the pairs. Of more than CELLS allows a part is used, evenly spread. Pairs
        with an empty side are passed over, and so are those that have more than LONGEST cells, source words times
        target words, which the log counts. The same pairs give the same result. Raises DataError where no pair is left.
        """
        kept = _learned_from([pair for pair in _pairs_of_words(sources, targets) if all(pair)])
        x, y = (_vocabulary(pair[side] for pair in kept) for side in (0, 1))
        model = AlignmentModel.train(
            [_ids(source, x) for source, _ in kept],
            [_ids(target, y) for _, target in kept],
            len(x) + 1,
            len(y) + 1,
            source_kin=_kin(x),
            target_kin=_kin(y),
        )
        return cls(model, x, y)

    def align(
        self,
        sources: Sequence[Line],
        targets: Sequence[Line],
        symmetrization: Symmetrization = "grow-diag-final-and",
    ) -> list[list[Link]]:
        """Return the links of each pair, in the order of the source. A pair with an empty side has none.

        A word is linked to each word of the other side that it stands for with probability LIKELY or more; the two
        directions are joined as `symmetrize` says. Raises DataError for a pair that `check_lengths` refuses.
        """
        check_symmetrization(symmetrization)
        pairs = self._pairs(sources, targets)
        aligned: list[list[Link]] = [[] for _ in pairs]
        for n, forward, backward in self._model.posteriors(pairs):
            aligned[n] = symmetrize(_links(forward), _links(backward), symmetrization)
        return aligned

    def probabilities(
        self, sources: Sequence[Line], targets: Sequence[Line]
    ) -> list[tuple[Float[Tensor, "_ _"], Float[Tensor, "_ _"]]]:
        """Return two matrices for each pair: p(source word | target word), and p(target word | source word).

        Both are (target_words, source_words). The first sums to at most 1 over the source's words, the second over the
        target's; what is missing is the probability that the word stands for none. Raises DataError for a pair that
        `check_lengths` refuses.
        """
        pairs = self._pairs(sources, targets)
        found = [(torch.zeros(len(y), len(x)), torch.zeros(len(y), len(x))) for x, y in pairs]
        for n, forward, backward in self._model.posteriors(pairs):
            found[n] = forward, backward
        return found

    def _pairs(self, sources: Sequence[Line], targets: Sequence[Line]) -> list[tuple[Tensor, Tensor]]:
        """Return the ids of the words of each pair."""
        pairs = _pairs_of_words(sources, targets)
        check_lengths(sources, targets)
        return [(_ids(x, self._source_words), _ids(y, self._target_words)) for x, y in pairs]


def check_lengths(sources: Sequence[Line], targets: Sequence[Line]) -> None:
    """Raise DataError for the first pair that is too long to be aligned: it has more than MOST_ALIGNED cells."""
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        if len(source) * len(target) <= MOST_ALIGNED:  # a line has no more words than characters
            continue
        x, y = len(_words(source)), len(_words(target))
        if x * y > MOST_ALIGNED:
            raise DataError(
                f"pair {number:,} is too long to be aligned: {x:,} source words times {y:,} target words are "
                f"{x * y:,}, and may be {MOST_ALIGNED:,}: split it into sentences"
            )


def _learned_from(pairs: list[tuple[list[str], list[str]]]) -> list[tuple[list[str], list[str]]]:
    """Return those of these pairs that are learned from; DataError where there is none."""
    if not pairs:
        raise DataError("there is nothing to learn an alignment from: no pair has words on both sides")
    cells = torch.tensor([len(x) * len(y) for x, y in pairs])
    most = min(LONGEST, CELLS)
    long, shortest = int((cells > most).sum()), int(cells.min())
    if long == len(pairs):
        raise DataError(
            f"there is nothing to learn an alignment from: a pair may have {most:,} cells (source words times target "
            f"words), and the shortest has {shortest:,}: split the lines into sentences"
        )
    if long:
        logging.getLogger("glassformer").warning(
            f"not learned from: {long:,} of {len(pairs):,} pairs, which have more than {most:,} cells (source words "
            "times target words); split their lines into sentences"
        )
    return [pairs[n] for n in choose_pairs(cells, CELLS)]


def _links(probabilities: Float[Tensor, "target_words source_words"]) -> list[Link]:
    """Return the links that are likely enough."""
    found = (probabilities >= LIKELY).nonzero().tolist()
    return [Link(s, t, round(min(1.0, float(probabilities[t, s])), 6)) for t, s in found]


def _pairs_of_words(sources: Sequence[Line], targets: Sequence[Line]) -> list[tuple[list[str], list[str]]]:
    """Return the words of each pair in small letters; ArgumentError unless both are lines, and as many."""
    for name, lines in (("sources", sources), ("targets", targets)):
        _check_lines(name, lines)
    if len(sources) != len(targets):
        raise ArgumentError(f"sources and targets must be pairs, got {len(sources)} sources, {len(targets)} targets")
    x, y = ([_words(line) for line in lines] for lines in (sources, targets))
    return list(zip(x, y, strict=True))


def _check_lines(name: str, lines: Sequence[Line]) -> None:
    """Raise ArgumentError unless these are a sequence of lines, each a text or its words."""
    check_sequence(name, lines)
    for n, line in enumerate(lines):
        words = line if isinstance(line, Sequence) and not isinstance(line, str | bytes) else [line]
        if not all(isinstance(word, str) for word in words):
            raise ArgumentError(f"{name}[{n}] must be a line of text, or its words, got {shown(line)}")


def _words(line: Line) -> list[str]:
    words = [word.text for word in split_words(line)] if isinstance(line, str) else line
    return [word.lower() for word in words]


def _vocabulary(lines: Iterable[list[str]]) -> dict[str, int]:
    """Return the id of each word, from 0 on; that after the last is for unknown ones."""
    return {word: n for n, word in enumerate(sorted({word for words in lines for word in words}))}


def _ids(words: Sequence[str], vocabulary: dict[str, int]) -> Tensor:
    return torch.tensor([vocabulary.get(word, len(vocabulary)) for word in words], dtype=torch.long)


def _kin(vocabulary: dict[str, int]) -> Tensor:
    """Return the number of each word's family, those that begin with the same letters."""
    families = dict[str, int]()
    numbers = [families.setdefault(word[:STEM], len(families)) for word in vocabulary]
    return torch.tensor([*numbers, len(families)])
