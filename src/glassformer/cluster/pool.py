"""The cluster, and the workers that fit into it."""

import os
import platform
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import current_thread, main_thread
from typing import Any

import ray
import ray.data
import torch
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from glassformer.cluster.config import ClusterConfig
from glassformer.device import pick_device
from glassformer.errors import ConfigError
from glassformer.generation.engines.precision import Precision, pick_generation_precision

AUTO, LOCAL = "auto", "local"
ANSWER_SECONDS = 10.0
"""Seconds within which a cluster must answer: Ray itself would wait for minutes."""
STORE = 1 << 29
"""Bytes of the object store of a cluster that is started here, besides the run."""


@dataclass(frozen=True)
class Pool:
    """The workers of a cluster, all alike."""

    workers: int
    cores: int
    device: str
    """cpu or cuda: of the second each worker has one."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of each worker."""
        return int(self.device == "cuda")

    def map_batches(
        self, dataset: "ray.data.Dataset", worker: type[Any], arguments: Sequence[Any], batch_size: int
    ) -> "ray.data.Dataset":
        """Return the Dataset of what workers of this class, made with these arguments, make of each Arrow batch."""
        return dataset.map_batches(
            worker,
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=self.workers),
            fn_constructor_args=arguments,
            num_cpus=self.cores,
            num_gpus=self.gpus,
        )


@contextmanager
def connected(config: ClusterConfig, room: int) -> Iterator[None]:
    """Connect to the cluster, or stay connected where the program is; a cluster that is started here ends here.

    Its object store has `room` for so many bytes besides the blocks that wait.
    """
    if ray.is_initialized():
        yield
        return
    with keeping_sigterm():
        _connect(config.cluster or AUTO, room)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str, room: int) -> None:
    """Connect to the cluster at an address, or start one here; ConfigError where there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    quiet: dict[str, Any] = {"configure_logging": True, "logging_level": "error"}
    if address != LOCAL:
        try:
            if address != AUTO:
                _check_answers(address)
            ray.init(address=address, **quiet)
            return
        except (OSError, OverflowError, RayError, ValueError) as error:
            if address != AUTO:
                raise ConfigError(f"there is no Ray cluster at {address} ({error}): is the address right?") from None
    ray.init(address=LOCAL, include_dashboard=False, object_store_memory=STORE + room, **quiet)


def _check_answers(address: str) -> None:
    """Raise OSError, OverflowError or ValueError where nothing listens at an address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()


@contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Put back what SIGTERM did before: Ray lets it end the program in its own way, also after Ray has been ended."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if current_thread() is main_thread():
            signal.signal(signal.SIGTERM, before)


def pick_pool(config: ClusterConfig, device: str) -> Pool:
    """Return as many workers as the settings say, or as fit into the cluster; ConfigError where none fits."""
    kind = device.partition(":")[0]
    if kind not in (AUTO, "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda on a cluster, got {device}")
    if kind == AUTO:
        kind = "cuda" if any(gpus for _, gpus in _machines()) else "cpu"
    fitting = _fitting(config.cores, kind)
    if not fitting or config.workers > fitting:
        all_cores, all_gpus = ([machine[place] for machine in _machines()] for place in (0, 1))
        raise ConfigError(
            f"workers must be at most {fitting}, as many as have room with {config.cores} cores each on {kind}, got "
            f"{config.workers or 1}: the cluster has {sum(all_cores)} cores, at most {max(all_cores, default=0)} on "
            f"one machine, and {sum(all_gpus)} GPUs: lower `workers` or `cores`"
        )
    return Pool(config.workers or fitting, config.cores, kind)


def shrunk(pool: Pool) -> Pool:
    """Return the pool with as many of its workers as fit into what is left of the cluster, at least one."""
    return replace(pool, workers=max(1, min(pool.workers, _fitting(pool.cores, pool.device))))


def _fitting(cores: int, device: str) -> int:
    """Return how many workers of so many cores fit into the cluster, each on one machine."""
    return sum(min(gpus, there // cores) if device == "cuda" else there // cores for there, gpus in _machines())


def _machines() -> list[tuple[int, int]]:
    """Return the number of cores and of GPUs of each machine of the cluster."""
    found = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    return [(int(there.get("CPU", 0)), int(there.get("GPU", 0))) for there in found]


def _is_here() -> bool:
    """Return whether the cluster is on this machine alone."""
    return all(machine["NodeManagerHostname"] == platform.node() for machine in ray.nodes() if machine["Alive"])


def pick_worker_precision(pool: Pool, precision: str) -> Precision:
    """Return the precision that all workers compute in: what `auto` picks on one of them, or the one of this name.

    Workers that lack it end with an error, so that no two blocks are translated in different ones.
    """
    if pool.device == "cpu" and _is_here():  # a process there would load torch first, for seconds
        found = _pick(precision, pool.device)
    else:
        pick = ray.remote(num_cpus=pool.cores, num_gpus=pool.gpus)(_pick)
        found = ray.get(pick.remote(precision, pool.device))
    if isinstance(found, str):
        raise ConfigError(found)
    return found


def _pick(precision: str, device: str) -> Precision | str:
    """Return the precision on this machine, or the message that says why it can't be."""
    try:
        return pick_generation_precision(precision, pick_device(device), torch.float32)
    except ConfigError as error:
        return str(error)
