"""Figures in event files, as TensorBoard reads them. Needs tensorboard (extra `tracking`), and no TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any

NUMBERS = count()
"""Numbers of the files of this process, which may open several in a second."""


class TensorBoard:
    """Writes one event file each time that it is begun, and begins with all figures: it replaces the files before it.

    Example: docs/howto/track.md.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text.summary_v2 import text_pb
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ImportError("TensorBoard needs tensorboard: pip install 'glassformer[tracking]'") from error
        self._events, self._summaries, self._text, self._records = event_pb2, summary_pb2, text_pb, RecordWriter
        self._folder = folder
        self._file: Any = None

    @property
    def place(self) -> str:
        """The folder of the files, and how they are shown."""
        return f"{self._folder} (see it with: tensorboard --logdir {quote(str(self._folder))})"

    def init(self, *, config: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Open a file, at whose beginning TensorBoard forgets the figures of the files before it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.{next(NUMBERS):06}"
        self._file = (self._folder / name).open("xb")
        self._write(0, file_version="brain.Event:2")
        self._write(0, session_log=self._events.SessionLog(status=self._events.SessionLog.START))
        if config:
            rows = [f"| {name} | {value} |" for name, value in config.items()]
            table = "\n".join(["| setting | value |", "|---|---|", *rows])
            self._write(0, summary=self._text("settings", table))

    def last_steps(self) -> Mapping[str, int]:
        """Return nothing: a file that was just begun has no figures."""
        return {}

    def log(self, metrics: Mapping[str, int | float], /, *, step: int) -> None:
        """Write the figures of a step; they are in the file when this returns."""
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(step, summary=self._summaries.Summary(value=values))

    def finish(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, step: int, **content: Any) -> None:
        """Write an event; where that fails the file is closed, for nothing can follow."""
        event = self._events.Event(wall_time=time.time(), step=step, **content)
        with ExitStack() as on_error:
            on_error.callback(self._file.close)
            writer = self._records(self._file)
            writer.write(event.SerializeToString())
            writer.flush()
            on_error.pop_all()
