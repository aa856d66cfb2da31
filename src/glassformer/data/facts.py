"""Facts about pairs of text: lengths, words, scripts, and suspicious pairs. Loads no torch."""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from glassformer.errors import printable
from glassformer.pairs.files import Pair

SHOWN = 60
"""Most characters of an example."""
JUDGED = 1_000
"""Words that a side must have before its words tell the two sides apart."""


@dataclass(frozen=True)
class SideFacts:
    """One side of the pairs. Words are what stands between spaces."""

    characters: float
    """Mean number in a line."""
    words: float
    """Mean number in a line."""
    longest: int
    """Characters of the longest line."""
    distinct_words: int
    distinct_characters: int
    histogram: Sequence[int]
    """Number of lines of 0, 1, 2 to 3, 4 to 7, 8 to 15, ... characters."""
    script: str
    """The script of most letters, such as Latin, or "" where there are none."""


@dataclass(frozen=True)
class Finding:
    """Pairs that look wrong in one way: how many, and the first of them."""

    count: int = 0
    number: int = 0
    """Number of the first, from 1."""
    example: str = ""


@dataclass(frozen=True)
class PairFacts:
    """Both sides of the pairs, and what looks wrong."""

    pairs: int
    gaps: int
    """Lines whose two sides are empty, which are no pairs."""
    source: SideFacts
    target: SideFacts
    empty: Finding
    """A side without text."""
    repeated: Finding
    """Pairs that stand earlier too."""
    copies: Finding
    """Target and source are the same text."""
    swapped: Finding
    """Script or words say that source and target have changed places."""

    @property
    def findings(self) -> dict[str, Finding]:
        """Suspicious pairs of each kind, by the name of the kind."""
        return {
            "empty side (left out)": self.empty,
            "repeated": self.repeated,
            "target copies the source": self.copies,
            "source and target seem the wrong way round": self.swapped,
        }

    def suspicions(self, *, are_all: bool, least: float = 0.05) -> Iterator[str]:
        """Yield a sentence for each way in which at least this share of the pairs looks wrong.

        Where these aren't all pairs (`are_all`), nothing is said of repeated ones, most of which are repeated outside
        the sample.
        """
        for what, finding in self.findings.items():
            if finding is self.repeated and not are_all:
                continue
            if finding.count and finding.count >= least * self.pairs:
                yield f"{what}: {finding.count / self.pairs:.0%} of the pairs, for example {finding.example}"


@dataclass
class _Found:
    count: int = 0
    number: int = 0
    first: Pair = ("", "")

    def add(self, number: int, pair: Pair) -> None:
        self.count += 1
        if self.count == 1:
            self.number, self.first = number, pair

    def finding(self) -> Finding:
        source, target = map(shortened, self.first)
        return Finding(self.count, self.number, f"{source} -> {target}" if self.count else "")


@dataclass
class _Side:
    lines: int = 0
    characters: int = 0
    words: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * 24)

    def add(self, text: str) -> None:
        self.lines += 1
        self.characters += len(text)
        self.longest = max(self.longest, len(text))
        self.words.update(text.split())
        self.letters.update(text)
        self.histogram[min(len(text).bit_length(), len(self.histogram) - 1)] += 1

    def scripts(self) -> Counter[str]:
        scripts: Counter[str] = Counter()
        for letter, count in self.letters.items():
            if script := script_of(letter):
                scripts[script] += count
        return scripts

    def notable_scripts(self) -> list[str]:
        """Return the scripts that more than a tenth of the letters are of."""
        scripts = self.scripts()
        return [script for script, count in scripts.items() if count > 0.1 * scripts.total()]

    def facts(self) -> SideFacts:
        lines, scripts = max(1, self.lines), self.scripts()
        last = max((n for n, count in enumerate(self.histogram) if count), default=0)
        return SideFacts(
            characters=self.characters / lines,
            words=self.words.total() / lines,
            longest=self.longest,
            distinct_words=len(self.words),
            distinct_characters=len(self.letters),
            histogram=tuple(self.histogram[: last + 1]),
            script=max(scripts, key=scripts.__getitem__, default=""),
        )


def describe_pairs(pairs: Iterable[Pair]) -> PairFacts:
    """Return the facts about these pairs, which are read several times. Words and a digest of each pair are held.

    The number of a finding counts all lines, also those that are no pair.

    >>> facts = describe_pairs([("ein Hund", "a dog"), ("eine Katze", "a cat"), ("ein Hund", "a dog"), ("", "x")])
    >>> facts.pairs, facts.repeated.count, facts.repeated.number, facts.empty.count, facts.source.script
    (4, 1, 3, 1, 'Latin')
    """
    sides, gaps = (_Side(), _Side()), 0
    empty, repeated, copies, swapped = _Found(), _Found(), _Found(), _Found()
    seen: set[int] = set()
    for number, pair in enumerate(pairs, start=1):
        source, target = (text.strip() for text in pair)
        if not source and not target:
            gaps += 1
            continue
        for side, text in zip(sides, pair, strict=True):
            side.add(text)
        if not source or not target:
            empty.add(number, pair)
            continue
        digest = hash((source, target))
        if digest in seen:
            repeated.add(number, pair)
        seen.add(digest)
        if source == target:
            copies.add(number, pair)
    for number, (pair, is_swapped) in enumerate(zip(pairs, _wrong_way_round(*sides, pairs), strict=False), start=1):
        if is_swapped:
            swapped.add(number, pair)
    found = {"empty": empty, "repeated": repeated, "copies": copies, "swapped": swapped}
    findings = {name: one.finding() for name, one in found.items()}
    return PairFacts(sides[0].lines, gaps, sides[0].facts(), sides[1].facts(), **findings)


@cache
def script_of(character: str) -> str:
    """Return the script of a letter, such as Latin, Han or Cyrillic; "" for digits, marks and signs."""
    if not character.isalpha():
        return ""
    word = unicodedata.name(character, "").partition(" ")[0]
    return "Han" if word == "CJK" else word.capitalize()


def shortened(text: str) -> str:
    """Return the text as it may be printed, or its beginning and three dots."""
    return printable(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")


def _wrong_way_round(source: _Side, target: _Side, pairs: Iterable[Pair]) -> Iterable[bool]:
    """Return of each pair whether its sides seem to have changed places; nothing if nothing tells."""
    notable = source.notable_scripts(), target.notable_scripts()
    found: Iterable[Pair] = map(_scripts_of, pairs)
    if max(map(len, notable)) > 1:  # a line of one script may have three times as many letters as its translation
        found = list(found)
        usual = Counter(found).most_common(1)[0][0]
    else:
        usual = "".join(notable[0]), "".join(notable[1])
    if all(usual) and usual[0] != usual[1]:
        return (scripts == usual[::-1] for scripts in found)
    totals = source.words.total(), target.words.total()
    if min(totals) < JUDGED:
        return ()
    lean = {
        word: math.log((source.words[word] + 0.5) / totals[0]) - math.log((target.words[word] + 0.5) / totals[1])
        for word in source.words.keys() | target.words.keys()
    }

    def leans(pair: Pair) -> bool:
        left, right = pair[0].split(), pair[1].split()
        return min(len(left), len(right)) > 2 and _leans(left, lean) < -1 and _leans(right, lean) > 1

    return map(leans, pairs)


def _leans(words: Sequence[str], lean: dict[str, float]) -> float:
    """Return how much the words are those of the sources, in nats a word: below 0 they are those of the targets."""
    return sum(lean[word] for word in words) / max(1, len(words))


def _scripts_of(pair: Pair) -> Pair:
    return _main_script(pair[0]), _main_script(pair[1])


def _main_script(text: str) -> str:
    scripts = Counter(script for script in map(script_of, text) if script)
    return max(scripts, key=scripts.__getitem__, default="")
