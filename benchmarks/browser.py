"""The exported page in a browser: whether its ids are ours, how fast it translates, and what eight bits cost.

    python benchmarks/browser.py RUN --lines FILE.tsv [--count 500] [--runtime node_modules/onnxruntime-web]
        [--only ids speed first steps threads fp16 transformers] [--transformers node_modules/@huggingface/transformers]

FILE.tsv has a source and its translation on each line. The run is exported --to web, in float32 and in int8, and opened
in Debian's chromium, headless, through Playwright. The page has no threads, and all sides share one core, but for the
part `threads`.

- `ids`: the translations of so many lines, greedy and with a beam of 4, beside those of `Translator` in float32. A
  line that differs is printed with what the model thinks of both: where their scores are the same up to 1e-4, rounding
  decided. Of both precisions the scores against the references are printed too: BLEU, and the share that is exact.
- `speed`: milliseconds a line, greedy, one line at a time: the page, onnxruntime in Python, CTranslate2 in int8 and
  `Translator`, in turn. The first --timed lines are translated.
- `first`: milliseconds from the first input to the complete translation on the page in int8, each in a fresh profile.
- `steps`: milliseconds of one step of the decoder, the same arrays into the same graph: onnxruntime-web in the browser
  and onnxruntime in Python. It tells how much of a gap in `speed` the graph is, and how much the page around it.
- `threads`: the page with the two headers that give WebAssembly threads, beside the page without, on all cores: the
  lines whose ids are the library's, and milliseconds a line.
- `fp16`: the page of an export in half precision, as `ids`, greedy.
- `transformers`: the greedy ids of transformers.js, which loads the folder's model in the same browser.

Prints all, and appends it to benchmarks/results/browser.jsonl. Needs the extras onnx and ctranslate2.
"""

import http.server
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import bench
import numpy as np
import sacrebleu
import torch
import tyro
from tyro.conf import Positional

from glassformer import SearchConfig, Translator
from glassformer.browser.folder import export_web
from glassformer.interop.ctranslate2 import export_ctranslate2
from glassformer.interop.onnx.generate import OnnxTranslator
from glassformer.run.folder import load_run

Part = Literal["ids", "speed", "first", "steps", "threads", "fp16", "transformers"]
ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
PAST = 10  # tokens that are written already, in a timed step
PRECISIONS = {"float32": None, "int8": "int8"}
BEAM = 4
TIED = 1e-4  # scores that differ by less are equal but for rounding
TRANSLATE = "([lines, beam]) => glassformer.api.translate({ q: lines, beam, n_best: 1 })"
# Milliseconds from an input to its complete translation in the page: the text is there, and the page has drawn it.
FIRST = """(text) => new Promise((done) => {
    const { writer, source } = glassformer;
    new MutationObserver((_, observer) => {
        if (writer.waiting().length || !document.querySelector(".word")) return;
        observer.disconnect();
        done(performance.now() - began);
    }).observe(document.querySelector(".written"), { subtree: true, childList: true, attributes: true });
    const began = performance.now();
    source.field.value = text;
    source.field.dispatchEvent(new InputEvent("input", { bubbles: true }));
})"""
STEPS = """async ([graph, feeds, count]) => {
    const ort = await import("./runtime/ort.wasm.min.mjs");
    Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: new URL("./runtime/", location.href).href });
    const session = await ort.InferenceSession.create(new URL(graph, location.href).href);
    const given = {};
    for (const [name, { type, shape, values }] of Object.entries(feeds)) {
        const numbers = type === "int64" ? BigInt64Array.from(values, BigInt) : Float32Array.from(values);
        given[name] = new ort.Tensor(type, numbers, shape);
    }
    const times = [];
    let logits;
    for (let n = 0; n < count; n++) {
        const began = performance.now();
        logits = (await session.run(given)).logits;
        times.push(performance.now() - began);
    }
    return [times, [...logits.data]];
}"""
GENERATE = """async ([lines, separate]) => {
    const { AutoModelForSeq2SeqLM, AutoTokenizer, env } = await import("./transformers/transformers.min.js");
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, useBrowserCache: false });
    env.localModelPath = new URL("./", location.href).pathname;
    Object.assign(env.backends.onnx.wasm, { numThreads: 1, wasmPaths: new URL("./runtime/", location.href).href });
    const source = await AutoTokenizer.from_pretrained("model");
    const target = separate ? await AutoTokenizer.from_pretrained("model/target") : source;
    const model = await AutoModelForSeq2SeqLM.from_pretrained("model", { dtype: "fp32", device: "wasm" });
    const found = [];
    for (const line of lines) {
        const ids = await model.generate({ ...(await source(line)), num_beams: 1, max_new_tokens: 256 });
        found.push(target.decode(ids.tolist()[0].map(Number), { skip_special_tokens: true }));
    }
    return found;
}"""


def main(
    run: Positional[Path],
    lines: Path,
    count: int = 500,
    runtime: Path | None = None,
    transformers: Path | None = None,
    only: tuple[Part, ...] = ("ids", "speed", "first", "steps", "threads", "fp16", "transformers"),
    rounds: int = 7,
    timed: int = 100,
) -> None:
    """Measure the page of a run.

    Args:
        run: The run folder.
        lines: Sources and references, a TAB between them.
        count: Lines that are translated.
        runtime: The folder of onnxruntime-web.
        transformers: The folder of @huggingface/transformers, beside which lies that of onnxruntime-web; without it,
            the parts `steps` and `transformers` are left out.
        only: The parts to measure.
        rounds: How often what is timed is done.
        timed: Lines of which the speed is measured.
    """
    pairs = [line.split("\t") for line in lines.read_text(encoding="utf-8").splitlines()[:count]]
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    torch.set_num_threads(1)
    print(bench.machine())
    measured: dict[str, Any] = {"run": run.name, "lines": len(sources)}
    if "threads" in only:
        measured["threads"] = threaded(run, runtime, sources, references, timed, rounds)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # chromium inherits it
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        folder = Path(scratch)
        for name, quantization in PRECISIONS.items():
            found = export_web(load_run(run), folder / name, run.name, quantization, runtime=runtime)
            measured[f"bytes {name}"] = found.model_bytes
            print(f"{name}: the model has {found.model_bytes:,} bytes")
        with serving(folder) as address:
            if "ids" in only:
                for name in PRECISIONS:
                    measured[f"ids {name}"] = compare(
                        run, opened(browser, f"{address}{name}/"), name, sources, references
                    )
            if "speed" in only:
                measured["speed"] = race(run, folder, browser, address, sources[:timed], rounds)
            if "first" in only:
                times = [first(browser, f"{address}int8/", source) for source in sources[:rounds]]
                measured["first_ms"] = times
                print(f"first translation: {statistics.median(times):.0f} ms (at most {max(times):.0f})")
            if "fp16" in only:
                export_web(load_run(run), folder / "fp16", run.name, "fp16", runtime=runtime)
                measured["ids fp16"] = compare(
                    run, opened(browser, f"{address}fp16/"), "fp16", sources, references, beams=(1,)
                )
            if "steps" in only and transformers is not None:
                measured["steps"] = steps(folder, browser, address, transformers)
            if "transformers" in only and transformers is not None:
                measured["transformers"] = theirs(run, folder, browser, address, transformers, sources)
    bench.keep("browser", measured)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a headless Chromium."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        sys.exit("browser.py: error: there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-background-networking"])


@contextmanager
def serving(folder: Path, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve a folder as python -m http.server does, with more `headers`, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def end_headers(self) -> None:
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            super().end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def opened(browser: Any, address: str) -> Any:
    """Open the page in a fresh profile, and wait for its model."""
    tab = browser.new_context().new_page()
    tab.goto(address)
    tab.evaluate("glassformer.api.ready()")
    return tab


def compare(
    run: Path, tab: Any, name: str, sources: list[str], references: list[str], beams: tuple[int, ...] = (1, BEAM)
) -> dict[str, Any]:
    """Count the lines whose ids on the page are those of our engine, and print the others."""
    translator = Translator.load(run, "cpu", "float32")
    found: dict[str, Any] = {}
    for beam in beams:
        answers = tab.evaluate(TRANSLATE, [sources, beam])["lines"]
        texts = [answer["translations"][0]["text"] for answer in answers]
        tokens = [[piece["piece"] for piece in answer["translations"][0]["pieces"]] for answer in answers]
        config = SearchConfig(beam=beam)
        ours = translator.translations(sources, config)
        different = [
            n
            for n, (mine, page) in enumerate(zip(ours, tokens, strict=True))
            if mine.tokens != page[: len(mine.tokens)]
        ]
        ties = 0
        for n in different if name == "float32" else ():
            gap = ours[n].score - answers[n]["translations"][0]["score"]
            ties += abs(gap) < TIED
            print(f"  line {n + 1}, beam {beam}: {ours[n].text!r}, on the page {texts[n]!r}, score {gap:.1e} lower")
        found[f"beam {beam}"] = {
            "same": len(sources) - len(different),
            "ties": ties,
            "ours": scored([one.text for one in ours], references),
            "page": scored(texts, references),
        }
        print(f"{name}, beam {beam}: {found[f'beam {beam}']}")
    return found


def scored(texts: list[str], references: list[str]) -> dict[str, float]:
    """Return BLEU and the share of lines that are exact, both in percent."""
    exact = sum(text == reference for text, reference in zip(texts, references, strict=True))
    bleu = sacrebleu.corpus_bleu(texts, [references]).score
    return {"bleu": round(bleu, 2), "exact": round(100 * exact / len(references), 1)}


def race(run: Path, folder: Path, browser: Any, address: str, sources: list[str], rounds: int) -> dict[str, Any]:
    """Time each side's greedy translations, one line at a time, in turn."""
    import ctranslate2

    export_ctranslate2(load_run(run), folder / "ctranslate2", "int8")
    ct2 = ctranslate2.Translator(str(folder / "ctranslate2"), intra_threads=1, inter_threads=1)
    ours = Translator.load(run, "cpu", "float32")
    tokenizer = ours.source_tokenizer

    def by_ct2() -> None:
        for line, ids in zip(sources, tokenizer.encode(sources), strict=True):
            if line:
                ct2.translate_batch([[*tokenizer.tokens(ids), "</s>"]], beam_size=1, max_decoding_length=256)

    def by_onnxruntime(quantization: str | None, name: str) -> Callable[[], object]:
        translator = OnnxTranslator.load(folder / name / "model", quantization, threads=1)
        return lambda: [translator.translate([line]) for line in sources]

    def on_page(name: str) -> Callable[[], object]:
        tab = opened(browser, f"{address}{name}/")
        return lambda: tab.evaluate(TRANSLATE, [sources, 1])

    sides: dict[str, Callable[[], object]] = {"ctranslate2 int8": by_ct2}
    sides["glassformer float32"] = lambda: [ours.translate([line], SearchConfig(beam=1)) for line in sources]
    for name, quantization in PRECISIONS.items():
        sides[f"onnxruntime {name}"] = by_onnxruntime(quantization, name)
        sides[f"page {name}"] = on_page(name)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, translate in sides.items():
            began = time.perf_counter()
            translate()
            if turn:  # the first one warms up
                times[name].append(1e3 * (time.perf_counter() - began) / len(sources))
    for name, found in times.items():
        print(f"{name:20} {statistics.median(found):7.2f} ms a line ({min(found):.2f} to {max(found):.2f})")
    return times


def first(browser: Any, address: str, text: str) -> float:
    """Return the milliseconds from the first input of a visit to its complete translation."""
    tab = opened(browser, address)
    took = tab.evaluate(FIRST, text)
    tab.context.close()
    return took


def threaded(
    run: Path, runtime: Path | None, sources: list[str], references: list[str], timed: int, rounds: int
) -> dict[str, Any]:
    """Time the page with and without threads in turn, and compare the ids of the one with."""
    sides = {"one thread": None, "threads": ISOLATED}
    times: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser, ExitStack() as servers:
        export_web(load_run(run), Path(scratch) / "page", run.name, runtime=runtime)
        tabs = {}
        for name, headers in sides.items():
            address = servers.enter_context(serving(Path(scratch), headers))
            tabs[name] = opened(browser, f"{address}page/")
            if tabs[name].evaluate("crossOriginIsolated") != (headers is not None):
                sys.exit(f"browser.py: error: the page of {name} is isolated or not, against its headers")
        found = compare(run, tabs["threads"], "threads", sources, references)
        for turn in range(rounds + 1):
            for name, tab in tabs.items():
                began = time.perf_counter()
                tab.evaluate(TRANSLATE, [sources[:timed], 1])
                if turn:
                    times[name].append(1e3 * (time.perf_counter() - began) / len(sources[:timed]))
    for name, each in times.items():
        print(f"page, {name:12} {statistics.median(each):7.2f} ms a line ({min(each):.2f} to {max(each):.2f})")
    return {"ids": found, "ms": times}


def steps(folder: Path, browser: Any, address: str, transformers: Path, count: int = 200) -> dict[str, list[float]]:
    """Time one step of the decoder in the browser and in Python, and check that their logits agree."""
    import onnxruntime

    shutil.copytree(transformers.parents[1] / "onnxruntime-web" / "dist", folder / "runtime", dirs_exist_ok=True)
    (folder / "empty.html").write_text("<!doctype html>", encoding="utf-8")
    times = {}
    for name, graph in (("float32", "decoder_model_merged"), ("int8", "decoder_model_merged_quantized")):
        path = f"{name}/model/onnx/{graph}.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(folder / path, options, providers=["CPUExecutionProvider"])
        feeds = made(session.get_inputs())
        tab = browser.new_context().new_page()
        tab.goto(f"{address}empty.html")
        given = {
            key: {"type": str(value.dtype), "shape": value.shape, "values": value.ravel().tolist()}
            for key, value in feeds.items()
        }
        times[f"browser {name}"], theirs = tab.evaluate(STEPS, [path, given, count])
        tab.context.close()
        times[f"python {name}"] = []
        for _ in range(count):
            began = time.perf_counter()
            logits = session.run(["logits"], feeds)[0]
            times[f"python {name}"].append(1e3 * (time.perf_counter() - began))
        gap = float(np.abs(logits.ravel() - np.array(theirs, dtype=np.float32)).max())
        print(f"a step in {name}: logits agree within {gap:.1e}")
    for name, each in times.items():
        print(f"a step, {name:16} {statistics.median(each[count // 4 :]):6.3f} ms")
    return {name: [round(one, 4) for one in each[count // 4 :]] for name, each in times.items()}


def made(inputs: list[Any]) -> dict[str, Any]:
    """Return random arrays for a step of the decoder: one line of `PAST` tokens, as many of them written."""
    random = np.random.default_rng(0)
    feeds = {}
    for one in inputs:
        shape = [size if isinstance(size, int) else 1 for size in one.shape]
        if "past" in one.name:
            shape[2] = PAST
        elif one.name.startswith("encoder"):
            shape[1] = PAST
        if one.type == "tensor(int64)":
            feeds[one.name] = np.ones(shape, dtype=np.int64)
        else:
            feeds[one.name] = random.standard_normal(shape, dtype=np.float32)
    return feeds


def theirs(
    run: Path, folder: Path, browser: Any, address: str, transformers: Path, sources: list[str]
) -> dict[str, int]:
    """Count the lines that transformers.js translates as our engine does, in the same browser."""
    place = folder / "float32"
    shutil.copytree(transformers / "dist", place / "transformers")
    shutil.copytree(transformers.parents[1] / "onnxruntime-web" / "dist", place / "runtime", dirs_exist_ok=True)
    (place / "empty.html").write_text("<!doctype html>", encoding="utf-8")
    tab = browser.new_context().new_page()
    tab.goto(f"{address}float32/empty.html")
    separate = (place / "model" / "target").exists()
    texts = tab.evaluate(GENERATE, [sources, separate])
    ours = Translator.load(run, "cpu", "float32").translate(sources, SearchConfig(beam=1))
    same = sum(mine == page for mine, page in zip(ours, texts, strict=True))
    for mine, page in zip(ours, texts, strict=True):
        if mine != page:
            print(f"  ours {mine!r}, transformers.js {page!r}")
    print(f"transformers.js: {same} of {len(sources)} lines as our engine")
    return {"same": same, "lines": len(sources)}


if __name__ == "__main__":
    tyro.cli(main)
