"""`train --from`: a training that goes on from the model of another run."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from glassformer.errors import ConfigError, DataError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run.config import read_config
from glassformer.run.folder import load_run
from glassformer.scoring.scores import Score
from glassformer.text.tokenizer import train_tokenizer
from glassformer.text.vocabulary import VocabularyTokenizer
from glassformer.training import validation
from glassformer.training.config import TrainConfig
from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("undrawn", "unchecked_trainings")


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned a little how to reverse symbols; it takes three seconds, once."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    languages = dict(source_language="en", target_language="pt-BR")
    sizes = dict(d_model=32, learning_rate=1e-2, warmup=50, max_updates=150, dropout=0.1, validate_every=150)
    train(tiny(folder, **sizes, **languages))
    return folder


@pytest.fixture
def further(pairs, trained, tmp_path) -> Callable[..., TrainConfig]:
    """Settings of a training from that run, with changes."""
    plain = dict(source=pairs / "train.tsv", valid_source=pairs / "valid.tsv", device="cpu", precision="float32")
    plain |= dict(batch_tokens=64, validate_every=10, average=1, metric="ser", learning_rate=1e-4, warmup=1)
    return lambda out="further", **changes: TrainConfig(**{**plain, "from_": trained, "out": tmp_path / out, **changes})


def test_it_begins_with_that_models_weights_and_keeps_its_tokenizers_and_sizes(further, trained, files):
    config = further(max_updates=1)
    train(config)
    assert (config.out / "source.symbols").read_bytes() == (trained / "source.symbols").read_bytes()
    before, after = (json.loads((run / "config.json").read_text())["model"] for run in (trained, config.out))
    assert before == after
    assert [read_config(run).training.languages for run in (trained, config.out)] == [("en", "pt-BR")] * 2
    assert files.metrics(config.out)[0]["update"] == 0
    before, after = files.weights(trained), files.weights(config.out)
    for name in before:  # one small step away at the most
        assert_close(after[name], before[name], rtol=0.0, atol=2e-4)


def test_lost_after_its_first_validation_it_has_that_once(further, crashing, files):
    train(whole := further("whole", max_updates=9))
    config = further(max_updates=9)
    with crashing(3), pytest.raises(SystemError):
        train(config)
    resume(config.out)
    assert files.outcome(config.out) == files.outcome(whole.out)


def test_weights_to_begin_with_that_were_damaged_meanwhile_are_refused(further, interrupting):
    with interrupting(3):
        train(config := further(max_updates=9))
    path = config.out / "resume" / "initial.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"initial\.safetensors is damaged \(its checksum is another\)"):
        resume(config.out)


def test_what_it_began_with_is_kept_if_nothing_was_better(further, trained, files):
    config = further(max_updates=10, learning_rate=3.0, clip_norm=0.0)
    result = train(config)
    first = files.metrics(config.out)[0]
    assert (first["update"], result.score) == (0, first["score"])
    assert_close(files.weights(config.out), files.weights(trained), rtol=0, atol=0)


def test_what_it_began_with_is_no_part_of_the_mean(further, capsys):
    train(further(max_updates=20, average=5))
    assert "mean of the weights at the last 2 validations: " in capsys.readouterr().err


def test_a_mean_that_is_worse_than_what_it_began_with_in_score_and_loss_is_not_kept(further, files, monkeypatch):
    scores = iter([70.0, 60.0, 75.0, 75.0, 75.0, 72.0])  # a ser: before, in four validations, and of the mean
    monkeypatch.setattr(validation, "score", lambda *_, **__: Score("scripted", next(scores), ""))
    config = further(max_updates=40, average=2, learning_rate=0.1, clip_norm=0.0)
    result = train(config)
    losses = [line["valid_loss"] for line in files.metrics(config.out) if "valid_loss" in line]
    assert losses[0] < min(losses[1:]), "so that the mean's is higher, too"
    assert losses[1] > max(losses[3:]), "but not than that of the best score"
    assert next(scores, None) is None, "the mean was validated"
    assert result.score == 60.0


def test_from_few_pairs_it_learns_more_than_a_model_of_its_own(further, tiny, reversed_symbols, files, tmp_path):
    (tmp_path / "few.tsv").write_text("\n".join(reversed_symbols(40, seed=9)) + "\n")
    few = dict(source=tmp_path / "few.tsv", learning_rate=3e-3, max_updates=40)
    losses = []
    for config in (further(**few), tiny(tmp_path / "own", d_model=32, average=1, **few)):
        train(config)
        losses.append(min(line["valid_loss"] for line in files.metrics(config.out) if "valid_loss" in line))
    assert losses[0] < losses[1] - 0.3


def test_dropout_is_that_models_unless_given(further):
    for out, given, expected in (("a", {}, 0.1), ("b", {"dropout": 0.125, "attention_dropout": 0.25}, 0.125)):
        config = further(out, max_updates=1, **given)
        train(config)
        model = load_run(config.out).model.config
        assert (model.dropout, model.attention_dropout) == (expected, given.get("attention_dropout", 0.0))


def test_interrupted_it_goes_on_to_the_same_weights_though_that_run_is_gone(
    further, trained, files, tmp_path, interrupting
):
    origin = shutil.copytree(trained, tmp_path / "origin")
    undisturbed, config = (further(out, from_=origin, max_updates=25) for out in ("whole", "parts"))
    train(undisturbed)
    for count in (4, 11):
        with interrupting(count):
            result = resume(config.out) if config.out.exists() else train(config)
        assert not result.finished
        if origin.exists():
            shutil.rmtree(origin)
    resume(config.out)
    assert files.outcome(config.out) == files.outcome(undisturbed.out)
    assert not (config.out / "resume").exists()


def test_where_that_models_weights_stay_the_best_they_are_kept_after_an_interruption(
    further, trained, files, interrupting
):
    config = further(learning_rate=1.0, clip_norm=0.0, max_updates=20)
    with interrupting(13):
        assert not train(config).finished
    resume(config.out)
    scores = [line["valid_loss"] for line in files.metrics(config.out) if "valid_loss" in line]
    assert scores[0] == min(scores)
    before, after = files.weights(trained), files.weights(config.out)
    assert all(after[name].equal(before[name]) for name in before)


@pytest.mark.parametrize(("given", "kept"), [({}, "exp_avg"), ({"optimizer": "muon"}, "momentum")], ids=str)
def test_finished_weights_are_trained_on_by_adam_unless_told_otherwise(further, interrupting, given, kept):
    config = further(max_updates=9, **given)
    with interrupting(4):
        train(config)
    (checkpoint,) = config.out.glob("resume/checkpoint-*/*.safetensors")
    assert f"optimizer.encoder.0.feed_forward.inner.weight.{kept}" in load_file(checkpoint)


def test_the_weights_of_a_finished_model_do_not_decay_unless_told_otherwise(further, files):
    losses = {}
    for decay in (None, 0.0, 0.3):
        config = further(f"decay-{decay}", max_updates=3, learning_rate=3e-3, weight_decay=decay)
        train(config)
        losses[decay] = files.metrics(config.out)[-1]["valid_loss"]
    assert losses[None] == losses[0.0] != losses[0.3]


def test_an_imported_models_vocabulary_is_kept_and_its_bias_learns(further, random_run, files, tmp_path):
    text = ["ka to mi", "to to ka", "mi ka nu", "nu mi"] * 5
    subwords = train_tokenizer(text, kind="bpe", vocab_size=None, seed=1)
    ids = {"</s>": 0, "<unk>": 1}
    for piece in reversed(subwords.tokens(range(2, subwords.pad))):  # in an order of its own
        ids[piece] = len(ids)
    ids["<pad>"] = len(ids)
    (tmp_path / "x.model").write_bytes(subwords.save(tmp_path / "x").read_bytes())
    tokenizer = VocabularyTokenizer((tmp_path / "x.model").read_bytes(), ids)
    run = random_run(tmp_path / "imported", tokenizer, tokenizer, shared=True, output_bias=True, activation="swish")
    (path := tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in text))
    config = further(source=path, valid_source=path, from_=tmp_path / "imported", max_updates=2, metric="exact")
    train(config)
    found = load_run(config.out)
    assert isinstance(found.source_tokenizer, VocabularyTokenizer)
    assert found.source_tokenizer.encode(text) == tokenizer.encode(text)
    assert found.model.config == run.model.config
    assert found.model.output_bias is not None
    assert not found.model.output_bias.equal(run.model.output_bias)
    (first, *_) = [line["valid_loss"] for line in files.metrics(config.out) if "valid_loss" in line]
    scores = Translator.load(tmp_path / "imported", "cpu", "float32").score(text, text)
    assert first == pytest.approx(-sum(scores) / sum(len(ids) + 1 for ids in tokenizer.encode(text)), abs=1e-4)
    Translator.load(config.out, "cpu").translate(text[:2], SearchConfig(beam=1))


# Bad input


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"vocab_size": 100}, "`vocab_size`"),
        ({"preset": "base", "d_ff": 64}, "`d_ff`, `preset`"),
        ({"source_tokenizer": "char", "separate_vocab": True}, "`separate_vocab`, `source_tokenizer`"),
    ],
)
def test_what_it_has_from_that_run_cannot_be_chosen(further, changes, names):
    message = f"with from_ the tokenizers and sizes of that run are kept: leave out {names}, or leave out from_"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        further(**changes)


def test_from_what_is_no_run(further, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"empty is not a run folder: it has no config.json"):
        train(further(from_=tmp_path / "empty"))
    assert not (tmp_path / "further").exists()


def test_resampling_is_refused_where_that_run_splits_text_in_one_way(further, trained):
    message = f"resample is for tokenizers that can split text in several ways, and those of {trained} can't: leave it"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        train(further(resample=0.5))
    assert not further().out.exists()


def test_text_that_the_vocabulary_does_not_know_is_refused_with_the_share(further, tmp_path):
    (tmp_path / "other.tsv").write_text("x y z a\ta b c d\n" * 30)
    with pytest.raises(
        DataError, match=r"^60% of the source tokens are unknown to the vocabulary, which was trained on text in"
    ):
        train(further(source=tmp_path / "other.tsv"))
    assert not (tmp_path / "further").exists()


def test_the_command_line(trained, pairs, tmp_path, run_command, capsys):
    assert run_command(f"train --from {trained} --source {pairs}/train.tsv --out {tmp_path}/new --max-updates 2") == 0
    assert f"vocabulary and model of {trained}" in capsys.readouterr().err
    settings = json.loads((tmp_path / "new" / "config.json").read_text())["training"]["settings"]
    assert settings["from_"] == str(trained)
