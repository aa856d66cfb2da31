"""Attention where F.multi_head_attention_forward is called: output, weights and facts as without a capture."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer import Want, capture

B, H, Q, D = 2, 3, 5, 11
E = H * D
WEIGHTS = Want(weights=True)


class OwnMultihead(nn.MultiheadAttention):
    """A subclass with a forward pass of its own, as in open_clip or ESM."""

    def forward(self, x: Tensor, **settings: Any) -> Any:
        return F.multi_head_attention_forward(
            *(x, x, x, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, None, None, False, 0.0),
            *(self.out_proj.weight, self.out_proj.bias),
            **settings,
        )


@pytest.mark.parametrize("settings", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_multi_head_attention_forward(settings):
    model, x = OwnMultihead(E, H), torch.randn(Q, B, E)
    output, weights = model(x, **settings)
    with capture(model, WEIGHTS) as captured:
        same, again = model(x, **settings)
    assert_close(same, output)
    assert_close(again, weights)
    assert_close(captured[""].weights, model(x, average_attn_weights=False)[1])


def test_autocast_computes_in_its_dtype():
    model, x = OwnMultihead(E, H), torch.randn(Q, B, E)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = model(x)
        with capture(model, WEIGHTS) as captured:
            again, seen = model(x)
    assert again.dtype == output.dtype == torch.bfloat16
    assert_close(again, output, rtol=0.02, atol=0.02)
    assert_close(seen, weights, rtol=0.02, atol=0.02, check_dtype=False)
    assert_close(captured[""].weights.mean(1), weights, rtol=0.02, atol=0.02, check_dtype=False)


class Inheriting(nn.MultiheadAttention):
    """A subclass that calls torch's forward pass, which has a fast path of one operator."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


@torch.no_grad()
def test_the_fast_path_is_not_taken():
    model, x = Inheriting(E, H, batch_first=True).eval(), torch.randn(B, Q, E)
    plain = model(x)
    with capture(model, WEIGHTS) as captured:
        assert_close(model(x), plain)
    assert_close(captured[""].weights, nn.MultiheadAttention.forward(model, x, x, x, average_attn_weights=False)[1])


def test_padding_and_other_widths_of_keys_and_values():
    x, keys, values = torch.randn(Q, B, E), torch.randn(7, B, 13), torch.randn(7, B, 17)
    padding = torch.zeros(B, 7, dtype=torch.bool)
    padding[1, 4:] = True

    class Separate(nn.MultiheadAttention):
        def forward(self, *arguments: Any, **settings: Any) -> Any:
            return super().forward(*arguments, **settings)

    model = Separate(E, H, kdim=13, vdim=17, add_bias_kv=True, add_zero_attn=True)
    expected = model(x, keys, values, key_padding_mask=padding, average_attn_weights=False)
    with capture(model, WEIGHTS) as captured:
        assert_close(model(x, keys, values, key_padding_mask=padding, average_attn_weights=False), expected)
    assert_close(captured[""].weights, expected[1])
