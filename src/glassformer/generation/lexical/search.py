"""Beam search in which every translation contains what is demanded of it."""

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.kernels.topk import topk_classes
from glassformer.generation.config import SearchConfig
from glassformer.generation.constraints import Constraints
from glassformer.generation.engines.engine import Engine, inference
from glassformer.generation.kernels.passes import log_softmax
from glassformer.generation.lexical.demands import Demands, State, bits
from glassformer.generation.search import Abandoned, Hypothesis, Keep, Prefixes, Source, is_decided, nobody, not_finite
from glassformer.text.tokenizer import EOS

ASTRAY = 5.0
"""Nats that a hypothesis loses for a demand met where it doesn't attend to the source tokens that the demand is for, or
not met although it has attended to them."""
ATTENDED = 0.4
"""Attention to the source tokens of a demand that counts as all of it."""
LEAST_FORCED = -2.0
"""Least log-probability with which a token that was forced counts when hypotheses are compared."""


class _Token(NamedTuple):
    """A token that was written, and what was before it."""

    before: "_Token | None"
    id: int
    log_prob: float


class _Open(NamedTuple):
    """A hypothesis that isn't finished."""

    last: _Token | None
    total: float
    """Sum of the tokens' log-probabilities."""
    judged: float
    """The same, with at least `LEAST_FORCED` for each token that was forced, less what is taken for demands astray."""
    state: State
    parent: int
    """The hypothesis of the step before that it continues."""


class _Candidate(NamedTuple):
    """A token that may follow hypothesis w of a source; `rank` decides which candidates get a place."""

    rank: float
    w: int
    token: int
    log_prob: float
    forced: int
    """The demand that the search offers it for, or -1."""


class _Required(NamedTuple):
    """The tokens that begin or go on with demands, of all rows, in the order of the rows."""

    rows: Int[Tensor, " options"]
    tokens: Int[Tensor, " options"]
    demands: Int[Tensor, " options"]
    extra: Int[Tensor, " options"]
    """Number of tokens that it takes beyond the shortest form, less those that there is room for."""
    begins: Bool[Tensor, " options"]
    """True where the demand isn't one that was forced and is gone on with."""


class LexicalSearch:
    """Beam search in which each translation of a source meets the demands on it.

    A step's candidates are the likeliest tokens, as in `beam_search`, and those that begin or go on with a demand (grid
    beam search: Hokamp and Liu 2017). Where a demand belongs is told by attention: it is for some of the source's
    tokens, and a hypothesis loses `ASTRAY` nats if it begins it while it attends to others, or attends to these without
    beginning it (compare Hasler et al. 2018). Tokens that the search has forced count with at least `LEAST_FORCED`,
    since every translation must have them. None ends before it meets all: one that would rather end goes on with
    demands only, and so does one whose room before the limit is just enough. A token that stands for a text has the
    probability and the embedding of the vocabulary's stand-in.

    There are B sources and W hypotheses of each; row b * W + w is hypothesis w of source b.
    """

    def __init__(
        self,
        engine: Engine,
        source: Source,
        keep: Keep,
        limits: list[int],
        config: SearchConfig,
        prefixes: Prefixes,
        demands: Sequence[Demands],
    ) -> None:
        self._engine, self._config, self._limits, self._demands = engine, config, limits, demands
        self._width = config.beam
        self._stand_in = demands[0].vocabulary.stand_in
        with inference(engine.device):
            self._cache = engine.start(source, keep, self._width)
        self._constraints = Constraints(config, prefixes, self._width)
        self._prefixed = [len(prefix) for prefix in prefixes or [[]] * len(source)]
        self._length = 0
        self._sources = list(range(len(source)))  # those still open
        self._open = [[_Open(None, 0.0, 0.0, State(), 0)] for _ in self._sources]
        self._finished: list[list[tuple[int, float, Hypothesis]]] = [[] for _ in self._sources]
        dtype = torch.promote_types(engine.dtype, torch.float32)
        most = max(len(one.wanted) for one in demands)
        self._attended = torch.zeros(len(source), self._width, source.shape[1], dtype=dtype)
        self._positions = torch.zeros(len(source), source.shape[1], most, dtype=dtype)
        for b, one in enumerate(demands):
            for n, wanted in enumerate(one.wanted):
                self._positions[b, list(wanted.positions), n] = 1.0
        self._inside = (source != engine.source_pad).cpu()
        self._masks: dict[int, Tensor] = {}
        last = f"decoder.{engine.config.decoder_layers - 1}.source_attention"
        known = demands[0].vocabulary.continues_word
        self._continues_word = torch.tensor([*known, *[False] * (engine.classes - len(known))], device=engine.device)
        self._over = set[int]()  # the rows that would rather end, in this step
        self._astray: list[list[list[float]]] = []  # of each hypothesis and demand, in this step
        self._reads_source = engine.config.heads_of(last) > 0

    def run(self, abandoned: Abandoned = nobody) -> list[list[Hypothesis]]:
        """Return the `n_best` best-scored translations of each source that meet its demands, best first."""
        engine, rows = self._engine, len(self._sources) * self._width
        with inference(engine.device):
            tokens = torch.full((rows,), engine.target_pad, device=engine.device)
            while len(tokens):
                tokens = self._step(tokens, abandoned)
        return [[hypothesis for _, _, hypothesis in found[: self._config.n_best]] for found in self._finished]

    def _step(self, tokens: Int[Tensor, " rows"], abandoned: Abandoned) -> Int[Tensor, " next_rows"]:
        """Extend all hypotheses by a token, and return the newest ones, of the sources that are still open."""
        logits, query = self._engine.step(tokens, self._cache)
        log_probs = log_softmax(logits)
        attention = torch.zeros_like(self._attended)
        if self._reads_source:
            attention = self._engine.alignment(query, self._cache).cpu()
        self._attended = self._attended + attention
        candidates = self._candidates(log_probs, attention)
        self._length += 1
        self._open = [self._extend(at, candidates[at]) for at in range(len(self._sources))]
        left, stay = abandoned(), list[int]()
        for at, b in enumerate(self._sources):
            if self._length >= self._limits[b] or b in left:
                for one in self._open[at]:
                    self._finish(at, one, one.parent)
            elif not self._is_decided(at):
                stay.append(at)
        parents = torch.tensor([[self._at(at, w).parent for w in range(self._width)] for at in range(len(self._open))])
        self._attended = self._attended.gather(1, parents[:, :, None].expand_as(self._attended))
        self._cache.branch(parents.to(tokens.device))
        if len(stay) < len(self._sources):
            self._take_sources(stay, tokens.device)
        newest = [self._read(at, w) for at in range(len(self._sources)) for w in range(self._width)]
        return tokens.new_tensor(newest)

    def _candidates(
        self, log_probs: Float[Tensor, "rows classes"], attention: Float[Tensor, "sources width source_len"]
    ) -> list[list[_Candidate]]:
        """Return what may follow the hypotheses of each source, best rank first; `log_probs` is written over."""
        width = self._width
        required = self._required()
        gained = self._gained(required, log_probs)
        only_demands, ends = self._forbid(log_probs)
        best, classes = topk_classes(log_probs, min(2 * width, log_probs.shape[1]))
        best, classes = best.cpu(), classes.tolist()
        if best.isnan().any():
            raise not_finite(self._engine)
        self._over = {row for row, end in ends.items() if end >= best[row, 0].item()}
        best[[*only_demands, *self._over]] = -torch.inf
        best = best.view(-1, width, best.shape[1])
        totals = torch.tensor(
            [[one.judged for one in open_] + [-torch.inf] * (width - len(open_)) for open_ in self._open],
            dtype=best.dtype,
        )
        late = ASTRAY * (self._attended @ self._positions / ATTENDED).clamp(max=1.0)
        astray = ASTRAY * (1 - attention @ self._positions / ATTENDED).clamp(min=0.0)
        self._astray = astray.tolist()
        behind = totals - (late * self._late()).sum(2)
        counted = gained.clamp(min=LEAST_FORCED).masked_fill(gained == -torch.inf, -torch.inf)
        begins = (late - astray).flatten(0, 1)[required.rows, required.demands] * required.begins
        ranks = behind.flatten()[required.rows] + counted + begins
        likely, index = (totals[:, :, None] + best).flatten(1).topk(2 * width)
        bounds = torch.searchsorted(required.rows, torch.arange(len(self._sources) + 1) * width).tolist()
        likely, index, behind, best = likely.tolist(), index.tolist(), behind.tolist(), best.flatten(1).tolist()
        found, each = list[list[_Candidate]](), len(classes[0])
        for at, (begin, end) in enumerate(pairwise(bounds)):
            own = [
                (i // each, classes[at * width + i // each][i % each], best[at][i])
                for total, i in zip(likely[at], index[at], strict=True)
                if total > -torch.inf
            ]
            chosen, places = ranks[begin:end].topk(min(2 * width, end - begin))
            columns = (column[begin + places].tolist() for column in (*required[:3], gained))
            offered = [
                _Candidate(rank, row % width, token, log_prob, demand)
                for rank, row, token, demand, log_prob in zip(chosen.tolist(), *columns, strict=True)
                if rank > -torch.inf
            ]
            found.append(_ranked(own, offered, behind[at], width))
        return found

    def _gained(self, required: _Required, log_probs: Tensor) -> Float[Tensor, " options"]:
        """Return the log-probability of each token that is required; a prefix has the first word."""
        device = log_probs.device
        picked = required.tokens.where(required.tokens < self._engine.target_pad, torch.tensor(self._stand_in))
        gained = log_probs[required.rows.to(device), picked.to(device)].cpu()
        is_prefix = torch.tensor([self._length < self._prefixed[b] for b in self._sources])
        return gained.masked_fill(is_prefix[required.rows // self._width] | (required.extra > 0), -torch.inf)

    def _late(self) -> Float[Tensor, "sources width demands"]:
        """Return 1 for each demand that a hypothesis has neither met nor is forced to go on with, else 0."""
        rows = list[Tensor]()
        for at, b in enumerate(self._sources):
            for w in range(self._width):
                late = self._demands[b].late(self._at(at, w).state)
                if late not in self._masks:
                    mask = self._positions.new_zeros(self._positions.shape[2])
                    mask[bits(late)] = 1.0
                    self._masks[late] = mask
                rows.append(self._masks[late])
        return torch.stack(rows).view(len(self._sources), self._width, -1)

    def _required(self) -> _Required:
        """Return the tokens that begin or go on with demands."""
        offered = [self._demands[b].options(one.state) for _, b, one in self._rows()]
        tokens, demands, extra = (torch.cat(column) for column in zip(*offered, strict=True))
        counts = torch.tensor([len(options.tokens) for options in offered])
        numbers = torch.tensor([row for row, _, _ in self._rows()])
        spare = torch.tensor([self._spare(b, one.state) for _, b, one in self._rows()])
        begins = torch.tensor([not one.state.is_forcing for _, _, one in self._rows()])
        rows, spare, begins = (column.repeat_interleave(counts) for column in (numbers, spare, begins))
        return _Required(rows, tokens, demands, extra - spare.clamp(min=0), begins)

    def _rows(self) -> Iterator[tuple[int, int, _Open]]:
        """Yield the row, the source and what is written of each open hypothesis."""
        for at, b in enumerate(self._sources):
            for w, one in enumerate(self._open[at]):
                yield at * self._width + w, b, one

    def _spare(self, b: int, state: State) -> int:
        """Return how many tokens there is room for beside `</s>` and the shortest forms of what is demanded."""
        return self._limits[b] - self._length - 1 - self._demands[b].needed(state)

    def _loses(self, b: int, state: State) -> bool:
        """Return whether there would be no room to meet again what a longer last word would unmeet."""
        return self._spare(b, state._replace(met=state.met & ~state.loose)) <= 0

    def _forbid(self, log_probs: Tensor) -> tuple[list[int], dict[int, float]]:
        """Set to -inf what may not follow, by the search's own rules and those of demands.

        Return the rows that may go on with demands only, and those that may not end with how likely that was.
        """
        if self._constraints.needs_all(self._length):
            self._constraints.apply(log_probs, self._ids(log_probs.device), self._sources)
        elif self._constraints.forbids_end(self._length):
            log_probs[:, EOS] = -torch.inf
        unmet, only_demands, whole, ends = list[int](), list[int](), list[int](), dict[int, float]()
        for row, b, one in self._rows():
            state, is_prefix = one.state, self._length < self._prefixed[b]
            if state.met != self._demands[b].all:
                is_bound = state.is_forcing or state.is_over or self._spare(b, state) <= 0
                (only_demands if is_bound and not is_prefix else unmet).append(row)
            if state.loose and not is_prefix and (state.loose & state.forced or self._loses(b, state)):
                whole.append(row)
        if unmet:
            ends = dict(zip(unmet, log_probs[unmet, EOS].tolist(), strict=True))
            log_probs[unmet, EOS] = -torch.inf
        if whole:
            log_probs[whole] = log_probs[whole].masked_fill(self._continues_word, -torch.inf)
        free = [(row, b) for row, b, _ in self._rows() if self._length >= self._prefixed[b]]  # a prefix may have it
        if rows := [row for row, b in free if self._demands[b].forbids_stand_in]:
            log_probs[rows, self._stand_in] = -torch.inf
        return only_demands, ends

    def _extend(self, at: int, candidates: list[_Candidate]) -> list[_Open]:
        """Return the hypotheses of a source that stay open, and finish those that end."""
        demands, before = self._demands[self._sources[at]], self._open[at]
        extended = list[_Open]()
        for place, one in enumerate(candidates):
            if len(extended) == self._width:
                break
            parent = before[one.w]
            total, last = parent.total + one.log_prob, _Token(parent.last, one.token, one.log_prob)
            judged = parent.judged + (one.log_prob if one.forced < 0 else max(LEAST_FORCED, one.log_prob))
            if one.token == EOS:
                if place < self._width:
                    self._finish(at, _Open(last, total, judged, parent.state, 0), one.w)
                continue
            state = demands.advance(parent.state, one.token, forced=one.forced)
            if at * self._width + one.w in self._over:
                state = state._replace(is_over=True)
            new = state.met & ~parent.state.met | state.forced & ~parent.state.forced
            judged -= sum(self._astray[at][one.w][n] for n in bits(new & ~parent.state.forced))
            extended.append(_Open(last, total, judged, state, one.w))
        if not extended and not self._finished[self._sources[at]]:  # the rules leave nothing
            for w, one in enumerate(before):
                self._finish(at, one, w)
        return extended

    def _finish(self, at: int, one: _Open, w: int) -> None:
        """Add a hypothesis to the finished ones, of which the best stay; w is that whose attention it has paid."""
        b = self._sources[at]
        written = _written(one.last)
        ids = [token.id for token in written if token.id != EOS]
        pad, first = self._engine.target_pad, self._demands[b].first_put_in
        score = one.judged / self._config.normaliser(len(written))
        if self._config.coverage_penalty:
            attended = self._attended[at, w][self._inside[b]]
            score += self._config.coverage_penalty * attended.clamp(max=1.0).log().sum().item()
        hypothesis = Hypothesis(
            [i if i < pad else self._stand_in for i in ids],
            [token.log_prob for token in written],
            one.total,
            score,
            tuple((place, i - first) for place, i in enumerate(ids) if i > pad),
            tuple(n for n in range(len(self._demands[b].wanted)) if one.state.forced & one.state.met >> n & 1),
        )
        missing = len(self._demands[b].wanted) - one.state.met.bit_count()
        insort(self._finished[b], (missing, -score, hypothesis), key=lambda one: one[:2])
        del self._finished[b][self._width :]

    def _is_decided(self, at: int) -> bool:
        """Return whether a source needs no further step: by the stopping rule, or because nothing is open.

        The rule counts only once a finished hypothesis meets all demands. The heuristic one counts only open ones that
        do, too.
        """
        b, open_ = self._sources[at], self._open[at]
        if not open_:
            return True
        finished = self._finished[b]
        if not finished or finished[0][0]:
            return False
        if self._config.stopping == "heuristic":
            open_ = [one for one in open_ if one.state.met == self._demands[b].all]
        best_open = max((one.judged for one in open_), default=-math.inf)
        return is_decided([one for _, _, one in finished], best_open, self._length, self._limits[b], self._config)

    def _take_sources(self, stay: list[int], device: torch.device) -> None:
        """Drop all but these sources."""
        self._sources, self._open = [self._sources[at] for at in stay], [self._open[at] for at in stay]
        self._attended, self._positions = self._attended[stay], self._positions[stay]
        if stay:
            self._cache.take_sources(torch.tensor(stay, device=device))

    def _at(self, at: int, w: int) -> _Open:
        """Return hypothesis w of a source; where there are fewer, the last one stands in for it."""
        open_ = self._open[at]
        return open_[min(w, len(open_) - 1)] if open_ else _Open(None, 0.0, 0.0, State(), 0)

    def _read(self, at: int, w: int) -> int:
        """Return the token that the model reads next: for one that stands for a text the stand-in."""
        last = self._at(at, w).last
        return EOS if last is None else last.id if last.id < self._engine.target_pad else self._stand_in

    def _ids(self, device: torch.device) -> Int[Tensor, "sources width length"]:
        """Return what was written."""
        shape = len(self._sources), self._width
        open_ = [self._at(at, w) for at in range(shape[0]) for w in range(shape[1])]
        rows = [[token.id for token in _written(one.last)] for one in open_]
        return torch.tensor(rows, device=device, dtype=torch.long).view(*shape, self._length)


def _written(last: _Token | None) -> list[_Token]:
    """Return a token after all those before it."""
    written = list[_Token]()
    while last is not None:
        written.append(last)
        last = last.before
    return written[::-1]


def _ranked(
    own: list[tuple[int, int, float]], offered: list[_Candidate], behind: list[float], width: int
) -> list[_Candidate]:
    """Return the candidates of one source, best rank first.

    `own` are the likeliest (hypothesis, token, log-probability), `offered` those that demands ask for, and `behind` the
    ranks of the hypotheses. What is offered counts as forced unless it is among the W likeliest.
    """
    likeliest = {one[:2] for one in own[:width]}
    found = dict[tuple[int, int], _Candidate]()
    for one in offered:
        forced = -1 if (one.w, one.token) in likeliest else one.forced
        found.setdefault((one.w, one.token), one._replace(forced=forced))
    for w, token, log_prob in own:
        found.setdefault((w, token), _Candidate(behind[w] + log_prob, w, token, log_prob, -1))
    return sorted(found.values(), key=lambda one: -one.rank)
