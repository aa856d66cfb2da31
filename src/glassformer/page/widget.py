"""The page's view in a notebook, through anywidget."""

from functools import cache
from typing import Any

from glassformer.page import assets


def widget_of(data: bytes) -> Any:
    """A widget that shows packed data. Needs the extra `notebook`."""
    return _kind()(data=data)


@cache
def _kind() -> Any:
    """The widget's class."""
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
