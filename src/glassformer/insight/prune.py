"""Heads removed for good: a smaller model, which says the same as one in which they add nothing, trained a little on.

Those go first without which the loss stays lowest (`least_missed`), some at a time, with a short training after each
round (Michel et al. 2019; Molchanov et al. 2017). Validation pairs say so, where they are given: those that the model
learned from it may know by heart.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from glassformer.device import pick_device
from glassformer.errors import ArgumentError, ConfigError, DivergedError, GlassformerError, OutOfMemoryError, RunError
from glassformer.files import write_json
from glassformer.generation.config import SearchConfig
from glassformer.insight.config import PruneConfig
from glassformer.insight.gates import least_missed
from glassformer.insight.heads import Sentences
from glassformer.insight.speed import Speed, compare_speed, peak_memory
from glassformer.run.folder import load_run, open_run, read_config, write_config, write_weights
from glassformer.run.metrics import read_metrics
from glassformer.run.names import METRICS, PRUNED, WEIGHTS
from glassformer.text.pairs import Pair, PairFiles
from glassformer.training.config import TrainConfig
from glassformer.training.train import train_once
from glassformer.transformer.model import Transformer, count_parameters

LINES = 200
"""Lines that are translated to measure the speed."""
SCORED = 2_000
"""Most validation pairs that are translated for a score: more than in a training, which scores more often."""
LOOKED_AT = 100_000
"""Pairs of a file, from its beginning, of which those are drawn that heads and speed are measured on."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A model after a step, pruned or not."""

    heads: int
    """How many there are."""
    parameters: int
    bytes: int
    """Size of the file of weights."""
    before: float
    """Score before training on: of a pruned model right after heads were removed."""
    score: float
    """Score of the weights that were kept, the best, after training on."""
    loss: float
    """Validation loss, nats a token, to that score."""
    removed: dict[str, list[int]]
    """The heads that went, by the numbers they had then."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What a pruning came to."""

    metric: str
    """What the scores are."""
    rounds: list[Round]
    """The model after each step."""
    unpruned: list[Round]
    """The model with all heads after the same trainings."""
    speed: Speed
    """Of the run as it was and of the pruned one."""
    memory: tuple[int | None, int | None]
    """Peak bytes of a process that translates, with the run as it was and with the pruned one; None where the system
    doesn't say."""
    attentions: dict[str, int]
    """Heads that are left of each attention."""


def without_heads(model: Transformer, removed: Mapping[str, Sequence[int]]) -> Transformer:
    """A copy of the model without these heads of its attentions, named by their paths; an attention may lose all.

    Their rows of the query, key and value projections and their columns of the output's are gone. Heads that are left
    are numbered anew.
    """
    attentions = model.attentions
    if unknown := sorted(set(removed) - set(attentions)):
        raise ArgumentError(f"heads must be of the model's attentions, got {', '.join(unknown)}")
    left = {}
    for name, heads in removed.items():
        count = attentions[name].num_heads
        if wrong := [head for head in heads if not 0 <= head < count]:
            raise ArgumentError(f"{name} has heads 0 to {count - 1}, got {wrong[0]}")
        left[name] = [head for head in range(count) if head not in heads]
    pruned = deepcopy(model)
    for name, kept in left.items():
        pruned.attentions[name].keep_heads(kept)
    fewer = {name: len(kept) for name, kept in left.items() if len(kept) < model.config.heads}
    pruned.config = replace(model.config, heads_left={**model.config.heads_left, **fewer})
    return pruned


def prune(config: PruneConfig, say: Callable[[str], None] = print) -> Pruning | None:
    """Remove heads step by step and train on, and leave the smaller model in the run folder `config.out`.

    The unpruned model gets the same trainings, to compare with. What is done so far is kept in a hidden folder beside
    the run, from which the same command goes on after a stop; None is returned then. The report is in prune.json too.
    """
    work = config.work
    reported = (work / f"{config.rounds}-trained" / PRUNED).exists()  # only the folders are still to be put in place
    for name, folder in (("out", config.out), ("unpruned", config.unpruned)):
        if folder is not None and folder.exists() and not (name == "unpruned" and reported):
            raise RunError(f"{folder} is there already: choose another --{name}, or remove it first")
    total = open_run(config.run).model_config.all_heads
    if not total:
        raise RunError(f"{config.run} has no heads left: there is nothing to remove")
    gone = total - round(total * config.keep)
    if gone == 0:
        raise ConfigError(f"keep {config.keep} leaves all {total} heads: give a smaller share")
    if config.rounds > gone:
        raise ConfigError(f"rounds must be at most {gone}, the number of heads that go, got {config.rounds}")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    work.mkdir(parents=True, exist_ok=True)
    if config.unpruned is not None:
        config.unpruned.parent.mkdir(parents=True, exist_ok=True)
    _check_same(config, work)
    try:
        return _pruned(config, total, gone, work, say)
    except DivergedError as error:
        rate = "its default" if config.learning_rate is None else f"{config.learning_rate:g}"
        raise DivergedError(
            f"a training of the pruning diverged: remove {work}, and begin again with a lower --learning-rate "
            f"than {rate}"
        ) from error
    except OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"a training of the pruning ran out of memory: remove {work}, and begin again with a smaller "
            f"--batch-tokens than {config.batch_tokens:,}"
        ) from error
    except GlassformerError:
        if not any(path.is_dir() for path in work.iterdir()):  # nothing was trained: other settings may be tried
            shutil.rmtree(work)
        raise


def _pruned(config: PruneConfig, total: int, gone: int, work: Path, say: Callable[[str], None]) -> Pruning | None:
    """What `prune` does in the folder `work`."""
    pruned, unpruned = config.run, config.run
    rounds, compared = list[Round](), list[Round]()
    for number in range(1, config.rounds + 1):
        whole, begun, trained = (work / f"{number}-{name}" for name in ("unpruned", "pruned", "trained"))
        say(f"{total} of {total} heads, to compare with:")
        if not _train_on(unpruned, whole, config):
            return None
        left = total - round(gone * number / config.rounds)
        say(f"{left} of {total} heads:")
        if not begun.exists():
            _remove_some(pruned, left, config, begun)
        if not _train_on(begun, trained, config):
            return None
        rounds.append(_round(trained, read_config(begun)["training"]["removed"]))
        compared.append(_round(whole, {}))
        pruned, unpruned = trained, whole
    model = open_run(pruned).model_config
    lines = [source for source, _ in _some(config.valid_pairs or config.pairs, config.seed, LINES)]
    found = Pruning(
        metric=config.metric,
        rounds=rounds,
        unpruned=compared,
        speed=compare_speed(config.run, pruned, lines, config.device, SearchConfig()),
        memory=(peak_memory(config.run, lines, config.device), peak_memory(pruned, lines, config.device)),
        attentions={name: model.heads_of(name) for name in model.attentions},
    )
    write_json(pruned / PRUNED, asdict(found))
    if config.unpruned is not None and not config.unpruned.exists():
        _copy(unpruned, config.unpruned)
    pruned.replace(config.out)
    shutil.rmtree(work)
    return found


def _copy(folder: Path, to: Path) -> None:
    """A copy of the run folder, whole or not at all."""
    temporary = to.with_name(f".{to.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(folder, temporary)
    temporary.replace(to)


def as_lines(found: Pruning) -> Iterator[str]:
    """The report for people."""
    yield f"heads  parameters       size{found.metric:>8} before training on   after    loss"
    for one in (one for both in zip(found.unpruned, found.rounds, strict=True) for one in both):
        size = f"{one.heads:5}{one.parameters:12,}{one.bytes / 1e6:8.1f} MB"
        yield f"{size}{one.before:24.2f}{one.score:10.2f}{one.loss:8.4f}"
    yield f"speed of translation: {found.speed}"
    before, after = found.memory
    if before and after:
        yield f"memory of a process that translates: {before / 1e6:,.0f} -> {after / 1e6:,.0f} MB"
    yield "heads left: " + ", ".join(f"{name} {count}" for name, count in found.attentions.items())


def _check_same(config: PruneConfig, work: Path) -> None:
    """Raise ConfigError if what is begun was begun with other settings."""
    free = ("device", "threads", "unpruned")
    settings = {name: str(value) for name, value in asdict(config).items() if name not in free}
    path = work / "settings.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != settings:
        raise ConfigError(f"{work} holds a pruning that was begun with other settings: give these again, or remove it")
    write_json(path, settings)


def _remove_some(folder: Path, left: int, config: PruneConfig, out: Path) -> None:
    """Write the run without the heads that its loss minds least, `left` of which stay."""
    run = load_run(folder, pick_device(config.device))
    sentences = Sentences.of(
        run, _some(config.valid_pairs or config.pairs, config.seed, config.sentences), config.sentences
    )
    batches = [sentences.batch(run, indices) for indices in sentences.batches]
    removed: dict[str, list[int]] = {}
    for name, head in least_missed(run.model, batches, run.model.config.all_heads - left):
        removed.setdefault(name, []).append(head)
    pruned = without_heads(run.model, removed)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_weights(temporary, pruned.state_dict())
    write_config(temporary, pruned.config, run.source_tokenizer, run.target_tokenizer, {"removed": removed})
    temporary.replace(out)


def _some(files: PairFiles, seed: int, most: int) -> list[Pair]:
    """Pairs drawn at random from the beginning of the files."""
    seen = []
    for pair in files:
        if all(pair):
            seen.append(pair)
        if len(seen) == LOOKED_AT:
            break
    return random.Random(seed).sample(seen, min(len(seen), most))


def _train_on(begun: Path, out: Path, config: PruneConfig) -> bool:
    """The training after a step, or go on with it; whether it came to its end."""
    pairs, valid, updates = config.pairs, config.valid_pairs, config.updates
    result = train_once(
        TrainConfig(
            source=pairs.source,
            target=pairs.target,
            valid_source=valid and valid.source,
            valid_target=valid and valid.target,
            out=out,
            from_=begun,
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
            score_pairs=SCORED,
            metric=config.metric,
            tokenize=config.tokenize,
            seed=config.seed,  # the same in all: it says which pairs are held out
            device=config.device,
            threads=config.threads,
        )
    )
    return result.finished


def _round(trained: Path, removed: Mapping[str, list[int]]) -> Round:
    """What the run folder after a step says."""
    metrics, model = read_metrics(trained / METRICS), open_run(trained).model_config
    assert metrics.best is not None
    return Round(
        heads=model.all_heads,
        parameters=count_parameters(model),
        bytes=(trained / WEIGHTS).stat().st_size,
        before=metrics.validations[0].score,
        score=metrics.best.score,
        loss=metrics.best.loss,
        removed=dict(removed),
    )
