"""What the decoder remembers: the source's keys and values, and those of the target written so far.

Caches are passed in and returned, never kept on a module, and never changed in place.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
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
    """All layers' keys and values, and which source positions may be looked at.

    With B sources and W hypotheses of each, target rows are ordered source by source (row b * W + w), and the
    source's keys and values are held once per source.
    """

    layers: tuple[LayerCache, ...]
    memory_keep: Bool[Tensor, "sources 1 1 source_len"] | None

    @property
    def length(self) -> int:
        """Number of target positions already written."""
        keys = self.layers[0].keys
        return 0 if keys is None else keys.shape[2]

    def take(self, rows: Int[Tensor, " rows"]) -> "Cache":
        """The cache whose target rows are these rows of the present one; the sources stay."""
        layers = tuple(
            LayerCache(
                layer.memory_keys,
                layer.memory_values,
                None if layer.keys is None else layer.keys.index_select(0, rows),
                None if layer.values is None else layer.values.index_select(0, rows),
            )
            for layer in self.layers
        )
        return type(self)(layers, self.memory_keep)

    def take_sources(self, sources: Int[Tensor, " sources"]) -> "Cache":
        """The cache of these sources alone, with all their hypotheses."""
        layers = []
        for layer in self.layers:
            keys, values = layer.keys, layer.values
            if keys is not None and values is not None:
                width = keys.shape[0] // layer.memory_keys.shape[0]
                rows = (sources[:, None] * width + torch.arange(width, device=sources.device)).flatten()
                keys, values = keys.index_select(0, rows), values.index_select(0, rows)
            memory_keys = layer.memory_keys.index_select(0, sources)
            layers.append(LayerCache(memory_keys, layer.memory_values.index_select(0, sources), keys, values))
        keep = None if self.memory_keep is None else self.memory_keep.index_select(0, sources)
        return type(self)(tuple(layers), keep)
