"""The pages under docs/reference: each public name, command, error and file has an entry, each entry an example."""

import ast
import importlib
import inspect
import re
import runpy
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer import GlassformerError, Translator, reference
from glassformer.cli import COMMANDS
from glassformer.run import names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")}
ENTRY = re.compile(r"^\.\. auto(?:function|class|exception):: (\S+)$", re.MULTILINE)
ENTRIES = [name for text in PAGES.values() for name in ENTRY.findall(text)]
SOURCES = [
    *ROOT.glob("README*.md"),
    *(page for page in DOCS.rglob("*.md") if DOCS / "_build" not in page.parents),
    *(ROOT / "src").rglob("*.py"),
]
PASSAGES = re.compile(
    r"^```(?:python|\{code-cell\} python)\n(?!%%)(.*?)^```|^ *>>> (from glassformer.*?)$", re.MULTILINE | re.DOTALL
)
OPTIONS = re.compile(r"^[:!].*\n", re.MULTILINE)  # and commands of a notebook's cell
LINK = re.compile(r"\bdocs/[\w/]+\.md\b")
DOORS = [
    name for name, value in vars(Translator).items() if not name.startswith("_") and not isinstance(value, property)
]
"""Methods that need an example of their own; those of other classes are shown in the class's."""


def find(name: str) -> Any:
    """What an entry names: `glassformer.capture`, which is a function and a folder, or `glassformer.run.folder.Run`."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def imported() -> dict[str, set[str]]:
    """What the examples of pages and docstrings import from glassformer, by the module that they name."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for block, line in PASSAGES.findall(path.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(OPTIONS.sub("", block) or line)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("glassformer"):
                    found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


def errors() -> set[str]:
    """The classes of errors that the source defines, by their full names."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        module = path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".")
        for node in ast.parse(path.read_bytes()).body:
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if any(re.search(r"(Error|Exception)$", base) for base in bases) and not node.name.startswith("_"):
                found.add(f"{module}.{node.name}")
    return found


def missing(wanted: set[str]) -> list[str]:
    """Those that no entry is about, by whatever path it names them."""
    there = [find(name) for name in ENTRIES]
    return sorted(name for name in wanted if not any(find(name) is one for one in there))


def test_every_public_name_has_an_entry():
    assert missing({f"glassformer.{name}" for name in glassformer.__all__}) == []
    assert missing({f"glassformer.reference.{name}" for name in reference.__all__}) == []


def test_no_entry_comes_twice():
    assert sorted({name for name in ENTRIES if ENTRIES.count(name) > 1}) == []


def test_every_error_has_an_entry_on_its_page_and_a_docstring():
    found = errors()
    assert {"glassformer.errors.RunError", "glassformer.reference.errors.InputError"} <= found
    on_page = [find(name) for name in ENTRY.findall(PAGES["errors"])]
    assert [name for name in sorted(found) if find(name) not in on_page] == []
    rows = [one.__name__ for one in on_page if f"| `{one.__name__}` |" in PAGES["errors"]]
    assert rows == [one.__name__ for one in on_page if one is not GlassformerError]
    assert all(vars(one).get("__doc__") for one in on_page)


def test_what_examples_import_has_an_entry():
    names = imported()
    assert {"glassformer", "glassformer.attention.masks", "glassformer.reference"} <= set(names)
    assert missing({f"{module}.{name}" for module, some in names.items() for name in some}) == []


def test_every_command_has_an_entry(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # the settings change it
    settings = runpy.run_path(str(DOCS / "conf.py"))
    text = [PAGES["commands"]]
    settings["add_commands"](None, "reference/commands", text)
    assert set(re.findall(r"^### (\S+)$", text[0], re.MULTILINE)) == set(COMMANDS)


def test_every_file_of_a_run_folder_has_an_entry():
    values = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    assert len(values) >= 12
    assert [value for value in values if not re.search(rf"`{re.escape(value)}/?`", PAGES["run_folder"])] == []


@pytest.mark.parametrize("name", [*ENTRIES, *(f"glassformer.Translator.{name}" for name in DOORS)])
def test_every_docstring_has_an_example_or_a_link_to_one(name):
    path = name.removeprefix("glassformer.Translator.")
    value = reduce(getattr, [Translator, path]) if path in DOORS else find(name)
    doc = inspect.getdoc(value) or ""
    if ">>> " in doc:
        return
    links = LINK.findall(doc)
    assert links, f"{name} has neither an example nor a link to one, such as 'Example: docs/training.md.'"
    pages = [(ROOT / link).read_text(encoding="utf-8") for link in links]
    shown = re.escape(name.rpartition(".")[2])
    assert any(re.search(rf"\b{shown}\b", text) for text in pages), f"none of {links} shows {name}"


@pytest.mark.parametrize("name", [name for name in ENTRIES if inspect.isclass(find(name))])
def test_every_public_method_says_what_it_does(name):
    kind, torchs = find(name), inspect.getdoc(torch.nn.Module.forward)
    methods = [key for key, value in vars(kind).items() if not key.startswith("_") and callable(value)]
    assert [key for key in methods if inspect.getdoc(getattr(kind, key)) in (None, torchs)] == []
