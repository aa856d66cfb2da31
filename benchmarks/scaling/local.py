"""Predictions for processes on this machine, which share its cores, from constants measured on one process alone."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from glassformer.training.muon import POLYNOMIALS
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import weight_shapes
from scaling.cases import BURDEN, LONGEST, SHORTEST, Case
from scaling.memory import FLOAT, count_memory
from scaling.waiting import largest_of
from scaling.work import OptimizerWork, Rows, Work, count_optimizer_work, count_weights, count_work, muon_matrices

MEAN_LENGTH = (SHORTEST + LONGEST) / 2
"""Tokens of a sentence of the generated pairs."""
BUCKETS = 1 << 20, 25 << 20
"""Bytes of the first and of each further part of the gradients that torch's DDP sums at once."""
BEFORE = 5
"""Polynomials that Muon had when records didn't say how many."""
SMALL_MESSAGES = 2
"""All-reduces of a few bytes in an update: the loss, and what the loop agrees on."""


@dataclass(frozen=True)
class Constants:
    """Costs of one process on one core, and what several processes tell each other, all measured."""

    update: Mapping[str, float]
    """Seconds for each amount of `Work`."""
    optimizer: Mapping[str, float]
    """Seconds for each amount of `OptimizerWork`."""
    replicated: Mapping[str, float]
    """Seconds that DDP adds where there is nobody else, for each amount of `wrapping`."""
    sharded: Mapping[str, float]
    """The same of FSDP2."""
    noise: float
    """Standard deviation of an update's time about its mean, as a share of it."""
    messages: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
    """Bytes and seconds by number of processes and kind of message."""
    burdens: Mapping[str, Mapping[str, float]]
    """Processor seconds of an operation of large products, and of an update, by number of processes that do the same,
    each by itself."""
    cores: int
    interruptions: Mapping[str, float]
    """Seconds that a sharded process at work loses with each message, beyond what the message takes by itself."""

    @classmethod
    def of(cls, records: Mapping[str, Any]) -> "Constants":
        """Return the constants that were recorded; what interruptions cost is what they leave unexplained."""
        names = [field.name for field in fields(cls) if field.name != "interruptions"]
        known = cls(**{name: records[name] for name in names}, interruptions=dict.fromkeys(records["interrupted"], 0.0))
        lost = {count: _lost(known, one) for count, one in records["interrupted"].items()}
        return replace(known, interruptions=lost)

    def slowdown(self, kind: str, processes: int) -> float:
        """Return how many times as long products, or updates, take in so many processes that share the cores.

        Others at work never make them faster: a measured gain is noise.
        """
        turns = max(1.0, processes / self.cores)
        return turns * max(1.0, self.burdens[str(processes)][kind] / self.burdens["1"][kind])

    def message(self, kind: str, size: float, processes: int) -> float:
        """Return the seconds of a message of this size, between the measured ones by a straight line."""
        points = self.messages[str(processes)][kind]
        if size <= points[0][0]:
            return points[0][1]
        for (low, before), (high, after) in pairwise(points):
            if size <= high:
                return before + (after - before) * (size - low) / (high - low)
        return points[-1][1] * size / points[-1][0]


def _lost(known: Constants, measured: Mapping[str, Any]) -> float:
    """Return the seconds for each message that sharded updates took and that nothing else explains."""
    updates = [[Rows(*sizes) for sizes in update] for update in measured["rows"]]
    count = measured.get("polynomials", BEFORE)
    expected = statistics.median(sum(predict_update(known, BURDEN, rows, "shard", count).values()) for rows in updates)
    return max(0.0, measured["seconds"] - expected) / count_messages(BURDEN.config, "shard")


def count_messages(config: ModelConfig, mode: str) -> float:
    """Return how many messages an update has."""
    return sum(count for _, count, _ in traffic(config, mode))


def wrapping(case: Case) -> dict[str, float]:
    """Return the amounts on which the cost of DDP or FSDP2 depends: once, groups of weights, tensors, weights."""
    config = case.config
    tensors = 12 * config.encoder_layers + 18 * config.decoder_layers + 1
    layers = config.encoder_layers + config.decoder_layers
    return dict(once=1, groups=layers + 1, tensors=tensors, weights=count_weights(config))


def predict_update(
    constants: Constants, case: Case, rows: Sequence[Rows], mode: str, polynomials: int = len(POLYNOMIALS)
) -> dict[str, float]:
    """Return the seconds of an update by part; `rows` has the share of each process, `mode` is plain, ddp or shard.

    `polynomials` are those of Muon in the code that the prediction is for.
    """
    processes = len(rows)
    works = [count_work(case.config, one) for one in rows]
    times = [_cost(constants, constants.update, work, processes) for work in works]
    # With a core each all wait for the slowest; with less they share what there is.
    gradients = max(times) if processes <= constants.cores else sum(times) / processes
    step = count_optimizer_work(case.config, "muon", polynomials)
    optimizer = _cost(constants, constants.optimizer, step, processes)
    found = dict(gradients=gradients, optimizer=optimizer)
    if processes > 1:
        costs = constants.sharded if mode == "shard" else constants.replicated
        amounts = wrapping(case)
        own = sum(costs[name] * amounts[name] for name in costs)
        found["wrapping"] = own * constants.slowdown("update", processes)
        found["messages"] = sum(
            count * constants.message(kind, size, processes) for kind, count, size in traffic(case.config, mode)
        )
        if mode == "shard":
            found["messages"] += constants.interruptions[str(processes)] * count_messages(case.config, mode)
        found["waiting"] = constants.noise * largest_of(min(processes, constants.cores)) * (gradients + optimizer)
    return found


def _cost(constants: Constants, costs: Mapping[str, float], work: Work | OptimizerWork, processes: int) -> float:
    """Return the seconds of an amount of work in one of so many processes that work at once."""
    total = 0.0
    for name, amount in asdict(work).items():
        kind = "products" if name == "products" and isinstance(work, OptimizerWork) else "update"
        total += costs[name] * amount * constants.slowdown(kind, processes)
    return total


def traffic(config: ModelConfig, mode: str) -> list[tuple[str, float, float]]:
    """Return what a process tells the others in an update: kind, how often, and the bytes of each.

    DDP sums the gradients in buckets. FSDP2 gathers a layer's weights for its forward pass and again for its backward
    pass; a decoder layer has two of either, since its keys and values of the source are computed apart, and sums its
    gradients in two parts. What belongs to no layer is gathered once, and so is each of Muon's momenta. The counts are
    those of a real update (`counted` in the record of the check).
    """
    weights = FLOAT * count_weights(config)
    if mode == "ddp":
        first, further = BUCKETS
        whole, rest = divmod(max(0, weights - first), further)
        return [
            ("reduce", 1, min(first, weights)),
            ("reduce", whole, further),
            ("reduce", 1, rest),
            ("reduce", SMALL_MESSAGES, 8),
        ]
    shapes = weight_shapes(config)
    layers = {
        stack: FLOAT * sum(math.prod(shape) for name, shape in shapes.items() if name.startswith(f"{stack}.0."))
        for stack in ("encoder", "decoder")
    }
    encoder, decoder = config.encoder_layers, config.decoder_layers
    rest = weights - encoder * layers["encoder"] - decoder * layers["decoder"]
    return [
        ("gather", 2 * encoder, layers["encoder"]),
        ("gather", 4 * decoder, layers["decoder"]),
        ("gather", 1, rest),
        *(("gather", 1, FLOAT * rows * columns) for rows, columns, _ in muon_matrices(config)),
        ("scatter", encoder, layers["encoder"]),
        ("scatter", 2 * decoder, layers["decoder"] / 2),
        ("scatter", 1, rest),
        ("reduce", SMALL_MESSAGES + 1, 8),
    ]


def predict_memory(case: Case, rows: Rows, processes: int, mode: str) -> float:
    """Return the bytes that a process of a training needs at its peak."""
    return count_memory(case.config, rows, length=MEAN_LENGTH, optimizer="muon", mode=mode, processes=processes).peak
