"""Translators that are copied or sent to another process, and callers whose autocast is on."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path

import pytest
import torch

from glassformer.attention.want import Want
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.precision import can_quantize
from glassformer.generation.translator import Translator
from glassformer.text.tokenizer import SymbolTokenizer

LINES = ["a b c", "c", "b b a"]
SEARCH = SearchConfig(beam=3, n_best=2, max_length=9)
PRECISIONS = ["float32", "bfloat16", *(["auto"] if can_quantize() else [])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, random_run: Callable) -> Path:
    folder = tmp_path_factory.mktemp("copies") / "run"
    random_run(folder, SymbolTokenizer("abc"), SymbolTokenizer("uvw"))
    return folder


def sent(translator: Translator) -> Translator:
    return pickle.loads(pickle.dumps(translator))


@pytest.mark.parametrize("copied", [copy, deepcopy, sent])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copy_translates_the_same(folder, precision, copied):
    translator = Translator.load(folder, "cpu", precision)
    other = copied(translator)
    assert other.translate_n_best(LINES, SEARCH) == translator.translate_n_best(LINES, SEARCH)
    assert other.translate_n_best(["a"], SEARCH) == translator.translate_n_best(["a"], SEARCH)  # perhaps in eight bits
    assert other.score(LINES, LINES) == translator.score(LINES, LINES)
    assert (other.precision, other.folder) == (translator.precision, translator.folder)


def test_another_process_gets_a_copy(folder, tmp_path):
    translator = Translator.load(folder, "cpu", "float32")
    (tmp_path / "sent").write_bytes(pickle.dumps(translator))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).translate(['a b c']))"
    with (tmp_path / "sent").open("rb") as given:
        done = subprocess.run([sys.executable, "-c", code], stdin=given, capture_output=True, text=True)
    assert done.stdout == f"{translator.translate(['a b c'])}\n", done.stderr


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_callers_autocast_changes_nothing(folder, precision):
    translator = Translator.load(folder, "cpu", precision)
    target = translator.translate(LINES, SearchConfig(beam=1, max_length=4))

    def results() -> list[object]:
        attention = translator.translations(LINES, SEARCH, attention=Want(head_mean=True))[0].attention
        assert attention is not None
        drawn = SearchConfig(beam=1, sample=True, max_length=5)
        return [
            translator.translate_n_best(LINES, SEARCH),
            translator.translate(LINES, drawn),
            list(translator.stream("a b", SearchConfig(beam=1, max_length=5))),
            translator.score(LINES, target),
            translator.read(LINES[0], target[0], attention=Want(entropy=True)).log_prob,
            [observation.head_mean.tolist() for observation in attention.source.values()],
        ]

    expected = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert results() == expected
