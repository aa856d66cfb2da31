"""Links that nobody needs to read from attention: those of text that was copied, and of the terms of a glossary."""

import re
from collections.abc import Sequence, Set

from glassformer.alignment.links import Link
from glassformer.generation.lexical.glossary import Glossary
from glassformer.text.units import places_of
from glassformer.text.words import Word

Words = Sequence[Word]
_Pairs = list[tuple[list[int], list[int]]]
"""The words of a term or a copy in the source, and those that stand for it in the target."""


def link_known(
    links: Sequence[Link],
    source: str,
    here: Words,
    target: str,
    there: Words,
    glossary: Glossary | None,
    copied: re.Pattern[str] | None,
) -> list[Link]:
    """Return the links of a pair, those of its terms and copies set right; see `link_terms` and `link_copies`."""
    found = list(links)
    if glossary is not None:
        found = link_terms(found, source, here, target, there, glossary, copied)
    return found if copied is None else link_copies(found, source, here, target, there, copied)


def link_copies(
    links: Sequence[Link], source: str, here: Words, target: str, there: Words, copied: re.Pattern[str]
) -> list[Link]:
    """Return the links of a pair, with each copy linked to what it is a copy of, and to nothing else.

    `here` are the words of `source` and `there` those of `target`. Copies are what `copied` matches; of equal ones the
    first stands for the first.
    """
    waiting = dict[str, list[tuple[int, int]]]()
    for match in copied.finditer(source):
        waiting.setdefault(match[0], []).append(match.span())
    pairs: _Pairs = [
        (_words_at(here, *places.pop(0)), _words_at(there, *match.span()))
        for match in copied.finditer(target)
        if (places := waiting.get(match[0]))
    ]
    sources, targets = _words_of(pairs)
    others = [link for link in links if link.source not in sources and link.target not in targets]
    return _joined(others, pairs)


def link_terms(
    links: Sequence[Link],
    source: str,
    here: Words,
    target: str,
    there: Words,
    glossary: Glossary,
    copied: re.Pattern[str] | None = None,
) -> list[Link]:
    """Return the links of a pair, with each form of a term linked to the term that it stands for, and to nothing else.

    `here` are the words of `source` and `there` those of `target`. A search that puts in a form seldom looks at its
    term as it does so. Of more forms than terms those that are linked to the terms most are taken, then the first; the
    links of fewer stay. A term that is part of a copy counts for nothing.
    """
    inside = [match.span() for match in copied.finditer(source)] if copied else []
    places = dict[tuple[str, ...], list[tuple[int, int]]]()
    for match in glossary.find(source):
        if not any(begin < match.end and match.begin < end for begin, end in inside):
            places.setdefault(match.forms, []).append((match.begin, match.end))
    pairs: _Pairs = []
    for forms, terms in places.items():
        ours = [_words_at(here, *place) for place in terms]
        theirs = [_words_at(there, *place) for place in places_of(forms, target)]
        if len(theirs) < len(ours):
            continue
        own = {number for words in ours for number in words}
        likeliest = sorted(range(len(theirs)), key=lambda n: -_share(links, own, theirs[n]))[: len(ours)]
        pairs += zip(ours, (theirs[n] for n in sorted(likeliest)), strict=True)
    sources, targets = _words_of(pairs)
    kept = [
        link
        for link in links
        if (link.source not in sources and link.target not in targets)
        or any(link.source in words and link.target in form for words, form in pairs)
    ]
    return _joined(kept, pairs)


def _share(links: Sequence[Link], sources: Set[int], targets: Sequence[int]) -> float:
    """Return the probabilities of the links between these words, summed."""
    return sum((link.probability for link in links if link.source in sources and link.target in targets), 0.0)


def _words_of(pairs: _Pairs) -> tuple[set[int], set[int]]:
    """Return all source words of these pairs, and all target words."""
    return {word for sources, _ in pairs for word in sources}, {word for _, targets in pairs for word in targets}


def _joined(links: Sequence[Link], pairs: _Pairs) -> list[Link]:
    """Return the links, sorted, with one more for each target word that has none to the source words of its pair."""
    found = list(links)
    for sources, targets in pairs:
        linked = {link.target for link in found if link.source in sources}
        shares = ((target, sources[n * len(sources) // len(targets)]) for n, target in enumerate(targets))
        found += [Link(word, target) for target, word in shares if target not in linked]
    return sorted(found)


def _words_at(words: Words, begin: int, end: int) -> list[int]:
    """Return the numbers of the words that have one of these characters."""
    return [number for number, word in enumerate(words) if word.start < end and begin < word.end]
