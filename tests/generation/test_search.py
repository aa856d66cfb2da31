import functools
import math
from collections import Counter
from collections.abc import Callable, Container
from itertools import chain, combinations, product

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from glassformer.errors import RunError
from glassformer.generation.batches import likeliest_after, log_probs_of_targets, search_all
from glassformer.generation.config import STOPPING, SearchConfig
from glassformer.generation.engines.engine import Engine
from glassformer.generation.search import Hypothesis, beam_search, greedy, sample, stream, truncated
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCE_VOCAB = 11


def random_model(seed: int, target_vocab: int = 7) -> Transformer:
    """A tiny model in float64 whose distributions are peaked and differ from prefix to prefix."""
    torch.manual_seed(seed)
    vocabularies = dict(source_vocab_size=SOURCE_VOCAB, target_vocab_size=target_vocab, shared_vocab=False)
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=2, d_ff=13, dropout=0.0)
    config = ModelConfig(**vocabularies, **sizes)
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
def read(model: Transformer, source: list[int], prefixes: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities after every position of prefixes of one length, and the attention there to each source position
    (of the last layer, mean of its heads): teacher forcing, no cache, no padding."""
    attention, seen = model.decoder[-1].source_attention, []
    look = attention.attend
    target_in = torch.tensor([[model.target_pad, *prefix] for prefix in prefixes])
    memory = model.encode(torch.tensor([source] * len(prefixes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attend", lambda q, k, v, **masks: seen.append((q, k)) or look(q, k, v, **masks))
        log_probs = model.logits(model.decode(target_in, model.start(memory))[0]).log_softmax(-1)
    [(q, k)] = seen
    return log_probs, (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1).mean(1)


def may_follow(past: list[int], token: int, config: SearchConfig, prefix: list[int]) -> bool:
    """Whether the rules allow a token: a prefix, a least length, no n-gram again after the prefix."""
    if len(past) < len(prefix):
        return token == prefix[len(past)]
    if token == EOS:
        return len(past) >= config.min_length
    n, after = config.no_repeat_ngram, [*past, token]
    return not n or after[-n:] not in [past[i : i + n] for i in range(len(past) - n + 1)]


def keeps_rules(ids: list[int], config: SearchConfig, prefix: list[int], limit: int) -> bool:
    return all(may_follow(ids[:i], token, config, prefix) for i, token in enumerate([*ids, EOS][:limit]))


def score(gains: list[float], config: SearchConfig) -> float:
    base = len(gains) if config.penalty == "plain" else (5 + len(gains)) / 6
    return sum(gains) / base**config.length_penalty


def hypothesis_of(ids: list[int], gains: list[float], weights: Tensor, config: SearchConfig) -> Hypothesis:
    """The hypothesis whose tokens have these log-probabilities, and paid this attention."""
    coverage = weights[: len(gains)].sum(0).clamp(max=1).log().sum().item()
    return Hypothesis(ids, gains, sum(gains), score(gains, config) + config.coverage_penalty * coverage)


def all_translations(model: Transformer, source: list[int], limit: int, config: SearchConfig) -> list[Hypothesis]:
    """Every translation there is, best first: those ended by `</s>` within `limit` tokens, and those of `limit` tokens
    that have not ended."""
    found = []
    for length in range(limit + 1):
        prefixes = [list(ids) for ids in product(range(1, model.target_pad), repeat=length)]
        for ids, steps, weights in zip(prefixes, *read(model, source, prefixes), strict=True):
            gains = [step[token] for step, token in zip(steps[:limit].tolist(), [*ids, EOS], strict=False)]
            found.append(hypothesis_of(ids, gains, weights, config))
    assert sum(math.exp(hypothesis.log_prob) for hypothesis in found) == pytest.approx(1.0), "these are all"
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


remembered_model = functools.cache(random_model)  # not to be changed


@functools.cache
def read_of(seed: int, source: tuple[int, ...], prefixes: tuple[tuple[int, ...], ...], target_vocab: int):
    """What `read` gives for a random model; remembered, as searches ask for it often."""
    return read(remembered_model(seed, target_vocab), [*source], [[*prefix] for prefix in prefixes])


def plain_search(
    seed: int, source: list[int], limit: int, config: SearchConfig, prefix: list[int], target_vocab: int = 7
) -> list[Hypothesis]:
    """Beam search as its docstring says it, without cache or batch; with "exact" it never stops before the limit.

    With "heuristic" as transformers' `_beam_search` does with early_stopping=False: once `width` have finished and the
    worst of the best `width` of them scores at least what the best open one would if it ended here.
    """
    width, finished = config.beam, []
    open_: list[tuple[list[int], list[float], Tensor | None]] = [([], [], None)]  # tokens, log-probabilities, attention
    for length in range(1, limit + 1):
        candidates = []
        log_probs, weights = read_of(seed, tuple(source), tuple(tuple(ids) for ids, *_ in open_), target_vocab)
        for (ids, gains, _), following, paid in zip(open_, log_probs[:, -1].tolist(), weights, strict=True):
            allowed = [token for token in range(len(following)) if may_follow(ids, token, config, prefix)] or [EOS]
            candidates += [([*ids, token], [*gains, following[token]], paid) for token in allowed]
        candidates.sort(key=lambda candidate: -sum(candidate[1]))
        ended = [(ids[:-1], *rest) for ids, *rest in candidates[:width] if ids[-1] == EOS]
        open_ = [candidate for candidate in candidates[: 2 * width] if candidate[0][-1] != EOS][:width]
        finished += [hypothesis_of(*one, config) for one in (ended if length < limit else ended + open_)]
        if not open_ or (config.stopping == "first" and len(finished) >= width):
            break
        if config.stopping == "heuristic" and len(finished) >= width:
            worst = sorted(hypothesis.score for hypothesis in finished)[-width]
            if worst >= score(open_[0][1], config):
                break
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[: config.n_best]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]
    for ours, theirs in zip(found, expected, strict=True):
        numbers, right = ([*one.token_log_probs, one.log_prob, one.score] for one in (ours, theirs))
        assert numbers == pytest.approx(right, abs=1e-9)


SOURCES = random_sources(13, [1 + n * 5 % 7 for n in range(11)])
LIMITS = [1 + n * 7 % 9 for n in range(11)]
PREFIXES = [[1 + (n + i * i) % 5 for i in range(n % 7 if n % 3 == 0 else 0)] for n in range(11)]
SEEDS = (2, 34, 58)  # models whose translations differ and end at different lengths


# Beam search

RULES = [
    (dict(min_length=3), []),
    (dict(no_repeat_ngram=1), []),
    (dict(no_repeat_ngram=2), []),
    ({}, [4]),
    ({}, [1, 3, 3, 1]),  # as long as the limit
    (dict(no_repeat_ngram=2), [2, 2, 2]),  # the prefix itself may repeat
    (dict(min_length=3, no_repeat_ngram=2), [2, 2]),
    (dict(min_length=2, no_repeat_ngram=3), [1]),
]
SCORINGS = [
    dict(penalty=penalty, length_penalty=alpha) for penalty in ("plain", "wu") for alpha in (0.0, 0.6, 1.0, 2.0)
]
WIDE = [
    *[(*sizes, scoring, []) for sizes in [(1, 6, 4), (2, 8, 3), (5, 5, 5)] for scoring in SCORINGS],
    *[(1, 6, 4, dict(length_penalty=alpha, **rules), prefix) for alpha in (0.0, 1.0) for rules, prefix in RULES],
    *[(2, 6, 4, dict(penalty="wu", length_penalty=0.6, coverage_penalty=weight), []) for weight in (0.3, 2.0)],
]


@pytest.mark.parametrize(("seed", "target_vocab", "limit", "settings", "prefix"), WIDE)
def test_a_beam_wide_enough_finds_what_trying_everything_finds(seed, target_vocab, limit, settings, prefix):
    """With rules the best that keep them: what is left isn't normalised again."""
    model, [source] = random_model(seed, target_vocab), random_sources(seed, [5])
    every = sum((target_vocab - 2) ** length for length in range(limit + 1))
    config = SearchConfig(beam=every, n_best=every, stopping="exact", **settings)
    expected = all_translations(model, source, limit, config)
    expected = [one for one in expected if keeps_rules(one.ids, config, prefix, limit)]
    assert (len(expected) < every) == bool(prefix or config.min_length or config.no_repeat_ngram)
    [found] = beam_search(Engine.of(model), *padded([source]), [limit], config, [prefix])
    assert_same(found, expected)


NARROW = [
    (dict(length_penalty=0.0), False),
    ({}, False),
    (dict(length_penalty=2.0), False),
    (dict(penalty="wu", length_penalty=0.6), False),
    (dict(no_repeat_ngram=1), True),
    (dict(no_repeat_ngram=1, min_length=7), False),  # where nothing may be added any more, the target ends
    (dict(min_length=3, no_repeat_ngram=2), True),
    (dict(coverage_penalty=0.4, length_penalty=2.0), True),
]


@pytest.mark.parametrize(("settings", "prefixed"), NARROW, ids=str)
@pytest.mark.parametrize("stopping", STOPPING)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_narrow_beam_finds_what_the_search_without_shortcuts_finds(width, stopping, settings, prefixed):
    """For each source of a batch, which leave it one after the other, as if it were alone."""
    if width == 1:
        settings = {name: value for name, value in settings.items() if name != "coverage_penalty"}
    config = SearchConfig(beam=width, n_best=width, stopping=stopping, **settings)
    prefixes = PREFIXES if prefixed else [[]] * len(SOURCES)
    for seed in SEEDS:
        batch = Engine.of(remembered_model(seed)), *padded(SOURCES), LIMITS, config, prefixes if prefixed else None
        found = beam_search(*batch)
        for hypotheses, source, limit, prefix in zip(found, SOURCES, LIMITS, prefixes, strict=True):
            assert_same(hypotheses, plain_search(seed, source, limit, config, prefix))
        if width == 1 and stopping == "first":
            assert_same(greedy(*batch), [best for [best] in found])


def test_many_classes_of_many_rows():
    """So many that they are looked through in blocks, some rows after the others."""
    target_vocab, width, limit = 4357, 3, 3
    sources = random_sources(7, [1 + n % 5 for n in range(67)])
    engine = Engine.of(random_model(2, target_vocab))
    for least in (0, 3):
        config = SearchConfig(beam=width, n_best=width, min_length=least)
        found = beam_search(engine, *padded(sources), [limit] * len(sources), config)
        for n in (0, 34, 66):
            assert_same(found[n], plain_search(2, sources[n], limit, config, [], target_vocab))


VARIATIONS = [
    dict(beam=2, n_best=2),
    dict(beam=1),
    dict(beam=5),
    dict(beam=2, n_best=2, stopping="heuristic"),
    dict(beam=2, n_best=2, stopping="first"),
    dict(beam=2, n_best=2, length_penalty=0.0),
    dict(beam=2, n_best=2, coverage_penalty=0.4),
    dict(beam=2, n_best=2, min_length=3, no_repeat_ngram=2),
]


def test_the_random_models_give_searches_something_to_decide():
    """Else the comparisons above would say little: each setting matters, and translations end early or at the limit."""
    lists, penalised = [], 0
    for settings in VARIATIONS:
        config = SearchConfig(**{"length_penalty": 2.0, "stopping": "exact", **settings})
        found = [beam_search(Engine.of(random_model(seed)), *padded(SOURCES), LIMITS, config) for seed in SEEDS]
        found = [best for batch in found for best in batch]
        lists.append([[hypothesis.ids for hypothesis in best] for best in found])
        for hypothesis in chain.from_iterable(found):  # attention that isn't paid lowers a score
            penalised += hypothesis.score < score(hypothesis.token_log_probs, config) - 0.01
    assert all(one != other for one, other in combinations(lists, 2))
    assert sum(narrow != wide for narrow, wide in zip(lists[1], lists[2], strict=True)) >= 10
    assert sum(ruled != free for ruled, free in zip(lists[-1], lists[0], strict=True)) > 5
    assert penalised >= 5
    ended = Counter(len(best[0]) < limit for best, limit in zip(lists[2], LIMITS * len(SEEDS), strict=True))
    assert min(ended[True], ended[False]) >= 10


def steps_taken(engine: Engine, monkeypatch) -> list[int]:
    """Rows of each decoding step that will be taken."""
    rows: list[int] = []
    for name in ("step", "step_best"):
        step = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda ids, *given, step=step: rows.append(len(ids)) or step(ids, *given))
    return rows


def test_exact_stopping_takes_no_step_once_nothing_open_can_win(monkeypatch):
    engine = Engine.of(random_model(34))
    rows = steps_taken(engine, monkeypatch)
    source, keep = padded(random_sources(3, [5]))
    [[best]] = beam_search(engine, source, keep, [200], SearchConfig(beam=3, length_penalty=0.0, stopping="exact"))
    assert len(best.ids) < 20
    assert len(rows) < 50, "sums only fall: far before the limit nothing can catch up"


# Every search


@pytest.mark.parametrize("how", ["greedy", "sample", "beam"])
def test_finished_sources_stay_while_they_are_less_than_an_eighth(monkeypatch, how):
    engine, width = Engine.of(random_model(34)), 3 if how == "beam" else 1
    rows = steps_taken(engine, monkeypatch)
    batch = engine, *padded(SOURCES), LIMITS, SearchConfig(beam=width, min_length=9)
    if how == "beam":
        found = [best for [best] in beam_search(*batch)]
    else:
        found = greedy(*batch) if how == "greedy" else sample(*batch, torch.Generator().manual_seed(7))
    assert [len(best.ids) for best in found] == LIMITS
    open_ = [width * sum(limit > step for limit in LIMITS) for step in range(max(LIMITS))]
    assert len(rows) == len(open_), "no step is taken for nobody"
    assert any(taken > needed for taken, needed in zip(rows, open_, strict=True)), "a copy for one of 9 doesn't pay"
    assert all(8 * (taken - needed) < taken for taken, needed in zip(rows, open_, strict=True))


@pytest.mark.parametrize("how", ["greedy", "sample", "beam"])
def test_abandoned_sources_end_at_once_and_the_others_go_on_unchanged(monkeypatch, how):
    engine, width = Engine.of(random_model(34)), 3 if how == "beam" else 1
    rows = steps_taken(engine, monkeypatch)
    draws = dict(sample=True, top_k=1) if how == "sample" else {}
    config = SearchConfig(beam=width, min_length=9, **draws)
    batch = engine, *padded(SOURCES), [9] * len(SOURCES), config

    def search(gone: Callable[[], Container[int]]) -> list[Hypothesis]:
        rows.clear()
        if how == "sample":
            return sample(*batch, torch.Generator().manual_seed(7), abandoned=gone)
        if how == "beam":
            return [best for [best] in beam_search(*batch, abandoned=gone)]
        return greedy(*batch, abandoned=gone)

    whole = search(lambda: ())
    assert len(rows) == 9
    kept = {3, 8}
    found = search(lambda: set(range(len(SOURCES))) - kept if len(rows) >= 4 else ())
    assert [len(one.ids) for b, one in enumerate(found) if b not in kept] == [4] * (len(SOURCES) - len(kept))
    for b in kept:
        assert_same([found[b]], [whole[b]])
    assert rows == [width * count for count in (*[len(SOURCES)] * 4, *[len(kept)] * 5)]
    assert len(search(lambda: range(len(SOURCES)))[0].ids) == len(rows) == 1


@pytest.mark.parametrize("settings", [{}, dict(min_length=4, no_repeat_ngram=2)], ids=str)
@pytest.mark.parametrize("how", ["greedy", "sample"])
def test_a_stream_is_the_translation_token_by_token(how, settings):
    draws = dict(sample=True, temperature=1.5) if how == "sample" else {}
    config = SearchConfig(beam=1, **draws, **settings)
    for seed in SEEDS:
        engine = Engine.of(random_model(seed))
        for source, limit in zip(SOURCES[3:8], LIMITS[3:8], strict=True):
            generators = [torch.Generator().manual_seed(7) for _ in range(2)]
            batch = engine, *padded([source]), [limit], config
            [expected] = sample(*batch, generators[0]) if config.sample else greedy(*batch)
            written = list(stream(engine, torch.tensor([source]), limit, config, generators[1]))
            assert [token for token, _ in written if token != EOS] == expected.ids
            assert [log_prob for _, log_prob in written] == expected.token_log_probs


@pytest.mark.parametrize("settings", [dict(beam=1), dict(beam=3, n_best=2), dict(sample=True)])
@pytest.mark.parametrize(
    ("spoiled", "factor", "message"),
    [
        ((2, 3), math.nan, r"not finite, first in decoder.0.feed_forward.inner.weight: train again"),  # one of many
        ((), 1e30, "the model computed numbers that are not finite, in float32: its weights are"),
    ],
)
def test_weights_that_are_not_numbers_or_overflow_are_refused(spoiled, factor, message, settings):
    model = random_model(1).float()
    with torch.no_grad():
        for linear in (model.decoder[0].feed_forward.inner, model.decoder[0].feed_forward.outer):
            linear.weight[spoiled] *= factor
    with pytest.raises(RunError, match=message):
        search_all(Engine.of(model), SOURCES, SearchConfig(**settings))


@pytest.mark.parametrize(
    "read",
    [
        lambda engine, source: log_probs_of_targets(engine, [source], [[2, EOS]]),
        lambda engine, source: likeliest_after(engine, source, [], 3),
        *(
            lambda engine, source, config=config: list(
                stream(engine, torch.tensor([source]), 5, config, torch.Generator())
            )
            for config in (SearchConfig(beam=1), SearchConfig(sample=True))
        ),
    ],
    ids=["scores", "alternatives", "stream", "drawn"],
)
def test_numbers_that_overflow_are_refused_where_one_source_is_read(read):
    model = random_model(1).float()
    with torch.no_grad():
        for linear in (model.decoder[0].feed_forward.inner, model.decoder[0].feed_forward.outer):
            linear.weight *= 1e30
    with pytest.raises(RunError, match="the model computed numbers that are not finite, in float32: its weights are"):
        read(Engine.of(model), SOURCES[3])


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


@pytest.mark.parametrize("top_k", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("top_p", [0.01, 0.49, 0.51, 0.6, 0.76, 0.8, 0.91, 1.0])
def test_top_k_and_top_p_by_hand(top_k, top_p):
    probabilities = [0.15, 0.5, 0.1, 0.25]
    # Of the likeliest three, two reach 15/18 = 0.83, without top_k it takes three; of two, one reaches 2/3.
    assert by_hand(probabilities, 3, 0.8) == by_hand(probabilities, 0, 0.51) == pytest.approx([0.0, 2 / 3, 0.0, 1 / 3])
    assert by_hand(probabilities, 0, 0.8) == by_hand(probabilities, 3, 1.0) == pytest.approx([1 / 6, 5 / 9, 0, 5 / 18])
    assert by_hand(probabilities, 2, 0.6) == by_hand(probabilities, 0, 0.49) == [0.0, 1.0, 0.0, 0.0]
    assert by_hand(probabilities, 9, 1.0) == pytest.approx(probabilities)
    expected = torch.tensor(by_hand(probabilities, top_k, top_p))
    rows = torch.tensor([probabilities, probabilities[::-1]]).log() + torch.tensor([[3.0], [-5.0]])
    found = truncated(rows, top_k, top_p)
    found = found / found.sum(-1, keepdim=True)  # whoever draws from them normalises
    assert_close(found, torch.stack([expected, expected.flip(0)]))


@pytest.mark.parametrize("top_p", [0.2, 0.6, 0.999])
def test_a_nucleus_may_have_few_classes_in_one_row_and_hundreds_in_another(top_p):
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(3, 700, generator=generator) * torch.tensor([[8.0], [1.0], [0.1]])
    expected = torch.tensor([by_hand(row, 0, top_p) for row in logits.softmax(-1).tolist()])
    sizes = (expected > 0).sum(-1).tolist()
    assert sizes == sorted(sizes)
    assert sizes[0] < 64 < sizes[2]
    found = truncated(logits, 0, top_p)
    assert_close(found / found.sum(-1, keepdim=True), expected)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 3, 1.0), (1.0, 0, 0.8), (1.3, 4, 0.9)]
)
def test_samples_are_as_frequent_as_they_are_likely(temperature, top_k, top_p):
    model, [source], limit, draws = random_model(2, 6), random_sources(5, [5]), 2, 5_000

    def chances(prefix: list[int]) -> list[float]:
        log_probs, _ = read(model, source, [prefix])
        return by_hand((log_probs[0, -1] / temperature).softmax(-1).tolist(), top_k, top_p)

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


@pytest.mark.parametrize(("least", "n", "prefix"), [(0, 0, []), (4, 2, [5, 5])])
@pytest.mark.parametrize("seed", SEEDS)
def test_draws_keep_the_rules_and_their_log_probs_are_the_models(seed, least, n, prefix):
    config = SearchConfig(sample=True, temperature=2.0, min_length=least, no_repeat_ngram=n)
    count, generator = 8 * len(SOURCES), torch.Generator().manual_seed(3)
    batch = Engine.of(random_model(seed)), *padded(SOURCES * 8)
    found = sample(*batch, [7] * count, config, generator, [prefix] * count)
    assert len({tuple(hypothesis.ids) for hypothesis in found}) > 20
    assert all(keeps_rules(hypothesis.ids, config, prefix, 7) for hypothesis in found)
    for hypothesis, source in zip(found[: len(SOURCES)], SOURCES, strict=True):
        [steps], [weights] = read(remembered_model(seed), source, [hypothesis.ids])
        gains = [step[token] for step, token in zip(steps[:7].tolist(), [*hypothesis.ids, EOS], strict=False)]
        assert_same([hypothesis], [hypothesis_of(hypothesis.ids, gains, weights, config)])
