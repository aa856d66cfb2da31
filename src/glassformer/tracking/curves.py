"""The curves of a training in a tracker: each line of metrics.jsonl once, however often the training was stopped."""

from collections.abc import Mapping
from heapq import merge
from pathlib import Path
from typing import Any

from msgspec import Struct

from glassformer.capture.sightings import Sighting, read_sightings
from glassformer.decoding import read_json
from glassformer.files import write_json
from glassformer.run.metrics import Report, Validation, read_metrics
from glassformer.run.names import METRICS, RESUME, TRACKED, WATCHED
from glassformer.tracking.session import Session

Figures = Report | Validation | Sighting
KINDS = {Report: "train", Validation: "valid", Sighting: "attention"}
"""The first word of the names of each kind of figures."""


class _Begun(Struct, frozen=True, forbid_unknown_fields=True):
    """The run in a tracker that an unfinished training goes on with."""

    tracker: str
    id: str


class TrackedTraining:
    """Gives a tracker the figures of a training.

    A training that goes on with the same tracker goes on with the same run there, which gets what it doesn't have: the
    steps that it has already are computed again, to the same figures, and are not sent again.
    """

    def __init__(self, session: Session, folder: Path, config: Mapping[str, Any]) -> None:
        """Read which figures were sent already. Call it before lines are removed from metrics.jsonl."""
        self._session, self._folder, self._config = session, folder, config
        self._before = self._read_begun()
        self._sent = _last_steps(folder) if self._before else {}

    def restore(self) -> str | None:
        """Begin the run, or go on with it, and send it what the run folder has and it lacks; return where it is.

        Call it when the run folder is what it was at the checkpoint that training goes on from.
        """
        id = self._session.begin(self._config, self._before)
        if id != self._before:
            self._sent = {}
            write_json(self._folder / RESUME / TRACKED, {"tracker": self._session.tracker, "id": id})
        if (last := self._session.last_steps()) is not None:
            self._sent = dict(last)
        metrics = read_metrics(self._folder / METRICS)
        for figures in merge(read_sightings(self._folder / WATCHED), metrics.reports, metrics.validations, key=_step):
            self.add(figures)
        return self._session.place

    def add(self, figures: Figures) -> None:
        """Send figures, unless they were sent before the training was stopped."""
        if _step(figures) > self._sent.get(KINDS[type(figures)], -1):
            self._session.log(_scalars(figures), _step(figures))

    def finish(self) -> None:
        """End the run in the tracker, which keeps what it has."""
        self._session.finish()

    def _read_begun(self) -> str | None:
        """Return the id of the run in this tracker, if there is one."""
        path = self._folder / RESUME / TRACKED
        if not path.exists():
            return None
        begun = read_json(path, _Begun)
        return begun.id if begun.tracker == self._session.tracker else None


def _step(figures: Figures) -> int:
    return figures.step if isinstance(figures, Sighting) else figures.update


def _last_steps(folder: Path) -> dict[str, int]:
    """Return the last step of each kind in a run folder."""
    metrics = read_metrics(folder / METRICS)
    lines = (metrics.reports, metrics.validations, read_sightings(folder / WATCHED))
    return {KINDS[type(kind[-1])]: _step(kind[-1]) for kind in lines if kind}


def _scalars(figures: Figures) -> dict[str, int | float | None]:
    """Return figures by the names that a tracker shows."""
    if isinstance(figures, Sighting):
        return {**figures.to_scalars()}
    if isinstance(figures, Validation):
        return {"valid/loss": figures.loss, f"valid/{figures.metric}": figures.score}
    return {
        "train/loss": figures.loss,
        "train/learning_rate": figures.learning_rate,
        "train/tokens_per_second": figures.tokens_per_second,
        "train/epoch": figures.epoch,
        "train/seconds": figures.seconds,
        "train/left_out": figures.left_out,
    }
