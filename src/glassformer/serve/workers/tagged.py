"""Translations that tags are put into: what the server needs to do so, as JSON."""

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from glassformer.generation.config import SearchConfig
from glassformer.generation.lexical.lines import LexicalLine
from glassformer.generation.lexical.placeholders import compiled
from glassformer.generation.search import Hypothesis
from glassformer.generation.segments.sentences import Segments
from glassformer.generation.translator import Translator, translation_of
from glassformer.markup.aligning import LinkedPair, TagAligner, joined_pair
from glassformer.markup.translate import ONLY_MARKS
from glassformer.serve.workers.terms import LEXICAL_AT_ONCE, Rules

Found = tuple[LexicalLine, list[int], list[Hypothesis]]
"""A line that the rules concern, its ids, and what was found for it."""
AT_ONCE = 16
"""Lines that are aligned in one step."""


def with_marks(rules: Rules) -> Rules:
    """Return the rules of lines in which marks stand for what stays as it is, which the search must copy."""
    return rules if rules.placeholders is not None else rules._replace(placeholders=ONLY_MARKS)


def tagged_rows(
    translator: Translator,
    lines: Sequence[Segments],
    found: Sequence[Sequence[Hypothesis]],
    linked: Sequence[int],
    config: SearchConfig,
    rules: Rules,
    search: Callable[[Sequence[str]], list[Found]],
) -> Generator[None, None, list[dict[str, Any]]]:
    """Return the translation of each line, with words and links of those that are `linked`, step by step.

    The lines come as their sentences, or each as one. `found` has what was found for those sentences that the rules
    don't concern; the others are left to `search`, which heeds the rules.
    """
    sources = [text for line in lines for text in line.texts]
    texts = [translation_of(translator, "", [], best[0], config).text if best else "" for best in found]
    others = [n for n, best in enumerate(found) if not best]
    for first in range(0, len(others), LEXICAL_AT_ONCE):
        numbers = others[first : first + LEXICAL_AT_ONCE]
        for n, (lexical, _, best) in zip(numbers, search([sources[n] for n in numbers]), strict=True):
            texts[n] = translation_of(translator, "", [], best[0], config, lexical=lexical).text
        yield
    ends = list(accumulate((len(line.texts) for line in lines), initial=0))
    targets = [texts[first:end] for first, end in pairwise(ends)]
    pairs = dict[int, LinkedPair]()
    aligner = TagAligner(translator) if linked else None
    copied = None if rules.placeholders is None else compiled(rules.placeholders)
    to_link = [n for line in linked for n in range(ends[line], ends[line + 1])]
    for first in range(0, len(to_link), AT_ONCE):
        numbers = to_link[first : first + AT_ONCE]
        both = [sources[n] for n in numbers], [texts[n] for n in numbers]
        pairs |= zip(numbers, aligner.align(*both, copied, rules.glossary) if aligner else (), strict=True)
        yield
    rows: list[dict[str, Any]] = [
        {"text": line.joined(made), "source": [], "target": [], "links": []}
        for line, made in zip(lines, targets, strict=True)
    ]
    for n in linked:
        pair = joined_pair((pairs[at] for at in range(ends[n], ends[n + 1])), lines[n], targets[n])
        rows[n]["source"] = [[word.start, word.end] for word in pair.source]
        rows[n]["target"] = [[word.start, word.end] for word in pair.target]
        rows[n]["links"] = [list(link) for link in pair.links]
    return rows
