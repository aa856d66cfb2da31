"""The exported page in a browser: whether its ids are ours, how fast it translates, and what eight bits cost.

    python benchmarks/browser.py RUN --lines FILE.tsv [--count 500] [--runtime node_modules/onnxruntime-web]
        [--only ids speed first transformers] [--transformers node_modules/@huggingface/transformers]

FILE.tsv has a source and its translation on each line. The run is exported --to web, in float32 and in int8, and opened
in Debian's chromium, headless, through Playwright. The page has no threads, and all sides share one core.

- `ids`: the translations of so many lines, greedy and with a beam of 4, beside those of `Translator` in float32. A
  line that differs is printed with what the model thinks of both: where their scores are the same up to 1e-4, rounding
  decided. Of both precisions the scores against the references are printed too: BLEU, and the share that is exact.
- `speed`: milliseconds a line, greedy, one line at a time: the page, onnxruntime in Python, CTranslate2 in int8 and
  `Translator`, in turn. The first --timed lines are translated.
- `first`: milliseconds from the first input to the complete translation on the page in int8, each in a fresh profile.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import bench
import sacrebleu
import torch
import tyro
from tyro.conf import Positional

from glassformer import SearchConfig, Translator
from glassformer.browser.folder import export_web
from glassformer.interop.ctranslate2 import export_ctranslate2
from glassformer.interop.onnx.generate import OnnxTranslator
from glassformer.run.folder import load_run

Part = Literal["ids", "speed", "first", "transformers"]
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
    only: tuple[Part, ...] = ("ids", "speed", "first", "transformers"),
    rounds: int = 7,
    timed: int = 100,
) -> None:
    """Measure the page of a run.

    Args:
        run: The run folder.
        lines: Sources and references, a TAB between them.
        count: Lines that are translated.
        runtime: The folder of onnxruntime-web.
        transformers: The folder of @huggingface/transformers.
        only: The parts to measure.
        rounds: How often what is timed is done.
        timed: Lines of which the speed is measured.
    """
    pairs = [line.split("\t") for line in lines.read_text(encoding="utf-8").splitlines()[:count]]
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # chromium inherits it
    torch.set_num_threads(1)
    print(bench.machine())
    measured: dict[str, Any] = {"run": run.name, "lines": len(sources)}
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
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder as python -m http.server does, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

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


def compare(run: Path, tab: Any, name: str, sources: list[str], references: list[str]) -> dict[str, Any]:
    """Count the lines whose ids on the page are those of our engine, and print the others."""
    translator = Translator.load(run, "cpu", "float32")
    found: dict[str, Any] = {}
    for beam in (1, BEAM):
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
