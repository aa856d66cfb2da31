"""Exported graphs held against the model they were made from: logits on random batches, and ids of real lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import RunError
from glassformer.generation.batches import ended, search_all
from glassformer.generation.engines.engine import Engine
from glassformer.interop.huggingface import marian_size
from glassformer.interop.onnx.generate import GREEDY, OnnxTranslator
from glassformer.run.folder import Run
from glassformer.transformer.model import Transformer

NEAR, NEAR_SHARE = 1e-4, 1e-5
"""Most that a float32 graph's logit may differ from the model's: the sum of a number and of a share of the logit."""
BATCHES = ((3, 7, 5), (2, 70, 67))
"""Sources, and most tokens of a source and of a target, in the batches that logits are compared on."""


@dataclass(frozen=True)
class Likeness:
    """The agreement of graphs with the model that they were made from."""

    difference: float
    """The largest difference of a logit."""
    mean_difference: float
    """The mean difference of a logit."""
    lines: int = 0
    """Number of lines whose ids were compared."""
    same: int = 0
    """Number of those whose ids are the same."""
    ties: int = 0
    """Number of those that differ where two tokens are equally likely up to rounding."""


def compare(run: Run, graphs: OnnxTranslator, lines: Sequence[str], *, exact: bool) -> Likeness:
    """Return how like the graphs are to the run's model, which is in float32 on the CPU.

    With `exact`, RunError says where they differ by more than rounding.
    """
    largest, mean = _compare_logits(run.model, graphs, exact=exact)
    if not lines:
        return Likeness(largest, mean)
    engine = Engine.of(run.model, torch.float32)
    sources = ended(run.source_tokenizer.encode(lines), lines, GREEDY.max_source_tokens, "source")
    ours = [found[0].ids if found else [] for found in search_all(engine, sources, GREEDY)]
    their_sources = ended(graphs.source_tokenizer.encode(lines), lines, GREEDY.max_source_tokens, "source")
    theirs = graphs.search(their_sources, GREEDY)
    ties = 0
    for number, (source, a, b) in enumerate(zip(sources, ours, theirs, strict=True)):
        if a != b:
            is_tie = _is_tie(run.model, source, a, b)
            ties += is_tie
            if exact and not is_tie:
                raise RunError(
                    f"onnxruntime translates line {number + 1} as {run.target_tokenizer.decode([b])[0]!r}, and "
                    f"glassformer as {run.target_tokenizer.decode([a])[0]!r}: nothing was written"
                )
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return Likeness(largest, mean, len(lines), same, ties)


@torch.inference_mode()
def _compare_logits(model: Transformer, graphs: OnnxTranslator, *, exact: bool) -> tuple[float, float]:
    """Return the largest and the mean difference of logits over `BATCHES`: at once, and step by step."""
    draw = torch.Generator().manual_seed(1)
    worst, means = 0.0, []
    for count, source_len, target_len in BATCHES:
        lengths = [source_len - n * (source_len // count) for n in range(count)]
        source = [torch.randint(0, model.source_pad, (n,), generator=draw).tolist() for n in lengths]
        target = torch.randint(0, model.target_pad, (count, target_len), generator=draw)
        target[:, 0] = model.target_pad
        ours = _logits(model, source, target)
        for steps in ([0, target_len], [0, 1, 2, target_len - 2, target_len]):
            difference = (_logits_of(graphs, model, source, target, steps) - ours).abs()
            if not difference.isfinite().all():
                raise RunError("the graphs' logits are not finite: leave --quantization out, or use int8")
            if exact and (difference > NEAR + NEAR_SHARE * ours.abs()).any():
                raise RunError(
                    f"the graphs' logits differ from the model's by up to {difference.max():.2g}, which is more than "
                    f"rounding ({NEAR}): nothing was written"
                )
            worst = max(worst, difference.max().item())
            means.append(difference.mean().item())
    return worst, sum(means) / len(means)


def _logits(
    model: Transformer, source: list[list[int]], target: Int[Tensor, "rows target_len"]
) -> Float[Tensor, "rows target_len predictable"]:
    """Return the model's logits."""
    longest = max(map(len, source))
    padded = torch.tensor([[*ids, *[model.source_pad] * (longest - len(ids))] for ids in source])
    return model(padded, target)


def _logits_of(
    graphs: OnnxTranslator, model: Transformer, source: list[list[int]], target: Tensor, steps: Sequence[int]
) -> Float[Tensor, "rows target_len predictable"]:
    """Return the graphs' logits of all ids but padding and unused ones, computed from one step to the next."""
    ids = target.masked_fill(target == model.target_pad, marian_size(model.config) - 1).numpy()
    given, logits = graphs.encode(source), []
    for start, end in pairwise(steps):
        of_step, given = graphs.step(ids[:, start:end], given)
        logits.append(torch.from_numpy(of_step[..., : model.target_pad]))
    return torch.cat(logits, dim=1)


@torch.inference_mode()
def _is_tie(model: Transformer, source: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Return whether two translations part where the model finds the two tokens equally likely up to rounding."""
    ends = [*ours, 0], [*theirs, 0]
    at = next(n for n, (a, b) in enumerate(zip(*ends, strict=False)) if a != b)
    target = torch.tensor([[model.target_pad, *ours[:at]]])
    logits = _logits(model, [source], target)[0, -1]
    first, second = (logits[ids[at]] for ids in ends)
    return bool((first - second).abs() <= 2 * (NEAR + NEAR_SHARE * first.abs()))
