import pytest
import torch
from torch.testing import assert_close

from glassformer.attention.masks import (
    add_open_columns,
    causal,
    causal_from_start,
    fit_bias,
    keep_from_ids,
    keep_from_lengths,
    keep_from_scores,
    keep_from_torch,
    masks_from_torch,
    open_blocked_rows,
)
from glassformer.errors import ArgumentError

B, H, Q, K = 2, 3, 5, 7  # distinct primes: a swapped axis cannot pass
SIZES = {"batch": B, "heads": H, "q_len": Q, "k_len": K}


# Making keep masks


def test_keep_from_ids_blocks_padding_wherever_it_stands():
    keep = keep_from_ids(torch.tensor([[4, 9, 3, 9, 9], [9, 0, 1, 2, 3]]), pad=9)
    assert keep.tolist() == [[[[True, False, True, False, False]]], [[[False, True, True, True, True]]]]


def test_keep_from_lengths_keeps_the_first_keys():
    keep = keep_from_lengths(torch.tensor([0, 2, 3]), 3)
    assert keep.tolist() == [[[[False, False, False]]], [[[True, True, False]]], [[[True, True, True]]]]


def test_causal_queries_are_the_last_positions():
    assert causal(3, 3).tolist() == [[[[True, False, False], [True, True, False], [True, True, True]]]]
    assert causal(2, 4).tolist() == [[[[True, True, True, False], [True, True, True, True]]]]


def test_causal_refuses_more_queries_than_keys():
    with pytest.raises(ArgumentError, match=r"causal needs q_len <= k_len .*, got q_len 7 and k_len 5"):
        causal(7, 5)


# Additive masks


def test_keep_from_scores_is_where_nothing_is_subtracted():
    mask = torch.tensor([[0.0, -torch.inf, -0.0], [-torch.inf, -torch.inf, 0.0]])
    assert keep_from_scores(mask).tolist() == [[True, False, True], [False, False, True]]


@pytest.mark.parametrize("number", [-1e9, 1.0, torch.inf, torch.nan, torch.finfo(torch.float32).min])
def test_keep_from_scores_refuses_what_a_keep_mask_cannot_say(number):
    with pytest.raises(ArgumentError, match=r"mask must hold only 0 .* and -inf .*, got .*: pass it as bias="):
        keep_from_scores(torch.tensor([0.0, number]))


def test_floating_masks_are_added_up_and_what_boolean_ones_block_is_blocked():
    padding, scores = torch.randn(B, K), torch.randn(B * H, Q, K)
    keep, bias = masks_from_torch(padding, scores, **SIZES)
    assert keep is None
    assert_close(bias, padding[:, None, None] + scores.view(B, H, Q, K))
    keep, bias = masks_from_torch(padding > 0, scores, **SIZES)
    assert torch.equal(keep, (padding <= 0)[:, None, None])
    assert torch.equal(bias, scores.view(B, H, Q, K))
    keep, bias = masks_from_torch(padding > 0, scores > 0, **SIZES)
    assert torch.equal(keep, (padding <= 0)[:, None, None] & (scores <= 0).view(B, H, Q, K))
    assert bias is None


def test_open_columns_are_open_in_both():
    keep, bias = add_open_columns(torch.zeros(B, 1, 1, K, dtype=torch.bool), torch.full((1, 1, Q, K), -torch.inf), 2)
    added = torch.arange(K + 2) >= K
    assert torch.equal(keep, added.expand(B, 1, 1, K + 2))
    assert torch.equal(bias == 0, added.expand(1, 1, Q, K + 2))
    assert (bias[..., :K] == -torch.inf).all()


def test_a_bias_fits_float16_without_blocking_what_was_not_blocked():
    bias = torch.tensor([[[[0.0, -1e9, -torch.inf]]]])
    assert fit_bias(bias, torch.float16, torch.float16, float32_too=True) is bias
    fitted = fit_bias(bias, torch.float32, torch.float16, float32_too=False)  # as under autocast
    assert fitted.dtype == torch.float16
    assert fitted.isinf().flatten().tolist() == [False, False, True]
    lowest_score = torch.tensor(-30000.0, dtype=torch.float16)
    assert (fitted[..., 1] + lowest_score).isfinite().all()


@pytest.mark.parametrize(("dtype", "float32_too"), [(torch.float32, False), (torch.float64, True)])
def test_a_bias_of_another_dtype_is_refused(dtype, float32_too):
    message = rf"must have the query's dtype torch\.bfloat16, got {dtype}: pass mask\.to"
    with pytest.raises(ArgumentError, match=message):
        fit_bias(torch.zeros(1, 1, Q, K, dtype=dtype), torch.bfloat16, torch.bfloat16, float32_too=float32_too)


@pytest.mark.parametrize("boolean", [True, False])
def test_rows_with_nothing_open_are_opened_and_named(boolean):
    keep = torch.tensor([[True, False], [False, False], [True, True]])
    mask = keep if boolean else torch.zeros(3, 2).masked_fill(~keep, -torch.inf)
    opened, blocked = open_blocked_rows(mask)
    assert blocked.flatten().tolist() == [False, True, False]
    assert torch.equal(opened if boolean else opened == 0, keep | blocked)


def test_causal_from_start_aligns_the_first_positions():
    assert causal_from_start(2, 3)[0, 0].tolist() == [[True, False, False], [True, True, False]]
    assert causal_from_start(3, 2)[0, 0].tolist() == [[True, False], [True, True], [True, True]]


# Errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", ["key_padding_mask", "attn_mask"])
def test_keep_from_torch_takes_boolean_masks(name, dtype):
    masks = {"key_padding_mask": None, "attn_mask": None, name: torch.zeros(B if name[0] == "k" else Q, K, dtype=dtype)}
    message = rf"^{name} must be boolean \(True = may not look\), got {dtype}: .*keep_from_scores"
    with pytest.raises(ArgumentError, match=message):
        keep_from_torch(**masks, **SIZES)


@pytest.mark.parametrize("name", ["key_padding_mask", "attn_mask"])
def test_uint8_counts_as_boolean_and_is_deprecated(name):
    blocked = torch.rand(B if name[0] == "k" else Q, K) < 0.5
    masks = {"key_padding_mask": None, "attn_mask": None}
    with pytest.warns(DeprecationWarning, match=rf"uint8 for {name} is deprecated: pass {name}\.bool\(\)"):
        keep = keep_from_torch(**{**masks, name: blocked.to(torch.uint8)}, **SIZES)
    assert torch.equal(keep, keep_from_torch(**{**masks, name: blocked}, **SIZES))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_masks_are_boolean_or_floating(dtype):
    with pytest.raises(ArgumentError, match=rf"only bool and floating types of attn_mask are supported .* got {dtype}"):
        masks_from_torch(None, torch.zeros(Q, K, dtype=dtype), **SIZES)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("key_padding_mask", (B, Q), r"^key_padding_mask must be \(batch, key_len\) = \(2, 7\), got \(2, 5\)$"),
        ("key_padding_mask", (K, B), r"got \(7, 2\): it looks transposed, pass key_padding_mask\.mT"),
        ("attn_mask", (K, Q), r"got \(7, 5\): it looks transposed, pass attn_mask\.mT"),
        ("attn_mask", (B * H, K, Q), r"got \(6, 7, 5\): it looks transposed, pass attn_mask\.mT"),
        (
            "attn_mask",
            (B, Q, K),
            r"^attn_mask must be \(query_len, key_len\) = \(5, 7\) or "
            r"\(batch \* heads, query_len, key_len\) = \(6, 5, 7\), got \(2, 5, 7\)$",
        ),
        *(
            ("attn_mask", shape, r"attn_mask must be .* got \(.*\)$")
            for shape in ((K,), (1, 1, Q, K), (), (H, B, Q, K))
        ),
    ],
)
def test_wrong_shapes_are_explained(name, shape, message):
    masks = {"key_padding_mask": None, "attn_mask": None, name: torch.zeros(shape, dtype=torch.bool)}
    with pytest.raises(ArgumentError, match=message):
        keep_from_torch(**masks, **SIZES)
