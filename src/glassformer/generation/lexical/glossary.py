"""A glossary: which words of the source prescribe which words of the translation."""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.errors import ArgumentError, DataError, shown
from glassformer.pairs.lines import read_lines
from glassformer.text.units import HALF, units_of
from glassformer.text.words import Word


@dataclass(frozen=True)
class Term:
    """An entry of a glossary."""

    source: str
    forms: tuple[str, ...] = ()
    """Hold what may stand for it in a translation; without any it is kept as it stands in the source."""


@dataclass(frozen=True)
class Match:
    """A term that stands in a line, from character `begin` to `end`, and its target forms."""

    begin: int
    end: int
    forms: tuple[str, ...]


class Glossary:
    """Hold terms with their translations: if a line has a term, its translation has one of the term's forms.

    A term matches whole words; in scripts without spaces between words it matches any part of a line. A term with a
    capital letter matches only text that is written in the same way. A term without capitals also matches where its
    first letter is a capital, and in lines that are all capitals; its forms may then be written in that way too. Where
    terms overlap, the one that begins first counts, and among these the longest.

    >>> glossary = Glossary({"dog": ["Hund", "Rüde"], "Dog": [], "red dog": "Rotfuchs"})
    >>> [match.forms for match in glossary.find("Dog sees red dog and hotdog; a dog.")]
    [('Dog',), ('Rotfuchs',), ('Hund', 'Rüde')]
    """

    def __init__(self, terms: Mapping[str, str | Sequence[str]]) -> None:
        """Take each source with its form or forms; without forms (or with "") it is kept as it is.

        Raises ArgumentError for what is no text, DataError for a source without letters.
        """
        if not isinstance(terms, Mapping):
            raise ArgumentError(f"terms must be a mapping from each source to its forms, got {shown(terms)}")
        merged: dict[str, dict[str, None]] = defaultdict(dict)
        for source, forms in terms.items():
            given = tuple(forms) if isinstance(forms, Iterable) and not isinstance(forms, str) else (forms,)
            for text in (source, *given):
                if not isinstance(text, str):
                    raise ArgumentError(f"terms must be str with str, or with several, got {shown(text)}")
                if HALF.search(text):
                    raise ArgumentError(f"a term has half a surrogate pair, got {shown(text)}: take it out")
            if not units_of(source):
                raise DataError(f"a term must have letters or marks, got {shown(source)}: remove it")
            merged[_joined(source)] |= dict.fromkeys(_joined(form) for form in given if form.strip())
        self.terms = tuple(Term(source, tuple(forms)) for source, forms in merged.items())
        self._entries: dict[tuple[str, ...], list[tuple[tuple[str, ...], Term]]] = defaultdict(list)
        for term in self.terms:
            words = tuple(_composed(word) for word, _, _ in units_of(term.source))
            self._entries[tuple(word.casefold() for word in words)].append((words, term))
        for entries in self._entries.values():
            entries.sort(key=lambda entry: " ".join(entry[0]).lower() == " ".join(entry[0]))  # capitals first
        self._lengths: dict[str, list[int]] = {}  # of the entries that begin with a word, longest first
        for key in self._entries:
            self._lengths.setdefault(key[0], []).append(len(key))
        for first, lengths in self._lengths.items():
            self._lengths[first] = sorted(set(lengths), reverse=True)

    @classmethod
    def read(cls, terms: str | Path | None = None, keep: str | Path | None = None) -> "Glossary":
        """Read a file of terms, and one of what is kept as it is.

        A line of `terms` has a source, a tab, and the target; `|` stands between several forms. Without a target, or
        with the source again, the source is kept. A line of `keep` is a source. Raises DataError for a line of another
        form, for a source that is to be kept and has targets, and for a table that commas or the like separate.
        """
        read: dict[str, list[str]] = {}
        filled = [] if terms is None else _filled(terms)
        _check_separator(filled, terms)
        for number, line in filled:
            source, forms = _parsed(line, number, terms)
            read.setdefault(_joined(source), []).extend(forms)
        for number, line in [] if keep is None else _filled(keep):
            source, _ = _parsed(line.strip().replace("\t", " "), number, keep)
            if any(form != _joined(source) for form in read.setdefault(_joined(source), [])):
                raise DataError(f"{keep}, line {number}: {shown(source)} is to be kept, and {terms} has targets for it")
        return cls(read)

    @property
    def digest(self) -> str:
        """A digest of the terms."""
        return hashlib.blake2b(repr(self.terms).encode(), digest_size=6).hexdigest()

    def __len__(self) -> int:
        return len(self.terms)

    def beginning_in(self, lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the terms whose first word stands in one of the lines: no other can be found there.

        >>> Glossary({"dog": "Hund", "cat": "Katze", "red dog": "Rotfuchs"}).beginning_in(["a red cat"])
        {'cat': ('Katze',), 'red dog': ('Rotfuchs',)}
        """
        firsts = {_composed(word).casefold() for line in lines for word, _, _ in units_of(line)}
        near = (entries for key, entries in self._entries.items() if key[0] in firsts)
        return {term.source: term.forms for entries in near for _, term in entries}

    def find(self, line: str) -> list[Match]:
        """Return the terms that stand in a line, in their order; none overlaps another."""
        words = units_of(line)
        folded = [_composed(word).casefold() for word, _, _ in words]
        matches, n = list[Match](), 0
        while n < len(words):
            size, found = self._longest(line, words, folded, n)
            if found is not None:
                matches.append(found)
            n += size
        return matches

    def _longest(self, line: str, words: list[Word], folded: list[str], n: int) -> tuple[int, Match | None]:
        """Return how many words the longest entry has that begins with word n, and its match; 1 and None without."""
        for size in self._lengths.get(folded[n], ()):
            for source, term in self._entries.get(tuple(folded[n : n + size]), ()):
                written = tuple(_composed(word) for word, _, _ in words[n : n + size])
                if len(written) == size and (case := _case_of(written, source, line)):
                    begin, end = words[n][1], words[n + size - 1][2]
                    is_kept = term.forms in ((), (term.source,))
                    return size, Match(begin, end, (line[begin:end],) if is_kept else _cased(term.forms, source, case))
        return 1, None


def _case_of(written: tuple[str, ...], source: tuple[str, ...], line: str) -> str:
    """Return how an entry is written in a line: "same", "first" (letter a capital) or "capitals"; "" is no match."""
    if written == source:
        return "same"
    joined = " ".join(source)
    if joined != joined.lower():
        return ""
    if " ".join(written) == joined[0].upper() + joined[1:]:
        return "first"
    return "capitals" if line == line.upper() else ""


def _cased(forms: tuple[str, ...], source: tuple[str, ...], case: str) -> tuple[str, ...]:
    """Return the forms, with those that differ in case and do as well: a lower-case entry may begin a sentence."""
    if any(word != word.lower() for word in source):
        return forms
    capitals = [form.upper() for form in forms] if case == "capitals" else []
    firsts = [form[0].upper() + form[1:] for form in forms]
    return tuple(dict.fromkeys([*forms, *firsts, *capitals]))


def _composed(word: str) -> str:
    """Return a word with each letter and its marks as one character, where there is one (NFC)."""
    return word if word.isascii() else unicodedata.normalize("NFC", word)


def _joined(text: str) -> str:
    """Return a text with one space between its words."""
    return " ".join(text.split())


def _filled(path: str | Path) -> list[tuple[int, str]]:
    """Return the lines of a file that aren't empty, with their numbers."""
    return [(n, line) for n, line in enumerate(read_lines(Path(path)), start=1) if line.strip()]


def _check_separator(filled: list[tuple[int, str]], path: object) -> None:
    """Raise DataError for terms without any tab, each line of which has the same other separator once."""
    lines = [line for _, line in filled]
    if len(lines) < 2 or any("\t" in line for line in lines):
        return
    for separator in (",", ";", "=", " - "):
        if all(line.count(separator) == 1 for line in lines):
            raise DataError(
                f"{path} has no tab, and a {separator.strip()!r} in every line, got {shown(lines[0])}: put a tab "
                "between a source and its target; what is to be kept as it is goes into --keep"
            )


def _parsed(line: str, number: int, path: object) -> tuple[str, list[str]]:
    """Return the source and the forms of a line of a glossary's file."""
    source, *targets = line.split("\t")
    forms = [form.strip() for form in targets[0].split("|")] if targets and targets[0].strip() else []
    if len(targets) > 1 or not units_of(source) or "" in forms:
        raise DataError(
            f"{path}, line {number}, must be a source, a tab and a target (forms with | between them), got "
            f"{shown(line)}"
        )
    return source, forms
