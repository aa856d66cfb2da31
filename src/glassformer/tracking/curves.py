"""The curves of a training in a tracker: each line of metrics.jsonl once, however often the training was stopped."""

from collections.abc import Mapping
from heapq import merge
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from glassformer.capture.sightings import Sighting, read_sightings
from glassformer.decoding import read_json
from glassformer.files import write_json
from glassformer.run.metrics import Report, Validation, read_metrics
from glassformer.run.names import METRICS, RESUME, TRACKED, WATCHED
from glassformer.tracking.session import Session

Figures = Report | Validation | Sighting
KINDS = {Report: "train", Validation: "valid", Sighting: "attention"}
"""The first word of the names of each kind of figures."""


class _Begun(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The run in a tracker that an unfinished training goes on with."""

    tracker: str
    id: str
    sent: dict[str, int] | None = None
    """The last step of each kind that the tracker has got, where it failed; left out: all of the run folder's."""


class TrackedTraining:
    """Gives a tracker the figures of a training.

    A training that goes on with the same tracker goes on with the same run there, which gets what it doesn't have: the
    steps that it has already are computed again, to the same figures, and are not sent again.
    """

    def __init__(self, session: Session, folder: Path, config: Mapping[str, Any]) -> None:
        """Read which figures were sent already. Call it before lines are removed from metrics.jsonl."""
        self._session, self._folder, self._config = session, folder, config
        self._id: str | None = None
        self._sent: dict[str, int] = {}
        if begun := self._read_begun():
            self._id = begun.id
            self._sent = _last_steps(folder) if begun.sent is None else begun.sent

    def restore(self) -> str | None:
        """Begin the run, or go on with it, and send it what the run folder has and it lacks; return where it is.

        Call it when the run folder is what it was at the checkpoint that training goes on from.
        """
        id = self._session.begin(self._config, self._id)
        if not self._session.has_failed and id != self._id:
            self._id, self._sent = id, {}
        self._keep()
        if (last := self._session.last_steps()) is not None:
            self._sent = dict(last)
        metrics = read_metrics(self._folder / METRICS)
        for figures in merge(read_sightings(self._folder / WATCHED), metrics.reports, metrics.validations, key=_step):
            self.add(figures)
        return self._session.place

    def add(self, figures: Figures) -> None:
        """Send figures, unless they were sent before the training was stopped."""
        kind, step = KINDS[type(figures)], _step(figures)
        if self._session.has_failed or step <= self._sent.get(kind, -1):
            return
        self._session.log(_scalars(figures), step)
        if self._session.has_failed:
            self._keep()
        else:
            self._sent[kind] = step

    def finish(self) -> None:
        """End the run in the tracker, which keeps what it has."""
        self._session.finish()

    def _keep(self) -> None:
        """Write which run in the tracker has the figures, if one does, and where it failed how far they got."""
        if self._id is not None:
            begun = _Begun(self._session.tracker, self._id, self._sent if self._session.has_failed else None)
            write_json(self._folder / RESUME / TRACKED, to_builtins(begun))

    def _read_begun(self) -> _Begun | None:
        """Return what is known of the run in this tracker, if there is one."""
        path = self._folder / RESUME / TRACKED
        if not path.exists():
            return None
        begun = read_json(path, _Begun)
        return begun if begun.tracker == self._session.tracker else None


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
