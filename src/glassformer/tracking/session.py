"""One run of a tracker: begun, given figures, ended. A tracker that fails says so once, and the work goes on."""

import inspect
import secrets
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from glassformer.errors import abridged
from glassformer.tracking.tracker import Remembering, TrackedRun, Tracker, name_of

PROJECT = "glassformer"
"""Name of the project of a run whose folder lies in none that has a name."""
LONGEST = 300
"""Most characters of a tracker's error that are shown."""


class TrackerWarning(UserWarning):
    """A tracker failed, and gets no more figures; what it tracked goes on.

    Example: docs/howto/track.md.
    """


class Session:
    """A run in a tracker, and what it is called there."""

    def __init__(self, tracker: TrackedRun, run: Path, job: str = "") -> None:
        """`run` is the run folder; `job` says what beside its training is tracked, and is empty for that."""
        folder = run.absolute()
        self._tracker = tracker
        self._failed = False
        self._is_ours = False
        self._settings = {
            "project": folder.parent.name or PROJECT,
            "name": f"{folder.name} {job}".rstrip(),
            "group": folder.name,
            "job_type": job.partition(" ")[0] or "train",
        }

    @property
    def tracker(self) -> str:
        """The name of the tracker."""
        return name_of(self._tracker)

    @property
    def has_failed(self) -> bool:
        """Return whether the tracker has failed. Then it gets nothing more."""
        return self._failed

    @property
    def place(self) -> str | None:
        """Where the figures are, in words, if the tracker tells and has not failed."""
        return None if self._failed else getattr(self._tracker, "place", None)

    def begin(self, config: Mapping[str, Any], before: str | None = None) -> str:
        """Begin a run, or go on with the one of the id `before`; return the id of the one that takes the figures.

        A tracker that chooses its own ids, or has lost the run, gives another one than `before`.
        """
        if not isinstance(self._tracker, Tracker):  # begun by whoever gave it, who will end it
            return str(getattr(self._tracker, "id", ""))
        given = before or secrets.token_hex(8)
        settings = {**self._settings, "config": dict(config), "id": given, "resume": "allow" if before else "never"}
        run = self._call(lambda init: init(**_accepted(init, settings)), self._tracker.init)
        self._is_ours = not self._failed
        return str(getattr(run, "id", given))

    def last_steps(self) -> Mapping[str, int] | None:
        """Return the last step of each kind of figures that the tracker holds, if it knows."""
        return self._call(self._tracker.last_steps) if isinstance(self._tracker, Remembering) else None

    def log(self, figures: Mapping[str, int | float | None], step: int) -> None:
        """Give the tracker the figures of a step that are known."""
        known = {name: value for name, value in figures.items() if value is not None}
        if known:
            self._call(self._tracker.log, known, step=step)

    def finish(self) -> None:
        """End the run, if it was begun here."""
        if self._is_ours:
            assert isinstance(self._tracker, Tracker)
            self._call(self._tracker.finish)
            self._is_ours = False

    def _call(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a function of the tracker, unless one failed; its error becomes a warning, and its result None."""
        if self._failed:
            return None
        with ExitStack() as stack:
            stack.push(self._give_up)
            return function(*given, **named)

    def _give_up(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Warn of an error of the tracker, which may be of any class, and give it nothing more. A signal passes."""
        if not isinstance(error, Exception):
            return False
        self._failed = True
        said = abridged(" ".join(str(error).split()), LONGEST) or type(error).__name__
        warnings.warn(
            f"the tracker {self.tracker} failed, and gets no more figures: {said}", TrackerWarning, stacklevel=4
        )
        return True


def _accepted(function: Callable[..., Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of the settings that a function names, or all if it takes any."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return settings
    return {name: value for name, value in settings.items() if name in parameters}
