"""Hugging Face's models: the weights are those of their own eager form, outputs and generated ids stay."""

import copy
import functools
import re
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.capture import huggingface
from glassformer.errors import ArgumentError


def eager_weights(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The weights that the model returns, in the order in which it computes them."""
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    model.set_attn_implementation("sdpa")
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    alone, encoder, decoder, cross = (output.get(name) or () for name in names)
    return [*alone, *encoder, *(weights for pair in zip(decoder, cross, strict=True) for weights in pair)]


@pytest.mark.parametrize("family", ["bert", "vit", "bart", "marian", "t5", "llama"])
@torch.no_grad()
def test_weights_are_those_of_the_eager_form_and_outputs_stay(make, state_of, everything, family):
    def result() -> Tensor:
        output = model(**inputs)
        return output["logits"] if "logits" in output else output["last_hidden_state"]

    model, inputs = make.family(family)
    expected = eager_weights(model, inputs)
    plain = result()
    before = state_of(model)
    with capture(model, everything) as captured:
        assert_close(result(), plain, rtol=1e-5, atol=1e-5)
    assert len(captured) == len(expected)
    for name, weights in zip(captured, expected, strict=True):
        one = captured[name]
        assert_close(one.weights, weights, rtol=0, atol=1e-5)
        assert_close(one.head_mean, weights.mean(1), rtol=0, atol=1e-5)
        assert_close(one.received, weights.sum(2), rtol=0, atol=1e-4)
        assert_close(one.top.weights, weights.topk(3).values, rtol=0, atol=1e-5)
        assert_close(one.entropy, torch.special.entr(weights).sum(-1), rtol=0, atol=1e-4)
        assert model.get_submodule(name) is not model
    assert state_of(model) == before
    assert torch.equal(result(), plain)


@pytest.mark.parametrize("family", ["bart", "marian", "t5", "llama"])
@torch.no_grad()
def test_the_steps_of_generation_are_one_record_and_the_ids_the_same(make, family):
    model, inputs = make.family(family)
    inputs.pop("decoder_input_ids", None)
    settings = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=1)
    if family == "llama":  # what is generated follows the padding, so that comes first
        inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    plain = model.generate(**inputs, **settings)
    model.set_attn_implementation("eager")
    eager = model.generate(**inputs, **settings, output_attentions=True, return_dict_in_generate=True)
    model.set_attn_implementation("sdpa")
    with capture(model, Want(weights=True, received=True, distance=True)) as captured:
        assert torch.equal(model.generate(**inputs, **settings), plain)

    steps = eager.attentions if family == "llama" else eager.decoder_attentions  # by step, then by layer
    names = [name for name in captured if not re.search(r"encoder\.(layers|block)", name)]
    crossing = [name for name in names if re.search("encoder_attn|EncDec", name)]
    for layer, name in enumerate(name for name in names if name not in crossing):
        weights = captured[name].weights
        assert_close(captured[name].received, weights.sum(2))
        positions = torch.arange(weights.shape[3])
        away = (positions[: weights.shape[2], None] - positions).abs()
        assert_close(captured[name].distance, (weights * away).sum(-1), rtol=1e-4, atol=1e-4)
        first = 0
        for step in steps:
            expected = step[layer]
            if family == "llama" and first == 0:  # padding looks nowhere, but the eager form has no zeros for that
                expected = expected * inputs["attention_mask"][:, None, :, None]
            rows = weights[:, :, first : first + expected.shape[2]]
            assert_close(rows[..., : expected.shape[3]], expected, rtol=0, atol=1e-5)
            assert not rows[..., expected.shape[3] :].any()
            first += expected.shape[2]
        assert first == weights.shape[2]
    assert len(crossing) == (0 if family == "llama" else 2)
    for layer, name in enumerate(crossing):
        expected = torch.cat([step[layer] for step in eager.cross_attentions], dim=2)
        assert_close(captured[name].weights, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_cache_of_fixed_size(make, padded):
    model, inputs = make.family("llama")
    inputs["attention_mask"] = inputs["attention_mask"].flip(1) if padded else torch.ones(2, 11, dtype=torch.long)
    settings = dict(
        max_new_tokens=5, do_sample=False, pad_token_id=1, cache_implementation="static", disable_compile=True
    )
    plain = model.generate(**inputs, **settings)
    with capture(model, Want(weights=True, distance=True)) as captured:
        assert torch.equal(model.generate(**inputs, **settings), plain)
    del settings["cache_implementation"]
    with capture(model, Want(weights=True, distance=True)) as growing:
        model.generate(**inputs, **settings)
    assert list(captured) == list(growing)
    for name in captured:
        assert captured[name].weights.shape[2:] == (11 + 4, 11 + 4)
        assert_close(captured[name].weights, growing[name].weights, rtol=1e-4, atol=1e-5)
        assert_close(captured[name].distance, growing[name].distance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("want", [Want(entropy=True), Want(weights=True)], ids=str)
@pytest.mark.parametrize("family", ["llama", "t5"])
@torch.no_grad()
def test_an_eager_model_returns_its_weights_inside_too(make, family, want):
    model, inputs = make.family(family)
    model.set_attn_implementation("eager")
    asked = {name for name in ("attentions", "decoder_attentions") if name in model(**inputs, output_attentions=True)}
    expected = model(**inputs, output_attentions=True)
    with capture(model, want) as captured:
        output = model(**inputs, output_attentions=True)
        assert not any(name in model(**inputs) for name in asked)
    for name in asked:
        real = inputs["attention_mask"].bool() if name == "attentions" else torch.ones(2, 7, dtype=torch.bool)
        for one, other in zip(output[name], expected[name], strict=True):
            assert_close(one.transpose(1, 2)[real], other.transpose(1, 2)[real], rtol=0, atol=1e-5)
    assert all(one.want == want for layer in captured for one in captured.calls(layer))


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_a_decoder_that_has_only_the_eager_form_looks_back(make, padded):
    model, inputs = make.family("nllb_moe")
    assert model.config._attn_implementation == "eager"
    if not padded:
        del inputs["attention_mask"]
    plain = model(**inputs, output_attentions=True)
    with capture(model, Want(weights=True)) as captured:
        assert_close(model(**inputs).last_hidden_state, plain.last_hidden_state, rtol=1e-5, atol=1e-5)
    for layer, weights in enumerate(plain.decoder_attentions):
        assert_close(captured[f"decoder.layers.{layer}.self_attn"].weights, weights, rtol=0, atol=1e-5)
        assert not weights.triu(1).any()


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_layers_that_cannot_be_recorded_compute_the_same_inside(make, padded):
    model, inputs = make.family("git")
    if not padded:
        del inputs["attention_mask"]
    plain = model(**inputs, use_cache=False).last_hidden_state
    with pytest.warns(UserWarning, match=r"encoder\.layer\.0\.attention\.self"), capture(model) as captured:
        assert torch.equal(model(**inputs, use_cache=False).last_hidden_state, plain)
    assert not captured


@pytest.mark.parametrize("kind", ["bool", "float"])
@torch.no_grad()
def test_a_mask_that_lets_queries_after_a_cache_look_ahead(make, kind):
    model, inputs = make.family("llama")
    ids = inputs["input_ids"]
    ahead = torch.ones(2, 1, 5, 11, dtype=torch.bool) if kind == "bool" else torch.zeros(2, 1, 5, 11)

    def second_part(**settings):
        cache = model(ids[:, :6], use_cache=True).past_key_values
        return model(ids[:, 6:], attention_mask=ahead, cache=cache, **settings)

    plain = second_part().logits
    model.set_attn_implementation("eager")
    expected = second_part(output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    with capture(model, Want(weights=True)) as captured:
        assert_close(second_part().logits, plain, rtol=1e-4, atol=1e-5)
    for one, weights in zip(captured.values(), expected, strict=True):
        assert_close(one.weights[:, :, 6:], weights, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_floating_point_mask_blocks_and_adds(make):
    model, inputs = make.family("bert")
    keep = inputs["attention_mask"].bool()[:, None, None].expand(2, 1, 11, 11)
    mask = torch.randn(2, 1, 11, 11).masked_fill(~keep, torch.finfo(torch.float32).min)
    expected = eager_weights(model, {**inputs, "attention_mask": mask})
    with capture(model, Want(weights=True, lse=True)) as captured:
        model(inputs["input_ids"], attention_mask=mask)
    for one, weights in zip(captured.values(), expected, strict=True):
        assert_close(one.weights, weights, rtol=0, atol=1e-5)
        assert not one.weights[1, ..., 7:].any()
    keep, bias = huggingface._split_mask(mask, torch.ones(1, 3, 11, 11))
    assert torch.equal(keep, mask > -1e30)
    assert_close(bias[keep.expand_as(bias)], (mask + 1).expand_as(bias)[keep.expand_as(bias)])
    assert bias.min() > -10  # the number that blocks is no part of it


@pytest.mark.parametrize(("family", "form"), [("bert", "sdpa"), ("nllb_moe", "eager")])
def test_a_copy_made_inside_says_how_to_mend_it(make, family, form):
    model, inputs = make.family(family)
    with capture(model):
        other = copy.deepcopy(model)
    message = rf"works inside capture\(\) alone.*model\.set_attn_implementation\('{form}'\) mends it$"
    with pytest.raises(ArgumentError, match=message):
        other(**inputs)
    other.set_attn_implementation(form)
    assert other(**inputs).last_hidden_state.isfinite().all()
    assert not huggingface._FUNCTIONS


@torch.no_grad()
def test_sinks_of_each_query_are_refused(make):
    model, inputs = make.family("bert")
    forward = functools.partial(model.encoder.layer[0].attention.self.forward, sinks=torch.zeros(2, 3, 11, 1))
    model.encoder.layer[0].attention.self.forward = forward
    with capture(model), pytest.raises(ArgumentError, match=r"\.self computes attention with a sink for each query"):
        model(**inputs)


@torch.no_grad()
def test_two_models_at_once(make):
    (one, of_one), (other, of_other) = make.family("bert"), make.family("llama")
    with capture(one) as first, capture(other) as second:
        one(**of_one)
        other(**of_other)
    assert (len(first), len(second)) == (2, 2)


@torch.no_grad()
def test_soft_capped_layers_that_are_not_chosen_are_capped_too(make):
    model, inputs = make.family("gemma")
    plain = model(**inputs).logits
    with capture(model, layers="*.1.self_attn") as captured:
        assert_close(model(**inputs).logits, plain, rtol=1e-4, atol=1e-5)
    assert list(captured) == ["model.layers.1.self_attn"]


@torch.no_grad()
def test_a_part_of_a_model_is_recorded_and_the_rest_computed(make):
    model, inputs = make.family("llama")
    plain = model(**inputs).logits
    with capture(model.model.layers[0]) as captured:
        assert_close(model(**inputs).logits, plain, rtol=1e-4, atol=1e-5)
    assert len(captured) == 1


@torch.no_grad()
def test_two_models_of_one_config_end_in_any_order(make):
    one, inputs = make.family("llama")
    other = type(one)(one.config).eval()
    said = one.config._attn_implementation
    first, second = ExitStack(), ExitStack()
    of_one, of_other = first.enter_context(capture(one)), second.enter_context(capture(other))
    one(**inputs)
    first.close()
    other(**inputs)
    one(**inputs)
    second.close()
    assert (len(of_one), len(of_other)) == (2, 2)
    assert one.config._attn_implementation == said
    one(**inputs)
    assert not huggingface._REDIRECTED
