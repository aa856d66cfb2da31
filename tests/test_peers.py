"""The benchmark of equal minutes beside other toolkits: what they are told, how they end, what is read of them."""

import doctest
import importlib
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("tyro", reason="pip install 'glassformer[recipes]'")
yaml = pytest.importorskip("yaml", reason="PyYAML is missing")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def imported(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def toolkits() -> ModuleType:
    return imported("peers_toolkits")


@pytest.fixture
def corpus(toolkits, tmp_path: Path):
    return toolkits.Corpus(tmp_path / "train.tok", tmp_path / "val.tok")


@pytest.mark.parametrize("name", ["peers_toolkits", "peers_training"])
def test_examples_in_the_docstrings(name):
    found = doctest.testmod(imported(name))
    assert found.attempted > 1
    assert found.failed == 0


def test_joeynmt_is_told_its_own_settings_or_other_sizes(toolkits, corpus, tmp_path):
    own = toolkits.JoeyNMT(Path("python"), corpus, tmp_path).config(corpus.valid)
    read = yaml.safe_load(yaml.safe_dump(own))
    assert read == own  # 1e-8 without a point would be read as a word
    assert (read["model"]["encoder"]["hidden_size"], read["model"]["decoder"]["num_layers"]) == (256, 6)
    size = toolkits.Size(d_model=96, heads=3, encoder_layers=5, decoder_layers=2, d_ff=112)
    other = toolkits.JoeyNMT(Path("python"), corpus, tmp_path, size).config(corpus.valid)
    assert other["training"] == own["training"]
    assert [other["model"][side]["num_layers"] for side in ("encoder", "decoder")] == [5, 2]
    assert other["model"]["encoder"]["embeddings"]["embedding_dim"] == other["model"]["encoder"]["hidden_size"] == 96
    assert other["model"]["decoder"]["ff_size"] == 112


def test_eole_is_told_its_own_settings_or_other_sizes(toolkits, corpus, tmp_path):
    own = toolkits.Eole(Path("python"), corpus, tmp_path).config(warmup=13, valid_steps=7)
    assert yaml.safe_load(yaml.safe_dump(own)) == own
    assert own["data"]["corpus_1"]["path_tgt"] == str(tmp_path / "train.tok.de")
    assert (own["training"]["warmup_steps"], own["training"]["valid_steps"]) == (13, 7)
    longer = toolkits.Eole(Path("python"), corpus, tmp_path).config(warmup=4000, valid_steps=7)["training"]
    highest = [one["learning_rate"] / one["warmup_steps"] ** 0.5 for one in (own["training"], longer)]
    assert highest == pytest.approx([2 / 4000**0.5] * 2)
    size = toolkits.Size(d_model=96, heads=3, encoder_layers=5, decoder_layers=2, d_ff=112)
    other = toolkits.Eole(Path("python"), corpus, tmp_path, size).config(warmup=13, valid_steps=7)
    assert other["training"] == own["training"]
    assert [other["model"][side]["layers"] for side in ("encoder", "decoder")] == [5, 2]
    assert (other["model"]["hidden_size"], other["model"]["transformer_ff"]) == (96, 112)


def test_eole_is_taken_where_its_log_has_the_best_score_and_the_checkpoint_is_whole(toolkits, corpus, tmp_path):
    eole = toolkits.Eole(Path("python"), corpus, tmp_path)
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(eole.config(warmup=13, valid_steps=7)))
    (tmp_path / "train.log").write_text("".join(f"validation BLEU: {bleu}\n" for bleu in (3.5, 11.2, 9, 12)))
    for step in (7, 14, 21, 28):
        (tmp_path / f"model/step_{step}").mkdir(parents=True)
        if step != 28:  # interrupted before all of it was written
            (tmp_path / f"model/step_{step}/config.json").write_text("{}")
    assert eole.best_checkpoint().name == "step_14"


WAITING = """
import time
print("reading", flush=True)
time.sleep(0.1)
print("EPOCH 1", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("Interrupt at epoch 1, step 3.")
"""


def test_a_training_is_ended_after_its_minutes_as_by_ctrl_c(toolkits, tmp_path):
    log = tmp_path / "log"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    try:
        seconds = toolkits.run_for([sys.executable, "-c", WAITING], log, minutes=0.2 / 60, begins="EPOCH 1")
    finally:
        signal.signal(signal.SIGINT, before)
    assert seconds == pytest.approx(0.2)
    assert log.read_text().endswith("Interrupt at epoch 1, step 3.\n")


@pytest.mark.parametrize(
    ("program", "message"),
    [("raise ValueError('no data')", "no data"), ("print('reading')", "has no line with 'EPOCH 1'")],
)
def test_a_training_that_fails_or_never_begins_is_named(toolkits, tmp_path, program, message):
    with pytest.raises(SystemExit, match=message):
        toolkits.run_for([sys.executable, "-c", program], tmp_path / "log", minutes=1, begins="EPOCH 1")


def test_a_log_without_figures_is_shown(toolkits):
    with pytest.raises(ValueError, match=r"nothing in the log matches .*ends with:\nno figures"):
        toolkits.read_joeynmt_log("no figures", 60)


def test_glassformer_has_the_defaults_and_the_recipe_its_settings(tmp_path):
    training = imported("peers_training")
    assert set(training.defaults(tmp_path, tmp_path).changes()) <= {"source", "target", "valid_source", "valid_target"}
    recipe = training.recipe(tmp_path, tmp_path)
    assert (recipe.d_model, recipe.tokenizer, recipe.max_updates) == (160, "bpe", None)
    assert recipe.source == tmp_path / "train.lc.norm.tok.en"
