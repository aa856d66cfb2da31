"""A look at the attention of every head now and then, while the model is trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.capture.sightings import Sighting
from glassformer.capture.watch import watch
from glassformer.training.progress import TrainingDisplay
from glassformer.transformer.model import Transformer


class Watcher:
    """Watches the updates whose numbers are multiples of `every`, or none."""

    def __init__(self, model: Transformer, every: int | None, file: Path, display: TrainingDisplay) -> None:
        self._display = display
        self._seen = None if every is None else watch(model, every=every, file=file, alarm=self._say)

    def restore(self, update: int) -> None:
        """Go on from this update: what was seen later is removed from the file."""
        if self._seen is not None:
            self._seen.restore(update)

    @contextmanager
    def update(self, number: int) -> Iterator[None]:
        """Look at the update that is made inside, if it is its turn."""
        if self._seen is None:
            yield
            return
        with self._seen.step(number):
            yield
        if self._seen.sightings and self._seen.sightings[-1].step == number:
            self._display.record_sighting(self._seen.sightings[-1])

    def _say(self, sighting: Sighting) -> None:
        self._display.say(f"update {sighting.step:,}: {sighting.describe_alarms()}")
