"""Queries and keys that are made smaller where a head's scores grew too large (QK-Clip: Kimi K2, arXiv:2507.20534)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from glassformer.attention.kernels.blocks import Problem, largest_scores
from glassformer.attention.multihead import MultiheadAttention
from glassformer.capture.clip import clipping_factors
from glassformer.training.distributed import Processes, first_row, local_rows
from glassformer.transformer.model import Transformer


class QKClip:
    """Measures the largest score of each head in the passes of an update, and bounds it after the update.

    Attention is computed as without it, so nothing changes until a score is above the threshold. No state is kept from
    update to update.
    """

    def __init__(self, model: Transformer, threshold: float, processes: Processes, device: torch.device) -> None:
        self._threshold, self._processes = threshold, processes
        self._attentions = [attention for attention in model.attentions.values() if attention.num_heads]
        self._largest = [torch.zeros(attention.num_heads, device=device) for attention in self._attentions]

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the attention of the passes inside."""
        with ExitStack() as stack:
            for number, attention in enumerate(self._attentions):
                stack.enter_context(attention.measured_by(partial(self._measure, number)))
            yield

    def _measure(self, number: int, problem: Problem) -> None:
        largest = self._largest[number]
        torch.maximum(largest, largest_scores(problem).to(largest.dtype), out=largest)

    @torch.no_grad()
    def clip(self) -> None:
        """Make smaller the queries and keys of heads whose scores were above the threshold, in any process."""
        if not self._largest:
            return
        largest = self._processes.largest(torch.cat(self._largest))
        factors = clipping_factors(largest, self._threshold)
        for of_heads in self._largest:
            of_heads.zero_()
        # A CPU needs no pass over the weights where no score is above; another device would have to wait to be asked.
        if factors.device.type == "cpu" and (factors == 1).all():
            return
        sizes = [attention.num_heads for attention in self._attentions]
        for attention, of_heads in zip(self._attentions, factors.split(sizes), strict=True):
            scale_queries_and_keys(attention, of_heads)


def scale_queries_and_keys(attention: MultiheadAttention, factors: torch.Tensor) -> None:
    """Multiply queries and keys of each head by a factor, in the rows of the projection that this process has."""
    of_rows = factors.repeat_interleave(attention.head_dim)
    by_row = torch.cat([of_rows, of_rows, torch.ones_like(of_rows)])  # the last third makes values
    for parameter in (attention.in_proj_weight, attention.in_proj_bias):
        rows, first = local_rows(parameter), first_row(parameter)
        here = by_row[first : first + len(rows)].to(rows.dtype)
        rows.mul_(here.view(-1, *[1] * (rows.dim() - 1)))
