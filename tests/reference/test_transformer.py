import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.masks import keep_from_ids
from glassformer.reference.transformer import (
    FFN,
    AddPositionalEncoding,
    Embedding,
    MultiHeadAttention,
    ScaledDotProductAttention,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    causal_mask,
    decoder_mask,
    greedy,
    padding_mask,
)
from glassformer.reference.weights import transformer_from_fast, transformer_to_fast
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

B, H, Q, K, D, FF, WORDS = 2, 3, 5, 7, 11, 13, 17  # distinct primes: a swapped axis cannot pass
E = H * D
PAD = WORDS - 1
EPS = 0.25  # so large that losing it shows
LONGEST = 19
PADDED = (torch.arange(K) >= torch.tensor([K, 3])[:, None])[:, None]  # masks of keys, True = blocked
MASKS = [(PADDED, causal_mask(Q)), (None, None)]
each = pytest.mark.parametrize


def draw_vectors(*modules: nn.Module) -> None:
    """Draw every bias and norm, so that losing one shows."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter)


def make(kind: Any, *, words: int = WORDS, layers: int = 2, dropout: float = 0.0, eps: float = EPS, **more: Any) -> Any:
    return kind(words, LONGEST, words - 1, E, layers, FF, H, dropout, eps, **more)


def models(**changes: Any) -> tuple[TransformerEncoder, TransformerDecoder]:
    return make(TransformerEncoder, **changes), make(TransformerDecoder, **changes)


def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return F.layer_norm(x, (E,), norm.weight, norm.bias, EPS)


def fed_forward(x: Tensor, ffn: FFN) -> Tensor:
    return F.linear(F.linear(x, ffn.linear1.weight, ffn.linear1.bias).relu(), ffn.linear2.weight, ffn.linear2.bias)


@each("name", ["W_q", "W_k", "W_v"])
def test_projections_are_drawn_for_all_heads_together(name):
    weight = getattr(MultiHeadAttention(64, 8), name).detach()
    bound = math.sqrt(6 / (64 + 8 * 8))  # Xavier uniform: fan_in d_model, fan_out h d_k
    for head in weight:  # 512 numbers each: the largest is near the bound, and none beyond
        assert 0.95 * bound < head.abs().max() <= bound
        assert abs(head.mean()) < 0.1 * bound
        assert head.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert not torch.equal(weight[0], weight[1])


# Embeddings, positions


@each("pad", [0, 3, PAD])
def test_the_vector_of_padding_is_zero_and_not_learned(pad):
    embedding = Embedding(WORDS, E, pad)
    vectors = embedding.embedding.weight.detach().clone()
    ids = torch.tensor([[5, pad], [pad, 7]])
    assert_close(embedding(ids)[0, 0], vectors[5])  # not scaled
    assert (embedding(ids)[[0, 1], [1, 0]] == 0).all()
    embedding(ids).sum().backward()
    assert (embedding.embedding.weight.grad != 0).any(1).nonzero().flatten().tolist() == [5, 7]


@each("d_model", [4, 3])
def test_sines_and_cosines_alternate(d_model):
    angles = [[p, p, p / 10000 ** (2 / d_model), p / 10000 ** (2 / d_model)][:d_model] for p in range(5)]
    expected = [[(math.cos if n % 2 else math.sin)(angle) for n, angle in enumerate(row)] for row in angles]
    x = torch.randn(B, 5, d_model, dtype=torch.float64)
    positions = AddPositionalEncoding(d_model, LONGEST).double()  # a longer table, made in float32
    assert_close(positions(x), x + torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0.0)


# Layers: LayerNorm(x + Dropout(sublayer(x)))


@each(("mask", "mask_self"), MASKS)
@each("dropout", [0.0, 1.0])  # with 1 nothing is left of what a sub-layer adds, and all of x
def test_layers_worked_by_hand(mask, mask_self, dropout):
    encoder_layer = TransformerEncoderLayer(E, FF, H, dropout, EPS).double()
    decoder_layer = TransformerDecoderLayer(E, FF, H, dropout, EPS).double()
    draw_vectors(encoder_layer, decoder_layer)
    target, source = (torch.randn(B, length, E, dtype=torch.float64) for length in (Q, K))
    left = 1.0 - dropout
    assert (encoder_layer.ffn.linear1(source) < 0).any()  # which ReLU changes
    own = encoder_layer.multi_head_attention(source, source, source, mask)
    middle = normed(source + left * own, encoder_layer.layer_norm_self_attention)
    expected = normed(middle + left * fed_forward(middle, encoder_layer.ffn), encoder_layer.layer_norm_ffn)
    assert_close(encoder_layer(source, mask), expected)

    own = decoder_layer.self_attention(target, target, target, mask_self)
    first = normed(target + left * own, decoder_layer.layer_norm_self_attention)
    other = decoder_layer.src_tgt_attention(first, source, source, mask)
    second = normed(first + left * other, decoder_layer.layer_norm_src_tgt_attention)
    expected = normed(second + left * fed_forward(second, decoder_layer.ffn), decoder_layer.layer_norm_ffn)
    assert_close(decoder_layer(target, source, mask_src_tgt=mask, mask_self=mask_self), expected)


def test_what_a_sublayer_adds_is_dropped_in_training_only_and_no_weight_ever():
    layer, x = TransformerEncoderLayer(E, FF, H, 0.5, EPS), torch.randn(B, K, E)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.multi_head_attention(x, x, x), layer.multi_head_attention(x, x, x))
    assert torch.equal(layer.eval()(x), layer(x))


# Encoder and decoder


@each("layers", [2, 0])
@each(("mask", "mask_self"), MASKS)
def test_models_are_embeddings_neither_scaled_nor_dropped_positions_and_layers(layers, mask, mask_self):
    encoder, decoder = models(layers=layers, dropout=0.0 if layers else 1.0)
    draw_vectors(encoder, decoder)
    source, ids, states = torch.randint(PAD, (B, K)), torch.randint(PAD, (B, Q)), torch.randn(B, K, E)
    x = encoder.embedding.embedding.weight[source] + encoder.positional_encoding.table[:K]
    y = decoder.embedding.embedding.weight[ids] + decoder.positional_encoding.table[:Q]
    for layer in encoder.encoder_layers:
        x = layer(x, mask)
    for layer in decoder.decoder_layers:
        y = layer(y, states, mask, mask_self)
    assert len(encoder.encoder_layers) == len(decoder.decoder_layers) == layers
    assert_close(encoder(source, mask), x)
    assert_close(decoder(ids, states, mask, mask_self), y)


@each("kind", [TransformerEncoder, TransformerDecoder])
def test_models_take_the_arguments_of_the_described_ones(kind):
    first = "tgt_vocab_size" if kind is TransformerDecoder else "vocab_size"
    names = [first, *["max_len", "pad_idx", "d_model", "N", "d_ff", "heads_num", "dropout_rate", "layer_norm_eps"]]
    assert list(inspect.signature(kind).parameters) == [*names, "device"]
    model = kind(**dict(zip(names, (WORDS, LONGEST, PAD, E, 2, FF, H, 0.1, EPS), strict=True)))
    assert model.embedding.embedding.weight.shape == (WORDS, E)
    assert model.embedding.embedding.padding_idx == PAD
    assert model.positional_encoding.table.shape == (LONGEST, E)
    assert not any("table" in name for name in model.state_dict())
    assert {x.device.type for x in (*model.parameters(), *model.buffers())} == {"cpu"}
    elsewhere = make(kind, device="meta")
    assert {x.device.type for x in (*elsewhere.parameters(), *elsewhere.buffers())} == {"meta"}
    encodes = kind is TransformerEncoder
    for layer in model.encoder_layers if encodes else model.decoder_layers:
        assert layer.ffn.linear1.weight.shape == (FF, E)
        assert (layer.multi_head_attention if encodes else layer.self_attention).W_q.shape == (H, E, D)
        assert layer.dropout_self_attention.p == layer.dropout_ffn.p == 0.1
        assert layer.layer_norm_self_attention.eps == layer.layer_norm_ffn.eps == EPS
        assert encodes or (layer.dropout_src_tgt_attention.p, layer.layer_norm_src_tgt_attention.eps) == (0.1, EPS)


@each("dtype", [torch.float16, torch.bfloat16])
@each("autocast", [True, False])
def test_a_whole_model_learns_in_half_precision(dtype, autocast):
    encoder, decoder = (model if autocast else model.to(dtype) for model in models())
    source, target = torch.randint(PAD, (B, K)), torch.randint(PAD, (B, Q))
    source[1, 3:] = target[:, 0] = PAD
    with torch.autocast("cpu", dtype, enabled=autocast):
        mask = padding_mask(source, PAD)
        states = decoder(target, encoder(source, mask), mask, decoder_mask(target, PAD))
        logits = decoder.logits(states)[..., :PAD]
    assert logits.dtype == dtype
    assert logits.isfinite().all()
    logits.float().logsumexp(-1).sum().backward()
    for parameter in (*encoder.parameters(), *decoder.parameters()):
        assert parameter.grad.isfinite().all()
        assert (parameter.grad != 0).any()


def test_padding_is_blocked_and_what_comes_later_but_a_decoders_start_stays_open():
    mask = decoder_mask(torch.tensor([[9, 3, 9], [9, 9, 5]]), 9)
    assert mask.tolist() == [
        [[False, True, True], [False, False, True], [False, False, True]],
        [[False, True, True], [False, True, True], [False, True, False]],
    ]


# Checkpoints of the notes' code: every name as the notes write it


def attention_of_the_notes(name: str) -> dict[str, Tensor]:
    matrices = {f"{name}.W_{x}": torch.randn(H, E, D) for x in "qkv"}
    return {**matrices, f"{name}.linear.weight": torch.randn(E, E), f"{name}.linear.bias": torch.randn(E)}


def layer_norm_of_the_notes(name: str) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.randn(E), f"{name}.bias": torch.randn(E)}


def ffn_of_the_notes(name: str) -> dict[str, Tensor]:
    first = {f"{name}.linear1.weight": torch.randn(FF, E), f"{name}.linear1.bias": torch.randn(FF)}
    return {**first, f"{name}.linear2.weight": torch.randn(E, FF), f"{name}.linear2.bias": torch.randn(E)}


def checkpoint_of_the_notes(layers: str, attentions: dict[str, str]) -> dict[str, Tensor]:
    """A state dict of two layers whose attentions have these names, each with the name of its layer norm."""
    state = {"embedding.embedding.weight": torch.randn(WORDS, E)}
    for n in range(2):
        for attention, norm in attentions.items():
            state |= attention_of_the_notes(f"{layers}.{n}.{attention}")
            state |= layer_norm_of_the_notes(f"{layers}.{n}.{norm}")
        state |= ffn_of_the_notes(f"{layers}.{n}.ffn") | layer_norm_of_the_notes(f"{layers}.{n}.layer_norm_ffn")
    return state


@each(
    ("kind", "layers", "attentions"),
    [
        (TransformerEncoder, "encoder_layers", {"multi_head_attention": "layer_norm_self_attention"}),
        (
            TransformerDecoder,
            "decoder_layers",
            {"self_attention": "layer_norm_self_attention", "src_tgt_attention": "layer_norm_src_tgt_attention"},
        ),
    ],
)
def test_a_checkpoint_of_the_notes_loads(kind, layers, attentions):
    model, state = make(kind), checkpoint_of_the_notes(layers, attentions)
    model.load_state_dict(state, strict=True)
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())
    names = ["dropout_self_attention", "dropout_ffn", *(["dropout_src_tgt_attention"] if len(attentions) > 1 else [])]
    for name in names:
        assert isinstance(getattr(getattr(model, layers)[0], name), nn.Dropout)
    attention = getattr(getattr(model, layers)[0], next(iter(attentions)))
    assert (attention.d_model, attention.h, attention.d_k, attention.d_v) == (E, H, D, D)
    assert attention.scaled_dot_product_attention.d_k == D
    assert isinstance(model.positional_encoding, AddPositionalEncoding)


class Evenly(ScaledDotProductAttention):
    def get_weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return torch.full_like(scores, 1 / scores.shape[-1])


def test_a_step_of_attention_may_be_replaced():
    attention, x = MultiHeadAttention(E, H), torch.randn(B, K, E)
    attention.scaled_dot_product_attention = Evenly(D)
    values = torch.cat([x @ weight for weight in attention.W_v], dim=-1).mean(1, keepdim=True)
    assert_close(attention(x, x, x), attention.linear(values).expand(-1, K, -1))


# Predicting


def test_logits_are_products_with_the_embeddings():
    decoder, states = make(TransformerDecoder).double(), torch.randn(B, Q, E, dtype=torch.float64)
    logits, vectors = decoder.logits(states), decoder.embedding.embedding.weight
    assert logits.shape == (B, Q, WORDS)
    for word in range(PAD):
        assert_close(logits[..., word], (states * vectors[word]).sum(-1) / math.sqrt(33))
    assert (logits[..., PAD] == -math.inf).all()
    assert not any("logits" in name or "output_" in name for name, _ in decoder.named_parameters())


def test_the_vector_of_padding_stays_zero_while_the_logits_learn():
    decoder, ids, source = make(TransformerDecoder), torch.randint(PAD, (B, Q)), torch.randn(B, K, E)
    ids[:, 0] = PAD
    logits = decoder.logits(decoder(ids, source, None, decoder_mask(ids, PAD)))
    logits.log_softmax(-1)[..., 0].sum().backward()
    torch.optim.SGD(decoder.parameters(), lr=1.0).step()
    vectors = decoder.embedding.embedding.weight
    assert (vectors[PAD] == 0).all()
    assert (vectors.grad[:PAD] != 0).any(1).all()


SENTENCES = 8
NEVER = -1  # an end that no token is


def draw_sources() -> Tensor:
    """Sentences of seven ids; every second one has only four, with padding behind them."""
    source = torch.randint(PAD, (SENTENCES, K))
    source[1::2, 4:] = PAD
    return source


@torch.no_grad()
def test_greedy_predicts_word_by_word_and_ends_at_the_end():
    (encoder, decoder), source = (model.double() for model in models()), draw_sources()
    for name, parameter in (*encoder.named_parameters(), *decoder.named_parameters()):
        if parameter.dim() == 1:  # so that the words predicted vary with source and position
            nn.init.normal_(parameter) if "norm" in name and name.endswith("weight") else nn.init.zeros_(parameter)
    endless = greedy(encoder, decoder, source, src_pad=PAD, end=NEVER, max_len=LONGEST).tolist()
    end = next(word for word in range(PAD) if 0 < sum(word in row for row in endless) < SENTENCES)
    predicted = greedy(encoder, decoder, source, src_pad=PAD, end=end, max_len=LONGEST)
    lengths = []
    for row, sentence in zip(predicted.tolist(), source, strict=True):
        memory, ids = encoder(sentence[sentence != PAD][None]), [PAD]
        while len(ids) <= LONGEST and ids[-1] != end:  # without padding, all of it decoded again for each token
            states = decoder(torch.tensor([ids]), memory, None, causal_mask(len(ids)))
            ids.append(int((decoder.embedding.embedding.weight[:PAD] @ states[0, -1]).argmax()))
        assert row == ids[1:] + [PAD] * (LONGEST + 1 - len(ids))
        lengths.append(len(ids) - 1)
    assert min(lengths) < max(lengths) == LONGEST


def test_greedy_starts_from_a_token_of_its_own():
    (encoder, decoder), source = (model.double() for model in models()), torch.randint(PAD, (1, K))
    draw_vectors(encoder, decoder)
    options = dict(src_pad=PAD, end=NEVER, max_len=1)
    assert greedy(encoder, decoder, source, **options).equal(greedy(encoder, decoder, source, **options, start=PAD))
    states = decoder(torch.tensor([[3]]), encoder(source), None, None)
    assert greedy(encoder, decoder, source, **options, start=3).item() == decoder.logits(states)[0, 0].argmax()


def test_greedy_stops_once_all_have_ended():
    (encoder, decoder), source = models(), torch.randint(PAD, (1, K))
    endless = greedy(encoder, decoder, source, src_pad=PAD, end=NEVER, max_len=3)
    assert endless.shape == (1, 3)
    first = int(endless[0, 0])
    assert greedy(encoder, decoder, source, src_pad=PAD, end=first, max_len=LONGEST).tolist() == [[first]]


def test_greedy_keeps_no_graph():
    with_graph = []
    for module in (pair := models()):
        module.register_forward_hook(lambda module, inputs, states: with_graph.append(states.requires_grad))
    greedy(*pair, draw_sources(), src_pad=PAD, end=NEVER, max_len=2)
    assert with_graph == [False, False, False]


@each("shared", [False, True], ids=["two vocabularies", "one vocabulary"])
def test_a_whole_model_and_its_gradients_are_the_fast_forms(dtype, close, shared):
    source_words = WORDS if shared else 23
    encoder = make(TransformerEncoder, words=source_words, eps=1e-5)
    decoder = make(TransformerDecoder, layers=3, eps=1e-5)
    draw_vectors(encoder, decoder)
    if shared:
        encoder.embedding.load_state_dict(decoder.embedding.state_dict())
    sizes = dict(d_model=E, heads=H, encoder_layers=2, decoder_layers=3, d_ff=FF, dropout=0.0)
    words = dict(source_vocab_size=source_words, target_vocab_size=WORDS, shared_vocab=shared)
    fast = Transformer(ModelConfig(**sizes, **words))
    transformer_to_fast(encoder, decoder, fast)
    source, target = torch.randint(PAD, (B, K)), torch.randint(PAD, (B, Q))
    source[1, 3:] = fast.source_pad
    target[:, 0] = PAD  # the start
    target[1, 4:] = PAD
    real = torch.ones(B, Q, dtype=torch.bool)
    real[1, 4:] = False  # the states of padding are nobody's

    mask = padding_mask(source, fast.source_pad)
    memory = encoder(source, mask)
    states = decoder(target, memory, mask, decoder_mask(target, PAD))
    logits = decoder.logits(states)[..., :PAD]
    keep = keep_from_ids(source, fast.source_pad)
    fast_memory = fast.encode(source, keep)
    fast_states, _ = fast.decode(target, fast.start(fast_memory, keep))
    fast_logits = fast(source, target)
    order = [*range(0, E, 2), *range(1, E, 2)]  # the fast model has all sines before all cosines
    assert_close(memory[..., order], fast_memory, **close)
    assert_close(states[..., order][real], fast_states[real], **close)
    assert_close(logits[real], fast_logits[real], **close)

    towards = torch.randn(int(real.sum()), PAD) / real.sum()
    (logits[real] * towards).sum().backward()
    (fast_logits[real] * towards).sum().backward()
    assert_same_gradients(encoder, decoder, fast, close)


@torch.no_grad()
def assert_same_gradients(
    encoder: TransformerEncoder, decoder: TransformerDecoder, fast: Transformer, close: dict[str, float]
) -> None:
    """Gradients stand where their weights do, so the conversion of weights brings them together."""
    expected = {name: x.grad for model in (encoder, decoder) for name, x in model.named_parameters(str(id(model)))}
    for name, parameter in fast.named_parameters():
        parameter.copy_(parameter.grad)
        if name.endswith("in_proj_bias"):  # the other form has none
            parameter.zero_()
    transformer_from_fast(fast, encoder, decoder)
    converted = {name: x for model in (encoder, decoder) for name, x in model.named_parameters(str(id(model)))}
    tables = [name for name in expected if "embedding" in name]
    if fast.source_embedding is None:
        expected |= dict.fromkeys(tables, sum(expected[name] for name in tables))
    for name, gradient in expected.items():
        # A vector is sqrt(E) times the fast form's, so its gradient is that many times less.
        assert_close(E * gradient if name in tables else gradient, converted[name], **close)
