"""Several models that choose each token of a translation together: an ensemble."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.generation.engines.cache import BeamCache
from glassformer.generation.engines.engine import (
    AttentionFunction,
    Engine,
    Heads,
    Keep,
    Source,
    TargetIds,
    unobserved,
)
from glassformer.generation.engines.precision import pick_generation_precision
from glassformer.generation.kernels.passes import best_classes
from glassformer.run.folder import RunFolder
from glassformer.transformer.model import check_memory


class EnsembleCache(BeamCache):
    """The memories of an ensemble's members, which grow and branch alike."""

    def __init__(self, members: Sequence[BeamCache]) -> None:
        self.members = members
        self.width = members[0].width

    def branch(self, parents: Int[Tensor, "sources width"]) -> None:
        for member in self.members:
            member.branch(parents)

    def take_sources(self, kept: Int[Tensor, " kept"]) -> None:
        for member in self.members:
            member.take_sources(kept)

    def should_leave(self, finished: int, sources: int) -> bool:
        return self.members[0].should_leave(finished, sources)


class Ensemble(Engine):
    """Engines of one vocabulary, as an engine: the probability of a token is the mean of theirs.

    Sizes and attention are those of the first member.
    """

    def __init__(self, members: Sequence[Engine]) -> None:
        first = members[0]
        self._members = members
        self.config, self.dtype, self.device, self.int8 = first.config, first.dtype, first.device, first.int8
        self.source_pad, self.target_pad = first.source_pad, first.target_pad

    @property
    def classes(self) -> int:
        return self._members[0].classes

    def start(self, source: Source, keep: Keep | None, width: int) -> EnsembleCache:
        return EnsembleCache([member.start(source, keep, width) for member in self._members])

    def step(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache
    ) -> tuple[Float[Tensor, "rows classes"], Float[Tensor, "sources heads width d_head"]]:
        """Return the log-probabilities of what follows these newest tokens, and the first member's queries."""
        assert isinstance(cache, EnsembleCache)
        steps = [member.step(tokens, own) for member, own in zip(self._members, cache.members, strict=True)]
        return _mean([logits for logits, _ in steps]), steps[0][1]

    def step_best(
        self, tokens: Int[Tensor, " rows"], cache: BeamCache, k: int, forbidden: int | None
    ) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"], Heads]:
        log_probs, query = self.step(tokens, cache)
        return *best_classes(log_probs, k, forbidden), query

    def decode(
        self,
        target_in: TargetIds,
        source: Source,
        keep: Keep | None = None,
        attention: AttentionFunction = unobserved,
    ) -> Float[Tensor, "batch target_len classes"]:
        """Return the log-probabilities at all positions of given targets; `attention` computes the first member's."""
        first, *others = self._members
        theirs = [member.decode(target_in, source, keep) for member in others]
        return _mean([first.decode(target_in, source, keep, attention), *theirs])

    def alignment(self, query: Heads, cache: BeamCache) -> Float[Tensor, "sources width source_len"]:
        """Return how much of its attention each newest token of the first member pays to each source position."""
        assert isinstance(cache, EnsembleCache)
        return self._members[0].alignment(query, cache.members[0])


def load_engine(runs: Mapping[Path, RunFolder], device: torch.device, precision: str) -> Engine:
    """Load the engine of a run, or the ensemble of several; OutOfMemoryError where they have no room."""
    picked = pick_generation_precision(precision, device, torch.float32)
    if device.type == "cpu":
        fix = f"{' and '.join(map(str, runs))} {'needs' if len(runs) == 1 else 'need'} a larger machine"
        each = 1 if picked.int8 else picked.dtype.itemsize
        check_memory(*(run.model_config for run in runs.values()), fix=fix, bytes_each=each)
    engines = [Engine(run.model_config, run.weights, picked.dtype, device, int8=picked.int8) for run in runs.values()]
    return engines[0] if len(engines) == 1 else Ensemble(engines)


def _mean(logits: Sequence[Float[Tensor, "*rows classes"]]) -> Float[Tensor, "*rows classes"]:
    """Return the logarithm of the mean of the probabilities that these logits stand for."""
    exact = torch.promote_types(logits[0].dtype, torch.float32)
    return reduce(torch.logaddexp, (one.log_softmax(-1, dtype=exact) for one in logits)) - math.log(len(logits))
