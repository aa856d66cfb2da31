"""Checks that all processes of a training have the same settings, run folder and checkpoint, on all machines."""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from glassformer.decoding import decode_json
from glassformer.errors import ConfigError, GlassformerError, RunError
from glassformer.run.names import CHECKSUMS, CONFIG, RESUME
from glassformer.training.config import TrainConfig
from glassformer.training.distributed import Processes

TRIES = 30
"""Looks at a folder, a second apart, until it is what the first process sees: a network file system may lag behind."""
OWN = (
    "out",
    "source",
    "target",
    "valid_source",
    "valid_target",
    "from_",
    "device",
    "threads",
    "overwrite",
    "resume",
    "track",
)
"""Settings in which machines may differ: paths, which only the first process reads, and what each computes on."""


def check_settings_agree(config: TrainConfig, processes: Processes) -> None:
    """Raise ConfigError unless all processes were started with the same settings, but for those of `OWN`."""
    if processes.size == 1:
        return
    given = processes.gather([json.dumps(config.to_json())])
    settings = [decode_json(each.encode(), dict[str, object]) for each in given]
    names = [field.name for field in fields(TrainConfig) if field.name not in OWN]
    others = [(rank, name) for name in names for rank, each in enumerate(settings) if each[name] != settings[0][name]]
    if others:
        rank, name = others[0]
        _fail(
            processes,
            ConfigError(
                f"all processes need the same settings: {name} is {settings[0][name]} for the first and "
                f"{settings[rank][name]} for process {rank}: start torchrun with the same command on every machine"
            ),
        )


def check_folder_agrees(folder: Path, processes: Processes) -> None:
    """Raise RunError unless all processes see the run that the first sees in this folder."""
    if processes.size == 1:
        return
    marks = _until_agreed(processes, lambda: _mark(folder), lambda marks: len(set(marks)) == 1)
    if other := next((rank for rank, mark in enumerate(marks) if mark != marks[0]), None):
        hosts = _hosts(processes)
        sees = "another run" if marks[other] else "no run"
        _fail(
            processes,
            RunError(
                f"process {other} on {hosts[other]} sees {sees} in {folder}, where the first, on {hosts[0]}, has its "
                "own: all machines need the same folder, on a file system that they share"
            ),
        )


def common_updates(
    folder: Path, processes: Processes, read: Callable[[], Mapping[str, str]]
) -> tuple[set[int], list[str]]:
    """Return the updates of the checkpoints in `folder` that all processes see, and a sentence on each that is newer.

    `read` gives what identifies each that this process sees, by its update. Raises RunError where some are there, and
    none that all see.
    """
    said = _until_agreed(processes, lambda: json.dumps(dict(read())), lambda said: _newest_is_common(_decoded(said)))
    seen = _decoded(said)
    common = _common(seen)
    if not common and any(seen):
        hosts = _hosts(processes)
        lists = (
            f"process {rank} on {hosts[rank]} {', '.join(sorted(each, key=int)) or 'none'}"
            for rank, each in enumerate(seen)
        )
        _fail(
            processes,
            RunError(
                f"there is no checkpoint in {folder} that all processes see, of the updates: {'; '.join(lists)}. All "
                "machines need the same folder, on a file system that they share"
            ),
        )
    newer = sorted(int(update) for update in seen[0] if int(update) > max(common, default=0))
    missing = [
        f"the checkpoint of update {update:,} in {folder} is not seen by all processes; going on from before it"
        for update in newer
    ]
    return common, missing


def _until_agreed(processes: Processes, say: Callable[[], str], agreed: Callable[[list[str]], bool]) -> list[str]:
    """Gather what each process says until it is agreed upon; return what was said last."""
    said = processes.gather([say()])
    for _ in range(TRIES - 1):
        if agreed(said):
            break
        time.sleep(1)
        said = processes.gather([say()])
    return said


def _mark(folder: Path) -> str:
    """Return a digest of what identifies a run: its settings and its data; an empty text where there is none."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        digest.update((folder / CONFIG).read_bytes())
        if (folder / RESUME / CHECKSUMS).exists():
            digest.update((folder / RESUME / CHECKSUMS).read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()


def _decoded(said: Sequence[str]) -> list[dict[str, str]]:
    return [decode_json(each.encode(), dict[str, str]) for each in said]


def _common(seen: Sequence[Mapping[str, str]]) -> set[int]:
    """Return the updates that all see, and as the same checkpoint."""
    return {int(update) for update, mark in seen[0].items() if all(each.get(update) == mark for each in seen)}


def _newest_is_common(seen: Sequence[Mapping[str, str]]) -> bool:
    newest = max((int(update) for each in seen for update in each), default=None)
    return newest is None or newest in _common(seen)


def _hosts(processes: Processes) -> list[str]:
    return processes.gather([platform.node()])


def _fail(processes: Processes, error: GlassformerError) -> None:
    """Raise the error in the first process; the others end quietly."""
    with processes.after_the_first():
        if processes.first:
            raise error
