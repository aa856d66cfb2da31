"""Record a call of `flex_attention`, as its eager form computes it: from the whole matrix of scores."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from glassformer.attention.autocast import cast_as_autocast
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.attention.want import NOTHING
from glassformer.capture.record import Asked, Place

Modify = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Changes a score, given the indices of batch, head, query and key."""


def record_flex(place: Place, query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return what the operator of `flex_attention` does, recorded."""
    asked = place.reserve(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    outputs, observation = _compute(asked, query, key, *rest)
    place.add(observation)
    return outputs


def compute_flex(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operator of `flex_attention` does.

    Unlike the operator, called outside of torch's compiler, this gives gradients to what `score_mod` refers to.
    """
    return _compute(Asked(NOTHING), *arguments)[0]


def _compute(
    asked: Asked,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Modify,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    *buffers: tuple[Tensor, ...],
) -> tuple[tuple[Tensor, ...], Observation]:
    """Return output, log-sum-exp and largest scores, these in bits, and what is asked.

    The scores are a bias of queries and keys that are zeros, since `score_mod` may be any function of them.
    """
    query, key, value = cast_as_autocast(query, key, value)
    batch, heads, q_len, _ = query.shape
    key, value = (x.expand(batch, -1, -1, -1) for x in (key, value))
    k_len = key.shape[2]
    exact = torch.promote_types(query.dtype, torch.float32)
    grouped = query.to(exact).unflatten(1, (key.shape[1], -1))
    products = (grouped @ key.to(exact)[:, :, None].mT).flatten(1, 2) * scale

    def modified(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score_mod(products[b, h, i, j], b, h, i, j)

    keep = _keep(block_mask, batch, heads, q_len, k_len)
    scores = on_every_pair(modified, batch, heads, q_len, k_len, query.device).masked_fill(~keep, -math.inf)
    zeros = query.new_zeros((), dtype=exact).expand(batch, heads, max(q_len, k_len), 1)
    values = value.to(exact).repeat_interleave(heads // value.shape[1], 1)
    given = zeros[:, :, :q_len], zeros[:, :, :k_len], values
    output, observation = observe(*given, bias=scores, want=asked.want, first_query=asked.first_query)
    statistics = (one / math.log(2) for one in (scores.logsumexp(-1), scores.amax(-1)))
    return (output.to(query.dtype), *statistics), observation


def _keep(block_mask: tuple[Any, ...], batch: int, heads: int, q_len: int, k_len: int) -> Tensor:
    """Return which keys a query may look at, by what `BlockMask.as_tuple` gives.

    Torch's kernels skip the blocks that are not listed, and ask the function in those that are listed as partial. Its
    eager form asks the function alone, which is the same where the blocks were made from it.
    """
    (_, _, count, indices, full_count, full_indices), (q_block, k_block, allow) = block_mask[:6], block_mask[-3:]
    i, j = (torch.arange(n, device=count.device) // size for n, size in ((q_len, q_block), (k_len, k_block)))
    keep = on_every_pair(allow, batch, heads, q_len, k_len, count.device)
    keep = keep & _listed(count, indices, int(j[-1]) + 1)[:, :, i[:, None], j]
    return keep if full_count is None else keep | _listed(full_count, full_indices, int(j[-1]) + 1)[:, :, i[:, None], j]


def _listed(count: Tensor, indices: Tensor, columns: int) -> Tensor:
    """Return (batch, heads, rows, columns) of blocks: those whose column is among the first indices of their row."""
    real = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    listed = torch.zeros(*count.shape, columns + 1, dtype=torch.bool, device=indices.device)
    return listed.scatter(-1, indices.long().where(real, columns), True)[..., :columns]


def on_every_pair(
    modify: Callable[..., Tensor], batch: int, heads: int, q_len: int, k_len: int, device: torch.device
) -> Tensor:
    """Return what a function of the indices of batch, head, query and key gives: (batch, heads, queries, keys)."""
    # Torch counts the arguments of what it is given, and gives back what that does, of any dtype.
    return create_mask(lambda b, h, i, j: modify(b, h, i, j), batch, heads, q_len, k_len, device)
