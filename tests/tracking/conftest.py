"""A tracker that keeps what it is given, as the modules wandb and trackio would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Notebook:
    """Takes what every tracker takes, and can be told to fail."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.begun: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.calls: list[str] = []

    def init(self, **settings: Any) -> None:
        self._call("init")
        self.begun.append(settings)

    def log(self, metrics: dict[str, float], *, step: int) -> None:
        self._call("log")
        self.rows.append((step, metrics))

    def finish(self) -> None:
        self._call("finish")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise ZeroDivisionError("no\nroute to host")

    def steps(self, name: str) -> list[int]:
        """The steps at which a figure was logged."""
        return [step for step, metrics in self.rows if name in metrics]


@pytest.fixture
def notebook() -> Callable[..., Notebook]:
    return Notebook


@pytest.fixture(scope="session")
def read_board() -> Callable[[Path], dict[str, list[tuple[int, float]]]]:
    """Reads event files of TensorBoard with its own library: each scalar's steps and values."""

    def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}

    return read
