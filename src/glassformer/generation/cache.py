"""What the decoder remembers while it writes: B sources, W hypotheses of each, growing by one token a step.

Each token's key and value stay in the slot they were put in: beam search moves none of them. Which slots are a
hypothesis's own past is one small table, `sees`, and that alone follows the beams. All W hypotheses of a source are
queries over one block of slots. When the block is full, slots that no open hypothesis descends from are dropped: past
the last few tokens the hypotheses of a source mostly share their past, so it holds little more than one of them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

STEPS_AT_ONCE = 16


class BeamCache:
    """Keys and values of every decoder layer: the source's, and those of the tokens written. Changed in place."""

    steps_at_once = STEPS_AT_ONCE

    def __init__(
        self,
        memory: list[tuple[Float[Tensor, "sources _heads source_len d_head"], Tensor]],
        blocked: Float[Tensor, "sources 1 1 source_len"] | None,
        width: int,
        *,
        heads: Sequence[int] | None = None,
        int8: bool = False,
    ) -> None:
        """`heads` are those of each layer's attention to what is written; left out, as many as look at the source."""
        self.memory = memory
        self._heads = [keys.shape[1] for keys, _ in memory] if heads is None else heads
        self.blocked = blocked  # added to scores over the source: 0, or -inf for padding
        self.width = width
        self.int8 = int8  # whether the weights of eight bits write it
        self.length = 0
        self.sees: Tensor | None = None  # added to scores over the slots, (B, 1, W, used); None: one hypothesis
        self._used = 0
        self._slots = [self._room(layer, 0) for layer in range(len(memory))]
        like = memory[0][0]
        own = torch.full((width, width), -torch.inf, dtype=like.dtype, device=like.device)
        self._own = own.fill_diagonal_(0.0)  # what the newest tokens add to `sees`

    def should_leave(self, finished: int, sources: int) -> bool:
        """Whether it pays to copy the cache without the finished of its sources: as much work as a fifth of a step."""
        return finished * 8 >= sources

    @property
    def sources(self) -> int:
        """Number of sources still open."""
        return self.memory[0][0].shape[0]

    def extend(self) -> None:
        """Make room for the next token of every hypothesis, which that hypothesis alone will see."""
        if self._used == self._slots[0].shape[3]:
            self._make_room()
        self.length += 1
        self._used += self.width
        if self.width > 1:
            own = self._own.expand(self.sources, 1, -1, -1)
            self.sees = own.contiguous() if self.sees is None else torch.cat([self.sees, own], dim=3)

    def write(
        self, layer: int, keys_and_values: Float[Tensor, "2 sources heads width d_head"]
    ) -> tuple[Tensor, Tensor]:
        """Put in the newest token's; returns all keys and all values of the layer, (B, H, used, d_head)."""
        slots = self._slots[layer]
        slots.narrow(3, self._used - self.width, self.width).copy_(keys_and_values)
        keys, values = slots.narrow(3, 0, self._used).unbind(0)
        return keys, values

    def branch(self, parents: Int[Tensor, "sources width"]) -> None:
        """Hypothesis w goes on from what hypothesis parents[b, w] has written."""
        if self.sees is not None:
            self.sees = self.sees.gather(2, parents[:, None, :, None].expand(-1, 1, -1, self.sees.shape[3]))

    def take_sources(self, kept: Int[Tensor, " kept"]) -> None:
        """Go on with these sources alone."""
        self.memory = [(keys.index_select(0, kept), values.index_select(0, kept)) for keys, values in self.memory]
        self.blocked = None if self.blocked is None else self.blocked.index_select(0, kept)
        self.sees = None if self.sees is None else self.sees.index_select(0, kept)
        for layer, slots in enumerate(self._slots):
            self._slots[layer] = slots.index_select(1, kept)

    def _make_room(self) -> None:
        """Slots for the next steps, after those that a hypothesis still sees."""
        seen = None
        if self.sees is not None:
            is_seen = (self.sees == 0.0).any(2)[:, 0]  # (B, used)
            most = int(is_seen.sum(1).max())
            if most < self._used:
                seen = is_seen.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
                self.sees = self.sees.gather(3, seen[:, None, None, :].expand(-1, 1, self.width, -1))
                self._used = most
        for layer, slots in enumerate(self._slots):  # one by one, so that no more than one is held twice
            room = self._room(layer, self._used)
            for source, indices in enumerate(seen if seen is not None else ()):
                torch.index_select(slots[:, source], 2, indices, out=room[:, source].narrow(2, 0, self._used))
            if seen is None:
                room.narrow(3, 0, self._used).copy_(slots.narrow(3, 0, self._used))
            self._slots[layer] = room

    def _room(self, layer: int, used: int) -> Tensor:
        keys = self.memory[layer][0]
        sources, _, _, d_head = keys.shape
        return keys.new_empty(2, sources, self._heads[layer], used + self.steps_at_once * self.width, d_head)
