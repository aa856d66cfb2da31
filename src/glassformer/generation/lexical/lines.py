"""Lines with what their translations must contain: tokens for the search, and text out of what it finds."""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from glassformer.errors import ArgumentError, ConfigError, counted, shown
from glassformer.generation.config import SearchConfig
from glassformer.generation.lexical.demands import MARK, Demand, Demands, State, Vocabulary
from glassformer.generation.lexical.glossary import Glossary, Match
from glassformer.generation.lexical.placeholders import Protected, compiled, protect, put_in
from glassformer.generation.search import Hypothesis
from glassformer.text.tokenizer import UNK, Tokenizer, check_lines
from glassformer.text.units import count_of

Glossaries = Glossary | Sequence[Glossary | None] | None
Search = Callable[[Sequence[int], Sequence[Demands] | None, Callable[[int], None]], list[list[Hypothesis]]]
"""Searches for translations of the lines of these numbers, under demands, and tells how many are done."""
SHOWN = 10
"""Most missing terms in one message."""
AT_ONCE = 8
"""Most terms of a line that is first translated without them: a translation seldom has so many by itself."""


def _ignored(lines: int) -> None:
    """Tell nobody how many lines are done."""


def check_searches(config: SearchConfig) -> None:
    """Raise ConfigError where translations are drawn: terms and placeholders need a search."""
    if config.sample:
        raise ConfigError("glossary and placeholders need a search, which weighs what it writes: leave out `sample`")


@dataclass(frozen=True)
class LexicalUse:
    """The terms and placeholders of a translation.

    Example: docs/howto/terms.md.
    """

    terms: int = 0
    """Count the terms of the glossary that stand in the source."""
    forced: int = 0
    """Count the terms that weren't among the likeliest words where they stand."""
    missing: tuple[str, ...] = ()
    """List the terms that the translation lacks, each by its first form."""
    placeholders: int = 0
    """Count the placeholders, which are copied."""

    def __add__(self, other: "LexicalUse") -> "LexicalUse":
        """Return those of two translations together."""
        missing, placeholders = self.missing + other.missing, self.placeholders + other.placeholders
        return LexicalUse(self.terms + other.terms, self.forced + other.forced, missing, placeholders)


@dataclass
class LexicalCounts:
    """The terms and placeholders of many translations."""

    lines: int = 0
    """Count the lines that have any."""
    terms: int = 0
    forced: int = 0
    placeholders: int = 0
    missing: list[tuple[int, str]] = field(default_factory=list)
    """List the numbers of lines whose translations lack a term, with the term."""

    def add(self, number: int, use: LexicalUse) -> None:
        """Count those of the best translation of the line of this number."""
        self.lines += bool(use.terms or use.placeholders)
        self.terms += use.terms
        self.forced += use.forced
        self.placeholders += use.placeholders
        self.missing += [(number, form) for form in use.missing]

    def __str__(self) -> str:
        forced = f" ({self.forced:,} forced)" if self.terms else ""
        counts = (
            f"{counted(self.terms, 'term')}{forced} and {counted(self.placeholders, 'placeholder')} "
            f"in {counted(self.lines, 'line')}"
        )
        if not self.missing:
            return counts
        shown_ones = "; ".join(f"line {number}: {form}" for number, form in self.missing[:SHOWN])
        more = "; ..." if len(self.missing) > SHOWN else ""
        return f"{counts}; {len(self.missing):,} missing: {shown_ones}{more}"


@dataclass(frozen=True)
class LexicalLine:
    """A line, what must stand in its translation, and its tokens."""

    line: Protected
    matches: tuple[Match, ...]
    ids: list[int]
    """Hold its tokens, without `</s>`; a placeholder is one token."""
    surfaces: list[str]
    """Hold the text of each token, where there is something to find in the line."""
    wanted: tuple[Demand, ...]
    surroundings: tuple[tuple[str, str], ...] = field(repr=False)
    """Hold the source's characters before and after each of `wanted`; empty at either end."""
    is_copied: bool = False
    """True for placeholders without a letter beside them, to which the model would only add words."""

    def source(self, prefix: Sequence[int]) -> list[int]:
        """Return the tokens that are translated: none of a line that is copied, as it is without a prefix."""
        return [] if self.is_copied and not prefix else self.ids

    def text(
        self, tokenizer: Tokenizer, hypothesis: Hypothesis, spelled: Callable[[str, Sequence[int], Sequence[str]], str]
    ) -> str:
        """Return the text of a translation.

        `spelled` is given the text, with marks for what is put in, the places of its other tokens, and the source's
        texts.
        """
        if self.is_copied and not hypothesis.ids:  # its source was empty, for it has no prefix
            return self.line.restore(self.line.text)
        places = dict(hypothesis.put_in)
        own = [place for place in range(len(hypothesis.ids)) if place not in places]
        (text,) = tokenizer.decode([[hypothesis.ids[place] for place in own]])
        inserted = []
        for place, n in hypothesis.put_in:
            before = [hypothesis.ids[i] for i in own if i < place]
            (beginning,) = tokenizer.decode([before])
            offset = len(beginning)
            if before and tokenizer.texts(before[-1:]) == [" "] and text[offset : offset + 1] == " ":
                offset += 1
            inserted.append((offset, chr(_FIRST + n), *self.surroundings[n]))
        lost = [n for n in range(len(self.line.placeholders)) if n not in places.values()]
        inserted += [(len(text), chr(_FIRST + n), *self.surroundings[n]) for n in lost]
        text = spelled(put_in(text, inserted), own, self.surfaces)
        return text.translate({_FIRST + n: wanted.forms[0] for n, wanted in enumerate(self.wanted) if wanted.is_put_in})

    @property
    def is_put_in(self) -> bool:
        """Return whether a placeholder or term is put in, for which the search has a token of its own."""
        return any(one.is_put_in for one in self.wanted)

    def missing(self, text: str) -> tuple[str, ...]:
        """Return the first forms of the terms that a translation has less often than the source has them."""
        lacking = []
        for forms in dict.fromkeys(match.forms for match in self.matches):
            count = sum(match.forms == forms for match in self.matches)
            lacking += [forms[0]] * (count - count_of(forms, text))
        return tuple(lacking)

    def use(self, text: str, hypothesis: Hypothesis) -> LexicalUse:
        """Return what a translation has of the terms and placeholders."""
        own = len(self.line.placeholders)
        forced = sum(n >= own for n in hypothesis.forced)
        return LexicalUse(len(self.matches), forced, self.missing(text), own)


_FIRST = 0x100000  # of the other plane of private use than `Protected`'s marks


class LexicalRules:
    """A glossary and a pattern of placeholders, for one translator's tokenizers."""

    def __init__(
        self,
        glossary: Glossaries,
        placeholders: str | None,
        source_tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        stand_in: int = UNK,
    ) -> None:
        """Join them; `stand_in` is the source's token that stands for a placeholder."""
        self._glossary = glossary
        self._pattern: re.Pattern[str] | None = None if placeholders is None else compiled(placeholders)
        self._source_tokenizer, self._vocabulary, self._stand_in = source_tokenizer, vocabulary, stand_in

    def read(self, lines: Sequence[str]) -> list[LexicalLine]:
        """Return the lines with what is demanded of their translations."""
        check_lines("lines", lines)
        glossaries = glossaries_of(self._glossary, len(lines))
        protected = [
            Protected((line,), ()) if self._pattern is None else protect(line, self._pattern) for line in lines
        ]
        plain = self._source_tokenizer.encode(["" if one.placeholders else one.parts[0] for one in protected])
        return [self._line(*each) for each in zip(protected, plain, glossaries, strict=True)]

    def search(
        self,
        search: Search,
        lines: Sequence[LexicalLine],
        sources: Sequence[list[int]],
        prefixes: Sequence[list[int]] | None,
        config: SearchConfig,
        progress: Callable[[int], None],
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses that `search` finds for each line.

        All lines are searched as without rules, but those with placeholders and those with more than `AT_ONCE` terms;
        then those whose translations lack something are searched again under their demands. A line that the rules don't
        concern, or whose translation has its terms by itself, has the translation that it has without them. Of an empty
        source, which a line that is copied has too, nothing is found.
        """
        check_searches(config)
        found: list[list[Hypothesis]] = [[] for _ in lines]
        free = [i for i, line in enumerate(lines) if len(line.wanted) <= AT_ONCE and not line.is_put_in]
        for i, hypotheses in zip(free, search(free, None, progress), strict=True):
            found[i] = hypotheses
        demands = dict[int, Demands]()
        for i, line in enumerate(lines):
            room = config.max_length - (len(prefixes[i]) if prefixes else 0)
            is_done = not sources[i] or (found[i] and not any(self._lacks(line, one) for one in found[i]))
            if not is_done and (wanted := self._demands(line, room, len(sources[i]))):
                demands[i] = wanted
        others = set(range(len(lines))) - set(free)
        for i, hypotheses in zip(demands, search(list(demands), list(demands.values()), _ignored), strict=True):
            found[i] = hypotheses
        if plain := sorted(others - set(demands)):
            for i, hypotheses in zip(plain, search(plain, None, _ignored), strict=True):
                found[i] = hypotheses
        if others:
            progress(len(others))
        return found

    def _lacks(self, line: LexicalLine, hypothesis: Hypothesis) -> bool:
        (text,) = self._vocabulary.tokenizer.decode([hypothesis.ids])
        return bool(line.missing(text))

    def _demands(self, line: LexicalLine, room: int, read: int) -> Demands | None:
        """Return what the search must meet, or None for nothing; what there is no room for is left out, last first.

        Of the source's tokens the first `read` are read: what is demanded for those after them may stand anywhere.
        """
        own = line.ids.count(self._stand_in) > len(line.line.placeholders)
        wanted, demands = tuple(one.within(read) for one in line.wanted), None
        while wanted:
            demands = Demands(wanted, self._vocabulary, forbids_stand_in=line.is_put_in and not own)
            if demands.needed(State()) < room:
                break
            wanted, demands = wanted[:-1], None
        if len(wanted) < len(line.wanted):
            left_out = ", ".join(shown(one.forms[0]) for one in line.wanted[len(wanted) :])
            warnings.warn(f"max_length leaves no room for {left_out}: raise it", stacklevel=2)
        return demands

    def _line(self, line: Protected, plain: list[int], glossary: Glossary | None) -> LexicalLine:
        text = line.text
        matches = () if glossary is None else tuple(glossary.find(text))
        if not line.placeholders and not matches:
            return LexicalLine(line, (), plain, self._source_tokenizer.surfaces(text), (), ())
        ids, surfaces, ends = self._tokens(line, plain)
        wanted, surroundings = list[Demand](), list[tuple[str, str]]()
        entries = {forms: n for n, forms in enumerate(dict.fromkeys(match.forms for match in matches))}
        spans = [
            (text.index(mark), (placeholder,)) for mark, placeholder in zip(line.marks, line.placeholders, strict=True)
        ]
        for n, (begin, forms) in enumerate(spans):
            wanted.append(Demand(forms, _positions(text, ends, begin, begin + 1), True, -1 - n))
            surroundings.append(_neighbours(text, begin, begin + 1))
        for match in matches:
            written = tuple(form for form in match.forms if any(self._vocabulary.sequences(form)))
            positions = _positions(text, ends, match.begin, match.end)
            wanted.append(Demand(written or match.forms, positions, not written, entries[match.forms]))
            surroundings.append(_neighbours(text, match.begin, match.end))
        is_copied = not matches and not any(map(str.isalpha, "".join(line.parts)))
        return LexicalLine(line, matches, ids, surfaces, tuple(wanted), tuple(surroundings), is_copied)

    def _tokens(self, line: Protected, plain: list[int]) -> tuple[list[int], list[str], list[int]]:
        """Return the tokens of a line, the text of each, and after how many of the line's letters each ends."""
        ids, surfaces, ends, letters = list[int](), list[str](), list[int](), 0
        for n, part in enumerate(line.parts):
            if n:
                ids.append(self._stand_in)
                surfaces.append("")
                letters += 1
                ends.append(letters)
            more, texts = self._part(part, plain, is_first=n == 0)
            ids += more
            surfaces += texts
            sizes = [_letters(text) for text in texts]
            scale = _letters(part) / max(1, sum(sizes))  # not 1 where the tokenizer normalises
            ends += [letters + round(size * scale) for size in accumulate(sizes)]
            letters += _letters(part)
        return ids, surfaces, ends

    def _part(self, part: str, plain: list[int], *, is_first: bool) -> tuple[list[int], list[str]]:
        """Return the tokens, and the text of each, of what stands before a placeholder or after it."""
        tokenizer = self._source_tokenizer
        if is_first and plain:
            return plain, tokenizer.surfaces(part)
        if not is_first and part[:1].strip():  # it goes on with the placeholder's word
            (mark,), (joined,), pieces = (
                tokenizer.encode([MARK]),
                tokenizer.encode([MARK + part]),
                tokenizer.surfaces(MARK + part),
            )
            if "".join(pieces[: len(mark)]) == MARK:
                return joined[len(mark) :], pieces[len(mark) :]
        return tokenizer.encode([part])[0], tokenizer.surfaces(part)


def glossaries_of(glossary: Glossaries, lines: int) -> list[Glossary | None]:
    """Return the glossary of each of so many lines.

    Raises ArgumentError for what is neither a glossary nor several, ConfigError for another number of them.
    """
    if glossary is None or isinstance(glossary, Glossary):
        return [glossary] * lines
    if not isinstance(glossary, Sequence) or not all(one is None or isinstance(one, Glossary) for one in glossary):
        raise ArgumentError(
            f"glossary must be a Glossary, or one for each line, got {shown(glossary)}: "
            'pass Glossary({"dog": "Hund"})'
        )
    if len(glossary) != lines:
        raise ConfigError(f"glossary must be one for each line, got {len(glossary):,} for {counted(lines, 'line')}")
    return list(glossary)


def _neighbours(text: str, begin: int, end: int) -> tuple[str, str]:
    """Return the characters of a text before and after a part of it; empty ones where there are none."""
    return text[max(0, begin - 1) : begin], text[end : end + 1]


def _letters(text: str) -> int:
    """Return how many characters of a text aren't spaces."""
    return len("".join(text.split()))


def _positions(text: str, ends: list[int], begin: int, end: int) -> tuple[int, ...]:
    """Return the tokens in which these characters of a line stand."""
    first, last = _letters(text[:begin]), _letters(text[:end])
    starts = [0, *ends]
    return tuple(n for n, token_end in enumerate(ends) if starts[n] < last and token_end > first)
