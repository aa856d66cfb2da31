"""Cross-entropy over the vocabulary with label smoothing (Szegedy et al. 2016, section 7)."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Logits of one chunk: small enough that the passes over them find them in cache.
_CHUNK_ELEMENTS = 1 << 22


def smoothed_cross_entropy(
    states: Float[Tensor, "tokens d_model"],
    weight: Float[Tensor, "classes d_model"],
    targets: Int[Tensor, " tokens"],
    *,
    smoothing: float,
    dtype: torch.dtype | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The smoothed loss of logits states @ weightᵀ, and the plain negative log-likelihood, both summed, in nats.

    loss = (1 - smoothing) * -log p(target) + smoothing * mean over classes of -log p(class)

    Never holds tokens x classes numbers: chunk by chunk, forward and gradient in one pass. The products are done in
    `dtype` (default: that of `states`), everything else in float32 or better. Only the loss has a gradient.
    """
    loss, nll = _ChunkedCrossEntropy.apply(states, weight, targets, smoothing, dtype or states.dtype)
    return loss, nll


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        classes = weight.shape[0]
        exact = torch.promote_types(states.dtype, torch.float32)
        product_weight = weight.to(dtype)
        needs_grad = any(ctx.needs_input_grad[:2])
        grad_states = torch.empty_like(states) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if needs_grad else None
        loss = torch.zeros((), dtype=exact, device=states.device)
        nll = torch.zeros_like(loss)
        rest = smoothing / classes
        with torch.autocast(states.device.type, enabled=False):
            for begin in range(0, len(states), max(1, _CHUNK_ELEMENTS // classes)):
                rows = slice(begin, begin + max(1, _CHUNK_ELEMENTS // classes))
                chunk = states[rows].to(dtype)
                logits = (chunk @ product_weight.T).to(exact)
                picked = logits.gather(1, targets[rows, None]).sum()
                everything = logits.sum() if smoothing else picked
                peak = logits.amax(dim=1, keepdim=True)
                probabilities = logits.sub_(peak).exp_()
                total = probabilities.sum(dim=1, keepdim=True)
                normaliser = (peak + total.log()).sum()
                nll += normaliser - picked
                loss += normaliser - (1 - smoothing) * picked - rest * everything
                if grad_states is not None and grad_weight is not None:
                    product = probabilities.div_(total).to(dtype)
                    grad_states[rows] = product @ product_weight
                    grad_weight += product.T @ chunk
            if grad_states is not None and grad_weight is not None:
                # d loss / d logits = p - (1 - smoothing) [target] - smoothing / classes; the last two, exactly:
                grad_states -= (1 - smoothing) * weight[targets] + rest * weight.sum(dim=0)
                grad_weight.index_add_(0, targets, states.to(exact), alpha=smoothing - 1)
                grad_weight -= rest * states.to(exact).sum(dim=0)
        ctx.mark_non_differentiable(nll)
        ctx.save_for_backward(grad_states, grad_weight)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_states, grad_weight = ctx.saved_tensors
        return grad_states * grads[0], grad_weight * grads[0], None, None, None
