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
    return _summed([states], weight, targets, smoothing, 0.0, dtype)


def consistent_cross_entropy(
    first: Float[Tensor, "rows d_model"],
    second: Float[Tensor, "rows d_model"],
    weight: Float[Tensor, "classes d_model"],
    targets: Int[Tensor, " tokens"],
    *,
    smoothing: float,
    consistency: float,
    dtype: torch.dtype | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The loss of two passes over the same targets, whose dropout differs, and how far apart they are (R-Drop, Liang et
    al. 2021, section 2.2: half of equation 3).

    loss = mean of both smoothed losses + consistency / 4 * (KL(p || q) + KL(q || p)), p and q the two predictions

    The plain negative log-likelihood is the mean of both too. All else as in `smoothed_cross_entropy`.
    """
    return _summed([first, second], weight, targets, smoothing, consistency, dtype)


def _summed(
    passes: list[Tensor],
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    consistency: float,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    if len(targets) > len(passes[0]):
        raise ValueError(f"targets must be at most as many as states, {len(passes[0])}, got {len(targets)}")
    if not torch.is_grad_enabled():  # or the function would still see that they could have one
        passes, weight = [states.detach() for states in passes], weight.detach()
    loss, nll = _ChunkedCrossEntropy.apply(weight, targets, smoothing, consistency, dtype or passes[0].dtype, *passes)
    return loss, nll


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Of one pass, or of two that are also pulled together."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        consistency: float,
        dtype: torch.dtype,
        *passes: Tensor,
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(passes[0].dtype, torch.float32)
        device = weight.device
        learning = any(ctx.needs_input_grad)
        product_weight, product_passes = weight.to(dtype), [states.to(dtype) for states in passes]
        grad_passes = [torch.empty_like(states, dtype=exact) for states in passes if learning]
        grad_weight = torch.zeros_like(weight, dtype=exact) if learning else None
        log_prob_sum, normaliser_sum, apart = torch.zeros(3, dtype=exact, device=device)
        of_class = smoothing / len(weight)
        size = _chunk_rows(len(weight), device.type)
        with torch.autocast(device.type, enabled=False):
            weight_sum = weight.to(exact).sum(0)
            for begin in range(0, len(passes[0]), size):
                rows = slice(begin, begin + size)
                target = targets[rows, None]
                real = len(target)
                found = []
                for states in product_passes:
                    logits = states[rows] @ product_weight.T
                    picked = logits[:real].gather(1, target).to(exact)
                    if grad_weight is None:
                        log_prob = logits[:real].to(exact).log_softmax(1).gather(1, target)
                    else:
                        found.append((logits, *_softmax(logits, target, exact)))
                        log_prob = found[-1][2]
                    log_prob_sum += log_prob.sum()
                    normaliser_sum += (picked - log_prob).sum()
                if grad_weight is None:
                    continue
                errors = [probabilities for _, probabilities, _, _ in found]
                at_targets = [smoothing - rest for *_, rest in found]  # p - (1 - smoothing)
                if consistency:
                    distance = _pull_together(errors, at_targets, found, target, consistency)
                    apart += distance
                for error, at_target, states, grad in zip(errors, at_targets, product_passes, grad_passes, strict=True):
                    error[_at(target)] = at_target.squeeze(1).to(dtype)
                    error[real:] = 0
                    grad[rows] = error @ product_weight
                    grad_weight += error.T @ states[rows]
            # -log p(class) = normaliser - its logit; the logits of all classes sum up to state . (sum of weights)
            state_sum = torch.stack([states[: len(targets)].to(exact).sum(0) for states in product_passes]).sum(0)
            loss = smoothing * normaliser_sum - of_class * (state_sum @ weight_sum) - (1 - smoothing) * log_prob_sum
            for grad in grad_passes:
                grad[: len(targets)] -= of_class * weight_sum
            if grad_weight is not None:
                grad_weight -= of_class * state_sum
        ctx.save_for_backward(grad_weight, *grad_passes)
        nll = -log_prob_sum / len(passes)
        ctx.mark_non_differentiable(nll)
        return loss / len(passes) + consistency / 4 * apart, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_weight, *grad_passes = ctx.saved_tensors
        scale = grads[0] / len(grad_passes)
        return grad_weight * scale, None, None, None, None, *(grad * scale for grad in grad_passes)


def _chunk_rows(classes: int, device: str) -> int:
    """A power of two, so that few shapes of products occur (see `Packing`)."""
    return 1 << max(0, (_CHUNK_ELEMENTS["cuda" if device == "cuda" else "cpu"] // classes).bit_length() - 1)


def _at(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's target, as an index (scatter_ passes over all that it leaves as it is)."""
    return torch.arange(len(targets), device=targets.device), targets.squeeze(1)


def _softmax(logits: Tensor, targets: Tensor, exact: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities in the type of the logits, and each target's log-probability and 1 - probability.

    The target's own place among the probabilities is zero: what stands there is the caller's.

    From bfloat16 to bfloat16 the softmax is one pass, exact inside, but its results are rounded: near 1 by more than
    they differ from it. So what is left to 1 is the sum of the others', and a likely target's log-probability comes
    from that; an unlikely one's is off by up to 0.004, and at least -87.
    """
    if logits.dtype != torch.bfloat16:
        log_probs = logits.to(exact).log_softmax(1)
        log_prob = log_probs[: len(targets)].gather(1, targets)
        probabilities = log_probs.exp_().to(logits.dtype)
        probabilities[_at(targets)] = 0.0
        return probabilities, log_prob, -log_prob.expm1()
    probabilities = logits.softmax(1)
    of_targets = probabilities[: len(targets)].gather(1, targets).to(exact)
    probabilities[_at(targets)] = 0.0
    others = probabilities[: len(targets)].sum(1, keepdim=True).to(exact).clamp_(max=1.0)
    log_prob = of_targets.clamp_(min=torch.finfo(torch.bfloat16).smallest_normal).log_()
    return probabilities, torch.where(others < 0.5, torch.log1p(-others), log_prob), others


def _pull_together(
    errors: list[Tensor],
    at_targets: list[Tensor],
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]],
    targets: Tensor,
    consistency: float,
) -> Tensor:
    """KL(p || q) + KL(q || p), summed; twice its gradient, consistency / 4 times, is added to the two errors.

    With d = the logits of p - those of q it is the sum of (p - q) d, and its gradient to the logits of p is
    p (d - the mean of d under p) + p - q.
    """
    real = len(targets)
    (logits_p, p, log_p, rest_p), (logits_q, q, log_q, rest_q) = found
    apart = (logits_p - logits_q)[:real]
    p, q = p[:real], q[:real]
    at_target = apart.gather(1, targets).to(log_p.dtype)
    half = consistency / 2
    total = torch.zeros((), dtype=log_p.dtype, device=log_p.device)
    pulled = []
    for mine, other, log, rest, other_rest, sign, n in (
        (p, q, log_p, rest_p, rest_q, 1, 0),
        (q, p, log_q, rest_q, rest_p, -1, 1),
    ):
        mean = (mine * apart).sum(1, keepdim=True, dtype=log.dtype) + log.exp() * at_target
        total += sign * mean.sum()
        error = mine * (1 + half - sign * half * mean).to(mine.dtype)
        error.addcmul_(mine, apart, value=sign * half).add_(other, alpha=-half)
        pulled.append(error)
        at_targets[n] = at_targets[n] + half * (sign * (1 - rest) * (at_target - mean) + other_rest - rest)
    for error, new in zip(errors, pulled, strict=True):
        error[:real] = new
    return total
