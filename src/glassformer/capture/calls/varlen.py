"""Record a call of `varlen_attn`: attention of sequences of different lengths that are packed one after the other."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.autocast import cast_as_autocast
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.capture.record import Place
from glassformer.errors import ArgumentError


def record_varlen(
    place: Place,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the operator of `varlen_attn` does, recorded as a padded batch of the sequences.

    Queries and keys are counted from their ends, as torch's kernel does.
    """
    if block_table is not None or cu_seq_k is None:
        raise ArgumentError(
            f"{place.name} computes attention with a paged cache, which observe doesn't: use another cache, or "
            "choose other layers"
        )
    query, key, value = cast_as_autocast(query, key, value)
    of_queries, of_keys = (ends.diff() for ends in (cu_seq_q, cu_seq_k))
    q = _padded(query, of_queries)
    k, v = (_padded(x, of_keys) for x in (key, value))
    of_keys = of_keys if seqused_k is None else seqused_k
    left, right = window_size or (-1, -1)
    keep = _keep(of_queries, of_keys, q.shape[2], k.shape[2], left, 0 if is_causal else right)
    want, first_query = place.reserve(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    output, observation = observe(
        q, k, v, keep=keep, scale=scale, want=replace(want, lse=True), first_query=first_query
    )
    facts = observation.tensors()
    lse = facts["lse"] if want.lse else facts.pop("lse")
    place.add(Observation(facts, want, observation.batch))
    real = torch.arange(q.shape[2], device=q.device) < of_queries[:, None]
    unused = len(query) - int(of_queries.sum())
    packed, sums = F.pad(output.transpose(1, 2)[real], (0, 0, 0, 0, 0, unused)), lse.transpose(1, 2)[real].mT
    return packed, F.pad(sums, (0, unused)), torch.zeros(2, dtype=torch.uint64, device=q.device)


def record_varlen_out(place: Place, out: Tensor, *arguments: Any) -> Tensor:
    """Do what the operator of `varlen_attn_out` does, recorded: fill `out` and return the log-sum-exp."""
    output, lse, _ = record_varlen(place, *arguments)
    out.copy_(output)
    return lse


def _padded(packed: Tensor, lengths: Tensor) -> Tensor:
    """Return (sequences, heads, length, width) of (positions, heads, width), at whose end some may be unused."""
    sizes = lengths.tolist()
    return pad_sequence(list(packed[: sum(sizes)].split(sizes)), batch_first=True).transpose(1, 2)


def _keep(of_queries: Tensor, of_keys: Tensor, q_len: int, k_len: int, left: int, right: int) -> Tensor:
    """Return which keys a query may look at, `left` and `right` of it (-1: all): (sequences, 1, queries, keys)."""
    i = torch.arange(q_len, device=of_keys.device)[:, None] + (of_keys - of_queries)[:, None, None]
    j = torch.arange(k_len, device=of_keys.device)
    keep = (j < of_keys[:, None, None]) & (i < of_keys[:, None, None])
    if left >= 0:
        keep = keep & (i - j <= left)
    if right >= 0:
        keep = keep & (j - i <= right)
    return keep[:, None]
