"""capture(): the weights are those of the model's own explicit form, and nothing of it is left."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import ModelConfig, MultiheadAttention, Transformer, Want, capture
from glassformer.attention.masks import keep_from_ids
from glassformer.capture import huggingface
from glassformer.capture.record import bytes_of
from glassformer.errors import ArgumentError

B, S, T, V = 2, 11, 7, 97  # batch, source and target length, vocabulary
EVERYTHING = Want(weights=True, head_mean=True, entropy=True, received=True, distance=True, lse=True, top=3)


def ids(*shape: int) -> Tensor:
    return torch.randint(3, V - 1, shape)


def padding() -> Tensor:
    """True or 1 where there is a token: the second entry is shorter."""
    keep = torch.ones(B, S, dtype=torch.long)
    keep[1, 7:] = 0
    return keep


def state_of(model: nn.Module) -> list[tuple[str, dict[str, Any]]]:
    """Everything that a module has of its own."""
    return [(name, dict(module.__dict__)) for name, module in model.named_modules()]


# Hugging Face

SIZES = dict(vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
PAIR = dict(
    vocab_size=V,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=2,
    max_position_embeddings=64,
)


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    return model, {"input_ids": ids(B, S), "attention_mask": padding()}


def vit() -> tuple[nn.Module, dict[str, Tensor]]:
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    model = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=20, patch_size=5))
    return model, {"pixel_values": torch.randn(B, 3, 20, 20)}


def of_two(model: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    return model, {"input_ids": ids(B, S), "attention_mask": padding(), "decoder_input_ids": ids(B, T)}


def bart() -> tuple[nn.Module, dict[str, Tensor]]:
    return of_two(transformers.BartForConditionalGeneration(transformers.BartConfig(**PAIR)))


def marian() -> tuple[nn.Module, dict[str, Tensor]]:
    return of_two(transformers.MarianMTModel(transformers.MarianConfig(**PAIR, decoder_vocab_size=V)))


def t5() -> tuple[nn.Module, dict[str, Tensor]]:
    sizes = dict(vocab_size=V, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3)
    tokens = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    return of_two(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **tokens)))


def llama() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.LlamaConfig(
        **{**SIZES, "num_attention_heads": 6}, num_key_value_heads=3, max_position_embeddings=64
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": ids(B, S), "attention_mask": padding()}


FAMILIES = (bert, vit, bart, marian, t5, llama)
GENERATING = (bart, marian, t5, llama)
WEIGHTS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


def eager_weights(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The weights that the model returns, in the order in which it computes them."""
    model.set_attn_implementation("eager")
    found = model(**inputs, output_attentions=True)
    model.set_attn_implementation("sdpa")
    encoder, decoder, cross = (found.get(name) or () for name in WEIGHTS[1:])
    decoding = [weights for pair in zip(decoder, cross, strict=True) for weights in pair]
    return [*(found.get("attentions") or ()), *encoder, *decoding]


def result(output: Any) -> Tensor:
    return output["logits"] if "logits" in output else output["last_hidden_state"]


@pytest.mark.parametrize("make", FAMILIES)
@torch.no_grad()
def test_huggingface_weights_are_those_of_the_eager_form_and_outputs_stay(make):
    model, inputs = make()
    model.eval()
    expected = eager_weights(model, inputs)
    plain = result(model(**inputs))
    before = state_of(model)

    with capture(model, EVERYTHING) as seen:
        found = result(model(**inputs))

    assert_close(found, plain, rtol=1e-5, atol=1e-5)
    assert len(seen) == len(expected)
    for name, weights in zip(seen, expected, strict=True):
        one = seen[name]
        assert_close(one.weights, weights, rtol=0, atol=1e-5)
        assert_close(one.head_mean, weights.mean(1), rtol=0, atol=1e-5)
        assert_close(one.received, weights.sum(2), rtol=0, atol=1e-4)
        assert_close(one.top.weights, weights.topk(3).values, rtol=0, atol=1e-5)
        assert_close(one.entropy, torch.special.entr(weights).sum(-1), rtol=0, atol=1e-4)
        assert model.get_submodule(name) is not model
    assert state_of(model) == before
    assert torch.equal(result(model(**inputs)), plain)


@pytest.mark.parametrize("make", GENERATING)
@torch.no_grad()
def test_generated_ids_are_the_same_and_its_steps_one_record(make):
    model, inputs = make()
    model.eval()
    inputs.pop("decoder_input_ids", None)
    settings = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=1)
    if make is llama:  # what is generated follows the padding, so that comes first
        inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    plain = model.generate(**inputs, **settings)
    model.set_attn_implementation("eager")
    told = model.generate(**inputs, **settings, output_attentions=True, return_dict_in_generate=True)
    model.set_attn_implementation("sdpa")

    with capture(model, Want(weights=True, received=True, distance=True)) as seen:
        found = model.generate(**inputs, **settings)

    assert torch.equal(found, plain)
    own = told.attentions if make is llama else told.decoder_attentions  # of each step, of each layer
    names = [name for name in seen if "encoder.layers" not in name and "encoder.block" not in name]
    self_attentions = [name for name in names if not re.search("encoder_attn|EncDec", name)]
    for layer, name in enumerate(self_attentions):
        weights = seen[name].weights
        assert_close(seen[name].received, weights.sum(2))
        first = 0
        positions = torch.arange(weights.shape[3])
        away = (positions[: weights.shape[2], None] - positions).abs()
        assert_close(seen[name].distance, (weights * away).sum(-1), rtol=1e-4, atol=1e-4)
        for step in own:
            expected = step[layer]
            if make is llama and first == 0:  # padding looks nowhere, but the eager form has no zeros for that
                expected = expected * inputs["attention_mask"][:, None, :, None]
            rows = weights[:, :, first : first + expected.shape[2]]
            assert_close(rows[..., : expected.shape[3]], expected, rtol=0, atol=1e-5)
            assert not rows[..., expected.shape[3] :].any()
            first += expected.shape[2]
        assert first == weights.shape[2]
    if make is not llama:
        crossing = [name for name in names if name not in self_attentions]
        for layer, name in enumerate(crossing):
            expected = torch.cat([step[layer] for step in told.cross_attentions], dim=2)
            assert_close(seen[name].weights, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_over_a_cache_of_fixed_size():
    model, inputs = llama()
    model.eval()
    settings = dict(max_new_tokens=5, do_sample=False, pad_token_id=1, cache_implementation="static")
    inputs = {"input_ids": inputs["input_ids"]}
    settings["disable_compile"] = True
    plain = model.generate(**inputs, **settings)
    with capture(model, Want(weights=True)) as seen:
        found = model.generate(**inputs, **settings)
    assert torch.equal(found, plain)
    calls = seen.calls("model.layers.0.self_attn")
    assert sum(call.weights.shape[2] for call in calls) == S + 4


@torch.no_grad()
def test_layers_that_are_not_chosen_compute_as_before():
    model, inputs = bart()
    model.eval()
    plain = result(model(**inputs))
    with capture(model, layers="*.encoder_attn") as seen:
        assert_close(result(model(**inputs)), plain, rtol=1e-5, atol=1e-5)
    assert list(seen) == [f"model.decoder.layers.{n}.encoder_attn" for n in (0, 1)]


def test_a_copy_made_inside_says_how_to_mend_it():
    model, inputs = bert()
    with capture(model):
        other = copy.deepcopy(model)
    with pytest.raises(ArgumentError, match=r"works inside capture\(\) alone.*set_attn_implementation\('sdpa'\)"):
        other(**inputs)
    other.set_attn_implementation("sdpa")
    other(**inputs)
    assert not huggingface._LOOKS


def test_two_huggingface_models_at_once():
    (one, of_one), (other, of_other) = bert(), llama()
    with torch.no_grad(), capture(one) as first, capture(other) as second:
        one(**of_one)
        other(**of_other)
    assert (len(first), len(second)) == (2, 2)


def test_what_observe_does_not_compute_is_said():
    sizes = {**SIZES, "num_attention_heads": 3, "head_dim": 8, "num_key_value_heads": 3}
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes, max_position_embeddings=64))
    with capture(model), pytest.raises(ArgumentError, match="self_attn computes attention with softcap, which observe"):
        model(input_ids=ids(B, S))


# torch.nn


def encoder(**changes: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True, **changes)
    return nn.TransformerEncoder(layer, 2)


def explicit_weights(attention: nn.MultiheadAttention, x: Tensor, blocked: Tensor | None = None) -> Tensor:
    return attention(x, x, x, key_padding_mask=blocked, need_weights=True, average_attn_weights=False)[1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoders_fast_path_is_no_obstacle(training, padded):
    # pytorch/pytorch#99304, #64509, #88810: nn.TransformerEncoder never gives its weights.
    model = encoder(dropout=0.0).train(training)
    x = torch.randn(B, S, 24)
    blocked = padding() == 0 if padded else None
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=blocked)
        before = state_of(model)
        with capture(model, EVERYTHING) as seen:
            found = model(x, src_key_padding_mask=blocked)
        assert state_of(model) == before
        real = slice(None) if blocked is None else ~blocked
        assert_close(found[real], plain[real], rtol=1e-4, atol=1e-5)
        assert torch.equal(model(x, src_key_padding_mask=blocked), plain)
        assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
        weights = [seen["layers.0.self_attn"].weights, explicit_weights(model.layers[0].self_attn, x, blocked)]
        assert_close(*(one.transpose(1, 2)[real] for one in weights))


def test_a_whole_transformer():
    model = nn.Transformer(24, 4, 2, 2, 40, dropout=0.0, batch_first=True)
    source, target = torch.randn(B, S, 24), torch.randn(B, T, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    plain = model(source, target, tgt_mask=mask, tgt_is_causal=True)
    with capture(model, Want(weights=True)) as seen:
        assert_close(model(source, target, tgt_mask=mask, tgt_is_causal=True), plain, rtol=1e-4, atol=1e-5)
    assert [tuple(one.weights.shape[2:]) for one in seen.values()] == [(S, S)] * 2 + [(T, T), (T, S)] * 2
    assert not seen["decoder.layers.1.self_attn"].weights.triu(1).any()


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, MultiheadAttention], ids=["torch", "ours"])
@pytest.mark.parametrize("average", [True, False])
def test_an_attention_alone_returns_its_weights_as_before(kind, average):
    attention = kind(24, 3, batch_first=True, kdim=10, vdim=6, add_bias_kv=True)
    arguments = torch.randn(B, T, 24), torch.randn(B, S, 10), torch.randn(B, S, 6)
    plain = attention(*arguments, average_attn_weights=average)
    with capture(attention, Want(entropy=True)) as seen:
        assert_close(attention(*arguments, average_attn_weights=average), plain)
    assert list(seen) == [""]
    assert seen[""].want == Want(entropy=True)
    with pytest.raises(AttributeError, match="weights was not asked for"):
        _ = seen[""].weights


def test_unbatched_and_half_precision():
    attention = nn.MultiheadAttention(24, 3).bfloat16()
    x = torch.randn(S, 24).bfloat16()
    with capture(attention, Want(weights=True, entropy=True)) as seen:
        output, _ = attention(x, x, x)
    assert output.shape == x.shape
    assert seen[""].weights.dtype == torch.bfloat16
    assert seen[""].entropy.shape == (1, 3, S)


def test_facts_have_gradients_where_gradients_are_on():
    model = encoder(dropout=0.0)
    with capture(model, Want(entropy=True)) as seen:
        model(torch.randn(B, S, 24))
    sum(one.entropy.sum() for one in seen.values()).backward()
    assert model.layers[0].self_attn.in_proj_weight.grad.abs().sum() > 0


def test_training_mode_may_change_inside():
    attention = nn.MultiheadAttention(24, 3, dropout=0.5)
    x = torch.randn(S, B, 24)
    with torch.no_grad(), capture(attention, Want(weights=True)) as seen:
        attention.train()(x, x, x)
        attention.eval()(x, x, x)
    dropped, whole = seen.calls("")
    assert (dropped.weights == 0).float().mean() > 0.3
    assert_close(whole.weights.sum(-1), torch.ones(B, 3, S))


def test_ours_with_its_cache():
    model = Transformer(ModelConfig.tiny(source_vocab_size=V, target_vocab_size=V)).eval()
    source, target = ids(B, S), ids(B, T)
    source[1, 7:] = model.source_pad
    keep = keep_from_ids(source, model.source_pad)
    want = Want(weights=True)
    with torch.no_grad():
        plain = model(source, target)
        with capture(model, want) as at_once:
            assert_close(model(source, target), plain, rtol=1e-4, atol=1e-4)
        with capture(model, want) as step_by_step:
            cache = model.start(model.encode(source, keep), keep)
            for n in range(T):
                _, cache = model.decode(target[:, n : n + 1], cache)
    assert list(at_once) == list(step_by_step)
    assert len(at_once) == 4 + 2 * 4
    for name in at_once:
        assert_close(step_by_step[name].weights, at_once[name].weights, rtol=1e-4, atol=1e-5)
    assert not at_once["encoder.0.self_attention"].weights[1, :, :, 7:].any()


# The budget


@pytest.fixture
def long() -> tuple[nn.Module, Tensor]:
    return encoder(dropout=0.0).eval(), torch.randn(1, 512, 24)


def captured_bytes(seen: Any) -> int:
    return sum(x.numel() * x.element_size() for name in seen for x in seen[name].tensors().values())


@pytest.mark.parametrize(
    ("budget", "there", "missing"),
    [
        (8 << 20, {"weights"}, set()),
        (1 << 20, {"pooled_heads", "top", "entropy", "received"}, {"weights"}),
        (1 << 19, {"top", "entropy", "received"}, {"weights", "pooled_heads"}),
        (1 << 17, {"entropy", "received", "distance", "lse"}, {"weights", "pooled_heads", "top"}),
    ],
)
@torch.no_grad()
def test_what_does_not_fit_the_budget_is_replaced_and_said(long, budget, there, missing):
    model, x = long
    with capture(model, Want(weights=True), budget=budget) as seen:
        model(x)
    assert captured_bytes(seen) <= budget
    for name in seen:
        asked = set(seen[name].want.asked)
        assert there <= asked
        assert not missing & asked
        assert (name in seen.dropped) == ("weights" in missing)
    if missing:
        said = seen.dropped["layers.0.self_attn"]
        assert said.startswith(f"weights would take 4.0 MiB, {budget / 2 / 1024:.1f} KiB are left")
        assert said in repr(seen)


@torch.no_grad()
def test_statistics_in_its_place_are_exact(long):
    model, x = long
    with capture(model, EVERYTHING) as whole:
        model(x)
    with capture(model, EVERYTHING, budget=1 << 20) as part:
        model(x)
    for name in whole:
        for fact in ("entropy", "received", "distance", "lse"):
            assert_close(getattr(part[name], fact), getattr(whole[name], fact))


@torch.no_grad()
def test_a_budget_too_small_even_for_that_is_an_error_and_the_model_as_before(long):
    model, x = long
    before = state_of(model)
    message = r"budget must leave 32.0 KiB for the statistics of layers.0.self_attn, got 5.0 KiB for each of 2"
    with pytest.raises(ArgumentError, match=message), capture(model, Want(weights=True), budget=10 << 10):
        model(x)
    assert state_of(model) == before


def test_bytes_are_counted_as_they_are():
    attention = nn.MultiheadAttention(24, 3, batch_first=True)
    want = Want(
        **dict.fromkeys(("entropy", "received", "distance", "lse", "head_mean", "weights"), True),
        **{"top": 5, "rows": (0, 3), "row_heads": (1,), "pooled": 4, "pooled_heads": 6},
    )
    x, y = torch.randn(2, 13, 24), torch.randn(2, 17, 24)
    with torch.no_grad(), capture(attention, want) as seen:
        attention(x, y, y)
    assert captured_bytes(seen) == bytes_of(want, 2, 3, 13, 17)


# Bad input


def test_a_model_without_attention():
    with pytest.raises(ArgumentError, match=r"^model must contain attention, and Linear has none .* observe\(q"):
        capture(nn.Linear(2, 2)).__enter__()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("layers.0.self_atn", r"got 'layers.0.self_atn': near it are 'layers.0.self_attn', 'layers.1.self_attn'"),
        (["layers.0.self_attn", "nothing"], r"model's 2 attentions, got 'nothing': near it are 'layers"),
    ],
)
def test_an_unknown_layer_names_near_ones(layers, message):
    with pytest.raises(ArgumentError, match=message):
        capture(encoder(), layers=layers).__enter__()


@pytest.mark.parametrize("make", [encoder, lambda: bert()[0]], ids=["torch", "hugging face"])
def test_a_capture_inside_a_capture(make: Callable[[], nn.Module]):
    model = make()
    before = state_of(model)
    with capture(model), pytest.raises(ArgumentError, match="being captured already"), capture(model):
        pass
    assert state_of(model) == before


@pytest.mark.filterwarnings("ignore")  # of tracing, and that it is deprecated
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.compile, r"model is compiled, .* capture model\._orig_mod"),
        (lambda model: nn.Sequential(torch.compile(model)), r"model\.0 is compiled, .* capture model\.0\._orig_mod"),
        (lambda model: model.compile() or model, r"model is compiled, by its compile\(\)"),
        (lambda model: torch.jit.trace(model, torch.randn(1, 5, 24), check_trace=False), "model is TorchScript"),
    ],
)
def test_compiled_models_are_refused(change, message):
    with pytest.raises(ArgumentError, match=message):
        capture(change(encoder().eval())).__enter__()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget must be a whole number of bytes above 0, got 0"),
        ({"budget": -7}, "budget must be a whole number of bytes above 0, got -7"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(Exception, match=message):
        capture(encoder(), **arguments).__enter__()


def test_after_an_error_inside_the_model_is_as_before():
    for model in (encoder(), bert()[0], Transformer(ModelConfig.tiny(source_vocab_size=V, target_vocab_size=V))):
        before = state_of(model)
        with pytest.raises(ZeroDivisionError), capture(model):
            raise ZeroDivisionError
        assert state_of(model) == before


@torch.no_grad()
def test_calls_on_different_inputs_are_kept_apart():
    model = encoder().eval()
    with capture(model) as seen:
        for length in (S, T):
            model(torch.randn(B, length, 24))
    name = "layers.0.self_attn"
    assert [call.entropy.shape[2] for call in seen.calls(name)] == [S, T]
    with pytest.raises(ArgumentError, match=r"was called 2 times on different inputs: captured\.calls\("):
        _ = seen[name]
    with pytest.raises(KeyError, match="nothing was captured of 'x'"):
        seen.calls("x")
