import copy
import math
import re

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.multihead import MultiheadAttention
from glassformer.reference.multi_head import MultiHeadAttention, PrepareForMultiHeadAttention
from glassformer.reference.weights import multi_head_to_fast

B, H, Q, K, D = 2, 3, 5, 7, 11  # distinct primes: a swapped axis cannot pass
E = H * D
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FORMS = ["none", "open", "padding", "causal", "one for all", "random", "blocked rows"]


def sequences(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Query, key and value, sequence first."""
    return [torch.randn(length, B, E, dtype=dtype, requires_grad=True) for length in (Q, K, K)]


def mask_of(form: str) -> Tensor | None:
    """(seq_q or 1, seq_k, batch or 1), True = may look."""
    random = torch.rand(Q, K, B) < 0.5
    blocked_rows = random.clone()
    blocked_rows[2] = False  # one query of every sentence, and every query of the second
    blocked_rows[:, :, 1] = False
    return {
        "none": None,
        "open": torch.ones(Q, K, B, dtype=torch.bool),
        "padding": (torch.arange(K)[:, None] < torch.tensor([K, 3]))[None],
        "causal": torch.ones(Q, K, dtype=torch.bool).tril()[..., None],
        "one for all": torch.tensor([True, False, True, True, False, True, False])[None, :, None],
        "random": random,
        "blocked rows": blocked_rows,
    }[form]


def expanded(mask: Tensor | None) -> Tensor:
    return torch.ones(Q, K, B, dtype=torch.bool) if mask is None else mask.expand(Q, K, B)


# Splitting into heads


def test_the_last_axis_is_split_into_heads():
    prepare = PrepareForMultiHeadAttention(512, heads=8, d_k=64, bias=True)
    assert prepare(torch.randn(10, 32, 512)).shape == (10, 32, 8, 64)


@pytest.mark.parametrize("leading", [(), (Q,), (Q, B), (Q, B, 2)])
def test_any_number_of_leading_axes(leading):
    prepare = PrepareForMultiHeadAttention(E, heads=H, d_k=D, bias=True)
    x = torch.randn(*leading, E)
    heads = prepare(x)
    assert heads.shape == (*leading, H, D)
    for h in range(H):
        of_head = slice(h * D, (h + 1) * D)
        expected = x @ prepare.linear.weight[of_head].T + prepare.linear.bias[of_head]
        assert_close(heads[..., h, :], expected)


@pytest.mark.parametrize("bias", [True, False])
def test_values_always_have_a_bias(bias):
    module = MultiHeadAttention(H, E, bias=bias)
    assert (module.query.linear.bias is not None) == bias
    assert (module.key.linear.bias is not None) == bias
    assert module.value.linear.bias is not None
    assert module.output.bias is not None


# The steps


def test_scores_of_every_query_with_every_key():
    i, j, b, h, d = 2, 3, 1, 2, 4
    query, key = torch.randn(i, b, h, d), torch.randn(j, b, h, d)
    scores = MultiHeadAttention(h, h * d).get_score(query, key)
    assert scores.shape == (2, 3, 1, 2)
    for n in range(i):
        for m in range(j):
            for head in range(h):
                assert_close(scores[n, m, 0, head], query[n, 0, head] @ key[m, 0, head])


def test_attention_worked_by_hand():
    # Two heads of width 4: scores are halved, sqrt(4), whatever d_model. Values are ten times what comes in.
    module = MultiHeadAttention(2, 8).double().eval()
    for linear, factor in ((module.query, 1.0), (module.key, 1.0), (module.value, 10.0)):
        nn.init.zeros_(linear.linear.bias)
        linear.linear.weight.data = factor * torch.eye(8, dtype=torch.float64)
    nn.init.eye_(module.output.weight)
    nn.init.zeros_(module.output.bias)
    query = torch.tensor([[[2.0, 0, 0, 0, 0, 0, 0, 0]]], dtype=torch.float64)
    key = torch.tensor([[[math.log(3), 0, 0, 0, 5, 0, 0, 0]], [[0.0] * 8]], dtype=torch.float64)
    value = torch.tensor([[[8.0, 0, 0, 0, 6, 0, 0, 0]], [[4.0, 0, 0, 0, 2, 0, 0, 0]]], dtype=torch.float64)
    output = module(query, key, value)
    # First head: scores 2 log(3) / 2 and 0, weights 3 : 1. Second head: its query is zero, so both keys weigh the same.
    assert_close(module.attn[0, :, 0].T, torch.tensor([[3 / 4, 1 / 4], [1 / 2, 1 / 2]], dtype=torch.float64))
    # 80 * 3/4 + 40 * 1/4 and (60 + 20) / 2
    assert_close(output, torch.tensor([[[70.0, 0, 0, 0, 40, 0, 0, 0]]], dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_each_head_looks_as_one_query_after_the_other(look, form, bias):
    module = MultiHeadAttention(H, E, bias=bias).double().eval()
    inputs, mask = sequences(), mask_of(form)
    output = module(*inputs, mask)
    q, k, v = (
        (x @ part.linear.weight.T + (0.0 if part.linear.bias is None else part.linear.bias)).unflatten(-1, (H, D))
        for x, part in zip(inputs, (module.query, module.key, module.value), strict=True)
    )
    heads = torch.empty(Q, B, H, D, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            heads[:, b, h], weights = look(q[:, b, h], k[:, b, h], v[:, b, h], expanded(mask)[:, :, b])
            assert_close(module.attn[:, :, b, h], weights)
    assert output.shape == (Q, B, E)
    assert_close(output, heads.flatten(-2) @ module.output.weight.T + module.output.bias)


def test_arguments_may_be_named():
    module = MultiHeadAttention(heads=H, d_model=E, dropout_prob=0.0, bias=True).double()
    query, key, value = sequences()
    mask = mask_of("random")
    assert torch.equal(
        module(mask=mask, value=value, key=key, query=query),
        module(query, key, value, mask),
    )


def test_what_a_module_knows():
    module = MultiHeadAttention(H, E)
    assert (module.heads, module.d_k) == (H, D)
    assert module.scale == pytest.approx(1 / math.sqrt(11))
    assert module.dropout.p == 0.1
    assert module.softmax.dim == 1


# Steps replaced


class Near(MultiHeadAttention):
    """Keys near the query, not those in its direction."""

    def get_score(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query[:, None] - key[None]).square().sum(-1)


class BlockedIsTrue(MultiHeadAttention):
    def prepare_mask(self, mask: Tensor, query_shape: torch.Size, key_shape: torch.Size) -> Tensor:
        return super().prepare_mask(~mask, query_shape, key_shape)


class Evenly(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return torch.full_like(scores, 1 / scores.shape[1])


def test_a_subclass_may_replace_the_scores():
    module = Near(H, E).double().eval()
    query, key, value = sequences()
    module(query, key, value)
    q, k = module.query(query).permute(1, 2, 0, 3), module.key(key).permute(1, 2, 0, 3)  # (B, H, length, D)
    expected = (-(torch.cdist(q, k) ** 2) / math.sqrt(D)).softmax(-1)
    assert_close(module.attn, expected.permute(2, 3, 0, 1))


def test_a_subclass_may_replace_the_mask():
    module, other = MultiHeadAttention(H, E).double().eval(), BlockedIsTrue(H, E).double().eval()
    other.load_state_dict(module.state_dict())
    inputs, mask = sequences(), mask_of("random")
    assert torch.equal(other(*inputs, ~mask), module(*inputs, mask))


def test_the_softmax_may_be_replaced():
    module = MultiHeadAttention(H, E).double().eval()
    module.softmax = Evenly()
    query, key, value = sequences()
    mean = module.value(value).mean(0).flatten(-2)
    assert_close(module(query, key, value), module.output(mean).expand(Q, B, E))


# The weights that are kept, and dropout


def test_there_are_no_weights_before_the_first_call():
    assert MultiHeadAttention(H, E).attn is None


def test_the_last_weights_are_kept_without_their_graph():
    module = MultiHeadAttention(H, E, dropout_prob=0.0).double()
    query, key, value = sequences()
    module(query, key, value)
    first = module.attn
    assert first.shape == (Q, K, B, H)
    assert first.grad_fn is None
    assert not first.requires_grad
    assert_close(first.sum(1), torch.ones(Q, B, H, dtype=torch.float64))
    module(query[:3], key, value)
    assert_close(module.attn, first[:3], rtol=1e-12, atol=1e-12)  # sums of fewer rows may come in another order
    assert not any("attn" in name for name in module.state_dict())
    assert torch.equal(copy.deepcopy(module).attn, module.attn)


def test_dropout_acts_on_the_weights_and_is_seen_in_them():
    module = MultiHeadAttention(H, E, dropout_prob=0.5).double()
    inputs = sequences()
    output = module(*inputs)
    dropped = module.attn
    module.eval()
    module(*inputs)
    whole = module.attn
    assert 0.4 < (dropped == 0).double().mean() < 0.6
    assert_close(dropped[dropped > 0], 2 * whole[dropped > 0])  # what stays is scaled by 1 / (1 - 0.5)
    heads = (dropped[..., None] * module.value(inputs[2])[None]).sum(1)
    assert_close(output, module.output(heads.flatten(-2)))


def test_dropout_acts_in_training_only():
    module, inputs = MultiHeadAttention(H, E, dropout_prob=0.5).double(), sequences()
    assert not torch.equal(module(*inputs), module(*inputs))
    module.eval()
    assert torch.equal(module(*inputs), module(*inputs))
    assert (module.attn > 0).all()


# Masks: exactly 0 blocks


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", FORMS[1:])
def test_a_mask_may_have_any_dtype(form, dtype):
    module, inputs, mask = MultiHeadAttention(H, E).double().eval(), sequences(), mask_of(form)
    output = module(*inputs, mask.to(dtype))
    assert torch.equal(module.attn > 0, expanded(mask)[..., None].expand(Q, K, B, H))
    assert torch.equal(output, module(*inputs, mask))


def test_whatever_is_not_zero_looks_and_nothing_is_added():
    module, inputs = MultiHeadAttention(H, E).double().eval(), sequences()
    numbers = torch.tensor([0.0, -0.0, 1e-30, -1.0, -1e9, -math.inf, math.nan])
    output = module(*inputs, numbers[None, :, None])
    looked = torch.tensor([False, False, True, True, True, True, True])
    assert torch.equal(output, module(*inputs, looked[None, :, None]))
    assert torch.equal(module.attn > 0, looked[None, :, None, None].expand(Q, K, B, H))


def test_a_prepared_mask_has_an_axis_for_heads():
    module, mask = MultiHeadAttention(H, E), mask_of("random")
    prepared = module.prepare_mask(mask, torch.Size((Q, B, E)), torch.Size((K, B, E)))
    assert prepared.shape == (Q, K, B, 1)
    assert torch.equal(prepared[..., 0], mask)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, K, B), r"mask axis 0 \(query\) must be 1 or seq_q = 5, got 2 in \(2, 7, 2\)"),
        ((Q, 5, B), r"mask axis 1 \(key\) must be seq_k = 7, got 5 in \(5, 5, 2\)"),
        ((Q, 1, B), r"mask axis 1 \(key\) must be seq_k = 7, got 1 in \(5, 1, 2\)"),
        ((Q, K, 3), r"mask axis 2 \(batch\) must be 1 or batch = 2, got 3 in \(5, 7, 3\)"),
        ((B, K, Q), r"mask axis 0 \(query\) must be 1 or seq_q = 5, got 2 in \(2, 7, 5\)"),
        ((Q, K), r"mask must have 3 axes \(seq_q or 1, seq_k, batch or 1\), got 2: \(5, 7\)"),
        ((Q, K, B, H), r"mask must have 3 axes \(seq_q or 1, seq_k, batch or 1\), got 4: \(5, 7, 2, 3\)"),
    ],
)
def test_each_wrong_mask_axis_is_named(shape, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        MultiHeadAttention(H, E).double()(*sequences(), torch.ones(shape))


def test_the_axes_are_query_key_batch_even_where_all_are_as_long():
    n = 5  # batch = length, where a mask of axes (batch, key, query) would pass every check
    x = torch.randn(n, n, E)
    mask = torch.ones(n, n, n)
    query, key, sentence = 1, 2, 3
    mask[query, key, sentence] = 0
    module = MultiHeadAttention(H, E).eval()
    module(x, x, x, mask)
    assert (module.attn == 0).nonzero().tolist() == [[query, key, sentence, h] for h in range(H)]


# Rows with nothing to see, gradients, precision


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_may_look_nowhere_gets_the_outputs_bias_alone(dtype, training):
    module = MultiHeadAttention(H, E).to(dtype).train(training)
    inputs, mask = sequences(dtype), mask_of("blocked rows")
    output = module(*inputs, mask)
    nowhere = ~mask.any(1)
    assert nowhere.sum() >= Q + 1
    assert (module.attn.transpose(1, 2)[nowhere] == 0).all()
    assert torch.equal(output[nowhere], module.output.bias.expand(int(nowhere.sum()), E))
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, either
        output.sum().backward()
    for x in (*inputs, *module.parameters()):
        assert x.grad.isfinite().all()
    assert (inputs[0].grad[nowhere] == 0).all()
    assert (inputs[0].grad != 0).any()


def test_a_mask_that_blocks_nothing_changes_no_gradient():
    module, inputs = MultiHeadAttention(H, E, dropout_prob=0.0).double(), sequences()
    towards = torch.randn(Q, B, E, dtype=torch.float64)
    without = torch.autograd.grad(module(*inputs), inputs, towards)
    masked = torch.autograd.grad(module(*inputs, mask_of("open")), inputs, towards)
    for x, expected in zip(masked, without, strict=True):
        assert (x != 0).any()
        assert_close(x, expected)


def test_gradients_are_the_slopes_of_the_result():
    module = MultiHeadAttention(2, 6, dropout_prob=0.0).double()
    inputs = [torch.randn(n, B, 6, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5)]
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])[..., None]  # some, no and all keys
    assert torch.autograd.gradcheck(lambda *x: module(*x, mask), inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_blocks_without_overflow(dtype, autocast):
    module, inputs, mask = MultiHeadAttention(H, E).eval(), sequences(torch.float32), mask_of("blocked rows")
    expected = module(*inputs, mask)
    if autocast:
        with torch.autocast("cpu", dtype):
            output = module(*inputs, mask)
    else:
        output = module.to(dtype)(*(x.to(dtype) for x in inputs), mask)
    assert output.dtype == dtype
    assert_close(output.float(), expected, atol=0.02, rtol=0.0)
    assert (module.attn.masked_select(~mask[..., None]) == 0).all()


# The fast form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_results_weights_and_gradients_are_the_fast_forms(dtype, close, form, bias):
    ours, fast = MultiHeadAttention(H, E, dropout_prob=0.0, bias=bias), MultiheadAttention(E, H)
    multi_head_to_fast(ours, fast)
    inputs, mask = sequences(dtype), mask_of(form)
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    blocked = None if mask is None else ~expanded(mask).permute(2, 0, 1).repeat_interleave(H, 0)
    output = ours(*inputs, mask)
    expected, weights = fast(*copies, attn_mask=blocked, average_attn_weights=False)
    assert_close(output, expected, **close)
    assert_close(ours.attn.permute(2, 3, 0, 1), weights, **close)

    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    for x, other in zip(inputs, copies, strict=True):
        assert_close(x.grad, other.grad, **close)
    linears = [part.linear for part in (ours.query, ours.key, ours.value)]
    assert_close(torch.cat([x.weight.grad for x in linears]), fast.in_proj_weight.grad, **close)
    biases = linears if bias else linears[2:]
    assert_close(torch.cat([x.bias.grad for x in biases]), fast.in_proj_bias.grad[-len(biases) * E :], **close)
    assert_close(ours.output.weight.grad, fast.out_proj.weight.grad, **close)
    assert_close(ours.output.bias.grad, fast.out_proj.bias.grad, **close)


# Errors


@pytest.mark.parametrize(
    ("heads", "d_model", "words"),
    [
        (512, 8, r"heads 512, d_model 8: heads come first, was MultiHeadAttention\(8, 512\) meant\?"),
        (3, 10, "heads 3, d_model 10"),
        (10, 3, "heads 10, d_model 3"),  # swapped they don't fit, either: no hint
        (0, 8, "heads 0, d_model 8"),
        (8, 0, "heads 8, d_model 0"),
        (-2, 8, "heads -2, d_model 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(heads, d_model, words):
    with pytest.raises(ValueError, match=rf"^d_model must be a positive multiple of heads, got {words}$"):
        MultiHeadAttention(heads, d_model)


def test_heads_come_first():
    module = MultiHeadAttention(8, 512)
    assert (module.heads, module.d_k) == (8, 64)
    with pytest.raises(ValueError, match=r"got heads 33, d_model 3: heads come first, was .*\(3, 33\) meant\?$"):
        MultiHeadAttention(E, H)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((Q, 3, E), (K, B, E), (K, B, E)),
        ((Q, 1, E), (K, B, E), (K, B, E)),  # a 1 would broadcast
        ((Q, B, E), (K, 1, E), (K, 1, E)),
        ((Q, B, E), (K, B, E), (K, 1, E)),
        ((Q, B, E), (K, B, E), (Q, B, E)),
        ((Q, B, E), (K, B, E), (1, B, E)),
        ((Q, B, E), (1, B, E), (K, B, E)),
    ],
)
def test_batch_sizes_and_lengths_must_be_the_same(query, key, value):
    shapes = re.escape(f"{query}, {key}, {value}")
    message = rf"^query, key and value must have one batch size, and key and value one length, got {shapes}$"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(H, E)(torch.zeros(query), torch.zeros(key), torch.zeros(value))


@pytest.mark.parametrize("shape", [(5, 2, 10), (5, 8), (5,)])
def test_other_widths_and_ranks_are_explained(shape):
    x, wrong = torch.randn(5, 2, 8), torch.randn(shape)
    with pytest.raises(ValueError, match=r"must be \(seq, batch, d_model\) with d_model = 8, got \(5, 2, 8\)"):
        MultiHeadAttention(2, 8)(x, wrong, wrong)
