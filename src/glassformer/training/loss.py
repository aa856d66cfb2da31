"""Cross-entropy over the vocabulary with label smoothing (Szegedy et al. 2016, section 7)."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Logits at a time. On a CPU the passes over them should find them in cache; a GPU wants few and large products.
_CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}


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

    States past the targets are a row's filling: they have no part in it. Holds at most 8 million logits at a time (on a
    GPU 128 million), forward and gradient in one pass. The products are done in `dtype` (default: that of `states`),
    sums in float32 or better. Only the loss has a gradient.
    """
    if len(targets) > len(states):
        raise ValueError(f"targets must be at most as many as states, {len(states)}, got {len(targets)}")
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
        grad_states = grad_weight = None
        if any(ctx.needs_input_grad[:2]):
            grad_states, grad_weight = torch.empty_like(states, dtype=exact), torch.zeros_like(weight, dtype=exact)
        log_prob_sum, normaliser_sum = torch.zeros(2, dtype=exact, device=states.device)
        of_class = smoothing / len(weight)
        size = _chunk_rows(len(weight), states.device.type)
        with torch.autocast(states.device.type, enabled=False):
            weight_sum = weight.to(exact).sum(0)
            for begin in range(0, len(states), size):
                rows = slice(begin, begin + size)
                chunk, target = product_states[rows], targets[rows, None]
                logits, real = chunk @ product_weight.T, len(target)
                picked = logits[:real].gather(1, target).to(exact)
                if grad_states is None or grad_weight is None:
                    log_prob = logits[:real].to(exact).log_softmax(1).gather(1, target)
                else:
                    error, log_prob, rest = _softmax(logits, target, exact)
                    error[_at(target)] = (smoothing - rest).squeeze(1).to(dtype)  # p - (1 - smoothing)
                    error[real:] = 0
                    grad_states[rows] = error @ product_weight
                    grad_weight += error.T @ chunk
                log_prob_sum += log_prob.sum()
                normaliser_sum += (picked - log_prob).sum()
            # -log p(class) = normaliser - its logit; the logits of all classes sum up to state . (sum of weights)
            state_sum = product_states[: len(targets)].to(exact).sum(0)
            loss = smoothing * normaliser_sum - of_class * (state_sum @ weight_sum) - (1 - smoothing) * log_prob_sum
            if grad_states is not None and grad_weight is not None:
                grad_states[: len(targets)] -= of_class * weight_sum
                grad_weight -= of_class * state_sum
        ctx.save_for_backward(grad_states, grad_weight)
        nll = -log_prob_sum
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_states, grad_weight = ctx.saved_tensors
        return grad_states * grads[0], grad_weight * grads[0], None, None, None


def _chunk_rows(classes: int, device: str) -> int:
    """A power of two, so that few shapes of products occur (see `Packing`)."""
    return 1 << max(0, (_CHUNK_ELEMENTS["cuda" if device == "cuda" else "cpu"] // classes).bit_length() - 1)


def _at(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's target, as an index (scatter_ passes over all that it leaves as it is)."""
    return torch.arange(len(targets), device=targets.device), targets.squeeze(1)


def _softmax(logits: Tensor, targets: Tensor, exact: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities in the type of the logits, and each target's log-probability and 1 - probability.

    From bfloat16 to bfloat16 the softmax is one pass, exact inside, but its results are rounded: near 1 by more than
    they differ from it. So what is left to 1 is the sum of the others', and a likely target's log-probability comes
    from that; an unlikely one's is off by up to 0.004, and at least -87.
    """
    if logits.dtype != torch.bfloat16:
        log_probs = logits.to(exact).log_softmax(1)
        log_prob = log_probs[: len(targets)].gather(1, targets)
        return log_probs.exp_().to(logits.dtype), log_prob, -log_prob.expm1()
    probabilities = logits.softmax(1)
    of_targets = probabilities[: len(targets)].gather(1, targets).to(exact)
    probabilities[_at(targets)] = 0.0
    others = probabilities[: len(targets)].sum(1, keepdim=True).to(exact).clamp_(max=1.0)
    log_prob = of_targets.clamp_(min=torch.finfo(torch.bfloat16).smallest_normal).log_()
    return probabilities, torch.where(others < 0.5, torch.log1p(-others), log_prob), others
