"""The state of torch in which an engine computes, whatever the caller's is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch

from glassformer.generation.engine import Engine

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def inference(device: torch.device) -> Iterator[None]:
    """Compute without gradients, and in the engine's own precision: a caller's autocast would choose another."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


def inferring(
    function: Callable[Concatenate[Engine, Arguments], Result],
) -> Callable[Concatenate[Engine, Arguments], Result]:
    """Let a function, whose first argument is an engine, compute in `inference`."""

    @wraps(function)
    def computed(engine: Engine, *arguments: Arguments.args, **settings: Arguments.kwargs) -> Result:
        with inference(engine.device):
            return function(engine, *arguments, **settings)

    return computed
