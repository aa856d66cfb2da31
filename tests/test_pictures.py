"""One palette and one look: that of the page, and what the scripts of the docs draw with it."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from glassformer import Want, observe_weights, pictures
from glassformer.pictures import ACCENT, COLORMAP, INK, MAIN, MUTED, SECOND, UNKNOWN, ink_on

pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")

from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

ROOT = Path(__file__).parents[1]
WEB = ROOT / "src" / "glassformer" / "page" / "web"


def test_the_colours_are_those_of_the_page():
    light = dict(re.findall(r"--(\w+): (#\w+);", (WEB / "page.css").read_text(encoding="utf-8").split("}")[0]))
    assert [light[name] for name in ("bars", "accent", "ink", "faint", "unknown")] == [
        MAIN,
        ACCENT,
        INK,
        MUTED,
        UNKNOWN,
    ]
    assert to_hex(colormaps[COLORMAP](1.0)) == SECOND
    assert f'"{SECOND}"]' in (WEB / "drawing.js").read_text(encoding="utf-8")  # the darkest of the page's heat map


def luminance(color: tuple[float, ...]) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.6, 0.7, 1.0])
def test_ink_can_be_read_on_every_colour_of_a_map(share):
    color = colormaps[COLORMAP](share)
    low, high = sorted((luminance(color), luminance(to_rgb(ink_on(color)))))
    assert (high + 0.05) / (low + 0.05) > 4.5


def test_tokens_use_fonts_that_have_their_letters_where_one_is_installed(monkeypatch):
    fonts = pictures.load_matplotlib("tokens").font_manager
    monkeypatch.setattr(fonts, "get_font_names", lambda: ["SimHei", "DejaVu Sans", "Comic Sans MS"])
    axes = pictures.new_figure("tokens").subplots()
    pictures.write_tokens(axes.xaxis, ["狗", "睡"])
    assert axes.get_xticklabels()[0].get_fontfamily() == ["DejaVu Sans", "SimHei"]


def test_the_curve_of_pruning_shows_each_seed_and_the_mean():
    script = runpy.run_path(str(ROOT / "docs" / "make" / "pruning.py"))
    records = [
        dict(heads=heads, of=28, whole=40.0, score=score) for heads, score in ((14, 39.0), (14, 39.5), (7, 38.0))
    ]
    (axes,) = script["plot"](script["differences"](records)).axes
    drawn = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}
    assert drawn["one seed"] == [(50, -1.0), (50, -0.5), (25, -2.0)]
    assert drawn["mean of the seeds"] == [(100, 0), (50, -0.75), (25, -2.0)]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"one seed", "mean of the seeds", "all heads, trained as long"} <= set(legend)
    assert [text.get_text() for text in axes.texts] == ["-0.75, 2 seeds", "-2.00, 1 seed"]


def test_half_a_surrogate_pair_is_drawn_as_a_question_mark(tmp_path):
    weights = torch.eye(2)[None, None]
    picture = observe_weights(weights, want=Want(weights=True)).plot(["\ud800", "b"])
    assert [label.get_text() for label in picture.axes[0].get_xticklabels()] == ["?", "b"]
    picture.savefig(tmp_path / "picture.png")
