import functools
import math
import operator
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.generation.batches import search_all
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines import engine as engine_module
from glassformer.generation.engines.cache import BeamCache
from glassformer.generation.engines.engine import READY_POSITIONS, Engine
from glassformer.generation.engines.graph import FixedCache
from glassformer.text.batching import pad_source
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

B, W, S, T, H, D_HEAD = 3, 5, 11, 13, 2, 7  # distinct primes: a swapped axis cannot pass
LENGTHS = [S, 3, 7]
SOURCE_VOCAB, TARGET_VOCAB = 19, 23

CHANGES = [
    dict(shared_vocab=True),
    dict(tied_output=False),
    dict(output_bias=True),
    dict(activation="swish"),
    dict(activation="gelu"),
    dict(scale_embedding=False),
    dict(norm_first=True),
    dict(final_norm=True),
]
EVERYTHING = functools.reduce(operator.or_, CHANGES)
VARIATIONS = [{}, *CHANGES, dict(norm_first=True, final_norm=True), EVERYTHING]
every_model = pytest.mark.parametrize("changes", VARIATIONS, ids=lambda changes: ",".join(changes) or "default")


def random_model(dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
    """A small model with no number left at 0 or 1."""
    source_vocab = TARGET_VOCAB if changes.get("shared_vocab") else SOURCE_VOCAB
    vocabularies = dict(source_vocab_size=source_vocab, target_vocab_size=TARGET_VOCAB, shared_vocab=False)
    sizes = dict(d_model=H * D_HEAD, heads=H, encoder_layers=3, decoder_layers=2, d_ff=17)
    dropped = dict(dropout=0.5, attention_dropout=0.5)
    model = Transformer(ModelConfig(**{**vocabularies, **sizes, **dropped, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn_like(parameter)
            if "embedding" in name:
                parameter[-1] = 0.0
    return model.to(dtype)


def batch(model: Transformer) -> tuple[Tensor, Tensor]:
    """Sources of different lengths, and where they aren't padding."""
    return pad_source([torch.randint(0, model.source_pad, (n,)) for n in LENGTHS], model.source_pad)


@torch.no_grad()
def taught(model: Transformer, target_in: Tensor, source: Tensor, keep: Tensor | None = None) -> Tensor:
    """The model's own logits at all positions of given targets, of which a source may have several."""
    return model.logits(model.decode(target_in, model.start(model.encode(source, keep), keep))[0])


def check_steps(
    model: Transformer,
    steps: int,
    *,
    width: int = W,
    leave: dict[int, list[int]] | None = None,
    kind: type[BeamCache] = BeamCache,
) -> None:
    """Step by step with random tokens and parents, every hypothesis is as if its own past alone had been read.

    `leave` are the sources to go on with from a step on.
    """
    engine, (source, keep) = Engine.of(model), batch(model)
    engine.cache_kind = kind
    cache = engine.start(source, keep, width)
    pasts = torch.full((B, width, 1), model.target_pad)  # what each hypothesis has read
    for step in range(steps):
        found, _ = engine.step(pasts[:, :, -1].flatten(), cache)
        assert (cache.length, cache.sources) == (step + 1, len(source))
        expected = taught(model, pasts.flatten(0, 1), source, keep)[:, -1]
        assert_close(found[:, : model.target_pad], expected, rtol=0, atol=1e-10)
        parents = torch.randint(0, width, (len(source), width))
        cache.branch(parents)
        tokens = torch.randint(0, model.target_pad, (len(source), width, 1))
        pasts = torch.cat([torch.stack([p[w] for p, w in zip(pasts, parents, strict=True)]), tokens], 2)
        if leave and step in leave:
            kept = torch.tensor(leave[step])
            cache.take_sources(kept)
            source, keep, pasts = source[kept], keep[kept], pasts[kept]


def both_ways(engine: Engine, source: Tensor, keep: Tensor, target_in: Tensor) -> list[Tensor]:
    """Logits of the predictable ids at all positions, computed together and one after the other."""
    cache = engine.start(source, keep, 1)
    stepped = torch.stack([engine.step(tokens, cache)[0] for tokens in target_in.T], 1)
    return [logits[..., : engine.target_pad] for logits in (engine.decode(target_in, source, keep), stepped)]


# Whole sequences


@every_model
def test_decode_is_the_models_teacher_forcing(changes):
    model = random_model(**changes)
    engine, (source, keep) = Engine.of(model), batch(model)
    target_in = torch.randint(0, TARGET_VOCAB, (B, T))
    expected = taught(model, target_in, source, keep)
    found = engine.decode(target_in, source, keep)
    assert_close(found[..., : model.target_pad], expected, rtol=0, atol=1e-10)
    assert_close(engine.decode(target_in[1:2], source[1:2, :3]), found[1:2], rtol=0, atol=1e-10)  # without padding


def test_sequences_may_be_longer_than_the_positions_kept_ready():
    model = random_model(encoder_layers=1, decoder_layers=1)
    length = READY_POSITIONS + 7
    source, target_in = torch.randint(0, model.source_pad, (1, length)), torch.randint(0, TARGET_VOCAB, (1, length))
    expected = taught(model, target_in, source)
    assert_close(Engine.of(model).decode(target_in, source)[..., : model.target_pad], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("predictable", [3, 127, 128, 129, 255])
def test_logits_are_filled_up_to_a_multiple_of_128_classes_that_are_never_chosen(predictable):
    model = random_model(target_vocab_size=predictable + 1)
    engine, (source, keep), classes = Engine.of(model), batch(model), 128 * math.ceil(predictable / 128)
    target_in = torch.randint(0, model.target_pad, (B, T))
    taught_logits = engine.decode(target_in, source, keep)
    stepped_logits, _ = engine.step(target_in[:, 0], engine.start(source, keep, 1))
    for logits, shape in ((taught_logits, (B, T, classes)), (stepped_logits, (B, classes))):
        assert logits.shape == shape
        assert logits[..., :predictable].isfinite().all()
        assert (logits[..., predictable:] == -torch.inf).all()


# Step by step


@every_model
def test_steps_are_teacher_forcing_of_each_hypothesis_own_past(changes):
    check_steps(random_model(**changes), 5)


class ShortCache(FixedCache):
    steps_at_once = 5


LEAVES = [{0: [0, 2]}, {2: [0, 2], 7: [1]}, {3: [1], 4: [0]}, {4: [1, 2]}, {5: [1, 2]}, {4: [1], 9: [0]}]
LEAVES_AS_THE_CACHE_GROWS = [{step: [0, 2]} for step in (14, 15, 16, 31)]


@pytest.mark.parametrize("width", [1, 2, 3, 13])
@pytest.mark.parametrize("kind", [BeamCache, ShortCache])
def test_the_cache_grows_past_its_first_steps(width, kind):
    check_steps(random_model(encoder_layers=1, decoder_layers=1), 37, width=width, kind=kind)


@pytest.mark.parametrize(
    ("leave", "kind", "width"),
    [*product(LEAVES, [BeamCache, ShortCache], [1, 3]), *product(LEAVES_AS_THE_CACHE_GROWS, [BeamCache], [2])],
)
def test_sources_may_leave_at_any_step(leave, kind, width):
    check_steps(random_model(encoder_layers=1), max(13, max(leave) + 5), width=width, leave=leave, kind=kind)


def test_steps_go_past_the_positions_kept_ready(monkeypatch):
    monkeypatch.setattr(engine_module, "READY_POSITIONS", 5)
    check_steps(random_model(), 11)


@pytest.mark.parametrize("kind", [BeamCache, FixedCache])
def test_a_cache_whose_hypotheses_meet_and_then_part_keeps_its_sizes(kind):
    """Slots are dropped first, to a number that isn't a multiple of the width, and later none can be."""
    model, width, sources = random_model(encoder_layers=1, decoder_layers=1), 3, 2
    engine, (source, keep) = Engine.of(model), batch(model)
    engine.cache_kind = kind
    cache = engine.start(source[:sources], keep[:sources], width)
    for step in range(160):
        cache.extend()
        keys, _ = cache.write(0, torch.zeros(2, sources, H, width, D_HEAD, dtype=torch.float64))
        assert cache.slot_bias is not None
        assert keys.shape[2] == cache.slot_bias.shape[3]
        together = step < 58 or (step < 61 and step % 2)
        cache.branch(
            torch.zeros(sources, width, dtype=torch.long) if together else torch.arange(width).expand(sources, -1)
        )


@pytest.mark.parametrize("width", [1, 3])
def test_every_step_of_a_fixed_cache_reads_and_writes_at_the_same_addresses(width):
    model = random_model()
    engine, (source, keep) = Engine.of(model), batch(model)
    engine.cache_kind = FixedCache
    cache = engine.start(source, keep, width)
    assert isinstance(cache, FixedCache)
    seen = set()
    for step in range(7):
        engine.step(torch.full((B * width,), 3), cache)
        slots = cache.write(0, torch.zeros(2, B, H, width, D_HEAD, dtype=torch.float64))
        assert cache.slot_bias is not None
        seen.add(tuple((x.data_ptr(), x.shape) for x in (*slots, cache.slot_bias, cache.position)))
        assert cache.position.tolist() == [step]
        cache.branch(torch.randint(0, width, (B, width)))
    assert len(seen) == 1


def test_the_newest_tokens_place_may_be_a_number_in_memory():
    model = random_model()
    engine, (source, keep) = Engine.of(model), batch(model)
    decoder, tokens, found = engine._decoder, torch.arange(B * W), []
    for place in (4, torch.tensor([4])):
        cache = engine.start(source, keep, W)
        cache.extend()
        found.append(decoder.step(tokens, cache, place)[0])
    assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [1, 3])
def test_steps_replayed_from_a_graph_change_no_result(width):
    model = random_model(torch.float32)
    on_gpu = deepcopy(model).cuda()
    sources = [torch.randint(0, model.source_pad, (n,)).tolist() for n in (S, 3, 7, 5, 2)]
    found = [
        search_all(Engine.of(of), sources, SearchConfig(beam=width, max_length=90, min_length=3))
        for of in (model, on_gpu)
    ]
    assert [[h.ids for h in best] for best in found[0]] == [[h.ids for h in best] for best in found[1]]


@pytest.mark.parametrize("kind", [BeamCache, FixedCache])
def test_the_first_step_is_computed_once_for_hypotheses_that_begin_alike(kind):
    model = random_model()
    source, keep = batch(model)
    engine = Engine.of(model)
    engine.cache_kind = kind
    once, each = engine.start(source, keep, W), engine.start(source, keep, W)
    tokens = source.new_full((B * W,), engine.target_pad)
    for step in range(3):
        log_probs, classes, query = engine.step_best(tokens, once, W, None)
        logits, expected_query = engine.step(tokens, each)
        expected, expected_classes = logits.log_softmax(-1).topk(W)
        assert_close(log_probs, expected)
        assert classes.equal(expected_classes), step
        assert_close(query, expected_query)
        tokens = classes.view(B, W, W)[:, 0].flatten()


def test_a_step_takes_sources_without_padding_as_they_are():
    model = random_model()
    engine, source = Engine.of(model), torch.randint(0, model.source_pad, (B, S))
    found = []
    for keep in (None, torch.ones(B, 1, 1, S, dtype=torch.bool)):
        cache = engine.start(source, keep, W)
        found.append(engine.step(torch.arange(B * W), cache)[0])
    expected = taught(model, torch.arange(B * W)[:, None], source)[:, 0]
    assert_close([logits[:, : model.target_pad] for logits in found], [expected] * 2, rtol=0, atol=1e-10)


# Alignment


@every_model
def test_alignment_is_the_last_layers_attention_to_the_source_mean_of_its_heads(changes):
    model = random_model(**changes)
    engine, (source, keep) = Engine.of(model), batch(model)
    tokens = torch.randint(0, model.target_pad, (2, B * W))
    cache = engine.start(source, keep, W)
    engine.step(tokens[0], cache)
    _, query = engine.step(tokens[1], cache)
    found = engine.alignment(query, cache)
    assert found.shape == (B, W, S)
    assert (found[~keep[:, 0].expand(B, W, S)] == 0).all()

    attention, seen = model.decoder[-1].source_attention, []
    look = attention.attend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attend", lambda q, k, v, **masks: seen.append((q, k)) or look(q, k, v, **masks))
        taught(model, tokens.T, source.repeat_interleave(W, 0), keep.repeat_interleave(W, 0))
    [(q, k)] = seen  # of each hypothesis as a source of its own
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(D_HEAD)
    weights = scores.masked_fill(~keep.repeat_interleave(W, 0), -torch.inf).softmax(-1).mean(1)[:, -1]
    assert_close(found.double(), weights.view(B, W, S), rtol=0, atol=1e-6)


# Precision, and what an engine leaves alone


@every_model
def test_float32_is_as_near_as_float32_is(changes):
    model = random_model(torch.float32, **changes)
    engine, (source, keep) = Engine.of(model), batch(model)
    assert engine.dtype == torch.float32
    target_in = torch.randint(0, TARGET_VOCAB, (B, T))
    expected = taught(model, target_in, source, keep)
    for found in both_ways(engine, source, keep, target_in):
        assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_half_precision_is_near(dtype, norm_first):
    model = random_model(norm_first=norm_first)
    engine, (source, keep) = Engine.of(model, dtype), batch(model)
    assert engine.dtype == dtype
    target_in = torch.randint(0, TARGET_VOCAB, (B, T))
    expected = taught(model, target_in, source, keep).log_softmax(-1)
    for logits in both_ways(engine, source, keep, target_in):
        error = (logits.double().log_softmax(-1) - expected).square().mean().sqrt() / expected.std()
        assert error < (0.03 if dtype == torch.bfloat16 else 0.004)


def test_nothing_is_dropped_no_gradient_kept_and_the_model_left_as_it_is():
    model = random_model()
    source, keep = batch(model)
    target_in, before = torch.randint(0, TARGET_VOCAB, (B, T)), deepcopy(model.state_dict())
    expected = both_ways(Engine.of(model), source, keep, target_in)
    found = both_ways(Engine.of(model.train()), source, keep, target_in)
    assert_close(found, expected, rtol=0, atol=0)
    assert not any(logits.requires_grad for logits in found)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_what_becomes_of_the_model_afterwards_changes_nothing(dtype):
    model = random_model(dtype)
    engine, (source, keep) = Engine.of(model), batch(model)
    target_in = torch.randint(0, TARGET_VOCAB, (B, T))
    expected = engine.decode(target_in, source, keep)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0  # as an optimizer's step does
    assert_close(engine.decode(target_in, source, keep), expected, rtol=0, atol=0)
