"""Pictures through matplotlib (extra `plots`), without pyplot: figures and threads share no state."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.files import replacing


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def load_matplotlib(purpose: str) -> Any:
    """Return matplotlib with its figures and colours.

    Raises ImportError if it is missing; the message names the purpose, such as "heads", and how to install it.
    """
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.colors
        import matplotlib.figure
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
