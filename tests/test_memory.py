"""The memory that there is, and models that have no room in it."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer import Translator, memory
from glassformer.errors import OutOfMemoryError
from glassformer.interop.huggingface import export_marian, import_marian
from glassformer.memory import check_room, total_memory
from glassformer.run.folder import load_run
from glassformer.text.tokenizer import SubwordTokenizer, SymbolTokenizer
from glassformer.training.train import train
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer, check_memory, count_parameters


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """A machine with 8 GiB, whose process is in these control groups, with these files below /sys/fs/cgroup."""

    def make(groups: str = "", **files: str) -> None:
        pages = {"SC_PHYS_PAGES": 1 << 21, "SC_PAGE_SIZE": 1 << 12}
        monkeypatch.setattr(os, "sysconf", pages.__getitem__)
        monkeypatch.setattr(memory, "GROUPS", tmp_path)
        monkeypatch.setattr(memory, "OF_PROCESS", tmp_path / "cgroup")
        (tmp_path / "cgroup").write_text(groups, encoding="utf-8")
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="ascii")

    return make


GIB = 1 << 30


def test_the_memory_is_that_of_the_machine_or_less_in_a_container(machine):
    machine()
    assert total_memory() == 8 * GIB
    machine("0::/jobs/mine\n", jobs__mine__memory_dot_max="max\n", jobs__memory_dot_max=f"{3 * GIB}\n")
    assert total_memory() == 3 * GIB  # a group has no more than the one it is in
    machine("0::/jobs/mine\n", memory_dot_max=f"{2 * GIB}\n")
    assert total_memory() == 2 * GIB
    machine("5:cpu,cpuacct:/\n4:memory:/of/the/host\n", memory__memory_dot_limit_in_bytes=f"{GIB}\n")
    assert total_memory() == GIB


def test_no_limit_is_none(machine):
    machine("4:memory:/\n", memory__memory_dot_limit_in_bytes=f"{(1 << 63) - 4096}\n")
    assert total_memory() == 8 * GIB


def test_a_system_that_does_not_tell_refuses_nothing(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert total_memory() is None
    check_room(1 << 80, "everything", "wait")


def test_a_limit_of_the_shell_counts(machine, monkeypatch):
    import resource

    machine()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (GIB, GIB))
    assert total_memory() == GIB
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert total_memory() == 8 * GIB


def test_what_has_no_room_is_refused_with_the_figures(machine):
    machine()
    check_room(8 * GIB, "a table", "take a smaller one")
    with pytest.raises(
        OutOfMemoryError, match=r"^a table takes 17.2 GB of memory, and there is 8.6 GB: take a smaller"
    ):
        check_room(16 * GIB, "a table", "take a smaller one")


@pytest.mark.parametrize("changes", [{}, dict(norm_first=True, final_norm=True, tied_output=False, output_bias=True)])
def test_parameters_are_counted_without_a_model(changes, monkeypatch):
    sizes = ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13, shared_vocab=False, **changes)
    assert count_parameters(sizes) == sum(weight.numel() for weight in Transformer(sizes).parameters())
    huge = ModelConfig(source_vocab_size=9, target_vocab_size=9, d_model=1 << 16, d_ff=1 << 20, encoder_layers=1024)
    monkeypatch.setattr(memory, "total_memory", lambda: 25_000_000_000)
    told = r"^a model of 159,\S+ parameters, 4 bytes each, takes 63\S+ GB of memory, and there is 25.0 GB: no$"
    with pytest.raises(OutOfMemoryError, match=told):
        check_memory(huge, fix="no")


def test_a_model_without_room_is_refused_before_it_is_built(tmp_path, random_run, settings, syllables, monkeypatch):
    text = [line for pair in syllables(300) for line in pair]
    words = SubwordTokenizer.train(text, kind="bpe", vocab_size=60, seed=1)
    run = random_run(tmp_path / "run", words, words, shared=True)
    export_marian(run, tmp_path / "marian")
    size = 4 * count_parameters(run.model.config)
    monkeypatch.setattr(memory, "total_memory", lambda: size - 1)
    refused = re.escape("needs a larger machine")
    with pytest.raises(OutOfMemoryError, match=refused):
        load_run(tmp_path / "run")
    with pytest.raises(OutOfMemoryError, match=refused):
        Translator.load(tmp_path / "run", "cpu", "float32")
    with pytest.raises(OutOfMemoryError, match=refused):
        import_marian(tmp_path / "marian", tmp_path / "imported")
    assert not (tmp_path / "imported").exists()
    monkeypatch.setattr(memory, "total_memory", lambda: size)
    assert load_run(tmp_path / "run").model.config == run.model.config


@pytest.mark.parametrize(("optimizer", "numbers"), [("muon", 3), ("adam", 4)])
def test_training_needs_room_for_gradients_and_state(optimizer, numbers, settings, tmp_path, monkeypatch, tree):
    config = settings(optimizer=optimizer, max_updates=1, validate_every=1)
    letters = SymbolTokenizer("abcdefg")
    sizes = config.model_config(letters.vocab_size, letters.vocab_size)
    needed = 4 * numbers * count_parameters(sizes)
    monkeypatch.setattr(memory, "total_memory", lambda: needed - 1)
    with pytest.raises(OutOfMemoryError, match=f"parameters, {4 * numbers} bytes each, takes .* lower d_model"):
        train(config)
    assert tree(tmp_path) == {}
    monkeypatch.setattr(memory, "total_memory", lambda: needed)
    assert train(config).finished
