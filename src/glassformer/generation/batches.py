"""Search over many sources of ids: in batches of like length, on a CPU side by side, with results in order."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Engine, inference
from glassformer.generation.lexical.demands import Demands, State
from glassformer.generation.lexical.search import LexicalSearch
from glassformer.generation.search import Abandoned, Hypothesis, beam_search, greedy, nobody, not_finite, sample
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS

MOST_LOGITS = 1 << 23
MOST_WORKERS = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


def search_all(
    engine: Engine,
    sources: Sequence[list[int]],
    config: SearchConfig,
    *,
    prefixes: Sequence[list[int]] | None = None,
    demands: Sequence[Demands] | None = None,
    progress: Callable[[int], None] = lambda sources_done: None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[list[Hypothesis]]:
    """Return up to `config.n_best` hypotheses for each source (ids that end with `</s>`), best first.

    An empty source has none.

    With `prefixes`, each target begins with the ids of its prefix; with `demands` it meets what is demanded of it. Once
    `is_over` says that nobody waits any more, at any step, the hypotheses are what was written until then.
    """
    for ids in prefixes or ():
        if len(ids) > config.max_length:
            raise ConfigError(
                f"a prefix must be at most max_length = {config.max_length} tokens long, got {len(ids)}: raise "
                "max_length, or shorten it"
            )
    results: list[list[Hypothesis]] = [[] for _ in sources]
    if empty := sum(not ids for ids in sources):
        progress(empty)
    batches = batches_by_length(sources, *batch_limits(config, engine.config.target_vocab_size))
    generator = torch.Generator(engine.device).manual_seed(config.seed)

    def search(batch: list[int]) -> list[list[Hypothesis]]:
        batch_prefixes = [prefixes[i] for i in batch] if prefixes else None
        batch_demands = [demands[i] for i in batch] if demands else None
        return search_batch(
            *(engine, [sources[i] for i in batch], batch_prefixes, config, generator),
            demands=batch_demands,
            abandoned=lambda: range(len(batch)) if is_over() else (),
        )

    def receive(batch: list[int], hypotheses: list[list[Hypothesis]]) -> None:
        for i, best in zip(batch, hypotheses, strict=True):
            results[i] = best
        progress(len(batch))

    one_by_one = engine.device.type != "cpu" or config.sample  # draws come from one generator, in order
    work_in_threads(search, batches, receive, 1 if one_by_one else MOST_WORKERS)
    return results


def work_in_threads(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    receive: Callable[[Item, Result], None],
    most: int = MOST_WORKERS,
) -> None:
    """Call `receive` in this thread with each item and the result of `work` on it, in the order they are ready.

    torch's threads are shared out among `most` workers. A step of generation is a hundred small operations; one batch
    alone leaves the other threads idle between them. Measured with two threads on Intel: 1.4 times as fast. An error of
    `work` or `receive` is raised once the workers have stopped. A thread of the caller's that is started meanwhile has
    a worker's number of torch threads.
    """
    threads = torch.get_num_threads()
    workers = min(threads, most, len(items))
    if workers < 2:
        for item in items:
            receive(item, work(item))
        return
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        waiting = {pool.submit(work, item): item for item in items}
        for future in as_completed(waiting):
            receive(waiting[future], future.result())
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a worker's number is the default of threads started later


def batches_by_length(sources: Sequence[list[int]], most_tokens: int, most_sources: int) -> list[list[int]]:
    """Return the indices of sources that aren't empty, longest first, in batches of at most so many padded tokens."""
    order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: -len(sources[i]))
    batches: list[list[int]] = []
    for i in order:
        size = len(batches[-1]) + 1 if batches else 0
        if batches and size <= most_sources and len(sources[batches[-1][0]]) * size <= most_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def batch_limits(config: SearchConfig, classes: int) -> tuple[int, int]:
    """Return the most padded tokens and the most sources of a batch, for a model with so many target ids."""
    width = 1 if config.sample else config.beam
    most_sources = max(1, MOST_LOGITS // (width * classes))
    return max(1, config.batch_tokens // width), min(most_sources, config.batch_lines or most_sources)


def ended(encoded: list[list[int]], lines: Sequence[str], most: int, side: str) -> list[list[int]]:
    """Return the ids of each line with `</s>`, cut with a warning to `most`; an empty line has none."""
    for ids, line in zip(encoded, lines, strict=True):
        if len(ids) >= most:
            size = f"a {side} of {len(ids):,} tokens is cut to its first {most - 1:,}"
            warnings.warn(f"{size}: {line[:40]!r}…; split it into sentences", stacklevel=3)
    return [with_end(ids[: most - 1], line) for ids, line in zip(encoded, lines, strict=True)]


def with_end(ids: list[int], line: str) -> list[int]:
    """Return the ids of a line with `</s>`, and none of white space, which may have ids too, but says nothing."""
    return [*ids, EOS] if ids and not line.isspace() else []


def longest_target(source: list[int], config: SearchConfig) -> int:
    """Return the most tokens that a target may have."""
    return max(config.min_length, min(config.max_length, 3 * len(source) + 50))


def search_batch(
    engine: Engine,
    sources: list[list[int]],
    prefixes: list[list[int]] | None,
    config: SearchConfig,
    generator: torch.Generator,
    *,
    demands: list[Demands] | None = None,
    abandoned: Abandoned = nobody,
) -> list[list[Hypothesis]]:
    """Return up to `config.n_best` hypotheses for each source of one batch; none of the sources is empty.

    Those of sources that were `abandoned` on the way are what was written until then.
    """
    source, keep = pad_source([torch.tensor(ids) for ids in sources], engine.source_pad)
    source, keep = source.to(engine.device), keep.to(engine.device)
    limits = [longest_target(ids, config) for ids in sources]
    if prefixes:
        limits = [min(config.max_length, limit + len(ids)) for limit, ids in zip(limits, prefixes, strict=True)]
    if demands:
        limits = [
            min(config.max_length, limit + one.needed(State())) for limit, one in zip(limits, demands, strict=True)
        ]
        return LexicalSearch(engine, source, keep, limits, config, prefixes, demands).run(abandoned)
    if config.sample:
        draws = [
            sample(engine, source, keep, limits, config, generator, prefixes, abandoned=abandoned)
            for _ in range(config.n_best)
        ]
        return [sorted(drawn, key=lambda hypothesis: -hypothesis.score) for drawn in zip(*draws, strict=True)]
    if config.beam == 1:
        return [[best] for best in greedy(engine, source, keep, limits, config, prefixes, abandoned=abandoned)]
    return beam_search(engine, source, keep, limits, config, prefixes, abandoned=abandoned)


def score_all(
    engine: Engine,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    batch_tokens: int,
    progress: Callable[[int], None],
) -> list[float]:
    """Return the log-probability of each target, in nats, and tell after each batch how many pairs that were."""
    totals = [0.0] * len(sources)
    longest = [max(pair, key=len) for pair in zip(sources, targets, strict=True)]
    most_logits = max(1, MOST_LOGITS // engine.config.target_vocab_size)
    for batch in batches_by_length(longest, min(batch_tokens, most_logits), len(sources)):
        beside = [sources[i] for i in batch], [targets[i] for i in batch]
        for i, score in zip(batch, log_probs_of_targets(engine, *beside).sum(1).tolist(), strict=True):
            totals[i] = score
        progress(len(batch))
    return totals


def log_probs_of_targets(
    engine: Engine, sources: list[list[int]], targets: list[list[int]]
) -> Float[Tensor, "pairs tokens"]:
    """Return the log-probability of each token of each target, with 0 after its end."""
    source, keep = pad_source([torch.tensor(ids) for ids in sources], engine.source_pad)
    target, inside = pad_source([torch.tensor(ids) for ids in targets], engine.target_pad)
    target, inside = target.to(engine.device), inside[:, 0, 0].to(engine.device)
    start = target.new_full((len(target), 1), engine.target_pad)
    with inference(engine.device):
        target_in = torch.cat([start, target[:, :-1]], dim=1)
        logits = engine.decode(target_in, source.to(engine.device), keep.to(engine.device))
        log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        picked = log_probs.gather(2, target.masked_fill(~inside, EOS)[:, :, None]).squeeze(2)
        if picked.isnan().any():
            raise not_finite(engine)
        return picked.masked_fill(~inside, 0.0).double()


def likeliest_after(engine: Engine, source: list[int], ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """Return the likeliest tokens after these of a translation, likeliest first, and their log-probabilities."""
    target_in, source_ids = (torch.tensor([row], device=engine.device) for row in ([engine.target_pad, *ids], source))
    with inference(engine.device):
        logits = engine.decode(target_in, source_ids)[0, -1]
        log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        if log_probs.isnan().any():
            raise not_finite(engine)
        best, classes = log_probs.topk(min(count, engine.target_pad))
    return classes.tolist(), best.tolist()
