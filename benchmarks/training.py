"""Training speed: glassformer against a plain loop over torch.nn.Transformer and over Hugging Face's Marian.

    python benchmarks/training.py --data DIR [--only tiny base breakdown cost loss gpu shapes]
    python benchmarks/training.py --draw

DIR is a folder with train.en, train.de, val.en and val.de (Multi30k, data/task1/raw of
https://github.com/multi30k/dataset); a joint BPE of 10,000 pieces; batches of like length. tiny is d_model 128, 4+4
layers, 4 heads, d_ff 256, dropout 0.3, batches of 4,096 tokens; base 512, 6+6, 8, 2048, 0.1, batches of 2,048.

Every side is a process of its own with two threads; they take turns over the same batches, with pauses. A turn is a
whole update: forward, label-smoothed loss (0.1), backward, clipping to norm 1, fused Adam. The peers: embeddings tied
and scaled, scaled-dot-product attention, in float32 and in bfloat16 autocast. `torch.nn.Transformer` has its dropout
also on attention weights and inside the feed-forward layers, and no way to ask for less; "plain dropout" are its
figures with these two set to 0 by hand, which is what glassformer and Marian compute. training_sides.py has all sides.

As in the first epoch of a training, every batch is new to all sides; batches are cut as glassformer does it, by real
tokens, and padded for the peers (how much is printed). glassformer sets the process's memory up as `train` does
(`device.tame_memory`); the peers run as their users would.

Prints target tokens/s and peak memory above what the imports take; the ratios come last and go, with all the rest, to
benchmarks/results/training.jsonl. Needs the extra huggingface.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import torch
import tyro
from training_sides import SIZES, THREADS, VOCABULARY, Pairs, Sides

from glassformer.device import pick_precision, tame_memory
from glassformer.pictures import MAIN, MUTED, SMALL, new_figure, save_figure, style_axes
from glassformer.pictures import PEERS as PEER_COLORS
from glassformer.text.batching import plan_batches
from glassformer.text.tokenizer import EOS, SubwordTokenizer

PRECISIONS = ("float32", "bfloat16")
OURS = tuple(f"ours {precision}" for precision in PRECISIONS)
PEERS = tuple(f"{peer} {precision}" for peer in ("stock", "plain-dropout", "marian") for precision in PRECISIONS)
UPDATES = {"tiny": 6, "base": 2}  # of a turn on a CPU
WIDTHS, BATCHES = (64, 128, 256, 512), (512, 1024, 2048, 4096, 8192, 16384)
COMPARED = {"torch.nn.Transformer": "stock", "Hugging Face Marian": "marian"}
"""The peers in the picture, by their names there."""
PLOT = Path(__file__).parents[1] / "docs" / "img" / "training_speed.png"
Part = Literal["tiny", "base", "breakdown", "cost", "loss", "gpu", "shapes"]


def main(
    data: Path | None = None,
    only: tuple[Part, ...] = get_args(Part),
    rounds: int = 5,
    updates: int = 600,
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5),
    widths: tuple[int, ...] = WIDTHS,
    batches: tuple[int, ...] = BATCHES,
    plot: Path = PLOT,
    draw: bool = False,
) -> None:
    """Measure the parts named by `only`.

    Args:
        data: Folder with train.en, train.de, val.en, val.de.
        only: tiny, base (speed and memory of that size), breakdown (of our step), cost (speed by width and by batch,
            plotted in docs), loss (after equal updates), gpu, shapes (our updates on a GPU, of batches with new shapes
            and with the same again).
        rounds: Turns of each side.
        updates: Updates after which validation losses are compared.
        seeds: Seeds of each side whose validation losses are compared.
        widths: The d_model of each point of `cost`.
        batches: The batch tokens of each point of `cost`.
        plot: Where `cost` is drawn.
        draw: Only draw the last cost on record.
    """
    if draw:
        draw_cost(bench.last("training", "cost"), plot)
        return
    if data is None:
        raise SystemExit("training.py: error: give --data DIR, or --draw")
    tame_memory()
    torch.set_num_threads(THREADS)
    print(bench.machine())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_batches(data, folder)
        parts: dict[Part, Callable[[], Any]] = {
            "tiny": lambda: speed(folder, "tiny", (*OURS, *PEERS), rounds, UPDATES["tiny"]),
            "base": lambda: speed(folder, "base", (*OURS, *PEERS), rounds, UPDATES["base"]),
            "breakdown": lambda: breakdown(folder),
            "cost": lambda: cost(folder, rounds, widths, batches, plot),
            "loss": lambda: losses(folder, updates, seeds),
            "gpu": lambda: gpu(folder, rounds),
            "shapes": lambda: shapes(folder),
        }
        measured = {part: parts[part]() for part in only}
    bench.keep("training", measured)
    for part, found in measured.items():
        print(f"{part}: {found if isinstance(found, str) else found['summary']}")


def write_batches(data: Path, folder: Path) -> None:
    """Write every side's batches, as ids."""
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
    """Return the share of padding if each batch is as long as its longest pair."""
    lengths = [[len(pair[side]) for pair in batch] for batch in batches]
    return 1 - sum(map(sum, lengths)) / sum(max(batch) * len(batch) for batch in lengths)


def speed(
    folder: Path,
    size: str,
    names: tuple[str, ...],
    rounds: int,
    updates: int,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure target tokens per second and the peak of memory of each side, in turns of `updates`."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    with Sides(names, size, folder, settings=settings) as sides:
        for turn in range(rounds + 1):
            for name, kept in rates.items():
                rate = sides.ask(name, "train", turn * updates, updates)
                kept += [rate] if turn else []
        memory = {name: sides.ask(name, "memory") for name in names}
    found: dict[str, Any] = {}
    for name, kept in rates.items():
        found[name] = {"median": statistics.median(kept), "low": min(kept), "high": max(kept), "MiB": memory[name]}
        print(
            f"  {size}  {name:24} {found[name]['median']:7.0f} tokens/s ({min(kept):.0f} to {max(kept):.0f})"
            f"  peak {memory[name]:6.0f} MiB"
        )
    ratios = {}
    for ours in (name for name in names if name.startswith("ours")):
        for peer in (name for name in names if not name.startswith("ours")):
            # Turn by turn: what the machine does to one, it mostly does to its neighbours.
            by_turn = [a / b for a, b in zip(rates[ours], rates[peer], strict=True)]
            ratios[f"{ours} / {peer}"] = statistics.median(by_turn)
    summary = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return found | {"ratios": ratios, "summary": summary}


def breakdown(folder: Path) -> dict[str, Any]:
    """Print the time of each part of our step, by the profiler, and what its products alone would allow."""
    found: dict[str, Any] = {}
    summary = []
    for size, updates in UPDATES.items():
        with Sides(("ours bfloat16",), size, folder) as sides:
            shares = sides.ask("ours bfloat16", "profile", 0, 3 * updates)
        rate, peak = shares.pop("rate"), {kind: products_peak(getattr(torch, kind)) for kind in PRECISIONS}
        allowed = {kind: peak[kind] / operations(SIZES[size]) for kind in PRECISIONS}
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        for name, share in ordered:
            print(f"  {size}  {name:12} {share:6.1%}")
        limits = " and ".join(f"{allowed[kind]:.0f} in {kind}" for kind in PRECISIONS)
        print(f"  {size}  {rate:.0f} tokens/s; at the measured peak the products alone allow {limits}")
        found[size] = {"shares": shares, "rate": rate, "peak": peak, "products allow": allowed}
        listed = ", ".join(f"{name} {share:.0%}" for name, share in ordered)
        floor = f"its products at the peak would take {rate / allowed['bfloat16']:.0%}"
        summary.append(f"{size}: {listed} ({floor})")
    return found | {"summary": "; ".join(summary)}


def operations(size: dict[str, Any]) -> float:
    """Return the multiplications and additions of the linear maps for a target token, forward and backward.

    It counts one source token for each target token.
    """
    d, ff = size["d_model"], size["d_ff"]
    forward = size["layers"] * (4 * d * d + 2 * d * ff) + size["layers"] * (8 * d * d + 2 * d * ff) + VOCABULARY * d
    return 3 * 2 * forward


def products_peak(dtype: torch.dtype, device: str = "cpu", size: int = 2048) -> float:
    """Return the operations per second of one large product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(9):
        start = time.perf_counter()
        torch.mm(a, b)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times)


def gpu(
    folder: Path, rounds: int, device: str = "cuda", sizes: tuple[str, ...] = ("base", "big"), updates: int = 20
) -> dict[str, Any] | str:
    """Measure speed and memory on a GPU in bfloat16, and the fraction of the measured peak of products.

    Only operations of real tokens count, so padding is the peers' loss. Batches are made one ahead
    for all sides; those of big come again.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return "not run: this machine has no GPU"
    names = tuple(f"{kind} bfloat16 {device}" for kind in ("ours", "stock", "marian"))
    peak = max(products_peak(torch.bfloat16, device, 8192) for _ in range(20))  # an idle GPU takes a while to speed up
    found: dict[str, Any] = {"peak": peak}
    summary = []
    for size in sizes:
        found[size] = speed(folder, size, names, rounds, updates)
        for name in names:
            reached = found[size][name]["of the peak"] = found[size][name]["median"] * operations(SIZES[size]) / peak
            print(f"  {size}  {name:24} {reached:.1%} of the peak, {peak / 1e12:.1f} TFLOP/s")
        ours = found[size][names[0]]
        figures = f"{ours['median']:.0f} tokens/s, {ours['MiB']:.0f} MiB, {ours['of the peak']:.1%} of the peak"
        summary.append(f"{size}: {figures}, {found[size]['summary']}")
    return found | {"summary": "; ".join(summary)}


def shapes(folder: Path, device: str = "cuda", size: str = "base", updates: int = 20) -> dict[str, Any] | str:
    """Measure updates of new shapes and of shapes seen before, with torch's own choice of attention and with ours."""
    if device == "cuda" and not torch.cuda.is_available():
        return "not run: this machine has no GPU"
    found: dict[str, Any] = {}
    for what in ("plans", "shapes"):  # each in a process of its own, for plans are kept
        with Sides((f"ours bfloat16 {device}",), size, folder) as sides:
            found[what] = sides.ask(f"ours bfloat16 {device}", what, 0, updates)
        print(f"  {what:6}  " + ", ".join(f"{name} {value:.1f}" for name, value in found[what].items()))
    ratios = (f"{name} {found['plans'][name] / found['shapes'][name]:.2f}" for name in ("new", "again"))
    return found | {"summary": f"torch's own choice over ours: {', '.join(ratios)}"}


def cost(folder: Path, rounds: int, widths: tuple[int, ...], batches: tuple[int, ...], plot: Path) -> dict[str, Any]:
    """Measure and plot speed by d_model (4+4 layers, heads 32 wide, d_ff 2 d_model) and by batch tokens (d_model 128).

    Each peer runs in float32 and in bfloat16; the faster counts.
    """
    pairs = [pair for batch in json.loads((folder / "train.tiny.json").read_text()) for pair in batch]
    lengths = [torch.tensor([len(pair[side]) for pair in pairs]) for side in (0, 1)]
    precision = pick_precision("auto", torch.device("cpu"))
    ours = f"ours {str(precision).removeprefix('torch.')}"
    peak = max(products_peak(precision) for _ in range(5))  # the machine is shared: the best of a few
    found: dict[str, Any] = {"precision": str(precision), "peak": peak}
    measured: dict[tuple[int, int], dict[str, float]] = {}
    summary = []
    for name, points in (("d_model", [(d, 4096) for d in widths]), ("batch_tokens", [(128, n) for n in batches])):
        for side in ("", *COMPARED, "products allow"):
            found[f"{name}: {side}" if side else name] = {}
        for point in points:
            d_model, batch_tokens = point
            settings = dict(d_model=d_model, layers=4, heads=d_model // 32, d_ff=2 * d_model, dropout=0.1)
            if point not in measured:  # the two lines cross in one
                plan = plan_batches(*lengths, batch_tokens=batch_tokens, seed=1, epoch=0)
                size = f"d{d_model}-{batch_tokens}"
                (folder / f"train.{size}.json").write_text(json.dumps([[pairs[i] for i in batch] for batch in plan]))
                sides = (ours, *(f"{kind} {each}" for kind in COMPARED.values() for each in PRECISIONS))
                by_side = speed(folder, size, sides, rounds, 2 + 8192 // batch_tokens, settings)
                rates = {kind: max(by_side[f"{kind} {e}"]["median"] for e in PRECISIONS) for kind in COMPARED.values()}
                measured[point] = rates | {"ours": by_side[ours]["median"]}
            value = d_model if name == "d_model" else batch_tokens
            found[name][value] = measured[point]["ours"]
            for peer, kind in COMPARED.items():
                found[f"{name}: {peer}"][value] = measured[point][kind]
            found[f"{name}: products allow"][value] = peak / operations(settings)
        ends = [f"{value}: " + ", ".join(f"{rate:.0f}" for rate in rates) for value, rates in ends_of(found, name)]
        summary.append(f"{name} {'; '.join(ends)} tokens/s")
    draw_cost(found, plot)
    return found | {"summary": f"glassformer, {', '.join(COMPARED)}: {'; '.join(summary)}"}


def ends_of(found: dict[str, Any], name: str) -> list[tuple[int, list[float]]]:
    """Return the first and the last value of a line, with the rates of all sides."""
    values = list(found[name])
    lines = [found[name], *(found[f"{name}: {peer}"] for peer in COMPARED)]
    return [(value, [line[value] for line in lines]) for value in dict.fromkeys((values[0], values[-1]))]


def draw_cost(found: dict[str, Any], plot: Path) -> None:
    """Draw both lines side by side from a record: ours, the peers, and what the products alone would allow."""
    figure = new_figure("the cost", figsize=(9.6, 4.4), dpi=130)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"d_model": "Batches of 4,096 tokens, by width", "batch_tokens": "Width 128, by size of batch"}
    labels = {"d_model": "d_model", "batch_tokens": "tokens in a batch"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        lines: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
            "matrix products alone, at the processor's peak": (
                found[f"{name}: products allow"],
                dict(color=MUTED, linestyle="--", linewidth=1.2),
            ),
            "glassformer": (found[name], dict(color=MAIN, marker="o", linewidth=2)),
        }
        for (peer, color), marker in zip(zip(COMPARED, PEER_COLORS, strict=True), "s^", strict=True):
            lines[peer] = found.get(f"{name}: {peer}", {}), dict(color=color, marker=marker)
        for label, (rates, style) in lines.items():
            if rates:  # a record may lack the peers
                axes.plot([int(value) for value in rates], list(rates.values()), label=label, **style)
        axes.set(xscale="log", yscale="log")
        values = [int(value) for value in found[name]]
        axes.set_xticks(values, [f"{value:,}" for value in values], minor=False)
        axes.minorticks_off()
        axes.margins(x=0.09)
        axes.yaxis.set_major_formatter("{x:,g}")
        for value, rate in found[name].items():
            above: dict[str, Any] = dict(textcoords="offset points", xytext=(0, 8), ha="center", fontsize=SMALL)
            axes.annotate(f"{rate / 1000:.1f}k", (int(value), rate), color=MAIN, **above)
        style_axes(axes, title=title, x=labels[name], y="target tokens per second")
    panels[1].set_ylabel("")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save_figure(figure, plot)


def losses(folder: Path, updates: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Compare validation losses (nats per token, unsmoothed) of tiny after equal batches, with the same seeds a side.

    A check that training is sound: ours as it trains and in float32, theirs in float32. Ours has the final norms here
    that nn.Transformer always has. Each draws its own first weights by the same rule, but for the biases of the
    feed-forward layers, which are small numbers in nn.Transformer and 0 in ours.
    """
    names = ("final-norm float32", "plain-dropout float32", "final-norm bfloat16")
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in seeds:
        for name, kept in found.items():
            with Sides((name,), "tiny", folder, seed) as sides:
                sides.ask(name, "train", 0, updates)
                kept.append(sides.ask(name, "valid"))
            print(f"  {name}, seed {seed}: validation loss {kept[-1]:.4f} after {updates} updates", flush=True)
    summary = "; ".join(
        f"{name} {statistics.mean(kept):.4f} ({min(kept):.4f} to {max(kept):.4f})" for name, kept in found.items()
    )
    return found | {"updates": updates, "seeds": seeds, "summary": f"after {updates} updates {summary}"}


if __name__ == "__main__":
    tyro.cli(main)
