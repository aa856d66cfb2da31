"""The public function `page`: attention as one HTML file that needs no network, or as a view in a notebook."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import ArgumentError
from glassformer.files import replacing
from glassformer.insight.heads import Head
from glassformer.page import assets
from glassformer.page.packed import NO_POSITION, PackedTensors
from glassformer.page.views import ADVICE, Axes, HypothesisViews, Seen, View, collect_hypotheses

EXACT_UP_TO = 50_000
"""Up to this many numbers in all, a page holds 32-bit floats; beyond that, 16 bits of each."""
MOST_WEIGHTS = 4_000_000
"""Most weights and tiles that a page holds in all."""
MOST_NUMBERS = 1 << 26
"""Most numbers of all facts that a page holds: no browser shows a larger one."""


@dataclass(frozen=True)
class Page:
    """A page that shows attention. `save` writes it; in a notebook it shows itself (extra `notebook`).

    >>> page(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), ["the", "dog"]).html()[:15]
    '<!doctype html>'
    """

    title: str
    data: bytes = field(repr=False)
    """The content of the page, in the format of `packed`."""

    def html(self) -> str:
        """Return the page as one HTML document, which loads nothing else."""
        return assets.document().format(
            title=html.escape(self.title),
            css=assets.style(),
            script=assets.script(),
            data=base64.b64encode(self.data).decode(),
        )

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all; return its path. Raises DataError if there is no such folder."""
        with replacing(Path(path)) as file:
            file.write(self.html().encode(errors="replace"))
        return Path(path)

    def widget(self) -> Any:
        """Return the page as a Jupyter widget (anywidget). Needs the extra `notebook`."""
        from glassformer.page.widget import make_widget

        return make_widget(self.data)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        try:
            return self.widget()._repr_mimebundle_(**options)
        except ImportError as error:
            return {"text/plain": f"{self!r}\n{error}; or write it with save('page.html')"}


def page(
    seen: Seen,
    tokens: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    title: str | None = None,
    entry: int = 0,
    grid: tuple[int, int] | None = None,
    image: Tensor | None = None,
    heads: Sequence[Head] = (),
) -> Page:
    """Return a page that shows what `capture` or `observe` recorded, plain weights, or translations with attention.

    Of several attentions that were observed, give a dict with a name for each.

    Weights are (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys); also (queries, keys, batch,
    heads), as the sequence-first `glassformer.reference.MultiHeadAttention` keeps them: the axis over which they sum to
    1 is that of the keys. A list or tuple has the weights of a layer each, as `outputs.attentions` of Hugging Face.
    `torch.nn.MultiheadAttention` returns the heads' mean, (batch, queries, keys): give `weights[:, None]`.

    `tokens` are the tokens of the input text (in an encoder-decoder, of the source), `target` those that the decoder
    reads. Left out, positions are numbered. For a padded entry give the tokens without masked padding: it is cut off.
    `entry` chooses one of the batch. `grid`, rows and columns, says that the last tokens are the patches of a picture.
    `image` is that picture, (3, height, width) or (height, width), from 0 to 1 or uint8: it is shown under the patches.
    `heads`, from `study_heads`, add roles and importance. Translations know their own tokens.

    A page holds at most 4 million weights. For longer inputs capture
    `Want(pooled_heads=64, top=8, entropy=True, received=True)`: the page then shows tiles and the largest weights of
    each query, and an upper bound for every other weight.

    Raises ArgumentError if nothing was captured that a page can show, if tokens don't fit, or if weights are NaN, below
    0, or sum to more than 1.

    >>> import torch
    >>> from glassformer import Want, capture
    >>> model = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
    >>> with torch.no_grad(), capture(model, Want(weights=True)) as captured:
    ...     _ = model(torch.randn(1, 3, 32))
    >>> page(captured, ["the", "dog", "sleeps"], title="One layer")
    Page(title='One layer')
    >>> _.save("attention.html")  # doctest: +SKIP
    """
    title = title or "Attention"
    if not isinstance(title, str):
        raise ArgumentError(f"title must be a str, got {title!r}")
    if not isinstance(heads, Sequence) or not all(isinstance(head, Head) for head in heads):
        raise ArgumentError(f"heads must be what study_heads returns, got {heads!r}")
    return Page(title, pack(title, collect_hypotheses(seen, tokens, target, entry, grid, image), heads))


def pack(title: str, hypotheses: Sequence[HypothesisViews], heads: Sequence[Head]) -> bytes:
    """Return the data of a page. Raises ArgumentError if there are too many weights, or if any are NaN."""
    views = [view for one in hypotheses for view in one.views]
    total = sum(x.numel() for view in views for name, x in view.facts.items() if name in ("weights", "tiles"))
    if total > MOST_WEIGHTS:
        raise ArgumentError(
            f"a page holds at most {MOST_WEIGHTS:,} weights, got {total:,}: capture {ADVICE}, or fewer layers, or "
            "show fewer hypotheses"
        )
    numbers = sum(x.numel() for view in views for x in view.facts.values())
    if numbers > MOST_NUMBERS:
        raise ArgumentError(
            f"a page holds at most {MOST_NUMBERS:,} numbers, got {numbers:,}: capture fewer layers, or a smaller top"
        )
    for view in views:
        if not all(x.isfinite().all() for x in view.facts.values()):
            raise ArgumentError(f"{view.path} has weights that are not numbers (NaN): they cannot be shown")
    packing = _Packing(heads, numbers <= EXACT_UP_TO)
    packed = []
    for one in hypotheses:
        layers = _layers(one.views)
        views = [packing.view(view, layers[view.path], one.axes) for view in one.views]
        drawn = [view for view in views if view["heads"]]
        if not drawn:
            raise ArgumentError("there are no heads to show: every attention has had all its heads removed")
        packed.append(
            {
                "label": one.label,
                "axes": one.axes,
                "grids": one.grids,
                "images": {axis: packing.tensors.add(image, "u2") for axis, image in one.images.items()},
                "views": views,
                "start": _start(drawn, one.views),
                **({"importance": max(1e-9, *(head.without for head in heads))} if heads else {}),
            }
        )
    return packing.tensors.pack({"title": title, "hypotheses": packed})


def _layers(views: Sequence[View]) -> dict[str, int]:
    """Return each view's layer: the first number in its path, or its place in its group if that number isn't unique."""
    layers: dict[str, int] = {}
    for group in {view.group for view in views}:
        paths = [view.path for view in views if view.group == group]
        named = [int(number[0]) for path in paths if (number := re.search(r"\d+", path))]
        layers |= dict(zip(paths, named if len(set(named)) == len(paths) else range(len(paths)), strict=True))
    return layers


def _start(drawn: Sequence[Mapping[str, Any]], views: Sequence[View]) -> dict[str, Any]:
    """Return which head to show first, in attention to the source if there is any.

    That is the most important one, or where importance isn't known the sharpest, whose queries look at the fewest
    keys: of the last layer that looks at the source, or of all layers of a model that reads one text.
    """
    source = [view for view in drawn if view["group"] == "source"]
    shown = source or list(drawn)
    heads = [(head.get("importance", 0.0), view["path"], n) for view in shown for n, head in enumerate(view["heads"])]
    importance, path, head = max(heads, key=lambda one: one[0])
    if importance > 0:
        return {"at": path, "head": head}
    paths = [max(source, key=lambda view: view["layer"])["path"]] if source else [view["path"] for view in shown]
    entropy = {view.path: view.facts["entropy"].mean(-1) for view in views if "entropy" in view.facts}
    sharpest = [(float(entropy[path].min()), path) for path in paths if path in entropy]
    if not sharpest:
        return {"at": paths[0], "head": 0}
    path = min(sharpest, key=lambda one: one[0])[1]
    return {"at": path, "head": int(entropy[path].argmin())}


class _Packing:
    """Packs views, with what is known about their heads, into the data of a page."""

    def __init__(self, heads: Sequence[Head], exact: bool) -> None:
        """Pack numbers as 32-bit floats if `exact`, else in 16 bits."""
        self.tensors = PackedTensors()
        self._exact = exact
        self._about = {(head.attention, head.head): head for head in heads}

    def view(self, view: View, layer: int, axes: Axes) -> dict[str, Any]:
        """Return the description of a view for the scripts."""
        facts = view.facts if view.heads else {}
        queries, keys = len(axes[view.queries]), len(axes[view.keys])
        kind = "f4" if self._exact else "p2"
        kinds = {"weights": kind, "tiles": "p2", "entropy": kind, "received": kind, "top": kind}
        stored = {name: self.tensors.add(facts[name], kinds[name]) for name in kinds if name in facts}
        position = "u2" if keys < NO_POSITION["u2"] else "u4"
        if "top" in facts:
            stored["keys"] = self.tensors.add(facts["top_keys"], position)
        tile = list(view.tile)
        known = [None if view.mean else self._about.get((view.path, n)) for n in range(view.heads)]
        return {
            "path": view.path,
            "group": view.group,
            "layer": layer,
            "queries": view.queries,
            "keys": view.keys,
            "sizes": [queries, keys],
            "tile": tile if "tiles" in facts else None,
            "none": NO_POSITION[position],
            "heads": [{} if head is None else {"role": head.role, "importance": head.without} for head in known],
            "mean": view.mean,
            "facts": stored,
            "exact": self._exact,
            "rows": _row_sums(facts, queries, tile[0]),
            "dropped": view.dropped,
        }


def _row_sums(facts: Mapping[str, Tensor], queries: int, tile: int) -> list[float]:
    """Return the least and the greatest sum of a query's weights.

    Both are 1, unless keys were cut off, weights were dropped, or a query may look nowhere.
    """
    if "weights" in facts:
        sums = facts["weights"].float().sum(-1)
    elif "tiles" in facts:
        in_row = torch.tensor([min(tile, queries - first) for first in range(0, queries, tile)])
        sums = facts["tiles"].float().sum(-1).cpu() / in_row
    else:
        return [1.0, 1.0]
    return [float(sums.min()), float(sums.max())]
