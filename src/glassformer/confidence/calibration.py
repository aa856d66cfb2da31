"""A calibration: the few numbers that make probabilities of a translation's words honest, and how honest they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor

from glassformer.confidence.features import FEATURES, Looking
from glassformer.decoding import Natural
from glassformer.errors import ArgumentError, RunError
from glassformer.run.fitted import Fitted, read_fitted, write_fitted
from glassformer.run.names import CALIBRATION
from glassformer.transformer.config import ModelConfig

BINS = 15
"""Bins of the expected calibration error."""
RIDGE = 1.0
"""Weight of half the squared parameters in the fit; features have a variance of 1 there."""
LEAST_SPREAD = 1e-3
"""A feature with a smaller standard deviation counts as always the same: its weight could be beyond all bounds."""
_ROUNDS = 100
Parameter = Annotated[float, Meta(ge=-1e6, le=1e6)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Calibration(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The calibration of a run's words, as the run folder keeps it.

    A word is right with the probability sigmoid(bias + weights · features). Example: docs/howto/confidence.md.
    """

    weights: Annotated[tuple[Parameter, ...], Meta(min_length=len(FEATURES), max_length=len(FEATURES))]
    """One for each of `features.FEATURES`."""
    bias: Parameter
    temperature: Annotated[float, Meta(gt=0, le=1e6)]
    """The one number of temperature scaling alone, sigmoid(logit / temperature), for comparison."""
    layer: Natural
    """Layer of the decoder whose attention to the source is looked at, counted from 0."""
    heads: Annotated[tuple[Natural, ...], Meta(min_length=1, max_length=1024)]
    """Heads of that attention; their mean is taken."""
    shift: Annotated[int, Meta(ge=0, le=1)]
    """The decoder state whose attention counts. 0: the one that writes a token; 1: the one that reads it."""
    omitted_below: Annotated[float, Meta(ge=0, le=1e6)]
    """A source word that gets less attention than this, in tokens of the translation, counts as left out."""
    omissions_found: Share
    """In the fit: of the source words whose counterpart was taken out of the translation, the share that was named as
    left out."""
    false_alarms: Share
    """In the fit: of the other source words, the share that was named as left out too."""
    lines: Natural
    """Number of pairs that the calibration was fitted on."""
    words: Natural
    """Number of words in the translations of these pairs."""
    right: Share
    """Share of these words that are right."""

    @property
    def looking(self) -> Looking:
        """The heads whose attention is looked at."""
        return Looking(self.layer, self.heads, self.shift)

    def probabilities(self, features: Float[Tensor, "words features"]) -> Float[Tensor, " words"]:
        """Return how likely each word is right."""
        return (features.double() @ torch.tensor(self.weights, dtype=torch.float64) + self.bias).sigmoid()


def write_calibration(folder: str | Path, calibration: Calibration) -> None:
    """Keep a calibration in a run folder, for the weights that it has now. Example: docs/howto/confidence.md."""
    write_fitted(Path(folder) / CALIBRATION, calibration)


def read_calibration(folder: str | Path, model: ModelConfig) -> Calibration | None:
    """Return the calibration that a run folder keeps; None where there is none for its weights, as after more training.

    Raises RunError if it is not of this model.
    """
    path = Path(folder) / CALIBRATION
    calibration = read_fitted(path, Calibration)
    if calibration is None:
        return None
    attention = f"decoder.{calibration.layer}.source_attention"
    known = model.heads_of(attention) if calibration.layer < model.decoder_layers else 0
    if max(calibration.heads) >= known:
        raise RunError(
            f"{path} names head {max(calibration.heads)} of {attention}, which this model lacks: fit it again with "
            "glassformer evaluate RUN --fit-calibration"
        )
    return calibration


def fit_logistic(
    features: Float[Tensor, "words features"], right: Float[Tensor, " words"]
) -> tuple[Float[Tensor, " features"], float]:
    """Return the weights and the bias of the likeliest logistic regression, by Newton's method in float64.

    Features are brought to a variance of 1, and a small ridge keeps weights finite where a feature tells all or is
    always the same.
    """
    x = features.double()
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > LEAST_SPREAD, scale, torch.ones_like(scale))
    design = torch.cat([(x - mean) / scale, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    ridge = torch.full((design.shape[1],), RIDGE, dtype=torch.float64)
    ridge[-1] = 1e-6
    found = _newton(design, right.double(), ridge)
    weights = found[:-1] / scale
    return weights, float(found[-1] - weights @ mean)


def fit_temperature(logits: Float[Tensor, " words"], right: Float[Tensor, " words"]) -> float:
    """Return the temperature T by which sigmoid(logit / T) is likeliest (Guo et al. 2017); 1e6 where none helps."""
    found = _newton(logits.double()[:, None], right.double(), torch.full((1,), 1e-6, dtype=torch.float64))
    return 1 / max(1e-6, float(found[0]))


def _newton(
    design: Float[Tensor, "words parameters"], right: Float[Tensor, " words"], ridge: Float[Tensor, " parameters"]
) -> Float[Tensor, " parameters"]:
    """Return the minimum of the logistic loss and the ridge; a step that makes it larger is halved."""

    def loss(parameters: Tensor) -> float:
        z = design @ parameters
        return float((torch.nn.functional.softplus(z) - right * z).sum() + (ridge * parameters**2).sum() / 2)

    parameters = torch.zeros(design.shape[1], dtype=torch.float64)
    best = loss(parameters)
    for _ in range(_ROUNDS):
        p = (design @ parameters).sigmoid()
        slope = design.T @ (p - right) + ridge * parameters
        step = torch.linalg.solve(design.T @ (design * (p * (1 - p))[:, None]) + ridge.diag(), slope)
        while (after := loss(parameters - step)) > best and float(step.abs().max()) > 1e-12:
            step = step / 2
        parameters, gain, best = parameters - step, best - after, after
        if gain < 1e-9:
            break
    return parameters


class Bin(NamedTuple):
    """Words whose probabilities are alike."""

    size: int
    probability: float
    """Mean of their probabilities."""
    right: float
    """Share of them that is right."""


def reliability(probabilities: Sequence[float], right: Sequence[float | int], bins: int = BINS) -> list[Bin]:
    """Return the bins of equal width from 0 to 1 that hold any word; in each, what was said beside what is.

    `right` is 1 or 0 of a word, and may be the share of a line's words that are right.

    >>> reliability([0.1, 0.9, 0.7], [0, 1, 0], bins=2)
    [Bin(size=1, probability=0.1, right=0.0), Bin(size=2, probability=0.8, right=0.5)]
    """
    if len(probabilities) != len(right) or not right:
        raise ArgumentError(
            f"probabilities and right must be of the same words, at least one, got {len(probabilities)}, {len(right)}"
        )
    p, r = torch.tensor(probabilities, dtype=torch.float64), torch.tensor(right, dtype=torch.float64)
    for name, values in (("probabilities", p), ("right", r)):
        if not bool(((values >= 0) & (values <= 1)).all()):  # nor is NaN
            wrong = next(float(value) for value in values if not 0 <= value <= 1)
            raise ArgumentError(f"{name} must be from 0 to 1, got {wrong}")
    place = (p * bins).long().clamp(0, bins - 1)
    counts = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, torch.ones_like(p))
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, place, values) for values in (p, r)]
    return [
        Bin(int(count), float(said / count), float(true / count))
        for count, said, true in zip(counts, *sums, strict=True)
        if count
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error (Naeini et al. 2015): the mean distance of what was said from what is.

    >>> round(calibration_error([Bin(1, 0.1, 0.0), Bin(2, 0.8, 0.5)]), 4)  # (1 * 0.1 + 2 * 0.3) / 3
    0.2333
    """
    if not bins:
        raise ArgumentError("bins must be what reliability returns, at least one, got none")
    return sum(one.size * abs(one.probability - one.right) for one in bins) / sum(one.size for one in bins)
