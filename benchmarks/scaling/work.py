"""Counts of what an update computes: operations of products, numbers passed over, weights, Muon's products."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.attention.kernels.short import KEYS_AT_ONCE
from glassformer.attention.packing import row_length
from glassformer.training.muon import POLYNOMIALS
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import weight_shapes

ENCODER_CALLS, DECODER_CALLS = 2, 3
"""Sub-layers of a layer: attention and feed-forward, and in the decoder attention to the source."""


@dataclass(frozen=True)
class Rows:
    """Sizes of the part of a batch that one process works on."""

    source: float
    """Positions of the row of sources, filling included."""
    target: float
    """Positions of the row of targets, filling included."""
    source_scores: float
    """Scores of a head of the encoder's attention."""
    target_scores: float
    """Scores of a head of the decoder's attention to the target."""
    cross_scores: float
    """Scores of a head of the decoder's attention to the source."""

    @classmethod
    def of(cls, source: Sequence[int], target: Sequence[int]) -> "Rows":
        """Return the sizes for pairs of these lengths in tokens, as training packs them."""
        pairs, longest_source, longest_target = len(source), max(source), max(target)
        source_keys, target_keys = (-(-n // KEYS_AT_ONCE) * KEYS_AT_ONCE for n in (longest_source, longest_target))
        return cls(
            source=row_length(sum(source)),
            target=row_length(sum(target)),
            source_scores=pairs * longest_source * source_keys,
            target_scores=pairs * longest_target * target_keys,
            cross_scores=pairs * longest_target * source_keys,
        )

    @classmethod
    def alike(cls, tokens: float, length: float) -> "Rows":
        """Return the sizes for so many tokens a side, in sentences of one length."""
        return cls(tokens, tokens, tokens * length, tokens * length, tokens * length)


@dataclass(frozen=True)
class Work:
    """Amounts of work of an update up to its gradients."""

    calls: float
    """Sub-layers: each costs its operators' start, however small they are."""
    products: float
    """Multiplications and additions of the linear maps and the output, forward and backward."""
    hidden: float
    """Numbers of hidden states, counted once for each sub-layer: sums, norms and dropout pass over them."""
    inside: float
    """Numbers inside sub-layers: queries, keys, values, attention's results, and the feed-forward layer's inside."""
    scores: float
    """Attention scores of all heads."""
    logits: float
    """Logits of all tokens."""
    weights: float
    """Weights: cast, their gradients set to zero, measured and clipped."""


NO_WORK = Work(calls=0, products=0, hidden=0, inside=0, scores=0, logits=0, weights=0)


@dataclass(frozen=True)
class OptimizerWork:
    """Amounts of work of a step of the optimizer."""

    products: float
    """Multiplications and additions of Muon's products."""
    matrices: float
    """Matrices that Muon steps along."""
    muon: float
    """Weights of Muon."""
    adam: float
    """Weights of Adam."""


def count_work(config: ModelConfig, rows: Rows) -> Work:
    """Return the work of an update on a batch of these sizes.

    A product of the forward pass has two of its size in the backward pass, so that each weight of a linear map costs
    six operations a token (Kaplan et al. 2020, section 2.1).
    """
    d, ff = config.d_model, config.d_ff
    encoder = config.encoder_layers * rows.source * (4 * d * d + 2 * d * ff)
    decoder = config.decoder_layers * (rows.target * (6 * d * d + 2 * d * ff) + rows.source * 2 * d * d)
    output = rows.target * config.target_pad * d
    hidden = config.encoder_layers * rows.source * ENCODER_CALLS * d
    hidden += config.decoder_layers * rows.target * DECODER_CALLS * d
    inside = config.encoder_layers * rows.source * (4 * d + ff)
    inside += config.decoder_layers * (rows.target * (6 * d + ff) + rows.source * 2 * d)
    scores = config.encoder_layers * rows.source_scores
    scores += config.decoder_layers * (rows.target_scores + rows.cross_scores)
    return Work(
        calls=ENCODER_CALLS * config.encoder_layers + DECODER_CALLS * config.decoder_layers,
        products=6 * (encoder + decoder + output),
        hidden=hidden,
        inside=inside,
        scores=config.heads * scores,
        logits=rows.target * config.target_pad,
        weights=count_weights(config),
    )


def count_weights(config: ModelConfig) -> int:
    """Return how many weights a model has; tied ones count once."""
    return sum(map(math.prod, weight_shapes(config).values()))


def muon_matrices(config: ModelConfig) -> list[tuple[int, int, int]]:
    """Return each parameter that Muon takes: its rows, its columns, and the matrices that lie in it."""
    return [
        (shape[0], shape[1], 3 if name.endswith("in_proj_weight") else 1)
        for name, shape in weight_shapes(config).items()
        if len(shape) == 2 and "embedding" not in name and not name.startswith("output")
    ]


def muon_products(config: ModelConfig, polynomials: int = len(POLYNOMIALS)) -> float:
    """Return the multiplications and additions of so many polynomials of Muon.

    For a matrix of r rows and c columns, r the smaller, each multiplies r x c by c x r, r x r by r x r, and
    r x r by r x c.
    """
    total = 0.0
    for rows, columns, parts in muon_matrices(config):
        short, long = sorted((rows // parts, columns))
        total += parts * polynomials * 2 * (2 * short * short * long + short**3)
    return total


def count_optimizer_work(config: ModelConfig, optimizer: str, polynomials: int = len(POLYNOMIALS)) -> OptimizerWork:
    """Return the work of a step of this optimizer, muon or adam."""
    weights = count_weights(config)
    if optimizer == "adam":
        return OptimizerWork(products=0, matrices=0, muon=0, adam=weights)
    matrices = muon_matrices(config)
    taken = sum(rows * columns for rows, columns, _ in matrices)
    parts = sum(parts for _, _, parts in matrices)
    return OptimizerWork(products=muon_products(config, polynomials), matrices=parts, muon=taken, adam=weights - taken)
