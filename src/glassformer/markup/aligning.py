"""Alignment of a text with its translation, for tags: of words as small as the model's tokens allow."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from glassformer.alignment.attention import AttentionAligner
from glassformer.alignment.heads import AligningHeads, read_aligning_heads
from glassformer.alignment.known import link_known
from glassformer.alignment.links import Link
from glassformer.errors import ConfigError
from glassformer.generation.lexical.glossary import Glossary
from glassformer.generation.segments.sentences import Segments
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.units import units_of
from glassformer.text.words import Word


class LinkedPair(NamedTuple):
    """The words of a text and of its translation, and their links."""

    source: list[Word]
    target: list[Word]
    links: list[Link]


def joined_pair(pairs: Iterable[LinkedPair], segments: Segments, translations: Sequence[str]) -> LinkedPair:
    """Return the pairs of a line's sentences as that of the line and of their translations, joined."""
    whole = LinkedPair([], [], [])
    for pair, begin, there in zip(pairs, segments.starts(), segments.starts(translations), strict=True):
        words, links = (len(whole.source), len(whole.target)), pair.links
        whole.source.extend(Word(text, begin + start, begin + end) for text, start, end in pair.source)
        whole.target.extend(Word(text, there + start, there + end) for text, start, end in pair.target)
        whole.links.extend(
            link._replace(source=words[0] + link.source, target=words[1] + link.target) for link in links
        )
    return whole


class TagAligner:
    """Aligns texts with their translations, as closely as tags need it.

    It takes the aligning heads that the run folder keeps. Where none were chosen these are all heads of the decoder's
    last layer but one, the state that writes a token, which Garg et al. (2019) found to align best.
    """

    def __init__(self, translator: Translator) -> None:
        """Take the heads; ConfigError where the run has none left that look at the source."""
        model, folder = translator.engine.config, translator.folder
        heads = None if folder is None else read_aligning_heads(folder, model)
        self.is_chosen = heads is not None
        """Return whether the run folder keeps a choice of heads."""
        if heads is None:
            counts = model.source_heads
            if not counts:
                raise ConfigError(
                    "tags find their words by the attention to the source, of which this run has no heads left: "
                    "translate without tags"
                )
            layer = sorted(counts)[-2:][0]
            all_heads = tuple(range(counts[layer]))
            heads = AligningHeads(layer=layer, heads=all_heads, shift=0, agreement=0.0, chance=0.0, pairs=0)
        self._translator, self._aligner = translator, AttentionAligner(translator, heads)

    def align(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        copied: re.Pattern[str] | None = None,
        glossary: Glossary | None = None,
    ) -> list[LinkedPair]:
        """Return the words of each pair and their links.

        What `copied` matches stands for itself, in its order, and a form of a term of `glossary` for the term.
        """
        here = [_words(self._translator.source_tokenizer, line, copied) for line in sources]
        there = [_words(self._translator.target_tokenizer, line, copied) for line in targets]
        aligned = self._aligner.align_words(sources, targets, here, there)
        found = list[LinkedPair]()
        for one, source, target in zip(aligned, sources, targets, strict=True):
            links = link_known(one.links, source, one.source, target, one.target, glossary, copied)
            found.append(LinkedPair(one.source, one.target, links))
        return found


def _words(tokenizer: Tokenizer, line: str, copied: re.Pattern[str] | None) -> list[Word]:
    """Return the words of a line: runs of letters and single marks, whole tokens, and whole copies."""
    begins = {start for start, _ in tokenizer.spans(line)}
    inside = dict[int, int]()
    for match in copied.finditer(line) if copied else ():
        inside |= dict.fromkeys(range(*match.span()), match.start())
    words = list[Word]()
    for text, start, end in units_of(line):
        is_beside = bool(words) and words[-1].end == start
        joins_copy = is_beside and start in inside and inside.get(start - 1) == inside[start]
        joins_token = is_beside and start not in begins and start not in inside and start - 1 not in inside
        if joins_copy or joins_token:
            before = words.pop()
            words.append(Word(before.text + text, before.start, end))
        else:
            words.append(Word(text, start, end))
    return words
