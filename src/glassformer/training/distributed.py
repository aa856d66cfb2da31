"""The processes that train together under torchrun, and what they tell each other. No pickle is sent."""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from glassformer.decoding import decode_message
from glassformer.device import pick_device
from glassformer.errors import ConfigError, RunError, abridged
from glassformer.training.launch import launch_id, meet, outlives_starts
from glassformer.training.objective import Objective
from glassformer.transformer.model import Transformer

Item = TypeVar("Item")

PATIENCE = timedelta(minutes=10)
"""Time after which a process that says nothing is taken for lost: a machine without power closes no connection."""
LONG_WORK = timedelta(days=7)
"""The same while the first process works alone, on the preparation of a corpus, say."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; by default it is alone."""

    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None
    """The group for what concerns the processes rather than their devices, so that asking doesn't wait for a GPU."""
    patient: dist.ProcessGroup | None = None
    """The group in which the others wait for long work of the first process."""
    launch: str = ""
    """The id of the launch that started the processes (see `launch_id`)."""

    @property
    def first(self) -> bool:
        """Return whether this process talks to the terminal and writes the run folder."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """Return this process's part of the items; of items sorted by size all get parts of about the same size."""
        return list(items[self.rank :: self.size])

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over all processes, and return it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """Replace each number of `tensor` by the largest that any process has, and return it."""
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def agree(self, *values: int | float) -> list[float]:
        """Return of each value the largest that any process gives, so that all of them go on with the same ones."""
        return self._largest(values, self.control)

    def _largest(self, values: Sequence[int | float], group: dist.ProcessGroup | None) -> list[float]:
        if self.size == 1:
            return [float(value) for value in values]
        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        return largest.tolist()

    @contextmanager
    def after_the_first(self) -> Iterator[None]:
        """Let the first process finish what it does inside before the others leave; if it fails, they end quietly."""
        try:
            yield
        except BaseException:
            self._largest([1], self.patient)
            raise
        if self._largest([0], self.patient) != [0]:
            raise SystemExit(2)

    def add(self, *values: int | float) -> list[float]:
        """Return of each value the sum over all processes."""
        if self.size == 1:
            return [float(value) for value in values]
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums, group=self.control)
        return sums.tolist()

    def gather(self, lines: Sequence[str]) -> list[str]:
        """Return all lines in their order, of which each process brings its `share`."""
        if self.size == 1:
            return list(lines)
        own = torch.frombuffer(bytearray(json.dumps(lines).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]), group=self.control)
        parts = [torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8) for _ in sizes]
        padded = torch.zeros_like(parts[0])
        padded[: len(own)] = own
        dist.all_gather(parts, padded, group=self.control)
        shares = [decode_message(part[: int(size)].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]
        gathered = [""] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            gathered[rank :: self.size] = share
        return gathered


ALONE = Processes()


@contextmanager
def join_processes(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun started (without it, this one is alone); yield them and this one's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes(launch=launch_id()), pick_device(device)
        return
    if missing := {"RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():
        raise ConfigError(
            f"WORLD_SIZE is set, but not {', '.join(sorted(missing))}: start several processes with torchrun"
        )
    picked = pick_device(device)
    if picked.type == "mps":
        raise ConfigError("several processes can't share an Apple GPU: leave torchrun out, or give --device cpu")
    if picked.type == "cuda":
        picked = pick_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(picked)
    store, rank, size = next(iter(rendezvous("env://")))
    launch = launch_id(store)
    if outlives_starts():
        store = meet(store, rank, size)
    backend = "nccl" if picked.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    control, patient = (dist.new_group(backend="gloo", timeout=timeout) for timeout in (PATIENCE, LONG_WORK))
    assert isinstance(control, dist.ProcessGroup)
    assert isinstance(patient, dist.ProcessGroup)
    try:
        yield Processes(rank, size, control, patient, launch), picked
    except RuntimeError as error:
        if not _is_loss_of_process(error):
            raise
        place, _, reason = str(error).splitlines()[0].partition("] ")  # torch's own source file comes first
        raise RunError(
            f"process {rank} of {size} has lost another one ({abridged(reason or place)}): torchrun starts them again, "
            "from the last checkpoint, as often as its --max-restarts allows; afterwards --resume goes on"
        ) from None
    dist.destroy_process_group()  # not after an error: the others, who must take part, may not know of it


def _is_loss_of_process(error: RuntimeError) -> bool:
    """Return whether this is torch's error about another process that is gone, or says nothing any more."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def replicate_weights(objective: Objective) -> DistributedDataParallel:
    """Give every process all weights and a part of each batch (DDP); gradients become means over the processes."""
    with warnings.catch_warnings():  # torch 2.13 has a new name for it, 2.11 has not
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
        return DistributedDataParallel(objective, broadcast_buffers=False, gradient_as_bucket_view=True)


def shard_weights(objective: Objective, device: torch.device, dtype: torch.dtype) -> Objective:
    """Give every process a part of each weight, of its gradient and of its optimizer's state (FSDP2).

    A layer's weights are gathered while it is at work, in `dtype`, that of the products: gathered in float32, autocast
    would make short copies of them, which stay until the backward pass. Gradients become means over the processes, in
    float32. Embeddings and output are gathered as they are.
    """
    # It is about the keys and values that `start` returns: nothing is done to them in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = objective.model
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in (*model.encoder, *model.decoder):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    for layer in model.decoder:
        register_fsdp_forward_method(layer, "start")
    fully_shard(objective, mesh=mesh)
    return objective


@contextmanager
def accumulating(objective: torch.nn.Module, *, last: bool) -> Iterator[None]:
    """Keep the gradients of a backward pass in the process, to add those of the next to them, unless it is the last."""
    if isinstance(objective, DistributedDataParallel) and not last:
        with objective.no_sync():
            yield
        return
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(last)
    yield


def local_rows(tensor: Tensor) -> Tensor:
    """Return the rows of a tensor that this process has: all of them unless it is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor) -> int:
    """Return the number of the first row of a tensor that this process has: 0 unless it is sharded."""
    if not isinstance(tensor, DTensor):
        return 0
    mesh = tensor.device_mesh
    rows = tensor.shape[0]
    return min(mesh.get_local_rank() * -(-rows // mesh.size()), rows)


def gather_rows(tensor: Tensor) -> Tensor:
    """Return all rows of a tensor; every process must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def join_rows(rows: Tensor, tensor: Tensor) -> Tensor:
    """Return all rows, of which each process brings those that it has of `tensor`; every process must call it."""
    if not isinstance(tensor, DTensor):
        return rows
    mesh, placements = tensor.device_mesh, tensor.placements
    shape, stride = tensor.shape, tensor.stride()
    return DTensor.from_local(rows, mesh, placements, run_check=False, shape=shape, stride=stride).full_tensor()


def gather_weights(model: Transformer, device: torch.device) -> Transformer:
    """Return a model with all weights: the same one, or if it is sharded a copy on the device, in every process."""
    state = model.state_dict()
    if not any(isinstance(tensor, DTensor) for tensor in state.values()):
        return model
    copy = Transformer(model.config)
    copy.load_state_dict({name: gather_rows(tensor).cpu() for name, tensor in state.items()})
    return copy.to(device)
