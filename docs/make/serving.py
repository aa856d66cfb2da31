"""Take the screenshots of the page that `glassformer serve` has at `/`.

    python docs/make/serving.py RUN --word 6 --chinese RUN --chinese-word 5 --text "..."

RUN translates English to German, --chinese English to Chinese. Needs Debian's chromium and fonts-wqy-microhei, and
Playwright.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

IMAGES = Path(__file__).parents[1] / "img"
DESK, PHONE = (1280, 900), (390, 1560)


def main(run: Positional[Path], word: int, chinese: Path, chinese_word: int, text: str) -> None:
    """Take all screenshots.

    Args:
        run: A run from English to German.
        word: Number of the word of the translation that is looked at, from 0.
        chinese: A run from English to Chinese, for the page in Chinese on a phone.
        chinese_word: Number of the word of its translation.
        text: English text to translate.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("serving.py: error: there is no chromium: apt-get install chromium")
    pairs = [f"{run}=en-de", f"{chinese}=en-zh"]
    with serving([run, chinese], pairs) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def open_page(size: tuple[int, int], **settings: Any) -> Any:
            width, height = size
            tab = browser.new_page(viewport={"width": width, "height": height}, **settings)
            tab.goto(address)
            tab.wait_for_selector(".pair select")
            return tab

        def translate(tab: Any, to: str) -> None:
            tab.locator("select[name=to]").select_option(to)
            tab.locator("#source").fill(text)
            tab.wait_for_timeout(4000)

        def look(tab: Any, n: int) -> None:
            tab.locator(".word").nth(n).click()
            tab.wait_for_timeout(2000)
            tab.mouse.move(0, 0)
            tab.wait_for_timeout(300)

        tab = open_page(DESK)
        translate(tab, "de")
        look(tab, word)
        tab.screenshot(path=IMAGES / "serve.png")
        tab = open_page(DESK, color_scheme="dark")
        translate(tab, "de")
        look(tab, word)
        tab.screenshot(path=IMAGES / "serve_dark.png")
        tab = open_page(PHONE, locale="zh-CN")
        translate(tab, "zh")
        look(tab, chinese_word)
        tab.screenshot(path=IMAGES / "serve_narrow.png")
        browser.close()


@contextmanager
def serving(runs: list[Path], pairs: list[str]) -> Iterator[str]:
    """Serve these runs, and yield the address."""
    command = [sys.executable, "-m", "glassformer", "serve", *map(str, runs), "--port", "0", "--languages", *pairs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stderr
        address = server.stdout.readline().strip()
        while "ready" not in (line := server.stderr.readline()):
            if not line:
                sys.exit(f"serving.py: error: the server ended with status {server.wait()}")
        yield address
        server.terminate()
        time.sleep(0.1)


if __name__ == "__main__":
    tyro.cli(main)
