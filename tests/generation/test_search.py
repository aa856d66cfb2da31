import functools
import math
from collections import Counter
from copy import deepcopy
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.errors import RunError
from glassformer.generation.batches import search_all
from glassformer.generation.config import SearchConfig
from glassformer.generation.engine import Engine
from glassformer.generation.search import Hypothesis, beam_search, greedy, sample, stream, truncated
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE_VOCAB = 11
SCORINGS = [(penalty, alpha) for penalty in ("plain", "wu") for alpha in (0.0, 0.6, 1.0, 2.0)]


def random_model(seed: int, target_vocab: int = 7, decoder_layers: int = 1) -> Transformer:
    """A tiny model in float64 whose distributions are peaked and differ from prefix to prefix."""
    torch.manual_seed(seed)
    config = ModelConfig.tiny(
        source_vocab_size=SOURCE_VOCAB,
        target_vocab_size=target_vocab,
        shared_vocab=False,
        d_model=8,
        heads=2,
        encoder_layers=1,
        decoder_layers=decoder_layers,
        d_ff=13,
        dropout=0.0,
    )
    model = Transformer(config).double().eval()
    last_norm = model.decoder[-1].feed_forward_norm
    with torch.no_grad():
        last_norm.weight.normal_(std=2)  # so that it isn't the last token again, as with tied embeddings at random
        last_norm.bias.copy_(0.5 * model.target_embedding.weight[EOS])
    return model


def random_sources(seed: int, lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [[*torch.randint(1, SOURCE_VOCAB - 1, (n - 1,), generator=generator).tolist(), EOS] for n in lengths]


def padded(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    return pad_source([torch.tensor(ids) for ids in sources], SOURCE_VOCAB - 1)


@torch.no_grad()
def next_log_probs(model: Transformer, source: list[int], prefixes: list[list[int]]) -> Tensor:
    """Log-probabilities after every position of prefixes of one length: teacher forcing, no cache, no padding."""
    target_in = torch.tensor([[model.target_pad, *prefix] for prefix in prefixes])
    memory = model.encode(torch.tensor([source] * len(prefixes)))
    return model.logits(model.decode(target_in, model.start(memory))[0]).log_softmax(-1)


def source_attention(model: Transformer, source: list[int], prefixes: list[list[int]]) -> Tensor:
    """Weights of the last layer's attention to the source, mean of its heads: (prefix, position, source position)."""
    attention, seen = model.decoder[-1].source_attention, []
    look = attention.attend

    def noted(q: Tensor, k: Tensor, v: Tensor, **masks):
        seen.append((q, k))
        return look(q, k, v, **masks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attend", noted)
        next_log_probs(model, source, prefixes)
    [(q, k)] = seen
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1).mean(1)


def log_prob_of(model: Transformer, source: list[int], ids: list[int], limit: int) -> float:
    """Log-probability of a translation, with `</s>` if it ended before its limit."""
    expected = [*ids, EOS] if len(ids) < limit else ids
    steps = next_log_probs(model, source, [ids])[0]
    return sum(steps[t, token].item() for t, token in enumerate(expected))


def normaliser(length: int, penalty: str, alpha: float) -> float:
    return length**alpha if penalty == "plain" else ((5 + length) / 6) ** alpha


def all_translations(
    model: Transformer, source: list[int], limit: int, penalty: str, alpha: float
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Score and log-probability of every translation there is: those ended by `</s>` within `limit` tokens, and those
    of `limit` tokens that have not ended. Best first."""
    found = {}
    for length in range(limit + 1):
        prefixes = [list(ids) for ids in product(range(1, model.target_pad), repeat=length)]
        log_probs = next_log_probs(model, source, prefixes)
        for ids, steps in zip(prefixes, log_probs, strict=True):
            log_prob = sum(steps[t, token].item() for t, token in enumerate(ids))
            if length < limit:
                log_prob += steps[length, EOS].item()
            found[tuple(ids)] = (log_prob / normaliser(min(length + 1, limit), penalty, alpha), log_prob)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


remembered_model = functools.cache(random_model)  # not to be changed


@functools.cache
def next_of(seed: int, source: tuple[int, ...], prefix: tuple[int, ...], target_vocab: int = 7) -> list[float]:
    """Log-probabilities that a random model gives each token after a prefix; remembered, as searches ask it often."""
    return next_log_probs(remembered_model(seed, target_vocab), [*source], [[*prefix]])[0, -1].tolist()


def plain_beam_search(
    seed: int,
    source: list[int],
    limit: int,
    width: int,
    penalty: str,
    alpha: float,
    stopping: str,
    target_vocab: int = 7,
) -> list[tuple[float, list[int]]]:
    """Beam search as its docstring says it, without cache or batch; with "exact" it never stops before the limit.

    With "heuristic" as transformers' `_beam_search` does with early_stopping=False: once `width` have finished and the
    worst of the best `width` of them scores at least what the best open one would if it ended here.
    """
    open_, finished = [(0.0, [])], []
    for length in range(1, limit + 1):
        candidates = [
            (log_prob + gain, [*ids, token])
            for log_prob, ids in open_
            for token, gain in enumerate(next_of(seed, tuple(source), tuple(ids), target_vocab))
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        for log_prob, ids in candidates[:width]:
            if ids[-1] == EOS:
                finished.append((log_prob / normaliser(length, penalty, alpha), ids[:-1]))
        open_ = [candidate for candidate in candidates[: 2 * width] if candidate[1][-1] != EOS][:width]
        if length == limit:
            finished += [(log_prob / normaliser(limit, penalty, alpha), ids) for log_prob, ids in open_]
        elif len(finished) < width:
            continue
        elif stopping == "first":
            break
        elif stopping == "heuristic":
            worst = sorted(score for score, _ in finished)[-width]
            if worst >= open_[0][0] / normaliser(length, penalty, alpha):
                break
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.score, ours.log_prob) == pytest.approx((theirs.score, theirs.log_prob), abs=1e-5)


SOURCES = random_sources(3, [2, 7, 1, 5, 3])
LIMITS = [9, 5, 1, 12, 3]
SEEDS = (2, 34, 58)  # models whose translations differ and end at different lengths


# Beam search


@pytest.mark.parametrize(("penalty", "alpha"), SCORINGS)
@pytest.mark.parametrize(("seed", "target_vocab", "limit"), [(1, 6, 4), (2, 8, 3), (5, 5, 5)])
def test_a_beam_wide_enough_finds_what_trying_everything_finds(penalty, alpha, seed, target_vocab, limit):
    model = random_model(seed, target_vocab)
    [source] = random_sources(seed, [5])
    expected = all_translations(model, source, limit, penalty, alpha)
    assert sum(math.exp(log_prob) for _, log_prob in expected.values()) == pytest.approx(1.0), "the oracle is whole"
    every = len(expected)
    config = SearchConfig(beam=every, n_best=every, penalty=penalty, length_penalty=alpha, stopping="exact")
    [found] = beam_search(Engine.of(model), *padded([source]), [limit], config)
    assert [tuple(hypothesis.ids) for hypothesis in found[:7]] == list(expected)[:7]
    assert sorted(tuple(hypothesis.ids) for hypothesis in found) == sorted(expected)
    for hypothesis in found:
        score, log_prob = expected[tuple(hypothesis.ids)]
        assert (hypothesis.score, hypothesis.log_prob) == pytest.approx((score, log_prob), abs=1e-5)


@pytest.mark.parametrize("stopping", ["exact", "heuristic", "first"])
@pytest.mark.parametrize(("penalty", "alpha"), [("plain", 0.0), ("plain", 1.0), ("plain", 2.0), ("wu", 0.6)])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_narrow_beam_finds_what_the_search_without_shortcuts_finds(width, penalty, alpha, stopping):
    for seed in SEEDS:
        config = SearchConfig(beam=width, n_best=width, penalty=penalty, length_penalty=alpha, stopping=stopping)
        found = beam_search(Engine.of(random_model(seed)), *padded(SOURCES), LIMITS, config)
        for hypotheses, source, limit in zip(found, SOURCES, LIMITS, strict=True):
            expected = plain_beam_search(seed, source, limit, width, penalty, alpha, stopping)[:width]
            assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, ids in expected]
            assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
                [score for score, _ in expected], abs=1e-5
            )


def test_many_classes_of_many_rows():
    """So many that they are looked through in blocks, some rows after the others."""
    target_vocab, width, limit = 4357, 3, 3
    sources = random_sources(7, [1 + n % 5 for n in range(67)])
    engine = Engine.of(random_model(2, target_vocab))
    for least in (0, 3):
        config = SearchConfig(beam=width, n_best=width, min_length=least)
        found = beam_search(engine, *padded(sources), [limit] * len(sources), config)
        for n in (0, 34, 66):
            expected = plain_beam_search(2, sources[n], limit, width, "plain", 1.0, "exact", target_vocab)
            expected = [(score, ids) for score, ids in expected if len(ids) >= least][:width]
            assert [hypothesis.ids for hypothesis in found[n]] == [ids for _, ids in expected]
            assert [hypothesis.score for hypothesis in found[n]] == pytest.approx([score for score, _ in expected])


def test_the_random_models_give_searches_something_to_decide():
    """Else the comparisons above would say little: translations end early or at the limit, and the beam matters."""
    ended, moved = Counter(), 0
    for seed in SEEDS:
        model = random_model(seed)
        source, keep = padded(SOURCES)
        for alpha in (0.0, 2.0):
            wide = beam_search(
                Engine.of(model), source, keep, LIMITS, SearchConfig(beam=5, length_penalty=alpha, stopping="exact")
            )
            narrow = beam_search(
                Engine.of(model), source, keep, LIMITS, SearchConfig(beam=1, length_penalty=alpha, stopping="exact")
            )
            moved += sum(a[0].ids != b[0].ids for a, b in zip(wide, narrow, strict=True))
            ended.update(len(best[0].ids) < limit for best, limit in zip(wide, LIMITS, strict=True))
    assert min(ended[True], ended[False]) >= 10
    assert moved >= 10


def test_the_three_ways_to_stop_stop_at_different_translations():
    lists: dict[str, list[list[list[int]]]] = {}
    for stopping in ("exact", "heuristic", "first"):
        config = SearchConfig(beam=2, n_best=2, length_penalty=2.0, stopping=stopping)
        found = [beam_search(Engine.of(random_model(seed)), *padded(SOURCES), LIMITS, config) for seed in SEEDS]
        lists[stopping] = [[hypothesis.ids for hypothesis in best] for batch in found for best in batch]
    for one, other in combinations(lists.values(), 2):
        assert one != other


def steps_taken(engine: Engine, monkeypatch) -> list[int]:
    """Rows of each decoding step that will be taken."""
    rows: list[int] = []
    step = engine.step

    def counted(tokens: Tensor, cache):
        rows.append(len(tokens))
        return step(tokens, cache)

    monkeypatch.setattr(engine, "step", counted)
    return rows


def test_first_stopping_stops_once_as_many_as_the_beam_have_finished(monkeypatch):
    engine, limit, width = Engine.of(random_model(34)), 7, 2
    [source] = random_sources(3, [5])
    rows = steps_taken(engine, monkeypatch)
    config = SearchConfig(beam=width, n_best=width, stopping="first", length_penalty=0.0)
    [found] = beam_search(engine, *padded([source]), [limit], config)
    assert len(found) == width
    ends = [len(hypothesis.ids) + 1 for hypothesis in found]
    assert max(ends) < limit, "both finished by themselves"
    assert rows == [width] * max(ends), "and no step was taken after the second"


def test_exact_stopping_takes_no_step_once_nothing_open_can_win(monkeypatch):
    engine = Engine.of(random_model(34))
    rows = steps_taken(engine, monkeypatch)
    source, keep = padded(random_sources(3, [5]))
    [[best]] = beam_search(engine, source, keep, [200], SearchConfig(beam=3, length_penalty=0.0, stopping="exact"))
    assert len(best.ids) < 20
    assert len(rows) < 50, "sums only fall: far before the limit nothing can catch up"


def follows(ids: list[int], prefix: list[int], least: int, n: int) -> bool:
    """Whether a translation keeps the rules: its prefix first, `least` tokens, no n-gram again after the prefix."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    again = [
        end for end in range(len(prefix), len(ids)) if n and end >= n and grams[end - n + 1] in grams[: end - n + 1]
    ]
    return ids[: len(prefix)] == prefix and len(ids) >= least and not again


RULES = [
    (3, 0, []),
    (0, 1, []),
    (0, 2, []),
    (0, 0, [4]),
    (0, 0, [1, 3, 3, 1]),  # as long as the limit
    (0, 2, [2, 2, 2]),  # the prefix itself may repeat
    (3, 2, [2, 2]),
    (2, 3, [1]),
]


@pytest.mark.parametrize(("least", "n", "prefix"), RULES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_of_the_translations_that_keep_the_rules_a_wide_beam_finds_the_best(least, n, prefix, alpha):
    model, [source], limit = random_model(1, 6), random_sources(1, [5]), 4
    every = all_translations(model, source, limit, "plain", alpha)
    expected = [ids for ids in every if follows(list(ids), prefix, least, n)]
    assert expected != list(every), "the rule forbids something"
    config = SearchConfig(
        beam=len(every), n_best=7, length_penalty=alpha, min_length=least, no_repeat_ngram=n, stopping="exact"
    )
    [found] = beam_search(Engine.of(model), *padded([source]), [limit], config, [prefix])
    assert [tuple(hypothesis.ids) for hypothesis in found] == expected[:7]
    for hypothesis in found:  # what is left isn't normalised again
        score, log_prob = every[tuple(hypothesis.ids)]
        assert (hypothesis.score, hypothesis.log_prob) == pytest.approx((score, log_prob), abs=1e-5)


@pytest.mark.parametrize("penalty", [0.3, 2.0])
def test_coverage_by_explicit_sums_of_attention_decides_which_is_best(penalty):
    model, [source], limit = random_model(2, 6, decoder_layers=2), random_sources(2, [5]), 4
    plain = all_translations(model, source, limit, "wu", 0.6)
    expected = {}
    for length in range(limit + 1):
        prefixes = [list(ids) for ids in plain if len(ids) == length]
        received = source_attention(model, source, prefixes)[:, :limit].sum(1)  # at the limit `</s>` isn't chosen
        for ids, sums in zip(prefixes, received.clamp(max=1).log().sum(-1).tolist(), strict=True):
            expected[tuple(ids)] = plain[tuple(ids)][0] + penalty * sums
    ranked = sorted(expected, key=lambda ids: -expected[ids])
    assert ranked[:7] != list(plain)[:7], "it makes a difference"
    config = SearchConfig(
        beam=len(plain), n_best=7, penalty="wu", length_penalty=0.6, coverage_penalty=penalty, stopping="exact"
    )
    [found] = beam_search(Engine.of(model), *padded([source]), [limit], config)
    assert [tuple(hypothesis.ids) for hypothesis in found] == ranked[:7]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([expected[ids] for ids in ranked[:7]], abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_coverage_follows_each_beam_and_leaves_padding_out(seed):
    model = random_model(seed, decoder_layers=2)
    config = SearchConfig(beam=3, n_best=3, coverage_penalty=0.7)
    found, penalised = beam_search(Engine.of(model), *padded(SOURCES), LIMITS, config), 0
    for hypotheses, source, limit in zip(found, SOURCES, LIMITS, strict=True):
        for hypothesis in hypotheses:
            steps = min(len(hypothesis.ids) + 1, limit)
            received = source_attention(model, source, [hypothesis.ids])[0, :steps].sum(0)
            penalised += bool((received < 1).any())
            expected = hypothesis.log_prob / steps + 0.7 * received.clamp(max=1).log().sum().item()
            assert hypothesis.score == pytest.approx(expected, abs=1e-5)
    assert penalised >= 5


def test_a_beam_wider_than_the_choices_returns_what_there_is():
    # One step, five ids that can be predicted: the empty translation and four of one token.
    model = random_model(1, target_vocab=6)
    [found] = beam_search(Engine.of(model), *padded([[3, EOS]]), [1], SearchConfig(beam=13, n_best=13))
    assert sorted(hypothesis.ids for hypothesis in found) == [[], [1], [2], [3], [4]]
    assert sum(math.exp(hypothesis.log_prob) for hypothesis in found) == pytest.approx(1.0)


# Greedy search


@pytest.mark.parametrize(
    ("least", "n", "prefix"), [(0, 0, []), (7, 0, []), (0, 1, []), (0, 2, []), (0, 2, [3, 3, 3]), (5, 3, [2])]
)
def test_greedy_takes_the_likeliest_token_that_the_rules_allow(least, n, prefix):
    limit, changed = 9, 0
    for seed in SEEDS:
        model = random_model(seed)
        config = SearchConfig(beam=1, min_length=least, no_repeat_ngram=n)
        found = greedy(Engine.of(model), *padded(SOURCES), [limit] * len(SOURCES), config, [prefix] * len(SOURCES))
        for hypothesis, source in zip(found, SOURCES, strict=True):
            ids: list[int] = []
            while len(ids) < limit:
                log_probs = next_of(seed, tuple(source), tuple(ids))
                likeliest = sorted(range(len(log_probs)), key=lambda token: -log_probs[token])
                may_end, so_far = len(ids) >= max(least, len(prefix)), prefix[: len(ids) + 1]
                best = next(i for i in likeliest if (may_end if i == EOS else follows([*ids, i], so_far, 0, n)))
                changed += best != likeliest[0]
                if best == EOS:
                    break
                ids.append(best)
            assert hypothesis.ids == ids
    assert changed > 5 or not (least or n)


@pytest.mark.parametrize("settings", [{}, dict(min_length=4, no_repeat_ngram=2)], ids=str)
@pytest.mark.parametrize("how", ["greedy", "sample"])
def test_a_stream_is_the_translation_token_by_token(how, settings):
    config = SearchConfig(beam=1, sample=how == "sample", temperature=1.5, **settings)
    for seed in SEEDS:
        engine = Engine.of(random_model(seed))
        for source, limit in zip(SOURCES, LIMITS, strict=True):
            generators = [torch.Generator().manual_seed(7) for _ in range(2)]
            if how == "sample":
                [expected] = sample(engine, *padded([source]), [limit], config, generators[0])
            else:
                [expected] = greedy(engine, *padded([source]), [limit], config)
            tokens = stream(engine, torch.tensor([source]), limit, config, generators[1])
            assert list(tokens) == expected.ids


# What holds for every search


def searched(
    engine: Engine, sources: list[list[int]], limits: list[int], how: str, **settings: Any
) -> list[list[Hypothesis]]:
    source, keep = padded(sources)
    if how == "greedy":
        return [[found] for found in greedy(engine, source, keep, limits, SearchConfig(beam=1, **settings))]
    if how == "sample":
        generator = torch.Generator().manual_seed(7)
        config = SearchConfig(beam=1, sample=True, temperature=1.5, **settings)
        return [[found] for found in sample(engine, source, keep, limits, config, generator)]
    width = int(how.removeprefix("beam "))
    return beam_search(engine, source, keep, limits, SearchConfig(beam=width, n_best=width, **settings))


@pytest.mark.parametrize("how", ["greedy", "beam 1", "beam 2", "beam 5"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_of_different_lengths_and_limits_is_each_source_alone(seed, how):
    engine = Engine.of(random_model(seed))
    for hypotheses, source, limit in zip(searched(engine, SOURCES, LIMITS, how), SOURCES, LIMITS, strict=True):
        assert_same(hypotheses, searched(engine, [source], [limit], how)[0])


MANY = random_sources(13, [1 + n * 5 % 7 for n in range(19)])
MANY_LIMITS = [1 + n * 7 % 11 for n in range(19)]


@pytest.mark.parametrize("how", ["greedy", "sample", "beam 3"])
def test_finished_sources_stay_while_they_are_less_than_an_eighth(monkeypatch, how):
    engine, width = Engine.of(random_model(34)), 3 if how == "beam 3" else 1
    rows = steps_taken(engine, monkeypatch)
    found = searched(engine, MANY, MANY_LIMITS, how, min_length=11)
    assert [len(best[0].ids) for best in found] == MANY_LIMITS
    open_ = [width * sum(limit > step for limit in MANY_LIMITS) for step in range(max(MANY_LIMITS))]
    assert len(rows) == len(open_), "no step is taken for nobody"
    assert any(taken > needed for taken, needed in zip(rows, open_, strict=True)), "a copy for one of 19 doesn't pay"
    assert all(8 * (taken - needed) < taken for taken, needed in zip(rows, open_, strict=True))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "settings", [{}, dict(min_length=3, no_repeat_ngram=2), dict(stopping="heuristic", length_penalty=2.0)], ids=str
)
def test_who_else_is_in_a_batch_and_when_they_leave_changes_nothing(width, settings):
    """Also not for prefixes of different lengths, and coverage."""
    model = random_model(58, decoder_layers=2)
    generator = torch.Generator().manual_seed(5)
    lengths = [n % 7 if n % 3 == 0 else 0 for n in range(len(MANY))]
    prefixes = [torch.randint(1, 6, (length,), generator=generator).tolist() for length in lengths]
    limits = [
        max(limit, length, settings.get("min_length", 0)) for limit, length in zip(MANY_LIMITS, lengths, strict=True)
    ]
    coverage = 0.4 if width > 1 else 0.0
    config = SearchConfig(beam=width, n_best=width, coverage_penalty=coverage, **settings)

    def found(chosen: list[int]) -> list[list[Hypothesis]]:
        engine, batch = Engine.of(model), padded([MANY[i] for i in chosen])
        of_chosen = [limits[i] for i in chosen], config, [prefixes[i] for i in chosen]
        if width == 1:
            return [[hypothesis] for hypothesis in greedy(engine, *batch, *of_chosen)]
        return beam_search(engine, *batch, *of_chosen)

    together = found(list(range(len(MANY))))
    for i, hypotheses in enumerate(together):
        assert_same(hypotheses, found([i])[0])
        assert all(follows(hypothesis.ids, prefixes[i], 0, 0) for hypothesis in hypotheses)
    assert len({len(best[0].ids) for best in together}) > 3, "they leave at different steps"


@pytest.mark.parametrize("how", ["greedy", "sample", "beam 1", "beam 5"])
@pytest.mark.parametrize("seed", SEEDS)
def test_log_probs_are_the_models_of_these_tokens_and_score_divides_their_sum_by_the_length(seed, how):
    model = random_model(seed)
    found = searched(Engine.of(model), SOURCES, LIMITS, how)
    for hypotheses, source, limit in zip(found, SOURCES, LIMITS, strict=True):
        for hypothesis in hypotheses:
            steps = next_log_probs(model, source, [hypothesis.ids])[0]
            each = [steps[t, token].item() for t, token in enumerate([*hypothesis.ids, EOS][:limit])]
            assert hypothesis.token_log_probs == pytest.approx(each, abs=1e-9)
            assert hypothesis.log_prob == pytest.approx(sum(each), abs=1e-9)
            assert hypothesis.score == pytest.approx(sum(each) / len(each), abs=1e-9)
            assert len(hypothesis.ids) <= limit
            assert all(EOS < token < model.target_pad for token in hypothesis.ids)


# Sampling


def by_hand(probabilities: list[float], top_k: int, top_p: float) -> list[float]:
    """top_k, then top_p, one probability at a time."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[: top_k or None]
    whole = sum(probabilities[i] for i in order)
    kept: dict[int, float] = {}
    for i in order:
        if sum(kept.values()) >= top_p:
            break
        kept[i] = probabilities[i] / whole
    return [kept.get(i, 0.0) / sum(kept.values()) for i in range(len(probabilities))]


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (0, 1.0, [0.15, 0.5, 0.1, 0.25]),
        (4, 1.0, [0.15, 0.5, 0.1, 0.25]),
        (9, 1.0, [0.15, 0.5, 0.1, 0.25]),
        (1, 1.0, [0.0, 1.0, 0.0, 0.0]),
        (2, 1.0, [0.0, 2 / 3, 0.0, 1 / 3]),
        (3, 1.0, [3 / 18, 10 / 18, 0.0, 5 / 18]),
        (0, 0.01, [0.0, 1.0, 0.0, 0.0]),
        (0, 0.49, [0.0, 1.0, 0.0, 0.0]),
        (0, 0.51, [0.0, 2 / 3, 0.0, 1 / 3]),
        (0, 0.76, [3 / 18, 10 / 18, 0.0, 5 / 18]),
        (0, 0.91, [0.15, 0.5, 0.1, 0.25]),
        (3, 0.8, [0.0, 2 / 3, 0.0, 1 / 3]),  # of the three, two reach 15/18 = 0.83; without top_k it takes three
        (2, 0.6, [0.0, 1.0, 0.0, 0.0]),  # of the two, one reaches 2/3
    ],
)
def test_top_k_and_top_p_by_hand(top_k, top_p, expected):
    probabilities = [0.15, 0.5, 0.1, 0.25]
    assert by_hand(probabilities, top_k, top_p) == pytest.approx(expected), "the oracle for the next test"
    rows = torch.tensor([probabilities, probabilities[::-1]]).log() + torch.tensor([[3.0], [-5.0]])
    found = truncated(rows, top_k, top_p)
    found = found / found.sum(-1, keepdim=True)  # whoever draws from them normalises
    assert_close(found, torch.tensor([expected, expected[::-1]]))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 3, 1.0), (1.0, 0, 0.8), (1.3, 4, 0.9)]
)
def test_samples_are_as_frequent_as_they_are_likely(temperature, top_k, top_p):
    model, [source], limit, draws = random_model(2, 6), random_sources(5, [5]), 2, 5_000

    def chances(prefix: list[int]) -> list[float]:
        steps = next_log_probs(model, source, [prefix])[0, -1]
        return by_hand((steps / temperature).softmax(-1).tolist(), top_k, top_p)

    first = chances([])
    expected = {(): first[EOS]}
    for a in range(1, model.target_pad):
        second = chances([a])
        expected[a,] = first[a] * second[EOS]
        expected |= {(a, b): first[a] * second[b] for b in range(1, model.target_pad)}
    assert sum(expected.values()) == pytest.approx(1.0)

    config = SearchConfig(sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    ids, keep = padded([source] * draws)
    drawn = sample(Engine.of(model), ids, keep, [limit] * draws, config, torch.Generator().manual_seed(1))
    seen = Counter(tuple(hypothesis.ids) for hypothesis in drawn)
    assert all(expected[ids] > 0 for ids in seen), "nothing that was truncated away"

    # Pearson's chi-square over the outcomes expected at least five times, the others together as one.
    common = {ids: draws * chance for ids, chance in expected.items() if draws * chance >= 5}
    cells = [(seen[ids], count) for ids, count in common.items()]
    cells.append((draws - sum(a for a, _ in cells), max(draws - sum(common.values()), 1.0)))
    square = sum((a - b) ** 2 / b for a, b in cells)
    freedom = len(cells) - 1
    assert freedom >= 3
    assert square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("settings", [dict(top_k=1), dict(top_p=1e-6), dict(temperature=1e-4)], ids=str)
def test_sampling_from_the_likeliest_token_alone_is_greedy(settings):
    model = random_model(34)
    config = SearchConfig(sample=True, **settings)
    found = sample(Engine.of(model), *padded(SOURCES), LIMITS, config, torch.Generator().manual_seed(3))
    assert_same(found, greedy(Engine.of(model), *padded(SOURCES), LIMITS, config))


def test_draws_keep_the_rules():
    model, prefix = random_model(34), [5, 5]
    config = SearchConfig(sample=True, temperature=2.0, min_length=4, no_repeat_ngram=2)
    count, generator = 20 * len(SOURCES), torch.Generator().manual_seed(3)
    found = sample(Engine.of(model), *padded(SOURCES * 20), [7] * count, config, generator, [prefix] * count)
    assert all(follows(hypothesis.ids, prefix, 4, 2) for hypothesis in found)
    assert len({tuple(hypothesis.ids) for hypothesis in found}) > 20
    for hypothesis, source in zip(found[:5], SOURCES, strict=True):  # the model's own, whatever was forbidden
        assert hypothesis.log_prob == pytest.approx(log_prob_of(model, source, hypothesis.ids, 7), abs=1e-9)


KINDS_OF_SEARCH = [dict(beam=1), dict(beam=3, n_best=2), dict(sample=True)]


@pytest.mark.parametrize("settings", KINDS_OF_SEARCH)
def test_weights_that_are_not_numbers_are_refused(settings):
    model = deepcopy(random_model(1))
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight[2, 3] = math.nan
    with pytest.raises(RunError, match=r"not finite, first in decoder.0.feed_forward.inner.weight: train again"):
        search_all(Engine.of(model), SOURCES, SearchConfig(**settings))


@pytest.mark.parametrize("settings", KINDS_OF_SEARCH)
def test_numbers_that_overflow_are_an_error(settings):
    model = deepcopy(random_model(1)).float()
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight.mul_(1e30)
        model.decoder[0].feed_forward.outer.weight.mul_(1e30)
    with pytest.raises(RunError, match="the model computed numbers that are not finite, in float32: its weights are"):
        search_all(Engine.of(model), SOURCES, SearchConfig(**settings))


@pytest.mark.parametrize("settings", KINDS_OF_SEARCH)
def test_a_target_to_which_nothing_may_be_added_ends(settings):
    engine = Engine.of(random_model(1))
    config = SearchConfig(**settings, min_length=40, no_repeat_ngram=1, max_length=60)
    for hypotheses in search_all(engine, SOURCES, config):
        for hypothesis in hypotheses:
            assert sorted(hypothesis.ids) == list(range(1, engine.target_pad)), "each once, and then there is no other"
            assert math.isfinite(hypothesis.score)
