"""Pruning: heads are removed for good, and the smaller model is trained a little on.

The heads without which the loss stays lowest go first (`least_missed`), some at a time, with a short training after
each round (Michel et al. 2019; Molchanov et al. 2017). Validation pairs choose them where they are given, since the
model may know its training pairs by heart.
"""

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from glassformer.data.held_out import is_usable
from glassformer.decoding import read_json
from glassformer.device import pick_device, use_threads
from glassformer.errors import (
    ArgumentError,
    ConfigError,
    DivergedError,
    GlassformerError,
    OutOfMemoryError,
    RunError,
    noting,
)
from glassformer.files import (
    alone,
    check_place,
    flush_folder,
    move_folder,
    new_folder,
    remove_at_once,
    remove_unfinished,
    write_json,
)
from glassformer.generation.config import SearchConfig
from glassformer.generation.files import digest_of_files, digest_of_run
from glassformer.insight.config import PruneConfig
from glassformer.insight.gates import least_missed
from glassformer.insight.speed import TURNS, Speed, compare_speed, peak_memory
from glassformer.insight.study import Sentences
from glassformer.pairs.files import Pair, PairFiles
from glassformer.run.config import TrainingRecord, read_config
from glassformer.run.folder import load_run, open_run, training_metric, write_config, write_weights
from glassformer.run.metrics import read_metrics
from glassformer.run.names import LOCK, METRICS, PRUNED, WEIGHTS
from glassformer.scoring.scores import check_bleu_tokenizer
from glassformer.tracking.results import track_steps
from glassformer.tracking.tracker import TrackedRun, check_tracker
from glassformer.training.config import TrainConfig
from glassformer.training.train import train_once
from glassformer.transformer.model import Transformer, count_parameters

SPEED_LINES = 200
"""Number of lines that are translated to measure the speed."""
SCORED_PAIRS = 2_000
"""Most validation pairs that are translated for a score: more than in ordinary training, which scores more often."""
CONTINUES = "what is done is kept: the same command continues"
MOVED = "moved"
"""File in the folder of rounds that says that the last one is being moved into place."""
KEPT = ("join_lines", "max_tokens", "max_ratio", "label_smoothing")
"""Settings of the run's training that decide which text it can read, and how sure it is."""
CONTENTS = ("run (digest)", "data (digest)")
"""Names in the settings of a pruning for what the run and the files of pairs hold."""
DRAWN_FROM = 100_000
"""Number of pairs at the beginning of a file from which those are drawn that heads and speed are measured on."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A model after a round, pruned or not.

    Example: docs/howto/prune.md.
    """

    heads: int
    """Number of heads."""
    parameters: int
    bytes: int
    """Size of the file of weights."""
    before: float
    """Score before training on; for a pruned model right after heads were removed."""
    score: float
    """Score after training on, for the best weights, which were kept."""
    loss: float
    """Validation loss of these weights, in nats per token."""
    removed: dict[str, list[int]]
    """The heads that were removed, by the numbers they had before."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """The report of a pruning.

    Example: docs/howto/prune.md.
    """

    metric: str
    """Name of the score."""
    rounds: list[Round]
    """The pruned model after each round."""
    unpruned: list[Round]
    """The model with all heads after the same trainings."""
    speed: Speed
    """Speed of the original run and of the pruned one."""
    memory: tuple[int | None, int | None]
    """Peak memory, in bytes, of a process that translates with the original run and with the pruned one; None where the
    system doesn't report it."""
    attentions: dict[str, int]
    """Number of heads that each attention has left."""


def without_heads(model: Transformer, removed: Mapping[str, Sequence[int]]) -> Transformer:
    """Return a copy of the model without these heads, given by the path of their attention and their number.

    Their rows of the query, key and value projections and their columns of the output projection are deleted. The
    remaining heads are numbered anew; an attention may lose all. Raises ArgumentError for a head that doesn't exist.
    """
    attentions = model.attentions
    if unknown := sorted(set(removed) - set(attentions)):
        raise ArgumentError(
            f"removed must name the model's attentions, such as {next(iter(attentions))}, got {', '.join(unknown)}"
        )
    left = {}
    for name, heads in removed.items():
        count = attentions[name].num_heads
        if wrong := [head for head in heads if not 0 <= head < count]:
            raise ArgumentError(f"removed must hold heads from 0 to {count - 1} for {name}, got {wrong[0]}")
        left[name] = [head for head in range(count) if head not in heads]
    pruned = deepcopy(model)
    for name, kept in left.items():
        pruned.attentions[name].keep_heads(kept)
    fewer = {name: len(kept) for name, kept in left.items() if len(kept) < model.config.heads}
    pruned.config = replace(model.config, heads_left={**model.config.heads_left, **fewer})
    return pruned


def prune(
    config: PruneConfig, say: Callable[[str], None] = print, *, tracker: TrackedRun | None = None
) -> Pruning | int:
    """Remove heads round by round, train on after each, and write the smaller model into the run folder `config.out`.

    The unpruned model gets the same trainings for comparison. A hidden folder beside `out` holds the finished rounds:
    after a stop, for which the number of the signal is returned, a second call continues. The report is also written
    to prune.json, and given to the tracker that `config.track` names, or to `tracker` (see `Tracker`).

    Raises ConfigError for settings that can't work or differ from those of a pruning that was stopped, RunError for
    folders that are in the way or a run without heads, and DivergedError or OutOfMemoryError if a training fails so.

    Example: docs/howto/prune.md.
    """
    check_tracker(config.track, tracker)
    work, reported = config.work, config.is_reported
    for place in (work, config.unpruned):
        if place is not None:
            remove_unfinished(place.parent, place.name)
    if (work / MOVED).exists() and not config.last.exists():  # a kill came right after `out` was complete
        remove_at_once(work)
    for name, folder in (("out", config.out), ("unpruned", config.unpruned)):
        if folder is not None and folder.exists() and not (name == "unpruned" and reported):
            raise RunError(f"{folder} exists already: choose another --{name}, or remove it first")
    counts = None if reported else _count_heads(config)
    for files in (config.pairs, config.valid_pairs):
        if files is not None and not reported:
            files.check()
    check_bleu_tokenizer(config.tokenize)
    use_threads(config.threads)
    check_place(config.out)
    if work.is_symlink():
        raise RunError(f"{work} is a link, and must be a folder of its own: remove it")
    work.mkdir(parents=True, exist_ok=True)
    with alone(work / LOCK, "pruning"):
        _check_same(config, work, reported=reported)
        report = (
            read_json(config.last / PRUNED, Pruning) if counts is None else _prune_or_advise(work, config, *counts, say)
        )
        if isinstance(report, Pruning):
            with noting(lambda: CONTINUES):
                _move(work, config)
            remove_at_once(work)
    if isinstance(report, Pruning) and (place := _track(report, config, tracker)):
        say(f"tracked in {place}")
    return report


def _track(report: Pruning, config: PruneConfig, tracker: TrackedRun | None) -> str | None:
    """Give the tracker the rounds of a pruning, and return where they are, in words."""
    steps = {
        number: {**_scalars("pruned", pruned, report.metric), **_scalars("unpruned", unpruned, report.metric)}
        for number, (pruned, unpruned) in enumerate(zip(report.rounds, report.unpruned, strict=True), start=1)
    }
    settings = {name: str(value) for name, value in asdict(config).items()}
    return track_steps(config.out, "prune", steps, track=config.track, tracker=tracker, settings=settings)


def _scalars(name: str, one: Round, metric: str) -> dict[str, int | float]:
    """Return the figures of a round by the names that a tracker shows."""
    figures = {"heads": one.heads, "parameters": one.parameters, "loss": one.loss, metric: one.score}
    return {f"{name}/{fact}": value for fact, value in figures.items()}


def _prune_or_advise(
    work: Path, config: PruneConfig, total: int, gone: int, say: Callable[[str], None]
) -> Pruning | int:
    """Do the rounds in the folder `work`; an error says what to do about it, and leaves no folder without a round."""
    try:
        with noting(lambda: CONTINUES if _has_rounds(work) else ""):
            return _prune_in(work, config, total, gone, say)
    except DivergedError as error:
        rate = "its default" if config.learning_rate is None else f"{config.learning_rate:g}"
        raise DivergedError(
            f"a training of the pruning diverged: remove {work}, and start again with a lower --learning-rate "
            f"than {rate}"
        ) from error
    except OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"a training of the pruning ran out of memory: remove {work}, and start again with a smaller "
            f"--batch-tokens than {config.batch_tokens:,}"
        ) from error
    except GlassformerError:
        if not _has_rounds(work):  # nothing was trained, so other settings may be tried
            remove_at_once(work)
        raise


def _has_rounds(work: Path) -> bool:
    """Return whether a training was begun in the folder of a pruning."""
    return work.is_dir() and any(path.is_dir() for path in work.iterdir())


def _metric(config: PruneConfig) -> str:
    """Return the score of the validations: left out, that of the run's training, or bleu for an imported model."""
    return config.metric or training_metric(config.run) or "bleu"


def _count_heads(config: PruneConfig) -> tuple[int, int]:
    """Return how many heads the run has, and how many of them go."""
    total = open_run(config.run).model_config.all_heads
    if not total:
        raise RunError(f"{config.run} has no heads left: there is nothing to remove")
    gone = total - round(total * config.keep)
    if gone == 0:
        raise ConfigError(f"keep must leave fewer than all {total} heads, got {config.keep}: give a smaller share")
    if config.rounds > gone:
        raise ConfigError(f"rounds must be at most {gone}, the number of heads that go, got {config.rounds}")
    return total, gone


def _prune_in(work: Path, config: PruneConfig, total: int, gone: int, say: Callable[[str], None]) -> Pruning | int:
    """Do the rounds in the folder `work`; return the number of the signal that stopped a training."""
    pruned, unpruned = config.run, config.run
    rounds, compared = list[Round](), list[Round]()
    for number in range(1, config.rounds + 1):
        whole, start, trained = (work / f"{number}-{name}" for name in ("unpruned", "pruned", "trained"))
        say(f"{total} of {total} heads, for comparison:")
        if signal := _train_on(unpruned, whole, config):
            return signal
        left = total - round(gone * number / config.rounds)
        say(f"{left} of {total} heads:")
        if not start.exists():
            _remove_some(pruned, left, config, start)
        if signal := _train_on(start, trained, config):
            return signal
        rounds.append(_round(trained, read_config(start).training.removed or {}))
        compared.append(_round(whole, {}))
        pruned, unpruned = trained, whole
    model = open_run(pruned).model_config
    lines = [source for source, _ in _draw_pairs(config.valid_pairs or config.pairs, config.seed, SPEED_LINES)]
    say(f"measuring the speed of both, {TURNS + 1} times in turn")
    report = Pruning(
        metric=_metric(config),
        rounds=rounds,
        unpruned=compared,
        speed=compare_speed(config.run, pruned, lines, config.device, SearchConfig()),
        memory=(peak_memory(config.run, lines, config.device), peak_memory(pruned, lines, config.device)),
        attentions={name: model.heads_of(name) for name in model.attentions},
    )
    write_json(pruned / PRUNED, asdict(report))
    return report


def _move(work: Path, config: PruneConfig) -> None:
    """Move the folders of the last round into place."""
    if config.unpruned is not None and not config.unpruned.exists():
        with new_folder(config.unpruned) as copy:
            shutil.copytree(work / f"{config.rounds}-unpruned", copy, dirs_exist_ok=True)
    (work / MOVED).touch()
    flush_folder(config.last)
    move_folder(config.last, config.out)


def report_lines(report: Pruning) -> Iterator[str]:
    """Yield the lines of the report for people."""
    yield f"heads  parameters       size{report.metric:>8} before training on   after    loss"
    for one in (one for both in zip(report.unpruned, report.rounds, strict=True) for one in both):
        size = f"{one.heads:5}{one.parameters:12,}{one.bytes / 1e6:8.1f} MB"
        yield f"{size}{one.before:24.2f}{one.score:10.2f}{one.loss:8.4f}"
    yield f"speed of translation: {report.speed}"
    before, after = report.memory
    if before and after:
        yield f"memory of a process that translates: {before / 1e6:,.0f} -> {after / 1e6:,.0f} MB"
    yield "heads left: " + ", ".join(f"{name} {count}" for name, count in report.attentions.items())


def _check_same(config: PruneConfig, work: Path, *, reported: bool) -> None:
    """Raise ConfigError if `work` holds a pruning with other settings, of another run or other data; else note these.

    When it is done and reported, the run and the data may be gone.
    """
    free = ("device", "threads", "unpruned", "track")
    given = {name: str(value) for name, value in asdict(config).items() if name not in free}
    settings = {name: text.encode(errors="backslashreplace").decode() for name, text in given.items()}
    path = work / "settings.json"
    known = read_json(path, dict[str, str]) if path.exists() else {}
    if reported:
        settings |= {name: known[name] for name in CONTENTS if name in known}
    else:
        contents = digest_of_run(config.run), digest_of_files([*config.data, *config.valid])
        settings |= dict(zip(CONTENTS, contents, strict=True))
    if known and known != settings:
        if all(known.get(name) == value for name, value in settings.items() if name not in CONTENTS):
            raise ConfigError(f"{work} holds a pruning of what the run or the files were before: remove it")
        raise ConfigError(f"{work} holds a pruning with other settings: give the same settings again, or remove it")
    write_json(path, settings)


def _remove_some(folder: Path, left: int, config: PruneConfig, out: Path) -> None:
    """Write a copy of the run in which `left` heads stay, without those that are missed least."""
    run = load_run(folder, pick_device(config.device))
    sentences = Sentences.from_pairs(
        run, _draw_pairs(config.valid_pairs or config.pairs, config.seed, config.sentences), config.sentences
    )
    batches = [sentences.batch(run, indices) for indices in sentences.batches]
    removed: dict[str, list[int]] = {}
    for name, head in least_missed(run.model, batches, run.model.config.all_heads - left):
        removed.setdefault(name, []).append(head)
    pruned = without_heads(run.model, removed)
    with new_folder(out) as made:
        write_weights(made, pruned.state_dict())
        record = TrainingRecord(removed=removed, languages=run.training.languages)
        write_config(made, pruned.config, run.source_tokenizer, run.target_tokenizer, record)


def _draw_pairs(files: PairFiles, seed: int, most: int) -> list[Pair]:
    """Draw pairs at random from the beginning of the files."""
    pairs = []
    for pair in files:
        if is_usable(*pair):
            pairs.append(pair)
        if len(pairs) == DRAWN_FROM:
            break
    return random.Random(seed).sample(pairs, min(len(pairs), most))


def _train_on(start: Path, out: Path, config: PruneConfig) -> int:
    """Train after a round, or resume that training; return the number of the signal that stopped it, or 0."""
    pairs, valid, updates = config.pairs, config.valid_pairs, config.updates
    result = train_once(
        TrainConfig(
            source=pairs.source,
            target=pairs.target,
            columns=config.columns,
            valid_source=valid and valid.source,
            valid_target=valid and valid.target,
            out=out,
            from_=start,
            optimizer="muon",
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            dropout=config.dropout,
            warmup=max(1, updates // 10),
            cooldown=1.0,
            max_updates=updates,
            validate_every=updates,
            patience=0,
            average=1,
            batch_tokens=config.batch_tokens,
            score_pairs=SCORED_PAIRS,
            metric=_metric(config),
            tokenize=config.tokenize,
            **_settings_of_run(config.run),
            seed=config.seed,  # the same in all rounds: it decides which pairs are held out
            device=config.device,
            threads=config.threads,
        )
    )
    return result.signal or 0


def _settings_of_run(run: Path) -> dict[str, Any]:
    """Return the settings of the run's own training that the trainings here keep; none of an imported model."""
    settings = read_config(run).training.settings or {}
    return {name: settings[name] for name in KEPT if name in settings}


def _round(trained: Path, removed: Mapping[str, list[int]]) -> Round:
    """Read the results of a round from its run folder."""
    metrics, model = read_metrics(trained / METRICS), open_run(trained).model_config
    assert metrics.kept is not None
    return Round(
        heads=model.all_heads,
        parameters=count_parameters(model),
        bytes=(trained / WEIGHTS).stat().st_size,
        before=metrics.validations[0].score,
        score=metrics.kept.score,
        loss=metrics.kept.loss,
        removed=dict(removed),
    )
