"""Bytes that a process holds while it trains, by what they are for."""

from collections import Counter
from dataclasses import dataclass

from glassformer.attention.kernels.short import KEYS_AT_ONCE
from glassformer.training.muon import TOGETHER
from glassformer.transformer.config import ModelConfig
from scaling.work import Rows, count_optimizer_work, count_weights, muon_matrices

FLOAT, HALF = 4, 2
LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Logits that `training.loss` holds at a time; a test compares them with it."""
STEP_BYTES = 3 * FLOAT
"""Bytes for each number that Muon works on: momenta one by one and side by side, or in bfloat16 with their steps."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one process at its peak."""

    weights: float
    gradients: float
    optimizer: float
    """What the optimizer keeps: Muon a momentum for each of its weights, Adam two means for each of its own."""
    copies: float
    """Weights that are there from the forward to the backward pass: in bfloat16, or if they are sharded the whole ones
    of no layer in float32, since a layer's are gathered in bfloat16 and freed."""
    activations: float
    """What the backward pass needs of the forward pass."""
    loss: float
    """A chunk of logits with its probabilities, and the gradients of states and output weights."""
    gathered: float
    """Sharded weights of two layers that are whole in the backward pass, and whole gradients of what is in no layer."""
    step: float
    """What Muon works on at a time."""
    replicated: bool
    """Whether DDP keeps room for the gradients from update to update; otherwise they replace activations."""

    @property
    def peak(self) -> float:
        """The bytes of all that is held at once: activations and logits are gone when the optimizer steps."""
        passes = self.copies + self.activations + max(self.loss, self.gathered) + self.replicated * self.gradients
        return self.weights + self.optimizer + max(passes, self.gradients + self.step)


def activation_bytes(config: ModelConfig, length: float, device: str) -> tuple[float, float]:
    """Return the bytes that a layer of the encoder and one of the decoder keep for a token, products in bfloat16.

    On a CPU: inputs and results of products, inputs of norms, and the dropped numbers' bytes; attention keeps its
    probabilities in float32. A GPU's fused attention keeps none of these, and its norms keep their input in float32.
    `length` is that of the sentences.
    """
    d, ff = config.d_model, config.d_ff
    if device == "cuda":
        return 22 * d + 2 * ff + 24, 37 * d + 2 * ff + 41
    keys = -(-length // KEYS_AT_ONCE) * KEYS_AT_ONCE
    scores = FLOAT * config.heads * keys
    return 18 * d + 2 * ff + scores + 16, 31 * d + 2 * ff + 2 * scores + 25


def count_memory(
    config: ModelConfig, rows: Rows, *, length: float, optimizer: str, mode: str, processes: int, device: str = "cpu"
) -> Memory:
    """Return the bytes of one of so many processes, which works on `rows`; `mode` is plain, ddp or shard."""
    weights, work = count_weights(config), count_optimizer_work(config, optimizer)
    d, classes = config.d_model, config.target_pad
    linear = sum(rows * columns for rows, columns, _ in muon_matrices(config))
    shards = processes if mode == "shard" else 1
    copies, gathered = HALF * linear, 0.0
    if mode == "shard":
        copies = FLOAT * (weights - linear)
        gathered = copies + 2 * HALF * linear / (config.encoder_layers + config.decoder_layers)
    encoder, decoder = activation_bytes(config, length, device)
    activations = config.encoder_layers * encoder * rows.source + config.decoder_layers * decoder * rows.target
    activations += (d + 8) * (rows.source + rows.target)
    chunk = min(1 << (LOGITS[device] // classes).bit_length() - 1, rows.target) * classes
    return Memory(
        weights=FLOAT * weights / shards,
        gradients=FLOAT * weights / shards,
        optimizer=FLOAT * (work.muon + 2 * work.adam) / shards,
        copies=copies,
        activations=activations,
        loss=2 * HALF * chunk + (FLOAT + HALF) * d * rows.target + (FLOAT + 2 * HALF) * d * classes,
        gathered=gathered,
        step=STEP_BYTES * _together(config) if optimizer == "muon" else 0,
        replicated=mode == "ddp",
    )


def _together(config: ModelConfig) -> int:
    """Return the most numbers that Muon works on at a time, in matrices of one shape."""
    alike = Counter[tuple[int, int, int]](muon_matrices(config))
    sizes = [(rows * columns, count) for (rows, columns, _), count in alike.items()]
    return max(size * min(count, max(1, TOGETHER // size)) for size, count in sizes)
