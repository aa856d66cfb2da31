import inspect
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from glassformer.attention.masks import keep_from_ids
from glassformer.attention.multihead import MultiheadAttention
from glassformer.generation import search
from glassformer.generation.config import SearchConfig
from glassformer.generation.engine import Engine
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
from glassformer.reference.weights import per_head_to_fast, transformer_to_fast
from glassformer.text.tokenizer import EOS
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

B, H, Q, K, D, FF, WORDS = 2, 3, 5, 7, 11, 13, 17  # distinct primes: a swapped axis cannot pass
E = H * D
PAD = WORDS - 1
EPS = 0.25  # so large that losing it shows
LONGEST = 19
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FORMS = ["none", "open", "padding", "causal", "one for all", "random", "blocked rows"]


def sequences(dtype: torch.dtype = torch.float64, width: int = E) -> list[Tensor]:
    """Query, key and value."""
    return [torch.randn(B, length, width, dtype=dtype, requires_grad=True) for length in (Q, K, K)]


def mask_of(form: str) -> Tensor | None:
    """(batch or 1, q_len or 1, k_len), True = blocked."""
    random = torch.rand(B, Q, K) < 0.5
    blocked_rows = random.clone()
    blocked_rows[:, 2] = True  # one query of every sentence, and every query of the second
    blocked_rows[1] = True
    return {
        "none": None,
        "open": torch.zeros(B, Q, K, dtype=torch.bool),
        "padding": (torch.arange(K) >= torch.tensor([K, 3])[:, None])[:, None],
        "causal": torch.ones(Q, K, dtype=torch.bool).triu(1)[None],
        "one for all": torch.tensor([False, True, False, False, True, False, True])[None, None],
        "random": random,
        "blocked rows": blocked_rows,
    }[form]


def keep_of(mask: Tensor | None) -> Tensor:
    return torch.ones(B, Q, K, dtype=torch.bool) if mask is None else ~mask.expand(B, Q, K)


def draw_biases_and_norms(*modules: nn.Module) -> None:
    """So that losing one shows."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter)


def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + EPS).sqrt() * norm.weight + norm.bias


def fed_forward(x: Tensor, ffn: FFN) -> Tensor:
    inner = x @ ffn.linear1.weight.T + ffn.linear1.bias
    return torch.where(inner > 0, inner, 0.0) @ ffn.linear2.weight.T + ffn.linear2.bias


def an_encoder(dropout: float = 0.0, layers: int = 2, eps: float = EPS) -> TransformerEncoder:
    return TransformerEncoder(WORDS, LONGEST, PAD, E, layers, FF, H, dropout, eps)


def a_decoder(dropout: float = 0.0, layers: int = 2, eps: float = EPS) -> TransformerDecoder:
    return TransformerDecoder(WORDS, LONGEST, PAD, E, layers, FF, H, dropout, eps)


# Attention


def test_attention_worked_by_hand():
    # Keys are 4 wide: scores are halved, sqrt(4). (2, 0, 0, 0) scores log 3 and 0: weights 3 : 1.
    q = torch.tensor([[[2.0, 0, 0, 0]]], dtype=torch.float64)
    k = torch.tensor([[[math.log(3), 5, 0, 0], [0, 0, 9, 0]]], dtype=torch.float64)
    v = torch.tensor([[[80.0, 4.0], [40.0, 0.0]]], dtype=torch.float64)
    output = ScaledDotProductAttention(4)(q, k, v)
    assert_close(output, torch.tensor([[[70.0, 3.0]]], dtype=torch.float64))


def test_a_word_looks_most_at_words_that_point_its_way():
    man, book, road = [2.0, 0.0], [0.0, 2.0], [1.0, 2.0]
    words = torch.tensor([[man, book, road]], dtype=torch.float64)
    weights = ScaledDotProductAttention(2)(words, words, torch.eye(3, dtype=torch.float64)[None])[0]
    products = [[4, 0, 2], [0, 4, 4], [2, 4, 5]]  # every word with every word
    for row, of_word in zip(weights, products, strict=True):
        powers = [math.exp(product / math.sqrt(2)) for product in of_word]
        assert_close(row, torch.tensor([power / sum(powers) for power in powers], dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS)
def test_attention_looks_as_one_query_after_the_other(look, form):
    (q, k, _), mask = sequences(width=D), mask_of(form)
    v = torch.randn(B, K, 2, dtype=torch.float64)
    output = ScaledDotProductAttention(D)(q, k, v, mask)
    for b in range(B):
        assert_close(output[b], look(q[b], k[b], v[b], keep_of(mask)[b])[0])


@pytest.mark.parametrize("form", FORMS)
def test_each_head_looks_as_one_query_after_the_other(look, form):
    module, inputs, mask = MultiHeadAttention(E, H).double(), sequences(), mask_of(form)
    output = module(*inputs, mask)
    heads = torch.empty(B, Q, H, D, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            projections = (module.W_q[h], module.W_k[h], module.W_v[h])
            q, k, v = (x[b] @ weight for x, weight in zip(inputs, projections, strict=True))
            heads[b, :, h], _ = look(q, k, v, keep_of(mask)[b])
    assert_close(output, heads.flatten(2) @ module.output.weight.T + module.output.bias)


def test_projections_are_one_matrix_per_head_without_bias():
    shapes = {name: tuple(parameter.shape) for name, parameter in MultiHeadAttention(E, H).named_parameters()}
    projections = dict.fromkeys(("W_q", "W_k", "W_v"), (H, E, D))
    assert shapes == projections | {"output.weight": (E, E), "output.bias": (E,)}


@pytest.mark.parametrize("name", ["W_q", "W_k", "W_v"])
def test_projections_are_drawn_for_all_heads_together(name):
    d_model, h = 64, 8
    weight = getattr(MultiHeadAttention(d_model, h), name).detach()
    bound = math.sqrt(6 / (64 + 8 * 8))  # Xavier uniform: fan_in d_model, fan_out h d_k
    for head in weight:  # 512 numbers each: the largest is near the bound, and none beyond
        assert 0.95 * bound < head.abs().max() <= bound
        assert abs(head.mean()) < 0.1 * bound
        assert head.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert not torch.equal(weight[0], weight[1])


def test_projections_are_reproducible_from_the_seed():
    def drawn(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return MultiHeadAttention(E, H).state_dict()

    first, again, other = drawn(1), drawn(1), drawn(2)
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        assert not torch.equal(weight, other[name])


# Masks of attention: True = blocked


@pytest.mark.parametrize(
    ("shape", "axes"), [((Q, K), "2"), ((K,), "1"), ((B, H, Q, K), "4")], ids=["two", "one", "four"]
)
def test_a_mask_has_as_many_axes_as_the_scores(shape, axes):
    mask = torch.zeros(shape, dtype=torch.bool)
    received = str(shape).replace("(", r"\(").replace(")", r"\)")
    message = rf"^mask must have as many axes as the scores, 3 \(2, 5, 7\), got {axes} {received}$"
    with pytest.raises(ValueError, match=message):
        ScaledDotProductAttention(D).double()(*sequences(width=D), mask)
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(E, H).double()(*sequences(), mask)


@pytest.mark.parametrize("shape", [(H, Q, K), (B, K, Q), (B, Q, Q), (B * H, Q, K)])
def test_a_mask_broadcasts_to_the_scores(shape):
    mask = torch.zeros(shape, dtype=torch.bool)
    received = str(shape).replace("(", r"\(").replace(")", r"\)")
    message = rf"^mask must broadcast to the scores \(batch, q_len, k_len\) = \(2, 5, 7\), got {received}$"
    with pytest.raises(ValueError, match=message):
        ScaledDotProductAttention(D).double()(*sequences(width=D), mask)
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(E, H).double()(*sequences(), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_a_mask_is_boolean(dtype):
    message = rf"^mask must be boolean, True = blocked, got {dtype}$"
    with pytest.raises(ValueError, match=message):
        ScaledDotProductAttention(D).double()(*sequences(width=D), torch.zeros(B, Q, K, dtype=dtype))
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(E, H).double()(*sequences(), torch.zeros(B, Q, K, dtype=dtype))


def test_one_mask_serves_all_sentences():
    module, inputs = MultiHeadAttention(E, H).double(), sequences()
    mask = torch.rand(1, Q, K) < 0.5
    assert_close(module(*inputs, mask), module(*inputs, mask.repeat(B, 1, 1)))


# Rows with nothing to see, gradients, precision


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_may_look_nowhere_gets_the_outputs_bias_alone(dtype, training):
    module = MultiHeadAttention(E, H).to(dtype).train(training)
    inputs, mask = sequences(dtype), mask_of("blocked rows")
    output = module(*inputs, mask)
    nowhere = mask.all(-1)
    assert nowhere.sum() >= Q + 1
    assert torch.equal(output[nowhere], module.output.bias.expand(int(nowhere.sum()), E))
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, either
        output.sum().backward()
    for x in (*inputs, *module.parameters()):
        assert x.grad.isfinite().all()
        assert (x.grad != 0).any()
    assert (inputs[0].grad[nowhere] == 0).all()


def test_attention_alone_gives_zeros_where_nothing_may_be_seen():
    q, k, v = sequences(width=D)
    mask = mask_of("blocked rows")
    output = ScaledDotProductAttention(D)(q, k, v, mask)
    assert (output[mask.all(-1)] == 0).all()
    assert (output[~mask.all(-1)] != 0).all()


@pytest.mark.parametrize("shape", [(B, Q, K), (1, Q, K), (B, 1, K)])
def test_a_mask_that_blocks_nothing_changes_no_gradient(shape):
    module, inputs = MultiHeadAttention(E, H).double(), sequences()
    towards = torch.randn(B, Q, E, dtype=torch.float64)
    wanted = [*inputs, *module.parameters()]
    without = torch.autograd.grad(module(*inputs), wanted, towards)
    masked = torch.autograd.grad(module(*inputs, torch.zeros(shape, dtype=torch.bool)), wanted, towards)
    for gradient, expected in zip(masked, without, strict=True):
        assert (gradient != 0).any()
        assert_close(gradient, expected)


def test_gradients_are_the_slopes_of_the_result():
    module = MultiHeadAttention(6, 2).double()
    inputs = [torch.randn(B, n, 6, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5)]
    mask = torch.tensor([[[0, 0, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]]).bool()  # some, no and all keys
    assert torch.autograd.gradcheck(lambda *x: module(*x, mask), inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_blocks_without_overflow(dtype, autocast):
    module, inputs, mask = MultiHeadAttention(E, H), sequences(torch.float32), mask_of("blocked rows")
    expected = module(*inputs, mask)
    if autocast:
        with torch.autocast("cpu", dtype):
            output = module(*inputs, mask)
    else:
        output = module.to(dtype)(*(x.to(dtype) for x in inputs), mask)
    assert output.dtype == dtype
    assert_close(output.float(), expected, atol=0.02, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_a_blocked_key_holds_is_never_seen(dtype):
    module, (q, k, v), mask = MultiHeadAttention(E, H).to(dtype), sequences(dtype), mask_of("padding")
    other_k, other_v = (torch.where(mask.mT, 100 * torch.randn_like(x), x) for x in (k, v))
    assert not torch.equal(module(q, other_k, other_v), module(q, k, v))
    assert torch.equal(module(q, other_k, other_v, mask), module(q, k, v, mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_a_whole_model_learns_in_half_precision(dtype, autocast):
    encoder, decoder = an_encoder(), a_decoder()
    source, target = torch.randint(PAD, (B, K)), torch.randint(PAD, (B, Q))
    source[1, 3:] = target[:, 0] = PAD
    if not autocast:
        encoder, decoder = encoder.to(dtype), decoder.to(dtype)
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


# Feed-forward, embeddings, positions


def test_feed_forward_is_two_products_around_a_relu():
    ffn, x = FFN(E, FF).double(), torch.randn(B, Q, E, dtype=torch.float64)
    assert ffn.linear1.weight.shape == (FF, E)
    assert_close(ffn(x), fed_forward(x, ffn))
    assert (ffn.linear1(x) < 0).any()


@pytest.mark.parametrize("pad", [0, 3, PAD])
def test_the_vector_of_padding_is_zero_and_not_learned(pad):
    embedding = Embedding(WORDS, E, pad)
    vectors = embedding.embedding.weight.detach().clone()
    ids = torch.tensor([[5, pad], [pad, 7]])
    assert_close(embedding(ids)[0, 0], vectors[5])  # not scaled
    assert (embedding(ids)[[0, 1], [1, 0]] == 0).all()
    embedding(ids).sum().backward()
    assert (embedding.embedding.weight.grad != 0).any(1).nonzero().flatten().tolist() == [5, 7]


@pytest.mark.parametrize("pad", [-1, WORDS])
def test_padding_is_one_of_the_vocabulary(pad):
    message = rf"^pad_idx must be one of the 17 ids, got {pad}$"
    with pytest.raises(ValueError, match=message):
        Embedding(WORDS, E, pad)
    for kind in (TransformerEncoder, TransformerDecoder):
        with pytest.raises(ValueError, match=message):
            kind(WORDS, LONGEST, pad, E, 1, FF, H, 0.0, EPS)


def test_sines_and_cosines_alternate():
    positions = AddPositionalEncoding(4, 3).double()
    # 10000 ** (0 / 4) = 1, 10000 ** (2 / 4) = 100
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    x = torch.randn(B, 3, 4, dtype=torch.float64)
    # The table was made in float32.
    assert_close(positions(x), x + torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=0.0)


def test_an_odd_width_ends_with_a_sine():
    table = AddPositionalEncoding(3, 5)(torch.zeros(1, 5, 3))[0]
    assert_close(table[4], torch.tensor([math.sin(4), math.cos(4), math.sin(4 / 10000 ** (2 / 3))]))


def test_a_shorter_sequence_takes_the_first_positions():
    positions = AddPositionalEncoding(E, LONGEST)
    whole = positions(torch.zeros(1, LONGEST, E))
    assert torch.equal(positions(torch.zeros(B, Q, E)), whole[:, :Q].expand(B, Q, E))


def test_a_sequence_longer_than_max_len_is_refused():
    message = r"^x must be at most max_len = 19 long, got length 20$"
    ids, states = torch.zeros(B, LONGEST + 1, dtype=torch.long), torch.zeros(B, K, E)
    with pytest.raises(ValueError, match=message):
        AddPositionalEncoding(E, LONGEST)(torch.zeros(B, LONGEST + 1, E))
    with pytest.raises(ValueError, match=message):
        an_encoder()(ids)
    with pytest.raises(ValueError, match=message):
        a_decoder()(ids, states, None, None)
    assert an_encoder()(ids[:, 1:]).shape == (B, LONGEST, E)


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_follow_the_module(dtype):
    encoder = an_encoder().to(dtype)
    assert encoder.positions.table.dtype == dtype
    assert encoder(torch.zeros(B, K, dtype=torch.long)).dtype == dtype
    assert not any("table" in name for name in encoder.state_dict())


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_everything_is_made_on_the_device(kind):
    model = kind(WORDS, LONGEST, PAD, E, 2, FF, H, 0.1, EPS, device="meta")
    assert {str(x.device) for x in (*model.parameters(), *model.buffers())} == {"meta"}
    assert kind(WORDS, LONGEST, PAD, E, 2, FF, H, 0.1, EPS).positions.table.device == torch.device("cpu")


# Layers: LayerNorm(x + Dropout(sublayer(x)))


@pytest.mark.parametrize("padded", [True, False])
def test_an_encoder_layer_worked_by_hand(padded):
    layer = TransformerEncoderLayer(E, FF, H, 0.0, EPS).double()
    draw_biases_and_norms(layer)
    x, mask = torch.randn(B, K, E, dtype=torch.float64), mask_of("padding") if padded else None
    middle = normed(x + layer.self_attention(x, x, x, mask), layer.self_attention_norm)
    expected = normed(middle + fed_forward(middle, layer.ffn), layer.ffn_norm)
    assert_close(layer(x, mask), expected)


@pytest.mark.parametrize("masked", [True, False])
def test_a_decoder_layer_worked_by_hand(masked):
    layer = TransformerDecoderLayer(E, FF, H, 0.0, EPS).double()
    draw_biases_and_norms(layer)
    target, source, _ = sequences()
    mask_src_tgt, mask_self = (mask_of("padding"), causal_mask(Q)) if masked else (None, None)
    first = normed(target + layer.self_attention(target, target, target, mask_self), layer.self_attention_norm)
    second = normed(first + layer.source_attention(first, source, source, mask_src_tgt), layer.source_attention_norm)
    expected = normed(second + fed_forward(second, layer.ffn), layer.ffn_norm)
    assert_close(layer(target, source, mask_src_tgt, mask_self), expected)
    assert_close(layer(target, source, mask_src_tgt=mask_src_tgt, mask_self=mask_self), expected)


def test_dropout_drops_what_a_sublayer_adds_and_nothing_else():
    encoder_layer, decoder_layer = (
        kind(E, FF, H, 1.0, EPS).double() for kind in (TransformerEncoderLayer, TransformerDecoderLayer)
    )
    draw_biases_and_norms(encoder_layer, decoder_layer)
    x, source, _ = sequences()
    expected = normed(normed(x, encoder_layer.self_attention_norm), encoder_layer.ffn_norm)
    assert_close(encoder_layer(x), expected)
    first = normed(x, decoder_layer.self_attention_norm)
    expected = normed(normed(first, decoder_layer.source_attention_norm), decoder_layer.ffn_norm)
    assert_close(decoder_layer(x, source, None, None), expected)


def test_half_of_what_a_sublayer_adds_is_dropped_in_training_only():
    layer = TransformerEncoderLayer(E, FF, H, 0.5, EPS)
    x = torch.randn(B, K, E)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.self_attention(x, x, x), layer.self_attention(x, x, x))  # no weight is ever dropped
    layer.eval()
    assert torch.equal(layer(x), layer(x))


# Encoder and decoder


def test_an_encoder_is_embeddings_positions_and_layers():
    encoder = an_encoder().double()
    draw_biases_and_norms(encoder)
    ids, mask = torch.randint(PAD, (B, K)), mask_of("padding")
    x = encoder.embedding.embedding.weight[ids] + encoder.positions.table[:K]
    for layer in encoder.layers:
        x = layer(x, mask)
    assert len(encoder.layers) == 2
    assert_close(encoder(ids, mask), x)


def test_a_decoder_is_embeddings_positions_and_layers():
    decoder = a_decoder().double()
    draw_biases_and_norms(decoder)
    ids, source, mask = torch.randint(PAD, (B, Q)), sequences()[1], mask_of("padding")
    x = decoder.embedding.embedding.weight[ids] + decoder.positions.table[:Q]
    for layer in decoder.layers:
        x = layer(x, source, mask, causal_mask(Q))
    assert len(decoder.layers) == 2
    assert_close(decoder(ids, source, mask, causal_mask(Q)), x)


def test_embeddings_are_neither_scaled_nor_dropped():
    encoder, decoder = an_encoder(dropout=1.0, layers=0), a_decoder(dropout=1.0, layers=0)
    ids = torch.randint(PAD, (B, K))
    for model, states in ((encoder, encoder(ids)), (decoder, decoder(ids, torch.zeros(B, Q, E), None, None))):
        assert torch.equal(states, model.embedding.embedding.weight[ids] + model.positions.table[:K])


def test_encoder_mask_is_optional_and_decoder_masks_are_not():
    ids, source = torch.randint(PAD, (B, Q)), torch.randn(B, K, E)
    encoder, decoder = an_encoder(), a_decoder()
    assert torch.equal(encoder(ids), encoder(ids, torch.zeros(1, 1, Q, dtype=torch.bool)))
    open_ = torch.zeros(1, 1, K, dtype=torch.bool)
    assert torch.equal(decoder(ids, source, None, None), decoder(ids, source, open_, open_[:, :, :Q]))
    with pytest.raises(TypeError, match="mask_self"):
        decoder(ids, source, None)
    with pytest.raises(TypeError, match="mask_src_tgt"):
        decoder(ids, source)


@pytest.mark.parametrize(
    ("kind", "first"), [(TransformerEncoder, "vocab_size"), (TransformerDecoder, "tgt_vocab_size")]
)
def test_models_take_the_arguments_of_the_described_ones(kind, first):
    sizes = {
        first: WORDS,
        "max_len": LONGEST,
        "pad_idx": PAD,
        "d_model": E,
        "N": 2,
        "d_ff": FF,
        "heads_num": H,
        "dropout_rate": 0.1,
        "layer_norm_eps": EPS,
    }
    assert list(inspect.signature(kind).parameters) == [*sizes, "device"]
    model = kind(**sizes)
    assert model.embedding.embedding.weight.shape == (WORDS, E)
    assert model.embedding.embedding.padding_idx == PAD
    assert model.positions.table.shape == (LONGEST, E)
    for layer in model.layers:
        assert layer.ffn.linear1.weight.shape == (FF, E)
        assert layer.self_attention.W_q.shape == (H, E, D)
        assert layer.dropout.p == 0.1
        assert layer.ffn_norm.eps == EPS


def test_the_base_model_has_six_layers_of_eight_heads_of_64():
    encoder = TransformerEncoder(WORDS, LONGEST, PAD, 512, 6, 2048, 8, 0.1, 1e-5, device="meta")
    assert len(encoder.layers) == 6
    assert encoder.layers[5].self_attention.W_q.shape == (8, 512, 64)


# Making masks


def test_padding_is_blocked_wherever_it_stands():
    ids = torch.tensor([[4, 9, 3], [9, 0, 1]])
    assert padding_mask(ids, 9).tolist() == [[[False, True, False]], [[True, False, False]]]


def test_what_comes_later_is_blocked():
    assert causal_mask(3).tolist() == [[[False, True, True], [False, False, True], [False, False, False]]]


def test_a_decoder_mask_keeps_the_start_open_though_it_is_padding():
    mask = decoder_mask(torch.tensor([[9, 3, 9], [9, 9, 5]]), 9)
    assert mask.tolist() == [
        [[False, True, True], [False, False, True], [False, False, True]],
        [[False, True, True], [False, True, True], [False, True, False]],
    ]


def test_no_decoder_position_sees_nothing():
    ids = torch.randint(2, (B, Q))  # half of it padding, which is 0
    ids[:, 0] = 0
    assert not decoder_mask(ids, 0).all(-1).any()


# Predicting


def test_logits_are_products_with_the_embeddings():
    decoder, states = a_decoder().double(), torch.randn(B, Q, E, dtype=torch.float64)
    logits = decoder.logits(states)
    assert logits.shape == (B, Q, WORDS)
    vectors = decoder.embedding.embedding.weight
    for word in range(PAD):
        assert_close(logits[..., word], (states * vectors[word]).sum(-1) / math.sqrt(33))
    assert (logits[..., PAD] == -math.inf).all()
    assert not any("logits" in name or "output_" in name for name, _ in decoder.named_parameters())


def test_the_vector_of_padding_stays_zero_while_the_logits_learn():
    decoder = a_decoder()
    ids, source = torch.randint(PAD, (B, Q)), torch.randn(B, K, E)
    ids[:, 0] = PAD
    logits = decoder.logits(decoder(ids, source, None, decoder_mask(ids, PAD)))
    logits.log_softmax(-1)[..., 0].sum().backward()
    torch.optim.SGD(decoder.parameters(), lr=1.0).step()
    vectors = decoder.embedding.embedding.weight
    assert (vectors[PAD] == 0).all()
    assert (vectors.grad[:PAD] != 0).any(1).all()


SENTENCES = 8


def sources(pad: int = PAD) -> Tensor:
    """Sentences of seven ids; every second one has only four, with padding behind them."""
    source = torch.randint(pad, (SENTENCES, K))
    source[1::2, 4:] = pad
    return source


def predicted(
    encoder: TransformerEncoder, decoder: TransformerDecoder, source: Tensor, end: int, max_len: int
) -> list[int]:
    """One unpadded sentence, all of it decoded again for each token."""
    memory, ids = encoder(source[None]), [PAD]
    while len(ids) <= max_len and ids[-1] != end:
        tokens = torch.tensor([ids])
        states = decoder(tokens, memory, None, causal_mask(len(ids)))
        scores = decoder.embedding.embedding.weight[:PAD] @ states[0, -1]
        ids.append(int(scores.argmax()))
    return ids[1:]


NEVER = -1  # an end that no token is


def babbling(*models: nn.Module) -> None:
    """Without biases and with norms of either sign, so that the words predicted vary with source and position."""
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter) if name.endswith("norm.weight") else nn.init.zeros_(parameter)


def some_end(encoder: TransformerEncoder, decoder: TransformerDecoder, source: Tensor, src_pad: int) -> int:
    """A word that some sentences come to, and others don't."""
    endless = greedy(encoder, decoder, source, src_pad=src_pad, end=NEVER, max_len=LONGEST).tolist()
    return next(word for word in range(PAD) if 0 < sum(word in row for row in endless) < SENTENCES)


def test_greedy_predicts_word_by_word_and_ends_at_the_end():
    encoder, decoder, source = an_encoder().double(), a_decoder().double(), sources()
    babbling(encoder, decoder)
    end = some_end(encoder, decoder, source, PAD)
    found = greedy(encoder, decoder, source, src_pad=PAD, end=end, max_len=LONGEST)
    lengths = []
    for row, ids in zip(found.tolist(), source, strict=True):
        expected = predicted(encoder, decoder, ids[ids != PAD], end, LONGEST)
        assert row == expected + [PAD] * (LONGEST - len(expected))
        lengths.append(len(expected))
    assert min(lengths) < max(lengths) == LONGEST


def test_greedy_stops_once_all_have_ended():
    encoder, decoder, source = an_encoder(), a_decoder(), torch.randint(PAD, (1, K))
    endless = greedy(encoder, decoder, source, src_pad=PAD, end=NEVER, max_len=3)
    assert endless.shape == (1, 3)
    first = int(endless[0, 0])
    assert greedy(encoder, decoder, source, src_pad=PAD, end=first, max_len=LONGEST).tolist() == [[first]]


def test_greedy_never_predicts_padding():
    encoder, decoder = an_encoder(), a_decoder()
    with torch.no_grad():
        decoder.embedding.embedding.weight[:PAD].sub_(100.0)  # all words but padding, whose product is 0, unlikely
        decoder.layers[-1].ffn_norm.bias.add_(100.0)
    found = greedy(encoder, decoder, sources(), src_pad=PAD, end=NEVER, max_len=LONGEST)
    assert (found != PAD).all()


def test_greedy_keeps_no_graph():
    encoder, decoder = an_encoder(), a_decoder()
    with_graph = []
    for module in (encoder, decoder):
        module.register_forward_hook(lambda module, inputs, states: with_graph.append(states.requires_grad))
    greedy(encoder, decoder, sources(), src_pad=PAD, end=NEVER, max_len=2)
    assert with_graph == [False, False, False]


# The fast forms


@pytest.mark.parametrize("form", FORMS)
def test_attention_and_its_gradients_are_the_fast_forms(dtype, close, form):
    ours, fast = MultiHeadAttention(E, H), MultiheadAttention(E, H, batch_first=True)
    per_head_to_fast(ours, fast)
    inputs, mask = sequences(dtype), mask_of(form)
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    output = ours(*inputs, mask)
    blocked = None if mask is None else ~keep_of(mask).repeat_interleave(H, 0)
    expected, _ = fast(*copies, attn_mask=blocked)
    assert_close(output, expected, **close)

    towards = torch.randn_like(output)
    output.backward(towards)
    expected.backward(towards)
    for x, other in zip(inputs, copies, strict=True):
        assert_close(x.grad, other.grad, **close)
    assert_same_attention_gradients(ours, fast, torch.arange(E), close)


def assert_same_attention_gradients(
    ours: MultiHeadAttention, fast: MultiheadAttention, order: Tensor, close: dict[str, float]
) -> None:
    for weight, expected in zip((ours.W_q, ours.W_k, ours.W_v), fast.in_proj_weight.grad.chunk(3), strict=True):
        for h in range(H):
            assert_close(weight.grad[h].T[:, order], expected[h * D : (h + 1) * D], **close)
    assert_close(ours.output.weight.grad[order], fast.out_proj.weight.grad, **close)
    assert_close(ours.output.bias.grad[order], fast.out_proj.bias.grad, **close)


SOURCE_WORDS = 23
SOURCE_PAD = SOURCE_WORDS - 1
ORDER = torch.tensor([*range(0, E, 2), *range(1, E, 2)])  # the fast model has all sines before all cosines


def reference_models(*, shared: bool = False) -> tuple[TransformerEncoder, TransformerDecoder]:
    """In the default dtype, in eval mode."""
    words = WORDS if shared else SOURCE_WORDS
    encoder = TransformerEncoder(words, LONGEST, words - 1, E, 2, FF, H, 0.1, 1e-5)
    decoder = TransformerDecoder(WORDS, LONGEST, PAD, E, 3, FF, H, 0.1, 1e-5)
    if shared:
        encoder.embedding.load_state_dict(decoder.embedding.state_dict())
    return encoder.eval(), decoder.eval()


def fast_of(encoder: TransformerEncoder, decoder: TransformerDecoder, *, shared: bool = False) -> Transformer:
    """The fast form with the same weights."""
    config = ModelConfig(
        source_vocab_size=WORDS if shared else SOURCE_WORDS,
        target_vocab_size=WORDS,
        shared_vocab=shared,
        d_model=E,
        heads=H,
        encoder_layers=2,
        decoder_layers=3,
        d_ff=FF,
    )
    fast = Transformer(config)
    transformer_to_fast(encoder, decoder, fast)
    return fast.eval()


@pytest.mark.parametrize("shared", [False, True], ids=["two vocabularies", "one vocabulary"])
def test_a_whole_model_and_its_gradients_are_the_fast_forms(dtype, close, shared):
    encoder, decoder = reference_models(shared=shared)
    draw_biases_and_norms(encoder, decoder)
    fast = fast_of(encoder, decoder, shared=shared)
    source, target = torch.randint(PAD, (B, K)), torch.randint(PAD, (B, Q))
    source_pad = fast.source_pad
    source[1, 3:] = source_pad
    target[:, 0] = PAD  # the start
    target[1, 4:] = PAD
    real = torch.ones(B, Q, dtype=torch.bool)
    real[1, 4:] = False  # the states of padding are nobody's

    mask = padding_mask(source, source_pad)
    memory = encoder(source, mask)
    states = decoder(target, memory, mask, decoder_mask(target, PAD))
    logits = decoder.logits(states)[..., :PAD]
    keep = keep_from_ids(source, source_pad)
    fast_memory = fast.encode(source, keep)
    fast_states, _ = fast.decode(target, fast.start(fast_memory, keep))
    fast_logits = fast(source, target)
    assert_close(memory[..., ORDER], fast_memory, **close)
    assert_close(states[..., ORDER][real], fast_states[real], **close)
    assert_close(logits[real], fast_logits[real], **close)

    towards = torch.randn(int(real.sum()), PAD) / real.sum()
    (logits[real] * towards).sum().backward()
    (fast_logits[real] * towards).sum().backward()
    assert_same_gradients(encoder, decoder, fast, close)


def assert_same_gradients(
    encoder: TransformerEncoder, decoder: TransformerDecoder, fast: Transformer, close: dict[str, float]
) -> None:
    source, target = (x.embedding.embedding.weight.grad[:, ORDER] * math.sqrt(E) for x in (encoder, decoder))
    if fast.source_embedding is None:
        assert_close(source + target, fast.target_embedding.weight.grad, **close)
    else:
        assert_close(source, fast.source_embedding.weight.grad, **close)
        assert_close(target, fast.target_embedding.weight.grad, **close)
    for ours, theirs in zip((*encoder.layers, *decoder.layers), (*fast.encoder, *fast.decoder), strict=True):
        attentions = [
            (ours.self_attention, theirs.self_attention, ours.self_attention_norm, theirs.self_attention_norm)
        ]
        if isinstance(ours, TransformerDecoderLayer):
            norms = (ours.source_attention_norm, theirs.source_attention_norm)
            attentions.append((ours.source_attention, theirs.source_attention, *norms))
        for attention, other, norm, other_norm in attentions:
            assert_same_attention_gradients(attention, other, ORDER, close)
            assert_close(norm.weight.grad[ORDER], other_norm.weight.grad, **close)
            assert_close(norm.bias.grad[ORDER], other_norm.bias.grad, **close)
        assert_close(ours.ffn.linear1.weight.grad[:, ORDER], theirs.feed_forward.inner.weight.grad, **close)
        assert_close(ours.ffn.linear1.bias.grad, theirs.feed_forward.inner.bias.grad, **close)
        assert_close(ours.ffn.linear2.weight.grad[ORDER], theirs.feed_forward.outer.weight.grad, **close)
        assert_close(ours.ffn.linear2.bias.grad[ORDER], theirs.feed_forward.outer.bias.grad, **close)
        assert_close(ours.ffn_norm.weight.grad[ORDER], theirs.feed_forward_norm.weight.grad, **close)
        assert_close(ours.ffn_norm.bias.grad[ORDER], theirs.feed_forward_norm.bias.grad, **close)


@pytest.mark.usefixtures("dtype")
@pytest.mark.parametrize("dtype", [torch.float64], indirect=True)  # where no two words are equally likely
def test_greedy_finds_what_the_fast_search_finds():
    end = EOS
    for seed in range(5):
        torch.manual_seed(seed)
        encoder, decoder = reference_models()
        babbling(encoder, decoder)
        source = sources(SOURCE_PAD)
        word = some_end(encoder, decoder, source, SOURCE_PAD)
        vectors = decoder.embedding.embedding.weight.data
        vectors[[end, word]] = vectors[[word, end]]  # the fast search ends at </s> = 0 alone

        found = greedy(encoder, decoder, source, src_pad=SOURCE_PAD, end=end, max_len=LONGEST)
        keep, limits = keep_from_ids(source, SOURCE_PAD), [LONGEST] * SENTENCES
        hypotheses = search.greedy(Engine.of(fast_of(encoder, decoder)), source, keep, limits, SearchConfig())
        for row, expected in zip(found.tolist(), hypotheses, strict=True):
            ids = row[: row.index(end)] if end in row else row
            assert ids == expected.ids
            assert all(token == PAD for token in row[len(ids) + 1 :])
        assert 0 < sum(end in row for row in found.tolist()) < SENTENCES


# Errors


@pytest.mark.parametrize(
    ("d_model", "h", "words"),
    [
        (8, 512, r"d_model 8, h 512: d_model comes first, was MultiHeadAttention\(512, 8\) meant\?"),
        (10, 3, "d_model 10, h 3"),
        (3, 10, "d_model 3, h 10"),  # swapped they don't fit, either: no hint
        (0, 8, "d_model 0, h 8"),
        (8, 0, "d_model 8, h 0"),
        (8, -2, "d_model 8, h -2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(d_model, h, words):
    with pytest.raises(ValueError, match=rf"^d_model must be a positive multiple of h, got {words}$"):
        MultiHeadAttention(d_model, h)


def test_d_model_comes_first():
    module = MultiHeadAttention(512, 8)
    assert (module.h, module.d_k) == (8, 64)
    with pytest.raises(ValueError, match=r"got d_model 3, h 33: d_model comes first, was .*\(33, 3\) meant\?$"):
        MultiHeadAttention(H, E)


# Learned: sequences in reverse


def test_learns_to_reverse():
    end, symbols, length = 0, 6, 4
    pad = symbols + 1
    sizes = (length + 1, pad, 32, 1, 64, 4, 0.0, 1e-5)
    encoder, decoder = TransformerEncoder(pad + 1, *sizes), TransformerDecoder(pad + 1, *sizes)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    steps = 300
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        """Sources of 2 to 4 symbols and their reverses, which end; padding behind both."""
        source, target = torch.full((count, length), pad), torch.full((count, length + 1), pad)
        for n, size in enumerate(torch.randint(2, length + 1, (count,)).tolist()):
            word = torch.randint(1, symbols + 1, (size,))
            source[n, :size], target[n, :size], target[n, size] = word, word.flip(0), end
        return source, target

    for _ in range(steps):
        source, target = draw(64)
        mask = padding_mask(source, pad)
        target_in = torch.cat([torch.full((64, 1), pad), target[:, :-1]], dim=1)
        states = decoder(target_in, encoder(source, mask), mask, decoder_mask(target_in, pad))
        logits = decoder.logits(states)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    source, target = draw(200)
    found = greedy(encoder, decoder, source, src_pad=pad, end=end, max_len=length + 1)
    right = (found == target[:, : found.shape[1]]).all(1).double().mean()
    assert right >= 0.95


@pytest.mark.parametrize("h", [1, 2])
def test_batches_of_different_size_are_refused(h):
    q, k = torch.randn(2, 3, 8), torch.randn(1, 5, 8)
    with pytest.raises(
        ValueError, match=r"must have one batch size, and k and v one length, got \(2, 3, 8\), \(1, 5, 8\)"
    ):
        MultiHeadAttention(8, h)(q, k, k)
