"""Greedy search, beam search and sampling, over ids.

There are B sources, W hypotheses of each, and V classes: every id but padding, and unused ones up to a multiple of 128.
Row b * W + w belongs to hypothesis w of source b. Finished sources leave the batch.
"""

import math
from bisect import insort
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.kernels.topk import topk_classes
from glassformer.errors import RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.constraints import Constraints
from glassformer.generation.engines.cache import BeamCache
from glassformer.generation.engines.engine import Engine, inference, inferring
from glassformer.generation.kernels.passes import log_softmax
from glassformer.text.tokenizer import EOS

Source = Int[Tensor, "sources source_len"]
Keep = Bool[Tensor, "sources 1 1 source_len"]
Prefixes = list[list[int]] | None
Abandoned = Callable[[], Container[int]]
"""Returns the sources that nobody waits for any more. It is asked at each step, and theirs is the last one."""


def nobody() -> Container[int]:
    """Return that every source is waited for."""
    return ()


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without `</s>`, and how likely the model finds it."""

    ids: list[int]
    token_log_probs: list[float]
    """Each token's log-probability (nats); one more than `ids` if it ended with `</s>`."""
    log_prob: float
    """Sum of the tokens' log-probabilities, in nats."""
    score: float
    """log_prob divided by the length penalty, minus the coverage penalty; what beam search compares."""
    put_in: tuple[tuple[int, int], ...] = ()
    """Places of tokens that stand for a text, each with the number of the demand that has it (see `lexical`)."""
    forced: tuple[int, ...] = ()
    """Numbers of the demands that the search had to begin by itself."""


NOTHING = Hypothesis([], [], 0.0, 0.0)
"""The translation of a line without words."""


@inferring
def greedy(
    engine: Engine,
    source: Source,
    keep: Keep,
    limits: list[int],
    config: SearchConfig,
    prefixes: Prefixes = None,
    *,
    abandoned: Abandoned = nobody,
) -> list[Hypothesis]:
    """Choose the likeliest token at every step, until `</s>` or the limit of each source."""
    return _roll_out(engine, source, keep, limits, config, prefixes, _likeliest, abandoned)


@inferring
def sample(
    engine: Engine,
    source: Source,
    keep: Keep,
    limits: list[int],
    config: SearchConfig,
    generator: torch.Generator,
    prefixes: Prefixes = None,
    *,
    abandoned: Abandoned = nobody,
) -> list[Hypothesis]:
    """Draw once per source from the distribution that temperature, top_k and top_p leave; log_prob is the model's."""
    return _roll_out(engine, source, keep, limits, config, prefixes, _drawing(config, generator), abandoned)


def stream(
    engine: Engine, source: Source, limit: int, config: SearchConfig, generator: torch.Generator
) -> Iterator[tuple[int, float]]:
    """Yield the tokens of one source's translation, with their log-probabilities, as they are chosen.

    They are chosen greedily, or by sampling. The last one is `</s>`, unless the limit comes first.
    """
    choose = _drawing(config, generator) if config.sample else _likeliest
    constraints = Constraints(config, None, width=1)
    ids = source.new_empty(1, 1, 0)
    with inference(engine.device):
        cache = engine.start(source, None, width=1)
    token = source.new_full((1,), engine.target_pad)
    while ids.shape[2] < limit:
        with inference(engine.device):
            gained, token = choose(engine, token, cache, constraints, ids, [0])
            ids = torch.cat([ids, token.view(1, 1, 1)], dim=2)
        if gained.isnan():
            raise not_finite(engine)
        yield int(token), float(gained)
        if int(token) == EOS:
            return


def truncated(logits: Float[Tensor, "rows classes"], top_k: int, top_p: float) -> Float[Tensor, "rows classes"]:
    """Return softmax of `logits` over the `top_k` likeliest classes (0: all), cut to the likeliest that reach `top_p`.

    Rows are weights for a draw: with `top_p` they sum to less than 1.
    """
    if 0 < top_k < logits.shape[1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = logits.softmax(-1)
    return _nucleus(probabilities, top_p) if top_p < 1 else probabilities


_FEW = 64
"""Classes that are looked at first for a nucleus: to find them takes a twentieth of the time of sorting 10,000."""


def _nucleus(probabilities: Float[Tensor, "rows classes"], top_p: float) -> Float[Tensor, "rows classes"]:
    """Return the probabilities with 0 for all but the likeliest that reach `top_p` (Holtzman et al. 2020)."""
    few = probabilities.topk(min(_FEW, probabilities.shape[1]))
    wide = few.values.sum(-1) < top_p
    nucleus = torch.zeros_like(probabilities).scatter(1, few.indices, _reaching(few.values, top_p))
    if wide.any():
        ordered, order = probabilities[wide].sort(descending=True)
        nucleus[wide] = torch.zeros_like(ordered).scatter(1, order, _reaching(ordered, top_p))
    return nucleus


def _reaching(ordered: Float[Tensor, "rows n"], top_p: float) -> Float[Tensor, "rows n"]:
    """Return probabilities, the highest first, with 0 in place of those before which `top_p` is reached."""
    outside = ordered.cumsum(-1) - ordered >= top_p
    outside[:, 0] = False  # a top_p that is 0 in these numbers leaves the likeliest
    return ordered.masked_fill(outside, 0.0)


def _drawn(weights: Float[Tensor, "rows classes"], generator: torch.Generator) -> Int[Tensor, "rows 1"]:
    """Draw a class of each row, as often as its weight says: where the sum of weights passes a random share of it.

    The share is above 0 and at most 1, so a class without weight is never drawn. `torch.multinomial` draws a number for
    each class, which takes a CPU ten times as long. Elsewhere sums are made in parallel, and may rise by their rounding
    where there is no weight.
    """
    if weights.device.type != "cpu":
        return torch.multinomial(weights, 1, generator=generator)
    sums = weights.cumsum(-1)
    share = 1 - torch.rand(len(sums), 1, generator=generator, dtype=sums.dtype, device=sums.device)
    return torch.searchsorted(sums, share * sums[:, -1:])


def _drawing(config: SearchConfig, generator: torch.Generator) -> "_Choose":
    """Return the choice that draws each token."""

    def draw(
        engine: Engine, tokens: Tensor, cache: BeamCache, constraints: Constraints, ids: Tensor, open_: list[int]
    ) -> tuple[Tensor, Tensor]:
        logits, _ = engine.step(tokens, cache)
        log_probs = log_softmax(logits)
        constraints.apply(log_probs, ids, open_)
        if log_probs.isnan().any():
            raise not_finite(engine)
        probabilities = truncated(log_probs / config.temperature, config.top_k, config.top_p)
        drawn = _drawn(probabilities, generator)
        return log_probs.gather(1, drawn).squeeze(1), drawn.squeeze(1)

    return draw


def _likeliest(
    engine: Engine, tokens: Tensor, cache: BeamCache, constraints: Constraints, ids: Tensor, open_: list[int]
) -> tuple[Tensor, Tensor]:
    """Choose the likeliest token."""
    log_probs, best, _ = _step_best(engine, tokens, cache, 1, constraints, ids, open_)
    return log_probs.squeeze(1), best.squeeze(1)


_Choose = Callable[[Engine, Tensor, BeamCache, Constraints, Tensor, list[int]], tuple[Tensor, Tensor]]
"""Takes a step and returns each row's next token and its log-probability, from arguments like those of `_step_best`."""


def _step_best(
    engine: Engine,
    tokens: Int[Tensor, " rows"],
    cache: BeamCache,
    k: int,
    constraints: Constraints,
    ids: Int[Tensor, "sources width length"],
    open_: list[int],
) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"], Tensor]:
    """Return each row's k highest log-probabilities after these tokens, highest first, their classes, and the queries.

    `ids` are what was written before, of the sources `open_`.
    """
    length = ids.shape[2]
    if constraints.needs_all(length):
        logits, query = engine.step(tokens, cache)
        log_probs = log_softmax(logits)
        constraints.apply(log_probs, ids, open_)
        return *topk_classes(log_probs, k), query
    return engine.step_best(tokens, cache, k, EOS if constraints.forbids_end(length) else None)


def _roll_out(
    engine: Engine,
    source: Source,
    keep: Keep,
    limits: list[int],
    config: SearchConfig,
    prefixes: Prefixes,
    choose: "_Choose",
    abandoned: Abandoned,
) -> list[Hypothesis]:
    """Write one hypothesis per source, each next token chosen by `choose`."""
    cache = engine.start(source, keep, width=1)
    constraints = Constraints(config, prefixes, width=1)
    open_ = list(range(len(source)))  # the source of each row
    ids = source.new_empty(len(source), 1, 0)
    log_probs_of: list[list[float]] = [[] for _ in open_]
    tokens = source.new_full((len(open_),), engine.target_pad)
    done: dict[int, Hypothesis] = {}
    while len(done) < len(source):
        gained, tokens = choose(engine, tokens, cache, constraints, ids, open_)
        ids = torch.cat([ids, tokens[:, None, None]], dim=2)
        length = ids.shape[2]
        stay, left = [], abandoned()
        for row, (b, token, log_prob) in enumerate(zip(open_, tokens.tolist(), gained.tolist(), strict=True)):
            if b in done:
                continue
            if math.isnan(log_prob):
                raise not_finite(engine)
            log_probs_of[b].append(log_prob)
            if token == EOS or length >= limits[b] or b in left:
                sum_ = sum(log_probs_of[b])
                written = ids[row, 0, : length - (token == EOS)].tolist()
                done[b] = Hypothesis(written, log_probs_of[b], sum_, sum_ / config.normaliser(length))
            else:
                stay.append(row)
        if cache.should_leave(len(open_) - len(stay), len(open_)) and stay:
            rows = torch.tensor(stay, device=source.device)
            cache.take_sources(rows)
            tokens, ids = tokens[rows], ids[rows]
            open_ = [open_[row] for row in stay]
    return [done[b] for b in range(len(source))]


@inferring
def beam_search(
    engine: Engine,
    source: Source,
    keep: Keep,
    limits: list[int],
    config: SearchConfig,
    prefixes: Prefixes = None,
    *,
    abandoned: Abandoned = nobody,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best-scored translations of each source that a beam of W finds, best first.

    Each step extends the W open hypotheses by their 2 W likeliest tokens overall; those that end in `</s>` and rank
    among the first W are finished, the first W others stay open. At its limit a hypothesis counts as it is.
    """
    width = config.beam
    cache = engine.start(source, keep, width)
    constraints = Constraints(config, prefixes, width)
    beams = _Beams.start(source, engine, width, config)
    open_ = list(range(len(source)))
    decided: set[int] = set()
    finished: list[list[Hypothesis]] = [[] for _ in open_]
    tokens = source.new_full((len(open_) * width,), engine.target_pad)
    while len(decided) < len(source):
        k = min(2 * width, engine.classes)
        gained, tokens, query = _step_best(engine, tokens, cache, k, constraints, beams.ids, open_)
        if beams.coverage is not None:
            beams.coverage = beams.coverage + engine.alignment(query, cache)
        ended, parents = beams.extend(gained, tokens)
        for row, hypothesis in ended:
            if open_[row] not in decided:
                _insert(hypothesis, finished[open_[row]], config.beam)
        best_open, left = beams.sums[:, 0].tolist(), abandoned()
        for row, b in enumerate(open_):
            if b in decided:
                continue
            if beams.length >= limits[b] or b in left:
                for hypothesis in beams.cut_off(row):
                    _insert(hypothesis, finished[b], config.beam)
                decided.add(b)
            elif best_open[row] == -torch.inf or is_decided(
                finished[b], best_open[row], beams.length, limits[b], config
            ):
                decided.add(b)
        cache.branch(parents)
        stay = [row for row, b in enumerate(open_) if b not in decided]
        if cache.should_leave(len(open_) - len(stay), len(open_)) and stay:
            kept = torch.tensor(stay, device=source.device)
            cache.take_sources(kept)
            beams.take_sources(kept)
            open_ = [open_[row] for row in stay]
        tokens = beams.ids[:, :, -1].flatten().clamp(max=engine.target_pad)  # a dead hypothesis may have any class
    if not all(finished):
        raise not_finite(engine)
    return [best[: config.n_best] for best in finished]


def not_finite(engine: Engine) -> RunError:
    """Return the error for numbers that overflowed."""
    number = str(engine.dtype).removeprefix("torch.")
    return RunError(
        f"the model computed numbers that are not finite, in {number}: "
        + ("use the precision float32 or bfloat16" if engine.dtype == torch.float16 else "its weights are too large")
    )


class _Beams:
    """The W open hypotheses of each source: their ids, each token's log-probability, and the sums of these."""

    def __init__(self, ids: Tensor, gains: Tensor, sums: Tensor, coverage: Tensor | None, config: SearchConfig) -> None:
        self.ids = ids  # (B, W, length)
        self.gains = gains  # (B, W, length)
        self.sums = sums  # (B, W), best first
        self.coverage = coverage  # (B, W, source length): attention that each source position got; inf on padding
        self._config = config

    @classmethod
    def start(cls, source: Source, engine: Engine, width: int, config: SearchConfig) -> "_Beams":
        """Return W empty hypotheses of each source."""
        shape = len(source), width
        ids = source.new_empty(*shape, 0)
        gains = torch.empty(*shape, 0, dtype=torch.promote_types(engine.dtype, torch.float32), device=source.device)
        sums = gains.new_full(shape, -torch.inf)
        sums[:, 0] = 0.0  # all hypotheses are alike at first: one of them is enough
        coverage = None
        if config.coverage_penalty:
            padding = source == engine.source_pad
            coverage = gains.new_zeros(len(source), 1, source.shape[1]).masked_fill_(padding[:, None], torch.inf)
            coverage = coverage.expand(-1, width, -1)
        return cls(ids, gains, sums, coverage, config)

    @property
    def length(self) -> int:
        """The number of tokens of each hypothesis."""
        return self.ids.shape[2]

    def extend(
        self, gained: Float[Tensor, "rows each"], tokens: Int[Tensor, "rows each"]
    ) -> tuple[list[tuple[int, Hypothesis]], Tensor]:
        """Extend each source's hypotheses by their best tokens, and keep the best W that don't end.

        `gained` are the log-probabilities of `tokens`. Return those that end, with their rows, and for each that stays
        open the hypothesis that it continues.
        """
        (sources, width), each = self.sums.shape, gained.shape[1]
        totals = (self.sums[:, :, None] + gained.view(sources, width, each)).flatten(1)
        totals, index = totals.topk(2 * width)
        parents = index.div(each, rounding_mode="floor")
        tokens, gained = tokens.view(sources, -1).gather(1, index), gained.view(sources, -1).gather(1, index)

        ends = tokens == EOS
        ended = [
            (row, self._hypothesis(row, int(parents[row, rank]), totals[row, rank].item(), gained[row, rank].item()))
            for row, rank in (ends[:, :width] & totals[:, :width].isfinite()).nonzero().tolist()
        ]
        # At most W of the 2 W candidates end, one for each open hypothesis: W others always remain.
        order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
        self.sums, parents = totals.gather(1, order), parents.gather(1, order)
        tokens, gained = tokens.gather(1, order), gained.gather(1, order)
        past = parents[:, :, None].expand(-1, -1, self.length)
        self.ids = torch.cat([self.ids.gather(1, past), tokens[:, :, None]], dim=2)
        self.gains = torch.cat([self.gains.gather(1, past), gained[:, :, None]], dim=2)
        if self.coverage is not None:
            self.coverage = self.coverage.gather(1, parents[:, :, None].expand(-1, -1, self.coverage.shape[2]))
        return ended, parents

    def cut_off(self, row: int) -> list[Hypothesis]:
        """Return the open hypotheses of a source as they are."""
        return [
            self._scored(self.ids[row, w].tolist(), self.gains[row, w].tolist(), log_prob, row, w)
            for w, log_prob in enumerate(self.sums[row].tolist())
            if log_prob > -torch.inf
        ]

    def take_sources(self, kept: Int[Tensor, " kept"]) -> None:
        """Drop all but these sources."""
        self.ids, self.gains, self.sums = self.ids[kept], self.gains[kept], self.sums[kept]
        self.coverage = None if self.coverage is None else self.coverage[kept]

    def _hypothesis(self, row: int, parent: int, log_prob: float, gained: float) -> Hypothesis:
        ids, gains = self.ids[row, parent].tolist(), self.gains[row, parent].tolist()
        return self._scored(ids, [*gains, gained], log_prob, row, parent)

    def _scored(self, ids: list[int], gains: list[float], log_prob: float, row: int, w: int) -> Hypothesis:
        score = log_prob / self._config.normaliser(len(gains))
        if self.coverage is not None:
            score += self._config.coverage_penalty * self.coverage[row, w].clamp(max=1.0).log().sum().item()
        return Hypothesis(ids, gains, log_prob, score)


def _insert(hypothesis: Hypothesis, best: list[Hypothesis], most: int) -> None:
    """Add a finished hypothesis to those of its source, of which the best `most` stay, best first."""
    insort(best, hypothesis, key=lambda one: -one.score)
    del best[most:]


def is_decided(best: Sequence[Hypothesis], best_open: float, length: int, limit: int, config: SearchConfig) -> bool:
    """Return whether a source needs no further step, by the rule that `stopping` names.

    `best` are the finished hypotheses, best first, and `best_open` is the highest log-probability of those of `length`
    tokens that are open.
    """
    if config.stopping == "first":
        return len(best) >= config.beam
    if config.stopping == "heuristic":
        return len(best) >= config.beam and best[-1].score >= best_open / config.normaliser(length)
    if len(best) < config.n_best:
        return False
    # Log-probabilities only fall, and the longest translation divides them by the most.
    return best[config.n_best - 1].score >= best_open / config.normaliser(limit)
