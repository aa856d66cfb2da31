"""Trackers: whatever has the functions `init`, `log` and `finish`, as the modules trackio and wandb do."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from glassformer.errors import ConfigError, shown
from glassformer.run.names import BOARD
from glassformer.settings.checks import Choice

NONE = "none"
TRACKERS = ("tensorboard", "trackio")
"""Trackers that have a name: packages of the extra `tracking`."""
Track = Annotated[str, Choice(NONE, *TRACKERS)]


@runtime_checkable
class TrackedRun(Protocol):
    """Takes the figures of a run that is begun and ended elsewhere: what `wandb.init` or `trackio.init` returns."""

    def log(self, metrics: dict[str, int | float], /, *, step: int) -> Any:
        """Take the figures of a step."""


@runtime_checkable
class Tracker(TrackedRun, Protocol):
    """Begins a run, takes its figures and ends it: the module wandb or trackio, or an object with these functions.

    Example: docs/howto/track.md.
    """

    @property
    def init(self) -> Callable[..., Any]:
        """Begin a run, or go on with one: project, name, group, job_type, id, resume ("allow" or "never") and config.

        A function that names its parameters gets those of them that it names.
        """
        ...

    def finish(self) -> Any:
        """End the run, when all figures are kept."""


@runtime_checkable
class Remembering(Protocol):
    """Knows which figures it holds."""

    def last_steps(self) -> Mapping[str, int] | None:
        """Return the last step of the figures that begin with each word, `train` of `train/loss`; None if not known."""


def chosen_tracker(track: str, tracker: TrackedRun | None, run: Path, job: str = "") -> TrackedRun | None:
    """Return the tracker that was given, or the one of the name for a run folder and a job, or None for neither.

    `job` says what is tracked beside the training, and is empty for that. Raises what `check_tracker` does.
    """
    check_tracker(track, tracker)
    if track == "tensorboard":
        from glassformer.tracking.tensorboard import TensorBoard

        return TensorBoard(run / BOARD / job)
    if track == "trackio":
        from glassformer.tracking.trackio import Trackio

        return Trackio(run)
    return tracker


def check_tracker(track: str, tracker: TrackedRun | None = None) -> None:
    """Raise ConfigError for two trackers, or for what is none, and ImportError where a package is missing.

    Call it before long work.
    """
    if track not in (NONE, *TRACKERS):
        raise ConfigError(f"track must be one of {', '.join((NONE, *TRACKERS))}, got {shown(track)}")
    if track != NONE and find_spec(track) is None:
        raise ImportError(f"tracking with {track} needs its package: pip install 'glassformer[tracking]'")
    if tracker is None:
        return
    if track != NONE:
        raise ConfigError(f"track {track} and tracker exclude each other: give track='none', or leave tracker out")
    if not isinstance(tracker, TrackedRun):
        raise ConfigError(
            "tracker must have init, log and finish, as the modules wandb and trackio have, or log alone, as a run "
            f"that they began, got {shown(tracker)}"
        )


def name_of(tracker: TrackedRun) -> str:
    """Return what a tracker is called: its module, or its type."""
    return str(getattr(tracker, "__name__", type(tracker).__name__))
