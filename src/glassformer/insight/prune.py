"""Heads removed for good: a smaller model, which says the same as one in which they add nothing, trained a little on.

Which heads go is decided by importance (`measure_importance`), some at a time, with a short training after each round
(Michel et al. 2019; Molchanov et al. 2017).
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from glassformer.errors import ArgumentError, ConfigError, RunError
from glassformer.files import write_json
from glassformer.folder import CONFIG, METRICS, PRUNED, RESUME, WEIGHTS
from glassformer.generation.config import SearchConfig
from glassformer.insight.config import PruneConfig
from glassformer.insight.gates import attentions_of, measure_importance
from glassformer.insight.heads import Sentences
from glassformer.insight.speed import Speed, compare_speed
from glassformer.run import Run, load_run, read_config, write_config, write_weights
from glassformer.text.pairs import Pair, PairFiles
from glassformer.training.config import TrainConfig
from glassformer.training.loop import resume, train
from glassformer.training.metrics import read_metrics
from glassformer.transformer.model import Transformer

LINES = 200
"""Lines that are translated to measure the speed."""
LOOKED_AT = 100_000
"""Pairs of the data, from its beginning, of which those are drawn that importance is measured on."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """The model after a step, or at first."""

    heads: int
    """How many there are."""
    parameters: int
    bytes: int
    """Size of the file of weights."""
    before: float
    """Score right after heads were removed; of the first, of which none were, that of the run as it was."""
    score: float
    """Score after training on: the first as long as all steps together."""
    loss: float
    """Validation loss, nats a token, to that score."""
    removed: dict[str, list[int]]
    """The heads that went, by the numbers they had then."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What a pruning came to."""

    rounds: list[Round]
    """The unpruned model after the same training, then the model after each step."""
    speed: Speed
    """Of the run as it was and of the pruned one."""
    attentions: dict[str, int]
    """Heads that are left of each attention."""


def without_heads(model: Transformer, removed: Mapping[str, Sequence[int]]) -> Transformer:
    """A copy of the model without these heads of its attentions, named by their paths; an attention may lose all.

    Their rows of the query, key and value projections and their columns of the output's are gone. Heads that are left
    are numbered anew.
    """
    attentions = attentions_of(model)
    if unknown := sorted(set(removed) - set(attentions)):
        raise ArgumentError(f"heads must be of the model's attentions, got {', '.join(unknown)}")
    left = {}
    for name, heads in removed.items():
        count = attentions[name].num_heads
        if wrong := [head for head in heads if not 0 <= head < count]:
            raise ArgumentError(f"{name} has heads 0 to {count - 1}, got {wrong[0]}")
        left[name] = [head for head in range(count) if head not in heads]
    pruned = Transformer(model.config).to(model.target_embedding.weight)
    pruned.load_state_dict(model.state_dict())
    for name, kept in left.items():
        attentions_of(pruned)[name].keep_heads(kept)
    counts = {**model.config.heads_left, **{name: len(kept) for name, kept in left.items()}}
    fewer = {name: count for name, count in counts.items() if count < model.config.heads}
    pruned.config = replace(model.config, heads_left=fewer)
    return pruned.train(model.training)


def prune(config: PruneConfig, say: Callable[[str], None] = print) -> Pruning | None:
    """Remove heads step by step and train on, and leave the smaller model in the run folder `config.out`.

    The unpruned model is trained as long, to compare with. What is done so far is kept in a hidden folder beside the
    run, from which the same command goes on after a stop; None is returned then. The report is in prune.json too.
    """
    if config.out.exists():
        raise RunError(f"{config.out} is there already: choose another --out, or remove it first")
    run = load_run(config.run)
    total = sum(module.num_heads for module in attentions_of(run.model).values())
    if round(total * config.keep) >= total:
        raise ConfigError(f"keep {config.keep} leaves all {total} heads: give a smaller share")
    work = config.out.with_name(f".{config.out.name}.pruning")
    work.mkdir(parents=True, exist_ok=True)
    _check_same(config, work)
    rounds: list[Round] = []
    folder = config.run
    for number in range(config.rounds + 1):
        left = total - round(total * (1 - config.keep) * number / config.rounds)
        begun, trained = work / f"{number}-pruned", work / f"{number}-trained"
        say(f"{left} of {total} heads:")
        if not begun.exists():
            _remove_some(load_run(folder), left, config, begun)
        if not _train_on(begun, trained, config, config.updates * (1 if number else config.rounds)):
            return None
        rounds.append(_round(begun, trained))
        folder = trained if number else config.run
    final = load_run(folder)
    lines = [source for source, _ in _some(PairFiles(*(config.valid or config.data)), config, LINES)]
    found = Pruning(
        rounds=rounds,
        speed=compare_speed(config.run, folder, lines, config.device, SearchConfig()),
        attentions={name: module.num_heads for name, module in attentions_of(final.model).items()},
    )
    write_json(folder / PRUNED, asdict(found))
    folder.replace(config.out)
    shutil.rmtree(work)
    return found


def as_lines(found: Pruning) -> Iterator[str]:
    """The report for people."""
    yield "heads  parameters  weights   score before training on   after   loss"
    for one in found.rounds:
        size = f"{one.heads:5}{one.parameters:12,}{one.bytes / 1e6:8.1f}M"
        yield f"{size}{one.before:24.2f}{one.score:10.2f}{one.loss:8.4f}"
    yield f"speed of translation: {found.speed}"
    yield "heads left: " + ", ".join(f"{name} {count}" for name, count in found.attentions.items())


def _check_same(config: PruneConfig, work: Path) -> None:
    """Raise ConfigError if what is begun was begun with other settings."""
    settings = {name: str(value) for name, value in asdict(config).items() if name not in ("device", "threads")}
    path = work / "settings.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != settings:
        raise ConfigError(f"{work} holds a pruning that was begun with other settings: give these again, or remove it")
    write_json(path, settings)


def _remove_some(run: Run, left: int, config: PruneConfig, out: Path) -> None:
    """Write the run without its least important heads, of which `left` stay."""
    pairs = list(_some(PairFiles(*config.data), config, config.sentences))
    sentences = Sentences.of(run, pairs, config.sentences)
    importance = measure_importance(run.model, [sentences.batch(run, indices) for indices in sentences.batches])
    ranked = sorted(
        (float(value) / max(float(of_layer.norm()), 1e-30), name, head)
        for name, of_layer in importance.gradient.items()
        for head, value in enumerate(of_layer)
    )
    removed: dict[str, list[int]] = {}
    for _, name, head in ranked[: max(0, len(ranked) - left)]:
        removed.setdefault(name, []).append(head)
    pruned = without_heads(run.model, removed)
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_weights(temporary, pruned.state_dict())
    write_config(temporary, pruned.config, run.source_tokenizer, run.target_tokenizer, {"removed": removed})
    temporary.replace(out)


def _some(files: PairFiles, config: PruneConfig, most: int) -> list[Pair]:
    """Pairs drawn at random from the beginning of the files."""
    seen = []
    for pair in files:
        if all(pair):
            seen.append(pair)
        if len(seen) == LOOKED_AT:
            break
    return random.Random(config.seed).sample(seen, min(len(seen), most))


def _train_on(begun: Path, out: Path, config: PruneConfig, updates: int) -> bool:
    """Train the model for so many updates, or go on with that; whether it came to its end."""
    if (out / RESUME).exists():
        return resume(out).finished
    if (out / CONFIG).exists():
        return True
    width = read_config(begun)["model"]["d_model"]
    source, target, valid_source, valid_target = (*_two(config.data), *_two(config.valid))
    result = train(
        TrainConfig(
            source=source,
            target=target,
            valid_source=valid_source,
            valid_target=valid_target,
            out=out,
            from_=begun,
            learning_rate=config.learning_rate or 1 / (16 * width),
            warmup=max(1, updates // 10),
            cooldown=1.0,
            max_updates=updates,
            max_epochs=1_000_000,
            validate_every=updates,
            patience=0,
            average=1,
            batch_tokens=config.batch_tokens,
            metric=config.metric,
            tokenize=config.tokenize,
            seed=config.seed,
            device=config.device,
            threads=config.threads,
        )
    )
    return result.finished


def _two(paths: Sequence[Path]) -> tuple[Path | None, Path | None]:
    source, target = (*paths, None, None)[:2]
    return source, target


def _round(begun: Path, trained: Path) -> Round:
    """What the files of a step say."""
    found = read_metrics(trained / METRICS)
    first, last = found.validations[0], found.validations[-1]
    removed = read_config(begun)["training"]["removed"]
    run = load_run(trained)
    return Round(
        heads=sum(module.num_heads for module in attentions_of(run.model).values()),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        bytes=(trained / WEIGHTS).stat().st_size,
        before=first.score,
        score=last.score,
        loss=last.loss,
        removed=removed,
    )
