"""Attention where torch's functions are called: every form of the call, and models of people's own."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from glassformer import Want, attend, capture, observe
from glassformer.errors import ArgumentError

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D
WEIGHTS = Want(weights=True)


class Call(nn.Module):
    """Calls attention with what it is given."""

    def forward(self, *arguments: Any, **settings: Any) -> Tensor:
        return F.scaled_dot_product_attention(*arguments, **settings)


class Heads(nn.Module):
    """An attention as in timm or nanoGPT."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal, self.qkv, self.proj = causal, nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=0.0)
        return self.proj(y.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        q, k, _ = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return explicit(q, k, is_causal=self.causal)


class Block(nn.Module):
    def __init__(self, causal: bool, again: bool = False) -> None:
        super().__init__()
        self.norm, self.attn, self.again = nn.LayerNorm(E), Heads(causal), again

    def forward(self, x: Tensor) -> Tensor:
        run = self.attn
        return x + (checkpoint(run, self.norm(x), use_reentrant=False) if self.again else run(self.norm(x)))


class NanoGPT(nn.Module):
    def __init__(self, causal: bool = True, again: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, E)
        self.h = nn.ModuleList([Block(causal, again) for _ in range(2)])
        self.head = nn.Linear(E, 17)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.head(x)


class TimmViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, E, 4, 4), nn.Sequential(Block(False), Block(False))

    def forward(self, image: Tensor) -> Tensor:
        return self.blocks(self.patches(image).flatten(2).transpose(1, 2)).mean(1)


class Processor:
    """Computes a block's attention for it, as in diffusers."""

    def __call__(self, attn: "CrossBlock", x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (
            layer(y).unflatten(-1, (H, D)).transpose(1, 2)
            for layer, y in ((attn.to_q, x), (attn.to_k, context), (attn.to_v, context))
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape)


class CrossBlock(nn.Module):
    """A module that computes attention twice: to itself, then to a context."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(E, E) for _ in range(3))
        self.processor = Processor()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.processor(self, self.processor(self, x, x), context)


def explicit(
    q: Tensor, k: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: Any = None
) -> Tensor:
    if k.dim() > 2 and q.shape[-3] > k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, D)


KEEP = torch.rand(B, 1, Q, K) > 0.5
KEEP[..., 0] = True
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "plain": ((B, H, Q), (B, H, K), {}, (B, H, Q, K)),
    "no batch axis": ((H, Q), (H, K), {}, (1, H, Q, K)),
    "one head": ((Q,), (K,), {}, (1, 1, Q, K)),
    "two batch axes": ((B, 2, H, Q), (B, 2, H, K), {}, (B * 2, H, Q, K)),
    "one key head": ((B, H, Q), (B, 1, K), {}, (B, H, Q, K)),
    "one query head": ((B, 1, Q), (B, H, K), {}, (B, H, Q, K)),
    "grouped": ((B, 6, Q), (B, H, K), {"enable_gqa": True}, (B, 6, Q, K)),
    "causal": ((B, H, Q), (B, H, Q), {"is_causal": True}, (B, H, Q, Q)),
    "causal, more keys": ((B, H, Q), (B, H, K), {"is_causal": True}, (B, H, Q, K)),
    "causal, more queries": ((B, H, K), (B, H, Q), {"is_causal": True}, (B, H, K, Q)),
    "boolean mask": ((B, H, Q), (B, H, K), {"attn_mask": KEEP}, (B, H, Q, K)),
    "additive mask": ((B, H, Q), (B, H, K), {"attn_mask": torch.randn(H, Q, K)}, (B, H, Q, K)),
    "mask of two axes": ((B, H, Q), (B, H, K), {"attn_mask": KEEP[0, 0]}, (B, H, Q, K)),
    "mask of one key": ((B, H, Q), (B, H, K), {"attn_mask": torch.randn(Q, 1)}, (B, H, Q, K)),
    "mask of two batch axes": ((B, 2, H, Q), (B, 2, H, K), {"attn_mask": KEEP[:, None]}, (B * 2, H, Q, K)),
    "scale": ((B, H, Q), (B, H, K), {"scale": 0.3}, (B, H, Q, K)),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_form_of_the_call(name):
    of_queries, of_keys, settings, shape = CALLS[name]
    q, k, v = some(*of_queries), some(*of_keys), torch.randn(*of_keys, 13)
    plain = F.scaled_dot_product_attention(q, k, v, **settings)
    model = nn.Sequential()
    model.add_module("inner", Call())
    with capture(model, WEIGHTS) as captured:
        output = model.inner(q, k, v, **settings)
    assert_close(output, plain, rtol=1e-4, atol=1e-5)
    assert list(captured) == ["inner"]
    settings = {name: value for name, value in settings.items() if name != "enable_gqa"}
    assert_close(captured["inner"].weights, explicit(q, k, **settings).reshape(shape), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [torch.tensor(0.3), np.float32(0.3)])
def test_a_scale_that_is_a_number_in_another_dress(scale):
    q, k, model = some(B, H, Q), some(B, H, K), Call()
    with capture(model, WEIGHTS) as captured:
        output = model(q, k, k, scale=scale)
    assert_close(captured[""].weights, explicit(q, k, scale=0.3))
    assert_close(output, F.scaled_dot_product_attention(q, k, k, scale=0.3))


@pytest.mark.parametrize(("of_keys", "of_values"), [(2, 6), (6, 3), (1, 2)])
def test_grouped_keys_and_values_of_different_heads(of_keys, of_values):
    q, k, v, model = some(B, 6, Q), some(B, of_keys, K), some(B, of_values, K), Call()
    with capture(model, WEIGHTS) as captured:
        output = model(q, k, v, enable_gqa=True)
    assert_close(captured[""].weights, explicit(q, k.repeat_interleave(6 // of_keys, 1)))
    assert_close(output, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


class OtherMask(Tensor):
    """A tensor that says something of its own."""


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
@pytest.mark.parametrize(("q_len", "k_len"), [(Q, K), (K, Q)])
def test_masks_of_other_classes(q_len, k_len):
    from torch.nn.attention import bias  # it loads torch's compiler

    q, k, model = some(B, H, q_len), some(B, H, k_len), Call()
    for mask in (bias.causal_upper_left(q_len, k_len), bias.causal_lower_right(q_len, k_len)):
        with capture(model, WEIGHTS) as captured:
            output = model(q, k, k, mask)
        keep = mask._materialize()
        weights = explicit(q, k, keep).nan_to_num()  # of a query that may look nowhere
        assert_close(captured[""].weights, weights)
        assert_close(output, weights @ k)
    other = torch.ones(q_len, k_len, dtype=torch.bool).as_subclass(OtherMask)
    with (
        capture(model),
        pytest.raises(ArgumentError, match=r"model computes attention with a <class '.*OtherMask'>, which can't"),
    ):
        model(q, k, k, other)


def test_positions_keywords_and_dropout():
    q, k, v = some(B, H, Q), some(B, H, K), some(B, H, K)
    with capture(Call(), WEIGHTS) as captured:
        pass
    assert repr(captured) == "Captured 0 attentions"
    model = Call()
    with capture(model, WEIGHTS) as captured:
        model(q, k, v, KEEP, 0.0)
        model(query=q, key=k, value=v, dropout_p=0.5)
        model(q, k, v, KEEP, 0.0, True)
    masked, dropped, both = captured.calls("")
    assert_close(both.weights, explicit(q, k, KEEP & torch.ones(Q, K, dtype=torch.bool).tril()))
    assert_close(masked.weights, explicit(q, k, KEEP))
    zeros = dropped.weights == 0
    assert 0.2 < zeros.float().mean() < 0.8
    assert_close(dropped.weights, (explicit(q, k) * 2).masked_fill(zeros, 0.0))


ATTEND: dict[str, dict[str, Any]] = {
    "plain": {},
    "keep": {"keep": KEEP},
    "bias": {"bias": torch.randn(1, H, Q, K)},
    "causal": {"causal": True},
}


@pytest.mark.parametrize("name", ATTEND)
def test_our_own_attend(name):
    class Ours(nn.Module):
        def forward(self, *arguments: Any, **settings: Any) -> Tensor:
            return attend(*arguments, **settings)

    model, q, k, v = Ours(), some(B, H, Q), some(B, H, K), some(B, H, K)
    plain = model(q, k, v, **ATTEND[name])
    with capture(model, WEIGHTS) as captured:
        assert_close(model(q, k, v, **ATTEND[name]), plain)
    assert_close(captured[""].weights, observe(q, k, v, **ATTEND[name], want=WEIGHTS)[1].weights)


def test_a_call_that_fails_leaves_no_trace():
    model, q, k = Call(), some(B, H, Q), some(B, H, K)
    with capture(model, WEIGHTS) as captured:
        with pytest.raises(ArgumentError, match="dropout"):
            model(q, k, k, dropout_p=2.0)
        model(k, k, k)
    assert captured.lengths("") == (K, K)
    assert "3 heads, 7 queries x 7 keys" in repr(captured)
    assert captured[""].weights.shape == (B, H, K, K)


def test_a_model_as_in_timm(state_of):
    model, image = TimmViT().eval(), torch.randn(B, 3, 12, 8)
    plain, before = model(image), state_of(model)
    with capture(model, Want(weights=True, entropy=True)) as captured:
        assert_close(model(image), plain)
    assert list(captured) == ["blocks.0.attn", "blocks.1.attn"]
    x = model.patches(image).flatten(2).transpose(1, 2)
    block: Any = model.blocks[0]
    assert_close(captured["blocks.0.attn"].weights, block.attn.weights(block.norm(x)))
    assert state_of(model) == before
    assert torch.equal(model(image), plain)


def test_layers_are_paths_of_the_callers():
    model, ids = NanoGPT(), torch.randint(17, (B, Q))
    plain = model(ids)
    with capture(model, layers="h.1.*") as captured:
        assert_close(model(ids), plain)
    assert list(captured) == ["h.1.attn"]
    with pytest.raises(
        ArgumentError, match=r"modules that may call attention, got 'h\.7\.attn': near it .*'h\.1\.attn'"
    ):
        capture(model, layers="h.7.attn").__enter__()


def test_the_budget_is_shared_by_modules_of_a_kind():
    model, ids = NanoGPT(), torch.randint(17, (1, 300))
    with torch.no_grad(), capture(model, WEIGHTS, budget=1 << 20) as captured:
        model(ids)
    assert set(captured.dropped) == {"h.0.attn", "h.1.attn"}
    assert sum(x.numel() * x.element_size() for one in captured.values() for x in one.tensors().values()) <= 1 << 20
    message = "for each of 2 attentions: raise it to"
    with pytest.raises(ArgumentError, match=message), torch.no_grad(), capture(model, WEIGHTS, budget=1000):
        model(ids)


def test_calls_of_one_module_in_one_pass_have_numbers():
    model, x, context = CrossBlock(), torch.randn(B, Q, E), torch.randn(B, K, E)
    with capture(model, WEIGHTS) as captured:
        model(x, context)
        model(x + 1, context)
    assert list(captured) == ["@0", "@1"]
    assert [tuple(one.weights.shape[2:]) for one in captured.calls("@0")] == [(Q, Q)] * 2
    assert [tuple(one.weights.shape[2:]) for one in captured.calls("@1")] == [(Q, K)] * 2
    assert len(captured.calls("")) == 4
    assert captured.lengths("@1") == (2 * Q, K)
    with pytest.raises(
        KeyError, match=r"was called 2 times in a forward pass: choose one of @0, @1, or captured\.calls"
    ):
        _ = captured[""]


def test_gradients_and_checkpoints_are_recorded_once():
    ids = torch.randint(17, (B, Q))
    plain, again = NanoGPT(), NanoGPT(again=True)
    again.load_state_dict(plain.state_dict())
    gradients = []
    for model in (plain, again):
        with capture(model, Want(entropy=True)) as captured:
            (model(ids).sum() + sum(one.entropy.sum() for one in captured.values())).backward()
        assert {len(captured.calls(name)) for name in captured} == {1}
        block: Any = model.h[0]
        gradients.append(block.attn.qkv.weight.grad)
    assert gradients[0].abs().sum() > 0
    assert_close(*gradients)


def test_autocast_computes_in_its_dtype():
    model, ids = NanoGPT().eval(), torch.randint(17, (B, Q))
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(ids)
        with capture(model, WEIGHTS) as captured:
            assert_close(model(ids), plain, rtol=0.02, atol=0.02)
    assert captured["h.0.attn"].weights.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16), capture(Call(), WEIGHTS) as captured:
        pass
    call = Call()
    with torch.autocast("cpu", torch.bfloat16), capture(call, WEIGHTS) as captured:
        assert call(some(1, Q), some(1, K), some(1, K)).dtype == torch.bfloat16


class OwnCall(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attend_under_autocast_has_the_dtype_that_it_has_outside(dtype):
    call, (q, k, v) = OwnCall(), (some(1, 1, Q), some(1, 1, K).to(dtype), some(1, 1, K).to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        plain = call(q, k, v)
        with capture(call, WEIGHTS) as captured:
            inside = call(q, k, v)
    assert inside.dtype == plain.dtype == torch.bfloat16
    assert_close(inside, plain, rtol=0.02, atol=0.02)
    assert captured[""].weights.shape[2:] == (Q, K)


@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_a_model_without_numbers_is_recorded(kind):
    call = (Call() if kind == "torch" else OwnCall()).to("meta")
    with capture(call, WEIGHTS) as captured:
        call(*(some(1, 1, n).to("meta") for n in (Q, K, K)))
    assert captured[""].weights.is_meta


def test_a_model_without_such_calls_says_what_to_do():
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    model = Nothing()
    words = "the model ran, but called none of torch's attention functions: where it computes attention, call observe"
    with pytest.warns(UserWarning, match=words), capture(model) as captured:
        model(some(B, Q))
    assert repr(captured).startswith(f"Captured 0 attentions\n  {words}")
    with pytest.raises(KeyError, match=words):
        _ = captured["layers.0"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    model = Call()
    x = torch.nested.nested_tensor([some(H, Q), some(H, Q)])
    with capture(model), pytest.raises(ArgumentError, match="attention of nested tensors, which observe doesn't: pad"):
        model(x, x, x)


def test_a_second_capture_copies_and_other_models_inside():
    model, other, ids = NanoGPT(), NanoGPT(), torch.randint(17, (B, Q))
    with capture(model) as captured:
        with pytest.raises(ArgumentError, match=r"is being captured already: leave that context first"), capture(model):
            pass
        copied: Callable[[Tensor], Tensor] = copy.deepcopy(model)
        assert_close(copied(ids), model(ids))
        with capture(other) as inner:
            other(ids)
    assert {len(captured.calls(name)) for name in captured} == {1}
    assert len(captured) == len(inner) == 2
    with pytest.raises(ZeroDivisionError), capture(model):
        raise ZeroDivisionError
    with capture(model):
        pass


def test_replicas_in_threads_are_refused_and_one_replica_is_recorded():
    model, ids = nn.DataParallel(NanoGPT()), torch.randint(17, (B, Q))
    with capture(model) as captured:
        model(ids)
    assert list(captured) == ["module.h.0.attn", "module.h.1.attn"]
    model.device_ids = [0, 1]
    with pytest.raises(ArgumentError, match=r"model runs copies in threads of their own, .* capture model\.module$"):
        capture(model).__enter__()


def test_both_kinds_in_one_model():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.known = nn.MultiheadAttention(E, H, batch_first=True)
            self.own = Heads()

        def forward(self, x: Tensor) -> Tensor:
            return self.own(self.known(x, x, x, need_weights=False)[0])

    model, x = Mixed(), torch.randn(B, Q, E)
    with capture(model, WEIGHTS) as captured:
        model(x)
    assert list(captured) == ["known", "own"]
    with capture(model, layers="own") as captured:
        model(x)
    assert list(captured) == ["own"]
