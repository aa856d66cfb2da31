"""The files that a page is made of, in web/: style, scripts, and the document around them."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "web"
SCRIPTS = ("data", "drawing", "saving", "overview", "map", "detail", "texts", "strips", "table", "page")
"""Modules, each of which imports from those before it alone."""
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)


def script() -> str:
    """All modules as one, which a page and a notebook can hold."""
    return "\n".join(_IMPORT.sub("", _read(f"{name}.js")) for name in SCRIPTS)


def style() -> str:
    return _read("page.css")


def document() -> str:
    """A template for `str.format`: title, css, script, data."""
    return _read("page.html")


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
