"""A page to look at attention: one HTML file that needs no network, or the same view in a notebook."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.observation import Observation
from glassformer.attention.want import Want, tile_size
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError
from glassformer.files import replacing
from glassformer.generation.attention import STACKS, TranslationAttention
from glassformer.generation.translator import Translation
from glassformer.insight.heads import Head
from glassformer.page import assets
from glassformer.page.packed import NOTHING, Numbers

EXACT = 50_000
"""Numbers, in all, up to which a page carries them as 32-bit floats: beyond it in 16 bits."""
MOST = 4_000_000
"""Weights and tiles, in all, that a page carries at the most."""
COARSE = Want(pooled_heads=64, top=8, entropy=True, received=True)
"""What to capture of inputs whose weights are too many: tiles, the largest of each query, and exact sums."""
_ADVICE = "Want(pooled_heads=64, top=8, entropy=True, received=True)"
_CROSS = re.compile(r"multihead_attn|encoder_attn|source_attention|cross_?att|EncDecAttention", re.IGNORECASE)
_ITS_OWN = re.compile(r"decoder", re.IGNORECASE)

Axes = dict[str, list[str]]


@dataclass(frozen=True)
class View:
    """One attention as a page shows it."""

    path: str
    group: str
    """encoder, decoder, source (the decoder's attention to the source) or self."""
    queries: str
    keys: str
    """Names of axes, whose tokens the positions are."""
    facts: dict[str, Tensor]
    """Those that there are of one entry: weights (heads, q_len, k_len); tiles (heads, at most `tiles` a side), sums of
    weights; entropy (heads, q_len), in nats; received (heads, k_len); top and top_keys (heads, q_len, top)."""
    tiles: int = 0
    """How many a side were asked for."""
    mean: bool = False
    """Whether its one head is the mean of all."""
    dropped: str = ""
    """What a capture left out for want of memory."""

    @property
    def heads(self) -> int:
        """How many it shows."""
        return next(iter(self.facts.values())).shape[0]


@dataclass(frozen=True)
class Hypothesis:
    """What one choice of the page shows."""

    label: str
    axes: Axes
    views: list[View]
    grids: Mapping[str, tuple[int, int]]
    """Rows and columns of axes whose last positions are patches of a picture."""


@dataclass(frozen=True)
class Page:
    """Attention to look at. In a notebook it shows itself (extra `notebook`); `save` writes it."""

    title: str
    data: bytes = field(repr=False)
    """What it shows, for the scripts in page/."""

    def html(self) -> str:
        """The whole page, one HTML document without links to anything."""
        return assets.document().format(
            title=html.escape(self.title),
            css=assets.style(),
            script=assets.script(),
            data=base64.b64encode(self.data).decode(),
        )

    def save(self, path: str | Path) -> Path:
        """Write it, whole or not at all."""
        with replacing(Path(path)) as file:
            file.write(self.html().encode(errors="replace"))
        return Path(path)

    def widget(self) -> Any:
        """The view as a Jupyter widget (anywidget). Needs the extra `notebook`."""
        from glassformer.page.widget import widget_of

        return widget_of(self.data)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        try:
            return self.widget()._repr_mimebundle_(**options)
        except ImportError as error:
            return {"text/plain": f"{self!r}\n{error}; or write it with save('page.html')"}


def page(
    seen: Captured | TranslationAttention | Translation | Sequence[Translation],
    tokens: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    title: str | None = None,
    entry: int = 0,
    grid: tuple[int, int] | None = None,
    heads: Sequence[Head] = (),
) -> Page:
    """A page of what `capture` has recorded, or of translations with their attention.

        with torch.no_grad(), capture(model, Want(weights=True)) as seen:
            model(inputs)
        page(seen, ["the", "dog", "sleeps"]).save("attention.html")

    `tokens` are those of the text that goes in (of an encoder-decoder, of the source), `target` those that the decoder
    reads; left out, positions are numbered. Of a padded entry give the real tokens: what lies behind them is left out.
    `entry` is that of the batch. `grid`, rows and columns, says that the last of the tokens are patches of a picture.
    `heads`, from `study_heads`, give roles and importance. Translations know their tokens.

    Weights are shown as they are; where a capture has no room for them, or they are too many for a page (more than 4
    million), ask for `Want(pooled_heads=64, top=8, entropy=True, received=True)`: tiles, the largest of each query, and
    of any other the most that it can be.

    Raises ArgumentError where nothing was captured that can be drawn, tokens don't fit, or weights are not numbers.
    """
    title = title or "Attention"
    return Page(title, pack(title, _hypotheses(seen, tokens, target, entry, grid), heads))


def _hypotheses(
    seen: Captured | TranslationAttention | Translation | Sequence[Translation],
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
) -> list[Hypothesis]:
    """What `page` is given, in the form of what it shows."""
    if isinstance(seen, Captured):
        return [_of_capture(seen, tokens, target, entry, grid)]
    if tokens is not None or target is not None or entry or grid:
        raise ArgumentError("tokens, target, entry and grid are for what capture recorded: translations know their own")
    if isinstance(seen, TranslationAttention):
        return [_of_attention(seen, "")]
    translations = [seen] if isinstance(seen, Translation) else list(seen) if isinstance(seen, Sequence) else []
    if not translations or not all(isinstance(one, Translation) and one.attention for one in translations):
        raise ArgumentError(
            "seen must be what capture recorded, or translations with their attention: "
            "translate(lines, attention=Want(weights=True))"
        )
    return [_of_attention(one.attention, f"{one.text}  ({one.score:.2f})") for one in translations if one.attention]


def pack(title: str, hypotheses: Sequence[Hypothesis], heads: Sequence[Head]) -> bytes:
    """What the scripts in page/ show. ArgumentError if it is too much, or not all of it numbers."""
    views = [view for one in hypotheses for view in one.views]
    total = sum(x.numel() for view in views for name, x in view.facts.items() if name in ("weights", "tiles"))
    if total > MOST:
        raise ArgumentError(
            f"a page holds at most {MOST:,} weights, got {total:,}: capture {_ADVICE}, or fewer layers, or show fewer "
            "hypotheses"
        )
    for view in views:
        if not all(x.isfinite().all() for x in view.facts.values()):
            raise ArgumentError(f"{view.path} has weights that are not numbers (NaN): there is nothing to show of it")
    packing = _Packing(heads, sum(x.numel() for view in views for x in view.facts.values()) <= EXACT)
    packed = []
    for one in hypotheses:
        layers = _layers(one.views)
        views = [packing.view(view, layers[view.path], one.axes) for view in one.views]
        drawn = [view for view in views if view["heads"]]
        if not drawn:
            raise ArgumentError("there are no heads to show: every attention has lost all of its own")
        packed.append(
            {
                "label": one.label,
                "axes": one.axes,
                "grids": one.grids,
                "views": views,
                "start": _start(drawn),
                **({"importance": max(1e-9, *(head.without for head in heads))} if heads else {}),
            }
        )
    return packing.numbers.pack({"title": title, "hypotheses": packed})


def _layers(views: Sequence[View]) -> dict[str, int]:
    """The number of each view's layer: the first in its path, or where that isn't its own, its place in its group."""
    layers: dict[str, int] = {}
    for group in {view.group for view in views}:
        paths = [view.path for view in views if view.group == group]
        named = [int(number[0]) for path in paths if (number := re.search(r"\d+", path))]
        layers |= dict(zip(paths, named if len(set(named)) == len(paths) else range(len(paths)), strict=True))
    return layers


def _start(drawn: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What to show first: of the attention to the source, if there is any, the head of most importance."""
    source = [view for view in drawn if view["group"] == "source"] or drawn
    places = [(view["path"], n, head.get("importance", 0.0)) for view in source for n, head in enumerate(view["heads"])]
    path, head, _ = max(places, key=lambda place: place[2])
    return {"at": path, "head": head}


class _Packing:
    """Views on their way into a page."""

    def __init__(self, heads: Sequence[Head], exact: bool) -> None:
        """`exact`: as 32-bit floats."""
        self.numbers = Numbers()
        self._exact = exact
        self._about = {(head.attention, head.head): head for head in heads}

    def view(self, view: View, layer: int, axes: Axes) -> dict[str, Any]:
        """What the scripts are told of it."""
        facts = view.facts if view.heads else {}
        queries, keys = len(axes[view.queries]), len(axes[view.keys])
        kind = "f4" if self._exact else "p2"
        kinds = {"weights": kind, "tiles": "p2", "entropy": kind, "received": kind, "top": kind}
        stored = {name: self.numbers.add(facts[name], kinds[name]) for name in kinds if name in facts}
        position = "u2" if keys < NOTHING["u2"] else "u4"
        if "top" in facts:
            stored["keys"] = self.numbers.add(facts["top_keys"], position)
        tile = [tile_size(length, view.tiles) for length in (queries, keys)]
        known = [None if view.mean else self._about.get((view.path, n)) for n in range(view.heads)]
        return {
            "path": view.path,
            "group": view.group,
            "layer": layer,
            "queries": view.queries,
            "keys": view.keys,
            "sizes": [queries, keys],
            "tile": tile if "tiles" in facts else None,
            "none": NOTHING[position],
            "heads": [{} if head is None else {"role": head.role, "importance": head.without} for head in known],
            "mean": view.mean,
            "facts": stored,
            "exact": self._exact,
            "rows": _rows(facts, queries, tile[0]),
            "dropped": view.dropped,
        }


def _rows(facts: Mapping[str, Tensor], queries: int, tile: int) -> list[float]:
    """The least and the most that a query's weights sum to, as far as they are there: 1, but for what was cut off,
    dropped, or may look nowhere."""
    if "weights" in facts:
        sums = facts["weights"].float().sum(-1)
    elif "tiles" in facts:
        in_row = torch.tensor([min(tile, queries - first) for first in range(0, queries, tile)])
        sums = facts["tiles"].float().sum(-1).cpu() / in_row
    else:
        return [1.0, 1.0]
    return [float(sums.min()), float(sums.max())]


def _view(path: str, group: str, ends: tuple[str, str], axes: Axes, one: Observation, dropped: str = "") -> View:
    """What a page shows of one entry's Observation.

    Tiles of a single weight are weights. Entropy and received follow from these where they weren't asked for. Where
    there is only the mean of the heads, that is the one head to show.
    """
    found = {name: x.detach() for name, x in one.tensors().items()}
    mean = not found.keys() & {"weights", "pooled_heads"} and bool(found.keys() & {"head_mean", "pooled"})
    if mean:
        shown = {"head_mean": "weights", "pooled": "tiles"}
        found = {shown[name]: x[None] for name, x in found.items() if name in shown}
    elif "pooled_heads" in found:
        found["tiles"] = found["pooled_heads"]
    tiles = one.want.pooled if mean else one.want.pooled_heads
    if "tiles" in found and all(tile_size(len(axes[axis]), tiles) == 1 for axis in ends):
        found.setdefault("weights", found["tiles"])
    if "weights" in found:
        weights = found["weights"].float()
        found.setdefault("entropy", torch.special.entr(weights).sum(-1))
        found.setdefault("received", weights.sum(1))
    kept = ["weights"] if "weights" in found else ["tiles", "top", "top_keys"]
    facts = {name: found[name] for name in (*kept, "entropy", "received") if name in found}
    return View(path, group, *ends, facts, tiles, mean, dropped)


def _of_attention(attention: TranslationAttention, label: str) -> Hypothesis:
    """Of a translation: what the source looks at, what the translation looks at while it is written."""
    axes = {"source": attention.source_tokens, "written": attention.target_in, "next": attention.target_out}
    ends = {"encoder": ("source", "source"), "decoder": ("next", "written"), "source": ("next", "source")}
    names = {"encoder": "encoder.{}.self_attention", "decoder": "decoder.{}.self_attention"}
    names["source"] = "decoder.{}.source_attention"
    views = [
        _view(names[stack].format(layer), stack, ends[stack], axes, one[0])
        for stack in STACKS
        for layer, one in getattr(attention, stack).items()
    ]
    return Hypothesis(label, axes, _drawable(views), {})


def _of_capture(
    seen: Captured,
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
) -> Hypothesis:
    """Of any model, whose kinds of attention are told from their paths."""
    if not seen:
        raise ArgumentError("nothing was captured: call the model inside the context, and make the page after it")
    two_texts = any(_CROSS.search(path) for path in seen)
    axes: Axes = {}
    views = []
    for path, observation in seen.items():
        if observation.batch is not None and entry not in range(-observation.batch, observation.batch):
            raise ArgumentError(f"entry must be one of the batch's {observation.batch}, got {entry}")
        one = observation[entry]
        if _CROSS.search(path):
            group, queries, keys = "source", "target", "source"
        elif two_texts and _ITS_OWN.search(path):
            group, queries, keys = "decoder", "target", "target"
        else:
            group, text = ("encoder", "source") if two_texts else ("self", "tokens")
            queries = keys = text
        sizes = seen.lengths(path)
        for axis, length in zip((queries, keys), sizes, strict=True):
            given = target if axis == "target" else tokens
            axes[axis] = _axis(axes.get(axis), given, length, axis)
        real = len(axes[queries]), len(axes[keys])
        one = one if real == sizes else _cut(one, *real)
        views.append(_view(path, group, (queries, keys), axes, one, seen.dropped.get(path, "")))
    if target is not None and "target" not in axes:
        raise ArgumentError("target is for an encoder-decoder; this model has one text: give its tokens as tokens")
    grids: dict[str, tuple[int, int]] = {}
    if grid is not None:
        axis = "source" if two_texts else "tokens"
        if len(grid) != 2 or min(grid) < 1 or grid[0] * grid[1] > len(axes[axis]):
            got = " x ".join(map(str, grid))
            raise ArgumentError(f"grid must be rows and columns of at most {len(axes[axis])} patches, got {got}")
        grids[axis] = grid
    views.sort(key=lambda view: (*STACKS, "self").index(view.group))  # as they stand on the page
    return Hypothesis("", axes, _drawable(views), grids)


def _axis(known: list[str] | None, given: Sequence[str] | None, length: int, name: str) -> list[str]:
    """The tokens of so many positions: those given, or their numbers."""
    if given is not None:
        if isinstance(given, str):
            raise ArgumentError(f"{name} must be a sequence of tokens, got one str: pass them apart, text.split()")
        if not 0 < len(given) <= length:
            raise ArgumentError(f"there are {length} positions of the {name}, got {len(given)} tokens for them")
        return [str(token) for token in given]
    if known is not None and len(known) != length:
        raise ArgumentError(
            f"the {name} has {len(known)} positions in one attention and {length} in another: make pages of some "
            "layers each, capture(model, layers=...)"
        )
    return [str(n) for n in range(length)]


def _drawable(views: list[View]) -> list[View]:
    """Those of which there is something to draw; ArgumentError if there are none."""
    kept = [view for view in views if view.facts]
    if not kept:
        raise ArgumentError(
            f"nothing was captured that a page can draw: capture with Want(weights=True), or for long inputs {_ADVICE}"
        )
    return kept


def _cut(one: Observation, queries: int, keys: int) -> Observation:
    """Of a padded entry, without the padding."""
    found = one.tensors()
    lengths = {"weights": (queries, keys), "head_mean": (queries, keys), "entropy": (queries,), "received": (keys,)}
    lengths |= {"top": (queries,), "top_keys": (queries,)}
    for name, ends in lengths.items():
        if name in found:
            first = 0 if name == "head_mean" else 1
            for axis, length in enumerate(ends, start=first):
                found[name] = found[name].narrow(axis, 0, length)
    if found.keys() & {"pooled", "pooled_heads"}:  # tiles would mix tokens and padding
        raise ArgumentError(f"tiles can't be cut to {queries} x {keys} tokens: capture one entry without padding")
    if "top_keys" in found and (found["top_keys"] >= keys).any():
        raise ArgumentError(
            f"the largest weights of some queries lie beyond the {keys} tokens given: mask the padding, or capture "
            "one entry without it"
        )
    found.pop("received", None)  # it is what the padding gives, too
    return Observation(found, one.want, None)
