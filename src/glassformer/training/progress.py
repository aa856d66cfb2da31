"""What a person sees while a model trains: a bar on a terminal, lines elsewhere; on standard error."""

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from glassformer.files import replacing
from glassformer.meter import clock


class TrainingDisplay:
    """A progress display that also appends to metrics.jsonl; if it isn't `shown`, it does neither."""

    def __init__(self, metrics: Path, *, shown: bool = True) -> None:
        self._metrics = metrics if shown else None
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not shown)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]}"),
            console=self._console,
        )
        self._task = self._progress.add_task("training", total=1.0, facts="")
        self._score = ""
        self._last_line = time.monotonic()

    def __enter__(self) -> "TrainingDisplay":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def trained(self, fraction: float, seconds: float, figures: dict[str, Any]) -> None:
        """Show and record the figures of the last updates; `fraction` of the training is done after `seconds`."""
        left = seconds * (1 - fraction) / fraction if fraction else 0.0
        loss = "-" if figures["loss"] is None else f"{figures['loss']:.3f}"
        left_out = f"  {figures['left_out']:,} updates left out" if "left_out" in figures else ""
        facts = (
            f"epoch {figures['epoch']}  update {figures['update']:,}  loss {loss}{self._score}{left_out}  "
            f"{figures['tokens_per_second']:,.0f} tokens/s  at most {clock(left)} left"
        )
        self._record(figures)
        if self._console.is_terminal:
            self._progress.update(self._task, completed=fraction, facts=facts)
        elif time.monotonic() - self._last_line > 10:
            self._last_line = time.monotonic()
            self.say(facts)

    def validated(self, figures: dict[str, Any], *, best: bool) -> None:
        """Show and record a validation."""
        self._score = f"  {figures['metric']} {figures['score']:.2f}"
        self._record(figures)
        self.say(
            f"update {figures['update']:,}: validation loss {figures['valid_loss']:.4f}{self._score}"
            f"{'  (best so far)' if best else ''}"
        )

    def _record(self, figures: dict[str, Any]) -> None:
        if self._metrics is not None:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")


def drop_metrics_after(path: Path, update: int) -> None:
    """Remove the lines of metrics.jsonl that a continued run will write again, and one that was cut off."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["update"] <= update:
                kept.append(line)
        except ValueError:  # the disk was full, or the process was killed while writing
            break
    with replacing(path) as file:
        file.write("".join(kept).encode())
