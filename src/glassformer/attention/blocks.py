"""Attention on the CPU a block of queries at a time, so that a block's weights stay in the processor's cache.

Exact: a block sees all keys, so its softmax is the ordinary one. The backward pass computes each block's weights again
(Rabe and Staats 2021, arXiv:2112.05682), so that training, too, never holds all of them.

B batch, H heads, L query length, S key length, D width of one head, G heads of all the batch entries in a block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.attention.products import RightFactor, is_batched, is_eager
from glassformer.attention.weigh import weigh

Weights = Literal["none", "mean", "heads"]

# A block's weights fill about this much, or more, so that a block of long rows has some of them: products of few rows
# are slow. Of 1 to 32 MiB the one that is near the best at every size (benchmarks/LOG.md).
_BLOCK_BYTES = 8 << 20
_BLOCK_ROWS = 64
_MOST_BLOCK_BYTES = 16 << 20
_COPY_FROM_KEYS = 1024  # then reading keys a head at a time pays for the copy: 248 -> 206 ms at 1 x 4096
_MOST_DROPOUT = 255 / 256  # above, a byte can't decide
_FROM_SCORES = 1 << 16  # below, one block holds everything, and plain operations have less to do


def blocks_are_faster(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float = 0.0) -> bool:
    """On the CPU, for all but small inputs. A bias that learns, compiling and tracing take the plain operations."""
    return (
        not torch.compiler.is_compiling()  # first: what it sees compared becomes a condition of the graph
        and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= max(1, _FROM_SCORES)
        and q.device.type == "cpu"
        and not (bias is not None and bias.requires_grad)
        and q.dtype == k.dtype == v.dtype
        and 0 <= dropout <= _MOST_DROPOUT
        and is_eager(q, k, v)
    )


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    weights: Weights = "none",
) -> tuple[Tensor, Tensor | None]:
    """softmax(q kᵀ / sqrt(D) + bias) v, and its weights: none, the heads' mean (B, L, S), or all (B, H, L, S)."""
    blocked = None if keep is None else ~keep
    # One draw from the global generator seeds all of a call's random numbers: the backward pass repeats them.
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout else 0
    settings = _Settings(dropout, seed, weights)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        # The backward pass reads the bias again, and its owner may change it before.
        return _Attend.apply(q, k, v, blocked, None if bias is None else bias.clone(), settings)
    return _forward(q, k, v, blocked, bias, settings)


@dataclass(frozen=True)
class _Settings:
    dropout: float
    seed: int
    weights: Weights

    @property
    def scale(self) -> float:
        """What dropout multiplies the weights that stay with."""
        return 1 / (1 - self.dropout)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None, bias: Tensor | None, settings: _Settings
    ) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, blocked, bias)
        ctx.settings = settings
        output, weights = _forward(q, k, v, blocked, bias, settings)
        if weights is not None and not (q.requires_grad or k.requires_grad):
            ctx.mark_non_differentiable(weights)
        return output, weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # Gradients of gradients, and many gradients at once, come from plain operations.
        plain = torch.is_grad_enabled() or not is_eager(*grads) or any(map(is_batched, grads))
        q, k, v, blocked, bias = ctx.saved_tensors
        backward = _plain_backward if plain else _backward
        return *backward(q, k, v, blocked, bias, ctx.settings, grads[0], grads[1]), None, None, None


@torch.no_grad()
@torch.autocast("cpu", enabled=False)
def _forward(
    q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None, bias: Tensor | None, settings: _Settings
) -> tuple[Tensor, Tensor | None]:
    batch, heads, q_len, _ = q.shape
    output = v.new_empty(batch, q_len, heads, v.shape[3]).transpose(1, 2)  # so that the heads are merged by a view
    shape = {"none": None, "mean": (batch, q_len, k.shape[2]), "heads": (batch, heads, q_len, k.shape[2])}[
        settings.weights
    ]
    weights = None if shape is None else q.new_empty(shape)
    drop = _Dropper(settings)
    for group in _groups(q, k, v, blocked):
        values = RightFactor(group.v)
        for rows in group.blocks():
            p = group.weigh(rows, blocked, bias)
            if settings.dropout:
                p.mul_(drop.next(p))
            if weights is not None:
                by_head = p.unflatten(0, (-1, heads))
                part = weights[group.entries, ..., rows, :]
                if p.shape[-1] < part.shape[-1]:
                    part.zero_()
                part = part[..., group.keys]
                if settings.weights == "heads":
                    part.copy_(by_head).mul_(settings.scale)
                else:  # a mean in bfloat16 takes eight times as long as a sum
                    torch.mul(by_head.sum(1), settings.scale / heads, out=part)
            seen = p.new_empty(*p.shape[:2], v.shape[3])
            values.multiply(p, out=seen)
            output[group.entries, :, rows] = seen.mul_(settings.scale).unflatten(0, (-1, heads))
    return output, weights


@torch.autocast("cpu", enabled=False)
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocked: Tensor | None,
    bias: Tensor | None,
    settings: _Settings,
    grad_output: Tensor | None,
    grad_weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """With P the weights, P' what dropout leaves of them, O the output and W the weights returned:
    dV = P'ᵀ dO, dP' = dO Vᵀ + dW, dS = P (dP - Σ P dP) for each row, dQ = dS K / sqrt(D), dK = dSᵀ Q / sqrt(D)."""
    heads = q.shape[1]
    grad_q, grad_k, grad_v = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    drop = _Dropper(settings)
    scratch = _Scratch(q), _Scratch(q)
    for group in _groups(q, k, v, blocked):
        keys, values_transposed = RightFactor(group.k), RightFactor(group.v.mT)
        dk, dv = k.new_zeros(group.k.shape), v.new_zeros(group.v.shape)
        for rows in group.blocks():
            p = group.weigh(rows, blocked, bias)
            stays = drop.next(p) if settings.dropout else None
            dp, ds = (s.shaped(p.shape) for s in scratch)
            if grad_output is None:
                dp.zero_()
            else:
                do = grad_output[group.entries, :, rows].flatten(0, 1) * settings.scale
                after_dropout = p if stays is None else torch.mul(p, stays, out=dp)
                RightFactor(do).multiply(after_dropout.mT, out=dv, add=True)
                values_transposed.multiply(do, out=dp)
            if grad_weights is not None:
                part = grad_weights[group.entries, ..., rows, group.keys]
                part = part[:, None] / heads if settings.weights == "mean" else part
                dp.unflatten(0, (-1, heads)).add_(part, alpha=settings.scale)
            if stays is not None:
                dp.mul_(stays)
            torch.ops.aten._softmax_backward_data.out(dp, p, -1, p.dtype, grad_input=ds)
            dq = p.new_empty(*p.shape[:2], q.shape[3])
            keys.multiply(ds, out=dq)
            grad_q[group.entries, :, rows] = dq.mul_(group.factor).unflatten(0, (-1, heads))
            RightFactor(group.q[:, rows]).multiply(ds.mT, out=dk, add=True)
        grad_k[group.entries, :, group.keys] = dk.unflatten(0, (-1, heads))
        grad_v[group.entries, :, group.keys] = dv.unflatten(0, (-1, heads))
    return grad_q, grad_k, grad_v


def _plain_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocked: Tensor | None,
    bias: Tensor | None,
    settings: _Settings,
    *grads: Tensor | None,
) -> list[Tensor | None]:
    """The same gradients from plain operations on all the weights."""
    with torch.enable_grad():
        weights = weigh(q, k, keep=None if blocked is None else ~blocked, bias=bias)
        if settings.dropout:
            drop = _Dropper(settings)
            stays = torch.zeros_like(weights)
            for group in _groups(q.detach(), k.detach(), v.detach(), blocked):
                for rows in group.blocks():
                    part = stays[group.entries, :, rows, group.keys]
                    part.copy_(drop.next(part.flatten(0, 1)).view_as(part))
            weights = weights * stays.detach() * settings.scale
        outputs = [weights @ v, weights.mean(1) if settings.weights == "mean" else weights]
    used = [n for n, grad in enumerate(grads) if grad is not None and outputs[n].requires_grad]
    inputs = [x for x in (q, k, v) if x.requires_grad]
    found = torch.autograd.grad(
        [outputs[n] for n in used],
        inputs,
        [grads[n] for n in used],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    by_input = iter(found)
    return [next(by_input) if x.requires_grad else None for x in (q, k, v)]


class _Scratch:
    """Memory that each block uses anew: fresh memory costs as much as computing in it."""

    def __init__(self, like: Tensor) -> None:
        self._memory = like.new_empty(0)

    def shaped(self, shape: torch.Size | tuple[int, ...]) -> Tensor:
        if self._memory.numel() < math.prod(shape):
            self._memory = self._memory.new_empty(math.prod(shape))
        return self._memory[: math.prod(shape)].view(shape)


class _Group:
    """Some entries of the batch, their heads side by side: q (scaled), k, v: (G, length, width); of the keys, those
    from the first to the last that any of the entries may look at."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, entries: slice, keys: slice, rows: int, scratch: _Scratch
    ) -> None:
        self.entries = entries
        self.keys = keys
        self.heads = q.shape[1]
        self.factor = 1 / math.sqrt(q.shape[3])
        self.q = (q[entries] * self.factor).flatten(0, 1)
        self.k, self.v = k[entries, :, keys].flatten(0, 1), v[entries, :, keys].flatten(0, 1)
        if self.k.shape[1] >= _COPY_FROM_KEYS:
            self.k, self.v = self.k.contiguous(), self.v.contiguous()
        self._keys_transposed = RightFactor(self.k.mT)
        self._rows = rows
        self._scratch = scratch

    def blocks(self) -> Iterator[slice]:
        q_len = self.q.shape[1]
        return (slice(start, min(start + self._rows, q_len)) for start in range(0, q_len, self._rows))

    def weigh(self, rows: slice, blocked: Tensor | None, bias: Tensor | None) -> Tensor:
        """softmax of the scores of a block of queries (G, rows, S), in memory that the next block reuses."""
        q = self.q[:, rows]
        p = self._scratch.shaped((*q.shape[:2], self.k.shape[1]))
        self._keys_transposed.multiply(q, out=p)
        by_head = p.unflatten(0, (-1, self.heads))
        bias, blocked = self._part(bias, rows), self._part(blocked, rows)
        if bias is not None:
            by_head.add_(bias)
        if blocked is not None:
            by_head.masked_fill_(blocked, -math.inf)
        torch.softmax(p, -1, out=p)
        if (bias is not None or blocked is not None) and p[..., 0].isnan().any():
            # Rows with every key blocked came out as NaN. Only they become zeros: a NaN of the input's stays.
            nowhere = p.new_zeros(p.shape[-1], dtype=torch.bool) if blocked is None else blocked
            nowhere = nowhere if bias is None else nowhere | (bias == -math.inf)
            by_head.masked_fill_(nowhere.all(-1, keepdim=True), 0.0)
        return p

    def _part(self, mask: Tensor | None, rows: slice) -> Tensor | None:
        """What a mask that broadcasts to (B, H, L, S) says of a block."""
        if mask is None:
            return None
        mask = (mask[self.entries] if mask.shape[0] > 1 else mask)[..., self.keys]
        return mask[:, :, rows] if mask.shape[2] > 1 else mask


def _groups(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None) -> Iterator[_Group]:
    """Short sequences share a block; of long ones a block is some rows."""
    batch, heads, q_len, _ = q.shape
    row_bytes = heads * k.shape[2] * q.element_size()
    rows = max(1, _BLOCK_BYTES // row_bytes, min(_BLOCK_ROWS, _MOST_BLOCK_BYTES // row_bytes))
    entries = min(batch, max(1, rows // q_len))
    scratch = _Scratch(q)
    for start in range(0, batch, entries):
        part = slice(start, min(start + entries, batch))
        yield _Group(q, k, v, part, _open_keys(blocked, part, k.shape[2]), rows, scratch)


def _open_keys(blocked: Tensor | None, entries: slice, k_len: int) -> slice:
    """Without the padding before and after all that these entries may look at; at least one key."""
    if blocked is None or blocked.shape[1] > 1 or blocked.shape[2] > 1:
        return slice(0, k_len)
    part = blocked[entries] if blocked.shape[0] > 1 else blocked
    open_keys = (~part.reshape(-1, k_len).all(0)).nonzero().flatten().tolist()
    return slice(open_keys[0], open_keys[-1] + 1) if open_keys else slice(0, 1)


class _Dropper:
    """Which weights stay (1) or not (0), block after block.

    One random byte decides for each, against a threshold drawn for each row from the two whole numbers around 256 p, so
    that each is dropped with probability p exactly.
    """

    def __init__(self, settings: _Settings) -> None:
        self._generator = torch.Generator("cpu").manual_seed(settings.seed)
        self._below = math.floor(256 * settings.dropout)
        self._more_often = 256 * settings.dropout - self._below
        self._scratch: _Scratch | None = None

    def next(self, p: Tensor) -> Tensor:
        """Like p, in memory that the next block reuses: as numbers, which products with booleans would copy them to."""
        self._scratch = self._scratch or _Scratch(p)
        generator = self._generator
        more = torch.rand(*p.shape[:2], 1, generator=generator, device="cpu") < self._more_often
        words = torch.empty((p.numel() + 7) // 8, dtype=torch.int64, device="cpu")
        words.random_(-(2**63), None, generator=generator)
        bytes_ = words.view(torch.uint8)[: p.numel()].view(p.shape)
        return torch.ge(bytes_, more.to(torch.uint8).add_(self._below), out=self._scratch.shaped(p.shape))
