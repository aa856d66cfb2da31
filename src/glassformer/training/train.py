"""The doors of training: begin one, go on with one, or whichever is needed."""

from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from glassformer.device import attention_for_any_shape, tame_memory, use_threads
from glassformer.errors import ConfigError, RunError
from glassformer.files import remove_unfinished, write_json
from glassformer.run.config import is_run_folder, read_config
from glassformer.run.lock import check_free, held
from glassformer.run.names import CONFIG, METRICS, RESUME
from glassformer.scoring.scores import check_bleu_tokenizer
from glassformer.tracking.curves import TrackedTraining
from glassformer.tracking.session import Session
from glassformer.tracking.tracker import TrackedRun, check_tracker, chosen_tracker
from glassformer.training.advice import command_to_go_on
from glassformer.training.agreement import check_folder_agrees, check_settings_agree
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import Processes, join_processes
from glassformer.training.interruption import deferring_signals
from glassformer.training.launch import is_restarted, spans_machines
from glassformer.training.loop import TrainingLoop
from glassformer.training.prepare import prepare_run
from glassformer.training.progress import TrainingDisplay
from glassformer.training.result import TrainResult

FREE = ("device", "threads", "track")
"""Settings in which a program that is started again may differ from the first time."""
STOPPING = 60.0
"""Seconds in which a process of torchrun's last start, on another machine perhaps, has come to its end."""
NOTICING = 5.0
"""Seconds in which each machine's torchrun notices that others join, and stops its processes for that. Those that were
stopped sooner, by the word of another machine, wait for it: it would take them for failed, and count that."""


def train(config: TrainConfig, *, tracker: TrackedRun | None = None) -> TrainResult:
    """Train a model on pairs of text and leave it in the run folder `config.out` (Vaswani et al. 2017, section 5).

    Shows progress on standard error. Ctrl-C or SIGTERM saves and returns with `finished` False; whatever else ends the
    training, `resume` goes on from its last checkpoint. With `config.resume` this calls it, and takes the settings that
    aren't at their defaults for changes. `tracker`, in place of `config.track`, is the module wandb, or another object
    with `init`, `log` and `finish` (see `Tracker`). Under torchrun the processes share every batch. Changes torch's
    global seed, its number of threads if `config.threads` is given, and how the process keeps memory
    (`device.tame_memory`); while it runs, torch's attention on GPUs (`device.attention_for_any_shape`).

    Raises RunError for a run folder in the way, DataError for text that can't be used, ConfigError for settings that
    don't fit the text, DivergedError and OutOfMemoryError as their names say.

    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "pairs.tsv").write_text("a b c\\tc b a\\nb c\\tc b\\n" * 20)
    >>> files = dict(source=folder / "pairs.tsv", valid_source=folder / "pairs.tsv", out=folder / "run")
    >>> result = train(TrainConfig(**files, tokenizer="symbols", preset="tiny", max_updates=2))
    >>> result.finished, result.updates
    (True, 2)
    >>> sorted(path.name for path in result.folder.glob("*.safetensors"))
    ['model.safetensors']
    """
    if config.resume:
        return resume(config.out, tracker=tracker, **config.changes())
    check_tracker(config.track, tracker)
    tame_memory()
    use_threads(config.threads)
    with attention_for_any_shape(), join_processes(config.device) as (processes, device):
        display = TrainingDisplay(config.out / METRICS, shown=processes.first)
        check_settings_agree(config, processes)
        with processes.after_the_first():
            if processes.first and not _was_begun(config, processes.launch):
                if config.overwrite:
                    check_free(config.out)
                prepare_run(config, display.say, processes.launch)
        return _continue(config, tracker, display, processes, device)


def train_once(config: TrainConfig, *, tracker: TrackedRun | None = None) -> TrainResult:
    """Begin the training of these settings, or continue it, or return its result if it is finished.

    This is for a program that is started again after a stop, perhaps with another device, number of threads or tracker
    (see `train`). Settings that `resume` has changed since stay as it left them. It trains in one process, without
    torchrun. Raises RunError if the run folder was trained with other settings, unless `config.overwrite` is set.

    Example: docs/howto/resume.md.
    """
    if not is_begun(config):
        return train(config, tracker=tracker)
    free = {name: getattr(config, name) for name in FREE}
    return resume(config.out, tracker=tracker, **free) if _is_unfinished(config.out) else _finished(config.out)


def is_begun(config: TrainConfig) -> bool:
    """Return whether the training of these settings stands in the run folder `config.out`, finished or not.

    It may have begun with them, or have been changed to them since. Raises RunError where another one does, unless
    `config.overwrite`.
    """
    if not (config.out / CONFIG).exists():
        return False
    free = {name: getattr(config, name) for name in FREE}
    training = read_config(config.out).training
    first, latest = (
        replace(_as_config(one, config.out), overwrite=config.overwrite, **free)
        for one in (training.first_settings, training.settings)
    )
    known = config in (first, latest)
    if known or config.overwrite:
        return known
    raise RunError(
        f"{config.out} was trained with other settings ({_differences(first, config)}): give those again, or choose "
        "another folder"
    )


def _differences(before: TrainConfig, now: TrainConfig) -> str:
    """Say in which settings the two differ."""
    names = (field.name for field in fields(now))
    values = ((name, getattr(before, name), getattr(now, name)) for name in names)
    return ", ".join(f"{name} {_shown(old)}, now {_shown(new)}" for name, old, new in values if old != new)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def resume(folder: str | Path, *, tracker: TrackedRun | None = None, **changes: Any) -> TrainResult:
    """Go on with the unfinished training in a run folder from its last checkpoint, as `train` does.

    It keeps the settings that it was started with, except for `changes`, which hold from now on. Only some settings may
    be changed (limits, device, precision, learning rate, batch size: `CHANGEABLE` in `training.config`). `tracker` is
    as in `train`, and its run goes on. Raises RunError if the training is finished, or if another process trains in the
    folder, and ConfigError for other changes.

    Example: docs/howto/resume.md.
    """
    tame_memory()
    folder = Path(folder)
    config = read_settings(folder).continued(folder, changes)
    if not _is_unfinished(folder):
        if is_restarted():  # at the very end
            return _finished(folder)
        remove_unfinished(folder)  # what a training that was killed as it ended was removing
        raise RunError(
            f"the training of {folder} is complete: there is nothing to resume; to train on from its model: "
            f"{command_to_go_on(config, folder)}"
        )
    check_tracker(config.track, tracker)
    use_threads(config.threads)
    with attention_for_any_shape(), join_processes(config.device) as (processes, device):
        check_settings_agree(config, processes)
        return _continue(config, tracker, TrainingDisplay(folder / METRICS, shown=processes.first), processes, device)


def read_settings(folder: Path) -> TrainConfig:
    """Return the settings of the training of a run folder; ConfigError if another version of glassformer wrote them."""
    return _as_config(read_config(folder).training.settings, folder)


def _as_config(settings: dict[str, Any] | None, folder: Path) -> TrainConfig:
    """Return the settings that the config.json of a run folder has, with errors as `read_settings` has them."""
    if settings is None:
        raise RunError(f"{folder / CONFIG} is damaged: it has no settings of the training")
    try:
        return replace(TrainConfig.from_json(settings), out=folder)
    except ConfigError as error:
        raise ConfigError(
            f"the settings in {folder / CONFIG} do not fit this version of glassformer: {error}"
        ) from None


def read_choices(folder: Path) -> dict[str, Any]:
    """Return the settings that the data decided for the training of a run folder; RunError for unknown ones."""
    chosen = read_config(folder).training.chosen or {}
    if unknown := sorted(chosen.keys() - {field.name for field in fields(TrainConfig)}):
        raise RunError(f"{folder / CONFIG} is damaged: {unknown[0]} is no setting of a training")
    return chosen


def _continue(
    config: TrainConfig,
    tracker: TrackedRun | None,
    display: TrainingDisplay,
    processes: Processes,
    device: torch.device,
) -> TrainResult:
    """Train from the last checkpoint of a run folder on, or from the first update if it has none yet."""
    (unfinished,) = processes.agree(processes.first and _is_unfinished(config.out))
    if not unfinished:  # torchrun has started the processes again at the very end
        display.say(f"this launch of torchrun (--rdzv-id {processes.launch}) has finished the training already")
        return _finished(config.out)
    check_folder_agrees(config.out, processes)
    with ExitStack() as stack:
        with processes.after_the_first():
            if processes.first:
                check_bleu_tokenizer(config.tokenize)
                stack.enter_context(held(config.out, patience=STOPPING if processes.launch else 0.0))
                if chosen := chosen_tracker(config.track, tracker, config.out):
                    display.track(TrackedTraining(Session(chosen, config.out), config.out, _said_settings(config)))
        stack.enter_context(display)
        interruption = stack.enter_context(deferring_signals(patient=processes.size > 1, shown=processes.first))
        loop = TrainingLoop(config.settled(read_choices(config.out)), display, processes, device)
        if processes.first:
            _keep_settings(config)
        result = loop.run(interruption)
        if not result.finished and spans_machines():
            interruption.wait(NOTICING)
        return result


def _said_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a tracker shows: those of the training, with what the data decided."""
    settled = config.settled(read_choices(config.out)).to_json()
    return {name: value for name, value in settled.items() if name not in ("overwrite", "resume")}


def _is_unfinished(folder: Path) -> bool:
    return (folder / RESUME).is_dir()


def _finished(folder: Path) -> TrainResult:
    """Return what a training came to; what it was removing, if it was killed as it ended, is removed."""
    remove_unfinished(folder)
    return TrainResult.from_folder(folder)


def _was_begun(config: TrainConfig, launch: str) -> bool:
    """Return whether an earlier start of this launch has made the run folder; RunError if it had other settings."""
    if not is_run_folder(config.out):
        return False
    if not launch:
        if is_restarted():
            raise RunError(
                f"{config.out} exists, and torchrun has started its processes again: without an --rdzv-id it can't be "
                "known whether this launch of torchrun began that run; give torchrun an --rdzv-id"
            )
        return False
    if read_config(config.out).training.launch != launch:
        return False
    before = replace(read_settings(config.out), overwrite=config.overwrite)
    if others := _differences(before, config):
        raise RunError(
            f"{config.out} was begun by this launch of torchrun (--rdzv-id {launch}) with other settings ({others}): "
            "give all machines the same, or for another training another --rdzv-id"
        )
    return True


def _keep_settings(config: TrainConfig) -> None:
    """Write changed settings into the run folder: another resume continues with them."""
    saved = read_config(config.out)
    started = _as_config(saved.training.settings, config.out)
    before, now = (one.continued(config.out, {}).to_json() for one in (started, config))
    if changed := {name: value for name, value in before.items() if value != now[name]}:
        training = structs.replace(
            saved.training, settings=config.to_json(), begun_with=changed | (saved.training.begun_with or {})
        )
        write_json(config.out / CONFIG, structs.replace(saved, training=training).to_json())
