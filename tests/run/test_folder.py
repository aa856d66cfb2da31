import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glassformer.errors import GlassformerError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.config import TrainingRecord, is_run_folder
from glassformer.run.folder import load_run, open_run, write_config, write_weights
from glassformer.tensors import write_tensors
from glassformer.text.tokenizer import SymbolTokenizer, Tokenizer, train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

LINES = ["the cat sat", "a dog and a cat", "Grüße", "早上好", "on the mat", ""]
SEARCH = SearchConfig(beam=3, n_best=3, max_length=13)


def make_run(folder: Path, *, shared: bool = False) -> Translator:
    """A run folder of a random model, and its translator as it was before it was written."""
    source: Tokenizer = train_tokenizer(LINES, kind="char", vocab_size=None, seed=1)
    target = source if shared else SymbolTokenizer(list("ABCDE"))
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13)
    vocabularies = dict(source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, shared_vocab=shared)
    config = ModelConfig(**sizes, **vocabularies)
    model = Transformer(config)
    folder.mkdir(exist_ok=True)
    write_config(folder, config, source, target, TrainingRecord(settings={"note": "Grüße"}))
    write_weights(folder, model.state_dict())
    return Translator.of(model, source, target, precision="float32")


@pytest.fixture
def folder(tmp_path) -> Path:
    make_run(tmp_path)
    return tmp_path


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_a_loaded_run_translates_as_before(tmp_path, shared):
    before = make_run(tmp_path / "run", shared=shared)
    expected = before.translate_n_best(LINES, SEARCH)
    assert len({translations[0].text for translations in expected}) > 2
    for folder in (tmp_path / "run", str(tmp_path / "run")):
        loaded = Translator.load(folder, device="cpu", precision="float32")
        assert loaded.translate_n_best(LINES, SEARCH) == expected
        assert loaded.engine.config == before.engine.config
        assert str(loaded.precision) == "float32"


def test_auto_is_the_same_precision_for_a_run_and_for_its_model(folder):
    run, loaded = load_run(folder), Translator.load(folder, device="cpu")
    translator = Translator.of(run.model, run.source_tokenizer, run.target_tokenizer)
    assert loaded.precision == translator.precision
    assert loaded.translate_n_best(LINES, SEARCH) == translator.translate_n_best(LINES, SEARCH)


def test_a_run_has_all_that_was_written(folder):
    run = load_run(folder)
    assert run.training == TrainingRecord(settings={"note": "Grüße"})
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in run.model.state_dict().items())
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS, "source.spm", "target.symbols"}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["format"] == 1
    assert "Grüße" in (folder / "config.json").read_text(encoding="utf-8"), "readable as it is"


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        change(config)
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    return damage


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, end: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:end])


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        change(weights)
        write_tensors(folder / WEIGHTS, weights)

    return damage


CONFIG, WEIGHTS = "config.json", "model.safetensors"
OUTER, BIAS = "decoder.0.feed_forward.outer.weight", "encoder.0.self_attention.in_proj_bias"
NOT_OURS, DAMAGED = f"{CONFIG} was not written by glassformer, or is damaged", f"{WEIGHTS} is damaged ("
NO_FIT = f"{WEIGHTS} does not fit the model of config.json: "
NOT_FINITE = f"{WEIGHTS} holds numbers that are not finite, first in "


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove(CONFIG), " is not a run folder: it has no config.json (glassformer train --out makes one)"),
        (cut(CONFIG, 50), NOT_OURS),
        (write(CONFIG, bytes(range(128, 256))), NOT_OURS),
        (write(CONFIG, b'{"vocab_size": 7}'), NOT_OURS),
        (write(CONFIG, b"[1, 2]"), NOT_OURS),
        (write(CONFIG, b'{"model_type": "marian"}'), "is of a Hugging Face model, not of a run: make a run of it"),
        (edit(lambda c: c.update(format=2)), "has format version 2, this glassformer reads up to 1: upgrade glassfor"),
        (edit(lambda c: (c.pop("model"), c.pop("training"))), "is damaged: the object lacks model"),
        (edit(lambda c: c.update(model=None)), "is damaged: model must be an object, got null"),
        (edit(lambda c: c.update(source_tokenizer=7)), "is damaged: source_tokenizer must be text, got 7"),
        (edit(lambda c: c["model"].update(experts=7)), "unknown model settings experts: written by a newer glass"),
        (remove(WEIGHTS), f"{WEIGHTS} is missing: copy it again from where it was trained"),
        (
            lambda folder: ((folder / WEIGHTS).unlink(), (folder / "resume").mkdir()),
            f"{WEIGHTS} is missing: its training has not reached a first validation",
        ),
        (cut(WEIGHTS, -100), DAMAGED),
        (write(WEIGHTS, b""), DAMAGED),
        (lambda folder: torch.save({"weight": torch.zeros(3)}, folder / WEIGHTS), DAMAGED),  # it is never unpickled
        (change_weights(lambda weights: weights.clear()), NO_FIT),
        (change_weights(lambda weights: weights.pop(BIAS)), f"{NO_FIT}{BIAS} must be (24,), got none"),
        (
            change_weights(lambda weights: weights.update(output_bias=torch.zeros(7))),
            f"{NO_FIT}output_bias must be left out, got (7,)",
        ),
        (
            change_weights(lambda weights: weights.update({OUTER: weights[OUTER].T})),
            f"{NO_FIT}{OUTER} must be (8, 13), got (13, 8)",
        ),
        (change_weights(lambda weights: weights[OUTER][3:4, 5].fill_(torch.nan)), NOT_FINITE),
        (change_weights(lambda weights: weights[BIAS][-1:].fill_(-torch.inf)), NOT_FINITE),
        (remove("source.spm"), "source.spm: the tokenizer file is missing"),
        (remove("target.symbols"), "target.symbols: the tokenizer file is missing"),
        (cut("source.spm", 50), "source.spm: not a sentencepiece model"),
        (
            lambda folder: SymbolTokenizer(list("ABCDEFGHIJK")).save(folder / "target"),
            "source.spm and target.symbols have 22 and 14 ids, the model 22 and 8: these files are not of one run",
        ),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_run_folder_is_said(folder, damage, message):
    load_run(folder)
    damage(folder)
    with pytest.raises(GlassformerError, match=re.escape(message)):
        load_run(folder)
    with pytest.raises(GlassformerError, match=re.escape(message)):
        Translator.load(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [("elsewhere", ": no such run folder"), ("run", ": no such run folder: did you mean "), ("file", " is a file, ")],
)
def test_what_is_not_a_folder_is_no_run_folder(tmp_path, name, message):
    (tmp_path / "file").write_text("text")
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunError, match=re.escape(f"{tmp_path / name}{message}")):
        load_run(tmp_path / name)


def test_a_run_folder_is_known_by_its_config_finished_or_not(tmp_path):
    assert not is_run_folder(tmp_path)
    assert not is_run_folder(tmp_path / "not there")
    folder = tmp_path / "run"
    make_run(folder)
    assert is_run_folder(folder)
    (folder / "model.safetensors").unlink()
    assert is_run_folder(folder), "before the first validation"
    (folder / "config.json").write_text("{}")
    assert not is_run_folder(folder)


def test_weights_are_read_from_the_file_as_they_are_asked_for(folder):
    run = open_run(folder)
    weights = load_file(folder / "model.safetensors")
    assert run.parameters == sum(tensor.numel() for tensor in weights.values())
    assert (len(run.weights), set(run.weights)) == (len(weights), set(weights))
    assert all(torch.equal(run.weights[name], tensor) for name, tensor in weights.items())
    name = "decoder.0.feed_forward.outer.bias"
    write_tensors(folder / "model.safetensors", {**weights, name: torch.full((8,), 0.5)})
    assert torch.equal(run.weights[name], torch.full((8,), 0.5))
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunError, match="is damaged"):
        run.weights[name]


@pytest.mark.parametrize("name", ["../x.spm", "/dev/zero", "a/b.spm", "..", ".", "", "a\x00b"])
def test_a_tokenizer_is_a_bare_name(folder, name):
    edit(lambda config: config.update(source_tokenizer=name))(folder)
    with pytest.raises(RunError, match="source_tokenizer must be the bare name of a file, got"):
        open_run(folder)


@pytest.mark.parametrize("name", ["pipe.spm", "pipe.symbols", "zero.spm", "zero.symbols", "folder.spm"])
def test_a_tokenizer_is_a_regular_file(folder, name):
    make_it = {"pipe": os.mkfifo, "zero": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}
    make_it[name.partition(".")[0]](folder / name)
    edit(lambda config: config.update(source_tokenizer=name))(folder)
    with pytest.raises(GlassformerError, match="must be a regular file"):
        open_run(folder)


SWAP_FIELDS = """
import json, sys
from copy import deepcopy
from pathlib import Path
from glassformer import GlassformerError, open_run

WRONG = [None, True, "128", 1.5, -1, 10**18, 10**400, [], {}, [[[]]], "x" * 70_000]

def places(value, *path):
    for name, inner in value.items():
        yield *path, name
        if isinstance(inner, dict):
            yield from places(inner, *path, name)

folder = Path(sys.argv[1])
good = json.loads((folder / "config.json").read_text())
read = refused = 0
for *above, name in places(good):
    for wrong in WRONG:
        spoiled = deepcopy(good)
        inner = spoiled
        for step in above:
            inner = inner[step]
        inner[name] = wrong
        (folder / "config.json").write_text(json.dumps(spoiled))
        try:
            open_run(folder)
            read += 1
        except GlassformerError as error:
            assert str(folder) in str(error) and len(str(error)) < 2000, (above, name, wrong, str(error))
            refused += 1
print(read, refused)
"""


def test_each_field_of_config_json_may_be_wrong(folder):
    """In a process without the runtime check of types, which would come first."""
    done = subprocess.run([sys.executable, "-c", SWAP_FIELDS, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    read, refused = map(int, done.stdout.split())
    assert read + refused == 11 * 24
    assert refused > 200
