"""Hugging Face models whose own code computes attention: weights as in their eager form, by benchmarks/families.py."""

import copy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.errors import ArgumentError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def families() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import families
    finally:
        del sys.path[0]
    return families


ADAPTED = (
    *("mpnet", "deberta", "deberta-v2", "gpt_neo", "openai-gpt", "bloom", "mpt", "xlnet", "xlm"),
    *("roformer", "megatron-bert", "rembert", "convbert", "big_bird", "swinv2"),
)


@pytest.mark.parametrize(
    "name", [*ADAPTED, "gptj", "codegen", "falcon", "gemma2", "gpt_oss", "albert", "swin", "siglip"]
)
def test_weights_are_those_of_the_eager_form(families, name):
    outcome = families.examine(name)
    assert not outcome.why
    assert outcome.attentions >= 2
    assert name in families.FAMILIES


@pytest.mark.parametrize("name", ADAPTED)
@torch.no_grad()
def test_outputs_stay_and_nothing_is_left(families, state_of, name):
    model, inputs = families.make(name)
    plain, before = model(**inputs), state_of(model)
    with capture(model, Want(entropy=True, lse=True)) as captured:
        seen = model(**inputs)
        copied = copy.deepcopy(model)
        with pytest.raises(ArgumentError, match="is being captured already"), capture(model):
            pass
        assert_close(copied(**inputs)[0], plain[0])
    assert seen.keys() == plain.keys(), "weights that nobody asked for are not returned"
    assert torch.equal(seen[0], plain[0])
    assert set(captured.dropped.values()) == {"lse is not known from weights alone"}
    assert {len(captured.calls(name)) for name in captured} == {1}
    assert state_of(model) == before
    with capture(copied) as again:
        copied(**inputs)
    assert list(again) == list(captured)


@torch.no_grad()
def test_distances_of_steps_are_counted_from_the_queries_before(families):
    base, inputs = families.make("bloom")
    model = transformers.AutoModelForCausalLM.from_config(base.config).eval()
    with capture(model, Want(weights=True, distance=True)) as captured:
        model.generate(inputs["input_ids"], max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=1)
    assert list(captured)
    for one in captured.values():
        length = inputs["input_ids"].shape[1] + 2
        apart = torch.arange(length)[:, None] - torch.arange(length)
        assert_close(one.distance, (one.weights * apart.abs()).sum(-1))


@torch.no_grad()
def test_shared_layers_have_a_name_for_each_call(families):
    model, inputs = families.make("albert")
    with capture(model, Want(weights=True)) as captured:
        model(**inputs)
    path = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert list(captured) == [f"{path}@0", f"{path}@1"]
    assert captured[f"{path}@1"].weights.shape == (2, 3, 11, 11)
    assert f"{path}@1  3 heads, 11 queries x 11 keys" in repr(captured)


def test_other_code_of_hugging_face_is_refused_with_what_to_do():
    config = transformers.LongformerConfig(
        vocab_size=97, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40
    )
    message = r"LongformerModel has none: .* or observe_weights\(weights\) with weights that it returns"
    with pytest.raises(ArgumentError, match=message):
        capture(transformers.LongformerModel(config)).__enter__()


def test_the_table_of_the_docs_is_the_one_that_was_measured(families):
    text = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    lines = text.split("<!-- families: benchmarks/families.py --markdown -->")[1].split("<!-- end of families -->")[0]
    measured = families.bench.last("families", "families")
    assert list(measured) == list(families.FAMILIES), "run benchmarks/families.py again"
    assert lines.strip() == families.table({name: families.Outcome(**one) for name, one in measured.items()})


def test_the_table_names_what_is_covered_and_what_is_not(families):
    outcomes = {"bert": families.Outcome(attentions=2), "t5": families.Outcome(why="a reason")}
    lines = families.table(outcomes).splitlines()
    assert "| text | bert |" in lines
    assert lines[-1] == "| not covered: a reason | t5 |"
