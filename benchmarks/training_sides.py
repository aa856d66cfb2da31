"""The sides that training.py compares: glassformer's step and plain loops over the peers, each a process of its own.

The peers have their embeddings tied and scaled, scaled-dot-product attention and fused Adam, in float32 or in autocast.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import bench
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from glassformer.attention.packing import send
from glassformer.device import attention_for_any_shape, tame_memory
from glassformer.text.batching import Batch, prefetch
from glassformer.text.tokenizer import EOS
from glassformer.training.schedule import inverse_square_root
from glassformer.training.step import Step
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer
from glassformer.transformer.positions import sinusoids

VOCABULARY, THREADS = 10_000, 2
PAD = VOCABULARY - 1
SIZES: dict[str, dict[str, Any]] = {  # big for GPUs only
    "tiny": dict(d_model=128, layers=4, heads=4, d_ff=256, dropout=0.3, batch_tokens=4096),
    "base": dict(d_model=512, layers=6, heads=8, d_ff=2048, dropout=0.1, batch_tokens=2048),
    "big": dict(d_model=1024, layers=6, heads=16, d_ff=4096, dropout=0.3, batch_tokens=8192),
}
PARTS = {  # of an event's nearest ancestor of such a name
    "loss": ("_ChunkedCrossEntropy",),
    "attention": ("_Short", "_Spread", "_Gather", "scaled_dot_product"),
    "dropout": ("_Drop", "_AddDropped"),
    "optimizer": ("Optimizer.step", "aten::dot"),
    "products": ("aten::mm", "aten::addmm"),
    "layer norm": ("layer_norm",),
}
WARM_UP = 3
"""Updates before those whose shapes are new: the first ones load libraries."""
Pairs = list[tuple[list[int], list[int]]]


class Sides(bench.Sides):
    """The sides, each with a model of this size and the batches in `folder`, train.SIZE.json.

    A size is one of `SIZES`, or any name with its settings. A side's name is its kind, its precision and, if it is not
    the CPU, its device: "ours bfloat16 cuda".
    """

    def __init__(
        self, names: tuple[str, ...], size: str, folder: Path, seed: int = 1, settings: dict[str, Any] | None = None
    ) -> None:
        (folder / "settings.json").write_text(json.dumps([size, settings or SIZES[size], seed]))
        super().__init__(__file__, names, folder)


class Side:
    """The code that runs in a side's process."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.set_num_threads(THREADS)
        size, settings, self._seed = json.loads((folder / "settings.json").read_text())
        kind, precision, *device = name.split()
        self._device = torch.device(device[0] if device else "cpu")
        files = {part: folder / f"{part}.{size}.json" for part in ("train", "val")}
        self._batches = {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}
        if issubclass(KINDS[kind], Ours):
            tame_memory()  # as `train` does
        else:
            import_peer(kind)
        self._before = bench.status("VmRSS")
        torch.manual_seed(self._seed)
        sizes = {name: value for name, value in settings.items() if name != "batch_tokens"}
        self._side = KINDS[kind](sizes, getattr(torch, precision), self._device)
        self._peak, self._warmup = 1 / (4 * settings["d_model"]), 4 * settings["d_model"]

    def answer(self, what: str, first: int = 0, count: int = 0) -> Any:
        """Answer `train` with tokens per second, `profile` with shares, `valid` with the loss, `memory` with MiB.

        `shapes` is answered with milliseconds, `plans` too, with torch's own choice of attention: all else is computed
        as `train` does, without what plans for each shape, from which the peers gain as much.
        """
        if what == "memory":
            return self._memory()
        if what == "plans":
            return self._shapes(first, count)
        parts = {"train": self._train, "profile": self._profile, "shapes": self._shapes}
        with attention_for_any_shape():
            return self._valid() if what == "valid" else parts[what](first, count)

    def _train(self, first: int, count: int) -> float:
        """Make this many updates, beginning with `first`; return target tokens per second."""
        numbers, batches = range(first, first + count), self._batches["train"]
        several = [batches[number % len(batches)] for number in numbers]
        start = time.perf_counter()
        for number, batch in zip(numbers, self._ready(several), strict=True):
            rate = inverse_square_root(number + 1, peak=self._peak, warmup=self._warmup)
            self._side.update(batch, rate, self._seed * 1_000_003 + number)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return sum(len(target) for pairs in several for _, target in pairs) / seconds

    def _shapes(self, first: int, count: int) -> dict[str, float]:
        """Return the median milliseconds of updates with batches that are new, and with the same ones again; and of
        these what the GPU works, and how many kernels it is told to start."""
        self._train(first + count, WARM_UP)
        new, again = (statistics.median(self._milliseconds(first, count)) for _ in range(2))
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        with torch.profiler.profile(activities=activities) as profile:
            self._train(first, count)
        averages = profile.key_averages()
        kernels = sum(event.self_device_time_total for event in averages) / 1000 / count
        launches = sum(event.count for event in averages if "LaunchKernel" in event.key) / count
        return {"new": new, "again": again, "the GPU works": kernels, "launches": launches}

    def _milliseconds(self, first: int, count: int) -> list[float]:
        """Return the milliseconds of each of these updates, waited for one by one."""
        taken = list[float]()
        for number in range(first, first + count):
            seconds = time.perf_counter()
            self._train(number, 1)
            taken.append(1000 * (time.perf_counter() - seconds))
        return taken

    def _ready(self, several: list[Pairs]) -> Iterator[Any]:
        """Return the batches of these pairs. On a GPU each is made while the one before is used, for the peers too."""
        make = self._side.batch
        return map(make, several) if self._device.type == "cpu" else prefetch(make, several)

    def _memory(self) -> float:
        """Return the memory above the imports on a CPU, or that of torch's tensors on a GPU."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return (bench.status("VmHWM") - self._before) / 1024

    def _profile(self, first: int, count: int) -> dict[str, float]:
        """Return each part's share of the time of updates made before, and tokens per second without the profiler."""
        self._train(first, count)
        rate = self._train(first, count)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self._train(first, count)
        times = dict.fromkeys([*PARTS, "rest"], 0.0)
        for event in profile.events() or ():
            times[part_of(event)] += event.self_cpu_time_total
        total = sum(times.values())
        return {name: time / total for name, time in times.items()} | {"rate": rate}

    def _valid(self) -> float:
        self._side.model.eval()
        tokens = sum(len(target) for pairs in self._batches["val"] for _, target in pairs)
        with torch.no_grad():
            return sum(self._side.nll(self._side.batch(pairs)) for pairs in self._batches["val"]) / tokens


def part_of(event: Any) -> str:
    """Return the part of a step that the profiler's event belongs to."""
    while event is not None:
        for part, names in PARTS.items():
            if any(name in event.name for name in names):
                return part
        event = event.cpu_parent
    return "rest"


class Ours:
    """glassformer's own step, as `glassformer train` takes it."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        sizes = {name: value for name, value in size.items() if name != "layers"}
        layers = dict(encoder_layers=size["layers"], decoder_layers=size["layers"])
        vocabulary = dict(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
        self.model = Transformer(ModelConfig(**vocabulary, **sizes, **layers)).to(device)
        self._step = Step(self.model, dtype=precision, label_smoothing=0.1, clip_norm=1.0, optimizer="adam")
        self._device = device

    def batch(self, pairs: Pairs) -> Batch:
        """Return a batch as training makes it."""
        source, target = ([torch.tensor(ids) for ids in side] for side in zip(*pairs, strict=True))
        return Batch.of(source, target, PAD, PAD).to(self._device)

    def update(self, batch: Batch, rate: float, seed: int) -> None:
        """Make one update."""
        self._step.update([batch], rate=rate, number=seed)

    def nll(self, batch: Batch) -> float:
        """Return the negative log-likelihood of the targets, in nats."""
        return self._step.loss(batch)[1].item()


class FinalNorm(Ours):
    """Our Transformer with the norms after both stacks that nn.Transformer always has."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        super().__init__({**size, "final_norm": True}, precision, device)


def import_peer(kind: str) -> None:
    """Import what a peer needs, before memory is counted."""
    if kind == "marian":
        import_module("transformers.models.marian.modeling_marian")
        from transformers.utils import logging

        logging.set_verbosity_error()


@dataclass(frozen=True)
class Padded:
    """A batch in the form that the peers take."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor


class Peer:
    """A plain loop over a model that makes logits of a padded batch."""

    def __init__(self, model: nn.Module, precision: torch.dtype, device: torch.device) -> None:
        self.model = model.to(device).train()
        self._precision, self._device = precision, device
        self._optimizer = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)

    def _logits(self, batch: Padded) -> Tensor:
        return self.model(batch)

    def batch(self, pairs: Pairs) -> Padded:
        """Return ids and, for the target, what is to be predicted, padded."""
        source, target_out = (
            pad_sequence([torch.tensor(ids) for ids in side], batch_first=True, padding_value=PAD)
            for side in zip(*pairs, strict=True)
        )
        target_in = torch.cat([target_out.new_full((len(pairs), 1), PAD), target_out[:, :-1]], dim=1)
        return Padded(send(source, self._device), send(target_in, self._device), send(target_out, self._device))

    def update(self, batch: Padded, rate: float, seed: int) -> None:
        """Make one update. Dropout draws on from where it is, whatever the seed."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._loss(batch, smoothing=0.1, reduction="mean").backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def nll(self, batch: Padded) -> float:
        """Return the negative log-likelihood of the targets, in nats."""
        return self._loss(batch, smoothing=0.0, reduction="sum").item()

    def _loss(self, batch: Padded, *, smoothing: float, reduction: str) -> Tensor:
        with torch.autocast(self._device.type, self._precision, enabled=self._precision != torch.float32):
            logits = self._logits(batch).flatten(0, 1)
            targets = batch.target_out.flatten()
            return F.cross_entropy(logits, targets, ignore_index=PAD, label_smoothing=smoothing, reduction=reduction)


class StockModel(nn.Module):
    """torch.nn.Transformer with embeddings, positions and output layer around it."""

    positions: Tensor

    def __init__(self, size: dict[str, Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size["d_model"], padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=size["d_model"] ** -0.5)
        self.transformer = nn.Transformer(
            size["d_model"],
            size["heads"],
            size["layers"],
            size["layers"],
            size["d_ff"],
            size["dropout"],
            batch_first=True,
        )
        self.dropout = nn.Dropout(size["dropout"])
        self.register_buffer("positions", sinusoids(1024, size["d_model"]))

    def forward(self, batch: Padded) -> Tensor:
        padding = batch.source == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(batch.target_in.shape[1], device=padding.device)
        states = self.transformer(
            self._embed(batch.source),
            self._embed(batch.target_in),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(states, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.positions[: ids.shape[1]]
        return self.dropout(x)


class Stock(Peer):
    """torch.nn.Transformer with the dropout that it has."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        super().__init__(StockModel(size), precision, device)


class PlainDropout(Stock):
    """torch.nn.Transformer without dropout of attention weights and inside the feed-forward layers."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        super().__init__(size, precision, device)
        for module in self.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0


class Marian(Peer):
    """Hugging Face's Marian, whose forward takes the shifted target."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        from transformers import MarianConfig, MarianMTModel

        stacks = {
            f"{stack}_{name}": size[ours]
            for stack in ("encoder", "decoder")
            for name, ours in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "d_ff"))
        }
        config = MarianConfig(
            vocab_size=VOCABULARY,
            d_model=size["d_model"],
            **stacks,
            activation_function="relu",
            dropout=size["dropout"],
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=PAD,
            init_std=size["d_model"] ** -0.5,
            use_cache=False,
        )
        super().__init__(MarianMTModel(config), precision, device)

    def _logits(self, batch: Padded) -> Tensor:
        keep = (batch.source != PAD).long()
        return self.model(input_ids=batch.source, attention_mask=keep, decoder_input_ids=batch.target_in).logits


KINDS: dict[str, type[Any]] = {
    "ours": Ours,
    "final-norm": FinalNorm,
    "stock": Stock,
    "plain-dropout": PlainDropout,
    "marian": Marian,
}

if __name__ == "__main__":
    bench.serve(Side(sys.argv[2], Path(sys.argv[3])).answer)
