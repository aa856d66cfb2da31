"""The page in a browser: its size, how long it takes to open, and how long it takes to answer a choice.

    python benchmarks/page.py [--lengths 50 2000] [--rounds 7]

A random model of 6 layers x 8 heads looks at so many words: up to 200 of them all weights are captured, beyond that
tiles, the 8 largest weights of each query, entropy and received. The page is opened in Debian's chromium, headless,
through Playwright, each time in a fresh profile: seconds from the address to the first map drawn. A choice is another
head, another token, or the other side: milliseconds from the click until the browser has painted, two frames later.
Prints the medians, the largest last, and appends to benchmarks/results/page.jsonl.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench
import torch
import tyro
from torch import nn

from glassformer import Want, capture, page
from glassformer.page.report import Page
from glassformer.page.views import LONG_INPUT_WANT

WIDTH, LAYERS, HEADS = 128, 6, 8
WORDS = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").split()
CHOOSE = """(choice) => new Promise((done) => {
    const cells = document.querySelectorAll(".cell"), tokens = document.querySelectorAll(".token");
    const target = choice.kind === "head" ? cells[choice.n % cells.length]
        : choice.kind === "token" ? tokens[choice.n % tokens.length]
        : document.querySelector(".sides input:not(:checked)");
    const began = performance.now();
    target.click();
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
})"""


def main(lengths: tuple[int, ...] = (50, 2000), rounds: int = 7) -> None:
    """Measure pages of these lengths.

    Args:
        lengths: Words the model looks at.
        rounds: Times each page is opened.
    """
    from playwright.sync_api import sync_playwright

    found_browser = shutil.which("chromium")
    if found_browser is None:
        sys.exit("page.py: error: there is no chromium: apt-get install chromium")
    print(bench.machine())
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found_browser, args=["--no-sandbox", "--disable-background-networking"]
        )
        for length in lengths:
            path = page_of(length).save(Path(scratch) / f"{length}.html")
            size = path.stat().st_size
            times = [visit(browser, path) for _ in range(rounds + 1)][1:]
            opened = [opened for opened, _ in times]
            chosen = {kind: [ms for _, found in times for ms in found[kind]] for kind in ("head", "token", "side")}
            measured[str(length)] = {"bytes": size, "open_s": opened, "choice_ms": chosen}
            words = ", ".join(
                f"{kind} {statistics.median(ms):.0f} (at most {max(ms):.0f})" for kind, ms in chosen.items()
            )
            print(
                f"{length} tokens: {size / 1e6:.2f} MB, open in {statistics.median(opened):.2f} s "
                f"({min(opened):.2f} to {max(opened):.2f}); ms until a choice is painted: {words}"
            )
        browser.close()
    bench.keep("page", measured)


def page_of(length: int) -> Page:
    """Return the page of a random model's attention."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    words = (WORDS * (1 + length // len(WORDS)))[:length]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "in_proj_weight" in name:
                parameter *= 2.2  # sharper than as initialised
        with capture(model, Want(weights=True) if length <= 200 else LONG_INPUT_WANT) as seen:
            model(torch.randn(1, length, WIDTH))
    return page(seen, words, title=f"{length:,} tokens")


def visit(browser: Any, path: Path) -> tuple[float, dict[str, list[float]]]:
    """Return the seconds to open a page, and the milliseconds of choices, in a fresh profile."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    tab = context.new_page()
    began = time.perf_counter()
    tab.goto(path.as_uri())
    tab.wait_for_selector(".figure[style*=width]")  # set when the map is painted
    opened = time.perf_counter() - began
    choices: dict[str, list[float]] = {"head": [], "token": [], "side": []}
    for n in (11, 29, 47):
        for kind, found in choices.items():
            found.append(tab.evaluate(CHOOSE, {"kind": kind, "n": n}))
    context.close()
    return opened, choices


if __name__ == "__main__":
    tyro.cli(main)
