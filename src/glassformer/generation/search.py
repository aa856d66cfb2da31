"""Greedy search, beam search and sampling, over ids.

B sources, W hypotheses of each, V ids that can be predicted (all but padding). Row b * W + w of a cache belongs to
hypothesis w of source b. Sources that are finished leave the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.generation.config import SearchConfig
from glassformer.text.tokenizer import EOS
from glassformer.transformer.model import Transformer

Source = Int[Tensor, "sources source_len"]
Keep = Bool[Tensor, "sources 1 1 source_len"]


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without `</s>`, and how likely the model finds it."""

    ids: list[int]
    log_prob: float
    """Sum of the tokens' log-probabilities (nats), `</s>` included."""
    score: float
    """log_prob divided by the length penalty; what beam search compares."""


@torch.inference_mode()
def greedy(model: Transformer, source: Source, keep: Keep, limits: list[int], config: SearchConfig) -> list[Hypothesis]:
    """The likeliest token at every step, until `</s>` or the limit of each source."""
    return _roll_out(model, source, keep, limits, config, lambda log_probs: log_probs.argmax(-1))


@torch.inference_mode()
def sample(
    model: Transformer,
    source: Source,
    keep: Keep,
    limits: list[int],
    config: SearchConfig,
    generator: torch.Generator,
) -> list[Hypothesis]:
    """One draw per source from the distribution that temperature, top_k and top_p leave; log_prob is the model's."""

    def draw(log_probs: Tensor) -> Tensor:
        probabilities = truncated(log_probs / config.temperature, config.top_k, config.top_p)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)

    return _roll_out(model, source, keep, limits, config, draw)


def truncated(logits: Float[Tensor, "rows classes"], top_k: int, top_p: float) -> Float[Tensor, "rows classes"]:
    """softmax of `logits` over the `top_k` likeliest classes (0: all), of these the likeliest that reach `top_p`.

    Rows are weights for a draw: with `top_p` they sum to less than 1.
    """
    if 0 < top_k < logits.shape[1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = logits.softmax(-1)
    if top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        outside = ordered.cumsum(-1) - ordered >= top_p  # what came before already reaches top_p
        probabilities = torch.zeros_like(ordered).scatter(1, order, ordered.masked_fill(outside, 0.0))
    return probabilities


def _roll_out(
    model: Transformer,
    source: Source,
    keep: Keep,
    limits: list[int],
    config: SearchConfig,
    choose: Callable[[Tensor], Tensor],
) -> list[Hypothesis]:
    """One hypothesis per source, each next token chosen from its log-probabilities."""
    cache = model.start(model.encode(source, keep), keep)
    open_ = list(range(len(source)))  # the source of each row
    ids: list[list[int]] = [[] for _ in open_]
    sums = [0.0] * len(open_)
    tokens = source.new_full((len(open_), 1), model.target_pad)
    done: dict[int, Hypothesis] = {}
    while open_:
        states, cache = model.decode(tokens, cache)
        log_probs = model.logits(states[:, -1]).float().log_softmax(-1)
        chosen = choose(log_probs)
        gained = log_probs.gather(1, chosen[:, None]).squeeze(1).tolist()
        stay = []
        for row, (b, token) in enumerate(zip(open_, chosen.tolist(), strict=True)):
            sums[b] += gained[row]
            if token != EOS:
                ids[b].append(token)
            if token == EOS or len(ids[b]) >= limits[b]:
                length = len(ids[b]) + (token == EOS)
                done[b] = Hypothesis(ids[b], sums[b], sums[b] / config.normaliser(length))
            else:
                stay.append(row)
        if len(stay) < len(open_):
            rows = torch.tensor(stay, device=source.device, dtype=torch.long)
            cache, chosen = cache.take_sources(rows), chosen[rows]
            open_ = [open_[row] for row in stay]
        tokens = chosen[:, None]
    return [done[b] for b in range(len(source))]


@torch.inference_mode()
def beam_search(
    model: Transformer, source: Source, keep: Keep, limits: list[int], config: SearchConfig
) -> list[list[Hypothesis]]:
    """The `n_best` best-scored translations of each source that a beam of W finds, best first.

    Each step extends the W open hypotheses by their 2 W likeliest tokens overall; those that end in `</s>` and rank
    among the first W are finished, the first W others stay open. At its limit a hypothesis counts as it is.
    """
    width, device = config.beam, source.device
    cache = model.start(model.encode(source, keep), keep)
    open_ = list(range(len(source)))
    finished: list[list[Hypothesis]] = [[] for _ in open_]
    sums = torch.full((len(open_), width), -torch.inf, device=device)
    sums[:, 0] = 0.0  # all hypotheses are alike at first: one of them is enough
    ids = torch.empty(len(open_), width, 0, dtype=torch.long, device=device)
    tokens = source.new_full((len(open_) * width, 1), model.target_pad)
    length = 0
    while open_:
        length += 1
        states, cache = model.decode(tokens, cache)
        log_probs = model.logits(states[:, -1]).float().log_softmax(-1)
        classes = log_probs.shape[1]
        total = (sums[:, :, None] + log_probs.view(len(open_), width, classes)).flatten(1)
        top, index = total.topk(2 * width)
        parent, token = index // classes, index % classes

        ended = token == EOS
        for row, rank in (ended[:, :width] & top[:, :width].isfinite()).nonzero().tolist():
            prefix = ids[row, parent[row, rank]].tolist()
            _finish(finished[open_[row]], prefix, top[row, rank].item(), length, config)

        # At most W of the 2 W candidates end, one for each open hypothesis: W others are always there.
        order = ended.to(torch.int8).argsort(dim=1, stable=True)[:, :width]
        sums, parent, token = top.gather(1, order), parent.gather(1, order), token.gather(1, order)
        ids = torch.cat([ids.gather(1, parent[:, :, None].expand(-1, -1, length - 1)), token[:, :, None]], dim=2)

        stay = []
        best_open = sums[:, 0].tolist()
        for row, b in enumerate(open_):
            if length >= limits[b]:
                for prefix, log_prob in zip(ids[row].tolist(), sums[row].tolist(), strict=True):
                    if log_prob > -torch.inf:
                        _finish(finished[b], prefix, log_prob, length, config)
            elif not _is_decided(finished[b], best_open[row], limits[b], config):
                stay.append(row)
        rows = (torch.arange(len(open_), device=device)[:, None] * width + parent).flatten()
        cache = cache.take(rows)
        if len(stay) < len(open_):
            kept = torch.tensor(stay, device=device, dtype=torch.long)
            cache, sums, ids, token = cache.take_sources(kept), sums[kept], ids[kept], token[kept]
            open_ = [open_[row] for row in stay]
        tokens = token.reshape(-1, 1)
    return [best[: config.n_best] for best in finished]


def _finish(best: list[Hypothesis], ids: list[int], log_prob: float, length: int, config: SearchConfig) -> None:
    """Add a finished hypothesis to those of its source, which stay ordered and at most as many as the beam."""
    best.append(Hypothesis(ids, log_prob, log_prob / config.normaliser(length)))
    best.sort(key=lambda hypothesis: -hypothesis.score)
    del best[config.beam :]


def _is_decided(best: list[Hypothesis], best_open: float, limit: int, config: SearchConfig) -> bool:
    """Whether a source needs no further step: by the stopping rule, or because nothing is open."""
    if best_open == -torch.inf:
        return True
    if config.stopping == "first":
        return len(best) >= config.beam
    if len(best) < config.n_best:
        return False
    # Log-probabilities only fall, and the longest translation divides them by the most.
    return best[config.n_best - 1].score >= best_open / config.normaliser(limit)
