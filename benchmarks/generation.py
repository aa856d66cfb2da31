"""Generation with the 61M base model: glassformer against Hugging Face and CTranslate2, on the same sentences.

    python benchmarks/generation.py --data DIR [--only throughput latency memory curve gpu]
    python benchmarks/generation.py --draw

DIR holds sources of WMT22's general test set (generaltest2022.en-de.src.en and others of
https://github.com/wmt-conference/wmt22-news-systems, txt/sources), which also make the 32,000 pieces of vocabulary. The
model (d_model 512, 6+6 layers, 8 heads, d_ff 2048, swish) has random weights in the Marian layout; every translation is
forced to 25 tokens. Each side is a process of its own; they take turns, with pauses, so that neither's threads spin
while the other works. Every side has two threads: CTranslate2 as two workers of one thread and as one of two (the
faster counts), glassformer as it divides them itself. Before `throughput` times anything, float32 ids are compared.

Prints tokens/s, latency (median, p95), memory above what the imports take, the time to load, and what the matrix
products of a step alone would allow; the ratios come last and go, with all the rest, to
benchmarks/results/generation.jsonl. `curve` measures batches of 1 to 256 with a beam of 4, and draws them in
docs/img/generation_speed.png (extra `plots`), which `--draw` does anew from the last curve on record. Needs the extras
huggingface and ctranslate2.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import bench
import torch
import tyro

from glassformer.generation.config import SearchConfig
from glassformer.interop.huggingface import export_marian, import_marian
from glassformer.pictures import ACCENT, MAIN, MUTED, SMALL, new_figure, save_figure, style_axes
from glassformer.run.folder import Run
from glassformer.text.loading import load_tokenizer
from glassformer.text.tokenizer import SubwordTokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE = "generaltest2022.en-de.src.en"
VOCABULARY, TOKENS, BATCH, SENTENCES, THREADS = 32_000, 25, 32, 128, 2
OURS = ("ours auto", "ours float32")
CT2 = tuple(f"ctranslate2 {kind} {form}" for kind in ("int8", "float32") for form in ("2x1", "1x2"))
SIDES = (*OURS, *CT2, "huggingface")
Translate = Callable[[list[str], int, int | None], list[list[str]]]
"""Makes tokens of lines, with a beam of a size, in batches of a size or as many as usual."""
Part = Literal["throughput", "latency", "memory", "curve", "gpu"]
CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LINES = {  # of the picture: the sides of each, of which the faster counts, and how it is drawn
    "glassformer, auto": (("ours auto",), dict(color=MAIN, marker="^")),
    "glassformer, float32": (("ours float32",), dict(color=MAIN, marker="v", linestyle="--")),
    "CTranslate2, int8": (("ctranslate2 int8 2x1", "ctranslate2 int8 1x2"), dict(color=ACCENT, marker="o")),
    "CTranslate2, float32": (
        ("ctranslate2 float32 2x1", "ctranslate2 float32 1x2"),
        dict(color=ACCENT, marker="o", linestyle="--"),
    ),
    "Hugging Face, float32": (("huggingface",), dict(color=MUTED, marker="s")),
}
PICTURE = Path(__file__).parents[1] / "docs" / "img" / "generation_speed.png"


def main(
    data: Path | None = None, only: tuple[Part, ...] = get_args(Part), rounds: int = 7, draw: bool = False
) -> None:
    """Measure the parts named by `only`.

    Args:
        data: Folder with the WMT22 sources.
        only: throughput, latency, memory, curve (twelve minutes with --rounds 2), gpu.
        rounds: Turns of each side; Hugging Face's are at most three.
        draw: Only draw the last curve on record.
    """
    if draw:
        draw_curve(bench.last("generation", "curve"))
        return
    if data is None:
        raise SystemExit("generation.py: error: give --data DIR, or --draw")
    print(bench.machine())
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build(data, folder)
        measured = {part: MEASURE[part](folder, rounds) for part in only}
    bench.keep("generation", measured)
    for part, found in measured.items():
        print(f"{part}: {found if isinstance(found, str) else found['summary']}")


def build(data: Path, folder: Path) -> None:
    """Make the model as a run and as a model of CTranslate2, and choose the sentences."""
    lines = [line for path in sorted(data.glob("*.*.*")) for line in path.read_text(encoding="utf-8").splitlines()]
    tokenizer = SubwordTokenizer.train(lines, kind="bpe", vocab_size=VOCABULARY, seed=1, coverage=0.9995)
    torch.manual_seed(1)
    sizes = dict(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
    model = Transformer(ModelConfig.base(**sizes, activation="swish")).eval()
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} million parameters")
    export_marian(Run(model, tokenizer, tokenizer, {}), folder / "marian")
    import_marian(folder / "marian", folder / "run")
    if find_spec("ctranslate2") is not None:  # a GPU machine may lack it
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder / "marian")).convert(str(folder / "ctranslate2"))
    sources = (data / SOURCE).read_text(encoding="utf-8").splitlines()
    order = torch.randperm(len(sources), generator=torch.Generator().manual_seed(1)).tolist()
    chosen = [sources[i] for i in order if sources[i].strip()][:SENTENCES]
    (folder / "sentences").write_text("\n".join(chosen), encoding="utf-8")


def throughput(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure tokens per second, in batches of 32 sentences, with beams of 4 and 1."""
    found: dict[str, Any] = {}
    with Sides(SIDES, folder) as sides:
        compare(sides, ("ours float32", "ctranslate2 float32 1x2", "huggingface"))
        for beam in (4, 1):
            rates = sides.rates(beam, rounds)
            found[f"beam {beam}"] = rates
            for side, rate in rates.items():
                print(
                    f"  beam {beam}  {side:24} {rate['median']:6.0f} tokens/s ({rate['low']:.0f} to {rate['high']:.0f})"
                )
            for kind in ("float32", "bfloat16"):
                limit = found[f"beam {beam}"][f"limit {kind}"] = products_allow(beam, getattr(torch, kind))
                print(f"  beam {beam}  products alone, {kind:8} {limit:6.0f} tokens/s")
    summary = []
    for beam in (4, 1):
        rates = found[f"beam {beam}"]
        best = {kind: max(rates[s]["median"] for s in CT2 if kind in s) for kind in ("int8", "float32")}
        auto, exact = (rates[side]["median"] for side in OURS)
        ratios = found[f"ratios, beam {beam}"] = {
            "auto / CTranslate2 int8": auto / best["int8"],
            "auto / Hugging Face": auto / rates["huggingface"]["median"],
            "float32 / CTranslate2 float32": exact / best["float32"],
        }
        summary += [f"beam {beam}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())]
    return found | {"summary": "; ".join(summary)}


def latency(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the milliseconds of one sentence at a time."""
    found: dict[str, Any] = {}
    kinds = (*OURS, *(side for side in CT2 if side.endswith("1x2")))
    with Sides(kinds, folder) as sides:
        for beam in (1, 4):
            times = sides.latencies(beam, sentences=6 * rounds)
            for side, ms in times.items():
                ordered = sorted(ms)
                found[f"{side}, beam {beam}"] = {
                    "median": statistics.median(ms),
                    "p95": ordered[int(0.95 * len(ms))],
                }
                print(
                    f"  beam {beam}  {side:24} {statistics.median(ms):6.1f} ms  p95 {ordered[int(0.95 * len(ms))]:6.1f}"
                )
    medians = {name: value["median"] for name, value in found.items()}
    ratios = {
        beam: min(ms for name, ms in medians.items() if "ctranslate2" in name and name.endswith(str(beam)))
        / medians[f"ours auto, beam {beam}"]
        for beam in (1, 4)
    }
    summary = ", ".join(f"beam {beam}: CTranslate2's fastest / ours {ratio:.2f}" for beam, ratio in ratios.items())
    return found | {"ratios": ratios, "summary": summary}


def memory(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure MiB above the imports after batches with beam 4, and seconds to load, each in a fresh process."""
    found: dict[str, Any] = {}
    for side in (*OURS, *CT2):
        with Sides((side,), folder) as sides:
            sides.ask(side, "translate", SENTENCES, 4)
            found[side] = sides.ask(side, "memory", 0, 0)
        print(f"  {side:24} {found[side]['MiB']:6.0f} MiB  loaded in {found[side]['load']:.2f} s")
    ratios = {  # to each form of theirs: two workers as ours, and one
        side: found[f"ours {'float32' if 'float32' in side else 'auto'}"]["MiB"] / found[side]["MiB"] for side in CT2
    }
    summary = ", ".join(f"{ratio:.2f} of {side}" for side, ratio in ratios.items())
    summary += f"; loads in {found['ours float32']['load']:.2f} s"
    return found | {"ratios": ratios, "summary": summary}


def curve(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure tokens per second with a beam of 4 in batches of 1 to 256: two batches, and 16 sentences at the least."""
    found: dict[str, Any] = {"batches": list(CURVE)}
    with Sides(SIDES, folder) as sides:
        for batch in CURVE:
            rates: dict[str, list[float]] = {name: [] for name in SIDES}
            for turn in range(rounds + 1):  # the first warms up
                for name in SIDES if turn or batch <= BATCH else OURS:
                    rate = sides.ask(name, "batch", batch, 4)
                    if turn:
                        rates[name].append(rate)
            for name, kept in rates.items():
                found.setdefault(name, []).append(statistics.median(kept))
            print(f"  {batch:4} " + ", ".join(f"{name} {found[name][-1]:.0f}" for name in SIDES), flush=True)
    draw_curve(found)
    best = [max(found[side][n] for side in CT2 if "int8" in side) for n in range(len(CURVE))]
    ratios = [ours / theirs for ours, theirs in zip(found["ours auto"], best, strict=True)]
    summary = "auto / CTranslate2 int8 " + ", ".join(f"{r:.2f} at {b}" for b, r in zip(CURVE, ratios, strict=True))
    return found | {"summary": summary}


def draw_curve(found: dict[str, Any]) -> None:
    figure = new_figure("generation", figsize=(7.6, 4.6), dpi=110)
    axes = figure.subplots()
    for name, (sides, style) in LINES.items():
        best = [max(rates) for rates in zip(*(found[side] for side in sides), strict=True)]
        axes.plot(found["batches"], best, label=name, markersize=5, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(found["batches"], [str(n) for n in found["batches"]])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=SMALL)
    style_axes(axes, title="Beam 4, 61M parameters, two threads", x="sentences of a batch", y="tokens per second")
    save_figure(figure, PICTURE)


def gpu(folder: Path, rounds: int) -> dict[str, Any] | str:
    """Measure batches of 64 with beam 4 on a GPU, in half precision."""
    if not torch.cuda.is_available():
        return "not run: this machine has no GPU"
    exact = ("ours float32 cuda", "huggingface float32 cuda")
    with Sides(exact, folder) as sides:
        compare(sides, exact)
    names = ["ours auto cuda", "huggingface float16 cuda"]
    if find_spec("ctranslate2") is not None:
        import ctranslate2

        if ctranslate2.get_cuda_device_count():
            names.append("ctranslate2 float16 cuda")
    with Sides(tuple(names), folder) as sides:
        rates = sides.rates(4, rounds)
    ratios = {name: rates[names[0]]["median"] / rates[name]["median"] for name in names[1:]}
    return rates | {"ratios": ratios, "summary": ", ".join(f"{ratio:.2f} of {name}" for name, ratio in ratios.items())}


MEASURE: dict[Part, Callable[[Path, int], Any]] = {
    "throughput": throughput,
    "latency": latency,
    "memory": memory,
    "curve": curve,
    "gpu": gpu,
}


class Sides(bench.Sides):
    """The sides with the model in `folder`."""

    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        super().__init__(__file__, names, folder)

    def rates(self, beam: int, rounds: int) -> dict[str, dict[str, float]]:
        """Return the tokens per second of each side, in turn."""
        for name in self.names:
            self.ask(name, "translate", BATCH, beam)
        rates: dict[str, list[float]] = {name: [] for name in self.names}
        for turn in range(rounds):
            for name, kept in rates.items():
                if turn < (3 if "huggingface" in name else rounds):
                    kept.append(SENTENCES * TOKENS / self.ask(name, "translate", SENTENCES, beam)["seconds"])
        return {
            name: {"median": statistics.median(kept), "low": min(kept), "high": max(kept)}
            for name, kept in rates.items()
        }

    def latencies(self, beam: int, sentences: int) -> dict[str, list[float]]:
        """Return the milliseconds of each sentence, one side after the other for each."""
        for name in self.names:
            for number in range(3):
                self.ask(name, "one", number, beam)
        times: dict[str, list[float]] = {name: [] for name in self.names}
        for number in range(sentences):
            for name, kept in times.items():
                kept.append(1e3 * self.ask(name, "one", number, beam)["seconds"])
        return times


def compare(sides: Sides, names: tuple[str, ...]) -> None:
    """Exit unless the float32 ids are the same on all these sides, apart from ties."""
    for beam in (1, 4):
        ids = {name: sides.ask(name, "ids", BATCH, beam) for name in names}
        for name in names[1:]:
            same = sum(a == b for a, b in zip(ids[name], ids[names[0]], strict=True))
            print(f"  beam {beam}: {name} gives the ids of {names[0]} for {same} of {BATCH} sentences")
            if same < BATCH - 2:
                raise SystemExit("the sides don't do the same work")


def products_allow(beam: int, dtype: torch.dtype) -> float:
    """Return the tokens per second of steps that were nothing but their matrix products at the measured peak."""
    size = 2048
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    times = []
    for _ in range(9):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    rate = 2 * size**3 / statistics.median(times)
    d, ff, layers = 512, 2048, 6
    row = layers * (6 * d * d + 2 * d * ff) + VOCABULARY * d  # self: 4 d², source: 2 d² a token
    return rate / (2 * row * beam)


class Side:
    """The code that runs in a side's process."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.set_num_threads(THREADS)
        self._sentences = (folder / "sentences").read_text(encoding="utf-8").split("\n")
        loaders = {"ours": self._ours, "ctranslate2": self._ctranslate2, "huggingface": self._huggingface}
        kind, *options = name.split()
        load = loaders[kind](folder, options)
        before, start = bench.status("VmRSS"), time.perf_counter()
        self._translate = load()
        self._load = time.perf_counter() - start
        self._before = before

    def answer(self, what: str, number: int, beam: int) -> Any:
        if what == "memory":
            return {"MiB": (bench.status("VmHWM") - self._before) / 1024, "load": self._load}
        batch = number if what == "batch" else None
        if what == "one":
            lines = [self._sentences[number % SENTENCES]]
        elif batch:
            lines = [self._sentences[n % SENTENCES] for n in range(max(2 * batch, 16))]
        else:
            lines = self._sentences[:number]
        start = time.perf_counter()
        found = self._translate(lines, beam, batch)
        seconds = time.perf_counter() - start
        if any(len(ids) != TOKENS for ids in found):
            raise SystemExit(f"a translation has not {TOKENS} tokens")
        if batch:
            return len(lines) * TOKENS / seconds
        return found if what == "ids" else {"seconds": seconds}

    def _ours(self, folder: Path, options: list[str]) -> Callable[[], Translate]:
        from glassformer.generation.translator import Translator

        device, precision = "cuda" if "cuda" in options else "cpu", options[0]
        usual = 64 if device == "cuda" else BATCH

        def load() -> Translate:
            translator = Translator.load(folder / "run", device, precision)

            def translate(lines: list[str], beam: int, batch: int | None) -> list[list[str]]:
                config = SearchConfig(
                    beam=beam, min_length=TOKENS, max_length=TOKENS, batch_lines=batch or usual, batch_tokens=1 << 24
                )
                return [found[0].tokens for found in translator.translate_n_best(lines, config)]

            return translate

        return load

    def _ctranslate2(self, folder: Path, options: list[str]) -> Callable[[], Translate]:
        import ctranslate2

        tokenizer = load_tokenizer(folder / "marian" / "source.spm")
        device = "cuda" if "cuda" in options else "cpu"
        inter, intra = map(int, options[1].split("x")) if device == "cpu" else (1, 0)

        def load() -> Translate:
            translator = ctranslate2.Translator(
                str(folder / "ctranslate2"),
                device=device,
                compute_type=options[0],
                inter_threads=inter,
                intra_threads=intra,
            )

            def translate(lines: list[str], beam: int, batch: int | None) -> list[list[str]]:
                tokens = [[*tokenizer.tokens(ids), "</s>"] for ids in tokenizer.encode(lines)]
                results = translator.translate_batch(
                    tokens,
                    beam_size=beam,
                    max_batch_size=batch or (64 if device == "cuda" else BATCH),
                    min_decoding_length=TOKENS,
                    max_decoding_length=TOKENS,
                    length_penalty=1.0,
                )
                return [result.hypotheses[0] for result in results]

            return translate

        return load

    def _huggingface(self, folder: Path, options: list[str]) -> Callable[[], Translate]:
        from transformers import MarianMTModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        tokenizer = load_tokenizer(folder / "marian" / "source.spm")
        device = "cuda" if "cuda" in options else "cpu"
        usual = 64 if device == "cuda" else BATCH

        def load() -> Translate:
            kind = torch.float16 if "float16" in options else torch.float32
            model = MarianMTModel.from_pretrained(folder / "marian", dtype=kind).eval().to(device)
            pad = VOCABULARY - 1

            def translate(lines: list[str], beam: int, batch: int | None) -> list[list[str]]:
                encoded = [[*ids, 0] for ids in tokenizer.encode(lines)]
                order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))  # as the others do
                found: dict[int, list[str]] = {}
                at_once = batch or usual
                for first in range(0, len(order), at_once):
                    chosen = order[first : first + at_once]
                    longest = len(encoded[chosen[0]])
                    ids = torch.tensor([encoded[i] + [pad] * (longest - len(encoded[i])) for i in chosen]).to(device)
                    output = model.generate(
                        input_ids=ids,
                        attention_mask=(ids != pad).long(),
                        num_beams=beam,
                        min_new_tokens=TOKENS,
                        max_new_tokens=TOKENS,
                        length_penalty=1.0,
                        forced_eos_token_id=None,
                        do_sample=False,
                    )
                    for i, row in zip(chosen, output[:, 1:].tolist(), strict=True):
                        found[i] = tokenizer.tokens(row)
                return [found[i] for i in range(len(lines))]

            return translate

        return load


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        bench.serve(Side(sys.argv[2], Path(sys.argv[3])).answer)
    else:
        tyro.cli(main)
