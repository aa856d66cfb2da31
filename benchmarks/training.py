"""Training speed: glassformer against a plain loop over torch.nn.Transformer and over Hugging Face's Marian.

    python benchmarks/training.py --data DIR [--only tiny base breakdown cost loss gpu]

DIR is a folder with train.en, train.de, val.en and val.de (Multi30k, data/task1/raw of
https://github.com/multi30k/dataset); a joint BPE of 10,000 pieces; batches of like length. tiny is d_model 128, 4+4
layers, 4 heads, d_ff 256, dropout 0.3, batches of 4,096 tokens; base 512, 6+6, 8, 2048, 0.1, batches of 2,048.

Every side is a process of its own with two threads; they take turns over the same batches, with pauses. A turn is a
whole update: forward, label-smoothed loss (0.1), backward, clipping to norm 1, fused Adam. The peers: embeddings tied
and scaled, scaled-dot-product attention, in float32 and in bfloat16 autocast. `torch.nn.Transformer` has its dropout
also on attention weights and inside the feed-forward layers, and no way to ask for less; "plain dropout" are its
figures with these two set to 0 by hand, which is what glassformer and Marian compute.

As in the first epoch of a training, every batch is new to all sides; batches are cut as glassformer does it, by real
tokens, and padded for the peers (how much is printed). glassformer sets the process's memory up as `train` does
(`device.tame_memory`); the peers run as their users would.

Prints target tokens/s and peak memory above what the imports take; the ratios come last and go, with all the rest, to
benchmarks/results/training.jsonl. Needs the extra huggingface.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from glassformer.device import pick_precision, tame_memory
from glassformer.text.batching import Batch, plan_batches
from glassformer.text.tokenizer import EOS, SubwordTokenizer
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
PRECISIONS = ("float32", "bfloat16")
OURS = tuple(f"ours {precision}" for precision in PRECISIONS)
PEERS = tuple(f"{peer} {precision}" for peer in ("stock", "plain-dropout", "marian") for precision in PRECISIONS)
UPDATES = {"tiny": 6, "base": 2}  # of a turn
Part = Literal["tiny", "base", "breakdown", "cost", "loss", "gpu"]
PLOT = Path(__file__).parent.parent / "docs" / "training_speed.png"
Pairs = list[tuple[list[int], list[int]]]


def main(data: Path, only: tuple[Part, ...] = get_args(Part), rounds: int = 5, updates: int = 600) -> None:
    """Measure the parts named by `only`.

    Args:
        data: Folder with train.en, train.de, val.en, val.de.
        only: tiny, base (speed and memory of that size), breakdown (of our step), cost (our speed by width and by
            batch, plotted in docs), loss (after equal updates), gpu.
        rounds: Turns of each side.
        updates: Updates after which validation losses are compared.
    """
    tame_memory()
    torch.set_num_threads(THREADS)
    print(bench.machine())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_batches(data, folder)
        parts: dict[Part, Callable[[], Any]] = {
            "tiny": lambda: speed(folder, "tiny", rounds),
            "base": lambda: speed(folder, "base", rounds),
            "breakdown": lambda: {size: breakdown(folder, size) for size in UPDATES},
            "cost": lambda: cost(folder, rounds),
            "loss": lambda: losses(folder, updates),
            "gpu": lambda: gpu(folder, rounds),
        }
        measured = {part: parts[part]() for part in only}
    bench.keep("training", measured)
    for part, found in measured.items():
        print(f"{part}: {found if isinstance(found, str) else found.get('summary', '')}")


def write_batches(data: Path, folder: Path) -> None:
    """Every side's batches, as ids."""
    sides = {
        name: [(data / f"{name}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
        for name in ("train", "val")
    }
    source, target = sides["train"]
    tokenizer = SubwordTokenizer.train(source + target, kind="bpe", vocab_size=VOCABULARY, seed=1, coverage=1.0)
    for name, (source, target) in sides.items():
        pairs = [
            ([*s, EOS], [*t, EOS])
            for s, t in zip(tokenizer.encode(source), tokenizer.encode(target), strict=True)
            if s and t
        ]
        lengths = [torch.tensor([len(pair[side]) for pair in pairs]) for side in (0, 1)]
        for size, settings in SIZES.items():
            plan = plan_batches(*lengths, batch_tokens=settings["batch_tokens"], seed=1, epoch=0)
            batches = [[pairs[i] for i in batch] for batch in plan]
            if name == "train":
                shares = " and ".join(f"{padding(batches, side):.0%}" for side in (0, 1))
                print(f"  {size}: of the peers' source and target {shares} are padding")
            (folder / f"{name}.{size}.json").write_text(json.dumps(batches))


def padding(batches: list[Pairs], side: int) -> float:
    """The share of padding if each batch is as long as its longest pair."""
    lengths = [[len(pair[side]) for pair in batch] for batch in batches]
    return 1 - sum(map(sum, lengths)) / sum(max(batch) * len(batch) for batch in lengths)


def speed(folder: Path, size: str, rounds: int) -> dict[str, Any]:
    """Target tokens a second of each side in turn, and its peak of memory."""
    rates: dict[str, list[float]] = {name: [] for name in (*OURS, *PEERS)}
    with Sides(tuple(rates), size, folder) as sides:
        for name in rates:
            sides.ask(name, "train", 0, UPDATES[size])
        for turn in range(rounds):
            for name, kept in rates.items():
                kept.append(sides.ask(name, "train", (turn + 1) * UPDATES[size], UPDATES[size])["rate"])
        memory = {name: sides.ask(name, "memory") for name in rates}
    found: dict[str, Any] = {}
    for name, kept in rates.items():
        found[name] = {"median": statistics.median(kept), "low": min(kept), "high": max(kept), "MiB": memory[name]}
        print(
            f"  {size}  {name:24} {found[name]['median']:7.0f} tokens/s ({min(kept):.0f} to {max(kept):.0f})"
            f"  peak {memory[name]:6.0f} MiB"
        )
    ratios = {}
    for ours in OURS:
        for peer in PEERS:  # turn by turn: what the machine does to one, it mostly does to its neighbours
            by_turn = [a / b for a, b in zip(rates[ours], rates[peer], strict=True)]
            ratios[f"{ours} / {peer}"] = statistics.median(by_turn)
    summary = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return found | {"ratios": ratios, "summary": summary}


PARTS = {  # of an event's nearest ancestor of such a name
    "loss": ("_ChunkedCrossEntropy",),
    "attention": ("_Short", "_Spread", "_Gather", "scaled_dot_product"),
    "dropout": ("_Drop", "_AddDropped"),
    "optimizer": ("Optimizer.step", "aten::dot"),
    "products": ("aten::mm", "aten::addmm"),
    "layer norm": ("layer_norm",),
}


def breakdown(folder: Path, size: str) -> dict[str, Any]:
    """What the parts of our step take, by what the profiler says of its operations; what its products alone allow."""
    with Sides(("ours bfloat16",), size, folder) as sides:
        shares = sides.ask("ours bfloat16", "profile", 0, 3 * UPDATES[size])
    rate, peak = shares.pop("rate"), {kind: products_peak(getattr(torch, kind)) for kind in PRECISIONS}
    allowed = {kind: peak[kind] / operations(SIZES[size]) for kind in PRECISIONS}
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"  {size}  {name:12} {share:6.1%}")
    limits = " and ".join(f"{allowed[kind]:.0f} in {kind}" for kind in PRECISIONS)
    print(f"  {size}  {rate:.0f} tokens/s; at the measured peak the products alone allow {limits}")
    return {"shares": shares, "rate": rate, "peak": peak, "products allow": allowed}


def operations(size: dict[str, Any]) -> float:
    """Multiplications and additions of the linear maps for a target token, forward and backward.

    As if there were a source token for each.
    """
    d, ff = size["d_model"], size["d_ff"]
    forward = size["layers"] * (4 * d * d + 2 * d * ff) + size["layers"] * (8 * d * d + 2 * d * ff) + VOCABULARY * d
    return 3 * 2 * forward


def products_peak(dtype: torch.dtype, device: str = "cpu", size: int = 2048) -> float:
    """Operations a second of one large product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(9):
        start = time.perf_counter()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times)


def gpu(folder: Path, rounds: int) -> dict[str, Any] | str:
    """base and big on a GPU in bfloat16: tokens a second, and the fraction of the measured peak of products."""
    if not torch.cuda.is_available():
        return "not run: this machine has no GPU; nothing has been measured on one yet"
    found: dict[str, Any] = {}
    names = tuple(f"{kind} bfloat16 cuda" for kind in ("ours", "stock", "marian"))
    peak = products_peak(torch.bfloat16, "cuda", 8192)
    for size in ("base", "big"):
        rates: dict[str, list[float]] = {name: [] for name in names}
        with Sides(names, size, folder) as sides:
            for turn in range(rounds + 1):
                for name, kept in rates.items():
                    rate = sides.ask(name, "train", turn * 20, 20)["rate"]
                    kept += [rate] if turn else []
        for name, kept in rates.items():
            median = statistics.median(kept)
            found[f"{size}, {name}"] = {"median": median, "of the peak": median * operations(SIZES[size]) / peak}
            print(
                f"  {size}  {name:24} {median:9.0f} tokens/s, {median * operations(SIZES[size]) / peak:.1%} of the peak"
            )
    return found | {"peak": peak}


WIDTHS, BATCHES = (64, 128, 256, 512), (512, 1024, 2048, 4096, 8192, 16384)


def cost(folder: Path, rounds: int) -> dict[str, Any]:
    """Our speed by d_model (4+4 layers, heads 32 wide, d_ff 2 d_model) and by batch tokens (d_model 128), plotted."""
    pairs = [pair for batch in json.loads((folder / "train.tiny.json").read_text()) for pair in batch]
    lengths = [torch.tensor([len(pair[side]) for pair in pairs]) for side in (0, 1)]
    precision = pick_precision("auto", torch.device("cpu"))
    peak = max(products_peak(precision) for _ in range(5))  # the machine is shared: the best of a few
    found: dict[str, Any] = {"precision": str(precision), "peak": peak}
    for name, settings in (("d_model", [(d, 4096) for d in WIDTHS]), ("batch_tokens", [(128, n) for n in BATCHES])):
        sides = []
        for d_model, batch_tokens in settings:
            size = dict(d_model=d_model, layers=4, heads=d_model // 32, d_ff=2 * d_model, dropout=0.1)
            plan = plan_batches(*lengths, batch_tokens=batch_tokens, seed=1, epoch=0)
            side = Ours(size, precision, torch.device("cpu"))
            batches = [side.batch([pairs[i] for i in batch]) for batch in plan[: 1 + 16384 // batch_tokens]]
            sides.append((side, batches))
        rates: list[list[float]] = [[] for _ in sides]
        for turn in range(rounds + 1):
            for (side, batches), kept in zip(sides, rates, strict=True):
                start = time.perf_counter()
                for batch in batches:
                    side.update(batch, 1e-4, 1)
                rate = sum(batch.tokens for batch in batches) / (time.perf_counter() - start)
                kept += [rate] if turn else []
        values = WIDTHS if name == "d_model" else BATCHES
        found[name] = {value: statistics.median(kept) for value, kept in zip(values, rates, strict=True)}
        allowed = []
        for d_model, _ in settings:
            size = dict(d_model=d_model, layers=4, d_ff=2 * d_model)
            allowed.append(peak / operations(size))
        found[f"{name}: products allow"] = dict(zip(values, allowed, strict=True))
        for value, rate in found[name].items():
            limit = found[f"{name}: products allow"][value]
            print(f"  {name} {value:6}  {rate:8.0f} tokens/s, products alone at the peak {limit:8.0f}")
    draw(found)
    return found


def draw(found: dict[str, Any]) -> None:
    """Both curves side by side, with what the products alone would allow."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    titles = {"d_model": "d_model (batches of 4,096 tokens)", "batch_tokens": "tokens of a batch (d_model 128)"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        values = list(found[name])
        axis.loglog(values, [found[name][v] for v in values], "o-", color="#1f6f8b", label="glassformer")
        allowed = found[f"{name}: products allow"]
        axis.loglog(
            values, [allowed[v] for v in values], "--", color="#999999", label="its matrix products at the peak"
        )
        axis.set_xticks(values, [f"{v:,}" for v in values], minor=False)
        axis.minorticks_off()
        axis.set_xlabel(title)
        axis.grid(alpha=0.3)
        for v in values:
            axis.annotate(
                f"{found[name][v] / 1000:.1f}k", (v, found[name][v]), (0, 7), textcoords="offset points", ha="center"
            )
    axes[0].set_ylabel("target tokens a second")
    axes[0].legend(frameon=False, loc="lower left")
    figure.savefig(PLOT, dpi=130)


def losses(folder: Path, updates: int) -> dict[str, Any]:
    """Validation loss (nats a token, not smoothed) of tiny after equal updates on equal batches, two seeds a side.

    A check that training is sound: ours as it trains, theirs in float32; each draws its own first weights by the same
    rule. Ours has the final norms here that nn.Transformer always has.
    """
    found: dict[str, Any] = {}
    ours, theirs = "final-norm bfloat16", "plain-dropout float32"
    for name in (ours, theirs):
        for seed in (1, 2):
            with Sides((name,), "tiny", folder, seed) as sides:
                sides.ask(name, "train", 0, updates)
                found[f"{name}, seed {seed}"] = loss = sides.ask(name, "valid")
            print(f"  {name}, seed {seed}: validation loss {loss:.4f} after {updates} updates", flush=True)
    mean = {name: (found[f"{name}, seed 1"] + found[f"{name}, seed 2"]) / 2 for name in (ours, theirs)}
    spread = abs(found[f"{theirs}, seed 1"] - found[f"{theirs}, seed 2"])
    summary = f"ours {mean[ours]:.4f}, theirs {mean[theirs]:.4f}, their seeds {spread:.4f} apart"
    return found | {"updates": updates, "summary": summary}


class Sides(bench.Sides):
    """The sides, each with a model of this size and the batches in `folder`."""

    def __init__(self, names: tuple[str, ...], size: str, folder: Path, seed: int = 1) -> None:
        (folder / "settings.json").write_text(json.dumps([size, seed]))
        super().__init__(__file__, names, folder)


class Side:
    """What runs in a side's process."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.set_num_threads(THREADS)
        size, seed = json.loads((folder / "settings.json").read_text())
        kind, precision, *device = name.split()
        self._device = torch.device(device[0] if device else "cpu")
        self._batches = {part: json.loads((folder / f"{part}.{size}.json").read_text()) for part in ("train", "val")}
        if kind in ("ours", "final-norm"):
            tame_memory()  # as `train` does
        else:
            import_peer(kind)
        self._before = bench.status("VmRSS")
        torch.manual_seed(seed)
        sides = {"ours": Ours, "final-norm": Ours, "stock": Stock, "plain-dropout": Stock, "marian": Marian}
        sizes = {name: value for name, value in SIZES[size].items() if name != "batch_tokens"}
        if kind == "final-norm":
            sizes["final_norm"] = True
        self._side = sides[kind](sizes, getattr(torch, precision), self._device)
        if kind == "plain-dropout":
            self._side.drop_as_others()
        self._peak, self._warmup = 1 / (4 * SIZES[size]["d_model"]), 4 * SIZES[size]["d_model"]

    def answer(self, what: str, first: int = 0, count: int = 0) -> Any:
        """`train`: so many updates from the `first` on; `valid`: the validation loss; `memory`: the peak, in MiB."""
        if what == "memory":
            if self._device.type == "cuda":
                return torch.cuda.max_memory_allocated() / 2**20
            return (bench.status("VmHWM") - self._before) / 1024
        if what == "valid":
            return self._valid()
        if what == "profile":
            return self._profile(first, count)
        tokens, start = 0, time.perf_counter()
        for number in range(first, first + count):
            pairs = self._batches["train"][number % len(self._batches["train"])]
            rate = inverse_square_root(number + 1, peak=self._peak, warmup=self._warmup)
            self._side.update(self._side.batch(pairs), rate, number)
            tokens += sum(len(target) for _, target in pairs)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return {"rate": tokens / (time.perf_counter() - start)}

    def _profile(self, first: int, count: int) -> dict[str, float]:
        """The share of each part in the time of these updates, done before, and tokens a second unprofiled."""
        self.answer("train", first, count)
        rate = self.answer("train", first, count)["rate"]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self.answer("train", first, count)
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
    """Which part of a step the profiler's event belongs to."""
    while event is not None:
        for part, names in PARTS.items():
            if any(name in event.name for name in names):
                return part
        event = event.cpu_parent
    return "rest"


def import_peer(kind: str) -> None:
    """What a peer needs, before memory is counted."""
    if kind == "marian":
        from transformers import MarianMTModel  # noqa: F401
        from transformers.utils import logging

        logging.set_verbosity_error()


class Ours:
    """glassformer's own step, as `glassformer train` takes it."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        sizes = {name: value for name, value in size.items() if name != "layers"}
        layers = dict(encoder_layers=size["layers"], decoder_layers=size["layers"])
        vocabulary = dict(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
        self.model = Transformer(ModelConfig(**vocabulary, **sizes, **layers)).to(device)
        self._step = Step(self.model, dtype=precision, label_smoothing=0.1, clip_norm=1.0)
        self._device = device

    def batch(self, pairs: Pairs) -> Batch:
        """As the training makes it."""
        sides = ([torch.tensor(ids) for ids in side] for side in zip(*pairs, strict=True))
        return Batch.of(*sides, PAD, PAD).to(self._device)

    def update(self, batch: Batch, rate: float, number: int) -> None:
        """One update."""
        self._step.take([batch], rate=rate, seed=number)

    def nll(self, batch: Batch) -> float:
        """Negative log-likelihood of the targets, in nats."""
        return self._step.loss(batch)[1].item()


@dataclass(frozen=True)
class Padded:
    """A batch as the peers take it."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor


class Peer:
    """A plain loop over `_logits`."""

    model: nn.Module

    def __init__(self, precision: torch.dtype, device: torch.device) -> None:
        self.model.to(device).train()
        self._precision, self._device = precision, device
        self._optimizer = torch.optim.Adam(self.model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)

    def _logits(self, batch: Padded) -> Tensor:
        raise NotImplementedError

    def batch(self, pairs: Pairs) -> Padded:
        """Ids and, for the target, what is to be predicted, padded."""
        source, target_out = (
            pad_sequence([torch.tensor(ids) for ids in side], batch_first=True, padding_value=PAD)
            for side in zip(*pairs, strict=True)
        )
        target_in = torch.cat([target_out.new_full((len(pairs), 1), PAD), target_out[:, :-1]], dim=1)
        return Padded(*(x.to(self._device) for x in (source, target_in, target_out)))

    def update(self, batch: Padded, rate: float, number: int) -> None:
        """One update."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._loss(batch, smoothing=0.1, reduction="mean").backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def nll(self, batch: Padded) -> float:
        """Negative log-likelihood of the targets, in nats."""
        return self._loss(batch, smoothing=0.0, reduction="sum").item()

    def _loss(self, batch: Padded, *, smoothing: float, reduction: str) -> Tensor:
        with torch.autocast(self._device.type, self._precision, enabled=self._precision != torch.float32):
            logits = self._logits(batch).flatten(0, 1)
            targets = batch.target_out.flatten()
            return F.cross_entropy(logits, targets, ignore_index=PAD, label_smoothing=smoothing, reduction=reduction)


class Stock(Peer):
    """torch.nn.Transformer with embeddings, positions and output layer around it."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        self.model = nn.Module()
        self.model.embedding = nn.Embedding(VOCABULARY, size["d_model"], padding_idx=PAD)
        nn.init.normal_(self.model.embedding.weight, std=size["d_model"] ** -0.5)
        self.model.transformer = nn.Transformer(
            size["d_model"],
            size["heads"],
            size["layers"],
            size["layers"],
            size["d_ff"],
            size["dropout"],
            batch_first=True,
        )
        self.model.dropout = nn.Dropout(size["dropout"])
        self.model.register_buffer("positions", sinusoids(1024, size["d_model"]))
        super().__init__(precision, device)

    def drop_as_others(self) -> None:
        """No dropout of attention weights, none inside the feed-forward layers."""
        for module in self.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0

    def _logits(self, batch: Padded) -> Tensor:
        padding = batch.source == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(batch.target_in.shape[1], device=padding.device)
        states = self.model.transformer(
            self._embed(batch.source),
            self._embed(batch.target_in),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(states, self.model.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        embedding = self.model.embedding
        x = embedding(ids) * embedding.embedding_dim**0.5 + self.model.positions[: ids.shape[1]]
        return self.model.dropout(x)


class Marian(Peer):
    """Hugging Face's Marian, whose forward takes the shifted target."""

    def __init__(self, size: dict[str, Any], precision: torch.dtype, device: torch.device) -> None:
        from transformers import MarianConfig, MarianMTModel

        stacks = {
            f"{stack}_{name}": size[ours]
            for stack in ("encoder", "decoder")
            for name, ours in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "d_ff"))
        }
        self.model = MarianMTModel(
            MarianConfig(
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
        )
        super().__init__(precision, device)

    def _logits(self, batch: Padded) -> Tensor:
        keep = (batch.source != PAD).long()
        return self.model(input_ids=batch.source, attention_mask=keep, decoder_input_ids=batch.target_in).logits


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        bench.serve(Side(sys.argv[2], Path(sys.argv[3])).answer)
    else:
        tyro.cli(main)
