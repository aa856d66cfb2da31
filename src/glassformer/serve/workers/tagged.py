"""Translations that tags are put into: what the server needs to do so, as JSON."""

from collections.abc import Generator, Sequence
from typing import Any

from glassformer.generation.config import SearchConfig
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.search import Hypothesis
from glassformer.generation.translator import Translator, translation_of
from glassformer.markup.aligning import TagAligner
from glassformer.markup.translate import ONLY_MARKS
from glassformer.serve.workers.terms import LEXICAL_AT_ONCE, Rules

AT_ONCE = 16
"""Lines that are aligned in one step."""


def with_marks(rules: Rules) -> Rules:
    """Return the rules of lines in which marks stand for what stays as it is, which the search must copy."""
    return rules if rules.placeholders is not None else rules._replace(placeholders=ONLY_MARKS)


def tagged_rows(
    translator: Translator,
    lines: Sequence[str],
    found: Sequence[Sequence[Hypothesis]],
    linked: Sequence[int],
    config: SearchConfig,
    rules: Rules,
) -> Generator[None, None, list[dict[str, Any]]]:
    """Return the translation of each line, with words and links of those that are `linked`, step by step.

    `found` has what was found for the lines that the rules don't concern; the others are searched for here.
    """
    texts = [translation_of(translator, "", [], best[0], config).text if best else "" for best in found]
    others = [n for n, best in enumerate(found) if not best]
    for first in range(0, len(others), LEXICAL_AT_ONCE):
        numbers = others[first : first + LEXICAL_AT_ONCE]
        made = translator.translate([lines[n] for n in numbers], config, **rules._asdict())
        for n, text in zip(numbers, made, strict=True):
            texts[n] = text
        yield
    rows: list[dict[str, Any]] = [{"text": text, "source": [], "target": [], "links": []} for text in texts]
    aligner = TagAligner(translator) if linked else None
    copied = None if rules.placeholders is None else compiled(rules.placeholders)
    for first in range(0, len(linked), AT_ONCE):
        numbers = linked[first : first + AT_ONCE]
        sources, targets = [lines[n] for n in numbers], [rows[n]["text"] for n in numbers]
        pairs = aligner.align(sources, targets, copied, rules.glossary) if aligner else ()
        for n, pair in zip(numbers, pairs, strict=True):
            rows[n]["source"] = [[word.start, word.end] for word in pair.source]
            rows[n]["target"] = [[word.start, word.end] for word in pair.target]
            rows[n]["links"] = [list(link) for link in pair.links]
        yield
    return rows
