"""Pictures through matplotlib (extra `plots`): one palette and one look, without pyplot, so threads share no state.

The colours are those of the HTML page (`page/web/page.css`).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.errors import DataError, abridged
from glassformer.files import check_writable, replacing

MAIN, SECOND, ACCENT = "#2b6fae", "#08306b", "#c2410c"
"""Our main series, a second of the same kind, and what stands against them."""
PEERS = ("#2f7d5b", "#8a5a9e")
"""Other libraries and published results, each also with a marker of its own."""
INK, MUTED, FRAME, GRID = "#1b1f24", "#5d6673", "#9aa5b4", "#e4e7ec"
"""Text; what is only for comparison, such as a bound; the axes; their grid."""
COLORMAP, UNKNOWN = "Blues", "#e4e7ec"
"""Colours from zero (white) to the largest value (dark), and the colour of a cell without a value."""
TITLE, LABEL, SMALL = 11, 10, 9
"""Sizes of text, in points."""
MOST_TOKENS, MOST_LETTERS = 40, 60
"""Most tokens that are written along an axis, for of more none could be read; most characters of one."""
_MANY_LETTERS = (  # of fonts with Chinese, Japanese and Korean letters, which matplotlib's own lacks
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_picture(path: Path) -> None:
    """Raise DataError where no picture can be written to `path`, or its name says another format."""
    check_writable(path)
    if path.suffix.lower() not in ("", ".png"):
        raise DataError(f"a picture is drawn as PNG, so its name must end in .png, got {path}")


def load_matplotlib(purpose: str) -> Any:
    """Return matplotlib with its figures, colours, fonts and patches.

    Raises ImportError if it is missing; the message names the purpose, such as "heads", and how to install it.
    """
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.font_manager
        import matplotlib.patches
    except ImportError as error:
        raise ImportError(f"drawing {purpose} needs matplotlib: pip install 'glassformer[plots]'") from error
    return matplotlib


def new_figure(purpose: str, **settings: Any) -> Any:
    """Return an empty matplotlib Figure with these settings."""
    matplotlib = load_matplotlib(purpose)
    figure = matplotlib.figure.Figure(**settings, layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, png: Path) -> None:
    """Write the figure into a PNG file, which appears when it is complete."""
    with replacing(png) as file:
        figure.savefig(file, format="png")


def style_axes(axes: Any, *, title: str = "", x: str = "", y: str = "") -> None:
    """Give axes of lines, points or bars their texts and the common look: a light grid, no frame above and right.

    Call it when everything is drawn. Texts that are left out stay as they are.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FRAME)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _style_text(axes, title, x, y)
    if legend := axes.get_legend():
        legend.set_frame_on(False)
        for text in legend.get_texts():
            text.set(fontsize=SMALL, color=INK)


def style_map(axes: Any, *, title: str = "", x: str = "", y: str = "") -> None:
    """Give axes of an image their texts and the common look: no frame and no tick marks."""
    axes.spines[:].set_visible(False)
    _style_text(axes, title, x, y)
    axes.tick_params(length=0)


def add_bar(image: Any, axes: Any, label: str, **settings: Any) -> Any:
    """Draw the colour bar of an image and return it; the label says what the numbers are."""
    bar = image.figure.colorbar(image, ax=axes, **settings)
    bar.set_label(label, fontsize=SMALL, color=INK)
    bar.ax.tick_params(labelsize=SMALL, color=FRAME, labelcolor=INK)
    bar.outline.set_visible(False)
    return bar


def color_map(blank: str = UNKNOWN) -> Any:
    """Return the colours of maps, as a matplotlib Colormap; `blank` is the colour of cells without a value."""
    return load_matplotlib("a map").colormaps[COLORMAP].with_extremes(bad=blank)


def ink_on(color: tuple[float, ...]) -> str:
    """Return black or white, whichever can be read on a colour, given as red, green and blue from 0 to 1.

    The contrast is never below 4.5 to 1 (WCAG 2.2).

    >>> ink_on((1.0, 1.0, 1.0)), ink_on((0.03, 0.19, 0.42))
    ('black', 'white')
    """
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3])
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


def write_tokens(axis: Any, tokens: Sequence[str], *, turned: bool = False) -> None:
    """Write a token at each place of a matplotlib axis, `axes.xaxis` or `axes.yaxis`, if they are at most MOST_TOKENS.

    Otherwise the axis keeps its numbers. `turned` writes them upwards. Call it after the axes have their look.
    """
    if not 0 < len(tokens) <= MOST_TOKENS:
        return
    axis.set_ticks(range(len(tokens)))
    axis.set_ticklabels(
        [_written(token) for token in tokens],
        parse_math=False,
        fontfamily=_fonts(),
        rotation=90 if turned else 0,
    )
    axis.set_tick_params(labelsize=SMALL if len(tokens) <= 20 else SMALL - 2)


def write_legend(axes: Any) -> None:
    """Write the legend of axes whose labels hold tokens."""
    for text in axes.legend().get_texts():
        text.set(text=_written(text.get_text()), parse_math=False, fontfamily=_fonts())


def _written(token: str) -> str:
    """Return a token as a picture shows it: at most MOST_LETTERS, and a question mark for half a surrogate pair."""
    return abridged(token, MOST_LETTERS).encode(errors="replace").decode()


def _fonts() -> list[str]:
    """Return matplotlib's own font, and those installed that have letters which it lacks."""
    installed = set(load_matplotlib("tokens").font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _MANY_LETTERS if name in installed)]


def _style_text(axes: Any, title: str, x: str, y: str) -> None:
    if title:
        axes.set_title(title, loc="left", fontsize=TITLE, color=INK)
    for label, text in ((axes.xaxis.label, x), (axes.yaxis.label, y)):
        label.set(text=text or label.get_text(), fontsize=LABEL, color=INK)
    axes.tick_params(color=FRAME, labelcolor=INK, labelsize=SMALL)
