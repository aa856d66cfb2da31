"""On a GPU: attend, observe and the drop-in, forward and backward, with every mask, against float64 and torch."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.attend import attend
from glassformer.attention.kernels import choose
from glassformer.attention.kernels.plain import facts_of_weights
from glassformer.attention.kernels.weigh import weigh
from glassformer.attention.masks import causal as causal_keep
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.observe import observe
from glassformer.attention.want import Want

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

CUDA = "cuda"
B, H, G, L, S = 2, 6, 2, 301, 523  # G heads share a key head; no length is a multiple of a kernel's block
FACTS = dict(entropy=True, received=True, distance=True, lse=True, head_mean=True)
EVERYTHING = Want(**FACTS, top=5, rows=(3, 300), pooled=7, pooled_heads=11)
MASKS = ("none", "padding", "each head", "blocked row", "causal", "bias", "bias and causal")
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
half = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def heads(count: int, length: int, width: int, dtype: torch.dtype) -> Tensor:
    """Numbers as projections leave them: the heads of a position side by side."""
    return torch.randn(B, length, count, width, device=CUDA).to(dtype).transpose(1, 2)


def masks(name: str, dtype: torch.dtype) -> dict[str, Any]:
    padding = torch.arange(S, device=CUDA) < torch.tensor([S, S // 3], device=CUDA)[:, None]
    each = torch.rand(B, H, L, S, device=CUDA) < 0.5
    blocked = torch.rand(1, 1, L, S, device=CUDA) < 0.5
    blocked[:, :, 17] = False
    bias = torch.randn(1, H, L, S, device=CUDA).to(dtype)
    return {
        "none": {},
        "padding": {"keep": padding[:, None, None]},
        "each head": {"keep": each},
        "blocked row": {"keep": blocked},
        "causal": {"causal": True},
        "bias": {"bias": bias.masked_fill(bias > 1.5, -math.inf)},
        "bias and causal": {"bias": bias, "causal": True},
    }[name]


def exact(q: Tensor, k: Tensor, v: Tensor, mask: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the weights and their log-sum-exp in float64, from explicit weights."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    keep = mask.get("keep")
    if mask.get("causal"):
        triangle = causal_keep(q.shape[2], k.shape[2], CUDA)
        keep = triangle if keep is None else keep & triangle
    bias = mask.get("bias")
    bias = None if bias is None else bias.double()
    weights = weigh(q, k, keep=keep, bias=bias)
    scores = q @ k.mT / math.sqrt(q.shape[3])
    scores = scores if bias is None else scores + bias
    scores = scores if keep is None else scores.masked_fill(~keep, -math.inf)
    return weights @ v, weights, scores.logsumexp(-1)


@half
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("width", [64, 80, 256])
def test_every_fact_is_that_of_explicit_weights(dtype, name, width):
    q, k, v = heads(H, L, width, dtype), heads(H // G, S, width, dtype), heads(H // G, S, width, dtype)
    mask = masks(name, dtype)
    assert choose.triton_is_there()
    assert choose.kernels_fit(q, v, EVERYTHING, 0.0)
    output, seen = observe(q, k, v, want=EVERYTHING, **mask)
    expected, weights, lse = exact(q, k, v, mask)
    rough = TOLERANCE[dtype]
    assert (output.dtype, output.shape) == (dtype, expected.shape)
    assert_close(output.double(), expected, atol=rough, rtol=rough)
    facts = facts_of_weights(weights, EVERYTHING, first=S - L if mask.get("causal") else 0, dtype=torch.float64)
    facts |= {"entropy": torch.special.entr(weights).sum(-1), "lse": lse}
    for fact, value in facts.items():
        if fact in ("top", "top_keys"):
            continue
        close = rough if fact == "head_mean" else 1e-3
        found = getattr(seen, fact).double()
        assert_close(found, value, atol=close, rtol=1e-3, msg=lambda text, fact=fact: f"{fact}: {text}")
    assert_close(seen.top.weights.double(), weights.topk(5).values, atol=1e-5, rtol=1e-3)


@half
@pytest.mark.parametrize("name", MASKS)
def test_gradients_are_those_of_explicit_weights(dtype, name):
    mask = masks(name, dtype)
    inputs = [heads(H, L, 64, dtype), heads(H // G, S, 64, dtype), heads(H // G, S, 64, dtype)]
    inputs = [x.detach().requires_grad_() for x in inputs]
    towards = [torch.randn(B, H, L, 64, device=CUDA), torch.randn(B, H, L, device=CUDA)]
    towards += [torch.randn(B, H, S, device=CUDA)]
    output, seen = observe(*inputs, want=Want(entropy=True, received=True), **mask)
    ours = torch.autograd.grad([output, seen.entropy, seen.received], inputs, [towards[0].to(dtype), *towards[1:]])
    expected, weights, _ = exact(*inputs, mask)
    entropy = -(weights * weights.clamp(min=1e-200).log()).sum(-1)  # its gradient at a weight of zero is zero
    outputs = [expected, entropy, weights.sum(2)]
    theirs = torch.autograd.grad(outputs, inputs, [towards[0].to(dtype).double(), *(x.double() for x in towards[1:])])
    for found, gradient in zip(ours, theirs, strict=True):
        distance = (found.double() - gradient.double()).norm() / gradient.double().norm()
        assert distance < {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]


@half
@pytest.mark.parametrize("name", MASKS)
def test_the_output_alone_and_its_gradients(dtype, name):
    mask = masks(name, dtype)
    inputs = [heads(H, length, 64, dtype).detach().requires_grad_() for length in (L, S, S)]
    towards = torch.randn(B, H, L, 64, device=CUDA)
    output = attend(*inputs, **mask)
    expected, _, _ = exact(*inputs, mask)
    assert_close(output.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    ours = torch.autograd.grad(output, inputs, towards.to(dtype))
    theirs = torch.autograd.grad(expected, inputs, towards.to(dtype).double())
    for found, gradient in zip(ours, theirs, strict=True):
        assert found.isfinite().all()
        assert (found.double() - gradient.double()).norm() / gradient.double().norm() < TOLERANCE[dtype]


@half
def test_dropout_leaves_its_share_and_scales_the_rest(dtype):
    q, k = heads(H, L, 64, dtype), heads(H, S, 64, dtype)
    ones = torch.ones(B, H, S, 16, dtype=dtype, device=CUDA)
    torch.manual_seed(3)
    output, seen = observe(q, k, ones, dropout=0.25, want=Want(received=True))
    assert_close(output.float().mean(), torch.tensor(1.0, device=CUDA), atol=1e-2, rtol=0)
    assert_close(seen.received.sum(-1).mean(), torch.tensor(float(L), device=CUDA), atol=3.0, rtol=0)
    torch.manual_seed(3)
    assert torch.equal(observe(q, k, ones, dropout=0.25, want=Want(received=True))[0], output)


# The drop-in

LAYERS = list(itertools.product((True, False), ("none", "padding", "causal", "float"), (True, False), (True, False)))


@half
@pytest.mark.parametrize(("batch_first", "mask", "need_weights", "training"), LAYERS)
def test_the_drop_in_gives_what_torch_gives(dtype, batch_first, mask, need_weights, training):
    theirs = nn.MultiheadAttention(96, 6, batch_first=batch_first, dtype=dtype, device=CUDA).train(training)
    ours = MultiheadAttention(96, 6, batch_first=batch_first, dtype=dtype, device=CUDA).train(training)
    ours.load_state_dict(theirs.state_dict())
    shape = (3, 37, 96) if batch_first else (37, 3, 96)
    x = torch.randn(shape, device=CUDA).to(dtype).requires_grad_()
    triangle = nn.Transformer.generate_square_subsequent_mask(37, device=CUDA, dtype=dtype)
    call: dict[str, Any] = {
        "none": {},
        "padding": {"key_padding_mask": torch.arange(37, device=CUDA) >= torch.tensor([[37], [9], [30]], device=CUDA)},
        "causal": {"attn_mask": triangle, "is_causal": True},
        "float": {"attn_mask": torch.randn(37, 37, device=CUDA).to(dtype)},
    }[mask]
    found, expected = (module(x, x, x, need_weights=need_weights, **call) for module in (ours, theirs))
    close = dict(atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert_close(found[0], expected[0], **close)
    assert (found[1] is None) == (expected[1] is None)
    if need_weights:
        assert_close(found[1], expected[1], **close)
    towards = torch.randn(shape, device=CUDA).to(dtype)
    gradients = [
        torch.autograd.grad(output[0], [x, *module.parameters()], towards)
        for output, module in ((found, ours), (expected, theirs))
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one - other).float().norm() <= 3 * TOLERANCE[dtype] * other.float().norm()


@half
@pytest.mark.parametrize(("q_len", "k_len"), [(29, 37), (37, 29)])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_causal_hint_counts_from_the_first_key(dtype, q_len, k_len, batch_first):
    layer = MultiheadAttention(96, 6, batch_first=batch_first, dtype=dtype, device=CUDA).eval()
    q, k = (torch.randn((3, n, 96) if batch_first else (n, 3, 96), device=CUDA).to(dtype) for n in (q_len, k_len))
    mask = torch.ones(q_len, k_len, dtype=torch.bool, device=CUDA).triu(1)
    with torch.inference_mode():
        hinted = layer(q, k, k, attn_mask=mask, is_causal=True, need_weights=False)[0]
        masked = layer(q, k, k, attn_mask=mask, need_weights=False)[0]
    assert_close(hinted, masked, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_the_drop_in_under_autocast():
    layer = MultiheadAttention(96, 6, batch_first=True, device=CUDA).eval()
    x = torch.randn(3, 37, 96, device=CUDA)
    with torch.inference_mode():
        expected = layer(x, x, x)
        with torch.autocast(CUDA, torch.bfloat16):
            found = layer(x, x, x)
    assert_close(found[0].float(), expected[0], atol=3e-2, rtol=3e-2)
    assert_close(found[1].float(), expected[1], atol=3e-2, rtol=3e-2)
