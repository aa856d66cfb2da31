"""Steps of generation as CUDA graphs: a cache whose shapes and addresses stay, and a step recorded over it.

A step is a few hundred small kernels, and on a GPU launching them one by one takes longer than running them. Recorded
once, they are launched as one. That needs every step to read and write at the same addresses: so the cache has all its
room from the start, and where the newest tokens go is itself a number in memory.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.generation.cache import BeamCache

STEPS_OF_ROOM = 64


class FixedCache(BeamCache):
    """A BeamCache that shows all of its room at every step, what isn't written yet hidden by `sees`."""

    steps_at_once = STEPS_OF_ROOM

    def __init__(
        self,
        memory: list[tuple[Tensor, Tensor]],
        blocked: Tensor | None,
        width: int,
        *,
        heads: Sequence[int] | None = None,
        int8: bool = False,
    ) -> None:
        super().__init__(memory, blocked, width, heads=heads, int8=int8)
        like = memory[0][0]
        self.graph: StepGraph | None = None  # of these shapes
        self.place = torch.full((1,), -1, device=like.device)
        self._newest = torch.arange(-self.width, 0, device=like.device)
        self.sees = like.new_full((self.sources, 1, self.width, self._slots[0].shape[3]), -torch.inf)

    def extend(self) -> None:
        """Make room for the next token of every hypothesis, which that hypothesis alone will see."""
        if self._used == self._slots[0].shape[3]:
            self._make_room()
        self.length += 1
        self._used += self.width
        self.place += 1
        self._newest += self.width
        assert self.sees is not None
        self.sees.index_copy_(3, self._newest, self._own.expand(self.sources, 1, -1, -1))

    def write(
        self, layer: int, keys_and_values: Float[Tensor, "2 sources heads width d_head"]
    ) -> tuple[Tensor, Tensor]:
        """Put in the newest token's; returns all keys and all values of the layer, (B, H, room, d_head)."""
        keys, values = self._slots[layer].index_copy_(3, self._newest, keys_and_values).unbind(0)
        return keys, values

    def branch(self, parents: Int[Tensor, "sources width"]) -> None:
        """Hypothesis w goes on from what hypothesis parents[b, w] has written."""
        seen = self.sees
        super().branch(parents)
        if seen is not None and self.sees is not None:
            self.sees = seen.copy_(self.sees)

    def take_sources(self, kept: Int[Tensor, " kept"]) -> None:
        """Go on with these sources alone."""
        super().take_sources(kept)
        self.graph = None

    def should_leave(self, finished: int, sources: int) -> bool:
        """Whether it pays to go on without the finished of its sources: the step must be recorded again."""
        return finished * 2 >= sources

    def _make_room(self) -> None:
        super()._make_room()
        assert self.sees is not None
        hidden = self._slots[0].shape[3] - self._used
        self.sees = torch.nn.functional.pad(self.sees, (0, hidden), value=-torch.inf)
        self._newest = torch.arange(self._used - self.width, self._used, device=self.sees.device)
        self.graph = None

    def _room(self, layer: int, used: int) -> Tensor:
        return super()._room(layer, used).zero_()  # what is hidden must be a number all the same: NaN - inf is NaN


class StepGraph:
    """A step, recorded with these tokens and replayed with others."""

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
        """What the step makes of these tokens; good until the next replay."""
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._result
