"""What training needs to go on where it stopped, and the weights it averages. All of it safetensors.

resume/state.safetensors          weights, optimizer and counters of the last save
resume/snapshot-<update>.safetensors   weights at each of the last validations
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from glassformer.errors import RunError
from glassformer.files import write_tensors
from glassformer.run import read_weights
from glassformer.transformer.model import Transformer


@dataclass
class Position:
    """How far training has come. Batches and dropout follow from the seed and these numbers."""

    update: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch already done."""
    seconds: float = 0.0
    """Time spent training and validating."""
    best: list[float] | None = None
    """The best validation so far: score (its sign such that higher is better) and minus the loss."""
    validated: int = 0
    """The update of the last validation."""
    since_best: int = 0
    """Validations since then."""


def save_state(folder: Path, model: Transformer, optimizer: torch.optim.Optimizer, position: Position) -> None:
    """Write `state.safetensors`, whole or not at all."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in values.items()}
    write_tensors(folder / "state.safetensors", tensors, {"position": json.dumps(asdict(position))})


def load_state(folder: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> Position:
    """Put the saved state into model and optimizer. Without one, training starts from its beginning."""
    path = folder / "state.safetensors"
    if not path.exists():
        return Position()
    tensors = read_weights(path)
    with safe_open(path, framework="pt") as file:
        position = Position(**json.loads(file.metadata()["position"]))
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return position


def save_snapshot(folder: Path, weights: Mapping[str, Tensor], update: int, keep: int) -> None:
    """Write the weights of this update; of the earlier snapshots the last `keep` - 1 stay."""
    write_tensors(folder / f"snapshot-{update:09d}.safetensors", weights)
    for old in snapshots(folder)[:-keep]:
        old.unlink()


def snapshots(folder: Path) -> list[Path]:
    """The snapshots, oldest first."""
    return sorted(folder.glob("snapshot-*.safetensors"))


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of these weights (Vaswani et al. 2017, section 6.1), summed in float64."""
    if not paths:
        raise RunError("there are no checkpoints to average: training has not reached a validation")
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_weights(path).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}
