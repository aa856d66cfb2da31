"""Scores and prunings in a tracker, each a run beside that of the training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.run.metrics import read_metrics
from glassformer.run.names import METRICS
from glassformer.scoring.scores import Score
from glassformer.tracking.session import Session
from glassformer.tracking.tracker import NONE, TrackedRun, chosen_tracker


def track_scores(
    run: Path | str,
    source: str,
    scores: Sequence[Score],
    *,
    track: str = NONE,
    tracker: TrackedRun | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str | None:
    """Give a tracker the scores of a run's model on a test set, at its last update; return where they are, in words.

    `source` is the name of the test set. Either `track` names the tracker, or `tracker` is one (see `Tracker`). What
    fails in it is a TrackerWarning.

    Example: docs/howto/track.md.
    """
    step = read_metrics(Path(run) / METRICS).updates or 0
    figures = {f"test/{one.name}": one.value for one in scores}
    return track_steps(
        Path(run), f"evaluate {source}", {step: figures}, track=track, tracker=tracker, settings=settings
    )


def track_steps(
    run: Path,
    job: str,
    steps: Mapping[int, Mapping[str, int | float | None]],
    *,
    track: str = NONE,
    tracker: TrackedRun | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str | None:
    """Give a tracker all figures of a job at once, by their steps; return where they are, in words."""
    chosen = chosen_tracker(track, tracker, run, job)
    if chosen is None:
        return None
    session = Session(chosen, run, job)
    session.begin(settings or {})
    for step, figures in steps.items():
        session.log(figures, step)
    session.finish()
    return session.place
