"""Figures in a database of trackio's (extra `tracking`), on this machine, without a network."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from shlex import quote
from typing import Any

FOLDER = "trackio"
"""Folder beside the run folders for the databases, unless TRACKIO_DIR names another."""
REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Environment variables by which somebody tells trackio to send figures away."""


class Trackio:
    """Logs with the package trackio, into the folder that TRACKIO_DIR names, or one beside the run folder.

    trackio reads that variable once, when it is first imported.

    Example: docs/howto/track.md.
    """

    def __init__(self, run: Path) -> None:
        if not os.environ.get("TRACKIO_DIR"):
            os.environ["TRACKIO_DIR"] = str(run.absolute().parent / FOLDER)
        try:
            import trackio
            from huggingface_hub import constants
            from trackio.sqlite_storage import SQLiteStorage
        except ImportError as error:
            raise ImportError("Trackio needs trackio: pip install 'glassformer[tracking]'") from error
        self._trackio, self._storage = trackio, SQLiteStorage
        self._hub: Any = constants
        self._project = ""
        self._run: Any = None

    @property
    def place(self) -> str:
        """The folder of the databases, and how they are shown."""
        folder = self._trackio.utils.TRACKIO_DIR
        return f"{folder} (see it with: TRACKIO_DIR={quote(str(folder))} trackio show)"

    def init(self, *, project: str, name: str, group: str | None, resume: str, config: Mapping[str, Any] | None) -> Any:
        """Begin a run, or go on with the last one of this name; OSError with the first warning that trackio gives."""
        self._project = project
        with self._offline(), redirect_stdout(sys.stderr), warnings.catch_warnings(record=True) as given:
            self._run = self._trackio.init(
                project=project,
                name=name,
                group=group,
                config=None if config is None else dict(config),
                resume=resume,
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        if wrong := [one for one in given if issubclass(one.category, UserWarning)]:
            raise OSError(str(wrong[0].message))
        return self._run

    def last_steps(self) -> Mapping[str, int] | None:
        """Return the last step of the figures that begin with each word; None where another machine has them."""
        if _is_remote():
            return None
        last: dict[str, int] = {}
        for row in self._storage.get_logs(self._project, self._run.name, run_id=self._run.id):
            for name in row:
                word = name.partition("/")[0]
                last[word] = max(last.get(word, -1), row["step"])
        return last

    def log(self, metrics: Mapping[str, int | float], /, *, step: int) -> None:
        """Hand over the figures of a step, which trackio writes half a second later."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """Wait until all figures are written."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()

    @contextmanager
    def _offline(self) -> Iterator[None]:
        """Keep trackio from asking huggingface.co whose a token is, unless figures are sent away anyway."""
        before = self._hub.HF_HUB_OFFLINE
        self._hub.HF_HUB_OFFLINE = before or not _is_remote()
        try:
            yield
        finally:
            self._hub.HF_HUB_OFFLINE = before


def _is_remote() -> bool:
    return any(os.environ.get(name) for name in REMOTE)
