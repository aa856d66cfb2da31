"""torch.nn's attention and ours: the weights are those of the explicit form, on the fast path too."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from glassformer import ModelConfig, MultiheadAttention, Transformer, Want, capture
from glassformer.attention.masks import keep_from_ids

B, S, T, V = 2, 11, 7, 97  # batch, source and target length, vocabulary


def explicit_weights(attention: nn.MultiheadAttention, x: Tensor, blocked: Tensor | None = None) -> Tensor:
    return attention(x, x, x, key_padding_mask=blocked, need_weights=True, average_attn_weights=False)[1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_an_encoder_is_recorded_on_its_fast_path_too(make, state_of, everything, training, padded):
    # pytorch/pytorch#99304, #64509, #88810: nn.TransformerEncoder never gives its weights.
    model = make.encoder(dropout=0.0).train(training)
    x = torch.randn(B, S, 24)
    blocked = torch.arange(S) >= torch.tensor([[S], [7]]) if padded else None
    plain = model(x, src_key_padding_mask=blocked)
    before = state_of(model)
    with capture(model, everything) as captured:
        output = model(x, src_key_padding_mask=blocked)
    assert state_of(model) == before
    real = slice(None) if blocked is None else ~blocked
    assert_close(output[real], plain[real], rtol=1e-4, atol=1e-5)
    assert torch.equal(model(x, src_key_padding_mask=blocked), plain)
    assert list(captured) == ["layers.0.self_attn", "layers.1.self_attn"]
    weights = [captured["layers.0.self_attn"].weights, explicit_weights(model.layers[0].self_attn, x, blocked)]
    assert_close(*(one.transpose(1, 2)[real] for one in weights))


def test_a_whole_transformer():
    model = nn.Transformer(24, 4, 2, 2, 40, dropout=0.0, batch_first=True)
    source, target = torch.randn(B, S, 24), torch.randn(B, T, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    plain = model(source, target, tgt_mask=mask, tgt_is_causal=True)
    with capture(model, Want(weights=True)) as captured:
        assert_close(model(source, target, tgt_mask=mask, tgt_is_causal=True), plain, rtol=1e-4, atol=1e-5)
    assert [tuple(one.weights.shape[2:]) for one in captured.values()] == [(S, S)] * 2 + [(T, T), (T, S)] * 2
    assert not captured["decoder.layers.1.self_attn"].weights.triu(1).any()


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, MultiheadAttention], ids=["torch", "ours"])
@pytest.mark.parametrize("average", [True, False])
def test_an_attention_alone_returns_its_weights_as_before(kind, average):
    attention = kind(24, 3, batch_first=True, kdim=10, vdim=6, add_bias_kv=True)
    arguments = torch.randn(B, T, 24), torch.randn(B, S, 10), torch.randn(B, S, 6)
    plain = attention(*arguments, average_attn_weights=average)
    with capture(attention, Want(entropy=True)) as captured:
        assert_close(attention(*arguments, average_attn_weights=average), plain)
    assert list(captured) == [""]
    assert captured[""].want == Want(entropy=True)
    with pytest.raises(AttributeError, match="weights was not asked for"):
        _ = captured[""].weights


def test_unbatched_and_half_precision():
    attention = nn.MultiheadAttention(24, 3).bfloat16()
    x = torch.randn(S, 24).bfloat16()
    with capture(attention, Want(weights=True, entropy=True)) as captured:
        output, _ = attention(x, x, x)
    assert output.shape == x.shape
    assert captured[""].weights.dtype == torch.bfloat16
    assert captured[""].entropy.shape == (1, 3, S)


def test_facts_have_gradients_where_gradients_are_on(make):
    model = make.encoder(dropout=0.0)
    with capture(model, Want(entropy=True)) as captured:
        model(torch.randn(B, S, 24))
    sum(one.entropy.sum() for one in captured.values()).backward()
    assert model.layers[0].self_attn.in_proj_weight.grad.abs().sum() > 0


@torch.no_grad()
def test_training_mode_may_change_inside():
    attention = nn.MultiheadAttention(24, 3, dropout=0.5)
    x = torch.randn(S, B, 24)
    with capture(attention, Want(weights=True)) as captured:
        attention.train()(x, x, x)
        attention.eval()(x, x, x)
    dropped, whole = captured.calls("")
    assert (dropped.weights == 0).float().mean() > 0.3
    assert_close(whole.weights.sum(-1), torch.ones(B, 3, S))


def test_weights_that_are_computed_before_each_call_are_those_of_that_call():
    """Pruning and weight norm give a module other weights than its parameters; updates and merges change them."""

    def trained(attention: nn.MultiheadAttention) -> list[Tensor]:
        descent = torch.optim.SGD(attention.parameters(), lr=0.1)
        outputs = []
        for _ in range(3):
            outputs.append(attention(x, x, x, need_weights=False)[0])
            descent.zero_grad()
            outputs[-1].square().sum().backward()
            descent.step()
        return outputs

    x = torch.randn(B, S, 24)
    for change in (
        lambda attention: prune.l1_unstructured(attention, "in_proj_weight", 0.3),
        lambda attention: weight_norm(attention, "in_proj_weight"),
    ):
        plain = nn.MultiheadAttention(24, 3, batch_first=True)
        captured_one = copy.deepcopy(plain)
        change(plain)
        change(captured_one)
        expected = trained(plain)
        with capture(captured_one, Want(weights=True)) as captured:
            assert_close(trained(captured_one), expected, rtol=1e-4, atol=1e-5)
        assert len(captured.calls("")) == 3
    attention = nn.MultiheadAttention(24, 3, batch_first=True)
    with capture(attention, Want(weights=True)):
        merged = attention.in_proj_weight.detach() * 2
        del attention.in_proj_weight
        attention.__dict__["in_proj_weight"] = merged  # as adapters do
        inside = attention(x, x, x)[0]
    assert_close(inside, attention(x, x, x)[0])


@torch.no_grad()
def test_our_transformer_step_by_step_is_as_at_once():
    model = Transformer(ModelConfig.tiny(source_vocab_size=V, target_vocab_size=V)).eval()
    source, target = (torch.randint(3, V - 1, (B, length)) for length in (S, T))
    source[1, 7:] = model.source_pad
    keep = keep_from_ids(source, model.source_pad)
    plain = model(source, target)
    with capture(model, Want(weights=True)) as at_once:
        assert_close(model(source, target), plain, rtol=1e-4, atol=1e-4)
    with capture(model, Want(weights=True)) as step_by_step:
        cache = model.start(model.encode(source, keep), keep)
        for n in range(T):
            _, cache = model.decode(target[:, n : n + 1], cache)
    assert list(at_once) == list(step_by_step)
    assert len(at_once) == 4 + 2 * 4
    for name in at_once:
        assert_close(step_by_step[name].weights, at_once[name].weights, rtol=1e-4, atol=1e-5)
    assert not at_once["encoder.0.self_attention"].weights[1, :, :, 7:].any()
