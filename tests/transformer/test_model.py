import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from glassformer.attention.masks import keep_from_ids
from glassformer.attention.multihead import MultiheadAttention
from glassformer.attention.packing import Packing
from glassformer.errors import ArgumentError
from glassformer.transformer.cache import Cache
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.dropout import Dropout
from glassformer.transformer.model import Transformer, count_parameters, weight_shapes

B, H, T, S, D, FF = 2, 3, 5, 7, 11, 13  # distinct primes: a swapped axis cannot pass
E = H * D
WIDTH = 3  # hypotheses of each source
SOURCE_VOCAB, TARGET_VOCAB = 17, 19
SOURCE_PAD, TARGET_PAD = SOURCE_VOCAB - 1, TARGET_VOCAB - 1
EXACT = dict(rtol=0, atol=1e-12)


Weights = dict[str, Tensor]


def make(*, shared: bool = False, **changes: Any) -> Transformer:
    """A small model; biases and norms too are drawn, so that losing one shows."""
    vocabularies = dict(source_vocab_size=TARGET_VOCAB if shared else SOURCE_VOCAB, target_vocab_size=TARGET_VOCAB)
    sizes = dict(d_model=E, heads=H, encoder_layers=2, decoder_layers=3, d_ff=FF, dropout=0.0)
    model = Transformer(ModelConfig(**vocabularies, shared_vocab=shared, **{**sizes, **changes}))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return model


@pytest.fixture(scope="module")
def exact() -> Transformer:
    torch.manual_seed(0)
    return make().double().eval()


def source_ids(lengths: list[int], pad: int = SOURCE_PAD) -> Tensor:
    ids = torch.randint(0, pad, (len(lengths), max(lengths)))
    return ids.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], pad)


def target_ids(rows: int = B, length: int = T) -> Tensor:
    """Shifted right: starts with padding."""
    ids = torch.randint(0, TARGET_PAD, (rows, length))
    ids[:, 0] = TARGET_PAD
    return ids


def start(model: Transformer, source: Tensor) -> Cache:
    keep = keep_from_ids(source, model.source_pad)
    return model.start(model.encode(source, keep), keep)


# The same model written out: one sentence at a time, without padding, masks, caches or batches


def plain_logits(weights: Weights, source: Tensor, target_in: Tensor, norm_first: bool, final_norm: bool) -> Tensor:
    def stack(side: str, layers: int, x: Tensor, sublayers: dict[str, Callable[..., Tensor]]) -> Tensor:
        for n in range(layers):
            for name, sublayer in sublayers.items():
                w, norm = (part(weights, f"{side}.{n}.{name}{ending}") for ending in ("", "_norm"))
                x = x + sublayer(w, plain_norm(norm, x)) if norm_first else plain_norm(norm, x + sublayer(w, x))
        return plain_norm(part(weights, f"{side}_norm"), x) if final_norm else x

    encoder = {"self_attention": lambda w, x: plain_attention(w, x, x), "feed_forward": plain_feed_forward}
    decoder = {
        "self_attention": lambda w, x: plain_attention(w, x, x, causal=True),
        "source_attention": lambda w, x: plain_attention(w, x, memory),
        "feed_forward": plain_feed_forward,
    }
    memory = stack("encoder", 2, plain_embed(weights["source_embedding.weight"], source), encoder)
    states = stack("decoder", 3, plain_embed(weights["target_embedding.weight"], target_in), decoder)
    return states @ weights["target_embedding.weight"][:TARGET_PAD].T


def part(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(f"{prefix}."): w for name, w in weights.items() if name.startswith(f"{prefix}.")}


def plain_embed(table: Tensor, ids: Tensor) -> Tensor:
    rows = []
    for position, token in enumerate(ids):
        angles = [position / 10000 ** (2 * i / E) for i in range((E + 1) // 2)]
        sinusoid = [math.sin(a) for a in angles] + [math.cos(a) for a in angles[: E // 2]]
        rows.append(table[token] * math.sqrt(E) + torch.tensor(sinusoid, dtype=torch.float64))
    return torch.stack(rows)


def plain_attention(w: Weights, x: Tensor, memory: Tensor, *, causal: bool = False) -> Tensor:
    projections = zip((x, memory, memory), w["in_proj_weight"].split(E), w["in_proj_bias"].split(E), strict=True)
    q, k, v = (seen @ weight.T + bias for seen, weight, bias in projections)
    rows = []
    for query in range(len(x)):
        heads = []
        for columns in torch.arange(E).split(D):
            keys = slice(query + 1 if causal else None)
            exponentials = (k[keys, columns] @ q[query, columns] / math.sqrt(D)).exp()
            heads.append(exponentials / exponentials.sum() @ v[keys, columns])
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ w["out_proj.weight"].T + w["out_proj.bias"]


def plain_feed_forward(w: Weights, x: Tensor) -> Tensor:
    return (x @ w["inner.weight"].T + w["inner.bias"]).clamp(min=0) @ w["outer.weight"].T + w["outer.bias"]


def plain_norm(w: Weights, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["weight"] + w["bias"]


NORMS = [dict(norm_first=first, final_norm=final) for first in (False, True) for final in (False, True)]


@pytest.mark.parametrize("norms", NORMS, ids=str)
def test_logits_and_gradients_are_those_of_the_model_written_out(norms):
    model, lengths = make(**norms).double(), [S, 3]
    source, target_in = source_ids(lengths), target_ids()
    towards = torch.randn(B, T, TARGET_PAD, dtype=torch.float64)
    logits = model(source, target_in)
    logits.backward(towards)
    with torch.no_grad():
        logits_alone = model.eval()(source, target_in)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for b, length in enumerate(lengths):
        expected = plain_logits(weights, source[b, :length], target_in[b], **norms)
        assert_close(logits[b], expected, **EXACT)
        assert_close(logits_alone[b], expected, **EXACT)
        expected.backward(towards[b])
    for name, parameter in model.named_parameters():
        expected = weights[name].grad
        if name == "target_embedding.weight":  # the model starts from padding and yet leaves its embedding alone
            assert (parameter.grad[TARGET_PAD] == 0).all()
            assert expected[TARGET_PAD].any()
            expected[TARGET_PAD] = 0.0
        assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-11)


def test_shared_vocabulary_is_the_separate_one_with_equal_embeddings():
    shared = make(shared=True).double().eval()
    config = ModelConfig.from_json({**shared.config.to_json(), "shared_vocab": False})
    separate = Transformer(config).double().eval()
    weights = shared.state_dict()
    separate.load_state_dict({**weights, "source_embedding.weight": weights["target_embedding.weight"]})
    source, target_in = source_ids([S, 3], TARGET_PAD), target_ids()
    assert torch.equal(shared(source, target_in), separate(source, target_in))


# Decoding step by step

COMPOSITIONS = [
    tuple(b - a for a, b in itertools.pairwise((0, *cuts, T)))
    for count in range(T)
    for cuts in itertools.combinations(range(1, T), count)
]


@pytest.mark.parametrize(("steps", "norms"), [(steps, NORMS[n % 4]) for n, steps in enumerate(COMPOSITIONS)], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_states_are_the_same_in_any_number_of_steps(steps, norms, grad):
    model = make(**norms).double().eval()
    source, target_in = source_ids([S, 3]), target_ids()
    with torch.set_grad_enabled(grad):
        expected, whole = model.decode(target_in, start(model, source))
        cache, states = start(model, source), []
        for part in target_in.split(steps, dim=1):
            state, cache = model.decode(part, cache)
            states.append(state)
    assert cache.length == whole.length == T
    assert_close(torch.cat(states, dim=1), expected, **EXACT)
    for one, other in zip(cache.layers, whole.layers, strict=True):
        assert_close((one.keys, one.values), (other.keys, other.values), **EXACT)


@torch.no_grad()
def test_decoding_leaves_the_cache_it_was_given_unchanged(exact):
    source, target_in = source_ids([S, 3]), target_ids()
    _, cache = exact.decode(target_in[:, :2], start(exact, source))
    before = copy.deepcopy(cache)
    first, later = exact.decode(target_in[:, 2:], cache)
    again, _ = exact.decode(target_in[:, 2:], cache)
    assert torch.equal(first, again)
    assert cache.length == 2
    for one, other in zip(cache.layers, before.layers, strict=True):
        for name in ("keys", "values", "memory_keys", "memory_values"):
            assert torch.equal(getattr(one, name), getattr(other, name))
    for one, other in zip(later.layers, cache.layers, strict=True):  # the source's are handed on, not copied
        assert one.memory_keys is other.memory_keys
        assert one.memory_values is other.memory_values


def test_hypotheses_of_a_source_share_its_memory(exact):
    # Row b * WIDTH + w; each equals its own decoding, alone with its source.
    lengths = [S, 3]
    source, target_in = source_ids(lengths), target_ids(B * WIDTH)
    first, cache = exact.decode(target_in[:, :2], start(exact, source))
    rest, cache = exact.decode(target_in[:, 2:], cache)
    found = torch.cat([first, rest], dim=1)
    assert cache.layers[0].memory_keys.shape[0] == B
    for row in range(B * WIDTH):
        b = row // WIDTH
        alone = start(exact, source[b : b + 1, : lengths[b]])
        expected, _ = exact.decode(target_in[row : row + 1], alone)
        assert_close(found[row], expected[0], **EXACT)


def test_targets_that_do_not_fit_the_cache_are_refused(exact):
    nothing = start(exact, source_ids([S, 3])[:0])
    with pytest.raises(ArgumentError, match=r"as many rows as the cache has sources, 0, or a multiple of it, got 3$"):
        exact.decode(target_ids(3), nothing)
    cache = start(exact, source_ids([S, 3]))
    with pytest.raises(ArgumentError, match=r"as many rows as the cache has sources, 2, or a multiple of it, got 3$"):
        exact.decode(target_ids(3), cache)
    with pytest.raises(ArgumentError, match=r"the cache has 5 positions of each already: start from model\.start\("):
        exact.decode(target_ids(), exact.decode(target_ids(), cache)[1], Packing.of([T, T]))


# Padding and the future


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, S), min_size=2, max_size=4))
def test_padded_in_a_batch_or_alone_is_the_same(exact, lengths):
    source, target_in = source_ids(lengths), target_ids(len(lengths))
    memory, logits = exact.encode(source, keep_from_ids(source, SOURCE_PAD)), exact(source, target_in)
    for b, length in enumerate(lengths):
        assert_close(memory[b, :length], exact.encode(source[b : b + 1, :length])[0], **EXACT)
        assert_close(logits[b], exact(source[b : b + 1, :length], target_in[b : b + 1])[0], **EXACT)


def test_empty_source_is_finite_and_leaves_the_others_alone(exact):
    source, target_in = source_ids([S, 3]), target_ids()
    expected = exact(source, target_in)
    source[1] = SOURCE_PAD
    found = exact(source, target_in)
    assert_close(found[0], expected[0], **EXACT)
    assert found.isfinite().all()


def test_a_batch_may_be_empty(exact):
    source, target_in = source_ids([S])[:0], target_ids(1)[:0]
    assert exact(source, target_in).shape == (0, target_in.shape[1], exact.config.target_pad)
    states, cache = exact.decode(target_in[:, :1], exact.start(exact.encode(source)))
    assert states.shape == (0, 1, exact.config.d_model)
    assert cache is not None


# Rows of sequences side by side

SIDES = ([5, 11, 2, 7, 1], [3, 2, 13, 5, 7])  # rows of 26 for 26 source tokens, of 30 for 30 target ones
MORE_SIDES = ([5, 11, 2, 7, 1, 3], [3, 2, 13, 5, 7, 3])  # 30 for 29, 36 for 33
VARIATIONS = [
    {},
    *NORMS[1:],
    {"shared": True},
    {"activation": "gelu"},
    {"activation": "swish"},
    {"scale_embedding": False},
    {"tied_output": False, "output_bias": True},
]


def sequences(lengths: Sequence[int], pad: int) -> list[Tensor]:
    return [torch.randint(0, pad, (length,)) for length in lengths]


def padded_states(model: Transformer, sources: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Memory and states of every token, sequence after sequence, from padded batches."""
    source = pad_sequence(sources, batch_first=True, padding_value=model.source_pad)
    target_in = pad_sequence(targets, batch_first=True, padding_value=model.target_pad)
    keep = keep_from_ids(source, model.source_pad)
    memory = model.encode(source, keep)
    states, _ = model.decode(target_in, model.start(memory, keep))
    return tuple(
        torch.cat([line[: len(ids)] for line, ids in zip(grid, side, strict=True)])
        for grid, side in ((memory, sources), (states, targets))
    )


def packed_states(model: Transformer, sources: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The same from rows, their filling left out."""
    source, target = (Packing.of([len(ids) for ids in side]) for side in (sources, targets))
    memory = model.encode(source.fill(torch.cat(sources), model.source_pad), source.keep, source)
    cache = model.start(memory, source.keep, source)
    states, cache = model.decode(target.fill(torch.cat(targets), model.target_pad), cache, target)
    assert cache.layers[0].memory_keys.shape[::2] == (len(sources), source.longest)
    return memory[0, : source.tokens], states[0, : target.tokens]


@pytest.mark.parametrize("sides", [SIDES, MORE_SIDES], ids=["full rows", "filled rows"])
@pytest.mark.parametrize("variation", VARIATIONS, ids=str)
def test_rows_give_the_states_and_gradients_of_padded_batches(variation, sides):
    model = make(**variation).double()
    sources, targets = sequences(sides[0], model.source_pad), sequences(sides[1], model.target_pad)
    towards = [torch.randn(sum(lengths), E, dtype=torch.float64) for lengths in sides]
    close, grads = dict(rtol=1e-10, atol=1e-10), []
    expected, found = padded_states(model, sources, targets), packed_states(model, sources, targets)
    assert_close(found, expected, **close)
    learnt = [parameter for name, parameter in model.named_parameters() if not name.startswith("output")]
    for states in (found, expected):
        loss = sum((x * y).sum() for x, y in zip(states, towards, strict=True))
        grads.append(torch.autograd.grad(loss, learnt))
    assert_close(*grads, **close)
    with torch.no_grad():
        assert_close(packed_states(model, sources, targets), expected, **close)


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_rows_of_any_lengths_give_the_states_of_padded_batches(exact, lengths):
    source, target = zip(*lengths, strict=True)
    sides = sequences(source, SOURCE_PAD), sequences(target, TARGET_PAD)
    found, expected = (states(exact, *sides) for states in (packed_states, padded_states))
    assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_sequences_longer_than_the_ready_positions_in_a_row():
    model = make(d_model=6, heads=2, encoder_layers=1, decoder_layers=1).eval()
    sides = sequences([3, 1031], SOURCE_PAD), sequences([1033, 5], TARGET_PAD)
    with torch.no_grad():
        assert_close(packed_states(model, *sides), padded_states(model, *sides), rtol=1e-4, atol=1e-5)
        model.double()
        assert_close(packed_states(model, *sides), padded_states(model, *sides), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_rows_are_as_short_as_the_products_and_near(dtype):
    model = make()
    sides = sequences(SIDES[0], SOURCE_PAD), sequences(SIDES[1], TARGET_PAD)
    expected = packed_states(model, *sides)
    with torch.autocast("cpu", dtype):
        rows, padded = packed_states(model, *sides), padded_states(model, *sides)
    for found in (rows, padded):
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == dtype
            assert (one.float() - other).std() < 0.03 * other.std()


# Weights


@pytest.mark.parametrize("switches", [*itertools.product([False, True], repeat=5)], ids=str)
def test_weight_shapes_are_those_of_the_model_and_each_is_held_once(switches):
    shared, tied, bias, norm_first, final_norm = switches
    changes = dict(tied_output=tied, output_bias=bias, norm_first=norm_first, final_norm=final_norm)
    model = make(shared=shared, **changes)
    weights = model.state_dict()
    assert weight_shapes(model.config) == {name: tuple(weight.shape) for name, weight in weights.items()}
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert len({weight.untyped_storage().data_ptr() for weight in weights.values()}) == len(weights)
    assert count_parameters(model.config) == sum(weight.numel() for weight in weights.values())


def test_weights_follow_the_seed_and_norms_draw_nothing():
    def draw(seed: int, **changes: bool) -> Weights:
        torch.manual_seed(seed)
        return Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=11, **changes)).state_dict()

    first, with_norms, other = draw(3), draw(3, final_norm=True), draw(5)
    assert all(torch.equal(weight, with_norms[name]) for name, weight in first.items())
    assert not any(torch.equal(weight, other[name]) for name, weight in first.items() if weight.dim() == 2)


def test_first_weights():
    sizes = dict(source_vocab_size=499, target_vocab_size=503, d_model=64, heads=4, d_ff=96)
    model = Transformer(ModelConfig(**sizes, shared_vocab=False, final_norm=True))
    for embedding in (model.source_embedding, model.target_embedding):
        weight = embedding.weight
        assert (weight[-1] == 0).all()
        assert abs(weight[:-1].std().item() * 8 - 1) < 0.02  # d_model^-0.5 = 1 / 8
        assert abs(weight[:-1].mean().item()) < 0.01
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "embedding" not in name:
            # Xavier uniform; the widest of some thousand draws comes close to the limit.
            limit = math.sqrt(6 / sum(parameter.shape))
            assert 0.99 * limit < parameter.abs().max() <= limit, name


# Training


def loss_of(model: Transformer, *, half: bool, empty_source: bool = False) -> Tensor:
    """The loss of a random batch with padding on either side."""
    source, target_out = source_ids([S, 3], model.source_pad), torch.randint(0, TARGET_PAD, (B, T))
    if empty_source:
        source[1] = model.source_pad
    target_out[0, 2:] = TARGET_PAD
    target_in = torch.cat([torch.full((B, 1), TARGET_PAD), target_out[:, :-1]], dim=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = model(source, target_in).float()
    return cross_entropy(logits.transpose(1, 2), target_out, ignore_index=TARGET_PAD, label_smoothing=0.1)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_padding_rows_of_embeddings_stay_exactly_zero_while_the_others_learn(shared, half):
    model = make(shared=shared, dropout=0.1, attention_dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    before = copy.deepcopy(model)
    for _ in range(3):
        loss_of(model, half=half).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name in ("target_embedding",) if shared else ("source_embedding", "target_embedding"):
        weight, first = getattr(model, name).weight, getattr(before, name).weight
        assert (weight[-1] == 0).all(), name
        changed = (weight != first).any(-1)
        assert changed.sum() > (TARGET_VOCAB - 2 if name == "target_embedding" else S), name


@pytest.mark.parametrize("shared", [True, False])
def test_padding_embedding_has_no_gradient_even_where_padding_may_be_looked_at(shared):
    model = make(shared=shared)
    source, target_in = source_ids([S, 3], model.source_pad), target_ids()
    states, _ = model.decode(target_in, model.start(model.encode(source)))
    states.square().sum().backward()
    for embedding in (model.target_embedding, model.source_embedding or model.target_embedding):
        assert (embedding.weight.grad[-1] == 0).all()
        assert embedding.weight.grad[:-1].any()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("empty_source", [True, False])
def test_every_parameter_receives_a_finite_gradient(shared, half, empty_source):
    model = make(shared=shared, dropout=0.1, attention_dropout=0.1)
    loss_of(model, half=half, empty_source=empty_source).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_a_model_in_half_precision_is_near():
    model = make().eval()
    source, target_in = source_ids([S, 3]), target_ids()
    expected = model(source, target_in)
    found = model.bfloat16()(source, target_in)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).std() < 0.03 * expected.std()


# Dropout


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("rates", [{"dropout": 0.3}, {"attention_dropout": 0.3}])
def test_dropout_acts_in_training_only_and_follows_the_seed(rates, packed):
    model, without = make(**rates), make().eval()
    without.load_state_dict(model.state_dict())
    sides = sequences([S, 3], SOURCE_PAD), sequences([T, T], TARGET_PAD)
    states = packed_states if packed else padded_states

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return states(model, *sides)[1]

    first, again, other = drawn(5), drawn(5), drawn(7)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    model.eval()
    assert torch.equal(drawn(5), states(without, *sides)[1])


def test_dropout_rates_reach_every_layer():
    model = make(dropout=0.3, attention_dropout=0.2)
    assert [m.p for m in model.modules() if isinstance(m, Dropout)] == [0.3] * 6
    assert [m.dropout for m in model.modules() if isinstance(m, MultiheadAttention)] == [0.2] * (2 + 2 * 3)


def test_embeddings_are_dropped_after_positions_are_added():
    # With all of it dropped, neither ids nor positions are left to tell.
    model, dropped = make().double().eval(), []
    model.dropout.register_forward_hook(
        lambda module, inputs, output: dropped.append(inputs) or torch.zeros_like(output)
    )
    memory = model.encode(source_ids([S, S]))
    assert_close(memory, memory[:1, :1].expand(B, S, E), **EXACT)
    states, _ = model.decode(target_ids(), model.start(memory))
    assert_close(states, states[:1, :1].expand(B, T, E), **EXACT)
    assert len(dropped) == 2  # on either side once


def test_nothing_is_left_behind_on_modules():
    model = make().eval()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    model(source_ids([S, 3]), target_ids())
    values = [value for module in model.modules() for value in vars(module).values()]
    assert not any(isinstance(value, Tensor | Cache) for value in values)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
