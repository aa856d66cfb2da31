"""The keys and values that the decoder goes on from: those of the source, and of the target written so far.

Caches are passed in and returned, never kept on a module, and never changed in place.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

SourceHeads = Float[Tensor, "sources source_heads source_len d_head"]
TargetHeads = Float[Tensor, "rows heads target_len d_head"]


@dataclass(frozen=True)
class LayerCache:
    """One decoder layer's keys and values. Rows of the target may be several per source: beams."""

    memory_keys: SourceHeads
    memory_values: SourceHeads
    keys: TargetHeads | None = None
    values: TargetHeads | None = None


@dataclass(frozen=True)
class Cache:
    """All layers' keys and values, and the source positions that may be attended to.

    With B sources and W hypotheses of each, target rows are ordered source by source (row b * W + w), and the
    source's keys and values are held once per source.
    """

    layers: tuple[LayerCache, ...]
    memory_keep: Bool[Tensor, "sources 1 1 source_len"] | None

    @property
    def length(self) -> int:
        """The number of target positions already written."""
        keys = self.layers[0].keys
        return 0 if keys is None else keys.shape[2]
