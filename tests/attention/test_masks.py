import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.masks import causal, keep_from_ids, keep_from_lengths, keep_from_torch
from glassformer.attention.multihead import MultiheadAttention

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
SIZES = {"batch": B, "heads": H, "q_len": Q, "k_len": K}


@pytest.fixture
def _as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks of the test suite, which would come before our own."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# Making keep masks


def test_keep_from_ids_blocks_padding_wherever_it_stands():
    ids = torch.tensor([[4, 9, 3, 9, 9], [9, 0, 1, 2, 3]])
    keep = keep_from_ids(ids, pad=9)
    assert keep.shape == (2, 1, 1, 5)
    assert keep[:, 0, 0].tolist() == [[True, False, True, False, False], [False, True, True, True, True]]


def test_keep_from_lengths_keeps_the_first_keys():
    keep = keep_from_lengths(torch.tensor([0, 2, 3]), 3)
    assert keep.shape == (3, 1, 1, 3)
    assert keep[:, 0, 0].tolist() == [[False, False, False], [True, True, False], [True, True, True]]


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(0, K), min_size=1, max_size=5))
def test_lengths_and_padded_ids_give_one_mask(lengths):
    ids = torch.tensor([[1] * length + [9] * (K - length) for length in lengths])
    keep = keep_from_lengths(torch.tensor(lengths), K)
    assert keep.sum(-1).flatten().tolist() == lengths
    assert torch.equal(keep, keep_from_ids(ids, pad=9))


def test_causal_square_is_the_lower_triangle():
    assert causal(3, 3)[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_causal_queries_are_the_last_positions():
    assert causal(2, 4)[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]
    assert causal(1, 3)[0, 0].tolist() == [[True, True, True]]
    assert causal(Q, K).shape == (1, 1, Q, K)


def test_causal_refuses_more_queries_than_keys():
    with pytest.raises(ValueError, match=r"causal needs q_len <= k_len .*, got q_len 7 and k_len 5"):
        causal(7, 5)


# torch's masks, where True = may not look


def test_no_torch_mask_is_no_keep_mask():
    assert keep_from_torch(None, None, **SIZES) is None


def test_key_padding_mask_blocks_keys_of_its_sentence():
    padding = torch.rand(B, K) < 0.5
    keep = keep_from_torch(padding, None, **SIZES)
    for b, query, key in torch.cartesian_prod(torch.arange(B), torch.arange(Q), torch.arange(K)).tolist():
        assert keep.expand(B, H, Q, K)[b, :, query, key].tolist() == [not padding[b, key]] * H


def test_attn_mask_of_two_dimensions_serves_every_sentence_and_head():
    blocked = torch.rand(Q, K) < 0.5
    keep = keep_from_torch(None, blocked, **SIZES)
    assert torch.equal(keep.expand(B, H, Q, K), ~blocked.expand(B, H, Q, K))


def test_attn_mask_of_three_dimensions_holds_a_sentences_heads_side_by_side():
    blocked = torch.rand(B * H, Q, K) < 0.5
    keep = keep_from_torch(None, blocked, **SIZES)
    assert keep.shape == (B, H, Q, K)
    for b in range(B):
        for h in range(H):
            assert torch.equal(keep[b, h], ~blocked[b * H + h])


def test_attn_mask_may_be_a_transposed_view():
    blocked = torch.rand(B * H, K, Q) < 0.5
    keep = keep_from_torch(None, blocked.mT, **SIZES)
    assert torch.equal(keep, ~blocked.view(B, H, K, Q).mT)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_merged_masks_mean_what_torch_takes_them_to_mean(data):
    padding, attn_mask = draw_torch_masks(data)
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    theirs = nn.MultiheadAttention(H * D, H, batch_first=True, dtype=torch.float64)
    ours = MultiheadAttention(H * D, H, batch_first=True, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    query, key, value = (torch.randn(B, n, H * D, dtype=torch.float64) for n in (Q, K, K))
    masks = {"key_padding_mask": padding, "attn_mask": attn_mask, "average_attn_weights": False}
    expected_output, expected_weights = theirs(query, key, value, **masks)
    output, weights = ours(query, key, value, **masks)
    assert_close(output, expected_output)
    assert_close(weights, expected_weights)
    keep = keep_from_torch(padding, attn_mask, **SIZES)
    seen = torch.ones(B, H, Q, K, dtype=torch.bool) if keep is None else keep.expand(B, H, Q, K)
    assert torch.equal(seen, expected_weights > 0)


def draw_torch_masks(data: st.DataObject) -> tuple[Tensor | None, Tensor | None]:
    """torch gives NaN for a query that may look nowhere, so the last key is always open."""

    def draw(*shape: int) -> Tensor:
        size = torch.Size(shape).numel()
        mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(shape)
        mask[..., -1] = False
        return mask

    padding = draw(B, K) if data.draw(st.booleans()) else None
    attn_mask = data.draw(st.sampled_from([None, (Q, K), (B * H, Q, K)]))
    return padding, None if attn_mask is None else draw(*attn_mask)


# Errors


@pytest.mark.usefixtures("_as_shipped")
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_masks_must_be_boolean(dtype):
    name = str(dtype)
    with pytest.raises(
        ValueError, match=rf"key_padding_mask must be boolean .* got {name}: pass key_padding_mask.bool"
    ):
        keep_from_torch(torch.zeros(B, K, dtype=dtype), None, **SIZES)
    with pytest.raises(ValueError, match=rf"attn_mask must be boolean .* got {name}: pass attn_mask.bool"):
        keep_from_torch(None, torch.zeros(Q, K, dtype=dtype), **SIZES)


def test_shape_error_of_key_padding_mask_has_the_numbers():
    message = r"^key_padding_mask must be \(batch, key_len\) = \(2, 7\), got \(2, 5\)$"
    with pytest.raises(ValueError, match=message):
        keep_from_torch(torch.zeros(B, Q, dtype=torch.bool), None, **SIZES)


def test_shape_error_of_attn_mask_names_both_forms():
    message = (
        r"^attn_mask must be \(query_len, key_len\) = \(5, 7\) or "
        r"\(batch \* heads, query_len, key_len\) = \(6, 5, 7\), got \(2, 5, 7\)$"
    )
    with pytest.raises(ValueError, match=message):
        keep_from_torch(None, torch.zeros(B, Q, K, dtype=torch.bool), **SIZES)


@pytest.mark.parametrize("shape", [(K,), (1, 1, Q, K), (), (H, B, Q, K)])
def test_attn_mask_of_another_rank_is_refused(shape):
    with pytest.raises(ValueError, match=r"attn_mask must be .* got \(.*\)$"):
        keep_from_torch(None, torch.zeros(shape, dtype=torch.bool), **SIZES)


def test_transposed_masks_are_recognised():
    with pytest.raises(ValueError, match=r"got \(7, 2\): it looks transposed, pass mask\.mT"):
        keep_from_torch(torch.zeros(K, B, dtype=torch.bool), None, **SIZES)
    with pytest.raises(ValueError, match=r"got \(7, 5\): it looks transposed, pass mask\.mT"):
        keep_from_torch(None, torch.zeros(K, Q, dtype=torch.bool), **SIZES)
    with pytest.raises(ValueError, match=r"got \(6, 7, 5\): it looks transposed, pass mask\.mT"):
        keep_from_torch(None, torch.zeros(B * H, K, Q, dtype=torch.bool), **SIZES)
