import copy
import inspect
import itertools
import pickle
import warnings
import weakref
from typing import Any, ClassVar

import pytest
import torch
import torch.ao.quantization
import torch.nn.utils.parametrizations
import torch.nn.utils.prune
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from glassformer.attention import functional
from glassformer.attention.attend import attend
from glassformer.attention.functional import multi_head_attention_forward
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.blocks import Problem
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.observe import observe, observe_problem
from glassformer.attention.replace import replace_attention
from glassformer.attention.want import Want
from glassformer.errors import ArgumentError

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D


def pair(**settings) -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Ours and torch's with one set of weights; biases too are drawn, so that losing one shows."""
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **settings)
    for parameter in theirs.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    ours = MultiheadAttention(E, H, dtype=torch.float64, **settings)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("average", "wanted"), [(True, Want(head_mean=True)), (False, Want(weights=True))])
def test_only_the_weights_that_are_asked_for_are_computed(average, wanted, monkeypatch):
    calls = []
    monkeypatch.setattr(functional, "observe_problem", lambda *a: calls.append(a[1]) or observe_problem(*a))
    ours, _ = pair(batch_first=True)
    inputs = [torch.randn(B, n, E, dtype=torch.float64) for n in (Q, K, K)]
    assert ours(*inputs, need_weights=False)[1] is None
    assert calls == []
    ours(*inputs, average_attn_weights=average)
    assert calls == [wanted]


@pytest.mark.parametrize("bias", [True, False])
def test_parts_agree_with_each_other_and_with_the_whole(bias):
    ours, _ = pair(batch_first=True, bias=bias)
    x = torch.randn(B, K, E, dtype=torch.float64)
    q, k, v = ours.project(x)
    assert q.shape == k.shape == v.shape == (B, H, K, D)
    assert_close(ours.project_query(x), q)
    memory_k, memory_v = ours.project_memory(x)
    assert_close(memory_k, k)
    assert_close(memory_v, v)
    assert_close(ours.attend(q, k, v), ours(x, x, x)[0])
    future = torch.ones(K, K, dtype=torch.bool).triu(1)
    assert_close(ours.attend(q, k, v, causal=True), ours(x, x, x, attn_mask=future)[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_acts_in_training_only(need_weights):
    ours, _ = pair(batch_first=True, dropout=0.5)
    x = torch.randn(B, K, E, dtype=torch.float64)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return ours(x, x, x, need_weights=need_weights)[0]

    dropped = run(7)
    assert torch.equal(run(7), dropped)
    assert not torch.equal(run(8), dropped)
    ours.eval()
    plain = run(7)
    assert torch.equal(run(8), plain)
    ours.train().dropout = 0.0
    assert_close(run(8), plain)


@pytest.mark.parametrize(("width", "heads"), [(32, 3), (0, 3), (33, 0), (33, -3)])
def test_width_must_be_a_positive_multiple_of_heads(width, heads):
    message = f"embed_dim must be a positive multiple of num_heads, got embed_dim {width}, num_heads {heads}"
    with pytest.raises(ValueError, match=message):
        MultiheadAttention(width, heads)


# What torch lets people do with a module


SETTINGS: list[dict[str, Any]] = [
    {},
    {"kdim": 13, "vdim": 17},
    {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
]


def call(module: nn.Module) -> Tensor:
    torch.manual_seed(3)
    query, key, value = torch.randn(Q, B, E), torch.randn(K, B, module.kdim), torch.randn(K, B, module.vdim)
    return module(query, key, value)[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_constructor_draws_what_torchs_draws(settings):
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(E, H, **settings)
    drawn_next = torch.rand(3)
    torch.manual_seed(5)
    ours = MultiheadAttention(E, H, **settings)
    assert torch.equal(torch.rand(3), drawn_next)  # what is made after it is the same as well
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
    assert_close(call(ours), call(theirs))
    theirs.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize("name", ["__init__", "forward"])
def test_signatures_are_torchs(name):
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (MultiheadAttention, nn.MultiheadAttention))
    defaults = [[(n, p.default) for n, p in signature.parameters.items()] for signature in (ours, theirs)]
    assert defaults[0] == defaults[1]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_pickle_and_deepcopy(settings):
    module = MultiheadAttention(E, H, **settings).eval()
    for again in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert torch.equal(call(again), call(module))
        assert next(again.parameters()) is not next(module.parameters())


def test_it_is_a_multihead_attention_of_torchs():
    assert issubclass(MultiheadAttention, nn.MultiheadAttention)
    module = MultiheadAttention(E, H, add_bias_kv=True)
    assert repr(module) == repr(nn.MultiheadAttention(E, H, add_bias_kv=True))
    before = module.in_proj_weight.detach().clone()
    torch.manual_seed(5)
    module._reset_parameters()  # as its packed weight is drawn, not as three
    theirs = nn.MultiheadAttention(E, H)
    torch.manual_seed(5)
    theirs._reset_parameters()
    assert torch.equal(module.in_proj_weight, theirs.in_proj_weight)
    assert not torch.equal(module.in_proj_weight, before)


@pytest.mark.parametrize("missing", [[], ["_qkv_same_embed_dim"], ["_qkv_same_embed_dim", "batch_first"]])
def test_what_torchs_pickles_hold_becomes_ours(missing):
    theirs = nn.MultiheadAttention(E, H)
    state = {name: value for name, value in theirs.__dict__.items() if name not in missing}
    ours = MultiheadAttention.__new__(MultiheadAttention)
    ours.__setstate__(state)
    assert_close(call(ours), call(theirs))
    assert not ours._qkv_same_embed_dim


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=str)
def test_projections_can_be_read_apart(settings):
    module = MultiheadAttention(E, H, **settings)
    apart = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    assert [tuple(w.shape) for w in apart] == [(E, E), (E, module.kdim), (E, module.vdim)]
    if module.in_proj_weight is None:
        assert all(isinstance(w, nn.Parameter) for w in apart)
    else:
        assert torch.equal(torch.cat(apart), module.in_proj_weight)
        assert not any("q_proj" in name for name in module.state_dict())


def test_weights_may_be_parametrized():
    module = MultiheadAttention(E, H)
    plain = copy.deepcopy(module)
    nn.utils.parametrizations.weight_norm(module, "in_proj_weight")
    assert_close(call(module), call(plain))
    assert_close(module.q_proj_weight, plain.q_proj_weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [True, False])
def test_autocast(dtype, masked):
    ours, theirs = (module.float() for module in pair(batch_first=True))
    x = torch.randn(B, K, E)
    given = {"attn_mask": torch.randn(K, K), "key_padding_mask": torch.randn(B, K)} if masked else {}
    for need_weights in (True, False):
        with torch.autocast("cpu", dtype=dtype):
            output, weights = ours(x, x, x, need_weights=need_weights, **given)
            expected, expected_weights = theirs(x, x, x, need_weights=need_weights, **given)
        assert output.dtype == expected.dtype == dtype
        assert_close(output, expected, atol=2e-2, rtol=2e-2)
        if need_weights:
            assert_close(weights.float(), expected_weights.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("need_weights", [True, False])
def test_autocast_with_a_learned_key(need_weights):
    ours, theirs = (module.float() for module in pair(batch_first=True, add_bias_kv=True))
    x = torch.randn(B, K, E)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, expected = (one(x, x, x, need_weights=need_weights)[0] for one in (ours, theirs))
        assert output.dtype == expected.dtype
        assert_close(output, expected, atol=2e-2, rtol=2e-2)
    gradients = [torch.autograd.grad(one.sum(), of.bias_k)[0] for one, of in ((output, ours), (expected, theirs))]
    assert_close(*gradients, atol=2e-1, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("floating", [True, False])
def test_a_query_that_may_look_nowhere_is_zero_under_autocast(floating, need_weights, dtype):
    module, x = MultiheadAttention(E, H, batch_first=True), torch.randn(B, K, E, requires_grad=True)
    blocked = (torch.arange(K) == 2)[:, None].expand(K, K)
    mask = torch.zeros(K, K).masked_fill(blocked, -torch.inf) if floating else blocked
    nn.init.normal_(module.out_proj.bias)
    with torch.autocast("cpu", dtype=dtype):
        output, weights = module(x, x, x, need_weights=need_weights, attn_mask=mask)
    assert torch.equal(output[:, 2], module.out_proj.bias.to(dtype).expand(B, E))
    assert weights is None or not weights[:, 2].any()
    assert torch.autograd.grad(output.sum(), x)[0].isfinite().all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripting_is_refused_in_words():
    model = nn.Sequential(replace_attention(nn.TransformerEncoderLayer(E, H)))
    with pytest.raises(ArgumentError, match=r"MultiheadAttention can't be scripted: use torch\.jit\.trace"):
        torch.jit.script(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's forward differentiation uses it
@pytest.mark.parametrize("length", [K, 200])
def test_function_transforms(length):
    module = MultiheadAttention(E, H, batch_first=True).eval()
    x = torch.randn(B, length, E)

    def run(y: Tensor) -> Tensor:
        return module(y, y, y)[0]

    assert_close(torch.vmap(run)(x[:, None])[:, 0], run(x))
    _, slope = torch.func.jvp(run, (x,), (x,))
    step = 1e-6
    module.double()
    x = x.double()
    assert_close(slope.double(), (run(x * (1 + step)) - run(x * (1 - step))) / (2 * step), atol=1e-4, rtol=1e-3)
    parameters = dict(module.named_parameters())
    found = torch.func.grad(lambda p: torch.func.functional_call(module, p, (x, x, x))[0].sum())(parameters)
    expected = torch.autograd.grad(run(x).sum(), list(parameters.values()))
    assert_close(list(found.values()), list(expected))


def test_meta_and_fake_tensors_have_the_right_shapes():
    for batch_first, need_weights, grad in itertools.product([True, False], repeat=3):
        with FakeTensorMode(), torch.set_grad_enabled(grad):
            module = MultiheadAttention(64, 8, batch_first=batch_first).eval()
            for length in (4, 128):
                x = torch.empty((2, length, 64) if batch_first else (length, 2, 64))
                output, weights = module(x, x, x, need_weights=need_weights)
                assert output.shape == x.shape
                assert weights is None or weights.shape == (2, length, length)
    module = MultiheadAttention(64, 8, device="meta")
    x = torch.empty(128, 2, 64, device="meta")
    assert module(x, x, x)[0].shape == x.shape


# Nested tensors, which nn.TransformerEncoder makes of padding


def nested(*lengths: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.randn(n, 12) for n in lengths])


@pytest.mark.parametrize("average", [True, False])
def test_nested_self_attention_in_inference_is_torchs(average):
    theirs = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    ours = replace_attention(theirs)
    x = nested(5, 2, 7)
    with torch.no_grad():
        output, weights = ours(x, x, x, average_attn_weights=average)
        expected, expected_weights = theirs(x, x, x, average_attn_weights=average)
        assert ours(x, x, x, need_weights=False)[1] is None
    assert output.is_nested
    assert_close(list(output.unbind()), list(expected.unbind()))
    for n, found, exact in zip((5, 2, 7), weights, expected_weights, strict=True):
        assert_close(found[..., :n, :n], exact[..., :n, :n])
        assert found.sum().item() == pytest.approx(n if average else 2 * n)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(0, 3), (0, 0)])
def test_nested_empty_sequences_go_through_an_encoder_layer_as_through_torchs(lengths):
    theirs = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True).eval()
    ours = replace_attention(copy.deepcopy(theirs))
    x = nested(*lengths)
    assert_close(list(ours(x).unbind()), list(theirs(x).unbind()))


def test_other_nested_calls_are_refused_as_torch_refuses_them():
    module = MultiheadAttention(12, 2, batch_first=True).eval()
    x, y = nested(5, 2), nested(5, 2)

    def assert_refused(words: str, module: nn.Module, *inputs: Tensor, **masks: Tensor) -> None:
        message = rf"^MultiheadAttention does not support NestedTensor outside of its fast path.*{words}"
        with pytest.raises(AssertionError, match=message):
            module(*inputs, **masks)

    assert_refused("grad is enabled and.*or biases requires_grad", module, x, x, x)
    with torch.no_grad():
        assert_refused("not the same tensor", module, x, y, y)
        assert_refused("masks were passed", module, x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool))
        assert_refused("batch_first is not set", MultiheadAttention(12, 2).eval(), x, x, x)
        assert_refused("training is enabled", module.train(), x, x, x)


@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(0, Q, K), (B, 0, K), (B, Q, 0), (B, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("masked", [True, False])
def test_empty_inputs(batch, q_len, k_len, masked):
    module = MultiheadAttention(12, 2, batch_first=True)
    query, key = torch.randn(batch, q_len, 12, requires_grad=True), torch.randn(batch, k_len, 12)
    masks = {"key_padding_mask": torch.zeros(batch, k_len, dtype=torch.bool), "attn_mask": torch.zeros(q_len, k_len)}
    for need_weights in (True, False):
        output, weights = module(query, key, key, need_weights=need_weights, **(masks if masked else {}))
        assert output.shape == query.shape
        assert torch.equal(output, module.out_proj.bias.expand_as(output)) or k_len
        assert weights is None or weights.shape == (batch, q_len, k_len)
        output.sum().backward()
        assert query.grad.isfinite().all()


def test_an_empty_nested_tensor_is_an_error():
    x = nested()
    with pytest.raises(AssertionError, match="query should be unbatched 2D or batched 3D tensor but received 1-D"):
        MultiheadAttention(12, 2, batch_first=True).eval()(x, x, x)


# What a review found: each was wrong once, in the block form, with which inputs of this length are computed

LONG = 128


def long(**settings) -> tuple[MultiheadAttention, Tensor]:
    return MultiheadAttention(64, 4, batch_first=True, **settings), torch.randn(2, LONG, 64, requires_grad=True)


def test_masks_are_freed_after_the_backward_pass():
    ours, x = long()
    mask = torch.zeros(LONG, LONG)
    reference = weakref.ref(mask)
    output, _ = ours(x, x, x, attn_mask=mask)
    output.sum().backward()
    del mask
    assert reference() is None


@pytest.mark.parametrize("p", [-0.1, 1.5])
@pytest.mark.parametrize("length", [K, LONG])
def test_dropout_must_be_a_probability(p, length):
    ours, x = long(dropout=p)
    with pytest.raises(ValueError, match="dropout must be a probability, 0 to 1, got"):
        ours(*[x[:, :length]] * 3)


def test_output_is_contiguous_in_the_layout_asked_for():
    for batch_first in (True, False):
        module = MultiheadAttention(E, H, batch_first=batch_first)
        for x in (torch.randn(B, K, E), torch.randn(K, B, E).transpose(0, 1)):
            assert module(x, x, x)[0].is_contiguous() == ((batch_first and x.is_contiguous()) or not batch_first)


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=str)
def test_weights_may_be_pruned(settings):
    module = MultiheadAttention(E, H, **settings)
    name = "in_proj_weight" if module.in_proj_weight is not None else "q_proj_weight"
    plain, projection = call(module), module.q_proj_weight.detach().clone()
    nn.utils.prune.identity(module, name)
    assert_close(call(module), plain)
    assert_close(module.q_proj_weight, projection)
    nn.utils.prune.l1_unstructured(module, name, 0.5)
    assert (getattr(module, name) == 0).double().mean() > 0.4
    assert not torch.allclose(call(module), plain)
    nn.utils.prune.remove(module, name)
    assert isinstance(getattr(module, name), nn.Parameter)


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=str)
def test_it_may_be_replicated(settings):
    # As torch.nn.parallel.replicate does it, for which several GPUs are needed: weights become plain attributes.
    module = MultiheadAttention(E, H, **settings)
    replica = module._replicate_for_data_parallel()
    replica._parameters |= {name: None for name, parameter in module._parameters.items() if parameter is None}
    replica._modules |= module._modules
    for name, parameter in module.named_parameters(recurse=False):
        setattr(replica, name, parameter.detach().clone())
    assert_close(call(replica), call(module))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's, of its quantization
def test_quantizing_all_linear_layers_leaves_it_alone():
    model = nn.Sequential(nn.Linear(12, 12))
    model.attention = MultiheadAttention(12, 2)
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    x = torch.randn(K, B, 12)
    assert_close(quantized.attention(x, x, x), model.attention(x, x, x))


def test_another_default_device_does_not_matter():
    ours, x = long(dropout=0.1)
    blocked = torch.zeros(LONG, LONG)
    blocked[0] = -torch.inf
    with torch.device("meta"):
        q, k, v = ours.project(x)
        assert attend(q, k, v, dropout=0.1).device.type == "cpu"
        flags = dict.fromkeys(("entropy", "received", "distance", "lse", "weights"), True)
        everything = Want(**flags, top=3, rows=(0,), pooled=8)
        _, seen = observe(q, k, v, bias=blocked[None, None], dropout=0.1, want=everything)
        assert seen.weights[:, :, 0].eq(0).all()
        assert {x.device.type for x in seen.tensors().values()} == {"cpu"}
        assert ours(x, x, x, attn_mask=blocked)[0].isfinite().all()


def test_a_wrong_width_is_explained_in_inference_too():
    module = MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 18)
    with torch.no_grad(), pytest.raises(AssertionError, match="query must be embed_dim = 16 wide, got shape"):
        module(x, x, x)


def test_the_warning_about_uint8_is_the_callers():
    module = MultiheadAttention(E, H, batch_first=True)
    x = torch.randn(B, K, E)
    with pytest.warns(DeprecationWarning, match="uint8") as caught:
        module(x, x, x, attn_mask=torch.zeros(K, K, dtype=torch.uint8))
    assert [warning.filename for warning in caught] == [__file__]


def test_a_tensor_subclass_may_override_the_whole_function():
    class Watching(torch.Tensor):
        calls: ClassVar[list[object]] = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    attention, x = MultiheadAttention(6, 2, batch_first=True).eval(), torch.randn(3, 5, 6)
    output, weights = attention(x.as_subclass(Watching), x, x)
    assert multi_head_attention_forward in Watching.calls
    expected = attention(x, x.clone(), x.clone())
    assert_close((output.as_subclass(torch.Tensor), weights.as_subclass(torch.Tensor)), expected)


@pytest.mark.parametrize("want", ["averaged", "per head", "none"])
@pytest.mark.parametrize("mask", ["none", "boolean", "float"])
@pytest.mark.parametrize("length", [7, 131])
def test_float16_is_computed_in_float32_where_that_is_faster(monkeypatch, length, mask, want):
    ours = MultiheadAttention(E, H, batch_first=True, dtype=torch.float16)
    exact = MultiheadAttention(E, H, batch_first=True)
    exact.load_state_dict(ours.state_dict())
    x = torch.randn(B, length, E, dtype=torch.float16, requires_grad=True)
    masks = {
        "none": None,
        "boolean": torch.ones(length, length, dtype=torch.bool).triu(1),
        "float": torch.randn(length, length, dtype=torch.float16),
    }
    blocked = masks[mask]
    call = {"need_weights": want != "none", "average_attn_weights": want == "averaged"}
    monkeypatch.setattr(choose, "_multiplies", lambda kind: False)
    monkeypatch.setattr(choose, "FLOAT32_FROM_PRODUCTS", 0)
    output, weights = ours(x, x, x, attn_mask=blocked, **call)
    wide = x.float()
    expected = exact(wide, wide, wide, attn_mask=masks["float"].float() if mask == "float" else blocked, **call)
    assert torch.equal(output, expected[0].half())
    assert weights is None if want == "none" else torch.equal(weights, expected[1].half())
    output.float().square().sum().backward()
    assert x.grad.dtype == ours.in_proj_weight.grad.dtype == torch.float16


def test_float16_with_a_mask_of_another_type_is_the_error_it_was(monkeypatch):
    monkeypatch.setattr(choose, "_multiplies", lambda kind: False)
    monkeypatch.setattr(choose, "FLOAT32_FROM_PRODUCTS", 0)
    ours, x = MultiheadAttention(E, H, dtype=torch.float16), torch.randn(Q, B, E, dtype=torch.float16)
    with pytest.raises(ArgumentError, match="must have the query's dtype"):
        ours(x, x, x, attn_mask=torch.zeros(Q, Q))


def test_measured_by_shows_what_attention_is_computed_from_and_changes_nothing():
    attention = MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    shown: list[Problem] = []
    padding = torch.arange(5) >= torch.tensor([[5], [3], [4]])
    expected = attention(x, x, x, key_padding_mask=padding)
    q, k, v = attention.project(x)
    by_parts = attention.attend(q, k, v, causal=True)
    with attention.measured_by(shown.append):
        assert all(map(torch.equal, attention(x, x, x, key_padding_mask=padding), expected))
        assert torch.equal(attention.attend(q, k, v, causal=True), by_parts)
        assert copy.deepcopy(attention)._measure is None
        with pytest.raises(ArgumentError, match="measured already"), attention.measured_by(shown.append):
            pass
    attention(x, x, x)
    assert [(of.causal, of.keep is None) for of in shown] == [(False, False), (True, True)]
    assert_close(shown[0].q, q)
    assert shown[1].q is q
    assert shown[1].k is k


def test_a_mask_that_is_expanded_over_the_keys_has_the_gradients_of_its_copy():
    torch.manual_seed(1)
    module, x = MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 128, 32)
    mask = torch.randn(8, 128, 1).expand(8, 128, 128)
    padding = torch.zeros(2, 128, dtype=torch.bool)
    padding[:, :7] = True
    gradients = []
    for one in (mask, mask.contiguous()):
        module.zero_grad()
        module(x, x, x, attn_mask=one, key_padding_mask=padding)[0].sum().backward()
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
    assert_close(*gradients, rtol=0, atol=0)
