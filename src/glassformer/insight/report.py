"""A page to look at attention: one HTML file that needs no network, or the same view in a notebook."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.observation import Observation
from glassformer.attention.want import Want, tile_size
from glassformer.errors import ArgumentError
from glassformer.files import replacing
from glassformer.generation.attention import STACKS, Attention
from glassformer.generation.translator import Translation
from glassformer.insight.heads import Head
from glassformer.insight.packed import NOTHING, Numbers
from glassformer.insight.record import Captured

EXACT = 50_000
"""Numbers, in all, up to which a page carries them as 32-bit floats: beyond it in 16 bits."""
MOST = 4_000_000
"""Weights, in all, that a page carries at the most."""
COARSE = Want(pooled_heads=64, top=8, entropy=True, received=True)
"""What to capture of inputs whose weights are too many: tiles, the largest of each query, and exact sums."""
_ADVICE = "Want(pooled_heads=64, top=8, entropy=True, received=True)"
FILES = Path(__file__).parent / "page"
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
    """weights, tiles, entropy, received, top, top_keys: those that there are, of one entry, heads first."""
    tiles: int = 0
    """How many a side were asked for."""
    dropped: str = ""


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
    data: bytes
    """What it shows, for page/page.js."""

    def html(self) -> str:
        """The whole page, one HTML document without links to anything."""
        css, script, template = (
            (FILES / f"page.{ending}").read_text(encoding="utf-8") for ending in ("css", "js", "html")
        )
        data = base64.b64encode(self.data).decode()
        return template.format(title=html.escape(self.title), css=css, script=script, data=data)

    def save(self, path: str | Path) -> Path:
        """Write it, whole or not at all."""
        with replacing(Path(path)) as file:
            file.write(self.html().encode())
        return Path(path)

    def widget(self) -> Any:
        """The view as a Jupyter widget (anywidget). Needs the extra `notebook`."""
        from glassformer.insight.widget import widget_of

        return widget_of(self.data)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget()._repr_mimebundle_(**options)


def page(
    seen: Captured | Attention | Translation | Sequence[Translation],
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

    Raises ArgumentError where nothing was captured that can be drawn, or tokens don't fit.
    """
    if isinstance(seen, Attention | Captured):
        found = [
            _of_attention(seen, "") if isinstance(seen, Attention) else _of_capture(seen, tokens, target, entry, grid)
        ]
    else:
        translations = [seen] if isinstance(seen, Translation) else list(seen)
        if not translations or not all(isinstance(one, Translation) and one.attention for one in translations):
            raise ArgumentError(
                "seen must be what capture recorded, or translations with their attention: "
                "translate(lines, attention=Want(weights=True))"
            )
        found = [
            _of_attention(one.attention, f"{one.text}  ({one.score:.2f})") for one in translations if one.attention
        ]
    return Page(title or "Attention", pack(title or "Attention", found, heads))


def pack(title: str, hypotheses: Sequence[Hypothesis], heads: Sequence[Head]) -> bytes:
    """What page/page.js shows."""
    facts = [fact for one in hypotheses for view in one.views for fact in view.facts.items()]
    total = sum(x.numel() for name, x in facts if name == "weights")
    if total > MOST:
        raise ArgumentError(f"a page holds at most {MOST:,} weights, got {total:,}: capture {_ADVICE}, or fewer layers")
    numbers = Numbers()
    kind = "f4" if sum(x.numel() for _, x in facts) <= EXACT else "p2"
    about = {(head.attention, head.head): head for head in heads}
    packed = []
    for one in hypotheses:
        layers = _layers(one.views)
        views = [_packed_view(view, layers[view.path], one.axes, numbers, kind, about) for view in one.views]
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
    return numbers.pack({"title": title, "hypotheses": packed})


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


def _packed_view(
    view: View, layer: int, axes: Axes, numbers: Numbers, kind: str, about: Mapping[tuple[str, int], Head]
) -> dict[str, Any]:
    count = next(iter(view.facts.values())).shape[0]
    facts = view.facts if count else {}
    queries, keys = len(axes[view.queries]), len(axes[view.keys])
    names = {"weights": kind, "tiles": "p2", "entropy": kind, "received": kind, "top": kind}
    stored = {name: numbers.add(facts[name], names[name]) for name in names if name in facts}
    position = "u2" if keys < NOTHING["u2"] else "u4"
    if "top" in facts:
        stored["keys"] = numbers.add(facts["top_keys"], position)
    said: list[dict[str, Any]] = []
    for n in range(count):
        head = about.get((view.path, n))
        said.append({} if head is None else {"role": head.role, "importance": head.without})
    return {
        "path": view.path,
        "group": view.group,
        "layer": layer,
        "queries": view.queries,
        "keys": view.keys,
        "sizes": [queries, keys],
        "tile": [tile_size(length, view.tiles) for length in (queries, keys)] if "tiles" in facts else None,
        "none": NOTHING[position],
        "heads": said,
        "facts": stored,
        "precise": "Weights are 32-bit floats." if kind == "f4" else "Weights are rounded to 1 part in 4,096.",
        "dropped": view.dropped,
    }


def _facts(one: Observation) -> dict[str, Tensor]:
    """What the page shows of it; entropy and received from the weights where only these are there."""
    found = {name: x.detach() for name, x in one.tensors().items()}
    if "weights" not in found and "head_mean" in found and "pooled_heads" not in found:
        found["weights"] = found["head_mean"][None]  # one head, that is all of them
        for name in ("entropy", "received", "top", "top_keys"):
            found.pop(name, None)
    if "weights" in found:
        weights = found["weights"].float()
        found.setdefault("entropy", torch.special.entr(weights).sum(-1))
        found.setdefault("received", weights.sum(1))
    if "pooled_heads" in found:
        found["tiles"] = found["pooled_heads"]
    kept = ("weights", "tiles", "entropy", "received", "top", "top_keys")
    return {name: found[name] for name in kept if name in found}


def _of_attention(attention: Attention, label: str) -> Hypothesis:
    """Of a translation: what the source looks at, what the translation looks at while it is written."""
    axes = {"source": attention.source_tokens, "written": attention.target_in, "next": attention.target_out}
    ends = {"encoder": ("source", "source"), "decoder": ("next", "written"), "source": ("next", "source")}
    names = {"encoder": "encoder.{}.self_attention", "decoder": "decoder.{}.self_attention"}
    names["source"] = "decoder.{}.source_attention"
    views = [
        View(names[stack].format(layer), stack, *ends[stack], _facts(one[0]), one.want.pooled_heads)
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
        if observation.batch is not None and not -observation.batch <= entry < observation.batch:
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
        facts = _facts(one if real == sizes else _cut(one, *real))
        views.append(View(path, group, queries, keys, facts, one.want.pooled_heads, seen.dropped.get(path, "")))
    grids: dict[str, tuple[int, int]] = {}
    if grid is not None:
        axis = "source" if two_texts else "tokens"
        if grid[0] * grid[1] > len(axes[axis]):
            raise ArgumentError(
                f"grid must be rows and columns of at most {len(axes[axis])} patches, got {grid[0]} x {grid[1]}"
            )
        grids[axis] = grid
    views.sort(key=lambda view: (*STACKS, "self").index(view.group))  # as they stand on the page
    return Hypothesis("", axes, _drawable(views), grids)


def _axis(known: list[str] | None, given: Sequence[str] | None, length: int, name: str) -> list[str]:
    """The tokens of so many positions: those given, or their numbers."""
    if given is not None:
        if isinstance(given, str):
            raise ArgumentError(f"{name} must be a sequence of tokens, got one str: pass them apart, text.split()")
        if len(given) > length:
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
    if "pooled_heads" in found:  # tiles would mix tokens and padding
        raise ArgumentError(f"tiles can't be cut to {queries} x {keys} tokens: capture one entry without padding")
    found.pop("received", None)  # it is what the padding gives, too
    return Observation(found, one.want, None)
