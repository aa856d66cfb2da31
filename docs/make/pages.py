"""Take the screenshots of the page, and the recording of it in use that leads the README.

    python docs/make/pages.py RUN --pruned RUN --dates RUN --source "..."

The first RUN is one of yours that `glassformer heads` has studied, the second the same after `glassformer prune`, the
third that of `make demo`. The model of the ViT is trained as docs/tutorials/vision.md does. Needs Debian's chromium,
Playwright and Pillow.
"""

import contextlib
import re
import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import tyro
from PIL import Image
from tyro.conf import Positional

from glassformer.page.inspection import inspect
from glassformer.page.report import Page

IMAGES = Path(__file__).parents[1] / "img"
DESK, PHONE, FILM = (1400, 820), (390, 1500), (1280, 760)
LAST = "#at=decoder.1.source_attention&head=3&token=5"
"""The last head that looks at the source: it looks at the word that is translated next."""
POINTER = """const dot = document.createElement("div");
dot.style = "position:fixed; z-index:9; width:18px; height:18px; margin:-9px; border-radius:50%; pointer-events:none; \
background:#c2410c99; border:2px solid white";
document.body.append(dot);
addEventListener("mousemove", (event) => Object.assign(dot.style, { left: `${event.x}px`, top: `${event.y}px` }));"""
"""Shows where the mouse is: a screenshot leaves it out."""


def main(run: Positional[Path], pruned: Path, dates: Path, source: str) -> None:
    """Take all screenshots, and the recording.

    Args:
        run: A run with heads.json.
        pruned: The run after `glassformer prune`.
        dates: The run of `make demo`.
        source: A line for the first two runs to translate.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("pages.py: error: there is no chromium: apt-get install chromium")
    mine = inspect(run, source)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def open_page(made: Page, size: tuple[int, int], theme: str = "light", address: str = "") -> Any:
            path = made.save(Path(scratch) / "page.html")
            width, height = size
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            tab.goto(f"{path.as_uri()}{address}")
            tab.wait_for_selector(".cell")
            tab.wait_for_timeout(300)  # the thumbnails
            return tab

        for name, made, size, theme, address in (
            ("page", mine, DESK, "light", LAST),
            ("page_dark", mine, DESK, "dark", LAST),
            ("page_narrow", mine, PHONE, "light", LAST),
            ("page_pruned", inspect(pruned, source), DESK, "light", LAST),
            (
                "page_year",
                inspect(dates, "Sunday, March 3, 2047", hypotheses=1),
                DESK,
                "light",
                "#at=decoder.0.source_attention&head=1&token=1",
            ),
        ):
            open_page(made, size, theme, address).screenshot(path=IMAGES / f"{name}.png")
        open_page(vision(Path(scratch)), DESK).screenshot(path=IMAGES / "page_vit.png")
        record(open_page(mine, FILM, address=LAST))
        browser.close()


def vision(folder: Path) -> Page:
    """Run the code of the tutorial on a vision model in a folder, and return its page."""
    text = (IMAGES.parent / "tutorials" / "vision.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        exec("\n".join(re.findall(r"```\{code-cell\} python\n(.*?)```", text, re.DOTALL)), names)
    return names["made"]


def record(tab: Any) -> None:
    """Use the page as a person would, and write what it shows: a choice every second."""
    frames: list[Image.Image] = []
    lasting: list[int] = []

    def frame(milliseconds: int) -> None:
        tab.wait_for_timeout(150)
        with Image.open(BytesIO(tab.screenshot())) as shot:
            frames.append(shot.convert("RGB").quantize(128, dither=Image.Dither.NONE))
        lasting.append(milliseconds)

    def click(place: Any, milliseconds: int = 900) -> None:
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=1)
        frame(300)
        place.click()
        frame(milliseconds)

    tab.evaluate(POINTER)
    frame(1500)
    words = tab.locator(".text").nth(1).locator(".token")
    for n in range(2, min(7, words.count())):
        click(words.nth(n))
    rows = tab.locator(".overview .row")
    for row, cell in ((-1, 1), (-2, 1), (0, 2), (2, 3)):
        click(rows.nth(row).locator(".cell").nth(cell), 1200)
    click(tab.get_by_label("who looks at a token"))
    click(tab.locator(".text").first.locator(".token").nth(4), 1500)
    click(tab.get_by_text("Theme"), 2500)
    first, *rest = frames
    first.save(IMAGES / "page.gif", save_all=True, append_images=rest, duration=lasting, loop=0, optimize=True)


if __name__ == "__main__":
    tyro.cli(main)
