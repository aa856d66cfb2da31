from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from glassformer.attention.kernels import choose
from glassformer.generation.kernels import passes

pytestmark = pytest.mark.skipif(passes.compiled() is None, reason="numba isn't installed")
B, W, H, S, D, ROOM = 2, 3, 5, 23, 11, 37  # distinct primes


@pytest.fixture
def plain(monkeypatch):
    """Compute something by torch's operators."""

    def computed(function, *arguments):
        with monkeypatch.context() as patched:
            patched.setattr(passes, "compiled", lambda: None)
            return function(*arguments)

    return computed


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(1)


def test_quantize_is_torchs_to_the_last_bit(plain):
    x = torch.randn(7, 131) * torch.logspace(-20, 20, 7)[:, None]
    x[3] = 0.0
    codes, scales = passes.quantize(x)
    assert_close((codes, scales), plain(passes.quantize, x), rtol=0, atol=0)
    assert (codes.float() - 128).abs().amax(1).tolist() == [127, 127, 127, 0, 127, 127, 127]
    assert ((codes.float() - 128) * scales[:, None] - x).abs().amax(1).le(scales * 0.5001).all()


@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_rescaling_is_torchs(plain, activation):
    product, scales, bias, to = torch.randn(7, 131) * 30, torch.rand(7), torch.randn(131), torch.randn(7, 131)
    for function, given in (
        (passes.rescale, (scales, bias)),
        (passes.rescale_add, (scales, bias, to)),
    ):
        ours, theirs = product.clone(), product.clone()
        function(ours, *given)
        plain(function, theirs, *given)
        assert torch.equal(ours, theirs)
    found = passes.rescale_activated(product.clone(), scales, bias, activation)
    assert_close(
        found, plain(passes.rescale_activated, product.clone(), scales, bias, activation), rtol=1e-6, atol=3e-6
    )


def keys_and_values(room: int = ROOM) -> list[torch.Tensor]:
    return [torch.randn(B, room, H, D).transpose(1, 2)[:, :, :S] for _ in range(2)]


@pytest.mark.parametrize("of_each", [True, False])
@pytest.mark.parametrize("room", [S, ROOM])
def test_attention_is_torchs(of_each, room):
    q, (k, v) = torch.randn(B, H, W, D), keys_and_values(room)
    visible = torch.rand(B, 1, W if of_each else 1, S) < 0.6
    visible[..., 5] = True
    bias = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
    assert_close(passes.attend(q, k, v, bias), F.scaled_dot_product_attention(q, k, v, attn_mask=visible))
    assert_close(passes.attend(q, k, v, None), F.scaled_dot_product_attention(q, k, v))
    packed = torch.randn(B, W, 3, H, D).permute(2, 0, 3, 1, 4)  # strided as a projection's
    assert_close(passes.attend(*packed, None), F.scaled_dot_product_attention(*packed))


def test_attention_is_the_same_beside_others_and_with_padding():
    q, (k, v) = torch.randn(B, H, W, D), keys_and_values()
    bias = torch.zeros(B, 1, 1, S)
    bias[0, ..., 7:] = -torch.inf
    alone = passes.attend(q[:1], k[:1, :, :7], v[:1, :, :7], None)
    assert torch.equal(passes.attend(q, k, v, bias)[:1], alone)
    scattered = torch.full((1, 1, 1, ROOM), -torch.inf)
    slots = torch.randperm(ROOM)[:7].sort().values
    scattered[..., slots] = 0.0
    other = [torch.randn(1, ROOM, H, D).transpose(1, 2) for _ in range(2)]
    for kept, given in zip(other, (k, v), strict=True):
        kept[:, :, slots] = given[:1, :, :7]
    assert torch.equal(passes.attend(q[:1], *other, scattered), alone)


@pytest.mark.parametrize("forbidden", [None, 0, 200])
@pytest.mark.parametrize("k", [1, 8])
def test_the_best_classes_are_torchs(plain, k, forbidden):
    logits = torch.randn(7, 3 * 128) * torch.tensor([0.1, 1.0, 10.0, 40.0, 1.0, 1.0, 1.0])[:, None]
    logits[4, 200], logits[5, 300:] = 50.0, -torch.inf
    found = passes.best_classes(logits, k, forbidden)
    expected = plain(passes.best_classes, logits, k, forbidden)
    assert torch.equal(found[1], expected[1])
    assert_close(found[0], expected[0], rtol=2e-6, atol=5e-6)


def test_of_equal_classes_the_first_come_first_and_classes_without_chance_are_last():
    logits = torch.full((1, 256), -torch.inf)
    logits[0, [3, 140, 141, 255]] = 1.0
    log_probs, classes = passes.best_classes(logits, 6, 140)
    assert classes[0, :3].tolist() == [3, 141, 255]
    assert_close(log_probs[0], torch.tensor([0.25, 0.25, 0.25, 0.0, 0.0, 0.0]).log())


def test_log_probabilities_of_what_is_not_a_number_are_none():
    logits = torch.randn(2, 256)
    logits[1, 77] = torch.nan
    log_probs, _ = passes.best_classes(logits, 3, None)
    assert log_probs[0].isfinite().all()
    assert log_probs[1].isnan().all()


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let numba be missing, or one that can't be imported."""
    monkeypatch.setattr(choose, "compiler_is_there", lambda: False)
    passes.compiled.cache_clear()
    yield
    passes.compiled.cache_clear()


@pytest.mark.usefixtures("without_numba")
def test_without_numba_torch_does_it():
    x, bias = torch.randn(3, 256), torch.randn(256)
    assert passes.compiled() is None
    codes, scales = passes.quantize(x)
    assert_close((codes.float() - 128) * scales[:, None], x, atol=0.02, rtol=0)
    product = x.clone()
    passes.rescale(product, scales, bias)
    assert_close(product, x * scales[:, None] + bias)
