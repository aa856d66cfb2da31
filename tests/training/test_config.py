"""Settings are refused at once, by name, with what came; and survive JSON."""

import json
import math
import re
from pathlib import Path

import pytest

from glassformer.errors import ConfigError
from glassformer.run.config import ENDS
from glassformer.training.config import TrainConfig


def config(**changes) -> TrainConfig:
    return TrainConfig(**{"out": Path("runs/x"), "source": Path("t.tsv"), **changes})


OFF = r" \(0 turns it off\)"
BOUNDS = {
    "at least 1": (
        [
            *("batch_tokens", "accumulate", "max_epochs", "max_updates", "max_left_out", "validate_every", "average"),
            *("score_pairs", "warmup", "vocab_size", "source_vocab_size", "target_vocab_size", "threads"),
            *("d_model", "heads", "encoder_layers", "decoder_layers", "d_ff"),
        ],
        [0, -3],
    ),
    r"at least 2 \(one token and </s>\)": (["max_tokens"], [1]),
    "at least 1 ": (["max_ratio"], [0.5, math.nan]),
    "above 0 and finite": (["learning_rate"], [0.0, -1e-3, math.inf, math.nan]),
    "above 0": (["max_minutes", "checkpoint_seconds"], [0.0, -1.0, math.nan]),
    "at least 0.98 and at most 1": (["character_coverage"], [0.0, 0.97, 1.1]),
    f"at least 0{OFF}": (["patience"], [-1]),
    f"at least 0{OFF} ": (["clip_norm"], [-1.0, math.nan]),
    f"at least 0 and finite{OFF}": (["weight_decay", "guide", "r_drop"], [-0.1, math.inf]),
    "at least 0 and at most 1": (["cooldown", "resample"], [-0.1, 1.5]),
    "at least 0 and less than 1": (["label_smoothing", "dropout", "attention_dropout"], [-0.1, 1.0]),
    r"at least 0 and less than 2\^32": (["seed"], [-1, 1 << 32, 10**19]),
    "one of auto, tiny, small, base, big": (["preset"], ["huge"]),
    "one of auto, bleu, chrf, exact, wer, ser": (["metric"], ["rouge", "bleu:1"]),
    "one of auto, cpu, cuda, mps": (["device"], ["tpu"]),
    "one of muon, adam": (["optimizer"], ["sgd"]),
    "one of auto, float32, bfloat16": (["precision"], ["int8"]),
}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [(name, value, text.strip()) for text, (names, values) in BOUNDS.items() for name in names for value in values],
)
def test_a_value_out_of_bounds_is_refused(name, value, expected):
    with pytest.raises(ConfigError, match=rf"^{name} must be {expected}, got {re.escape(repr(value))}$"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(learning_rate=5.0),
            r"learning_rate \* weight_decay must be less than 1, got 5 \* 0.3: each update would take more off a "
            "weight than the weight itself; lower one of the two$",
        ),
        (dict(decompose=True, source_tokenizer="symbols"), "decompose is for tokenizers that learn .* got symbols for"),
        (dict(decompose=True, tokenizer="x.model"), r"decompose is for tokenizers that learn .* got x.model for"),
        (
            dict(resample=0.5, cooldown=1.0),
            "`cooldown` 1 leaves nothing of resample 0.5, which ends where the cooldown begins: lower it",
        ),
        (
            dict(resample=0.5, source_tokenizer="char", target_tokenizer="symbols"),
            "resample is for tokenizers that can split text .*, got 0.5 with char and symbols: leave it out",
        ),
        (
            dict(resample=0.5, tokenizer="features"),
            "resample is for tokenizers that can split text .*, got 0.5 with features: leave it out",
        ),
        (dict(task="sentences"), "task must be one of characters, got 'sentences'"),
        (dict(d_model=128, heads=3), "d_model must be a multiple of heads, got d_model 128 and heads 3: 2 heads"),
        (dict(source_language="en"), "source_language and target_language belong together: give both, or neither"),
        (dict(source_language="English", target_language="d"), "target_language must be a code, such as en or pt-BR"),
        (dict(source_language="en_US", target_language="de"), "source_language must be a code, .*, got 'en_US'"),
        (dict(overwrite=True, resume=True), "`overwrite` and `resume` exclude each other"),
        (
            dict(target=Path("t.de"), valid_target=Path("v.de")),
            "valid_target needs the sources too: name their file, or leave this out",
        ),
    ],
    ids=str,
)
def test_values_that_do_not_go_together_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        dict(target=Path("t.de")),
        dict(target=Path("t.de"), valid_source=Path("v.en"), valid_target=Path("v.de")),
        dict(valid_source=Path("v.tsv")),
        dict(character_coverage=1.0, max_ratio=1.0, max_tokens=2, seed=(1 << 32) - 1, device="cuda:1"),
        dict(seed=0, cooldown=1.0, label_smoothing=0.0, clip_norm=1e9, patience=0),
        dict(clip_norm=0.0),
    ],
    ids=str,
)
def test_allowed(changes):
    allowed = config(**changes)
    assert {name: getattr(allowed, name) for name in changes} == changes


def test_source_is_asked_for_when_it_is_used():
    with pytest.raises(ConfigError, match=r"source is missing: .*--resume"):
        _ = config(source=None).pairs


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_setting_of_one_side_separates_the_vocabularies(side):
    assert config().shares_vocab
    for changes in ({f"{side}_tokenizer": "char"}, {f"{side}_vocab_size": 100}, {"separate_vocab": True}):
        assert not config(**changes).shares_vocab


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 1 / (2 * 50)),
        ({"optimizer": "adam"}, 1 / (4 * 50)),
        ({"from_": Path("runs/y"), "optimizer": "muon"}, 1 / (4 * 50)),
        ({"from_": Path("runs/y")}, 1 / (8 * 50)),  # Adam there
        ({"learning_rate": 0.25}, 0.25),
    ],
)
def test_the_learning_rate_left_out_is_that_of_the_width(changes, rate):
    assert config(**changes).peak(50) == rate


def test_weights_decay_unless_they_are_a_finished_models():
    assert (config().decay, config(from_=Path("runs/y")).decay, config(weight_decay=0.1).decay) == (0.3, 0.0, 0.1)


def test_a_decay_is_refused_that_is_too_much_for_the_rate_left_out():
    with pytest.raises(
        ConfigError, match=r"learning_rate \* weight_decay must be less than 1, got 0.01 \* 100: .*; lower"
    ):
        config(weight_decay=100.0).peak(50)


def test_model_config_is_the_preset_with_changes():
    model = config(preset="base", d_model=64, dropout=0.0).model_config(97, 97)
    assert (model.d_model, model.heads, model.encoder_layers, model.d_ff, model.dropout) == (64, 8, 6, 2048, 0.0)
    assert (model.source_vocab_size, model.target_vocab_size, model.shared_vocab) == (97, 97, True)


def test_json_round_trip():
    files = dict(target=Path("ünï code.de"), valid_source=Path("/v.en"), valid_target=Path("odd \udcff.de"))
    before = config(**files, max_minutes=2.25, learning_rate=3e-3, heads=2, source_tokenizer="char", overwrite=True)
    after = TrainConfig.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert isinstance(after.out, Path)


def test_a_run_continues_where_it_stands_with_what_limits_memory_or_a_wild_loss_call_for():
    changes = dict(max_updates=11, max_epochs=7, max_minutes=0.5, patience=3, checkpoint_seconds=60.0)
    changes |= dict(batch_tokens=512, accumulate=3, shard=True, device="cpu", precision="float32", threads=1)
    changes |= dict(learning_rate=1e-4, weight_decay=0.1, clip_norm=0.5, qk_clip=50.0, max_left_out=7)
    asked = TrainConfig(out=Path("elsewhere"), resume=True, **changes)
    continued = config(overwrite=True, seed=7, max_updates=5).continued(asked.out, asked.changes())
    assert continued == config(out=asked.out, seed=7, **changes)


def test_other_settings_cannot_be_changed_by_continuing():
    asked = TrainConfig(out=Path("elsewhere"), resume=True, seed=3, d_model=64, max_updates=11)
    with pytest.raises(
        ConfigError,
        match=r"leave out `d_model`, `seed` \(only `max_epochs`, .*`watch`, `track` can be changed",
    ):
        config().continued(asked.out, asked.changes())


def test_columns_are_those_of_the_table_where_other_pairs_are_two_files():
    one, other, columns = Path("a.txt"), Path("b.txt"), ("en", "de")
    for files, expected in (
        (dict(source=one, target=other, valid_source=Path("v.csv")), [None, columns]),
        (dict(source=one, target=None, valid_source=Path("v.en"), valid_target=Path("v.de")), [columns, None]),
        (dict(source=one, target=None, valid_source=Path("v.csv")), [columns, columns]),
    ):
        made = config(**files, columns=columns)
        assert [made.pairs.columns, made.valid_pairs.columns] == expected
    with pytest.raises(ConfigError, match="columns are for one file of both sides, got two files: leave them out"):
        _ = config(source=one, target=other, columns=columns).pairs


@pytest.mark.parametrize("given", [{}, {"max_updates": 7}, {"max_minutes": 3.0}, {"max_epochs": 2}], ids=str)
def test_a_limit_takes_the_place_of_the_chosen_one(given):
    chosen = {"max_updates": 5400, "tokenizer": "features", "validate_every": 270}
    settled = config(tokenizer="auto", **given).settled(chosen)
    expected = given or {"max_updates": 5400}
    assert [getattr(settled, name) for name in ENDS] == [expected.get(name) for name in ENDS]
    assert settled.tokenizer == "features"
    assert settled.validate_every == (270 if not given else 250 if "max_updates" in given else None)
    later = config(max_updates=60_000).settled({"validate_every": 300})  # begun with another limit
    assert later.validate_every == 3000
