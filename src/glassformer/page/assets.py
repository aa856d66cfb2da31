"""The files that make up a page: style, scripts, and the document around them."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FOLDER = PACKAGE / "page" / "web"
SCRIPTS = (
    *("data", "drawing", "words", "saving", "overview", "chosen", "map"),
    *("detail", "texts", "strips", "table", "page"),
)
"""The modules, in an order in which each imports only from those before it."""
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)


def script() -> str:
    """Return all modules as one script, which a page or a notebook can hold."""
    return "\n".join(_IMPORT.sub("", _read(f"{name}.js")) for name in SCRIPTS)


def style() -> str:
    """Return the style sheet."""
    return _read("page.css")


def document() -> str:
    """Return the HTML document, a template for `str.format` with title, css, script and data."""
    return _read("page.html")


def translator_code(own: str) -> dict[str, bytes]:
    """Return the scripts and styles of a page that translates, by their places in the package.

    `own` is the folder of what such a page has for itself, such as serve/web.
    """
    paths = [path for folder in (own, "page/translator", "page/web") for path in sorted((PACKAGE / folder).iterdir())]
    code = [path for path in paths if path.suffix in (".js", ".css")]
    return {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in code}


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
