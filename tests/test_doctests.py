"""The examples in the docstrings of public names do what they say."""

import doctest
import importlib
import tempfile
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).parents[1] / "src"
WITH_EXAMPLES = [
    path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def test_examples_are_found():
    assert len(WITH_EXAMPLES) >= 15


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings_do_what_they_say(module):
    names = {"torch": torch, "nn": torch.nn, "tempfile": tempfile}
    failed, attempted = doctest.testmod(importlib.import_module(module), extraglobs=names)
    assert (failed, attempted > 0) == (0, True)
