import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.multihead import MultiheadAttention
from glassformer.reference import multi_head, self_attention, transformer
from glassformer.reference.weights import (
    multi_head_from_fast,
    multi_head_to_fast,
    per_head_from_fast,
    per_head_to_fast,
    self_attention_from_fast,
    self_attention_to_fast,
    transformer_from_fast,
    transformer_to_fast,
)
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

B, H, Q, K, D, FF = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass
E = H * D
SOURCE_WORDS, WORDS, LONGEST = 23, 17, 19
Fast = type[MultiheadAttention] | type[nn.MultiheadAttention]
Settings = dict[str, int | float]

# Of each form of attention: how to make it, with how many heads, and its two conversions.
SINGLE = (lambda: self_attention.SelfAttention(E, E, E), 1, self_attention_to_fast, self_attention_from_fast)
BY_STEPS = (lambda: multi_head.MultiHeadAttention(H, E), H, multi_head_to_fast, multi_head_from_fast)
PER_HEAD = (lambda: transformer.MultiHeadAttention(E, H), H, per_head_to_fast, per_head_from_fast)
Form = tuple[Callable[[], nn.Module], int, Callable[..., None], Callable[..., None]]

each_form = pytest.mark.parametrize("form", [SINGLE, BY_STEPS, PER_HEAD], ids=["SelfAttention", "by steps", "per head"])
each_fast = pytest.mark.parametrize("fast_class", [MultiheadAttention, nn.MultiheadAttention], ids=["ours", "torch"])


def drawn(module: nn.Module) -> Any:
    """Every number random: biases and norms, too."""
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def fast_for(form: Form, fast_class: Fast = MultiheadAttention, **settings: Any) -> Any:
    return drawn(fast_class(E, form[1], batch_first=True, **settings))


@torch.no_grad()
def holdable(form: Form, fast: Any) -> Any:
    """`fast` without what the form can't hold."""
    if form in (SINGLE, PER_HEAD):
        fast.in_proj_bias.zero_()
    if form is SINGLE:
        nn.init.eye_(fast.out_proj.weight)
        fast.out_proj.bias.zero_()
    return fast


def assert_same_state(module: nn.Module, expected: nn.Module) -> None:
    states = module.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, values in states[0].items():
        assert torch.equal(values, states[1][name]), name


# Attention, each way


@each_fast
@each_form
def test_weights_survive_the_way_to_the_fast_form_and_back(form, fast_class):
    make, _, to_fast, from_fast = form
    source, again, fast = drawn(make()), drawn(make()), fast_for(form, fast_class)
    to_fast(source, fast)
    from_fast(fast, again)
    assert_same_state(again, source)


@each_fast
@each_form
def test_weights_survive_the_way_from_the_fast_form_and_back(form, fast_class):
    make, _, to_fast, from_fast = form
    source, again, reference = holdable(form, fast_for(form, fast_class)), fast_for(form, fast_class), drawn(make())
    from_fast(source, reference)
    to_fast(reference, again)
    assert_same_state(again, source)


def result(module: nn.Module, query: Tensor, other: Tensor) -> Tensor:
    """Of any form, batch first."""
    if isinstance(module, self_attention.SelfAttention):
        return module(query)[0]
    if isinstance(module, multi_head.MultiHeadAttention):
        return module(query.transpose(0, 1), other.transpose(0, 1), other.transpose(0, 1)).transpose(0, 1)
    found = module(query, other, other)
    return found[0] if isinstance(found, tuple) else found


@each_fast
@each_form
@pytest.mark.parametrize("to_fast", [True, False], ids=["to fast", "from fast"])
def test_both_give_the_same_results(form, fast_class, to_fast):
    reference, fast = form[0]().double().eval(), holdable(form, fast_for(form, fast_class).double())
    form[2](reference, fast) if to_fast else form[3](fast, reference)
    query = torch.randn(B, Q, E, dtype=torch.float64)
    other = query if form is SINGLE else torch.randn(B, K, E, dtype=torch.float64)
    assert_close(result(reference, query, other), result(fast, query, other), atol=1e-10, rtol=1e-10)


def test_where_each_number_goes():
    """(in) x heads: of the projection to head h, number d, from input i."""
    per_head, by_steps = transformer.MultiHeadAttention(E, H), multi_head.MultiHeadAttention(H, E)
    fast = holdable(PER_HEAD, fast_for(PER_HEAD))
    per_head_from_fast(fast, per_head)
    multi_head_from_fast(fast, by_steps)
    h, d, i = 2, 7, 5
    third = {"query": 0, "key": E, "value": 2 * E}
    for name, start in third.items():
        expected = fast.in_proj_weight[start + h * D + d, i]
        assert getattr(per_head, f"W_{name[0]}")[h, i, d] == expected
        assert getattr(by_steps, name).linear.weight[h * D + d, i] == expected


@each_form
def test_a_fast_form_without_biases_holds_zeros(form):
    make, _, to_fast, from_fast = form
    fast, reference = fast_for(form, bias=False), drawn(make())
    if form is SINGLE:
        nn.init.eye_(fast.out_proj.weight)
    from_fast(fast, reference)
    biases = [parameter for name, parameter in reference.named_parameters() if name.endswith("bias")]
    assert all((bias == 0).all() for bias in biases)
    again = fast_for(form, bias=False)
    to_fast(reference, again)
    assert_same_state(again, fast)


def test_queries_and_keys_without_bias_get_zero():
    source, fast = drawn(multi_head.MultiHeadAttention(H, E, bias=False)), fast_for(BY_STEPS)
    multi_head_to_fast(source, fast)
    assert (fast.in_proj_bias[: 2 * E] == 0).all()
    assert torch.equal(fast.in_proj_bias[2 * E :], source.value.linear.bias)
    again = drawn(multi_head.MultiHeadAttention(H, E, bias=False))
    multi_head_from_fast(fast, again)
    assert_same_state(again, source)


@each_form
def test_the_target_keeps_its_dtype(form):
    make, _, to_fast, _ = form
    source, fast = drawn(make()), fast_for(form).double()
    to_fast(source, fast)
    assert {parameter.dtype for parameter in fast.parameters()} == {torch.float64}
    form[3](fast, make().double())
    assert all(parameter.requires_grad for parameter in fast.parameters())


# What attention can't hold


@each_form
def test_added_keys_are_refused_both_ways(form):
    make, _, to_fast, from_fast = form
    for settings in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        fast = holdable(form, fast_for(form, **settings))
        with pytest.raises(ValueError, match=r"^source adds keys \(add_bias_kv or add_zero_attn\), which"):
            from_fast(fast, make())
        with pytest.raises(ValueError, match=r"^target must not add keys \(add_bias_kv, add_zero_attn\)"):
            to_fast(make(), fast)


@each_form
@each_fast
def test_keys_or_values_of_another_width_are_refused_both_ways(form, fast_class):
    make, _, to_fast, from_fast = form
    fast = holdable(form, fast_for(form, fast_class, kdim=5, vdim=7))
    with pytest.raises(ValueError, match=r"^source has kdim 5 and vdim 7: the step-by-step forms have one width$"):
        from_fast(fast, make())
    with pytest.raises(ValueError, match=r"^target must have one width, got kdim 5 and vdim 7$"):
        to_fast(make(), fast)


def test_single_head_attention_needs_one_head():
    reference, fast = SINGLE[0](), MultiheadAttention(E, H)
    with pytest.raises(ValueError, match=r"^target must have 1 head, as SelfAttention has, got 3$"):
        self_attention_to_fast(reference, fast)
    with pytest.raises(ValueError, match=r"^source must have 1 head: SelfAttention would lose the other 2$"):
        self_attention_from_fast(fast, reference)


@pytest.mark.parametrize("form", [BY_STEPS, PER_HEAD], ids=["by steps", "per head"])
def test_the_number_of_heads_must_be_the_same(form):
    reference, fast = form[0](), MultiheadAttention(E, D)
    with pytest.raises(ValueError, match=r"^target must have 3 heads, got 11$"):
        form[2](reference, fast)
    with pytest.raises(ValueError, match=r"^target must have 11 heads, got 3$"):
        form[3](fast, reference)


@pytest.mark.parametrize("widths", [(D, E, E), (E, D, E), (E, E, D)])
def test_single_head_attention_of_several_widths_has_no_fast_form(widths):
    words = ", ".join(str(width) for width in widths)
    message = rf"^dim_q, dim_k and dim_v must all be the target's embed_dim = 33: .*, got {words}$"
    with pytest.raises(ValueError, match=message):
        self_attention_to_fast(self_attention.SelfAttention(*widths), MultiheadAttention(E, 1))
    with pytest.raises(ValueError, match=r"^the sizes differ: a parameter of shape \(33, 33\) can't be held by "):
        self_attention_from_fast(holdable(SINGLE, fast_for(SINGLE)), self_attention.SelfAttention(*widths))


def test_single_head_attention_has_no_output_projection():
    fast = holdable(SINGLE, fast_for(SINGLE))
    nn.init.normal_(fast.out_proj.weight)
    with pytest.raises(ValueError, match=r"^source has an output projection .*: SelfAttention has none$"):
        self_attention_from_fast(fast, SINGLE[0]())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in_proj_bias", "in_proj_bias holds numbers that would be lost: SelfAttention's projections have no bias"),
        ("out_proj.bias", r"out_proj\.bias holds numbers .*: SelfAttention has no output projection"),
    ],
)
def test_single_head_attention_has_no_biases(name, message):
    fast = holdable(SINGLE, fast_for(SINGLE))
    fast.get_parameter(name).data[-1] = 1e-30
    with pytest.raises(ValueError, match=f"^{message}$"):
        self_attention_from_fast(fast, SINGLE[0]())


def test_projections_per_head_have_no_biases():
    message = r"^in_proj_bias holds numbers that would be lost: the per-head projections have no bias$"
    for part in range(3):
        fast = holdable(PER_HEAD, fast_for(PER_HEAD))
        fast.in_proj_bias.data[part * E + 5] = 1e-30
        with pytest.raises(ValueError, match=message):
            per_head_from_fast(fast, PER_HEAD[0]())


def test_queries_and_keys_without_bias_lose_none():
    message = r"^in_proj_bias of queries and keys holds numbers that would be lost: .*make it with bias=True$"
    for part in range(2):
        fast = holdable(PER_HEAD, fast_for(BY_STEPS))
        fast.in_proj_bias.data[part * E + 5] = 1e-30
        with pytest.raises(ValueError, match=message):
            multi_head_from_fast(fast, multi_head.MultiHeadAttention(H, E, bias=False))


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_of_values_needs_a_place(bias):
    source = multi_head.MultiHeadAttention(H, E, bias=bias)
    nn.init.zeros_(source.output.bias)
    message = r"^biases of the projections holds numbers that would be lost: .*make it with bias=True$"
    with pytest.raises(ValueError, match=message):
        multi_head_to_fast(source, MultiheadAttention(E, H, bias=False))


@pytest.mark.parametrize("form", [BY_STEPS, PER_HEAD], ids=["by steps", "per head"])
def test_a_bias_of_the_output_needs_a_place(form):
    source = form[0]()
    for name, parameter in source.named_parameters():
        if name.endswith("linear.bias"):
            nn.init.zeros_(parameter)
    message = r"^output\.bias holds numbers that would be lost: .*make it with bias=True$"
    with pytest.raises(ValueError, match=message):
        form[2](source, MultiheadAttention(E, H, bias=False))


@pytest.mark.parametrize("form", [BY_STEPS, PER_HEAD], ids=["by steps", "per head"])
def test_another_width_is_refused_both_ways(form):
    fast = holdable(PER_HEAD, drawn(MultiheadAttention(2 * E, H)))
    with pytest.raises(ValueError, match=r"^the sizes differ: a parameter of shape \(.*\) can't be held by \(.*\)$"):
        form[2](form[0](), fast)
    with pytest.raises(ValueError, match=r"^the sizes differ: a parameter of shape \(.*\) can't be held by \(.*\)$"):
        form[3](fast, form[0]())


# Whole models


def reference_model(
    *, words: int = SOURCE_WORDS, encoder: Settings | None = None, decoder: Settings | None = None
) -> tuple[transformer.TransformerEncoder, transformer.TransformerDecoder]:
    """`encoder` and `decoder` are settings of that part alone."""
    both = {"max_len": LONGEST, "d_model": E, "d_ff": FF, "heads_num": H, "dropout_rate": 0.0, "layer_norm_eps": 1e-5}
    of_encoder = {**both, "vocab_size": words, "pad_idx": words - 1, "N": 2, **(encoder or {})}
    of_decoder = {**both, "tgt_vocab_size": WORDS, "pad_idx": WORDS - 1, "N": 3, **(decoder or {})}
    parts = transformer.TransformerEncoder(**of_encoder), transformer.TransformerDecoder(**of_decoder)
    for part in parts:
        table = drawn(part).embedding.embedding
        table.weight.data[table.padding_idx] = 0.0
    return parts


def fast_model(*, shared: bool = False, **changes) -> Transformer:
    """Without biases of projections, which the reference has no place for."""
    config = ModelConfig(
        source_vocab_size=WORDS if shared else SOURCE_WORDS,
        target_vocab_size=WORDS,
        shared_vocab=shared,
        d_model=E,
        heads=H,
        encoder_layers=2,
        decoder_layers=3,
        d_ff=FF,
        **changes,
    )
    model = drawn(Transformer(config))
    for name, parameter in model.named_parameters():
        if name.endswith("in_proj_bias"):
            nn.init.zeros_(parameter)
        if "embedding" in name:
            parameter.data[-1] = 0.0
    return model


def assert_nearly_same_state(module: nn.Module, expected: nn.Module) -> None:
    """Embeddings are divided and multiplied by sqrt(d_model): they may differ in their last digit."""
    states = module.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, values in states[0].items():
        tolerance = torch.finfo(values.dtype).eps if "embedding" in name else 0.0
        assert_close(values, states[1][name], rtol=tolerance, atol=0.0, msg=name)


def test_a_model_survives_the_way_to_the_fast_form_and_back():
    (encoder, decoder), again, fast = reference_model(), reference_model(), fast_model()
    transformer_to_fast(encoder, decoder, fast)
    transformer_from_fast(fast, *again)
    assert_nearly_same_state(again[0], encoder)
    assert_nearly_same_state(again[1], decoder)


@pytest.mark.parametrize("shared", [False, True], ids=["two vocabularies", "one vocabulary"])
def test_a_model_survives_the_way_from_the_fast_form_and_back(shared):
    fast, again = fast_model(shared=shared), fast_model(shared=shared)
    encoder, decoder = reference_model(words=WORDS if shared else SOURCE_WORDS)
    transformer_from_fast(fast, encoder, decoder)
    transformer_to_fast(encoder, decoder, again)
    assert_nearly_same_state(again, fast)


def test_the_square_root_of_the_width_is_part_of_the_embeddings():
    fast, (encoder, decoder) = fast_model(), reference_model()
    transformer_from_fast(fast, encoder, decoder)
    word = 5
    assert_close(encoder.embedding.embedding.weight[word, 0], fast.source_embedding.weight[word, 0] * math.sqrt(33))
    # The second number is the reference's first cosine; the fast form's 17 sines come first.
    assert_close(decoder.embedding.embedding.weight[word, 1], fast.target_embedding.weight[word, 17] * math.sqrt(33))


def test_a_converted_model_gives_the_same_states():
    fast, (encoder, decoder) = fast_model().eval(), reference_model()
    transformer_from_fast(fast, encoder, decoder)
    source, target = torch.randint(SOURCE_WORDS - 1, (B, K)), torch.randint(WORDS - 1, (B, Q))
    order = [*range(0, E, 2), *range(1, E, 2)]
    memory, fast_memory = encoder(source), fast.encode(source)
    states = decoder(target, memory, None, transformer.causal_mask(Q))
    fast_states, _ = fast.decode(target, fast.start(fast_memory))
    assert_close(memory[..., order], fast_memory, atol=1e-4, rtol=1e-4)
    assert_close(states[..., order], fast_states, atol=1e-4, rtol=1e-4)


# Models that don't fit


def assert_refused(convert: Callable[..., None], message: str, *models: nn.Module) -> None:
    """Before anything is copied."""
    before = copy.deepcopy(models)
    with pytest.raises(ValueError, match=f"^{message}$"):
        convert(*models)
    for model, expected in zip(models, before, strict=True):
        assert_same_state(model, expected)


def assert_refused_both_ways(
    message: str,
    reference: tuple[transformer.TransformerEncoder, transformer.TransformerDecoder],
    fast: Transformer,
) -> None:
    assert_refused(transformer_to_fast, message, *reference, fast)
    assert_refused(transformer_from_fast, message, fast, *reference)


def test_embeddings_that_differ_cannot_be_shared():
    message = "encoder and decoder have different embeddings, .*: make it with shared_vocab=False"
    assert_refused(transformer_to_fast, message, *reference_model(words=WORDS), fast_model(shared=True))


def test_vocabularies_of_another_size_cannot_be_shared():
    message = "vocab_size of the encoder must be the other model's 17, got 23"
    assert_refused_both_ways(message, reference_model(), fast_model(shared=True))


@pytest.mark.parametrize(
    ("part", "setting", "message"),
    [
        ("encoder", {"vocab_size": 29}, "vocab_size of the encoder must be the other model's 23, got 29"),
        ("decoder", {"tgt_vocab_size": 29}, "vocab_size of the decoder must be the other model's 17, got 29"),
        ("encoder", {"d_model": 2 * E}, "d_model of the encoder must be the other model's 33, got 66"),
        ("decoder", {"d_model": 2 * E}, "d_model of the decoder must be the other model's 33, got 66"),
        ("encoder", {"pad_idx": 0}, "pad_idx of the encoder must be the other model's 22, got 0"),
        ("decoder", {"pad_idx": 0}, "pad_idx of the decoder must be the other model's 16, got 0"),
        ("encoder", {"N": 5}, "encoder must have as many layers as the other model's, got 5 and 2"),
        ("encoder", {"N": 1}, "encoder must have as many layers as the other model's, got 1 and 2"),
        ("decoder", {"N": 2}, "decoder must have as many layers as the other model's, got 2 and 3"),
        ("encoder", {"heads_num": D}, "heads_num must be the other model's 3, got 11"),
        ("decoder", {"heads_num": D}, "heads_num must be the other model's 3, got 11"),
        ("encoder", {"d_ff": 29}, "d_ff must be the other model's 13, got 29"),
        ("decoder", {"d_ff": 29}, "d_ff must be the other model's 13, got 29"),
        ("encoder", {"layer_norm_eps": 1e-6}, "layer_norm_eps must be the other model's 1e-05, got 1e-06"),
        ("decoder", {"layer_norm_eps": 1e-6}, "layer_norm_eps must be the other model's 1e-05, got 1e-06"),
    ],
)
def test_a_setting_of_another_value_is_refused_both_ways(part, setting, message):
    assert_refused_both_ways(message, reference_model(**{part: setting}), fast_model())


@pytest.mark.parametrize(
    ("setting", "only"),
    [
        ({"activation": "swish"}, "relu"),
        ({"scale_embedding": False}, True),
        ({"tied_output": False}, True),
        ({"output_bias": True}, False),
    ],
)
def test_what_the_reference_has_not_is_refused_both_ways(setting, only):
    ((name, value),) = setting.items()
    message = f"{name} must be {only}, which the reference always has, got {value}"
    assert_refused_both_ways(message, reference_model(), fast_model(**setting))


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (0, "layers.1.self_attention_norm"),
        (0, "layers.1.ffn_norm"),
        (1, "layers.2.self_attention_norm"),
        (1, "layers.2.source_attention_norm"),
        (1, "layers.2.ffn_norm"),
    ],
)
def test_another_epsilon_anywhere_in_the_model_is_refused(part, name):
    reference = reference_model()
    reference[part].get_submodule(name).eps = 1e-6
    assert_refused_both_ways("layer_norm_eps must be the other model's 1e-05, got 1e-06", reference, fast_model())


@pytest.mark.parametrize("name", ["encoder.1.self_attention", "decoder.2.self_attention", "decoder.0.source_attention"])
def test_a_bias_anywhere_in_the_model_is_refused(name):
    fast = fast_model()
    fast.get_submodule(name).in_proj_bias.data[0] = 1e-30
    message = "in_proj_bias holds numbers that would be lost: the per-head projections have no bias"
    assert_refused(transformer_from_fast, message, fast, *reference_model())


def test_a_single_attention_that_does_not_fit_is_left_as_it_was():
    fast = MultiheadAttention(66, 3, batch_first=True)
    torch.nn.init.normal_(fast.in_proj_bias)
    before = {name: value.clone() for name, value in fast.state_dict().items()}
    with pytest.raises(ValueError, match="the sizes differ"):
        per_head_to_fast(transformer.MultiHeadAttention(33, 3), fast)
    assert all(torch.equal(value, before[name]) for name, value in fast.state_dict().items())

    single = self_attention.SelfAttention(33, 33, 11)
    kept = {name: value.clone() for name, value in single.state_dict().items()}
    source = MultiheadAttention(33, 1, bias=False)
    torch.nn.init.eye_(source.out_proj.weight)
    with pytest.raises(ValueError, match="the sizes differ"):
        self_attention_from_fast(source, single)
    assert all(torch.equal(value, kept[name]) for name, value in single.state_dict().items())
