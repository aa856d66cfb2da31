"""Steps of generation as CUDA graphs: a cache whose shapes and addresses stay, and a step recorded over it.

A step is a few hundred small kernels, and on a GPU launching them one by one takes longer than running them. Recorded
once, they are launched as one. That needs every step to read and write at the same addresses: so the cache has all its
room from the start, and where the newest tokens go is itself a number in memory.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.generation.engines.cache import BeamCache

STEPS_OF_ROOM = 64


class FixedCache(BeamCache):
    """A BeamCache that offers all of its room at every step; `slot_bias` hides what isn't written yet."""

    steps_at_once = STEPS_OF_ROOM

    def __init__(
        self,
        memory: list[tuple[Tensor, Tensor]],
        source_bias: Tensor | None,
        width: int,
        *,
        heads: Sequence[int] | None = None,
    ) -> None:
        super().__init__(memory, source_bias, width, heads=heads)
        like = memory[0][0]
        self.graph: StepGraph | None = None  # recorded for these shapes
        self.position = torch.full((1,), -1, device=like.device)
        self._newest = torch.arange(-self.width, 0, device=like.device)
        self.slot_bias = like.new_full((self.sources, 1, self.width, self._slots[0].shape[2]), -torch.inf)

    def extend(self) -> None:
        """Make room for the next token of every hypothesis, which that hypothesis alone will attend to."""
        if self._used + self.width > self._slots[0].shape[2]:
            self._make_room()
        self.length += 1
        self._used += self.width
        self.position += 1
        self._newest += self.width
        assert self.slot_bias is not None
        self.slot_bias.index_copy_(3, self._newest, self._own.expand(self.sources, 1, -1, -1))

    def write(
        self, layer: int, keys_and_values: Float[Tensor, "2 sources heads #width d_head"]
    ) -> tuple[Tensor, Tensor]:
        """Put in the newest tokens', and return all keys and all values of the layer, (B, H, room, d_head)."""
        newest = keys_and_values.transpose(2, 3).expand(-1, -1, self.width, -1, -1)
        slots = self._slots[layer].index_copy_(2, self._newest, newest)
        keys, values = slots.transpose(2, 3).unbind(0)
        return keys, values

    def branch(self, parents: Int[Tensor, "sources width"]) -> None:
        """Let hypothesis w of source b continue what its hypothesis parents[b, w] has written."""
        before = self.slot_bias
        super().branch(parents)
        if before is not None and self.slot_bias is not None:
            self.slot_bias = before.copy_(self.slot_bias)  # at the same address

    def take_sources(self, kept: Int[Tensor, " kept"]) -> None:
        """Drop all but these sources."""
        super().take_sources(kept)
        self.graph = None

    def should_leave(self, finished: int, sources: int) -> bool:
        """Return whether to drop the finished sources: the step must then be recorded again."""
        return finished * 2 >= sources

    def _make_room(self) -> None:
        super()._make_room()
        assert self.slot_bias is not None
        hidden = self._slots[0].shape[2] - self._used
        self.slot_bias = torch.nn.functional.pad(self.slot_bias[..., : self._used], (0, hidden), value=-torch.inf)
        self._newest = torch.arange(self._used - self.width, self._used, device=self.slot_bias.device)
        self.graph = None

    def _new_slots(self, layer: int, used: int) -> Tensor:
        return super()._new_slots(layer, used).zero_()  # hidden slots must hold numbers too: NaN - inf is NaN


class StepGraph:
    """A step that is recorded once and replayed with other tokens."""

    def __init__(self, step: Callable[[Tensor], tuple[Tensor, Tensor]], tokens: Int[Tensor, " rows"]) -> None:
        self._tokens = tokens.clone()
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(tokens.device)
        stream.wait_stream(torch.cuda.current_stream(tokens.device))
        with torch.cuda.stream(stream):
            step(self._tokens)  # libraries set themselves up at their first call, which can't be recorded
            self._graph.capture_begin(capture_error_mode="thread_local")
            self._result = step(self._tokens)
            self._graph.capture_end()
        torch.cuda.current_stream(tokens.device).wait_stream(stream)

    def replay(self, tokens: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
        """Return the step's result for these tokens, which the next replay overwrites."""
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._result
