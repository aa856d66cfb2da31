"""The settings of Sphinx, which makes a site of these pages: `make docs`, offline, every warning an error."""

import os
import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

os.environ["COLUMNS"] = "100"  # of the commands' help

from glassformer.cli import GROUPS
from glassformer.settings.docstrings import FIELDS
from glassformer.settings.parser import help_text

project = "glassformer"
author = "The glassformer developers"
release = version_of("glassformer")
copyright = f"{author}, Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "jupyter_execute", "map.md"]
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_merge_streams = True  # else a line that is printed in parts is broken
myst_heading_anchors = 3
default_role = "code"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # torch's, of forward and others, say nothing
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "glassformer"


def as_restructured_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring, which is plain text with code in backticks, so that Sphinx reads it as it is meant.

    The list of a class's fields goes: each stands on the page by itself. Lines that describe an argument are a list.
    The name of a page, such as docs/training.md, is a link to it.
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
        line = "".join(span if span.startswith("`") else _escaped(span) for span in spans)
        lines.append(re.sub(r"\bdocs/([\w/]+)\.md\b", r":doc:`docs/\1.md </\1>`", line))


def _escaped(text: str) -> str:
    return re.sub(r"([|*])|(?<=\w)_(?!\w)", lambda found: f"\\{found[0]}", text)


def add_commands(app: Any, name: str, source: list[str]) -> None:
    """Append to the page of commands what each says about itself."""
    if name == "reference/commands":
        for heading, commands in GROUPS.items():
            source[0] += f"\n## {heading}\n"
            for command in commands:
                source[0] += f"\n### {command.name}\n\n```text\n{help_text(command)}\n```\n"


def copy_linked_pages(app: Any, name: str, source: list[str]) -> None:
    """Let a link to a Markdown file beside docs/ give a copy of that file, as MyST does for the files of other kinds.

    So every link to the source works in a site that is read without the repository, and without a network.
    """
    page, site = Path(app.srcdir, f"{name}.md"), Path(app.srcdir).resolve()

    def role(found: re.Match[str]) -> str:
        inside = (page.parent / found[2]).resolve().is_relative_to(site)
        return found[0] if inside else f"{{download}}`{found[1].replace('`', '')} <{found[2]}>`"

    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+\.md)\)", role, source[0])


def setup(app: Any) -> None:
    """Connect the functions above with Sphinx."""
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("source-read", add_commands)
    app.connect("source-read", copy_linked_pages)
