"""Cross-entropy over the vocabulary with label smoothing (Szegedy et al. 2016, section 7)."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Logits of one chunk: small enough that the passes over them find them in cache.
_CHUNK_ELEMENTS = 1 << 23


def smoothed_cross_entropy(
    states: Float[Tensor, "rows d_model"],
    weight: Float[Tensor, "classes d_model"],
    targets: Int[Tensor, " tokens"],
    *,
    smoothing: float,
    dtype: torch.dtype | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The smoothed loss of logits states @ weightᵀ, and the plain negative log-likelihood, both summed, in nats.

    loss = (1 - smoothing) * -log p(target) + smoothing * mean over classes of -log p(class)

    States past the targets are a row's filling: they have no part in it. Never holds tokens x classes numbers: chunk by
    chunk, forward and gradient in one pass. The products are done in
    `dtype` (default: that of `states`), everything else in float32 or better. Only the loss has a gradient.
    """
    if not torch.is_grad_enabled():
        states, weight = states.detach(), weight.detach()  # or the function would still see that they could have one
    loss, nll = _ChunkedCrossEntropy.apply(states, weight, targets, smoothing, dtype or states.dtype)
    return loss, nll


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(states.dtype, torch.float32)
        product_weight, product_states = weight.to(dtype), states.to(dtype)
        needs_grad = any(ctx.needs_input_grad[:2])
        grad_states = torch.empty_like(states, dtype=exact) if needs_grad else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if needs_grad else None
        loss = torch.zeros((), dtype=exact, device=states.device)
        nll = torch.zeros_like(loss)
        of_class = smoothing / len(weight)
        with torch.autocast(states.device.type, enabled=False):
            weight_sum = weight.to(exact).sum(0)
            size = _chunk_rows(len(weight))
            for begin in range(0, len(states), size):
                rows = slice(begin, begin + size)
                chunk, target = product_states[rows], targets[rows, None]
                logits, real = chunk @ product_weight.T, len(target)
                picked = logits[:real].gather(1, target).to(exact)
                probabilities, log_prob = _softmax(logits, target, needs_grad, exact)
                nll -= log_prob.sum()
                # -log p(class) = normaliser - its logit; the logits of all classes sum up to state . (sum of weights)
                normalisers = (picked - log_prob).sum()
                every_logit = (chunk[:real].to(exact) @ weight_sum).sum()
                loss += smoothing * normalisers - of_class * every_logit - (1 - smoothing) * log_prob.sum()
                if grad_states is not None and grad_weight is not None:
                    probabilities[real:] = 0
                    grad_states[rows] = probabilities @ product_weight
                    grad_weight += probabilities.T @ chunk
            if grad_states is not None and grad_weight is not None:
                # d loss / d logits = p - (1 - smoothing) [target] - smoothing / classes; the last two, exactly:
                real = len(targets)
                grad_states[:real] -= (1 - smoothing) * weight[targets] + of_class * weight_sum
                grad_weight.index_add_(0, targets, states[:real].to(exact), alpha=smoothing - 1)
                grad_weight -= of_class * states[:real].to(exact).sum(dim=0)
        ctx.mark_non_differentiable(nll)
        ctx.save_for_backward(grad_states, grad_weight)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_states, grad_weight = ctx.saved_tensors
        return grad_states * grads[0], grad_weight * grads[0], None, None, None


def _chunk_rows(classes: int) -> int:
    """A power of two, so that few shapes of products occur (see `Packing`)."""
    return 1 << max(0, (_CHUNK_ELEMENTS // classes).bit_length() - 1)


def _softmax(logits: Tensor, targets: Tensor, needs_grad: bool, exact: torch.dtype) -> tuple[Tensor, Tensor]:
    """Probabilities in the type of the logits, and each target's log-probability.

    From bfloat16 to bfloat16 the softmax is one pass, exact inside; a target's log-probability is then that of a
    rounded number (+-0.004), at least -87. Where only the loss is wanted, it is exact.
    """
    if logits.dtype in (torch.bfloat16, torch.float16) and needs_grad:
        probabilities = logits.softmax(1)
        least = torch.finfo(logits.dtype).smallest_normal
        of_targets = probabilities[: len(targets)].gather(1, targets)
        return probabilities, of_targets.to(exact).clamp_(min=least).log_()
    log_probs = logits.to(exact).log_softmax(1)
    log_prob = log_probs[: len(targets)].gather(1, targets)
    return log_probs.exp_().to(logits.dtype) if needs_grad else log_probs, log_prob
