"""A run exported to ONNX: the same translations as ours, what int8 costs, and speed beside CTranslate2.

    python benchmarks/onnx_graphs.py --run RUN --pairs FILE.tsv --metric exact|bleu [--packages node_modules]

RUN is a run folder, such as that of `glassformer demo` (with the pairs runs/dates-data/test.tsv) or one of Multi30k;
FILE has a source and a target on each line, of which the first 500 are translated, greedily. Before anything is timed,
the float32 graphs' translations are compared with ours. Then each side translates all lines in batches of at
most 64, and the first 100 one by one, in turn, in one process, with one thread each. Times are of the processor, which
other work on the machine adds little to; the ratios are to CTranslate2's int8. With npm's `--packages`, those of `make
web`, transformers.js translates the lines in Node from the same float32 graphs, and its texts are compared. Results go
to benchmarks/results/onnx_graphs.jsonl. Needs the extras onnx and ctranslate2.
"""

import json
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import bench
import ctranslate2
import torch
import tyro

from glassformer import SearchConfig, Translator, score
from glassformer.interop.ctranslate2 import export_ctranslate2
from glassformer.interop.onnx.export import export_onnx
from glassformer.interop.onnx.generate import OnnxTranslator
from glassformer.run.folder import Run, load_run

LINES, SINGLE, BATCH = 500, 100, 64
GREEDY = SearchConfig(beam=1, batch_lines=BATCH)
KINDS = ("float32", "int8")
PEER = "CTranslate2 int8"
Translate = Callable[[list[str]], list[str]]


def main(
    run: Path, pairs: Path, metric: Literal["exact", "bleu"], rounds: int = 9, packages: Path | None = None
) -> None:
    """Compare, then time.

    Args:
        run: The run folder.
        pairs: Pairs of source and target, separated by a tab.
        metric: The score of translations.
        rounds: Turns of each side.
        packages: The folder of npm's packages, such as .venv/web/node_modules.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(bench.machine())
    rows = [line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines()[:LINES]]
    lines, references = [row[0] for row in rows], [row[1] for row in rows]
    with tempfile.TemporaryDirectory() as scratch:
        sides, files = prepare(load_run(run), run, Path(scratch))
        others = {} if packages is None else {"transformers.js": in_node(Path(scratch), packages, lines)}
    translated = {name: side(lines) for name, side in sides.items()} | others
    same = {
        name: sum(a == b for a, b in zip(texts, translated["ours float32"], strict=True))
        for name, texts in translated.items()
    }
    scores = {name: score(texts, references, metric).value for name, texts in translated.items()}
    if same["onnxruntime float32"] != len(lines):
        raise SystemExit(f"{len(lines) - same['onnxruntime float32']} lines differ between onnxruntime and ours")
    measured: dict[str, Any] = {"run": run.name, "metric": metric, "lines": len(lines), "same": same, "score": scores}
    measured["bytes"] = files
    for way, tasks in (("batches", [lines]), ("one by one", [[line] for line in lines[:SINGLE]])):
        measured[way] = timed(sides, tasks, rounds)
    print(f"{'':22}{'same':>6}{metric:>8}" + "".join(f"{way:>12} ratio" for way in ("batches", "one by one")))
    for name in others:
        print(f"{name:22}{same[name]:6}{scores[name]:8.2f}")
    for name in sides:
        ways = (measured[way][name] for way in ("batches", "one by one"))
        times = "".join(f"{found['ms']:9.2f} ms{found['ratio']:6.2f}" for found in ways)
        print(f"{name:22}{same[name]:6}{scores[name]:8.2f}{times}")
    print(", ".join(f"{name}: {size:,} bytes" for name, size in files.items()))
    bench.keep("onnx_graphs", measured)


def prepare(run: Run, folder: Path, scratch: Path) -> tuple[dict[str, Translate], dict[str, int]]:
    """Return every side's function that translates lines, and how large its graphs are."""
    sides: dict[str, Translate] = {}
    files = {}
    for kind in KINDS:
        ours = Translator.load(folder, precision=kind)
        sides[f"ours {kind}"] = lambda lines, ours=ours: ours.translate(lines, GREEDY)
    for kind in KINDS:
        out = scratch / f"onnx-{kind}"
        export_onnx(run, out, None if kind == "float32" else kind)
        graphs = OnnxTranslator.load(out, None if kind == "float32" else kind, threads=1)
        files[f"onnxruntime {kind}"] = sum(path.stat().st_size for path in (out / "onnx").iterdir())
        sides[f"onnxruntime {kind}"] = lambda lines, graphs=graphs: graphs.translate(lines, GREEDY)
    for kind in KINDS:
        out = scratch / f"ctranslate2 {kind}"
        export_ctranslate2(run, out, kind)
        theirs = ctranslate2.Translator(str(out), device="cpu", compute_type=kind, intra_threads=1)
        files[f"CTranslate2 {kind}"] = (out / "model.bin").stat().st_size
        sides[f"CTranslate2 {kind}"] = lambda lines, theirs=theirs: by_ctranslate2(run, theirs, lines)
    return sides, files


def in_node(scratch: Path, packages: Path, lines: list[str]) -> list[str]:
    """Translate lines with transformers.js in Node, from the float32 graphs alone."""
    folder = scratch / "onnx-float32"
    script = Path(__file__).parents[1] / "tests" / "interop" / "translate.mjs"
    target = "target" if (folder / "target").exists() else ""
    asked = json.dumps(dict(folder=str(folder), target=target, lines=lines, length=GREEDY.max_length + 1))
    command = ["node", script, packages.resolve()]
    answer = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    return [one["text"] for one in json.loads(answer.stdout)]


def by_ctranslate2(run: Run, theirs: Any, lines: list[str]) -> list[str]:
    """Translate lines with CTranslate2, split and joined by the run's tokenizers."""
    source, target = run.source_tokenizer, run.target_tokenizer
    pieces = [[*source.tokens(ids), "</s>"] for ids in source.encode(lines)]
    found = theirs.translate_batch(pieces, beam_size=1, max_batch_size=BATCH, max_decoding_length=GREEDY.max_length)
    ids = [[target.id_of(piece) or 0 for piece in result.hypotheses[0]] for result in found]
    return target.decode(ids)


def timed(sides: dict[str, Translate], tasks: list[list[str]], rounds: int) -> dict[str, Any]:
    """Return each side's milliseconds of processor time for a task, and how often `PEER`'s they are."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            began = time.process_time()
            for task in tasks:
                side(task)
            if turn:  # the first one warms up
                times[name].append(1e3 * (time.process_time() - began) / len(tasks))
    found = {}
    for name, mine in times.items():
        ratios = sorted(one / peer for one, peer in zip(mine, times[PEER], strict=True))
        found[name] = {
            "ms": statistics.median(mine),
            "ratio": statistics.median(ratios),
            "lowest": ratios[len(ratios) // 4],
            "highest": ratios[-1 - len(ratios) // 4],
        }
    return found


if __name__ == "__main__":
    tyro.cli(main)
