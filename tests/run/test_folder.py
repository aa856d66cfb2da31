import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glassformer.errors import ConfigError, GlassformerError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.folder import is_run_folder, load_run, open_run, write_config, write_weights
from glassformer.tensors import write_tensors
from glassformer.text.tokenizer import SymbolTokenizer, Tokenizer, train_tokenizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

LINES = ["the cat sat", "a dog and a cat", "Grüße", "早上好", "on the mat", ""]
SEARCH = SearchConfig(beam=3, n_best=3, max_length=13)


def make_run(folder: Path, *, shared: bool = False, d_model: int = 8) -> Translator:
    """A run folder of a random model, and its translator as it was before it was written."""
    source: Tokenizer = train_tokenizer(LINES, kind="char", vocab_size=None, seed=1)
    target = source if shared else SymbolTokenizer(list("ABCDE"))
    config = ModelConfig.tiny(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        shared_vocab=shared,
        d_model=d_model,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        d_ff=13,
    )
    model = Transformer(config)
    folder.mkdir(exist_ok=True)
    write_config(folder, config, source, target, {"settings": {"note": "Grüße"}})
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


def test_a_precision_that_there_is_none_of_is_named(folder):
    with pytest.raises(ConfigError, match=r"precision must be one of auto, float32, bfloat16, float16, got 'int4'"):
        Translator.load(folder, precision="int4")


def test_a_run_has_all_that_was_written(folder):
    run = load_run(folder)
    assert run.training == {"settings": {"note": "Grüße"}}
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in run.model.state_dict().items())
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "source.spm",
        "target.symbols",
    }
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["format"] == 1
    assert "Grüße" in (folder / "config.json").read_text(encoding="utf-8"), "readable as it is"


def test_a_run_may_be_moved(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved run"
    expected = Translator.load(folder).translate(LINES, SEARCH)
    folder.rename(elsewhere)
    assert Translator.load(elsewhere).translate(LINES, SEARCH) == expected


def edit(name: str) -> Callable:
    """Registers a way to damage a run folder, and the message it leads to."""

    def register(damage: Callable[[Path], str]) -> Callable:
        DAMAGES[name] = damage
        return damage

    return register


DAMAGES: dict[str, Callable[[Path], str]] = {}


def change_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    values = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}), encoding="utf-8")


def weights_of(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    path = folder / "model.safetensors"
    return path, load_file(path)


@edit("no config.json")
def _(folder: Path) -> str:
    (folder / "config.json").unlink()
    return f"{folder} is not a run folder: it has no config.json (glassformer train --out makes one)"


@edit("config.json cut short")
def _(folder: Path) -> str:
    path = folder / "config.json"
    path.write_bytes(path.read_bytes()[:50])
    return f"{path} was not written by glassformer, or is damaged"


@edit("config.json empty")
def _(folder: Path) -> str:
    (folder / "config.json").write_bytes(b"")
    return f"{folder}/config.json was not written by glassformer, or is damaged"


@edit("config.json not text")
def _(folder: Path) -> str:
    (folder / "config.json").write_bytes(bytes(range(128, 256)))
    return f"{folder}/config.json was not written by glassformer, or is damaged"


@edit("config.json of another program")
def _(folder: Path) -> str:
    (folder / "config.json").write_text('{"vocab_size": 7}')
    return f"{folder}/config.json was not written by glassformer, or is damaged"


@edit("config.json of Hugging Face")
def _(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "marian"}')
    return f"{folder} holds a Hugging Face model, not a run: make a run of it with glassformer import --from {folder} "


@edit("config.json a list")
def _(folder: Path) -> str:
    (folder / "config.json").write_text("[1, 2]")
    return f"{folder}/config.json was not written by glassformer, or is damaged"


@edit("a newer format")
def _(folder: Path) -> str:
    change_config(folder, format=2)
    return "config.json has format version 2, this glassformer reads up to 1: upgrade glassformer"


@edit("parts of config.json missing")
def _(folder: Path) -> str:
    change_config(folder, model=..., target_tokenizer=...)
    return f"{folder}/config.json is damaged: model, target_tokenizer missing"


@edit("no weights")
def _(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return f"{folder}/model.safetensors is missing: copy it again from where it was trained"


@edit("no weights yet")
def _(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    (folder / "resume").mkdir()
    return f"{folder}/model.safetensors is missing: its training has not reached a first validation"


@edit("weights cut short")
def _(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return f"{path} is damaged ("


@edit("weights cut within the header")
def _(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    return f"{path} is damaged ("


@edit("weights empty")
def _(folder: Path) -> str:
    (folder / "model.safetensors").write_bytes(b"")
    return f"{folder}/model.safetensors is damaged ("


@edit("weights of a wider model")
def _(folder: Path) -> str:
    other = folder / "other"
    make_run(other, d_model=16)
    (other / "model.safetensors").replace(folder / "model.safetensors")
    return f"{folder}/model.safetensors does not fit the model of config.json: "


@edit("weights of a model with other parts")
def _(folder: Path) -> str:
    path = folder / "model.safetensors"
    write_tensors(path, {"something.else": torch.zeros(2)})
    return f"{path} does not fit the model of config.json: decoder.0.feed_forward.inner.bias must be (13,), got none"


@edit("a weight too few")
def _(folder: Path) -> str:
    path, weights = weights_of(folder)
    name = "encoder.0.self_attention.out_proj.weight"
    del weights[name]
    write_tensors(path, weights)
    return f"{path} does not fit the model of config.json: {name} must be (8, 8), got none"


@edit("a weight too many")
def _(folder: Path) -> str:
    path, weights = weights_of(folder)
    write_tensors(path, {**weights, "output_bias": torch.zeros(7)})
    return f"{path} does not fit the model of config.json: output_bias must be left out, got (7,)"


@edit("a transposed weight")
def _(folder: Path) -> str:
    path, weights = weights_of(folder)
    name = "decoder.0.feed_forward.outer.weight"
    write_tensors(path, {**weights, name: weights[name].T})
    return f"{path} does not fit the model of config.json: {name} must be (8, 13), got (13, 8)"


@edit("a weight that is not finite")
def _(folder: Path) -> str:
    path, weights = weights_of(folder)
    weights["decoder.0.feed_forward.outer.weight"][3, 5] = torch.nan
    write_tensors(path, weights)
    return f"{path} holds numbers that are not finite: train again with a lower --learning-rate"


@edit("an infinite bias")
def _(folder: Path) -> str:
    path, weights = weights_of(folder)
    weights["encoder.0.self_attention.in_proj_bias"][-1] = -torch.inf
    write_tensors(path, weights)
    return f"{path} holds numbers that are not finite: train again with a lower --learning-rate"


@edit("no source tokenizer")
def _(folder: Path) -> str:
    (folder / "source.spm").unlink()
    return f"{folder}/source.spm: the tokenizer file is missing"


@edit("no target tokenizer")
def _(folder: Path) -> str:
    (folder / "target.symbols").unlink()
    return f"{folder}/target.symbols: the tokenizer file is missing"


@edit("a damaged tokenizer")
def _(folder: Path) -> str:
    path = folder / "source.spm"
    path.write_bytes(path.read_bytes()[:50])
    return f"{path}: not a sentencepiece model"


@edit("the tokenizer of another run")
def _(folder: Path) -> str:
    SymbolTokenizer(list("ABCDEFGHIJK")).save(folder / "target")
    return "target.symbols"


@edit("the model's settings not an object")
def _(folder: Path) -> str:
    change_config(folder, model=None)
    return "config.json"


@edit("settings of a newer model")
def _(folder: Path) -> str:
    path = folder / "config.json"
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    change_config(folder, model={**model, "mixture_of_experts": 7})
    return "unknown model settings mixture_of_experts"


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_what_is_wrong_with_a_run_folder_is_said(folder, damage):
    load_run(folder)
    message = DAMAGES[damage](folder)
    with pytest.raises(GlassformerError, match=re.escape(message)):
        load_run(folder)
    with pytest.raises(GlassformerError, match=re.escape(message)):
        Translator.load(folder)


@pytest.mark.parametrize("name", ["not there", "file"])
def test_what_is_not_a_folder_is_no_run_folder(tmp_path, name):
    (tmp_path / "file").write_text("text")
    with pytest.raises(RunError, match=re.escape(f"{tmp_path / name}: no such run folder")):
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


def test_tensors_of_a_run_are_never_unpickled(folder):
    """A pickle in the place of the weights is refused, not run."""
    path = folder / "model.safetensors"
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(RunError, match="is damaged"):
        load_run(folder)
    with pytest.raises(RunError, match="is damaged"):
        Translator.load(folder)


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
