"""Lines with what their translations must contain: tokens for the search, and text out of what it finds."""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from glassformer.errors import ArgumentError, shown
from glassformer.generation.lexical.demands import MARK, Demands, State, Vocabulary, Wanted
from glassformer.generation.lexical.glossary import Glossary, Match
from glassformer.generation.lexical.placeholders import Protected, compiled, protect, put_in
from glassformer.generation.lexical.words import count_of
from glassformer.generation.search import Hypothesis
from glassformer.text.tokenizer import UNK, Tokenizer


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


@dataclass(frozen=True)
class LexicalLine:
    """A line, what must stand in its translation, and its tokens."""

    line: Protected
    matches: tuple[Match, ...]
    ids: list[int]
    """Hold its tokens, without `</s>`; a placeholder is one token."""
    wanted: tuple[Wanted, ...]
    surroundings: tuple[tuple[str, str], ...] = field(repr=False)
    """Hold the source's text before and after each of `wanted`."""

    def text(self, tokenizer: Tokenizer, hypothesis: Hypothesis, spell: Callable[[str, list[int]], str]) -> str:
        """Return the text of a translation; `spell` is told it without placeholders, and which tokens are its own."""
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
            inserted.append((offset, chr(ord(_FIRST) + n), *self.surroundings[n]))
        text = spell(put_in(text, inserted), own)
        new = {ord(_FIRST) + n: self.wanted[n].forms[0] for n in places.values()}
        return text.translate(new)

    def missing(self, text: str) -> tuple[str, ...]:
        """Return the first forms of the terms that a translation has less often than the source has them."""
        lacking = []
        for forms in dict.fromkeys(match.forms for match in self.matches):
            count = sum(match.forms == forms for match in self.matches)
            lacking += [forms[0]] * (count - sum(count_of(form, text) for form in forms))
        return tuple(lacking)

    def use(self, text: str, hypothesis: Hypothesis) -> LexicalUse:
        """Return what a translation has of the terms and placeholders."""
        own = len(self.line.placeholders)
        forced = sum(n >= own for n in hypothesis.forced)
        return LexicalUse(len(self.matches), forced, self.missing(text), own)


_FIRST = chr(0x100000)  # of the other plane of private use than `Protected`'s marks


class LexicalRules:
    """A glossary and a pattern of placeholders, for one translator's tokenizers."""

    def __init__(
        self,
        glossary: Glossary | None,
        placeholders: str | None,
        source_tokenizer: Tokenizer,
        vocabulary: Vocabulary,
    ) -> None:
        if glossary is not None and not isinstance(glossary, Glossary):
            raise ArgumentError(f'glossary must be a Glossary, got {shown(glossary)}: pass Glossary({{"dog": "Hund"}})')
        self._glossary = glossary
        self._pattern: re.Pattern[str] | None = None if placeholders is None else compiled(placeholders)
        self._source_tokenizer, self._vocabulary = source_tokenizer, vocabulary

    def read(self, lines: Sequence[str]) -> list[LexicalLine]:
        """Return the lines with what is demanded of their translations."""
        protected = [Protected((line,), ()) if self._pattern is None else protect(line, self._pattern) for line in lines]
        plain = self._source_tokenizer.encode(["" if one.placeholders else one.parts[0] for one in protected])
        return [self._line(one, ids) for one, ids in zip(protected, plain, strict=True)]

    def demands(self, line: LexicalLine, room: int) -> Demands | None:
        """Return what the search must meet, or None for nothing; what there is no room for is left out, last first."""
        wanted = line.wanted
        while wanted:
            demands = Demands(wanted, self._vocabulary)
            if demands.needed(State()) < room:
                return demands
            wanted = wanted[:-1]
        if line.wanted:
            warnings.warn("max_length leaves no room for the terms of a line: raise it", stacklevel=2)
        return None

    def _line(self, line: Protected, plain: list[int]) -> LexicalLine:
        text = line.text
        matches = () if self._glossary is None else tuple(self._glossary.find(text))
        if not line.placeholders and not matches:
            return LexicalLine(line, (), plain, (), ())
        ids, ends = self._tokens(line, plain)
        wanted, surroundings = list[Wanted](), list[tuple[str, str]]()
        entries = {forms: n for n, forms in enumerate(dict.fromkeys(match.forms for match in matches))}
        spans = [(text.index(mark), (placeholder,)) for mark, placeholder in zip(line.marks, line.placeholders, strict=True)]
        for n, (begin, forms) in enumerate(spans):
            wanted.append(Wanted(forms, _positions(text, ends, begin, begin + 1), True, -1 - n))
            surroundings.append((text[:begin], text[begin + 1 :]))
        for match in matches:
            written = tuple(form for form in match.forms if any(self._vocabulary.sequences(form)))
            positions = _positions(text, ends, match.begin, match.end)
            wanted.append(Wanted(written or match.forms, positions, not written, entries[match.forms]))
            surroundings.append((text[: match.begin], text[match.end :]))
        return LexicalLine(line, matches, ids, tuple(wanted), tuple(surroundings))

    def _tokens(self, line: Protected, plain: list[int]) -> tuple[list[int], list[int]]:
        """Return the tokens of a line, and after how many of its letters each ends."""
        ids, ends, letters = list[int](), list[int](), 0
        tokenizer = self._source_tokenizer
        for n, part in enumerate(line.parts):
            if n:
                ids.append(UNK)
                letters += 1
                ends.append(letters)
            more, surfaces = plain, tokenizer.surfaces(part)
            if line.placeholders:
                (more,) = tokenizer.encode([part])
            if n and part[:1] and not part[0].isspace():  # it goes on with the placeholder's word
                (joined,), known = tokenizer.encode([MARK + part]), len(tokenizer.encode([MARK])[0])
                pieces = tokenizer.surfaces(MARK + part)
                if "".join(pieces[:known]) == MARK:
                    more, surfaces = joined[known:], pieces[known:]
            ids += more
            sizes = [len(surface.replace(" ", "")) for surface in surfaces]
            scale = _letters(part) / max(1, sum(sizes))  # not 1 where the tokenizer normalises
            so_far = 0
            for size in sizes:
                so_far += size
                ends.append(letters + round(so_far * scale))
            letters += _letters(part)
        return ids, ends


def _letters(text: str) -> int:
    """Return how many characters of a text aren't spaces."""
    return len("".join(text.split()))


def _positions(text: str, ends: list[int], begin: int, end: int) -> tuple[int, ...]:
    """Return the tokens in which these characters of a line stand."""
    first, last = _letters(text[:begin]), _letters(text[:end])
    starts = [0, *ends]
    return tuple(n for n, token_end in enumerate(ends) if starts[n] < last and token_end > first)
