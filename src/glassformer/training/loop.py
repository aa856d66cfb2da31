"""The training loop."""

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread

import torch

from glassformer.device import pick_device, pick_precision, tame_memory
from glassformer.errors import ConfigError, DivergedError, RunError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.run import CONFIG, METRICS, RESUME, WEIGHTS, load_weights, read_config, write_weights
from glassformer.text.batching import Batch, one_ahead, plan_batches
from glassformer.text.corpus import Corpus
from glassformer.text.scores import LOWER_IS_BETTER, score
from glassformer.text.tokenizer import SymbolTokenizer, load_tokenizer
from glassformer.training.checkpoint import average, load_state, save_snapshot, save_state, snapshots
from glassformer.training.config import TrainConfig
from glassformer.training.prepare import prepare_run, read_valid_pairs
from glassformer.training.progress import TrainingDisplay, drop_metrics_after
from glassformer.training.schedule import inverse_square_root
from glassformer.training.step import Step
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

REPORT_EVERY = 20


@dataclass(frozen=True)
class TrainResult:
    """What a training run came to."""

    folder: Path
    finished: bool
    """False if it was interrupted; with `resume=True` it continues."""
    updates: int
    seconds: float
    """Time spent training and validating."""
    score: float | None
    """Validation score of the weights in the run folder."""


def train(config: TrainConfig) -> TrainResult:
    """Train a model on pairs of text and leave it in the run folder `config.out` (Vaswani et al. 2017, section 5).

    Shows progress on standard error. Ctrl-C saves and returns with `finished` False. Changes torch's global seed,
    its number of threads if `config.threads` is given, and how the process keeps memory (`device.tame_memory`).
    """
    tame_memory()
    display = TrainingDisplay(config.out / METRICS)
    if config.resume:
        config = _settings_of_unfinished(config)
    else:
        pick_device(config.device)  # refused before any work is done
        prepare_run(config, display.say)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    with display, _interruption() as interrupted:
        return _Training(config, display).run(interrupted)


class _Training:
    """One run: model, optimizer, data, and how far it has come."""

    def __init__(self, config: TrainConfig, display: TrainingDisplay) -> None:
        self.config, self.display, self.folder = config, display, config.out
        self.resume = config.out / RESUME
        self.device = pick_device(config.device)
        self.dtype = pick_precision(config.precision, self.device)
        saved = read_config(self.folder)
        torch.manual_seed(config.seed)
        self.model = Transformer(ModelConfig.from_json(saved["model"])).to(self.device)
        self.warmup = config.warmup or 4 * self.model.config.d_model
        self.peak = config.learning_rate or 1 / (4 * self.model.config.d_model)
        self.step = Step(
            self.model, dtype=self.dtype, label_smoothing=config.label_smoothing, clip_norm=config.clip_norm
        )
        self.position = load_state(self.resume, self.model, self.step.optimizer)
        drop_metrics_after(self.folder / METRICS, self.position.update)
        self.train_pairs, self.valid_pairs = Corpus(self.resume / "train"), Corpus(self.resume / "valid")
        self.batches_per_epoch = 1  # known when the first epoch is planned
        self.valid_text = read_valid_pairs(self.folder)
        source, target = (load_tokenizer(self.folder / saved[f"{side}_tokenizer"]) for side in ("source", "target"))
        self.tokenizers = source, target
        self.sign = -1 if config.metric in LOWER_IS_BETTER else 1  # makes a higher score the better one
        self.symbols = isinstance(target, SymbolTokenizer)
        size = sum(parameter.numel() for parameter in self.model.parameters())
        number = str(self.dtype).removeprefix("torch.")
        display.say(f"model: {size:,} parameters, training on {self.device} with {number} products")

    def run(self, interrupted: Callable[[], bool]) -> TrainResult:
        """Update after update until a limit is reached, then put the best weights into the run folder."""
        position = self.position
        clock = time.monotonic() - position.seconds
        loss_sum, tokens, since = torch.zeros((), device=self.device), 0, time.monotonic()
        for batches in self._groups():
            loss_sum += self._update(batches)
            tokens += sum(batch.tokens for batch in batches)
            position.seconds = time.monotonic() - clock
            if position.update % REPORT_EVERY == 0:
                loss = self._finite(loss_sum.item() / tokens)
                now = time.monotonic()
                figures = {"update": position.update, "epoch": position.epoch + 1, "loss": loss}
                figures |= {"tokens_per_second": tokens / (now - since), "seconds": position.seconds}
                figures["learning_rate"] = self.step.optimizer.param_groups[0]["lr"]
                self.display.trained(self._fraction(), position.seconds, figures)
                loss_sum, tokens, since = torch.zeros_like(loss_sum), 0, now
            if position.update % self.config.validate_every == 0:
                self._validate()
                position.seconds, since = time.monotonic() - clock, time.monotonic()
                save_state(self.resume, self.model, self.step.optimizer, position)
            if interrupted():
                save_state(self.resume, self.model, self.step.optimizer, position)
                return TrainResult(self.folder, False, position.update, position.seconds, None)
            if self._is_over():
                break
        if position.validated != position.update:
            self._validate()
        final = self._finish()
        return TrainResult(self.folder, True, position.update, time.monotonic() - clock, final)

    def _groups(self) -> Iterator[list[Batch]]:
        """The batches of each further update, epoch after epoch; keeps `position` at what comes next."""
        position = self.position
        while not self._is_over():
            plan = plan_batches(
                self.train_pairs.source.lengths,
                self.train_pairs.target.lengths,
                batch_tokens=self.config.batch_tokens,
                seed=self.config.seed,
                epoch=position.epoch,
            )
            self.batches_per_epoch = len(plan)
            each = self.config.accumulate
            groups = [plan[first : first + each] for first in range(position.batch, len(plan), each)]
            # A CPU has no time to spare for the next batch while it works on this one.
            ready = map(self._batches, groups) if self.device.type == "cpu" else one_ahead(self._batches, groups)
            for group, batches in zip(groups, ready, strict=True):
                position.batch += len(group)
                position.update += 1
                yield batches
            position.epoch, position.batch = position.epoch + 1, 0

    def _batches(self, group: list[list[int]]) -> list[Batch]:
        return [self._batch(self.train_pairs, indices) for indices in group]

    def _batch(self, corpus: Corpus, indices: list[int]) -> Batch:
        source, target = ([side[i] for i in indices] for side in (corpus.source, corpus.target))
        return Batch.of(source, target, self.model.source_pad, self.model.target_pad).to(self.device)

    def _update(self, batches: list[Batch]) -> torch.Tensor:
        """One step on these batches; returns their summed loss. A continued run draws the same dropout."""
        update = self.position.update
        rate = inverse_square_root(update, peak=self.peak, warmup=self.warmup)
        return self.step.take(batches, rate=rate, seed=self.config.seed * 1_000_003 + update)

    def _validate(self) -> None:
        """Score the present weights, keep them for averaging, and in the run folder if they are the best so far."""
        position = self.position
        loss, value = self._evaluate()
        rank = [self.sign * value, -loss]  # equal scores: the lower loss
        position.validated = position.update
        best = position.best is None or rank > position.best
        position.best, position.since_best = (rank, 0) if best else (position.best, position.since_best + 1)
        weights = self.model.state_dict()
        save_snapshot(self.resume, weights, position.update, keep=self.config.average)
        if best:
            write_weights(self.folder, weights)
        figures = {"update": position.update, "valid_loss": loss, "metric": self.config.metric, "score": value}
        self.display.validated(figures, best=best)

    def _evaluate(self) -> tuple[float, float]:
        """Negative log-likelihood per token on the validation pairs, and the task's score on the first of them."""
        config, corpus = self.config, self.valid_pairs
        self.model.eval()
        nll = tokens = 0.0
        plan = plan_batches(
            corpus.source.lengths,
            corpus.target.lengths,
            batch_tokens=config.batch_tokens,
            seed=config.seed,
            epoch=0,
        )
        with torch.no_grad():
            for indices in plan:
                batch = self._batch(corpus, indices)
                nll += self.step.loss(batch)[1].item()
                tokens += batch.tokens
        loss = self._finite(nll / tokens)
        translator = Translator(self.model, *self.tokenizers, precision=str(self.dtype).removeprefix("torch."))
        found = translator.translate([source for source, _ in self.valid_text], SearchConfig(beam=1))
        self.model.train()
        references = [target for _, target in self.valid_text]
        value = score(found, references, config.metric, tokenize=config.tokenize, symbols=self.symbols).value
        return loss, value

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            at = f"the loss is {loss} at update {self.position.update}"
            raise DivergedError(f"{at}: lower --learning-rate, raise --warmup, or set --clip-norm")
        return loss

    def _finish(self) -> float:
        """Choose between the averaged and the best single weights, and remove what only continuing needs."""
        assert self.position.best is not None
        value = self.sign * self.position.best[0]
        kept = snapshots(self.resume)
        if len(kept) > 1:
            load_weights(self.model, average(kept), self.folder / WEIGHTS)
            loss, averaged = self._evaluate()
            # The best of many scores is high by luck as well: the mean goes only where its loss is worse too.
            better = self.sign * averaged >= self.position.best[0] or -loss >= self.position.best[1]
            self.display.say(
                f"mean of the last {len(kept)} checkpoints: validation loss {loss:.4f}  {self.config.metric} "
                f"{averaged:.2f}, {'kept' if better else f'the best single one ({value:.2f}) is kept'}"
            )
            if better:
                write_weights(self.folder, self.model.state_dict())
                value = averaged
        shutil.rmtree(self.resume)
        return value

    def _limits(self) -> Iterator[float]:
        """How much of each limit is used up."""
        config, position = self.config, self.position
        yield position.epoch / config.max_epochs
        if config.max_updates is not None:
            yield position.update / config.max_updates
        if config.max_minutes is not None:
            yield position.seconds / (60 * config.max_minutes)

    def _fraction(self) -> float:
        """How much of the training is done, patience left aside."""
        within = self.position.batch / self.batches_per_epoch / self.config.max_epochs
        epochs, *others = self._limits()
        return min(1.0, max([epochs + within, *others]))

    def _is_over(self) -> bool:
        config = self.config
        patience_is_over = 0 < config.patience <= self.position.since_best
        return patience_is_over or any(used >= 1 for used in self._limits())


def _settings_of_unfinished(config: TrainConfig) -> TrainConfig:
    """The settings with which the unfinished run in `config.out` was started, with those changes that may be made."""
    folder = config.out
    settings = read_config(folder)["training"].get("settings")
    if not (folder / RESUME).is_dir():
        raise RunError(f"the training of {folder} is complete: there is nothing to resume")
    if not isinstance(settings, dict):
        raise RunError(f"{folder / CONFIG} is damaged: it has no settings of the training")
    try:
        return TrainConfig.from_json(settings).continued(config)
    except TypeError as error:
        raise ConfigError(f"the settings in {folder} do not fit this version of glassformer: {error}") from None


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag, so that an update is never left half done; the second is immediate."""
    received = False

    def note(signum: int, frame: object) -> None:
        nonlocal received
        received = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Straight to the file: a signal may come in the middle of a print.
        os.write(2, b"\nsaving after this update; Ctrl-C again stops at once\n")

    if current_thread() is not main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: received
    finally:
        signal.signal(signal.SIGINT, before)
