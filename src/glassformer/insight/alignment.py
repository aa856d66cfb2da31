"""A study of which heads of any captured model follow an alignment that is known."""

from collections import Counter
from dataclasses import dataclass

import torch

from glassformer.attention.observation import Observation
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError, shown
from glassformer.settings.docstrings import with_fields


@with_fields
@dataclass(frozen=True, kw_only=True)
class AlignedHead:
    """Tell how well a head follows an alignment. Shares and means are over the queries that it gives keys.

    Example: docs/inside.md.
    """

    attention: str
    """Path of its attention in the model."""

    head: int

    found: float
    """Share of the queries whose largest weight falls on one of their aligned keys."""

    by_position: float
    """Share of the queries that have an aligned key at the one relative position which would score best."""

    weight: float
    """Mean weight that a query has on its aligned keys."""

    def __str__(self) -> str:
        found = f"{self.found:.1%} found ({self.by_position:.1%} by position)"
        return f"{self.attention} head {self.head}: {found}, {self.weight:.1%} of the weight"


def study_alignment(*captures: Captured) -> list[AlignedHead]:
    """Measure how well each head of a model follows an alignment, in the order of the layers.

    Each capture must have recorded `Want(agreement=alignment, top=1)` on a batch of its own; several captures give one
    result. Attentions whose lengths differ from the alignment's are left out. So in an encoder-decoder an alignment of
    target and source measures the decoder's attention to the source. Where the model uses a layer several times, the
    path in a result ends with the number of the call. `plot_alignment` draws the results.

    Raises ArgumentError if no capture has these facts, or if the alignment gives no query a key.

    >>> import torch
    >>> from torch import nn
    >>> from glassformer import Want, capture
    >>> model = nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
    >>> before = torch.eye(7, dtype=torch.bool).roll(-1, 1)[None]  # each token with the one before it
    >>> with torch.no_grad(), capture(model, Want(agreement=before, top=1)) as captured:
    ...     _ = model(torch.randn(2, 7, 32))
    >>> heads = study_alignment(captured)
    >>> best = max(heads, key=lambda head: head.found)
    >>> best.attention, len(heads)
    ('self_attn', 4)
    """
    sums: dict[str, _Sums] = {}
    for captured in captures:
        if not isinstance(captured, Captured):
            raise ArgumentError(
                f"captures must be what capture gives, one after the other, got {shown(captured)}: of a list, "
                "study_alignment(*captures)"
            )
        for name, observation in captured.items():
            if observation.want.agreement is not None and observation.want.top:
                sums.setdefault(name, _Sums(observation.agreement.shape[1])).add(observation)
    if not sums:
        raise ArgumentError(
            "captures must have recorded an alignment of the attention's own lengths and the largest weight of each "
            "query, got none that has: capture(model, Want(agreement=alignment, top=1))"
        )
    return [head for name, of_heads in sums.items() for head in of_heads.heads(name)]


class _Sums:
    """Sums over queries for the heads of one attention."""

    def __init__(self, heads: int) -> None:
        self._queries = 0
        self._found, self._weight = torch.zeros(2, heads).double()
        self._offsets = Counter[int]()

    def add(self, observation: Observation) -> None:
        """Add the queries of a batch."""
        assert observation.want.agreement is not None
        keys = observation.top.keys[..., :1].cpu()  # -1 where a query looks nowhere
        alignment = observation.want.agreement.cpu().expand(len(keys), -1, -1)
        queries = alignment.any(-1).sum(-1)
        self._queries += int(queries.sum())
        self._weight += (observation.agreement.detach().cpu().double() * queries[:, None]).sum(0)
        hits = alignment[:, None].expand(-1, keys.shape[1], -1, -1).gather(-1, keys.clamp(min=0)) & (keys >= 0)
        self._found += hits.sum((0, 2, 3))
        _, query, key = alignment.nonzero(as_tuple=True)
        self._offsets.update((key - query).tolist())

    def heads(self, name: str) -> list[AlignedHead]:
        """Return the heads of the attention of this name."""
        if not self._queries:
            raise ArgumentError(
                "agreement must give at least one query a key, got an alignment that is False throughout"
            )
        by_position = max(self._offsets.values()) / self._queries
        shares = zip((self._found / self._queries).tolist(), (self._weight / self._queries).tolist(), strict=True)
        return [
            AlignedHead(attention=name, head=n, found=found, by_position=by_position, weight=weight)
            for n, (found, weight) in enumerate(shares)
        ]
