"""Sentences of a line, by rules for the scripts of the world's larger languages; in doubt two sentences stay together.

Sentences that are translated together lose little, while one that is cut in two loses its meaning. So a full stop ends
a sentence only where white space and no lowercase letter follow, and not after an abbreviation, an initial or an
ordinal number. Marks that mean nothing else (。 । ؟ ። and others) need no space after them.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

OPENING = "\"'“”„‘‚«‹»›(\\[{「『《〈（【¿¡–—*_"
"""Characters that may stand before the first letter of a sentence; guillemets point either way."""
CLOSING = "\"'”“’‘»›«‹)\\]}」』》〉）】*_"
"""Characters after the end of a sentence that belong to it."""
ALWAYS = "。！？｡．।॥؟۔։።፧፨။។៕"
"""Marks that end a sentence wherever they stand."""
_AFTER_ALWAYS = f"[{ALWAYS}]+[!?…]*[{CLOSING}]*"
_AFTER_OTHERS = f"(?<![.!?…])(?:[.!?…]+)(?:[\u00a0\u202f]?[{CLOSING}]| »(?=\\s|$))*(?=[^\\S\u00a0\u202f])"
_END = re.compile(f"(?:(?P<always>{_AFTER_ALWAYS})|(?P<other>{_AFTER_OTHERS}))(?P<gap>\\s*)")
_FIRST = re.compile(f"[{OPENING}\\s]*(.)", re.DOTALL)
_WORD = re.compile(f"[{OPENING}]*([^\\s{OPENING}]*)$")
_LONGEST = 40
"""Most characters before a full stop in which its word is looked for."""
CLAUSE = re.compile("(?:[,;:]|[–—])(?=\\s)|[，、；：،؛]")
"""Marks between the clauses of a sentence."""
_SHORT = """
mr mrs ms dr prof rev hon st sr jr gen col capt lt sgt gov sen rep pres vs no nos vol fig figs eq eqs ch sec pp ed eds
cf ca approx dept est inc ltd co corp bros ave blvd mt jan feb mar apr jun jul aug sep sept oct nov dec
hr fr frau nr bzw ggf vgl usw evtl bspw str abb bd hrsg mio mrd tel zzgl inkl exkl dipl ing phil med jh
mme mlle mm art av env chap réf éd sra srta dra avda pág núm ud uds sig dott avv sigg dhr mevr mw bijv blz
г гг ул им тов стр рис табл см руб тыс млн млрд пр просп обл inż mgr hab ul pl al tzn np αρ σελ
"""
ABBREVIATIONS = frozenset(_SHORT.split())
"""Words whose full stop says that they are shortened, most of them titles that a name follows."""


@dataclass(frozen=True)
class Segments:
    """A line as its sentences, and the white space before, between and after them.

    >>> split_sentences("It rained.  Dr. Who went home. ")
    Segments(texts=['It rained.', 'Dr. Who went home.'], gaps=['', '  ', ' '])
    """

    texts: list[str]
    """The sentences, none of which begins or ends with white space."""
    gaps: list[str]
    """The white space before each sentence, and last that after all."""

    def joined(self, translations: Sequence[str]) -> str:
        """Return the translations of the sentences with the white space that stood between the sentences.

        Where nothing stood between two sentences, as in Chinese, a space comes between their translations, unless these
        are Chinese or Japanese; between such ones a single space is left out.
        """
        text = "".join(translations)
        dense = 2 * len(_DENSE.findall(text)) > sum(not char.isspace() for char in text)
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        for place in range(2, len(parts) - 1, 2):
            if dense and parts[place] == " ":
                parts[place] = ""
            elif not dense and not parts[place] and parts[place - 1] and parts[place + 1]:
                parts[place] = " "
        return "".join(parts)


_DENSE = re.compile("[\u3000-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff]")
"""Characters of Chinese and Japanese, which put no space between sentences."""
_HIRAGANA = re.compile("[\u3041-\u309f]")


def split_sentences(line: str) -> Segments:
    """Return the sentences of a line, or of lines: the end of a line ends a sentence too.

    >>> split_sentences("他来了。她走了！").texts
    ['他来了。', '她走了！']
    """
    ends = [0]
    for found in _END.finditer(line):
        if _ends_quotation(line, found) if found["always"] else _ends_sentence(line, found):
            ends.append(found.end("always" if found["always"] else "other"))
    ends += [place.start() for place in re.finditer("[\r\n]+", line)]
    ends = sorted({*ends, len(line)})
    return segments_of([line[start:end] for start, end in pairwise(ends)])


def segments_of(pieces: Sequence[str]) -> Segments:
    """Return the pieces of a line, which they are joined, without the white space around them, and that white space."""
    texts, gaps = list[str](), [""]
    for piece in pieces:
        stripped = piece.strip()
        if not stripped:
            gaps[-1] += piece
            continue
        start = piece.index(stripped)
        gaps[-1] += piece[:start]
        texts.append(stripped)
        gaps.append(piece[start + len(stripped) :])
    return Segments(texts, gaps)


def _ends_quotation(line: str, found: re.Match[str]) -> bool:
    """Return whether a mark that ends sentences does so here: the sentence around 「...。」 may go on, with と."""
    return found["always"][-1] in ALWAYS or _HIRAGANA.match(line, found.end()) is None


def _ends_sentence(line: str, found: re.Match[str]) -> bool:
    """Return whether a full stop, or another mark that means other things too, ends a sentence."""
    following = _FIRST.match(line, found.end("other"))
    if following is None:
        return True
    first = following[1]
    if first.islower() or not (first.isalnum() or unicodedata.category(first)[0] in "SP"):
        return False
    if not re.fullmatch(r"\.[^.!?…]*", found["other"]):
        return True
    last = _WORD.search(line, max(0, found.start("other") - _LONGEST), found.start("other"))
    word = last[1] if last else ""
    if first.isdigit() and not (word.isalpha() and len(word) > 3):  # No. 5, am 3. 4
        return False
    if word.isdigit():
        return len(word) > 2
    if re.fullmatch(r"\d+[.,]\d+%?", word):
        return True
    is_initial = len(word) == 1 and word.isalpha() and unicodedata.category(word) != "Lo"
    return not (is_initial or "." in word or word.casefold() in ABBREVIATIONS)


def split_long(text: str, length_of: Callable[[str], int], most: int) -> list[str]:
    """Return the text in pieces of at most `most` by `length_of`; joined, they are the text.

    It is split at the mark between clauses that is nearest to its middle, or without one at a space, or else between
    characters. One character is never split, however long it is.
    """
    if len(text.strip()) < 2 or length_of(text) <= most:
        return [text]
    places = [found.end() for found in CLAUSE.finditer(text)]
    places = _inside(text, places) or _inside(text, [found.end() for found in re.finditer(r"\s+", text)])
    places = places or [place for place in range(1, len(text)) if not unicodedata.combining(text[place])] or [1]
    middle = min(places, key=lambda place: abs(2 * place - len(text)))
    return [*split_long(text[:middle], length_of, most), *split_long(text[middle:], length_of, most)]


def _inside(text: str, places: Sequence[int]) -> list[int]:
    """Return those places that have text on either side."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return [place for place in places if start < place < end]
