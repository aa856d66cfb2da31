"""The examples in the docstrings of public names do what they say."""

import doctest
import importlib
import tempfile

import pytest
import torch

WITH_EXAMPLES = [
    "checks",
    "interop.torch_nn",
    "transformer.model",
    "transformer.positions",
    "attention.attend",
    "attention.multihead",
    "attention.observe",
    "capture.capture",
    "generation.files",
    "generation.translator",
    "page.report",
    "seeds",
    "text.scores",
    "text.tokenizer",
    "training.train",
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings_do_what_they_say(module):
    names = {"torch": torch, "nn": torch.nn, "tempfile": tempfile}
    failed, attempted = doctest.testmod(importlib.import_module(f"glassformer.{module}"), extraglobs=names)
    assert (failed, attempted > 0) == (0, True)
