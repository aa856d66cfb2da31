"""The measurements and the role of each attention head, as a table for people and as heads.json holds them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassformer.errors import RunError
from glassformer.insight.syntax import Syntax
from glassformer.run.fitted import Fitted, read_fitted, write_fitted
from glassformer.run.names import HEADS


@dataclass(frozen=True, kw_only=True)
class Head:
    """The measurements of a head. Means are over all queries but padding."""

    attention: str
    """Path of its attention in the model."""
    head: int
    confidence: float
    """Mean of the largest weight, not counting the weight on the sentence's end."""
    entropy: float
    """Mean, in nats."""
    offset: int
    """The relative position on which the largest weight falls most often: -1 is the token before."""
    positional: float
    """Share of the tokens whose largest weight falls there."""
    previous: float
    """Mean weight on the token before; in attention to the source, on the position before."""
    next: float
    """Mean weight on the token after."""
    end: float
    """Mean weight on the source's end; in the decoder's self-attention, on the start."""
    rare: float | None
    """Share of sentences in which the rarest or the second rarest token receives most. None in the decoder, and if no
    sentence has a rare token."""
    syntax: Syntax | None
    """The relation it follows best. None in the decoder, without trees, and if no relation is frequent enough."""
    importance: float
    """Importance by the gradient: see `gates.importance`."""
    without: float
    """Rise of the loss when the head is switched off, in nats per token."""
    role: str
    """positional, syntactic, rare words, end, or empty for none of these."""


class _HeadsFile(Fitted, frozen=True, kw_only=True):
    """The content of heads.json."""

    heads: list[Head]


def write_heads(folder: Path, heads: Sequence[Head]) -> None:
    """Keep what was measured in a run folder, for the weights that it has now."""
    write_fitted(folder / HEADS, _HeadsFile(heads=list(heads)))


def read_heads(folder: Path) -> list[Head]:
    """Return what `glassformer heads` left in a run folder; an empty list where it studied no or other weights.

    Raises RunError if the file is something else.
    """
    try:
        kept = read_fitted(folder / HEADS, _HeadsFile)
    except RunError as error:
        raise RunError(f"{error}: run `glassformer heads` again") from None
    return [] if kept is None else kept.heads


def table_lines(heads: Sequence[Head]) -> Iterator[str]:
    """Yield the lines of a table for people: the names of the columns, then a line for each head."""
    width = max(len(head.attention) for head in heads)
    yield (
        f"{'attention':{width}}  head  loss without  importance  confidence  entropy  offset  there  before  after"
        "    end   rare  role"
    )
    for head in heads:
        rare = "" if head.rare is None else f"{head.rare:.0%}"
        yield (
            f"{head.attention:{width}}{head.head:6}{head.without:+14.4f}{head.importance:12.2f}{head.confidence:12.2f}"
            f"{head.entropy:9.2f}{head.offset:+8d}{head.positional:7.0%}{head.previous:8.0%}{head.next:7.0%}"
            f"{head.end:7.0%}{rare:>7}  {head.role}{f': {head.syntax}' if head.role == 'syntactic' else ''}"
        ).rstrip()
