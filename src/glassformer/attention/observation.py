"""The facts that `observe` returns about attention weights: tensors, tables, a text and a picture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from glassformer.attention.want import Want
from glassformer.errors import ArgumentError
from glassformer.pictures import (
    ACCENT,
    MAIN,
    MUTED,
    PEERS,
    SECOND,
    add_bar,
    color_map,
    load_matplotlib,
    new_figure,
    style_axes,
    style_map,
    write_legend,
    write_tokens,
)


class Top(NamedTuple):
    """The largest weights of each query, largest first, and their keys, both (batch, heads, q_len, top).

    The key of a weight of zero is -1.
    """

    weights: Tensor
    keys: Tensor


class Observation:
    """Facts about attention weights, as tensors: those that were asked for.

    `Want` says what each is. A fact that wasn't wanted is an AttributeError that says how to get it. `observation[3]`
    is the Observation of one entry of the batch, without the batch axis, `observation[2:5]` that of several.

    >>> from glassformer import Want, observe
    >>> queries = keys = values = torch.zeros(2, 3, 4, 8)  # batch, heads, length, d_head
    >>> _, seen = observe(queries, keys, values, want=Want(received=True, top=2))
    >>> seen.received.shape, seen.top.weights[0, 0, 0].tolist()
    (torch.Size([2, 3, 4]), [0.25, 0.25])
    >>> len(seen), seen[0].received.shape
    (2, torch.Size([3, 4]))
    """

    entropy: Tensor
    received: Tensor
    distance: Tensor
    lse: Tensor
    max_score: Tensor
    sink: Tensor
    mass: Tensor
    agreement: Tensor
    rows: Tensor
    pooled: Tensor
    pooled_heads: Tensor
    head_mean: Tensor
    weights: Tensor

    def __init__(
        self,
        facts: dict[str, Tensor],
        want: Want,
        batch: int | None,
        tiles: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self._facts = {name: facts[name] for name in _ORDER if name in facts}
        self.want = want
        self.batch = batch
        """Number of entries; None if this is the Observation of one entry."""
        self.tiles = tiles or {}
        """How many queries and keys share a tile of pooled or pooled_heads, if `want` doesn't tell: it doesn't where
        steps of generation were added."""

    if not TYPE_CHECKING:  # else no misspelt name would be found

        def __getattr__(self, name: str) -> Tensor:
            if name in ("_facts", "want", "batch", "tiles"):  # a copy in the making has nothing yet
                raise AttributeError(name)
            if name in self._facts:
                return self._facts[name]
            if name in Want.__dataclass_fields__ and name != "row_heads":
                value = {"rows": "(0,)", "mass": "mask", "agreement": "alignment"}.get(
                    name, "True" if isinstance(getattr(Want, name), bool) else "8"
                )
                unfit = ", or not for these lengths" if name in ("rows", "mass", "agreement") else ""
                raise AttributeError(f"{name} was not asked for{unfit}: add {name}={value} to the Want that you give")
            raise AttributeError(
                f"an Observation has no {name!r}; this one has {', '.join(self.want.asked) or 'nothing'}"
            )

    @property
    def top(self) -> Top:
        """Return the largest weights of each query and their keys."""
        if "top" not in self._facts:
            raise AttributeError("top was not asked for: add top=8 to the Want that you give")
        return Top(self._facts["top"], self._facts["top_keys"])

    def __getitem__(self, entries: int | slice | Tensor | list[int]) -> "Observation":
        """Return the Observation of one entry of the batch, without its axis, or of several."""
        if self.batch is None:
            raise ArgumentError("this is the Observation of one entry already: index its tensors")
        if isinstance(entries, str):
            raise ArgumentError(
                f"an Observation is indexed by entries of the batch; its facts are attributes: .{entries}"
            )
        if isinstance(entries, int) and not isinstance(entries, bool):
            if not -self.batch <= entries < self.batch:
                raise IndexError(f"entry {entries} of a batch of {self.batch}")
            return Observation({name: x[entries] for name, x in self._facts.items()}, self.want, None, self.tiles)
        if not isinstance(entries, slice | list) and not (isinstance(entries, Tensor) and entries.dim() == 1):
            raise ArgumentError(f"an Observation is indexed by an entry, a slice or a list of them, got {entries!r}")
        chosen = torch.arange(self.batch)[entries]
        facts = {name: x[entries] for name, x in self._facts.items()}
        return Observation(facts, self.want, len(chosen), self.tiles)

    def __len__(self) -> int:
        if self.batch is None:
            raise TypeError("the Observation of one entry has no length")
        return self.batch

    def __iter__(self) -> Iterator["Observation"]:
        return (self[n] for n in range(len(self)))

    def detach(self) -> "Observation":
        """Return the same numbers without their graph."""
        facts = {name: x.detach() for name, x in self._facts.items()}
        return Observation(facts, self.want, self.batch, self.tiles)

    def to(self, device: torch.device | str) -> "Observation":
        """Return the same numbers on another device."""
        device = torch.device(device)
        facts = {name: x.to(device) for name, x in self._facts.items()}
        return Observation(facts, self.want, self.batch, self.tiles)

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by its name; top as top and top_keys."""
        return dict(self._facts)

    def to_numpy(self) -> dict[str, Any]:
        """Return every tensor by its name (top as top and top_keys) as a NumPy array, float32 in place of bfloat16."""
        return {
            name: (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().numpy()
            for name, x in self._facts.items()
        }

    def to_pandas(self) -> dict[str, Any]:
        """Return the facts as DataFrames by name: `queries`, `keys` and `heads`, each if there are facts for it.

        `queries` has a row for each entry, head and query, with the facts that are one number for each query (entropy,
        distance, lse, max_score, sink, mass) and the top weights and their keys. `keys` has a row for each entry, head
        and key, with received. `heads` has a row for each entry and head, with agreement. Maps are in none of them.
        Needs the extra `pandas`; ImportError without it.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'glassformer[pandas]'") from error
        tables: dict[str, dict[str, Any]] = {}
        sizes: dict[str, tuple[int, ...]] = {}
        for name, x in self.to_numpy().items():
            x = x if self.batch is not None else x[None]
            if name == "received" or name in BY_QUERY:
                table = "keys" if name == "received" else "queries"
                tables.setdefault(table, {})[name] = x.ravel()
            elif name in ("top", "top_keys"):
                table = "queries"
                for n in range(x.shape[-1]):
                    tables.setdefault(table, {})[f"{name}_{n + 1}"] = x[..., n].ravel()
            elif name == "agreement":
                table = "heads"
                tables[table] = {name: x.ravel()}
            else:
                continue
            sizes[table] = x.shape[: 2 if table == "heads" else 3]
        return {
            table: pd.DataFrame(
                columns,
                index=pd.MultiIndex.from_product(
                    [range(n) for n in sizes[table]],
                    names=["entry", "head", *{"queries": ["query"], "keys": ["key"], "heads": []}[table]],
                ),
            )
            for table, columns in tables.items()
        }

    def plot(self, tokens: Sequence[str] | None = None, target: Sequence[str] | None = None) -> Any:
        """Return a matplotlib Figure of one entry (the first of a batch), a panel for each fact.

        `tokens` are written along the keys, `target` along the queries; without `target`, queries that are as many as
        the keys get the keys' tokens. More than 40 along an axis, and tiles, are numbered, as all are without `tokens`.
        Needs the extra `plots`. Raises ArgumentError if there is nothing to plot, or if tokens don't fit.

        >>> from glassformer import Want, observe
        >>> q, k, v = torch.randn(3, 1, 2, 4, 8)  # 2 heads, 4 positions
        >>> _, seen = observe(q, k, v, want=Want(weights=True, entropy=True))
        >>> figure = seen.plot(["the", "dog", "was", "brown"])
        >>> [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
        ['head 0', 'head 1', 'entropy of each query, nats']
        >>> figure.savefig("seen.png")  # doctest: +SKIP
        """
        return _draw(self, tokens, target)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._facts} - {"top_keys"})

    def __repr__(self) -> str:
        if not self._facts:
            return "Observation of nothing: want=Want() asks for nothing"
        of = "one entry" if self.batch is None else f"a batch of {self.batch}"
        said = {name: _said(name, self._facts) for name in self._facts if name != "top_keys"}
        return f"Observation of {of}\n" + "\n".join(f"  {name:12} {words}" for name, words in said.items())


BY_QUERY = ("entropy", "distance", "lse", "max_score", "sink", "mass")
"""The facts that are one number for each query: (batch, heads, q_len)."""
_ORDER = (
    "entropy",
    "received",
    "distance",
    "lse",
    "max_score",
    "sink",
    "mass",
    "agreement",
    "top",
    "top_keys",
    "rows",
    "pooled",
    "pooled_heads",
    "head_mean",
    "weights",
)


_SAID_ON_AVERAGE = {  # unit, format
    "entropy": ("nats", ".2f"),
    "distance": ("positions", ".2f"),
    "sink": ("of a query's weight", ".1%"),
    "mass": ("of a query's weight", ".1%"),
    "agreement": ("of an aligned query's weight", ".1%"),
}


def _said(name: str, facts: dict[str, Tensor]) -> str:
    """Return a fact in a line: what a reader wants to know first."""
    x = facts[name].detach().float()
    size = " x ".join(map(str, x.shape))
    if not x.numel():
        return size
    if name in _SAID_ON_AVERAGE:
        words, form = _SAID_ON_AVERAGE[name]
        x = x[..., None] if name == "agreement" else x
        for score in ("lse", "max_score"):  # queries that look nowhere say nothing
            if score in facts and name != "agreement":
                x = x.masked_fill(facts[score] == -torch.inf, torch.nan)
        by_head = x.nanmean(-1) if x.dim() == 2 else x.nanmean((0, -1))
        low, high = int(by_head.nan_to_num(torch.inf).argmin()), int(by_head.nan_to_num(-torch.inf).argmax())
        range_ = ", ".join(f"head {head} {by_head[head]:{form}}" for head in dict.fromkeys((low, high)))
        return f"{x.nanmean():{form}} {words} on average; {range_}  ({size})"
    if name == "received":
        by_head = x if x.dim() == 2 else x.mean(0)
        head, key = divmod(int(by_head.argmax()), x.shape[-1])
        share = by_head[head, key] / by_head[head].sum().clamp(min=1e-30)
        return f"most by key {key} of head {head}: {share:.1%} of that head's attention  ({size})"
    if name in ("lse", "max_score"):
        seen = x[x > -torch.inf]
        return f"{seen.min():.2f} to {seen.max():.2f}  ({size})" if seen.numel() else f"nothing seen  ({size})"
    if name == "top":
        return (
            f"the first {x[..., 0].mean():.1%}, all {x.shape[-1]} {x.sum(-1).mean():.1%} of a query's weight  ({size})"
        )
    return size


_BY_HEAD = {  # title, label of the colour bar
    "entropy": ("entropy of each query, nats", "nats"),
    "distance": ("how far each query looks, positions", "positions"),
    "received": ("attention received by each key", "sum of weights"),
    "lse": ("log-sum-exp of each query's scores", "nats"),
    "max_score": ("largest score of each query", "score"),
    "sink": ("weight of each query on the first keys", "weight"),
    "mass": ("weight of each query inside the mask", "weight"),
    "top": ("largest weight of each query", "weight"),
}
_MAPS = {"pooled": "weights, mean of heads, summed in tiles", "head_mean": "weights, mean of heads"}
_MAPS_BY_HEAD = {"pooled_heads": "head {}, summed in tiles", "weights": "head {}"}
_MOST_HEADS, _MOST_LEVEL = 16, 12
"""Most heads whose maps are drawn; most tokens that are written level in a panel as wide as the figure."""
_LONGEST_SQUARE = 5
"""Maps with up to so many times more keys than queries, or the other way round, have square cells."""


class _Words(NamedTuple):
    """The tokens that are written along keys and queries; None: numbers."""

    keys: Sequence[str] | None
    queries: Sequence[str] | None


def _fit(
    tokens: Sequence[str] | None, target: Sequence[str] | None, facts: dict[str, Tensor], rows: Sequence[int]
) -> _Words:
    """Check the tokens against the facts that tell the number of keys or of queries, and the queries of `rows`."""
    keys = [facts[name].shape[-1] for name in ("received", "rows", "head_mean", "weights") if name in facts]
    queries = [facts[name].shape[-1] for name in BY_QUERY if name in facts]
    queries += [facts[name].shape[-2] for name in ("top", "head_mean", "weights") if name in facts]
    for name, given, sizes, unit in (("tokens", tokens, keys, "key"), ("target", target, queries, "query")):
        if given is None:
            continue
        if isinstance(given, str):
            raise ArgumentError(f"{name} must be a list of str, one for each {unit}, got {given!r}")
        if sizes and len(given) != sizes[0]:
            raise ArgumentError(f"{name} must be {sizes[0]} tokens, one for each {unit}, got {len(given)}")
    if tokens is not None and not keys and queries and queries[0] != len(tokens):
        raise ArgumentError(f"tokens must be {queries[0]}, one for each query: nothing that is shown has keys")
    if target is None and tokens is not None and queries[:1] == [len(tokens)]:
        target = tokens
    if target is not None and any(not -len(target) <= row < len(target) for row in rows):
        raise ArgumentError(f"target must have a token for each of the queries {rows}, got {len(target)} tokens")
    return _Words(*(None if given is None else [str(token) for token in given] for given in (tokens, target)))


def _draw(observation: Observation, tokens: Sequence[str] | None, target: Sequence[str] | None) -> Any:
    """Draw one entry (the first of a batch): maps of queries against keys, and each fact by head and position.

    Colours of maps show the weight's square root, those of `received` its logarithm: weights differ by magnitudes.
    """
    if observation.batch == 0:
        raise ArgumentError("there is nothing to plot: the batch is empty")
    entry = observation if observation.batch is None else observation[0]
    facts = {name: x.detach().float().cpu() for name, x in entry.tensors().items()}
    maps = [(title, facts[name]) for name, title in _MAPS.items() if name in facts]
    left_out = False
    for name, title in _MAPS_BY_HEAD.items():
        heads = facts.get(name, ())
        maps += [(title.format(n), head) for n, head in enumerate(heads) if n < _MOST_HEADS]
        left_out = left_out or len(heads) > _MOST_HEADS
    lines = [name for name in _BY_HEAD if name in facts]
    rows = 1 if "rows" in facts else 0
    bars = 1 if "agreement" in facts else 0
    if not (maps or lines or rows or bars):
        raise ArgumentError("there is nothing to plot: observe(..., want=Want(entropy=True, pooled=256)), say")
    words = _fit(tokens, target, facts, entry.want.rows if rows else ())
    columns = min(4, max(1, len(maps)))
    bands = -(-len(maps) // columns)
    line = 1.9 if words.keys is None and words.queries is None else 2.3
    colors = load_matplotlib("plot()").colors
    figure = new_figure("plot()", figsize=(max(8.0, 3.8 * columns), 3.6 * bands + line * (len(lines) + rows + bars)))
    low = len(lines) + rows + bars
    grid = figure.add_gridspec(bands + low, columns, height_ratios=[3.6] * bands + [line] * low)
    for n, (title, weights) in enumerate(maps):
        _draw_map(figure.add_subplot(grid[n // columns, n % columns]), title, weights, words, colors)
    for n, name in enumerate(lines):
        _draw_by_head(figure.add_subplot(grid[bands + n, :]), name, facts[name], words, colors)
    if rows:
        _draw_rows(figure.add_subplot(grid[bands + len(lines), :]), facts["rows"], entry.want.rows, words)
    if bars:
        axes = figure.add_subplot(grid[bands + len(lines) + rows, :])
        axes.bar(range(len(facts["agreement"])), facts["agreement"].numpy(), color=MAIN)
        style_axes(axes, title="weight of aligned queries on their keys", x="head", y="weight")
        axes.locator_params(axis="x", integer=True)
    shown = [f"entry 0 of {observation.batch}"] if observation.batch is not None and observation.batch > 1 else []
    shown += [f"maps of the first {_MOST_HEADS} heads"] if left_out else []
    figure.suptitle(", ".join(shown))
    return figure


def _draw_map(axes: Any, title: str, weights: Tensor, words: _Words, colors: Any) -> None:
    queries, keys = weights.shape
    square = max(queries, keys) <= _LONGEST_SQUARE * min(queries, keys)
    norm = colors.PowerNorm(0.5, vmin=0.0)
    image = axes.imshow(weights.numpy(), cmap=color_map(), norm=norm, aspect="equal" if square else "auto")
    tiled = title.endswith("tiles")
    style_map(axes, title=title, x="tile of keys" if tiled else "key", y="tile of queries" if tiled else "query")
    _whole_ticks(axes)
    if not tiled:
        write_tokens(axes.xaxis, words.keys or (), turned=True)
        write_tokens(axes.yaxis, words.queries or ())
    add_bar(image, axes, "sum of weights" if tiled else "weight", shrink=0.8)


def _draw_by_head(axes: Any, name: str, x: Tensor, words: _Words, colors: Any) -> None:
    title, unit = _BY_HEAD[name]
    x = x[..., 0] if name == "top" else x
    x = x.masked_fill(~x.isfinite(), float("nan"))
    positive = x[x > 0]
    norm = None
    if name == "received" and len(positive):  # eight magnitudes: below lies what masks and saturation leave
        high = positive.max().item()
        norm = colors.LogNorm(max(positive.min().item(), 1e-8 * high), high, clip=True)
    image = axes.imshow(x.numpy(), cmap=color_map(), norm=norm, aspect="auto", interpolation="nearest")
    style_map(axes, title=title, x="key" if name == "received" else "query", y="head")
    _whole_ticks(axes)
    along = (words.keys if name == "received" else words.queries) or ()
    write_tokens(axes.xaxis, along, turned=len(along) > _MOST_LEVEL)
    add_bar(image, axes, unit)


def _draw_rows(axes: Any, rows: Tensor, queries: Sequence[int], words: _Words) -> None:
    axes.set_prop_cycle(color=[MAIN, ACCENT, *PEERS, SECOND, MUTED])
    for n, query in enumerate(queries[:8]):
        token = f" “{words.queries[query]}”" if words.queries is not None else ""
        axes.plot(rows[:, n].mean(0).numpy(), label=f"query {query}{token}", linewidth=1.5)
    write_legend(axes)
    style_axes(axes, title="weights of single queries, mean of heads", x="key", y="weight")
    write_tokens(axes.xaxis, words.keys or (), turned=len(words.keys or ()) > _MOST_LEVEL)


def _whole_ticks(axes: Any) -> None:
    axes.locator_params(axis="x", integer=True, nbins=8)
    axes.locator_params(axis="y", integer=True, nbins=6)
