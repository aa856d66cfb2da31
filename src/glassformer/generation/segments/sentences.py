"""Sentences of a line, by rules for the scripts of the world's larger languages; in doubt two sentences stay together.

Sentences that are translated together lose little, while one that is cut in two loses its meaning. So a full stop ends
a sentence only where white space and no lowercase letter follow, and not after an abbreviation, an initial or an
ordinal number. Marks that mean nothing else (。 । ؟ ። and others) need no space after them.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from glassformer.generation.config import Segmentation
from glassformer.text.joining import is_dense
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.units import is_single

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
janv févr avr juil déc ene abr ago dic gen mag giu lug ott set out fev mai jän mär okt dez mrt maj
янв февр фев мар апр авг сент сен окт нояб ноя дек niedz pon wt śr czw pt sob
hr fr frau nr bzw ggf vgl usw evtl bspw str abb bd hrsg mio mrd tel zzgl inkl exkl dipl ing phil med jh
mme mlle mm art av env chap réf éd sra srta dra avda pág núm ud uds sig dott avv sigg dhr mevr mw bijv blz
г гг ул им тов стр рис табл см руб тыс млн млрд пр просп обл inż mgr hab ul pl al tzn np αρ σελ
ee uu kap проф доц акад св ген im św ks
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
        return "".join(self._parts(translations))

    def starts(self, translations: Sequence[str] | None = None) -> list[int]:
        """Return with which character each sentence begins in the line; or each translation, once they are joined."""
        parts = self._alternating(self.texts) if translations is None else self._parts(translations)
        return list(accumulate(map(len, parts)))[:-1:2]

    def _alternating(self, texts: Sequence[str]) -> list[str]:
        """Return white space and texts in turn."""
        return [*chain.from_iterable(zip(self.gaps[:-1], texts, strict=True)), self.gaps[-1]]

    def _parts(self, translations: Sequence[str]) -> list[str]:
        """Return the white space and the translations in turn, as they are joined."""
        text = "".join(translations)
        dense = is_dense(text)
        parts = self._alternating(translations)
        for place in range(2, len(parts) - 1, 2):
            if dense and parts[place] == " ":
                parts[place] = ""
            elif not dense and not parts[place] and parts[place - 1] and parts[place + 1]:
                parts[place] = " "
        return parts


_CODED = re.compile(r"(?:\A|(?<=[\r\n]))[^\S\r\n]*>>[^\s<>]+<<[^\r\n]*")
"""Match a line that begins with the code of the language to translate into, as a multilingual model takes it."""
_CODE_MARK = re.compile(r"\s*>>")
"""Match the beginning of a code, after white space."""
_HIRAGANA = re.compile("[\u3041-\u309f]")


Span = tuple[int, int]
"""The first character of a part of a text, and the one after its last."""


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in their order, those that overlap as one.

    >>> merged_spans([(7, 9), (0, 4), (3, 5)])
    [(0, 5), (7, 9)]
    """
    merged = list[Span]()
    for begin, end in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def segmentation_of(tokenizer: Tokenizer) -> Segmentation:
    """Return how the lines of a run with this source tokenizer are translated: words whole, text by sentences."""
    return "line" if tokenizer.is_characterwise else "paragraph"


def split_sentences(line: str, whole: Sequence[Span] = ()) -> Segments:
    """Return the sentences of a line, or of lines: the end of a line ends a sentence too.

    No sentence ends within a part of the line that is `whole`, such as a name with a full stop (see `merged_spans`).
    A line that begins with the code of a language, >>deu<<, stays whole, since the code holds for all of it. No
    sentence begins with >> within a line: a multilingual model would read that as a code.

    >>> split_sentences("他来了。她走了！").texts
    ['他来了。', '她走了！']
    >>> split_sentences("Yahoo! Inc. is there. It pays.", whole=[(0, 11)]).texts
    ['Yahoo! Inc. is there.', 'It pays.']
    """
    ends = [0]
    for found in _END.finditer(line):
        if _CODE_MARK.match(line, found.end()):
            continue
        if _ends_quotation(line, found) if found["always"] else _ends_sentence(line, found):
            ends.append(found.end("always" if found["always"] else "other"))
    ends += [place.start() for place in re.finditer("[\r\n]+", line)]
    ends = sorted({*_outside(ends, _with_coded_lines(whole, line)), len(line)})
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
    if first.isdecimal() and not (word.isalpha() and len(word) > 3):  # No. 5, am 3. 4
        return False
    if word.isdecimal():
        return len(word) > 2
    if re.fullmatch(r"\d+[.,]\d+%?", word):
        return True
    letters = [letter for letter in word if unicodedata.category(letter)[0] != "M"]
    is_initial = len(letters) == 1 and letters[0].isalpha() and not is_single(letters[0])
    return not (is_initial or "." in word or word.casefold() in ABBREVIATIONS)


def split_long(text: str, length_of: Callable[[str], int], most: int, whole: Sequence[Span] = ()) -> list[str]:
    """Return the text in pieces of at most `most` by `length_of`; joined, they are the text.

    It is split at the mark between clauses that is nearest to its middle, or without one at a space, or else between
    letters, and within a letter with many marks where there is no other place. A part that is `whole` is never split,
    nor is a line that begins with the code of a language, and no piece begins with >>.
    """
    if len(text.strip()) < 2 or length_of(text) <= most:
        return [text]
    whole = _with_coded_lines(whole, text)
    for given in _places_to_split(text):
        if places := _outside([place for place in given if not _CODE_MARK.match(text, place)], whole):
            break
    else:
        return [text]
    middle = min(places, key=lambda place: abs(2 * place - len(text)))
    behind = [(begin - middle, end - middle) for begin, end in whole if begin >= middle]
    return [*split_long(text[:middle], length_of, most, whole), *split_long(text[middle:], length_of, most, behind)]


def _places_to_split(text: str) -> Iterator[Sequence[int]]:
    """Yield the places where a text may be split: between clauses, between words, between letters."""
    yield _inside(text, [found.end() for found in CLAUSE.finditer(text)])
    yield _inside(text, [found.end() for found in re.finditer(r"\s+", text)])
    places = range(1, len(text))
    yield [place for place in places if not (unicodedata.combining(text[place]) or text[place].isspace())] or places


def join_short(segments: Segments, length_of: Callable[[str], int], most: int, at_once: int) -> Segments:
    """Return the segments with up to `at_once` neighbours as one, of at most `most` together by `length_of`.

    Only where a single space is between them, or nothing, so that the joined translations keep all other white space.

    >>> three = split_sentences("It rained. It poured. It snowed.")
    >>> join_short(three, len, most=40, at_once=2).texts
    ['It rained. It poured.', 'It snowed.']
    """
    if at_once < 2:
        return segments
    texts, gaps, count = list[str](), segments.gaps[:1], 0
    for text, before, after in zip(segments.texts, segments.gaps, segments.gaps[1:], strict=False):
        together = f"{texts[-1]}{before}{text}" if texts else ""
        if 0 < count < at_once and before in ("", " ") and length_of(together) <= most:
            texts[-1], gaps[-1], count = together, after, count + 1
        else:
            texts.append(text)
            gaps.append(after)
            count = 1
    return Segments(texts, gaps)


def _with_coded_lines(whole: Sequence[Span], text: str) -> list[Span]:
    """Return the parts of a text that are whole, and its lines that begin with the code of a language."""
    return merged_spans([*whole, *(found.span() for found in _CODED.finditer(text))])


def _outside(places: Sequence[int], whole: Sequence[Span]) -> list[int]:
    """Return those places that are not within a part that is whole."""
    if not whole:
        return list(places)
    begins = [begin for begin, _ in whole]
    return [place for place in places if not (n := bisect_left(begins, place)) or whole[n - 1][1] <= place]


def _inside(text: str, places: Sequence[int]) -> list[int]:
    """Return those places that have text on either side."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return [place for place in places if start < place < end]
