"""The dtype that torch's autocast gives to attention."""

import torch
from torch import Tensor


def cast_as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in the dtype that autocast gives to attention where it is on, else as they are.

    Where one of them is float64 or holds whole numbers, none is changed.
    """
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    if any(not x.is_floating_point() or x.dtype == torch.float64 for x in tensors):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)
