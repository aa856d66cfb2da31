"""The training loop: update after update, a validation and a checkpoint now and then, the best weights at the end."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from shlex import quote
from types import TracebackType

import torch

from glassformer.data.corpus import Corpus
from glassformer.data.preparation import TRAIN, VALID
from glassformer.device import explaining_memory, pick_precision
from glassformer.errors import FULL, ConfigError, DivergedError, RunError, describe_full
from glassformer.files import remove_at_once, remove_unfinished
from glassformer.run.config import ENDS, TrainingRecord, read_config
from glassformer.run.folder import load_weights, write_weights
from glassformer.run.metrics import Averaged, Report, Validation, read_metrics
from glassformer.run.names import ALIGNMENT, INITIAL, METRICS, RESUME, WATCHED, WEIGHTS
from glassformer.scoring.scores import LOWER_IS_BETTER
from glassformer.seeds import derive_seed
from glassformer.tensors import read_tensors
from glassformer.text.batching import Batch, Plan, plan_batches
from glassformer.text.loading import load_tokenizer
from glassformer.text.resampling import Resampler
from glassformer.training.advice import concerns
from glassformer.training.checkpoint import Checkpoints
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import Processes, gather_weights
from glassformer.training.guide import Guide
from glassformer.training.integrity import Integrity
from glassformer.training.interruption import Interruption
from glassformer.training.limits import Limits
from glassformer.training.loader import BatchLoader, PairNumbers
from glassformer.training.pace import Stopwatch, describe_plan, validation_interval, warmup_updates
from glassformer.training.prepare import check_model, read_valid_pairs
from glassformer.training.progress import CurveDrawer, TrainingDisplay
from glassformer.training.result import TrainResult
from glassformer.training.schedule import inverse_square_root
from glassformer.training.snapshots import (
    average,
    drop_snapshots_after,
    restore_best,
    save_best,
    save_snapshot,
    snapshots,
)
from glassformer.training.state import Tally
from glassformer.training.step import Step
from glassformer.training.validation import Validated, Validator
from glassformer.training.watching import Watcher
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

REPORT_EVERY = 20
DRAW_EVERY = 60.0
"""Seconds between two drawings of the curves, which take half a second each."""


class TrainingLoop:
    """One training in a run folder: model, optimizer, data, and the state that they are in."""

    def __init__(
        self, config: TrainConfig, display: TrainingDisplay, processes: Processes, device: torch.device
    ) -> None:
        """Read the run folder `config.out`, and what its last checkpoint holds if there is one."""
        self.config, self.display, self.folder = config, display, config.out
        self.processes, self.device = processes, device
        self.resume = config.out / RESUME
        dtype = pick_precision(config.precision, device)
        saved = read_config(self.folder)
        with processes.after_the_first():
            self.integrity = Integrity(self.folder) if processes.first else None
        source, target = (load_tokenizer(self.folder / name) for name in saved.tokenizers)
        text = read_valid_pairs(self.folder)
        sizes = ModelConfig.from_json(saved.model)
        corpora = {name: Corpus(self.resume / name) for name in (TRAIN, VALID)}
        with processes.after_the_first():
            if self.integrity is not None:
                self.integrity.check(corpora, (sizes.source_vocab_size, sizes.target_vocab_size))
        model = self._first_model(sizes)
        self.model = model if config.shard and processes.size > 1 else model.to(device)
        self.peak = config.peak(model.config.d_model)
        self.step = Step(
            self.model,
            dtype=dtype,
            label_smoothing=config.label_smoothing,
            r_drop=config.r_drop,
            guide=self._guide(corpora[TRAIN]) if config.guide else None,
            clip_norm=config.clip_norm,
            qk_clip=config.qk_clip,
            optimizer=config.chosen_optimizer,
            weight_decay=config.decay,
            processes=processes,
            shard=config.shard,
            device=device,
            seed=config.seed,
        )
        resampling = Resampler((source, target), config.resample) if config.resample else None
        self.loader = BatchLoader(corpora[TRAIN], model.config, device, processes, resampling)
        valid_loader = BatchLoader(corpora[VALID], model.config, device, processes)
        self.validator = Validator(config, dtype, valid_loader, text, (source, target), processes)
        self.checkpoints = Checkpoints(self.resume, processes, config.checkpoint_seconds)
        self.state = self.checkpoints.load(self.step)
        self._plan_anew(saved.training)
        self._taken_up = False
        self.sign = -1 if config.metric in LOWER_IS_BETTER else 1  # makes a higher score the better one
        self.limits = Limits(config)
        self.stopwatch = Stopwatch(config.max_minutes)
        self._introduce(model, dtype)
        self.curves = CurveDrawer(self.folder, shown=processes.first)
        self.watcher = Watcher(model, config.watch if processes.first else None, self.folder / WATCHED, display)
        self.tally = Tally(self.state.reported, device)
        self.began = time.monotonic() - self.state.seconds
        self.warmup = warmup_updates(config, model.config.d_model, self.state.planned)
        self.interval = self.state.interval or validation_interval(config, 0)

    def _first_model(self, sizes: ModelConfig) -> Transformer:
        """Return the model before its first update: new, or with the weights that training begins from."""
        torch.manual_seed(self.config.seed)
        check_model(self.config, sizes)
        model = Transformer(sizes)
        if (initial := self.resume / INITIAL).exists():
            load_weights(model, read_tensors(initial), initial)
        return model

    def _plan_anew(self, saved: TrainingRecord) -> None:
        """Forget what the checkpoint decided by settings that have changed since.

        Raises ConfigError where the training is past an end that it was given since.
        """
        before = TrainConfig.from_json(saved.settings or {}).settled(saved.chosen or {})
        state, ends = self.state, [getattr(self.config, name) for name in ENDS]
        if self.config.patience != (before.patience if state.patience is None else state.patience):
            state.forget_patience()
        if ends != (state.ends or [getattr(before, name) for name in ENDS]):
            if Limits(self.config).reached(state) and not Limits(before).reached(state):
                unlimited = replace(self.config, **dict.fromkeys(ENDS))
                passed = [
                    f"{name} {value}"
                    for name, value in zip(ENDS, ends, strict=True)
                    if value is not None and Limits(replace(unlimited, **{name: value})).reached(state)
                ]
                raise ConfigError(
                    f"{' and '.join(passed)}: {self.folder} has {state.update:,} updates already, of "
                    f"{state.seconds / 60:.1f} min, and is in epoch {state.epoch + 1}, and limits count from its "
                    "beginning: give more"
                )
            state.interval = 0
        state.patience, state.ends = self.config.patience, ends

    def _introduce(self, model: Transformer, dtype: torch.dtype) -> None:
        """Say what is trained and where, and from which update on."""
        processes, say = self.processes, self.display.say
        size = sum(parameter.numel() for parameter in model.parameters())
        number = str(dtype).removeprefix("torch.")
        shared = f" and {processes.size - 1} more" if processes.size > 1 else ""
        say(f"model: {size:,} parameters, training on {self.device}{shared} with {number} products")
        if self.config.shard and processes.size == 1:
            say("shard splits the model among processes, and this is the only one: torchrun starts several")
        if self.state.update:
            self._say_what_is_lost()

    def _guide(self, pairs: Corpus) -> Guide:
        """Return the guide of attention; the alignment that it follows is learned once, by the first process."""
        path = self.resume / ALIGNMENT
        with self.processes.after_the_first():
            if self.processes.first and not path.exists():
                self._wait_for_check()
                Guide.prepare(path, pairs, self.model.config, self.display.say)
        return Guide.from_file(path, self.config.guide, self.device)

    def _say_what_is_lost(self) -> None:
        """Say from which update training goes on, and how many of those that were reported it makes again."""
        done = self.state.update
        made = (read_metrics(self.folder / METRICS).updates or 0) if self.processes.first else 0
        again = f"; updates up to {made:,} are made again" if made > done else ""
        self.display.say(f"going on from update {done:,}{again}")

    def _take_up(self) -> None:
        """Make the run folder, once, what it was at the checkpoint that training goes on from.

        Only before something is written there, when all that training reads has been found whole: a run that can't go
        on keeps the weights and figures that it has.
        """
        if self._taken_up:
            return
        self._taken_up, lost, saved = True, False, self.checkpoints.saved
        with self.processes.after_the_first():
            if self.processes.first:
                self._wait_for_check()
                remove_unfinished(self.folder.parent, self.folder.name)
                for folder in (self.folder, self.resume):
                    remove_unfinished(folder)
                self.checkpoints.drop_newer()
                self.watcher.restore(saved)
                self.display.restore(saved, -1 if self.state.best is None else self.state.validated)
                drop_snapshots_after(self.resume, saved)
                update = None if self.state.best is None else self.state.best_update
                lost = not restore_best(self.resume, self.folder / WEIGHTS, update, self.state.best_checksum)
        if self.processes.agree(lost) != [0]:  # the largest value: only the first can know
            self.state.forget_best()

    def _wait_for_check(self) -> None:
        """Return when what training reads has been found whole; RunError says what isn't."""
        if self.integrity is not None:
            self.integrity.wait()

    def run(self, interruption: Interruption) -> TrainResult:
        """Train until a limit is reached or a signal comes, and return what the training came to."""
        with ExitStack() as stack:
            stack.callback(self.checkpoints.close)
            stack.push(self._explain)
            signal = self._train(interruption)
            # One that came too late to interrupt it is told of: it may have been meant for what comes after.
            return replace(self._finish(), signal=interruption.signal) if signal is None else self._stop(signal)

    def _explain(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error behind the one that ended training: of a full disk, or of data found damaged meanwhile."""
        if not isinstance(error, Exception):
            return
        self._wait_for_check()  # damaged ids fail in any way where they are used
        if isinstance(error, OSError) and error.errno in FULL:
            command = f"glassformer train --resume --out {quote(str(self.folder))}"
            raise RunError(f"{describe_full(error)}: free some space, then go on with {command}") from None

    def _train(self, interruption: Interruption) -> int | None:
        """Update until a limit is reached, or a signal comes: then save the state, and return the signal."""
        state = self.state
        if self.config.from_ is not None and state.best is None:
            with self.tally.paused():
                self._validate()  # the weights to begin with are the first to beat
        while not self.limits.reached(state):
            plan = self._plan_epoch()
            for numbers, batches in self.loader.load(self._rest_of(plan)):
                state.count_update(len(numbers))
                self._update(numbers, batches)
                # What follows from time must follow in all processes.
                seconds, signal, due = self.processes.agree(
                    self._seconds(), interruption.signal or 0, self.checkpoints.due()
                )
                state.seconds = seconds
                self._plan_updates(len(plan))
                if state.update % REPORT_EVERY == 0:
                    self._report()
                if state.update % self.interval == 0:
                    with self.tally.paused():
                        self._validate()
                        self.curves.draw(every=DRAW_EVERY)
                if signal or due:
                    self._take_up()
                    state.reported = self.tally.sums.tolist()
                    self.checkpoints.save(self.step, state)
                if signal and self._may_stop():
                    return int(signal)
                if self.limits.reached(state):
                    return None
            state.finish_epoch()
        return None

    def _may_stop(self) -> bool:
        """Return whether this moment is saved, or can't be: too many updates in a row were left out.

        After fewer of them training goes on to the next one that is taken, which can be saved (`Checkpoints.save`).
        """
        return self.checkpoints.saved == self.state.update or (
            self.step.outliers.left_out()[0] >= self.config.max_left_out
        )

    def _plan_updates(self, batches: int) -> None:
        """Estimate once how many updates the limits allow; an epoch has so many batches.

        Where a limit has changed since, only the interval between validations follows: the warm-up stays.
        """
        state, config = self.state, self.config
        if state.interval:
            return
        per_update = self.stopwatch.seconds_per_update(state.update, state.seconds)
        in_epoch = math.ceil(batches / config.accumulate)
        if planned := self.limits.plan(state, in_epoch, per_update):
            state.planned = state.planned or planned
            self.warmup = warmup_updates(config, self.model.config.d_model, state.planned)
            self.interval = state.interval = validation_interval(config, planned)
            for line in describe_plan(config, planned, self.warmup, self.interval).splitlines():
                self.display.say(line)
        elif most := self.limits.most_updates(in_epoch):  # until the speed is known, as if time were no limit
            self.warmup = warmup_updates(config, self.model.config.d_model, state.planned or most)
            self.interval = validation_interval(config, most)

    def _plan_epoch(self) -> Plan:
        """Return which pairs go into which batch of the present epoch, and take it up."""
        config, corpus = self.config, self.loader.corpus
        plan = plan_batches(
            corpus.source.lengths,
            corpus.target.lengths,
            batch_tokens=config.chosen_batch_tokens,
            seed=config.seed,
            epoch=self.state.epoch,
        )
        self.state.enter_epoch(len(plan))
        self._plan_updates(len(plan))
        return plan

    def _rest_of(self, plan: Plan) -> Iterator[tuple[PairNumbers, list[int] | None]]:
        """Yield the pairs of each further update of this epoch, and the seeds of their resampling.

        There are none in the cooldown, so that training ends with text split as it is for translation.
        """
        config, epoch = self.config, self.state.epoch
        for first in range(self.state.batch, len(plan), config.accumulate):
            numbers = plan[first : first + config.accumulate]
            seeds = [derive_seed(config.seed, pairs[0], epoch=epoch) for pairs in numbers]
            yield numbers, None if self.limits.cools(self.state) else seeds

    def _update(self, numbers: PairNumbers, batches: Sequence[Batch]) -> None:
        """Make one update on these batches. A continued run draws the same dropout."""
        number = self.state.update
        rate = inverse_square_root(number, peak=self.peak, warmup=self.warmup) * self.limits.rate_factor(self.state)
        tokens = self.loader.count_tokens(numbers, batches)
        if self.config.watch is not None:
            self._take_up()  # for what is seen is written; in all processes, of which the first alone sees it
        with explaining_memory(lambda: self._advice_on_memory(numbers)), self.watcher.update(number):
            self.tally.add(self.step.update(batches, rate=rate, number=number, tokens=tokens), tokens)

    def _advice_on_memory(self, numbers: PairNumbers) -> str:
        """Say where memory ran out, and what to do about it."""
        config, shape = self.config, self.loader.describe(numbers)
        return (
            f"in update {self.state.update:,}, with a batch of {shape}: go on with --resume and a smaller "
            f"--batch-tokens (it is {config.chosen_batch_tokens:,}; twice --accumulate, which is "
            f"{config.accumulate}, makes up for half of it), or leave longer pairs out with --max-tokens"
        )

    def _report(self) -> None:
        """Show and record the updates since the last report; DivergedError if too many in a row were left out."""
        self._take_up()
        state, rate = self.state, self.step.optimizer.rate
        sums, speed = self.tally.close()
        in_row, in_all = self.step.outliers.left_out()
        if in_row >= self.config.max_left_out:
            self.curves.draw()
            self._drop_checkpoint()
            raise DivergedError(
                f"the last {in_row} updates up to {state.update:,} were left out, because their loss or gradient was "
                "not a number, or the loss jumped: go on with --resume and a lower --learning-rate "
                f"(it was {rate:.2g}) or --clip-norm, or train anew with a longer --warmup"
            )
        loss, tokens = sums.tolist()
        report = Report(
            update=state.update,
            epoch=state.epoch + 1,
            loss=loss / tokens if tokens else None,
            tokens_per_second=speed,
            seconds=state.seconds,
            learning_rate=rate,
            left_out=in_all,
        )
        self.display.show_report(report, self.limits.fraction(state))

    def _validate(self) -> None:
        """Score the present weights, keep them for averaging, and in the run folder if they are the best so far."""
        self._take_up()
        state = self.state
        model = gather_weights(self.model, self.device)
        loss, score, samples = self._validated(model)
        best = state.count_validation([self.sign * score, -loss])  # equal scores: the lower loss
        self.limits.apply_patience(state)
        if self.processes.first:
            weights = model.state_dict()
            if state.update:  # the weights to begin with are no part of the mean
                save_snapshot(self.resume, weights, state.update, keep=self.config.average)
            if best:
                state.best_checksum = save_best(
                    self.resume, self.folder / WEIGHTS, weights, state.update, self.checkpoints.updates()
                )
        (state.seconds,) = self.processes.agree(self._seconds())  # the others wait for the first
        self.display.show_validation(
            Validation(state.update, loss, self.config.metric, score, state.seconds), samples, best=best
        )

    def _validated(self, model: Transformer) -> Validated:
        """Return loss, score and samples of these weights on the validation pairs."""
        advice = (
            "in a validation: go on with --resume and a smaller --batch-tokens, or train anew with fewer --score-pairs"
        )
        try:
            with explaining_memory(lambda: advice):
                return self.validator.validate(model, self.state.update)
        except DivergedError:
            self._drop_checkpoint()
            raise

    def _drop_checkpoint(self) -> None:
        """Remove that of the last update that was made: its weights may be wrong, and its loss was of those before."""
        self.checkpoints.drop(self.state.update - self.step.outliers.left_out()[0])

    def _stop(self, signal: int) -> TrainResult:
        """Leave the run as it was saved after a signal."""
        self.checkpoints.wait()
        self.curves.draw()
        state, saved = self.state, self.checkpoints.saved
        return TrainResult(self.folder, False, saved, state.seconds, self.config.metric, None, signal)

    def _finish(self) -> TrainResult:
        """Put the best weights into the run folder, and remove what only continuing needs."""
        self._take_up()
        state = self.state
        if state.validated != state.update:
            self._validate()
        score = self._choose_weights()
        self.checkpoints.wait()
        self.processes.agree(0)  # nobody reads resume/ any more
        state.seconds = self._seconds()
        self.curves.draw()
        metrics = read_metrics(self.folder / METRICS)
        found = tuple(concerns(self.config, metrics, state.update, self.warmup))
        if self.processes.first:
            remove_at_once(self.resume)
        return TrainResult(self.folder, True, state.update, state.seconds, self.config.metric, score, None, found)

    def _choose_weights(self) -> float:
        """Choose between the mean of the last validations' weights and the best single ones; return the score."""
        assert self.state.best is not None
        best = self.sign * self.state.best[0]
        kept = snapshots(self.resume)
        mean, count = average(kept) if len(kept) > 1 else ({}, 0)
        if count < 2:
            return best
        model = gather_weights(self.model, self.device)
        load_weights(model, mean, self.folder / WEIGHTS)
        loss, score, _ = self._validated(model)
        # The best of many scores is high by luck as well: a mean of lower loss goes before it.
        better = self.sign * score > self.state.best[0] or -loss >= self.state.best[1]
        better = better and self._beats_the_first(score, loss)
        said = "kept" if better else f"not kept (best: {-self.state.best[1]:.4f}, {best:.2f})"
        self.display.say(
            f"mean of the weights at the last {count} validations: loss {loss:.4f}  {self.config.metric} "
            f"{score:.2f}, {said}"
        )
        if not better:
            return best
        if self.processes.first:
            write_weights(self.folder, model.state_dict())
        figures = self.state.update, loss, self.config.metric, score, self._seconds()
        self.display.record_averaged(Averaged(*figures, validations=count))
        return score

    def _beats_the_first(self, score: float, loss: float) -> bool:
        """Return whether either is better than that of the run that this one began from, if it did."""
        validations = read_metrics(self.folder / METRICS).validations
        if self.config.from_ is None or not validations or validations[0].update:
            return True
        return self.sign * score > self.sign * validations[0].score or loss < validations[0].loss

    def _seconds(self) -> float:
        """Return the time spent training and validating."""
        return time.monotonic() - self.began
