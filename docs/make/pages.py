"""The screenshots of docs/inside.md and of the README.

    python docs/make/pages.py RUN --pruned RUN --imported RUN --dates RUN --source "..."

The first RUN is one of yours. The next two are the same run after pruning, and after a way through the Marian layout
(`glassformer export --to huggingface`, `glassformer import`). The last is the run of `make demo`. The models of
torch.nn and Hugging Face are random, and so is their attention. Needs Debian's chromium and Playwright.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import tyro
from torch import nn
from tyro.conf import Positional

from glassformer import Want, capture, page
from glassformer.page.inspection import inspect
from glassformer.page.report import Page
from glassformer.page.views import LONG_INPUT_WANT

ROOT = Path(__file__).parents[2]
DESK, PHONE = (1400, 820), (390, 1240)


def main(run: Positional[Path], pruned: Path, imported: Path, dates: Path, source: str) -> None:
    """Take all screenshots.

    Args:
        run: A run with heads.json.
        pruned: The run after `glassformer prune`.
        imported: The run exported and imported.
        dates: The run of `make demo`.
        source: A line for the first three runs to translate.
    """
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("pages.py: error: there is no chromium: apt-get install chromium")
    mine = inspect(run, source)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def take(name: str, made: Page, size: tuple[int, int] = DESK, theme: str = "light", address: str = "") -> None:
            path = made.save(Path(scratch) / f"{name}.html")
            width, height = size
            tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            tab.goto(f"{path.as_uri()}{address}")
            tab.wait_for_selector(".cell")
            tab.wait_for_timeout(300)  # the thumbnails
            tab.screenshot(path=ROOT / "docs" / "img" / f"{name}.png")
            tab.close()

        take("page", mine)
        take("page_dark", mine, theme="dark")
        take("page_narrow", mine, PHONE)
        take("page_long", encoder_page(2000), (1400, 1180))
        take("page_pruned", inspect(pruned, source))
        take("page_marian", inspect(imported, source))
        take(
            "page_year",
            inspect(dates, "Sunday, March 3, 2047", hypotheses=1),
            address="#at=decoder.0.source_attention&head=1&token=1",
        )
        take("page_torch", encoder_page(24))
        take("page_bert", bert_page())
        take("page_vit", vit_page(), address="#token=90")
        browser.close()


def encoder_page(length: int) -> Page:
    """Return a page of an nn.TransformerEncoder that reads the words of the README, with sinusoids for positions."""
    torch.manual_seed(0)
    width = 64
    layer = nn.TransformerEncoderLayer(width, 8, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    words = (words * (1 + length // len(words)))[:length]
    ids = {word: n for n, word in enumerate(dict.fromkeys(words))}
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    want = Want(weights=True) if length <= 200 else LONG_INPUT_WANT
    with torch.no_grad():
        sharpen(model, 2.5)
        inputs = 0.7 * torch.randn(len(ids), width)[[ids[word] for word in words]]
        with capture(model, want) as captured:
            model((inputs + torch.cat([angles.sin(), angles.cos()], dim=1))[None])
    return page(captured, words, title=f"nn.TransformerEncoder, {length:,} words")


def bert_page() -> Page:
    """Return a page of a random BERT that reads a sentence."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=96, num_hidden_layers=4, num_attention_heads=6, intermediate_size=96)
    model = BertModel(BertConfig(**sizes)).eval()
    sentence = "the animal didn ' t cross the street because it was too tired"
    tokens = ["[CLS]", *sentence.split(), "[SEP]"]
    ids = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    with torch.no_grad():
        sharpen(model, 14.0)
        with capture(model, Want(weights=True)) as captured:
            model(torch.tensor([[ids[token] for token in tokens]]))
    return page(captured, tokens, title="BertModel")


def vit_page() -> Page:
    """Return a page of a random ViT that sees a picture of two discs."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    sizes = dict(hidden_size=96, num_hidden_layers=4, num_attention_heads=6, intermediate_size=96, image_size=112)
    model = ViTModel(ViTConfig(**sizes, patch_size=8), add_pooling_layer=False).eval()
    y, x = torch.meshgrid(torch.arange(112), torch.arange(112), indexing="ij")
    discs = ((x - 36) ** 2 + (y - 40) ** 2 < 500).float() - ((x - 80) ** 2 + (y - 76) ** 2 < 300).float()
    with torch.no_grad():
        sharpen(model, 13.0)
        with capture(model, Want(weights=True)) as captured:
            model(discs.expand(1, 3, 112, 112))
    side = 112 // 8
    places = [f"row {n // side}, column {n % side}" for n in range(side * side)]
    return page(captured, ["[CLS]", *places], title="ViTModel, patches of a picture", grid=(side, side))


def sharpen(model: nn.Module, times: float) -> None:
    """Scale the weights of queries and keys: random ones give nearly uniform attention, larger ones don't."""
    for name, parameter in model.named_parameters():
        if re.search(r"in_proj_weight|(query|key|[qk]_proj)\.weight", name):
            parameter *= times


if __name__ == "__main__":
    tyro.cli(main)
