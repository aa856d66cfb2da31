"""The best of many classes, without sorting them."""

from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 128
_FROM_CLASSES = 32 * BLOCK


def top(scores: Float[Tensor, "rows classes"], k: int) -> tuple[Float[Tensor, "rows {k}"], Int[Tensor, "rows {k}"]]:
    """The k highest scores of each row, highest first, and their classes.

    The best k lie in the k blocks of 128 classes with the highest maxima, so only those are looked through: on a CPU a
    third of the time of torch.topk over 32,000 classes. The number of classes must be a multiple of 128, or small.
    """
    rows, classes = scores.shape
    if scores.device.type != "cpu" or classes < _FROM_CLASSES or classes % BLOCK or k >= classes // BLOCK:
        best, index = scores.topk(k)
        return best, index
    blocks = scores.view(rows, classes // BLOCK, BLOCK)
    maxima = blocks.amax(-1)
    chosen = maxima.argmax(-1, keepdim=True) if k == 1 else maxima.topk(k).indices
    candidates = blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    best, place = candidates.max(-1, keepdim=True) if k == 1 else candidates.topk(k)
    return best, chosen.gather(1, place // BLOCK) * BLOCK + place % BLOCK
