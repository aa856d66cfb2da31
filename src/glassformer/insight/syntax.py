"""Dependency trees of sentences (CoNLL-U, Universal Dependencies), and which heads follow their relations."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import DataError
from glassformer.pairs.lines import readable
from glassformer.pairs.tables import open_text

RELATIONS = ("nsubj", "obj", "amod", "advmod")
"""The relations that Voita et al. 2019 (section 5.2.2) study. Subtypes such as nsubj:pass count as their type."""
SYNTACTIC_MARGIN = 0.1
"""Margin, as a share of the tokens, by which a syntactic head must find the other word more often than the best fixed
position does (the same section)."""
MIN_OCCURRENCES = 20
"""Relations that occur fewer times are not counted."""


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """The relation that a head follows best."""

    relation: str
    """One of `RELATIONS`."""
    to: str
    """head: dependents look at the word they depend on. dependent: that word looks at them."""
    found: float
    """Share of the tokens whose largest weight, not counting the sentence's end, falls on the other word."""
    by_position: float
    """The same share for always looking at the one relative position that is best at it."""

    def __str__(self) -> str:
        return f"{self.relation} to {self.to} {self.found:.0%} ({self.by_position:.0%})"


@dataclass(frozen=True)
class Arc:
    """A relation between a dependent and its head in a sentence, each given by its tokens."""

    relation: str
    dependent: list[int]
    head: list[int]

    def both_directions(self) -> Iterator[tuple[tuple[str, str], list[int], list[int]]]:
        """Yield for both directions: (relation, direction), the tokens that look, and those they should look at."""
        yield (self.relation, "head"), self.dependent, self.head
        yield (self.relation, "dependent"), self.head, self.dependent


class Treebank:
    """The trees of a CoNLL-U file, found by the text of their sentences. Spaces don't count."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises DataError if it can't be read, and ImportError if the package conllu is missing."""
        try:
            from conllu import parse_incr
            from conllu.exceptions import ParseException
        except ImportError as error:
            raise ImportError("reading CoNLL-U needs the package conllu: pip install 'glassformer[syntax]'") from error
        self._path = path
        self._trees: dict[str, list[_Word]] = {}
        try:
            with readable(path), open_text(path) as file:
                for tree in parse_incr(file):
                    text, words = _words(tree)
                    self._trees[text] = words
        except (ParseException, KeyError, TypeError) as error:
            reason = f"a column is missing: {error}" if isinstance(error, (KeyError, TypeError)) else error
            raise DataError(f"{path} is not CoNLL-U ({reason}): ten columns, tabs between them") from None

    def arcs(self, surfaces: Sequence[str]) -> list[Arc] | None:
        """Return the arcs of the sentence whose tokens have these texts, or None if there is no tree for it."""
        pieces = [_letters(surface) for surface in surfaces]
        words = self._trees.get("".join(pieces))
        if words is None:
            return None
        ends = torch.tensor([0, *map(len, pieces)]).cumsum(0).tolist()
        tokens = {
            word.id: [n for n in range(len(pieces)) if ends[n] < word.end and ends[n + 1] > word.begin]
            for word in words
        }
        return [
            Arc(word.relation, tokens[word.id], tokens[word.head])
            for word in words
            if word.relation and word.head in tokens
        ]

    def arcs_of_all(self, sentences: Sequence[Sequence[str]]) -> list[list[Arc] | None]:
        """Return the arcs of each sentence, or None for it. Raises DataError if there is no tree for any of them."""
        arcs = [self.arcs(surfaces) for surfaces in sentences]
        if all(one is None for one in arcs):
            raise DataError(
                f"{self._path} has a tree for none of the {len(arcs)} sentences: its trees must have "
                "their text, letter for letter (spaces don't count)"
            )
        return arcs


class RelationCounts:
    """Counts of how often the heads of an attention follow each relation."""

    def __init__(self, heads: int) -> None:
        self._hits = defaultdict[tuple[str, str], Tensor](lambda: torch.zeros(heads))
        self._tokens, self._offsets = Counter[tuple[str, str]](), defaultdict(Counter[int])

    def add(self, weights: Float[Tensor, "heads q_len k_len"], arcs: Sequence[Arc]) -> None:
        """Count a sentence, given without its end."""
        targets = weights.argmax(-1)
        for arc in arcs:
            for direction, queries, keys in arc.both_directions():
                for query in queries:
                    self._hits[direction] += torch.isin(targets[:, query], torch.tensor(keys))
                    self._tokens[direction] += 1
                    self._offsets[direction].update(key - query for key in keys)

    def best(self, head: int) -> Syntax | None:
        """Return the relation that this head follows best, or None if no relation occurred often enough."""
        candidates = [
            Syntax(
                relation=direction[0],
                to=direction[1],
                found=float(self._hits[direction][head]) / tokens,
                by_position=max(self._offsets[direction].values()) / tokens,
            )
            for direction, tokens in self._tokens.items()
            if tokens >= MIN_OCCURRENCES
        ]
        return max(candidates, key=lambda syntax: syntax.found - syntax.by_position, default=None)


@dataclass(frozen=True)
class _Word:
    """A word of a tree."""

    id: int
    begin: int
    end: int
    """Range of its letters in the sentence. Words that are written as one, such as German zum, share it."""
    head: int
    relation: str
    """Empty if it is none of `RELATIONS`."""


def _words(tree: Any) -> tuple[str, list[_Word]]:
    """Return the letters of a sentence without spaces, and its words."""
    text, words, whole = "", list[_Word](), (0, (0, 0))
    for token in tree:
        number = token["id"]
        if isinstance(number, int) and number <= whole[0]:  # one of several words that are written as one
            begin, end = whole[1]
        elif isinstance(number, int) or number[1] == "-":
            begin = len(text)
            text += _letters(token["form"])
            end = len(text)
            if not isinstance(number, int):
                whole = number[2], (begin, end)
                continue
        else:  # an empty node
            continue
        relation = (token["deprel"] or "").partition(":")[0]
        words.append(_Word(number, begin, end, token["head"], relation if relation in RELATIONS else ""))
    return text, words


def _letters(text: str) -> str:
    """Return the text without spaces, with letters decomposed (é as e and an accent): a token may be such a part."""
    return "".join(unicodedata.normalize("NFKD", text).split())
