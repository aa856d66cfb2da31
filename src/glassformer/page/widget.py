"""The page as a widget in a notebook, through anywidget."""

from functools import cache
from typing import Any

from glassformer.page import assets


def make_widget(data: bytes) -> Any:
    """Return a widget that shows packed data. Needs the extra `notebook`."""
    return _widget_class()(data=data)


@cache
def _widget_class() -> Any:
    """Return the widget's class, which can be made only where anywidget is installed."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError("a page in a notebook needs anywidget: pip install 'glassformer[notebook]'") from error

    class AttentionWidget(anywidget.AnyWidget):
        _esm = assets.script()
        _css = assets.style()
        data = traitlets.Bytes().tag(sync=True)

    return AttentionWidget
