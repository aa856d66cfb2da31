"""`watch` in the Trainer of Hugging Face, as a callback. Needs transformers (extra `huggingface`)."""

from typing import Any

from torch import nn

from glassformer.capture.watch import Watch, watch

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("WatchCallback needs transformers 5 or newer: pip install 'glassformer[huggingface]'") from error


class WatchCallback(TrainerCallback):
    """Looks at the attention of the model that a Trainer trains: `Trainer(..., callbacks=[WatchCallback(every=100)])`.

    It takes what `watch` takes but for the model. Steps are those of the optimizer (`state.global_step`), so all passes
    of gradient accumulation count together. Evaluation is left out. Of several processes the first one watches.

    Example: docs/howto/watch.md.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.seen: Watch | None = None
        """Hold the sightings, and draw them with `plot`. None before training, and in processes but the first."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **rest: Any) -> None:
        """Begin to watch the model; of a training that goes on, take up what the file has."""
        self._end()
        if not state.is_world_process_zero:
            return
        self.seen = watch(model, **self._settings)
        if state.global_step and self._settings.get("file") is not None:
            self.seen.restore(state.global_step)
        self.seen.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Take the figures of the step, if it was looked at."""
        if self.seen is not None:
            self.seen.log(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Leave the model as it was."""
        self._end()

    def _end(self) -> None:
        if self.seen is not None:
            self.seen.__exit__(None, None, None)
