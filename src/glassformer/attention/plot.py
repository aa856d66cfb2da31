"""Pictures of an Observation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from glassformer.errors import ArgumentError

if TYPE_CHECKING:
    from glassformer.attention.observation import Observation

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("plot() needs matplotlib: pip install 'glassformer[plots]'") from error

_BY_HEAD = {  # title, what is along the horizontal axis
    "entropy": ("entropy of each query, nats", "query"),
    "distance": ("how far a query looks, positions", "query"),
    "received": ("attention received by each key", "key"),
    "lse": ("log-sum-exp of each query's scores", "query"),
    "top": ("largest weight of each query", "query"),
}
_MAPS = {"pooled": "weights, mean of heads, summed in tiles", "head_mean": "weights, mean of heads"}
_MAPS_BY_HEAD = {"pooled_heads": "head {}, summed in tiles", "weights": "head {}"}
_MOST_HEADS = 16


def plot(seen: "Observation") -> Figure:
    """A figure of one entry (the first of a batch): maps of queries against keys, and each fact by head and position.

    Colours of maps are of the weight's square root, those of `received` logarithmic: weights differ by magnitudes.
    """
    if seen.batch == 0:
        raise ArgumentError("there is nothing to plot: the batch is empty")
    entry = seen if seen.batch is None else seen[0]
    found = {name: x.detach().float().cpu() for name, x in entry.tensors().items()}
    maps = [(title, found[name]) for name, title in _MAPS.items() if name in found]
    left_out = False
    for name, title in _MAPS_BY_HEAD.items():
        heads = found.get(name, ())
        maps += [(title.format(n), head) for n, head in enumerate(heads) if n < _MOST_HEADS]
        left_out = left_out or len(heads) > _MOST_HEADS
    lines = [name for name in _BY_HEAD if name in found]
    rows = 1 if "rows" in found else 0
    if not (maps or lines or rows):
        raise ArgumentError("there is nothing to plot: observe(..., want=Want(entropy=True, pooled=256)), say")
    columns = min(4, max(1, len(maps)))
    bands = -(-len(maps) // columns)
    figure = Figure(figsize=(max(8.0, 3.6 * columns), 3.4 * bands + 1.9 * (len(lines) + rows)), layout="constrained")
    grid = figure.add_gridspec(
        bands + len(lines) + rows, columns, height_ratios=[3.4] * bands + [1.9] * (len(lines) + rows)
    )
    for n, (title, weights) in enumerate(maps):
        _draw_map(figure.add_subplot(grid[n // columns, n % columns]), title, weights)
    for n, name in enumerate(lines):
        _draw_by_head(figure.add_subplot(grid[bands + n, :]), name, found[name])
    if rows:
        _draw_rows(figure.add_subplot(grid[bands + len(lines), :]), found["rows"], entry.want.rows)
    shown = [f"entry 0 of {seen.batch}"] if seen.batch is not None and seen.batch > 1 else []
    shown += [f"maps of the first {_MOST_HEADS} heads"] if left_out else []
    figure.suptitle(", ".join(shown))
    return figure


def _draw_map(axes: Axes, title: str, weights: Tensor) -> None:
    image = axes.imshow(weights.numpy(), cmap="magma", norm=PowerNorm(0.5, vmin=0.0), aspect="auto")
    tiled = title.endswith("tiles")
    axes.set(title=title, xlabel="tile of keys" if tiled else "key", ylabel="tile of queries" if tiled else "query")
    _whole_ticks(axes)
    axes.figure.colorbar(image, ax=axes)


def _draw_by_head(axes: Axes, name: str, x: Tensor) -> None:
    title, along = _BY_HEAD[name]
    x = x[..., 0] if name == "top" else x
    x = x.masked_fill(~x.isfinite(), float("nan"))
    positive = x[x > 0]
    norm = None
    if name == "received" and len(positive):  # eight magnitudes: below lies what masks and saturation leave
        high = positive.max().item()
        norm = LogNorm(max(positive.min().item(), 1e-8 * high), high, clip=True)
    image = axes.imshow(x.numpy(), cmap="viridis", norm=norm, aspect="auto", interpolation="nearest")
    axes.set(title=title, xlabel=along, ylabel="head")
    _whole_ticks(axes)
    axes.figure.colorbar(image, ax=axes)


def _draw_rows(axes: Axes, rows: Tensor, queries: Sequence[int]) -> None:
    for n, query in enumerate(queries[:8]):
        axes.plot(rows[:, n].mean(0).numpy(), label=f"query {query}", linewidth=1)
    axes.set(title="weights of single queries, mean of heads", xlabel="key", ylabel="weight")
    axes.legend(fontsize="small")


def _whole_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
