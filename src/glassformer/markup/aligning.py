"""Alignment of a text with its translation, for tags: of words as small as the model's tokens allow."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from glassformer.alignment.attention import AttentionAligner
from glassformer.alignment.heads import AligningHeads, read_aligning_heads
from glassformer.alignment.links import Link
from glassformer.errors import ConfigError
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.units import units_of
from glassformer.text.words import Word


class LinkedPair(NamedTuple):
    """The words of a text and of its translation, and their links."""

    source: list[Word]
    target: list[Word]
    links: list[Link]


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
            counts = [model.heads_of(f"decoder.{n}.source_attention") for n in range(model.decoder_layers)]
            layers = [n for n, count in enumerate(counts) if count]
            if not layers:
                raise ConfigError(
                    "tags find their words by the attention to the source, of which this run has no heads left: "
                    "translate without tags"
                )
            layer = layers[-2:][0]
            all_heads = tuple(range(counts[layer]))
            heads = AligningHeads(layer=layer, heads=all_heads, shift=0, agreement=0.0, chance=0.0, pairs=0)
        self._translator, self._aligner = translator, AttentionAligner(translator, heads)

    def align(
        self, sources: Sequence[str], targets: Sequence[str], copied: re.Pattern[str] | None = None
    ) -> list[LinkedPair]:
        """Return the words of each pair and their links; what `copied` matches stands for itself, in its order."""
        here = [_words(self._translator.source_tokenizer, line, copied) for line in sources]
        there = [_words(self._translator.target_tokenizer, line, copied) for line in targets]
        aligned = self._aligner.align_words(sources, targets, here, there)
        pairs = [LinkedPair(one.source, one.target, one.links) for one in aligned]
        if copied is None:
            return pairs
        lines = zip(pairs, sources, targets, strict=True)
        return [_with_copies(pair, source, target, copied) for pair, source, target in lines]


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


def _with_copies(pair: LinkedPair, source: str, target: str, copied: re.Pattern[str]) -> LinkedPair:
    """Return a pair with each copy linked to what it is a copy of, and to nothing else."""
    waiting = dict[str, list[int]]()
    for number in _copies(pair.source, source, copied):
        waiting.setdefault(pair.source[number].text, []).append(number)
    sources, targets, links = set[int](), set[int](), list[Link]()
    for number in _copies(pair.target, target, copied):
        if numbers := waiting.get(pair.target[number].text):
            links.append(Link(numbers.pop(0), number))
            sources.add(links[-1].source)
            targets.add(number)
    others = [link for link in pair.links if link.source not in sources and link.target not in targets]
    return pair._replace(links=sorted([*others, *links]))


def _copies(words: Sequence[Word], line: str, copied: re.Pattern[str]) -> list[int]:
    """Return the numbers of the words that are copies."""
    starts = {match.start() for match in copied.finditer(line)}
    return [number for number, word in enumerate(words) if word.start in starts]
