"""Cross-entropy over the vocabulary with label smoothing (Szegedy et al. 2016, section 7)."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import ArgumentError

# Logits at a time. On a CPU the passes over them should find them in cache; a GPU wants few and large products.
_CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}
# On a CPU, where several passes in a row go over the same logits: as many as stay in a core's own cache.
_BLOCK_ELEMENTS = 1 << 18


def smoothed_cross_entropy(
    states: Float[Tensor, "rows d_model"],
    weight: Float[Tensor, "classes d_model"],
    targets: Int[Tensor, " tokens"],
    *,
    smoothing: float,
    dtype: torch.dtype | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the smoothed loss of logits states @ weightᵀ and the plain negative log-likelihood, summed, in nats.

    loss = (1 - smoothing) * -log p(target) + smoothing * mean over classes of -log p(class)

    States past the targets are a row's filling and have no part in it. At most 8 million logits are held at a time (on
    a GPU 128 million): forward and gradient are one pass. Products are done in `dtype` (default: that of `states`),
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
    """Return the loss of two passes whose dropout differs, and pull them together (R-Drop, Liang et al. 2021).

    loss = mean of both smoothed losses + consistency / 4 * (KL(p || q) + KL(q || p)), p and q the two predictions

    This is half of their equation 3 (section 2.2). The plain negative log-likelihood is the mean of both too. The rest
    is as in `smoothed_cross_entropy`.
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
        raise ArgumentError(f"targets must be at most as many as states, {len(passes[0])}, got {len(targets)}")
    if not torch.is_grad_enabled():  # or the function would still see that they could have one
        passes, weight = [states.detach() for states in passes], weight.detach()
    loss, nll = _ChunkedCrossEntropy.apply(weight, targets, smoothing, consistency, dtype or passes[0].dtype, *passes)
    return loss, nll


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The loss of one pass, or of two that are pulled together."""

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
                    if grad_weight is None and not consistency:
                        log_prob = _exact_softmax(logits[:real].to(exact), target)[1]
                    else:
                        found.append(_softmax(logits, target, exact))
                        log_prob = found[-1].log_prob
                    log_prob_sum += log_prob.sum()
                    normaliser_sum += (picked - log_prob).sum()
                at_targets = [smoothing - prediction.rest for prediction in found]  # p - (1 - smoothing)
                if consistency:
                    distance, pulls = _pull_together(found[0], found[1], target, consistency / 2)
                    apart += distance
                    at_targets = [own + pull for own, pull in zip(at_targets, pulls, strict=True)]
                if grad_weight is None:
                    continue
                learned = zip(found, at_targets, product_passes, grad_passes, strict=True)
                for prediction, at_target, states, grad in learned:
                    error = prediction.probabilities
                    error[_at(target)] = at_target.squeeze(1).to(dtype)
                    error[real:] = 0
                    grad[rows] = error @ product_weight
                    if states.dtype == exact:
                        torch.addmm(grad_weight, error.T, states[rows], out=grad_weight)
                    else:  # a product in bfloat16 can't add to a sum in float32
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
    """Return how many rows are worked on at a time: a power of two, so that few shapes occur (see `Packing`)."""
    return 1 << max(0, (_CHUNK_ELEMENTS["cuda" if device == "cuda" else "cpu"] // classes).bit_length() - 1)


def _at(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return an index of each row's target (scatter_ would pass over all that it leaves as it is)."""
    return torch.arange(len(targets), device=targets.device), targets.squeeze(1)


class _Prediction(NamedTuple):
    """The probabilities that a pass gives to the classes, for some tokens."""

    logits: Tensor
    probabilities: Tensor
    """Probabilities of the classes, zero in the target's place."""
    log_prob: Tensor
    """Log-probability of the targets."""
    rest: Tensor
    """One minus the probability of the targets."""


def _softmax(logits: Tensor, targets: Tensor, exact: torch.dtype) -> _Prediction:
    """Return probabilities in the type of the logits; those of the targets are more exact.

    From bfloat16 to bfloat16 the softmax is one pass, exact inside, but its results are rounded: near 1 by more than
    they differ from it. So what is left to 1 is the sum of the others', and a likely target's log-probability comes
    from that; an unlikely one's is off by up to 0.004, and at least -87.
    """
    if logits.dtype != torch.bfloat16:
        probabilities, log_prob = _exact_softmax(logits.to(exact), targets)
        probabilities = probabilities.to(logits.dtype)
        probabilities[_at(targets)] = 0.0
        return _Prediction(logits, probabilities, log_prob, -log_prob.expm1())
    probabilities = logits.softmax(1)
    of_targets = probabilities[: len(targets)].gather(1, targets).to(exact)
    probabilities[_at(targets)] = 0.0
    others = probabilities[: len(targets)].sum(1, keepdim=True).to(exact).clamp_(max=1.0)
    log_prob = of_targets.clamp_(min=torch.finfo(torch.bfloat16).smallest_normal).log_()
    return _Prediction(logits, probabilities, torch.where(others < 0.5, torch.log1p(-others), log_prob), others)


def _exact_softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities of the classes, and the log-probability of each target; further rows are filling.

    log p(target) = its logit - the largest logit + log of the largest probability. That probability is at least
    1 / classes, so its log is exact. The log-probabilities of all classes would take a CPU twice as long.
    """
    probabilities = logits.softmax(1)
    rows = slice(len(targets))
    behind = logits[rows].gather(1, targets) - logits[rows].amax(1, keepdim=True)
    return probabilities, behind + probabilities[rows].amax(1, keepdim=True).log()


def _pull_together(first: _Prediction, second: _Prediction, targets: Tensor, by: float) -> tuple[Tensor, list[Tensor]]:
    """Return KL(p || q) + KL(q || p), summed, and `by` times its gradient at the targets.

    The rest of the gradient, `by` times too, is added to the probabilities of both in place.

    With d = the logits of p - those of q it is the sum of (p - q) d, and its gradient to the logits of p is
    p (d - the mean of d under p) + p - q, to those of q the same with the opposite sign and q's mean.
    """
    total = torch.zeros((), dtype=first.rest.dtype, device=first.rest.device)
    pulls = torch.empty(2, *first.rest.shape, dtype=total.dtype, device=total.device)
    classes = first.logits.shape[1]
    size = max(1, _BLOCK_ELEMENTS // classes) if total.device.type == "cpu" else len(targets)
    for begin in range(0, len(targets), size):
        rows = slice(begin, min(begin + size, len(targets)))
        p, q = first.probabilities[rows], second.probabilities[rows]
        apart = first.logits[rows] - second.logits[rows]
        at_target = apart.gather(1, targets[rows]).to(total.dtype)
        seen_by_p, seen_by_q = p * apart, q * apart
        means = [
            seen.sum(1, keepdim=True, dtype=total.dtype) + prediction.log_prob[rows].exp() * at_target
            for seen, prediction in ((seen_by_p, first), (seen_by_q, second))
        ]
        total += (means[0] - means[1]).sum()
        rest_p, rest_q = first.rest[rows], second.rest[rows]
        pulls[0, rows] = by * ((1 - rest_p) * (at_target - means[0]) + rest_q - rest_p)
        pulls[1, rows] = by * ((1 - rest_q) * (means[1] - at_target) + rest_p - rest_q)
        seen_by_p.sub_(q)
        seen_by_q.add_(p)
        p.mul_((1 + by * (1 - means[0])).to(p.dtype)).add_(seen_by_p, alpha=by)
        q.mul_((1 + by * (1 + means[1])).to(q.dtype)).sub_(seen_by_q, alpha=by)
    return total, list(pulls)
