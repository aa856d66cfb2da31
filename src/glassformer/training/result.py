"""The result of a training."""

from dataclasses import dataclass
from pathlib import Path

from glassformer.run.metrics import read_metrics
from glassformer.run.names import METRICS
from glassformer.training.advice import Concern


@dataclass(frozen=True)
class TrainResult:
    """Run folder, score and cost of a training, finished or interrupted.

    Example: docs/howto/resume.md.
    """

    folder: Path
    """The run folder."""
    finished: bool
    """False if it was interrupted; `resume` continues it."""
    updates: int
    """Updates done; if it was interrupted, those that are saved, from which it continues."""
    seconds: float
    """Time spent training and validating."""
    metric: str
    """Name of the score, such as bleu."""
    score: float | None
    """Validation score of the weights in the run folder."""
    signal: int | None = None
    """The signal that interrupted it, or that came while it ended."""
    concerns: tuple[Concern, ...] = ()
    """Aims that a finished training didn't reach."""

    @classmethod
    def from_folder(cls, folder: Path) -> "TrainResult":
        """Return what the finished training of a run folder came to, as far as its metrics say."""
        metrics = read_metrics(folder / METRICS)
        metric, score = (metrics.kept.metric, metrics.kept.score) if metrics.kept else ("", None)
        return cls(folder, True, metrics.updates or 0, metrics.seconds or 0.0, metric, score)
