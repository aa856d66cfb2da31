"""Dependency trees of sentences (CoNLL-U, Universal Dependencies), and which heads look along them."""

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

RELATIONS = ("nsubj", "obj", "amod", "advmod")
"""Those that Voita et al. 2019 (section 5.2.2) look at; subtypes such as nsubj:pass count as their type."""
ABOVE = 0.1
"""How much more often than the best fixed position a head must find the other word to be syntactic (the same)."""
LEAST = 20
"""Relations found fewer times than this say nothing."""


@dataclass(frozen=True, kw_only=True)
class Syntax:
    """The relation that a head follows best."""

    relation: str
    """One of `RELATIONS`."""
    to: str
    """head: words of this relation look at the word they depend on; dependent: the other way."""
    found: float
    """Share of the tokens whose largest weight, that on the sentence's end left aside, falls on the other word."""
    by_position: float
    """The same of always looking at the one relative position that is best at it."""

    def __str__(self) -> str:
        return f"{self.relation} to {self.to} {self.found:.0%} ({self.by_position:.0%})"


@dataclass(frozen=True)
class Link:
    """A dependent and its head in a sentence, each by its tokens."""

    relation: str
    dependent: list[int]
    head: list[int]

    def both_ways(self) -> Iterator[tuple[tuple[str, str], list[int], list[int]]]:
        """Relation and direction, who looks, and at what."""
        yield (self.relation, "head"), self.dependent, self.head
        yield (self.relation, "dependent"), self.head, self.dependent


class Treebank:
    """The trees of a CoNLL-U file by the text of their sentences: spaces don't count."""

    def __init__(self, path: Path) -> None:
        """Raises DataError if the file can't be read, ImportError without the library for it."""
        try:
            from conllu import parse_incr
            from conllu.exceptions import ParseException
        except ImportError as error:
            raise ImportError("reading CoNLL-U needs the package conllu: pip install 'glassformer[syntax]'") from error
        self._path = path
        self._trees: dict[str, list[_Word]] = {}
        try:
            with path.open(encoding="utf-8") as file:
                for tree in parse_incr(file):
                    text, words = _words(tree)
                    self._trees[text] = words
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except (ParseException, UnicodeDecodeError, KeyError, TypeError) as error:
            reason = f"a column is missing: {error}" if isinstance(error, (KeyError, TypeError)) else error
            raise DataError(f"{path} is not CoNLL-U ({reason}): ten columns, tabs between them") from None

    def links(self, surfaces: Sequence[str]) -> list[Link] | None:
        """The relations of a sentence whose tokens stand for these texts; None if its tree isn't there."""
        pieces = [_joined(surface) for surface in surfaces]
        words = self._trees.get("".join(pieces))
        if words is None:
            return None
        ends = torch.tensor([0, *map(len, pieces)]).cumsum(0).tolist()
        tokens = {
            word.id: [n for n in range(len(pieces)) if ends[n] < word.end and ends[n + 1] > word.begin]
            for word in words
        }
        return [
            Link(word.relation, tokens[word.id], tokens[word.head])
            for word in words
            if word.relation and word.head in tokens
        ]

    def of(self, sentences: Sequence[Sequence[str]]) -> list[list[Link] | None]:
        """The links of each sentence; DataError if there is a tree for none of them."""
        found = [self.links(surfaces) for surfaces in sentences]
        if all(links is None for links in found):
            raise DataError(
                f"{self._path} has a tree for none of the {len(found)} sentences: it must be made from their text, "
                "letter for letter (spaces don't count)"
            )
        return found


class Following:
    """How often the heads of an attention look along each relation, added up."""

    def __init__(self, heads: int) -> None:
        self._hits = defaultdict[tuple[str, str], Tensor](lambda: torch.zeros(heads))
        self._looks, self._offsets = Counter[tuple[str, str]](), defaultdict(Counter[int])

    def add(self, weights: Float[Tensor, "heads q_len k_len"], links: Sequence[Link]) -> None:
        """Of a sentence, its end left out."""
        where = weights.argmax(-1)
        for link in links:
            for way, looking, sought in link.both_ways():
                for query in looking:
                    self._hits[way] += torch.isin(where[:, query], torch.tensor(sought))
                    self._looks[way] += 1
                    self._offsets[way].update(key - query for key in sought)

    def best(self, head: int) -> Syntax | None:
        """Of this head; None if no relation was found often enough."""
        ways = [
            Syntax(
                relation=way[0],
                to=way[1],
                found=float(self._hits[way][head]) / looks,
                by_position=max(self._offsets[way].values()) / looks,
            )
            for way, looks in self._looks.items()
            if looks >= LEAST
        ]
        return max(ways, key=lambda way: way.found - way.by_position, default=None)


@dataclass(frozen=True)
class _Word:
    id: int
    begin: int
    end: int
    """Its letters in the sentence; words written as one, such as zum, have the same."""
    head: int
    relation: str
    """Empty if it isn't one of `RELATIONS`."""


def _words(tree: Any) -> tuple[str, list[_Word]]:
    """The letters of a sentence without spaces, and its words."""
    text, words, whole = "", list[_Word](), (0, (0, 0))
    for token in tree:
        number = token["id"]
        if isinstance(number, int) and number <= whole[0]:  # a part of words written as one
            begin, end = whole[1]
        elif isinstance(number, int) or number[1] == "-":
            begin = len(text)
            text += _joined(token["form"])
            end = len(text)
            if not isinstance(number, int):
                whole = number[2], (begin, end)
                continue
        else:  # an empty node
            continue
        relation = (token["deprel"] or "").partition(":")[0]
        words.append(_Word(number, begin, end, token["head"], relation if relation in RELATIONS else ""))
    return text, words


def _joined(text: str) -> str:
    """Without spaces, each letter in its parts (é as e and an accent): a token may be a part alone."""
    return "".join(unicodedata.normalize("NFKD", text).split())
