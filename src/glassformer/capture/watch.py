"""The public function `watch`: figures of every head, now and then while a model is trained."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.attention.observation import BY_QUERY, Observation
from glassformer.attention.want import NOTHING, Want
from glassformer.capture.alarms import Alarms, AttentionWarning
from glassformer.capture.capture import capture_into
from glassformer.capture.heat import plot_sightings
from glassformer.capture.record import Asked, Captured
from glassformer.capture.running import Running
from glassformer.capture.sightings import HIGHEST, MEANS, Figures, Sighting, append_sighting, keep_sightings_until
from glassformer.errors import ArgumentError, shown
from glassformer.pictures import save_figure

WATCHED = Want(entropy=True, max_score=True, sink=1)
ZERO = 1e-5
"""An entropy below it is that of a query with a single key, up to rounding."""


@runtime_checkable
class Logger(Protocol):
    """Takes figures by name: trackio, wandb, or a run of theirs."""

    def log(self, data: dict[str, Any], /) -> Any:
        """Take the figures of a step."""


@runtime_checkable
class ScalarWriter(Protocol):
    """Takes one figure at a time: a SummaryWriter of TensorBoard."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> Any:
        """Take a figure of a step."""


def watch(
    model: nn.Module,
    *,
    every: int = 100,
    want: Want = WATCHED,
    layers: str | Sequence[str] | None = None,
    file: Path | str | None = None,
    loggers: Sequence[Logger | ScalarWriter] = (),
    alarm: Callable[[Sighting], object] | None = None,
) -> "Watch":
    """Return a context that records the first step of a training, and each step whose number is a multiple of `every`.

    At the end of each step, after the backward pass, call the context's `log(step)`. A recorded step runs inside
    `capture`, and its facts are reduced to a few numbers for each head, without gradients. On all other steps the model
    is untouched. Several forward passes of a step are taken together. Passes in evaluation mode (`model.eval()`) are
    left out, and a pass that activation checkpointing computes again counts once.

    `want` may ask for entropy, max_score, sink, lse and distance; `Sighting` says how they are reduced. `layers` are
    paths as in `capture`. Each recorded step adds a line of JSON to `file`. Each of the `loggers` gets the figures of
    `Sighting.to_scalars`, by `log(dict)` or by `add_scalar` for each number. If a head's entropy collapses, or its
    scores run away, the Sighting names the head, and `alarm` is called with the Sighting. Without `alarm` an
    AttentionWarning is given.

    Raises ArgumentError where `capture` does, and for what can't be watched.

    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)
    >>> with watch(model, every=2, want=Want(entropy=True)) as seen:
    ...     for step in range(5):
    ...         model(torch.randn(2, 7, 32)).sum().backward()
    ...         _ = seen.log(step)
    >>> [sighting.step for sighting in seen.sightings]
    [0, 2, 4]
    >>> len(seen.sightings[0].figures["self_attn"]["entropy"])  # a number for each head
    4
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ArgumentError(f"every must be a number of steps, 1 or more, got {shown(every)}: every=100, say")
    if not isinstance(want, Want):
        raise ArgumentError(f"want must be a Want, got {shown(want)}: pass Want(entropy=True), for example")
    if (others := sorted(set(want.asked) - {*MEANS, *HIGHEST})) or not want.asked:
        got = f"got {', '.join(others)}" if others else "and asks for nothing"
        raise ArgumentError(
            f"want must ask for figures of heads ({', '.join((*MEANS, *HIGHEST))}), {got}: capture() records the others"
        )
    if not isinstance(loggers, Sequence):
        raise ArgumentError(f"loggers must be a list, got {shown(loggers)}: loggers=[...] for a single one, too")
    if alarm is not None and not callable(alarm):
        raise ArgumentError(f"alarm must be a function that takes a Sighting, got {shown(alarm)}")
    for logger in loggers:
        if not isinstance(logger, Logger | ScalarWriter):
            raise ArgumentError(
                f"loggers must have log(dict), as trackio and wandb have, or add_scalar, as TensorBoard's "
                f"SummaryWriter has, got {shown(logger)}"
            )
    return Watch(model, every, want, layers, None if file is None else Path(file), tuple(loggers), alarm or warn_of)


class Watch:
    """Look at a training now and then, and keep the sightings.

    Example: docs/howto/watch.md.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        want: Want,
        layers: str | Sequence[str] | None,
        file: Path | None,
        loggers: Sequence[Logger | ScalarWriter],
        alarm: Callable[[Sighting], object],
    ) -> None:
        self._model, self._every, self._want, self._layers = model, every, want, layers
        self._file, self._loggers, self._alarm = file, loggers, alarm
        self._alarms = Alarms()
        self._open: ExitStack | None = None
        self._step: _Step | None = None
        self._last: int | None = None
        self._unseen = 0
        self._to_others = set[str]()
        self.sightings: list[Sighting] = []
        """Hold a Sighting for each step that was looked at."""

    def __enter__(self) -> "Watch":
        if self._open is not None:
            raise ArgumentError("this watch is at work already: call watch(model) for another")
        self._open = ExitStack()
        try:
            self._look()
        except BaseException:
            self._open = None
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ignored = self._step is not None and self._step.ignored
        if self._open is not None:
            self._open.close()
        self._open = self._step = self._last = None
        if kind is None and ignored and self._unseen and not self.sightings:
            warnings.warn(
                f"watch saw nothing in {self._unseen:,} steps, because the model was in evaluation mode: call "
                "model.train() before training",
                AttentionWarning,
                stacklevel=2,
            )

    @property
    def watching(self) -> bool:
        """Return whether the step that runs now is looked at."""
        return self._step is not None

    def log(self, step: int) -> Sighting | None:
        """End a step, and return what was seen if it was looked at.

        The next one is expected to follow at the same distance as this one followed the one before, at first 1. It is
        looked at if it reaches the next multiple of `every`, or if this one's turn passed without a pass in training
        mode.
        """
        if self._open is None:
            raise ArgumentError("log must be called inside the context: with watch(model) as seen: ... seen.log(step)")
        if isinstance(step, bool) or not hasattr(step, "__index__") or index(step) < 0:
            raise ArgumentError(f"step must be the number of the step that ends, 0 or more, got {shown(step)}")
        step = index(step)
        distance = 1 if self._last is None else max(1, step - self._last)
        self._last = step
        figures = self._end()
        try:
            return self._keep(step, figures) if figures else None
        finally:  # a logger may fail
            if self._step is None and (step + distance) // self._every > step // self._every:
                self._look()

    def is_due(self, number: int) -> bool:
        """Return whether `step` would look at a step of this number."""
        return not self.sightings or number % self._every == 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Run a step inside, and look at it if its number is a multiple of `every`, or if nothing was seen before.

        For a loop of one's own in place of `with watch(...)` and `log`: nothing is expected of the next step, so the
        model is untouched between steps.
        """
        if self._open is not None:
            raise ArgumentError("step is for a watch that wasn't entered: call log(step), or leave out the with")
        if not self.is_due(number):
            yield
            return
        with self:
            yield
            figures = self._end()
        if figures:
            self._keep(number, figures)

    def restore(self, last: int) -> None:
        """Take up the sightings of the `file` up to this step, for a training that goes on. Later lines are removed."""
        if self._file is None:
            raise ArgumentError("restore needs the file of the sightings: watch(model, file=...)")
        self.sightings = keep_sightings_until(self._file, last)
        self._alarms = Alarms()
        for sighting in self.sightings:
            self._alarms.judge(sighting.figures)

    def plot(self, path: Path | str | None = None) -> Any:
        """Return a matplotlib Figure, a heat map of layers and heads over the steps for each fact; save it as a PNG.

        Heads that were warned of are marked. Needs the extra `plots`. Raises ArgumentError if nothing was seen yet.
        """
        figure = plot_sightings(self.sightings)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def _look(self) -> None:
        """Let the next step run inside `capture`."""
        assert self._open is not None
        step = partial(_Step, self._model, self._want, self._to_others)
        self._step = self._open.enter_context(
            capture_into(step, self._model, self._want, layers=self._layers, budget=None)
        )

    def _end(self) -> Figures:
        """Return the figures of the step that ends. If there are any, the model is let alone."""
        figures = {} if self._step is None else self._step.figures()
        self._unseen += not figures
        if figures and self._open is not None:
            self._open.close()
            self._step = None
        return figures

    def _keep(self, step: int, figures: Figures) -> Sighting:
        """Return the Sighting of a step, kept, written, sent to the loggers and warned of."""
        sighting = Sighting(step, figures, tuple(self._alarms.judge(figures)))
        self.sightings.append(sighting)
        if self._file is not None:
            append_sighting(self._file, sighting)
        if sighting.alarms:
            self._alarm(sighting)
        if self._loggers:
            scalars = sighting.to_scalars()
            for logger in self._loggers:
                if isinstance(logger, ScalarWriter):
                    for name, value in scalars.items():
                        logger.add_scalar(name, value, step)
                else:
                    logger.log({**scalars, "attention/step": step})
        return sighting


def warn_of(sighting: Sighting) -> None:
    """Give an AttentionWarning of the heads of a sighting."""
    warnings.warn(f"step {sighting.step:,}: {sighting.describe_alarms()}", AttentionWarning, stacklevel=4)


class _Step(Captured):
    """The passes of one step, each reduced as it is recorded: no graph is kept, and no more than a few numbers."""

    def __init__(
        self,
        model: nn.Module,
        want: Want,
        to_others: set[str],
        wants: Mapping[str, Want],
        budget: int | None,
        running: Running,
    ) -> None:
        """Begin a step; `to_others` are the attentions that have once had other numbers of queries and of keys."""
        super().__init__(wants, budget, running)
        self._model, self._want, self._to_others = model, want, to_others
        self._reduced: dict[str, list[Mapping[str, Tensor]]] = {}
        self.ignored = False
        """Tell whether a pass in evaluation mode was left out."""

    def reserve(self, name: str, batch: int, heads: int, q_len: int, k_len: int) -> Asked:
        """Return what to record of the next call of an attention: nothing in evaluation.

        `received` tells which keys are padding, `lse` which queries look nowhere.
        """
        if q_len != k_len:
            self._to_others.add(name)
        fitting = replace(self._want.fitted(q_len, k_len), received=True, lse=True)
        return Asked(fitting if self._model.training else NOTHING)

    def add(self, name: str, observation: Observation) -> None:
        """Take what was recorded of a call."""
        if not self._model.training:
            self.ignored = True
            return
        reduced = _reduced(observation.detach(), self._want.asked, to_itself=name not in self._to_others)
        if reduced:
            self._reduced.setdefault(name, []).append(reduced)

    def figures(self) -> Figures:
        """Return the figures of all passes together, with the layers in the order of their first calls."""
        return {name: _together(passes) for name, passes in self._reduced.items()}


@torch.no_grad()
def _reduced(observation: Observation, kept: Sequence[str], *, to_itself: bool) -> dict[str, Tensor]:
    """Return what is kept of a call: for each fact and head the largest number, or a sum and of how many it is.

    In attention of a text to itself, a query whose key is padding doesn't count.
    """
    facts = observation.tensors()
    received = ~(facts["received"].amax(1) <= 0)  # a key that nobody looks at is padding; NaN is a look
    somewhere = next((facts[fact] != -torch.inf for fact in HIGHEST if fact in facts), None)
    reduced: dict[str, Tensor] = {}
    for fact in kept:
        x = facts.get(fact)
        if x is None or not x.numel():
            continue
        if fact in HIGHEST:
            reduced[fact] = x.amax((0, 2))
            continue
        counted = _queries(received if to_itself else received.any(1, keepdim=True), x)
        if somewhere is not None:
            counted = counted & somewhere
        if fact == "entropy":
            most = _largest_entropies(facts, received)
            counted = counted & (most > 0)
            x = x / most.clamp(min=ZERO)
        reduced[fact] = torch.stack([torch.where(counted, x, 0.0).sum((0, 2)), counted.sum((0, 2)).to(x.dtype)])
    return reduced


def _queries(received: Bool[Tensor, "batch _"], like: Tensor) -> Tensor:
    """Return which queries count: where they are as many as the keys, those at keys that are no padding."""
    q_len, k_len = like.shape[2], received.shape[1]
    there = received if q_len == k_len else received.any(1, keepdim=True)
    return there[:, None].expand(-1, like.shape[1], q_len)


def _largest_entropies(
    facts: Mapping[str, Tensor], received: Bool[Tensor, "batch k_len"]
) -> Float[Tensor, "batch 1 #q_len"]:
    """Return the entropy of a query that looks alike at all keys it may look at.

    Attention is causal if the first query looks at a single key, with every head and in every entry; then a query may
    look at itself and those before.
    """
    entropy = facts["entropy"]
    keys = received.sum(1, keepdim=True)
    if entropy.shape[2] == received.shape[1]:
        causal = _is_of_a_single_key({name: x[:, :, 0] for name, x in facts.items() if name in BY_QUERY}).all()
        keys = torch.where(causal, received.cumsum(1), keys)
    return keys.clamp(min=1).to(entropy.dtype).log()[:, None]


def _is_of_a_single_key(facts: Mapping[str, Tensor]) -> Bool[Tensor, "batch heads"]:
    """Return of which queries the entropy is that of a single key, whose weight a sink may share."""
    alone = facts["entropy"] < ZERO
    if "max_score" not in facts:
        return alone
    largest = (facts["max_score"] - facts["lse"]).exp()
    return alone | ((facts["entropy"] - torch.special.entr(largest)).abs() < ZERO)


def _together(passes: Sequence[Mapping[str, Tensor]]) -> dict[str, list[float]]:
    """Return the figures of several passes. One that is another's copy is a pass that was computed again."""
    known: dict[tuple[Any, ...], Mapping[str, Tensor]] = {}
    for one in passes:
        here = {fact: x.cpu().double() for fact, x in one.items()}
        known.setdefault(tuple(value for x in here.values() for value in x.flatten().tolist()), here)
    figures: dict[str, list[float]] = {}
    for fact in passes[0]:
        parts = torch.stack([one[fact] for one in known.values()])
        if fact in HIGHEST:
            figures[fact] = parts.amax(0).tolist()
        else:
            sums, counts = parts.sum(0)
            figures[fact] = (sums / counts.clamp(min=1)).tolist()
    return figures
