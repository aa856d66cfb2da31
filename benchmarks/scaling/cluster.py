"""Predictions for clusters of GPUs. Every constant is published or measured elsewhere, and says where.

Nothing here has run on more than one GPU: what `local` predicts of this machine's processes is all that was checked.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from glassformer.training.muon import POLYNOMIALS
from glassformer.transformer.config import ModelConfig
from scaling.collectives import Link, Network
from scaling.local import traffic
from scaling.memory import FLOAT, count_memory
from scaling.waiting import checkpoint_interval, largest_of, lost_share
from scaling.work import NO_WORK, Rows, Work, count_optimizer_work, count_weights, count_work

LENGTH = 30
"""Tokens of a sentence."""
VOCABULARY = 37_000
"""Token ids of Vaswani et al. 2017, section 5.1, for English and German."""
SIZES = {
    "base": ModelConfig.base(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY),
    "big": ModelConfig.big(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY),
}

PASS_BYTES: Mapping[str, float] = {
    **asdict(NO_WORK),
    "hidden": 100,  # dropout, sum and norm in float32: 33 on the way forward, twice as many on the way back
    "inside": 24,  # written, read by an activation or by attention, written and read again: 8, and twice that
    "logits": 20,  # written, softmax, and read by two products, in bfloat16 and float32
    "weights": 22,  # copied to bfloat16, gradient written, its norm, clipped and cleared
}
"""Bytes moved for each amount of `Work`, counted by hand from the operators of the layers."""
STEP_BYTES = {"adam": 28, "muon": 84 + 8 * len(POLYNOMIALS)}
"""Bytes moved for a weight by the optimizer. Fused Adam reads four numbers and writes three. Muon: momentum and look
ahead 44, side by side and in bfloat16 14, each polynomial 8, the step 6, decay and weights 20."""


@dataclass(frozen=True)
class Gpu:
    """A GPU and its host."""

    products: float
    """Operations a second of large products in bfloat16."""
    bandwidth: float
    """Bytes a second of its memory."""
    memory: float
    """Bytes of its memory."""
    call: float
    """Seconds in which the host starts the operators of a sub-layer, forward, backward and for the optimizer."""
    copy: float
    """Bytes a second from its memory to the host's."""
    mtbf: float
    """Seconds between failures of one GPU or what belongs to it."""


H100 = Gpu(
    products=775e12,  # one product of 8,192 on our H200, whose chip is the same (benchmarks/LOG.md); 989e12 on paper
    bandwidth=3.35e12,  # NVIDIA H100 SXM data sheet
    memory=80e9,  # the same
    call=70.9e-3 / 30,  # an update of base, 30 sub-layers, of a shape seen before, on an H100 (benchmarks/LOG.md)
    copy=64e9,  # PCI Express 5.0 x16 (the same data sheet: 128 GB/s both ways together)
    mtbf=16_384 * 54 * 86_400 / 419,  # Llama 3 (2024, section 3.3.4): 419 failures of 16,384 H100s in 54 days
)
DGX = Network(
    per_node=8,
    inside=Link(latency=3.4e-6, bandwidth=450e9),  # NVLink 4, 900 GB/s both ways together (data sheet)
    between=Link(latency=9.6e-6, bandwidth=50e9),  # 400 Gbit/s a GPU (DGX H100); latencies: NCCL's src/graph/tuning.cc
    between_tree=8.5e-6,
)
RESTART = 120.0
"""Seconds until a training goes on after a failure: an assumption, of which the loss hardly depends."""
MARGIN = 0.9
"""Share of a GPU's memory that may be filled."""


@dataclass(frozen=True)
class Plan:
    """A training on so many devices, whose updates have so many target tokens in all."""

    devices: int
    tokens: int
    accumulate: int = 1
    shard: bool = False
    optimizer: str = "muon"
    gradient_bytes: int = FLOAT
    """2: gradients summed in bfloat16, which glassformer doesn't do."""
    recorded: bool = False
    """The operators recorded once and started as one (CUDA graphs), which glassformer does in generation only."""
    agree: float = 0.0
    """Seconds of a step between neighbours when the processes' hosts agree, by gloo's ring over all of them."""
    noise: float = 0.0
    """Standard deviation of a device's time, as a share of it."""

    @property
    def rows(self) -> Rows:
        """The sizes of what a device works on at a time."""
        return Rows.alike(self.tokens / self.devices / self.accumulate, LENGTH)


def device_seconds(gpu: Gpu, work: Work) -> float:
    """Return the time of a GPU that is never kept waiting: its products, then what it moves."""
    moved = sum(PASS_BYTES[name] * amount for name, amount in asdict(work).items())
    return work.products / gpu.products + moved / gpu.bandwidth


@dataclass(frozen=True)
class Update:
    """Seconds of an update by part: those of the devices, and those of their hosts, who run ahead of them."""

    passes: float
    """Forward and backward passes."""
    optimizer: float
    messages: float
    """Messages, as far as no pass hides them."""
    starts: float
    """Starting the operators, one by one."""
    agreeing: float
    """The hosts' own messages: whether to stop, and when to save."""
    waiting: float
    """Waiting for the slowest."""

    @property
    def seconds(self) -> float:
        """The time of the update: whichever of device and host takes longer, and the wait for others."""
        return max(self.passes + self.optimizer + self.messages, self.starts + self.agreeing) + self.waiting


def predict(gpu: Gpu, network: Network, config: ModelConfig, plan: Plan) -> Update:
    """Return the seconds of an update."""
    work = count_work(config, plan.rows)
    passes = plan.accumulate * device_seconds(gpu, work)
    starts = 0.0 if plan.recorded else plan.accumulate * work.calls * gpu.call
    step = count_optimizer_work(config, plan.optimizer)
    optimizer = step.products / gpu.products
    optimizer += (STEP_BYTES["muon"] * step.muon + STEP_BYTES["adam"] * step.adam) / gpu.bandwidth
    pace = max(passes, starts)
    hidden = 2 / 3 * pace / plan.accumulate  # the last backward pass
    return Update(
        passes=passes,
        optimizer=optimizer,
        messages=(_sharded if plan.shard else _replicated)(network, config, plan, hidden),
        starts=starts,
        agreeing=2 * (plan.devices - 1) * plan.agree,
        waiting=plan.noise * largest_of(plan.devices) * pace,
    )


def _replicated(network: Network, config: ModelConfig, plan: Plan, hidden: float) -> float:
    """Return the seconds of DDP's sums that the backward pass doesn't hide: at least those of the embeddings.

    Their gradients come last, since they are the output's weights too.
    """
    if plan.devices == 1:
        return 0.0
    share = plan.gradient_bytes / FLOAT
    sums = [count * network.reduce(share * size, plan.devices) for _, count, size in traffic(config, "ddp") if size]
    last = network.reduce(plan.gradient_bytes * config.target_vocab_size * config.d_model, plan.devices)
    return max(last, sum(sums) - hidden)


def _sharded(network: Network, config: ModelConfig, plan: Plan, hidden: float) -> float:
    """Return the seconds of FSDP2's messages that no pass hides; Muon's gathers come when nothing else is done."""
    if plan.devices == 1:
        return 0.0
    momenta = _momenta(network, config, plan)
    share = plan.gradient_bytes / FLOAT
    total = 0.0
    for kind, count, size in traffic(config, "shard"):
        if kind == "gather":
            total += plan.accumulate * count * network.gather(size, plan.devices)
        elif kind == "scatter":
            total += count * network.gather(share * size, plan.devices)
    last = network.gather(plan.gradient_bytes * config.target_vocab_size * config.d_model, plan.devices)
    exposed = max(last, total - plan.accumulate * (momenta + 1.5 * hidden))
    return exposed + (momenta if plan.optimizer == "muon" else 0.0)


def _momenta(network: Network, config: ModelConfig, plan: Plan) -> float:
    """Return the seconds in which every process gets all momenta, one matrix after another."""
    sizes = [size for kind, count, size in traffic(config, "shard") if kind == "gather" and count == 1][1:]
    return sum(network.gather(size, plan.devices) for size in sizes)


def seconds_of_update(gpu: Gpu, network: Network, config: ModelConfig, plan: Plan) -> float:
    """Return the seconds of an update with what failures and checkpoints take."""
    cost = checkpoint_seconds(gpu, config, plan)
    mtbf = gpu.mtbf / plan.devices
    lost = lost_share(checkpoint_interval(cost, mtbf), cost, RESTART, mtbf)
    return predict(gpu, network, config, plan).seconds * (1 + lost)


def checkpoint_seconds(gpu: Gpu, config: ModelConfig, plan: Plan) -> float:
    """Return the seconds in which training waits for a checkpoint: copied to the host, then written beside it."""
    step = count_optimizer_work(config, plan.optimizer)
    size = FLOAT * (count_weights(config) + step.muon + 2 * step.adam)
    return size / (plan.devices if plan.shard else 1) / gpu.copy


def fitted(gpu: Gpu, config: ModelConfig, plan: Plan) -> Plan:
    """Return the plan with as few accumulated batches as memory allows."""
    accumulate = 1
    while not fits(gpu, config, tried := replace(plan, accumulate=accumulate)):
        if plan.tokens / plan.devices / accumulate < LENGTH:
            raise SystemExit(f"a model of {count_weights(config):,} weights does not fit a GPU of {gpu.memory:,} bytes")
        accumulate *= 2
    return tried


def fits(gpu: Gpu, config: ModelConfig, plan: Plan) -> bool:
    """Return whether a device can hold what it must."""
    return peak_bytes(config, plan) <= MARGIN * gpu.memory


def peak_bytes(config: ModelConfig, plan: Plan) -> float:
    """Return the bytes that a device needs."""
    mode = "plain" if plan.devices == 1 else "shard" if plan.shard else "ddp"
    settings: dict[str, Any] = dict(optimizer=plan.optimizer, mode=mode, processes=plan.devices)
    return count_memory(config, plan.rows, length=LENGTH, device="cuda", **settings).peak


def enough_tokens(gpu: Gpu, config: ModelConfig) -> float:
    """Return the tokens of a pass that keep a GPU busy for as long as its host takes to start the operators."""
    few, many = (count_work(config, Rows.alike(tokens, LENGTH)) for tokens in (0, 1_000_000))
    slope = (device_seconds(gpu, many) - device_seconds(gpu, few)) / 1_000_000
    return (many.calls * gpu.call - device_seconds(gpu, few)) / slope


def widest(gpu: Gpu, plan: Plan) -> ModelConfig:
    """Return the largest of base's relatives, in steps of 512 of its width, that a device can hold."""
    config = SIZES["base"]
    while fits(gpu, wider := _relative(config.d_model + 512), plan):
        config = wider
    return config


def _relative(width: int) -> ModelConfig:
    return replace(SIZES["base"], d_model=width, heads=width // 64, d_ff=4 * width)


def speed_up(gpu: Gpu, network: Network, config: ModelConfig, plan: Plan) -> float:
    """Return how many times as fast an update is as on one device, which accumulates what it can't hold."""
    alone = fitted(gpu, config, replace(plan, devices=1, accumulate=1, shard=False))
    return seconds_of_update(gpu, network, config, alone) / seconds_of_update(gpu, network, config, plan)


def powers(most: int) -> list[int]:
    """Return 1, 2, 4 and so on up to the largest."""
    return [1 << n for n in range(int(math.log2(most)) + 1)]
