"""The memory of the decoder while it writes: B sources, W hypotheses of each, growing by one token a step.

Each token's key and value stay in the slot they were put in: beam search moves none of them. Which slots are a
hypothesis's own past is one small table, `slot_bias`, and that alone follows the beams. All W hypotheses of a source
are queries over one block of slots. When the block is full, slots that no open hypothesis descends from are dropped:
past the last few tokens the hypotheses of a source mostly share their past, so it holds little more than one of them.
In memory the heads of a slot lie side by side, so that a token is read and written in one piece.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.device import use_huge_pages

STEPS_AT_ONCE = 16


class BeamCache:
    """Keys and values of every decoder layer: the source's, and those of the tokens written; changed in place."""

    steps_at_once = STEPS_AT_ONCE

    def __init__(
        self,
        memory: list[tuple[Float[Tensor, "sources _heads source_len d_head"], Tensor]],
        source_bias: Float[Tensor, "sources 1 1 source_len"] | None,
        width: int,
        *,
        heads: Sequence[int] | None = None,
    ) -> None:
        """Begin without tokens; `heads` counts those of each layer's self-attention (None: as over the source)."""
        self.memory = memory
        self._heads = [keys.shape[1] for keys, _ in memory] if heads is None else heads
        self.source_bias = source_bias  # added to scores over the source: 0, or -inf for padding
        self.width = width
        self.length = 0
        self.slot_bias: Tensor | None = None  # added to scores over the slots, (B, 1, W, used); None: one hypothesis
        self._used = 0
        self._slots = [self._new_slots(layer, 0) for layer in range(len(memory))]
        like = memory[0][0]
        own = torch.full((width, width), -torch.inf, dtype=like.dtype, device=like.device)
        self._own = own.fill_diagonal_(0.0)  # what the newest tokens add to `slot_bias`

    def should_leave(self, finished: int, sources: int) -> bool:
        """Return whether to copy the cache without its finished sources, which takes as long as a fifth of a step."""
        return finished * 8 >= sources

    @property
    def sources(self) -> int:
        """Number of sources still open."""
        return self.memory[0][0].shape[0]

    def extend(self) -> None:
        """Make room for the next token of every hypothesis, which that hypothesis alone will attend to."""
        if self._used + self.width > self._slots[0].shape[2]:
            self._make_room()
        self.length += 1
        self._used += self.width
        if self.width > 1:
            own = self._own.expand(self.sources, 1, -1, -1)
            self.slot_bias = own.contiguous() if self.slot_bias is None else torch.cat([self.slot_bias, own], dim=3)

    def write(
        self, layer: int, keys_and_values: Float[Tensor, "2 sources heads #width d_head"]
    ) -> tuple[Tensor, Tensor]:
        """Put in the newest tokens', and return all keys and all values of the layer, (B, H, used, d_head).

        Of tokens that are alike in all hypotheses of a source, one is enough.
        """
        slots = self._slots[layer]
        slots.narrow(2, self._used - self.width, self.width).copy_(keys_and_values.transpose(2, 3))
        keys, values = slots.narrow(2, 0, self._used).transpose(2, 3).unbind(0)
        return keys, values

    def branch(self, parents: Int[Tensor, "sources width"]) -> None:
        """Let hypothesis w of source b continue what its hypothesis parents[b, w] has written."""
        if self.slot_bias is not None:
            self.slot_bias = self.slot_bias.gather(
                2, parents[:, None, :, None].expand(-1, 1, -1, self.slot_bias.shape[3])
            )

    def take_sources(self, kept: Int[Tensor, " kept"]) -> None:
        """Drop all but these sources."""
        self.memory = [(_select(keys, kept), _select(values, kept)) for keys, values in self.memory]
        self.source_bias = None if self.source_bias is None else self.source_bias.index_select(0, kept)
        self.slot_bias = None if self.slot_bias is None else self.slot_bias.index_select(0, kept)
        for layer, slots in enumerate(self._slots):
            self._slots[layer] = slots.index_select(1, kept)

    def _make_room(self) -> None:
        """Drop the slots that no hypothesis attends to, and add new ones if there is still little room."""
        kept_slots = None
        if self.slot_bias is not None:
            is_visible = (self.slot_bias == 0.0).any(2)[:, 0]  # (B, used)
            most = int(is_visible.sum(1).max())
            if most < self._used:
                kept_slots = is_visible.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
                self.slot_bias = self.slot_bias.gather(3, kept_slots[:, None, None, :].expand(-1, 1, self.width, -1))
                self._used = most
        free = self._slots[0].shape[2] - self._used
        for layer, slots in enumerate(self._slots):  # one by one, so that only one at a time is held twice
            room = slots if free * 2 >= self.steps_at_once * self.width else self._new_slots(layer, self._used)
            for source, indices in enumerate(kept_slots if kept_slots is not None else ()):
                room[:, source].narrow(1, 0, self._used).copy_(slots[:, source].index_select(1, indices))
            if kept_slots is None:
                room.narrow(2, 0, self._used).copy_(slots.narrow(2, 0, self._used))
            self._slots[layer] = room

    def _new_slots(self, layer: int, used: int) -> Tensor:
        keys = self.memory[layer][0]
        sources, _, _, d_head = keys.shape
        room = used + self.steps_at_once * self.width
        slots = keys.new_empty(2, sources, room, self._heads[layer], d_head)
        use_huge_pages(slots)
        return slots


def _select(keys: Float[Tensor, "sources heads k_len d_head"], kept: Int[Tensor, " kept"]) -> Tensor:
    """Return the keys of some sources, in memory with the heads of a position side by side, as they were."""
    return keys.transpose(1, 2).index_select(0, kept).transpose(1, 2)
