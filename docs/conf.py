"""The settings of Sphinx, which makes a site of these pages: `make docs`, offline, every warning an error."""

import os
import re
from importlib.metadata import version as version_of
from typing import Any

os.environ["COLUMNS"] = "100"  # of the commands' help

from glassformer.cli import GROUPS
from glassformer.commands.parser import help_text
from glassformer.docstrings import FIELDS

project = "glassformer"
author = "The glassformer developers"
release = version_of("glassformer")
copyright = f"{author}, Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "map.md"]
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_execution_in_temp = True
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to the source, beside docs/
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "glassformer"


def as_restructured_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring, which is plain text with code in backticks, so that Sphinx reads it as it is meant.

    The list of a class's fields goes: each stands on the page by itself. Lines that describe an argument are a list.
    """
    text = "\n".join(lines).partition(f"\n{FIELDS}\n")[0]
    lines.clear()
    is_example = is_item = False
    for line in text.split("\n"):
        is_example = line.lstrip().startswith(">>>") or (is_example and bool(line.strip()))
        if is_example:
            lines.append(line)
            continue
        if re.match(r"[a-z_]+(, [a-z_]+)*: ", line) and what == "function":
            is_item, line = True, f"- {line}"
        elif is_item and line.startswith("    "):
            line = f"  {line.strip()}"
        else:
            is_item = False
        spans = re.split(r"(`[^`]*`)", line)
        lines.append("".join(span if span.startswith("`") else _escaped(span) for span in spans))


def _escaped(text: str) -> str:
    return re.sub(r"([|*])|(?<=\w)_(?!\w)", lambda found: f"\\{found[0]}", text)


def add_commands(app: Any, name: str, source: list[str]) -> None:
    """Append to the page of commands what each says about itself."""
    if name == "reference/commands":
        for heading, commands in GROUPS.items():
            source[0] += f"\n## {heading}\n"
            for command in commands:
                source[0] += f"\n### {command.name}\n\n```text\n{help_text(command)}\n```\n"


def setup(app: Any) -> None:
    """Connect the two functions above with Sphinx."""
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("source-read", add_commands)
