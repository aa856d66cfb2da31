"""Pictures through matplotlib (extra `plots`): no pyplot, so that no state is shared between figures or threads."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.files import replacing


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def load_matplotlib(purpose: str) -> Any:
    """matplotlib with its figures and colours; ImportError says what `drawing` it was for, and how to get it."""
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.colors
        import matplotlib.figure
    except ImportError as error:
        raise ImportError(f"drawing {purpose} needs matplotlib: pip install 'glassformer[plots]'") from error
    return matplotlib


def new_figure(purpose: str, **settings: Any) -> Any:
    """An empty matplotlib Figure with these settings."""
    matplotlib = load_matplotlib(purpose)
    figure = matplotlib.figure.Figure(**settings, layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, png: Path) -> None:
    """Write the figure into a PNG, which appears when it is complete."""
    with replacing(png) as file:
        figure.savefig(file, format="png")
