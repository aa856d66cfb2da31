"""The display of a training: a bar on a terminal, lines elsewhere, on standard error; and the picture of its curves."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from glassformer.data.facts import shortened
from glassformer.meter import can_move, format_duration
from glassformer.pictures import can_draw
from glassformer.run.curves import draw_curves
from glassformer.run.metrics import Report, Validation, append_metrics
from glassformer.run.names import CURVES, METRICS


class TrainingDisplay:
    """A progress display that also appends to metrics.jsonl; if it isn't `shown`, it does neither."""

    def __init__(self, metrics: Path, *, shown: bool = True) -> None:
        self._metrics = metrics if shown else None
        self._console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True, quiet=not shown)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[facts]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=self._console,
            expand=True,  # a narrow terminal cuts the facts, not the bar
        )
        self._task = self._progress.add_task("training", total=1.0, facts="")
        self._score = ""
        self._last_line = time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        if can_move(self._console):
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if can_move(self._console):
            self._progress.stop()

    def say(self, text: str) -> None:
        """Show a line."""
        self._console.print(text, markup=False)

    def show_report(self, report: Report, fraction: float) -> None:
        """Show and record the figures of the last updates, after which `fraction` of the training is done."""
        self._record(report)
        facts = self._facts(report, fraction)
        if can_move(self._console):
            self._progress.update(self._task, completed=fraction, facts=facts)
        elif time.monotonic() - self._last_line > 10:
            self._last_line = time.monotonic()
            self.say(facts)

    def show_validation(
        self, validation: Validation, samples: Sequence[tuple[str, str, str]] = (), *, best: bool
    ) -> None:
        """Show and record a validation, whether it is the best so far, and samples (see `Validated`)."""
        self._score = f"  {validation.metric} {validation.score:.2f}"
        self._record(validation)
        self.say(
            f"update {validation.update:,}: validation loss {validation.loss:.4f}{self._score}"
            f"{'  (best so far)' if best else ''}"
        )
        for source, reference, translation in samples:
            judged = "right" if translation == reference else f"({shortened(reference)})"
            self.say(f"  {shortened(source)} -> {shortened(translation)}  {judged}")

    def _facts(self, report: Report, fraction: float) -> str:
        """Return the text beside the bar."""
        loss = "-" if report.loss is None else f"{report.loss:.3f}"
        left_out = f"  {report.left_out:,} updates left out" if report.left_out else ""
        seconds, speed = report.seconds or 0.0, report.tokens_per_second or 0.0
        left = seconds * (1 - fraction) / fraction if fraction else 0.0
        return (
            f"at most {format_duration(left)} left  epoch {report.epoch}  update {report.update:,}  loss {loss}"
            f"{self._score}  rate {report.learning_rate or 0.0:.1e}  {speed:,.0f} tokens/s{left_out}"
        )

    def _record(self, figures: Report | Validation) -> None:
        if self._metrics is not None:
            append_metrics(self._metrics, figures)


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
