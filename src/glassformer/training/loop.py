"""The training loop."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from glassformer.data.alignment import Aligner
from glassformer.data.corpus import Corpus
from glassformer.device import explaining_memory, pick_precision, tame_memory
from glassformer.errors import FULL, ConfigError, DivergedError, RunError
from glassformer.files import remove_unfinished, write_json
from glassformer.pictures import can_draw
from glassformer.run.curves import draw_curves
from glassformer.run.folder import load_weights, read_config, read_weights, write_weights
from glassformer.run.lock import check_free, held, remove_resume
from glassformer.run.metrics import read_metrics
from glassformer.run.names import ALIGNMENT, CONFIG, CURVES, INITIAL, METRICS, RESUME, WEIGHTS
from glassformer.seeds import derive_seed
from glassformer.text.batching import Batch, plan_batches
from glassformer.text.loading import load_tokenizer
from glassformer.text.resampling import Resampling
from glassformer.text.scores import LOWER_IS_BETTER
from glassformer.training.checkpoint import Checkpoints
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import Processes, gathered, joined, restarted
from glassformer.training.feed import Feed, Group
from glassformer.training.guide import GUIDED, Guide
from glassformer.training.interruption import Interruption, interruption
from glassformer.training.prepare import prepare_run, read_valid_pairs
from glassformer.training.progress import TrainingDisplay, drop_metrics_after
from glassformer.training.schedule import cooled, inverse_square_root
from glassformer.training.snapshots import (
    average,
    drop_snapshots_after,
    restore_best,
    save_best,
    save_snapshot,
    snapshots,
)
from glassformer.training.step import Step, Taken
from glassformer.training.validation import Validation
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

REPORT_EVERY = 20
EPOCHS, UPDATES, MOST_EPOCHS = 20, 8_000, 100
"""Where no limit is given: the first two are both reached, unless the third comes before."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run came to."""

    folder: Path
    finished: bool
    """False if it was interrupted; with `resume=True` it continues."""
    updates: int
    """Of an interrupted one those that are saved, from which it continues."""
    seconds: float
    """Time spent training and validating."""
    metric: str
    """What the score is, such as bleu."""
    score: float | None
    """Validation score of the weights in the run folder."""
    signal: int | None = None
    """The signal that interrupted it."""


def train(config: TrainConfig) -> TrainResult:
    """Train a model on pairs of text and leave it in the run folder `config.out` (Vaswani et al. 2017, section 5).

    Shows progress on standard error. Ctrl-C or SIGTERM saves and returns with `finished` False; whatever else ends
    it, `resume` goes on from its last checkpoint (so does this with `config.resume`, which takes settings that aren't
    at their defaults for changes). Under torchrun the processes share every batch. Changes torch's global seed, its
    number of threads if `config.threads` is given, and how the process keeps memory (`device.tame_memory`).
    """
    if config.resume:
        return resume(config.out, **config.changes())
    tame_memory()
    with joined(config.device) as (processes, device):
        display = TrainingDisplay(config.out / METRICS, shown=processes.first)
        with processes.after_the_first():  # what it finds is so for all
            again = processes.first and restarted() and _is_started(config)
            if processes.first and not again:
                if config.overwrite:
                    check_free(config.out)
                prepare_run(config, display.say)
        (again,) = processes.agree(again)
        if again and not (config.out / RESUME).is_dir():
            return _result_of(config.out)
        return _trained(settings_of(config.out) if again else config, display, processes, device)


def train_once(config: TrainConfig) -> TrainResult:
    """`train`, or if that was begun with these settings before, go on with it; if it was finished, say what it came to.

    For a program that is started again after a stop, perhaps with another device or number of threads. In one process,
    without torchrun.
    """
    if not (config.out / CONFIG).exists():
        return train(config)
    changes = {name: getattr(config, name) for name in ("device", "threads")}
    before = replace(settings_of(config.out), overwrite=config.overwrite, **changes)
    if before != config:
        if config.overwrite:
            return train(config)
        names = (field.name for field in fields(config))
        others = ((name, getattr(before, name), getattr(config, name)) for name in names)
        raise RunError(
            f"{config.out} was trained with other settings ("
            + ", ".join(f"{name} {old}, now {new}" for name, old, new in others if old != new)
            + "): give those again, or choose another folder"
        )
    return resume(config.out, **changes) if (config.out / RESUME).is_dir() else _result_of(config.out)


def resume(folder: Path, **changes: Any) -> TrainResult:
    """Go on with the unfinished training in a run folder from its last checkpoint, as `train` does.

    With the settings it was started with, but for `changes` to those that may be changed, which hold from now on (see
    `training.config.CHANGEABLE`).
    """
    tame_memory()
    config = settings_of(folder).continued(folder, changes)
    if not (folder / RESUME).is_dir():
        raise RunError(f"the training of {folder} is complete: there is nothing to resume")
    with joined(config.device) as (processes, device):
        return _trained(config, TrainingDisplay(folder / METRICS, shown=processes.first), processes, device)


def _trained(config: TrainConfig, display: TrainingDisplay, processes: Processes, device: torch.device) -> TrainResult:
    """Train in a run folder that is there."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with ExitStack() as stack:
        with processes.after_the_first():
            if processes.first:
                stack.enter_context(held(config.out))
        stack.enter_context(display)
        asked = stack.enter_context(interruption(patient=processes.size > 1, shown=processes.first))
        training = _Training(config, display, processes, device)
        if processes.first:
            _keep_settings(config)
        return training.run(asked)


class _Training:
    """One run: model, optimizer, data, and how far it has come."""

    def __init__(
        self, config: TrainConfig, display: TrainingDisplay, processes: Processes, device: torch.device
    ) -> None:
        self.config, self.display, self.folder = config, display, config.out
        self.processes, self.device = processes, device
        self.resume = config.out / RESUME
        dtype = pick_precision(config.precision, device)
        saved = read_config(self.folder)
        torch.manual_seed(config.seed)
        model = Transformer(ModelConfig.from_json(saved["model"]))
        if (initial := self.resume / INITIAL).exists():
            load_weights(model, read_weights(initial), initial)
        self.model = model if config.shard and processes.size > 1 else model.to(device)
        self.warmup = config.warmup or 4 * model.config.d_model
        train_pairs, valid_pairs = Corpus(self.resume / "train"), Corpus(self.resume / "valid")
        guide = self._learn_guide(model.config, train_pairs) if config.guide else None
        self.peak = config.peak(model.config.d_model)
        self.step = Step(
            self.model,
            dtype=dtype,
            label_smoothing=config.label_smoothing,
            r_drop=config.r_drop,
            guide=guide,
            clip_norm=config.clip_norm,
            optimizer=config.chosen_optimizer,
            weight_decay=config.decay,
            processes=processes,
            shard=config.shard,
            device=device,
            seed=config.seed,
        )
        self.checkpoints = Checkpoints(self.resume, processes, config.checkpoint_seconds)
        self.position = self.checkpoints.load(self.step)
        if saved["training"]["settings"]["patience"] != config.patience:  # another one, by --resume: it counts anew
            self.position.ends_at, self.position.since_best = None, 0
        if processes.first:
            for folder in (self.folder, self.resume):
                remove_unfinished(folder)
            drop_metrics_after(self.folder / METRICS, self.position.update)
            drop_snapshots_after(self.resume, self.position.update)
            restore_best(self.resume, self.folder / WEIGHTS, self.position.best_update)
        source, target = (load_tokenizer(self.folder / saved[f"{side}_tokenizer"]) for side in ("source", "target"))
        resampling = Resampling((source, target), config.resample) if config.resample else None
        self.feed = Feed(train_pairs, model.config, device, processes, resampling)
        valid_feed = Feed(valid_pairs, model.config, device, processes)
        text = read_valid_pairs(self.folder)
        self.validation = Validation(config, dtype, valid_feed, text, (source, target), processes)
        self.sign = -1 if config.metric in LOWER_IS_BETTER else 1  # makes a higher score the better one
        size = sum(parameter.numel() for parameter in model.parameters())
        number = str(dtype).removeprefix("torch.")
        shared = f" and {processes.size - 1} more" if processes.size > 1 else ""
        display.say(f"model: {size:,} parameters, training on {device}{shared} with {number} products")

    def _learn_guide(self, model: ModelConfig, pairs: Corpus) -> Guide:
        if not model.heads_of(GUIDED):
            raise ConfigError(f"guide needs a head in {GUIDED}, of which the model has none left: leave guide out")
        path = self.resume / ALIGNMENT
        with self.processes.after_the_first():
            if self.processes.first and not path.exists():
                self.display.say("learning which source token each target token stands for")
                Aligner.learn(pairs, model.source_vocab_size, model.target_vocab_size).save(path)
        return Guide(Aligner(**read_weights(path)).to(self.device), self.config.guide)

    def run(self, asked: Interruption) -> TrainResult:
        """Update after update until a limit is reached, then put the best weights into the run folder."""
        try:
            return self._run(asked)
        except OSError as error:
            if error.errno not in FULL:
                raise
            again = f"glassformer train --resume --out {quote(str(self.folder))}"
            raise RunError(f"{error}: free some space, then go on with {again}") from None
        finally:
            self.checkpoints.close()

    def _run(self, asked: Interruption) -> TrainResult:
        position = self.position
        self.clock = time.monotonic() - position.seconds
        self.drawn = time.monotonic()
        if self.config.from_ is not None and position.best is None:
            self._validate()  # what it begins with is the first to beat
        sums, tokens, since = torch.tensor(position.reported, device=self.device), 0, time.monotonic()
        for group, batches in self._groups():
            counted = self.feed.tokens(group, batches)
            with explaining_memory(lambda group=group: self._shape(group)):
                sums += torch.stack(self._update(batches, counted))
            tokens += counted
            # What follows from time must follow in all processes.
            seconds = time.monotonic() - self.clock
            position.seconds, signal, due = self.processes.agree(seconds, asked.signal or 0, self.checkpoints.due())
            if position.update % REPORT_EVERY == 0:
                now = time.monotonic()
                self._report(sums, tokens / (now - since))
                sums, tokens, since = torch.zeros_like(sums), 0, now
            if position.update % self.config.validate_every == 0:
                self._validate()
                self._draw(every=60.0)
                since = time.monotonic()
            if signal or due:
                position.reported = sums.tolist()
                self.checkpoints.save(self.step, position)
            if signal:
                self.checkpoints.wait()
                self._draw()
                return self._result(finished=False, score=None, signal=int(signal))
            if self._is_over():
                break
        if position.validated != position.update:
            self._validate()
        final = self._finish()
        position.seconds = time.monotonic() - self.clock
        self._draw()
        if self.processes.first:
            remove_resume(self.folder)
        return self._result(finished=True, score=final, signal=None)

    def _result(self, *, finished: bool, score: float | None, signal: int | None) -> TrainResult:
        updates = self.position.update if finished else self.checkpoints.saved
        return TrainResult(self.folder, finished, updates, self.position.seconds, self.config.metric, score, signal)

    def _groups(self) -> Iterator[tuple[Group, list[Batch]]]:
        """The pairs of each further update and the batches of them, epoch after epoch; keeps `position` at what
        comes next."""
        position, corpus = self.position, self.feed.corpus
        while not self._is_over():
            plan = plan_batches(
                corpus.source.lengths,
                corpus.target.lengths,
                batch_tokens=self.config.batch_tokens,
                seed=self.config.seed,
                epoch=position.epoch,
            )
            if position.batch and position.batches != len(plan):  # continued with batches of another size
                position.batch = position.batch * len(plan) // position.batches
            position.batches = len(plan)
            for group, batches in self.feed.groups(self._planned(plan)):
                position.batch += len(group)
                position.update += 1
                yield group, batches
            position.epoch, position.batch = position.epoch + 1, 0

    def _planned(self, plan: Sequence[list[int]]) -> Iterator[tuple[Group, list[int] | None]]:
        """Yield the pairs of each further update of this epoch, and the seeds of their resampling.

        There are none in the cooldown, so that training ends with text split as it is for translation.
        """
        position, config = self.position, self.config
        for first in range(position.batch, len(plan), config.accumulate):
            group = plan[first : first + config.accumulate]
            cooling = self._fraction() >= 1 - config.cooldown
            seeds = [derive_seed(config.seed, indices[0], epoch=position.epoch) for indices in group]
            yield group, None if cooling else seeds

    def _update(self, batches: list[Batch], tokens: int) -> Taken:
        """One step on these batches. A continued run draws the same dropout."""
        update = self.position.update
        rate = inverse_square_root(update, peak=self.peak, warmup=self.warmup)
        rate *= cooled(self._fraction(), self.config.cooldown)
        return self.step.update(batches, rate=rate, number=update, tokens=tokens)

    def _shape(self, group: Group) -> str:
        """Where memory ran out, and what to do about it."""
        config = self.config
        return (
            f"in update {self.position.update:,}, with a batch of {self.feed.describe(group)}: go on with --resume and "
            f"a smaller --batch-tokens (it is {config.batch_tokens:,}; twice --accumulate, which is "
            f"{config.accumulate}, makes up for half of it), or leave longer pairs out with --max-tokens"
        )

    def _report(self, sums: torch.Tensor, rate: float) -> None:
        """Show and record the updates since the last report: their summed loss and tokens, and tokens a second."""
        position = self.position
        in_row, in_all = self.step.watch.left_out()
        if in_row >= self.config.max_left_out:
            self._draw()
            raise DivergedError(
                f"the last {in_row} updates up to {position.update:,} were left out, because their loss or gradient "
                "was not a number, or the loss jumped: go on with --resume and a lower --learning-rate "
                f"(it was {self.step.optimizer.rate:.2g}) or --clip-norm, or train anew with a longer "
                "--warmup"
            )
        loss, tokens = sums.tolist()
        figures = {"update": position.update, "epoch": position.epoch + 1, "loss": loss / tokens if tokens else None}
        figures |= {"tokens_per_second": rate, "seconds": position.seconds}
        figures["learning_rate"] = self.step.optimizer.rate
        if in_all:
            figures["left_out"] = in_all
        self.display.trained(self._fraction(), position.seconds, figures)

    def _validate(self) -> None:
        """Score the present weights, keep them for averaging, and in the run folder if they are the best so far."""
        position = self.position
        model = gathered(self.model, self.device)
        loss, value = self._evaluated(model)
        rank = [self.sign * value, -loss]  # equal scores: the lower loss
        position.validated = position.update
        best = position.best is None or rank > position.best
        if best:
            position.best, position.best_update, position.since_best = rank, position.update, 0
        else:
            position.since_best += 1
        cooldown = self.config.cooldown
        if 0 < self.config.patience <= position.since_best and self._fraction() <= 1 - cooldown:
            # Its cooldown is still to come.
            position.ends_at = position.ends_at or round(position.update / (1 - cooldown))
        if self.processes.first:
            weights = model.state_dict()
            if position.update:  # what a run goes on from is no part of the mean of what it comes to
                save_snapshot(self.resume, weights, position.update, keep=self.config.average)
            if best:
                save_best(self.resume, self.folder / WEIGHTS, weights, position.update)
        (position.seconds,) = self.processes.agree(time.monotonic() - self.clock)  # the others wait for that
        figures = {"update": position.update, "valid_loss": loss, "metric": self.config.metric, "score": value}
        figures["seconds"] = position.seconds
        self.display.validated(figures, best=best)

    def _evaluated(self, model: Transformer) -> tuple[float, float]:
        """Validation loss and score."""
        advice = (
            "in a validation: go on with --resume and a smaller --batch-tokens, or train anew with fewer --score-pairs"
        )
        with explaining_memory(lambda: advice):
            return self.validation.of(model, self.position.update)

    def _finish(self) -> float:
        """Choose between the averaged and the best single weights, and remove what only continuing needs."""
        assert self.position.best is not None
        value = self.sign * self.position.best[0]
        kept = snapshots(self.resume)
        if len(kept) > 1 and (mean := average(kept)):
            model = gathered(self.model, self.device)
            load_weights(model, mean, self.folder / WEIGHTS)
            loss, averaged = self._evaluated(model)
            # The best of many scores is high by luck as well: the mean goes only where its loss is worse too.
            better = self.sign * averaged >= self.position.best[0] or -loss >= self.position.best[1]
            self.display.say(
                f"mean of the last {len(kept)} checkpoints: validation loss {loss:.4f}  {self.config.metric} "
                f"{averaged:.2f}, {'kept' if better else f'the best single one ({value:.2f}) is kept'}"
            )
            if better:
                value = averaged
                if self.processes.first:
                    write_weights(self.folder, model.state_dict())
        self.checkpoints.wait()
        self.processes.agree(0)  # nobody reads resume/ any more
        return value

    def _draw(self, every: float = 0.0) -> None:
        """Draw the curves, unless that was done less than so many seconds ago."""
        if not self.processes.first or not can_draw() or time.monotonic() < self.drawn + every:
            return
        self.drawn = time.monotonic()
        draw_curves(self.folder / METRICS, self.folder / CURVES)

    def _limits(self) -> Iterator[float]:
        """How much of each limit is used up."""
        config, position = self.config, self.position
        epochs = position.epoch + position.batch / max(position.batches, 1)
        if config.max_epochs is not None:
            yield epochs / config.max_epochs
        if config.max_updates is not None:
            yield position.update / config.max_updates
        if config.max_minutes is not None:
            yield position.seconds / (60 * config.max_minutes)
        if config.max_epochs is config.max_updates is config.max_minutes is None:
            yield max(epochs / MOST_EPOCHS, min(epochs / EPOCHS, position.update / UPDATES))
        if position.ends_at is not None:
            yield position.update / position.ends_at

    def _fraction(self) -> float:
        """How much of the training is done, as far as is known: patience may end it sooner."""
        return min(1.0, max(self._limits()))

    def _is_over(self) -> bool:
        return any(used >= 1 for used in self._limits())


def _is_started(config: TrainConfig) -> bool:
    """Whether the run folder is one of these settings: torchrun has started this process before."""
    return (config.out / CONFIG).exists() and settings_of(config.out).to_json() == config.to_json()


def settings_of(folder: Path) -> TrainConfig:
    """The settings of the training of a run folder."""
    settings = read_config(folder)["training"].get("settings")
    if not isinstance(settings, dict):
        raise RunError(f"{folder / CONFIG} is damaged: it has no settings of the training")
    try:
        return replace(TrainConfig.from_json(settings), out=folder)
    except TypeError as error:
        raise ConfigError(f"the settings in {folder} do not fit this version of glassformer: {error}") from None


def _keep_settings(config: TrainConfig) -> None:
    """Keep changed settings: whoever resumes the run once more goes on with them."""
    if settings_of(config.out).continued(config.out, {}) != replace(config, overwrite=False):
        saved = read_config(config.out)
        saved["training"]["settings"] = config.to_json()
        write_json(config.out / CONFIG, saved)


def _result_of(folder: Path) -> TrainResult:
    """What a training that was finished before came to."""
    found = read_metrics(folder / METRICS)
    metric, score = (found.best.metric, found.best.score) if found.best else ("", None)
    return TrainResult(folder, True, found.updates or 0, found.seconds or 0.0, metric, score)
