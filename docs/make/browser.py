"""Take the screenshots of a page that `glassformer export --to web` wrote.

    python docs/make/browser.py PAGE --text "A man in a blue shirt is standing on a ladder cleaning a window." --word 4

PAGE is the exported folder. Needs Debian's chromium and fonts-wqy-microhei, and Playwright.
"""

import http.server
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

IMAGES = Path(__file__).parents[1] / "img"
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 1240}
PICTURES: dict[str, dict[str, Any]] = {
    "browser.png": {"viewport": DESK},
    "browser_dark.png": {"viewport": DESK, "color_scheme": "dark"},
    "browser_narrow.png": {"viewport": PHONE, "locale": "zh-CN"},
}


def main(page: Positional[Path], text: str, word: int = 0) -> None:
    """Take all screenshots.

    Args:
        page: The exported folder.
        text: Text to translate.
        word: Number of the word of the translation that is looked at, from 0.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("browser.py: error: there is no chromium: apt-get install chromium")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=page)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, settings in PICTURES.items():
            tab = browser.new_page(**settings)
            tab.goto(f"http://127.0.0.1:{server.server_port}/")
            tab.evaluate("glassformer.api.ready()")
            tab.locator("#source").fill(text)
            tab.wait_for_timeout(2000)
            tab.locator(".word").nth(word).click()
            tab.wait_for_timeout(2000)
            tab.mouse.move(0, 0)
            tab.wait_for_timeout(300)
            tab.screenshot(path=IMAGES / name)
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    tyro.cli(main)
