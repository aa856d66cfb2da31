import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from glassformer.attention.multihead import MultiheadAttention
from glassformer.reference import multi_head, self_attention, transformer, weights
from glassformer.reference.errors import InputError
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

H, D, FF = 3, 11, 13
E = H * D
SOURCE_WORDS, WORDS, LONGEST = 23, 17, 19
each = pytest.mark.parametrize
each_fast = each("fast_class", [MultiheadAttention, nn.MultiheadAttention], ids=["ours", "torch"])


def drawn(module: nn.Module) -> Any:
    """The module with every number random, biases and norms too."""
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def fast_for(form: Any, fast_class: Any = MultiheadAttention, **settings: Any) -> Any:
    return drawn(fast_class(E, form.heads, **settings))


@torch.no_grad()
def holdable(form: Any, fast: Any) -> Any:
    """`fast` without what the form cannot hold."""
    if fast.in_proj_bias is not None and not form.projections_have_biases:
        fast.in_proj_bias.zero_()
    if fast.in_proj_bias is not None and not getattr(form, "bias", True):
        fast.in_proj_bias[: 2 * E] = 0.0
    if not form.has_output:
        nn.init.eye_(fast.out_proj.weight)
        if fast.out_proj.bias is not None:
            fast.out_proj.bias.zero_()
    return fast


def assert_refused(message: str, convert: Callable[..., None], *modules: nn.Module) -> None:
    """Assert that the conversion is refused before anything is copied."""
    before = copy.deepcopy(modules)
    with pytest.raises(InputError, match=f"^{message}$"):
        convert(*modules)
    for module, expected in zip(modules, before, strict=True):
        assert_same_state(module, expected)


def assert_same_state(module: nn.Module, expected: nn.Module, tolerance: float = 0.0) -> None:
    """`tolerance` is for embeddings: divided and multiplied by sqrt(d_model), they may differ in their last digit."""
    states = module.state_dict(), expected.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, values in states[0].items():
        assert_close(values, states[1][name], rtol=tolerance if "embedding" in name else 0.0, atol=0.0, msg=name)


# Attention, each way


@each_fast
def test_weights_survive_the_way_to_the_fast_form_and_back(form, fast_class):
    source, again, fast = drawn(form.make()), drawn(form.make()), fast_for(form, fast_class)
    form.to_fast(source, fast)
    for parameter, held in form.pairs(source, fast, lambda parameter: parameter):
        assert torch.equal(parameter, held)
    form.from_fast(fast, again)
    assert_same_state(again, source)


@each_fast
@each("bias", [True, False])
def test_weights_survive_the_way_from_the_fast_form_and_back(form, fast_class, bias):
    source, again = holdable(form, fast_for(form, fast_class, bias=bias)), fast_for(form, fast_class, bias=bias)
    reference = drawn(form.make())
    form.from_fast(source, reference)
    assert bias or all((x == 0).all() for name, x in reference.named_parameters() if name.endswith("bias"))
    form.to_fast(reference, again)
    assert_same_state(again, source)


def test_the_target_keeps_its_dtype_and_learns(form):
    source, fast = drawn(form.make()), fast_for(form).double()
    form.to_fast(source, fast)
    assert {parameter.dtype for parameter in fast.parameters()} == {torch.float64}
    form.from_fast(fast, again := form.make().double())
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float64}
    assert all(parameter.requires_grad for module in (fast, again) for parameter in module.parameters())


# What attention can't hold

SIZES = r"the sizes differ: a parameter of shape \(.*\) can't be held by \(.*\)"
LOST = "holds numbers that would be lost"


ADDED = (
    r"source adds keys \(add_bias_kv or add_zero_attn\), which the step-by-step forms don't have",
    r"target must not add keys \(add_bias_kv, add_zero_attn\): the step-by-step forms don't",
)
WIDE = (
    "source has kdim 5 and vdim 7: the step-by-step forms have one width",
    "target must have one width, got kdim 5 and vdim 7",
)


@each(
    ("settings", "messages"),
    [({"add_bias_kv": True}, ADDED), ({"add_zero_attn": True}, ADDED), ({"kdim": 5, "vdim": 7}, WIDE)],
)
@each_fast
def test_added_keys_and_other_widths_are_refused_both_ways(form, fast_class, settings, messages):
    fast = holdable(form, fast_for(form, fast_class, **settings))
    assert_refused(messages[0], form.from_fast, fast, form.make())
    assert_refused(messages[1], form.to_fast, form.make(), fast)


def test_another_number_of_heads_or_width_is_refused_both_ways(form):
    reference, fast = form.make(), MultiheadAttention(E, D)
    if form.heads == 1:
        assert_refused("target must have 1 head, as SelfAttention has, got 11", form.to_fast, reference, fast)
        assert_refused(
            "source must have 1 head: SelfAttention would lose the other 10", form.from_fast, fast, reference
        )
        return
    assert_refused("target must have 3 heads, got 11", form.to_fast, reference, fast)
    assert_refused("target must have 11 heads, got 3", form.from_fast, fast, reference)
    assert_refused("target must have 1 heads, got 3", form.from_fast, MultiheadAttention(E, 1), reference)
    wide = drawn(MultiheadAttention(2 * E, H))
    assert_refused(SIZES, form.to_fast, reference, wide)
    nn.init.zeros_(wide.in_proj_bias)
    assert_refused(SIZES, form.from_fast, wide, reference)


@each("widths", [(D, E, E), (E, D, E), (E, E, D)])
def test_single_head_attention_of_several_widths_has_no_fast_form(widths):
    reference, fast = self_attention.SelfAttention(*widths), MultiheadAttention(E, 1, bias=False)
    nn.init.eye_(fast.out_proj.weight)
    words = ", ".join(map(str, widths))
    message = f"dim_q, dim_k and dim_v must all be the target's embed_dim = 33: .*, got {words}"
    assert_refused(message, weights.self_attention_to_fast, reference, fast)
    assert_refused(SIZES, weights.self_attention_from_fast, fast, reference)


@each("form", ["single head"], indirect=True)
@each(
    ("name", "message"),
    [
        ("in_proj_bias", f"in_proj_bias {LOST}: SelfAttention's projections have no bias"),
        ("out_proj.bias", rf"out_proj\.bias {LOST}: SelfAttention has no output projection"),
        ("out_proj.weight", r"source has an output projection \(out_proj.weight isn't .*\): SelfAttention has none"),
    ],
)
def test_single_head_attention_has_no_biases_and_no_output_projection(form, name, message):
    fast = holdable(form, fast_for(form))
    fast.get_parameter(name).data[-1] = 1e-30
    assert_refused(message, weights.self_attention_from_fast, fast, form.make())


@each("part", range(3))
def test_projections_without_biases_lose_none(part):
    fast = MultiheadAttention(E, H)
    fast.in_proj_bias.data[part * E + 5] = 1e-30
    message = f"in_proj_bias {LOST}: the per-head projections have no bias"
    assert_refused(message, weights.per_head_from_fast, fast, transformer.MultiHeadAttention(E, H))
    if part < 2:  # not that of values
        message = f"in_proj_bias of queries and keys {LOST}: target has none: make it with bias=True"
        assert_refused(message, weights.multi_head_from_fast, fast, multi_head.MultiHeadAttention(H, E, bias=False))


@each("form", ["sequence first", "without bias", "per head"], indirect=True)
def test_biases_need_a_place(form):
    source, fast = drawn(form.make()), MultiheadAttention(E, H, bias=False)
    if form.projections_have_biases:
        message = f"biases of the projections {LOST}: target has none: make it with bias=True"
        assert_refused(message, weights.multi_head_to_fast, source, fast)
    for name, parameter in source.named_parameters():
        if name.endswith("linear.bias") and form.projections_have_biases:
            nn.init.zeros_(parameter)
    assert_refused(rf"output\.bias {LOST}: target has none: make it with bias=True", form.to_fast, source, fast)


# Whole models


def reference_model(words: int = SOURCE_WORDS, encoder: Any = (), decoder: Any = ()) -> tuple[Any, Any]:
    """`encoder` and `decoder` are settings of that part alone."""
    both = {"max_len": LONGEST, "d_model": E, "d_ff": FF, "heads_num": H, "dropout_rate": 0.0, "layer_norm_eps": 1e-5}
    for_encoder = {**both, "vocab_size": words, "pad_idx": words - 1, "N": 2, **dict(encoder)}
    for_decoder = {**both, "tgt_vocab_size": WORDS, "pad_idx": WORDS - 1, "N": 3, **dict(decoder)}
    parts = transformer.TransformerEncoder(**for_encoder), transformer.TransformerDecoder(**for_decoder)
    for part in parts:
        table = drawn(part).embedding.embedding
        table.weight.data[table.padding_idx] = 0.0
    return parts


def fast_model(*, shared: bool = False, **changes: Any) -> Transformer:
    """A model without biases of projections, for which the reference has no place."""
    words = dict(source_vocab_size=WORDS if shared else SOURCE_WORDS, target_vocab_size=WORDS, shared_vocab=shared)
    config = ModelConfig(**words, d_model=E, heads=H, encoder_layers=2, decoder_layers=3, d_ff=FF, **changes)
    model = drawn(Transformer(config))
    for name, parameter in model.named_parameters():
        if name.endswith("in_proj_bias"):
            nn.init.zeros_(parameter)
        if "embedding" in name:
            parameter.data[-1] = 0.0
    return model


def assert_refused_both_ways(message: str, reference: tuple[Any, Any], fast: Transformer) -> None:
    assert_refused(message, weights.transformer_to_fast, *reference, fast)
    assert_refused(message, weights.transformer_from_fast, fast, *reference)


@each("shared", [False, True], ids=["two vocabularies", "one vocabulary"])
def test_a_model_survives_the_way_to_the_fast_form_and_back_and_the_other_way(shared):
    fast, fast_again = fast_model(shared=shared), fast_model(shared=shared)
    models, again = (reference_model(WORDS if shared else SOURCE_WORDS) for _ in range(2))
    weights.transformer_from_fast(fast, *models)
    weights.transformer_to_fast(*models, fast_again)
    assert_same_state(fast_again, fast, torch.finfo(torch.float32).eps)
    weights.transformer_from_fast(fast_again, *again)
    for part, expected in zip(again, models, strict=True):
        assert_same_state(part, expected, torch.finfo(torch.float32).eps)


def test_embeddings_that_differ_cannot_be_shared():
    message = "encoder and decoder have different embeddings, .*: make it with shared_vocab=False"
    assert_refused(message, weights.transformer_to_fast, *reference_model(WORDS), fast_model(shared=True))
    assert_refused_both_ways(
        f"vocab_size of the encoder {OTHER} 17, got 23", reference_model(), fast_model(shared=True)
    )


OTHER = "must be the other model's"
LAYERS = "must have as many layers as the other model's, got"


@each(
    ("parts", "setting", "message"),
    [
        (["encoder"], {"vocab_size": 29}, f"vocab_size of the encoder {OTHER} 23, got 29"),
        (["decoder"], {"tgt_vocab_size": 29}, f"vocab_size of the decoder {OTHER} 17, got 29"),
        (["encoder"], {"d_model": 2 * E}, f"d_model of the encoder {OTHER} 33, got 66"),
        (["decoder"], {"d_model": 2 * E}, f"d_model of the decoder {OTHER} 33, got 66"),
        (["encoder"], {"pad_idx": 0}, f"pad_idx of the encoder {OTHER} 22, got 0"),
        (["decoder"], {"pad_idx": 0}, f"pad_idx of the decoder {OTHER} 16, got 0"),
        (["encoder"], {"N": 5}, f"encoder {LAYERS} 5 and 2"),
        (["encoder"], {"N": 1}, f"encoder {LAYERS} 1 and 2"),
        (["decoder"], {"N": 2}, f"decoder {LAYERS} 2 and 3"),
        (["encoder", "decoder"], {"heads_num": D}, f"heads_num {OTHER} 3, got 11"),
        (["encoder", "decoder"], {"d_ff": 29}, f"d_ff {OTHER} 13, got 29"),
    ],
)
def test_a_setting_of_another_value_is_refused_both_ways(parts, setting, message):
    for part in parts:
        assert_refused_both_ways(message, reference_model(**{part: setting}), fast_model())


@each("name", ["encoder.1.self_attention", "decoder.2.self_attention", "decoder.0.source_attention"])
def test_other_heads_anywhere_in_the_model_are_refused_both_ways(name):
    fast = fast_model(heads_left={name: 2})
    assert fast.get_submodule(name).num_heads == 2
    assert_refused_both_ways(f"heads_num {OTHER} 2, got 3", reference_model(), fast)


def test_another_epsilon_anywhere_in_the_model_is_refused_both_ways():
    reference, fast = reference_model(), fast_model()
    norms = [x for part in reference for x in part.modules() if isinstance(x, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 3 * 3
    for norm in norms:
        norm.eps = 1e-6
        assert_refused_both_ways(f"layer_norm_eps {OTHER} 1e-05, got 1e-06", reference, fast)
        norm.eps = 1e-5


@each(
    ("setting", "value", "only"),
    [
        ("activation", "swish", "relu"),
        ("scale_embedding", False, True),
        ("tied_output", False, True),
        ("output_bias", True, False),
        ("norm_first", True, False),
        ("final_norm", True, False),
    ],
)
def test_what_the_reference_lacks_is_refused_both_ways(setting, value, only):
    message = f"{setting} must be {only}, which the reference always has, got {value}"
    assert_refused_both_ways(message, reference_model(), fast_model(**{setting: value}))


@each("name", ["encoder.1.self_attention", "decoder.2.self_attention", "decoder.0.source_attention"])
def test_a_bias_anywhere_in_the_model_is_refused(name):
    fast = fast_model()
    fast.get_submodule(name).in_proj_bias.data[0] = 1e-30
    message = f"in_proj_bias {LOST}: the per-head projections have no bias"
    assert_refused(message, weights.transformer_from_fast, fast, *reference_model())
