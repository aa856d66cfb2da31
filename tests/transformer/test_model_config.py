import dataclasses
import json
import re
import subprocess
import sys

import pytest

from glassformer.errors import ConfigError
from glassformer.transformer.config import LATER, ModelConfig

VOCAB = {"source_vocab_size": 101, "target_vocab_size": 101}
SIZES = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "source_vocab_size", "target_vocab_size")
TOO_FEW = "at least 4 ids (</s>, <unk>, one token, <pad>), got source_vocab_size {}, target_vocab_size {}"


# Vaswani et al. 2017, table 3 (N, N, d_model, d_ff, h, P_drop; no dropout of attention weights there), and two smaller
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny", (4, 4, 128, 256, 4, 0.3)),
        ("small", (3, 3, 256, 512, 4, 0.3)),
        ("base", (6, 6, 512, 2048, 8, 0.1)),
        ("big", (6, 6, 1024, 4096, 16, 0.3)),
    ],
)
def test_presets_are_the_papers_and_take_changes(name, expected):
    config = ModelConfig.preset(name, **VOCAB)
    assert tuple(getattr(config, field) for field in (*SIZES[:5], "dropout")) == expected
    assert (config.attention_dropout, config.norm_first, config.final_norm) == (0.0, False, False)
    assert config == getattr(ModelConfig, name)(**VOCAB)
    changes = dict(d_model=96, heads=6, dropout=0.25)
    assert ModelConfig.preset(name, **VOCAB, **changes) == dataclasses.replace(config, **changes)


def test_base_is_the_default():
    assert ModelConfig(**VOCAB) == ModelConfig.base(**VOCAB)


def test_unknown_preset_is_refused_with_the_choice():
    with pytest.raises(ConfigError, match="preset must be one of tiny, small, base, big, got 'huge'"):
        ModelConfig.preset("huge", **VOCAB)
    with pytest.raises(ConfigError, match="got 'from_json'"):  # a name of the class, but no preset
        ModelConfig.preset("from_json", **VOCAB)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: 0}, f"{name} must be at least 1, got 0") for name in SIZES),
        ({"activation": "tanh"}, "activation must be one of relu, swish, gelu, got 'tanh'"),
        ({"heads_left": {"encoder.6.self_attention": 1}}, "from encoder.0.self_attention on, got 'encoder.6.self_att"),
        ({"heads_left": {"own": 1}}, "heads_left must name attentions, from encoder.0.self_attention on, got 'own'"),
        ({"heads_left": {"encoder.0.self_attention": -1}}, "heads_left must be from 0 to 8 for encoder.0"),
        ({"heads_left": {"decoder.5.source_attention": 9}}, "from 0 to 8 for decoder.5.source_attention, got 9"),
        ({"d_model": 128, "heads": 7}, "got d_model 128 and heads 7: 8 heads of width 16 would fit"),
        ({"d_model": 512, "heads": 7}, "got d_model 512 and heads 7: 8 heads of width 64 would fit"),
        ({"d_model": 100, "heads": 8}, "got d_model 100 and heads 8: 10 heads of width 10 would fit"),
        ({"d_model": 8, "heads": 16}, "got d_model 8 and heads 16: 8 heads of width 1 would fit"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"attention_dropout": 1.0}, "attention_dropout must be at least 0 and less than 1, got 1.0"),
        ({"source_vocab_size": 3, "target_vocab_size": 3}, TOO_FEW.format(3, 3)),
        ({"target_vocab_size": 3, "shared_vocab": False}, TOO_FEW.format(101, 3)),
        (
            {"target_vocab_size": 103},
            "a shared vocabulary has one size, got source_vocab_size 101 and target_vocab_size 103",
        ),
    ],
)
def test_impossible_sizes_are_refused_with_the_numbers(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig(**{**VOCAB, **changes})
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.from_json({**ModelConfig(**VOCAB).to_json(), **changes})


def test_limits_themselves_are_allowed():
    least = dict.fromkeys(("d_model", "heads", "encoder_layers", "decoder_layers", "d_ff"), 1)
    shared = ModelConfig(source_vocab_size=4, target_vocab_size=4, dropout=0.0, **least)
    separate = ModelConfig(source_vocab_size=4, target_vocab_size=5, shared_vocab=False, dropout=0.999, **least)
    assert (shared.d_model, shared.dropout, separate.heads, separate.dropout) == (1, 0.0, 1, 0.999)


def test_padding_is_the_last_id_of_each_vocabulary():
    config = ModelConfig(source_vocab_size=101, target_vocab_size=103, shared_vocab=False)
    assert (config.source_pad, config.target_pad) == (100, 102)


# JSON


def test_json_round_trip():
    later = dict(norm_first=True, final_norm=True, heads_left={"decoder.3.source_attention": 0})
    sizes = dict(source_vocab_size=101, target_vocab_size=103, shared_vocab=False, dropout=0.25)
    config = ModelConfig.tiny(**sizes, **later)
    assert later.keys() == set(LATER)
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert set(config.to_json()) == {field.name for field in dataclasses.fields(ModelConfig)}


def test_unknown_settings_are_refused_by_name():
    values = ModelConfig.tiny(**VOCAB).to_json() | {"rotary": True, "experts": 8}
    with pytest.raises(ConfigError, match="unknown model settings experts, rotary: written by a newer glassformer"):
        ModelConfig.from_json(values)


@pytest.mark.parametrize("name", ["target_vocab_size", "d_ff"])
def test_any_missing_setting_is_refused_by_name(name):
    # "unknown or missing names are an error": a size left out must not become the base model's.
    values = ModelConfig.tiny(**VOCAB).to_json()
    del values[name]
    with pytest.raises(ConfigError, match=f"^model settings without {name}$"):
        ModelConfig.from_json(values)


@pytest.mark.parametrize("name", LATER)
def test_settings_that_older_runs_have_not_take_their_default(name):
    values = ModelConfig.tiny(**VOCAB).to_json()
    assert not values.pop(name)
    assert ModelConfig.from_json(values) == ModelConfig.tiny(**VOCAB)
    assert name not in values  # what was read is left as it is


def test_values_of_a_wrong_type_are_refused():
    # In a process of its own: in this one the tests' hook checks the types before the constructor does.
    code = """
from glassformer.errors import ConfigError
from glassformer.transformer.config import ModelConfig
good = ModelConfig.tiny(source_vocab_size=101, target_vocab_size=101).to_json()
for name, value in (("d_model", "128"), ("dropout", "no"), ("norm_first", "no"), ("final_norm", 1), ("heads_left", 3)):
    try:
        ModelConfig.from_json(good | {name: value})
    except ConfigError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "d_model must be a whole number, at least 1, got '128'",
        "dropout must be a number, at least 0 and less than 1, got 'no'",
        "norm_first must be True or False, got 'no'",
        "final_norm must be True or False, got 1",
        "heads_left must map paths of attentions to numbers of heads, got 3",
    ]


def test_config_is_frozen_and_keyword_only():
    config = ModelConfig.tiny(**VOCAB)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.heads = 8
    with pytest.raises(TypeError):
        ModelConfig(101, 101)
