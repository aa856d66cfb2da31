"""The display of a training: a bar on a terminal, lines elsewhere, on standard error; and the picture of its curves."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from glassformer.capture.sightings import Sighting
from glassformer.data.facts import shortened
from glassformer.errors import counted, printable
from glassformer.meter import Bar, can_move, format_duration
from glassformer.pictures import can_draw
from glassformer.run.curves import draw_curves
from glassformer.run.metrics import Averaged, Report, Validation, append_metrics, drop_metrics_after
from glassformer.run.names import CURVES, METRICS
from glassformer.scoring.scores import is_same
from glassformer.tracking.curves import TrackedTraining


class TrainingDisplay:
    """A progress display that also records, in metrics.jsonl and in a tracker; if not `shown`, it does neither."""

    def __init__(self, metrics: Path, *, shown: bool = True) -> None:
        self._metrics = metrics
        self._shown = shown
        console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        self._bar = Bar("training", console) if shown and can_move(console) else None
        self._score = ""
        self._last_line = time.monotonic()
        self._tracked: TrackedTraining | None = None

    def track(self, tracked: TrackedTraining) -> None:
        """Record in a tracker, too."""
        self._tracked = tracked

    def __enter__(self) -> "TrainingDisplay":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._tracked is not None:
            self._tracked.finish()

    def restore(self, update: int, validated: int) -> None:
        """Make what is recorded what it was after so many updates (see `drop_metrics_after`)."""
        drop_metrics_after(self._metrics, update, validated)
        if self._tracked is not None and (place := self._tracked.restore()):
            self.say(f"tracked in {place}")

    def record_sighting(self, sighting: Sighting) -> None:
        """Record in a tracker what was seen of the heads, which attention.jsonl has already."""
        if self._tracked is not None:
            self._tracked.add(sighting)

    def say(self, text: str) -> None:
        """Show a line, above the bar that moves just now if there is one."""
        if self._shown:
            print(printable(text), file=sys.stderr)

    def show_report(self, report: Report, fraction: float) -> None:
        """Show and record the figures of the last updates, after which `fraction` of the training is done."""
        self._record(report)
        facts = self._facts(report, fraction)
        if self._bar is not None:
            self._bar.draw(fraction, facts, "  ")
        elif time.monotonic() - self._last_line > 10:
            self._last_line = time.monotonic()
            self.say("  ".join(facts))

    def show_validation(
        self, validation: Validation, samples: Sequence[tuple[str, str, str]] = (), *, best: bool
    ) -> None:
        """Show and record a validation, whether it is the best so far, and samples (see `Validated`)."""
        self._score = f"{validation.metric} {validation.score:.2f}"
        self._record(validation)
        self.say(
            f"update {validation.update:,}: validation loss {validation.loss:.4f}  {self._score}"
            f"{'  (best so far)' if best else ''}"
        )
        for source, reference, translation in samples:
            judged = "right" if is_same(translation, reference) else f"({shortened(reference)})"
            self.say(f"  {shortened(source)} -> {shortened(translation)}  {judged}")

    def record_averaged(self, averaged: Averaged) -> None:
        """Record the validation of the mean of several weights, which is the model now."""
        if self._shown:
            append_metrics(self._metrics, averaged)

    def _facts(self, report: Report, fraction: float) -> list[str]:
        """Return the texts beside the bar, those first that matter most."""
        seconds, speed = report.seconds or 0.0, report.tokens_per_second or 0.0
        left = seconds * (1 - fraction) / fraction if fraction else 0.0
        facts = [
            f"at most {format_duration(left)} left",
            f"loss {'-' if report.loss is None else f'{report.loss:.3f}'}",
            self._score,
            f"{counted(report.left_out, 'update')} left out" if report.left_out else "",
            f"rate {report.learning_rate or 0.0:.1e}",
            f"update {report.update:,}",
            f"epoch {report.epoch}",
            f"{speed:,.0f} tokens/s",
        ]
        return [fact for fact in facts if fact]

    def _record(self, figures: Report | Validation) -> None:
        if self._shown:
            append_metrics(self._metrics, figures)
        if self._tracked is not None:
            self._tracked.add(figures)


class CurveDrawer:
    """Draws curves.png of a run folder now and then, where matplotlib is installed."""

    def __init__(self, folder: Path, *, shown: bool = True) -> None:
        """Where the run isn't `shown`, because another process does that, nothing is drawn."""
        self._folder = folder
        self._draws = shown and can_draw()
        self._drawn = time.monotonic()

    def draw(self, every: float = 0.0) -> None:
        """Draw the curves, unless that was done less than so many seconds ago."""
        if self._draws and time.monotonic() >= self._drawn + every:
            self._drawn = time.monotonic()
            draw_curves(self._folder / METRICS, self._folder / CURVES)
