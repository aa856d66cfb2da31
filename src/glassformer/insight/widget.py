"""The page's view in a notebook, through anywidget."""

from typing import Any

from glassformer.insight.report import FILES


def widget_of(data: bytes) -> Any:
    """A widget that shows packed data. Needs the extra `notebook`."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError("a page in a notebook needs anywidget: pip install 'glassformer[notebook]'") from error

    class AttentionWidget(anywidget.AnyWidget):
        _esm = (FILES / "page.js").read_text(encoding="utf-8")
        _css = (FILES / "page.css").read_text(encoding="utf-8")
        data = traitlets.Bytes().tag(sync=True)

    return AttentionWidget(data=data)
