"""Writes docs/map.md: every folder and file in a line, from the docstrings themselves.

    python docs/make/map.py

A test compares the page with the docstrings. Run this after changing the first paragraph of a module's docstring, or
after adding, moving or deleting a file.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "map.md"
PACKAGE = ROOT / "src" / "glassformer"
READING_ORDER = [
    *(
        "attention",
        "attention/kernels",
        "capture",
        "transformer",
        "scoring",
        "text",
        "data",
        "run",
        "generation",
        "training",
    ),
    *("interop", "insight", "page", "page/web", "page/translator", "browser", "browser/web", "serve", "serve/workers"),
    *("serve/web", "demo", "commands", "reference"),
]
BESIDE = [
    *("docs", "docs/start", "docs/howto", "docs/tutorials", "docs/make"),
    *("recipes", "examples", "benchmarks", "benchmarks/scaling"),
]
KINDS = {".css": "The style of the page.", ".html": "The document around the scripts and the style."}
QUESTIONS = [
    ("The softmax of a block of queries", "attention/kernels/blockwise.py"),
    ("Which threshold sends short sequences elsewhere", "attention/kernels/choose.py"),
    ("Where a mask's polarity flips", "attention/masks.py"),
    ("How attention differs from torch's", "attention/multihead.py"),
    ("How a Hugging Face model's attention is recorded", "capture/huggingface.py"),
    ("The layers of the Transformer", "transformer/layers.py"),
    ("Every size of a model, and its default", "transformer/config.py"),
    ("Which pairs are held out", "data/held_out.py"),
    ("What is used again when a training is started again", "data/kept.py"),
    ("The names of the files of a run folder", "run/names.py"),
    ("What makes a beam stop", "generation/search.py"),
    ("What may not be generated next", "generation/constraints.py"),
    ("Every setting of a training, and its default", "training/config.py"),
    ("What --resume reads", "training/checkpoint.py"),
    ("Which written pairs a student is trained on", "synthesis/filters.py"),
    ("How a Marian model's names map to ours", "interop/huggingface.py"),
    ("How heads are chosen and removed", "insight/prune.py"),
    ("What the page writes for a token", "page/web/drawing.js"),
    ("The flags of a command", "commands"),
]
INTRODUCTION = """# Map

Every folder and file in a line, in reading order: a folder imports only from folders above it. Written by
`python docs/make/map.py` from the docstrings.

## Where do I find ...

| | |
|---|---|
"""


def description(file: Path) -> str:
    """Return the first paragraph of a file's docstring, of its opening comment, or the title of a page."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        paragraph = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    elif file.suffix == ".js":
        lines = re.match(r"(?://.*\n)+", text)
        paragraph = (lines[0] if lines else "").split("\n//\n")[0].replace("// ", "")
    elif file.suffix == ".md":
        paragraph = text.splitlines()[0].removeprefix("# ") + "."
    else:
        paragraph = KINDS[file.suffix]
    return " ".join(paragraph.split())


def entries(folder: Path) -> Iterator[str]:
    """Yield a line for each file of a folder that a person reads."""
    for file in sorted(folder.iterdir()):
        if file.suffix in (".py", ".js", ".md", *KINDS) and file.name not in ("__init__.py", PAGE.name):
            yield f"- [`{file.name}`](../{file.relative_to(ROOT).as_posix()}): {description(file)}\n"


def section(folder: Path) -> str:
    """Return what a folder says of itself, and its files."""
    init = folder / "__init__.py"
    about = (ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "") + "\n\n" if init.exists() else ""
    return f"\n### {folder.relative_to(ROOT).as_posix()}/\n\n{about}{''.join(entries(folder))}"


def folders() -> list[Path]:
    """Return the folders of the package in reading order; those that READING_ORDER doesn't name come last."""
    names = {
        file.parent.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*") if file.suffix in (".py", ".js")
    }
    known = [name for name in READING_ORDER if name in names]
    return [PACKAGE / name for name in [*known, *sorted(names - {".", *known})]]


def make_map() -> str:
    """Return the text of docs/map.md."""
    if lost := [path for _, path in QUESTIONS if not (PACKAGE / path).exists()]:
        raise SystemExit(f"QUESTIONS in docs/make/map.py names what isn't there: {', '.join(lost)}")
    table = "".join(f"| {question} | [`{path}`](../src/glassformer/{path}) |\n" for question, path in QUESTIONS)
    inside = "".join(section(folder) for folder in [*folders(), PACKAGE])
    beside = "".join(section(ROOT / name) for name in BESIDE)
    return f"{INTRODUCTION}{table}\n## The package\n{inside}\n## Beside the package\n{beside}"


if __name__ == "__main__":
    PAGE.write_text(make_map(), encoding="utf-8")
