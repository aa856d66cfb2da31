"""What `observe` found out about attention weights."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from glassformer.attention.want import Want
from glassformer.errors import ArgumentError


class Top(NamedTuple):
    """The largest weights of each query, largest first, and their keys (-1 where the weight is zero): both (batch,
    heads, q_len, top)."""

    weights: Tensor
    keys: Tensor


class Observation:
    """Facts about attention weights: those asked for, as tensors. `Want` says what each is; asking one that wasn't
    wanted is an AttributeError that says how to get it.

    `observation[3]` is that of one entry of the batch, without the batch axis, `observation[2:5]` of several.
    """

    entropy: Tensor
    received: Tensor
    distance: Tensor
    lse: Tensor
    rows: Tensor
    pooled: Tensor
    pooled_heads: Tensor
    head_mean: Tensor
    weights: Tensor

    def __init__(self, found: dict[str, Tensor], want: Want, batch: int | None) -> None:
        self._found = {name: found[name] for name in _ORDER if name in found}
        self.want = want
        self.batch = batch
        """How many entries; None of what was indexed by one."""

    if not TYPE_CHECKING:  # else no misspelt name would be found

        def __getattr__(self, name: str) -> Tensor:
            if name in ("_found", "want", "batch"):  # a copy in the making has nothing yet
                raise AttributeError(name)
            if name in self._found:
                return self._found[name]
            if name in Want.__dataclass_fields__ and name != "row_heads":
                value = {"rows": "(0,)"}.get(name, "True" if isinstance(getattr(Want, name), bool) else "8")
                raise AttributeError(f"{name} was not asked for: observe(..., want=Want({name}={value}))")
            raise AttributeError(
                f"an Observation has no {name!r}; this one has {', '.join(self.want.asked) or 'nothing'}"
            )

    @property
    def top(self) -> Top:
        """The largest weights of each query and their keys."""
        if "top" not in self._found:
            raise AttributeError("top was not asked for: observe(..., want=Want(top=8))")
        return Top(self._found["top"], self._found["top_keys"])

    def __getitem__(self, entries: int | slice | Tensor | list[int]) -> "Observation":
        """Of one entry of the batch, without its axis, or of several."""
        if self.batch is None:
            raise ArgumentError("this is the Observation of one entry already: index its tensors")
        if isinstance(entries, str):
            raise ArgumentError(
                f"an Observation is indexed by entries of the batch; its facts are attributes: .{entries}"
            )
        if isinstance(entries, int) and not isinstance(entries, bool):
            if not -self.batch <= entries < self.batch:
                raise IndexError(f"entry {entries} of a batch of {self.batch}")
            return Observation({name: x[entries] for name, x in self._found.items()}, self.want, None)
        if not isinstance(entries, slice | list) and not (isinstance(entries, Tensor) and entries.dim() == 1):
            raise ArgumentError(f"an Observation is indexed by an entry, a slice or a list of them, got {entries!r}")
        chosen = torch.arange(self.batch)[entries]
        found = {name: x[entries] for name, x in self._found.items()}
        return Observation(found, self.want, len(chosen))

    def __len__(self) -> int:
        if self.batch is None:
            raise TypeError("the Observation of one entry has no length")
        return self.batch

    def __iter__(self) -> Iterator["Observation"]:
        return (self[n] for n in range(len(self)))

    def detach(self) -> "Observation":
        """The same numbers without their graph."""
        return Observation({name: x.detach() for name, x in self._found.items()}, self.want, self.batch)

    def to(self, device: torch.device | str) -> "Observation":
        """The same numbers on another device."""
        device = torch.device(device)
        return Observation({name: x.to(device) for name, x in self._found.items()}, self.want, self.batch)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name; top as top and top_keys."""
        return dict(self._found)

    def to_numpy(self) -> dict[str, Any]:
        """Every tensor by its name (top as top and top_keys) as a NumPy array, float32 in place of bfloat16."""
        return {
            name: (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().numpy()
            for name, x in self._found.items()
        }

    def to_pandas(self) -> dict[str, Any]:
        """DataFrames: `queries`, with a row for each batch entry, head and query (entropy, distance, lse, the top
        weights and keys), and `keys`, with one for each key (received). Maps have none. Needs the extra `pandas`."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'glassformer[pandas]'") from error
        tables: dict[str, dict[str, Any]] = {}
        sizes: dict[str, tuple[int, ...]] = {}
        for name, x in self.to_numpy().items():
            x = x if self.batch is not None else x[None]
            if name in ("entropy", "distance", "lse", "received"):
                table = "keys" if name == "received" else "queries"
                tables.setdefault(table, {})[name] = x.ravel()
            elif name in ("top", "top_keys"):
                table = "queries"
                for n in range(x.shape[-1]):
                    tables.setdefault(table, {})[f"{name}_{n + 1}"] = x[..., n].ravel()
            else:
                continue
            sizes[table] = x.shape[:3]
        return {
            table: pd.DataFrame(
                columns,
                index=pd.MultiIndex.from_product(
                    [range(n) for n in sizes[table]],
                    names=["entry", "head", "query" if table == "queries" else "key"],
                ),
            )
            for table, columns in tables.items()
        }

    def plot(self) -> Any:
        """A matplotlib Figure of one entry (the first of a batch), a panel for each fact. Needs the extra `plots`."""
        from glassformer.attention.plot import plot

        return plot(self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._found} - {"top_keys"})

    def __repr__(self) -> str:
        if not self._found:
            return "Observation of nothing: want=Want() asks for nothing"
        of = "one entry" if self.batch is None else f"a batch of {self.batch}"
        said = {name: _said(name, self._found) for name in self._found if name != "top_keys"}
        return f"Observation of {of}\n" + "\n".join(f"  {name:12} {words}" for name, words in said.items())


_ORDER = (
    "entropy",
    "received",
    "distance",
    "lse",
    "top",
    "top_keys",
    "rows",
    "pooled",
    "pooled_heads",
    "head_mean",
    "weights",
)


def _said(name: str, found: dict[str, Tensor]) -> str:
    """A fact in a line: what a reader looks for first."""
    x = found[name].detach().float()
    size = " x ".join(map(str, x.shape))
    if not x.numel():
        return size
    if name in ("entropy", "distance"):
        unit = "nats" if name == "entropy" else "positions"
        if "lse" in found:  # queries that look nowhere say nothing
            x = x.masked_fill(found["lse"] == -torch.inf, torch.nan)
        by_head = x.nanmean(-1) if x.dim() == 2 else x.nanmean((0, -1))
        low, high = int(by_head.nan_to_num(torch.inf).argmin()), int(by_head.nan_to_num(-torch.inf).argmax())
        range_ = f"head {low} {by_head[low]:.2f}, head {high} {by_head[high]:.2f}"
        return f"{x.nanmean():.2f} {unit} on average; {range_}  ({size})"
    if name == "received":
        by_head = x if x.dim() == 2 else x.mean(0)
        head, key = divmod(int(by_head.argmax()), x.shape[-1])
        share = by_head[head, key] / by_head[head].sum().clamp(min=1e-30)
        return f"most by key {key} of head {head}: {share:.1%} of that head's attention  ({size})"
    if name == "lse":
        seen = x[x > -torch.inf]
        return f"{seen.min():.2f} to {seen.max():.2f}  ({size})" if seen.numel() else f"nothing seen  ({size})"
    if name == "top":
        return (
            f"the first {x[..., 0].mean():.1%}, all {x.shape[-1]} {x.sum(-1).mean():.1%} of a query's weight  ({size})"
        )
    return size
