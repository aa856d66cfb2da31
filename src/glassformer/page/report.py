"""The public function `page`: attention as one HTML file that needs no network, or as a view in a notebook."""

import base64
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe_weights
from glassformer.attention.want import Want, tile_size
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError
from glassformer.files import replacing
from glassformer.generation.attention import STACKS, TranslationAttention
from glassformer.generation.translator import Translation
from glassformer.insight.heads import Head
from glassformer.page import assets
from glassformer.page.packed import NO_POSITION, PackedTensors

EXACT_UP_TO = 50_000
"""Up to this many numbers in all, a page holds 32-bit floats; beyond that, 16 bits of each."""
MOST_WEIGHTS = 4_000_000
"""Most weights and tiles that a page holds in all."""
LONG_INPUT_WANT = Want(pooled_heads=64, top=8, entropy=True, received=True)
"""The facts to capture from inputs with too many weights: tiles, the largest weights of each query, and exact sums."""
_ADVICE = "Want(pooled_heads=64, top=8, entropy=True, received=True)"
_CROSS = re.compile(
    r"multihead_attn|encoder_attn|source_attention|src_tgt_attention|cross_?att|EncDecAttention", re.IGNORECASE
)
_DECODER = re.compile(r"decoder", re.IGNORECASE)

Axes = dict[str, list[str]]


@dataclass(frozen=True)
class View:
    """One attention, as a page shows it."""

    path: str
    group: str
    """encoder, decoder, source (the decoder's attention to the source) or self."""
    queries: str
    keys: str
    """Names of the axes that hold the tokens of the queries and of the keys."""
    facts: dict[str, Tensor]
    """The facts of one entry, as far as they are known: weights (heads, q_len, k_len); tiles, sums of weights (heads,
    at most `tiles` a side); entropy, in nats (heads, q_len); received (heads, k_len); top and top_keys (heads, q_len,
    top)."""
    tiles: int = 0
    """Number of tiles a side that were asked for."""
    mean: bool = False
    """True if the only head shown is the mean of all."""
    dropped: str = ""
    """The facts that the capture left out because of its budget, in words."""

    @property
    def heads(self) -> int:
        """Return how many heads it shows."""
        return next(iter(self.facts.values())).shape[0]


@dataclass(frozen=True)
class HypothesisViews:
    """The views of one hypothesis, between which the reader of a page chooses; a capture has only one."""

    label: str
    axes: Axes
    views: list[View]
    grids: Mapping[str, tuple[int, int]]
    """Rows and columns of the axes whose last positions are the patches of a picture."""


@dataclass(frozen=True)
class Page:
    """A page that shows attention. `save` writes it; in a notebook it shows itself (extra `notebook`)."""

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
    seen: Captured | Observation | Tensor | TranslationAttention | Translation | Sequence[Translation],
    tokens: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    title: str | None = None,
    entry: int = 0,
    grid: tuple[int, int] | None = None,
    heads: Sequence[Head] = (),
) -> Page:
    """Return a page that shows what `capture` or `observe` recorded, plain weights, or translations with attention.

    Weights are (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys); also (queries, keys, batch,
    heads), as the sequence-first `glassformer.reference.MultiHeadAttention` keeps them: the axis over which they sum to
    1 is that of the keys.

    `tokens` are the tokens of the input text (in an encoder-decoder, of the source), `target` those that the decoder
    reads. Left out, positions are numbered. For a padded entry give the tokens without padding: the rest is cut off.
    `entry` chooses one of the batch. `grid`, rows and columns, says that the last tokens are the patches of a picture.
    `heads`, from `study_heads`, add roles and importance. Translations know their own tokens.

    A page holds at most 4 million weights. For longer inputs capture
    `Want(pooled_heads=64, top=8, entropy=True, received=True)`: the page then shows tiles and the largest weights of
    each query, and an upper bound for every other weight.

    Raises ArgumentError if nothing was captured that a page can show, if tokens don't fit, or if weights are NaN.

    >>> import torch
    >>> from glassformer import capture
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
    return Page(title, pack(title, _collect_hypotheses(seen, tokens, target, entry, grid), heads))


def _collect_hypotheses(
    seen: Captured | Observation | Tensor | TranslationAttention | Translation | Sequence[Translation],
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
) -> list[HypothesisViews]:
    """Return the hypotheses of what `page` was given: one for a capture, one for each translation."""
    if isinstance(seen, Captured):
        return [_from_capture(seen, tokens, target, entry, grid)]
    if isinstance(seen, Tensor):
        seen = observe_weights(_as_four_axes(seen), Want(weights=True))
    if isinstance(seen, Observation):
        return [_from_observation(seen, tokens, target, entry, grid)]
    if tokens is not None or target is not None or entry or grid:
        raise ArgumentError("tokens, target, entry and grid are for what capture recorded: translations know their own")
    if isinstance(seen, TranslationAttention):
        return [_from_translation(seen, "")]
    translations = [seen] if isinstance(seen, Translation) else list(seen) if isinstance(seen, Sequence) else []
    if not translations or not all(isinstance(one, Translation) and one.attention for one in translations):
        raise ArgumentError(
            "seen must be what capture or observe recorded, weights, or translations with their attention: "
            f"translate(lines, attention=Want(weights=True)), got {type(seen).__name__}"
        )
    return [_from_translation(one.attention, f"{one.text}  ({one.score:.2f})") for one in translations if one.attention]


def pack(title: str, hypotheses: Sequence[HypothesisViews], heads: Sequence[Head]) -> bytes:
    """Return the data of a page. Raises ArgumentError if there are too many weights, or if any are NaN."""
    views = [view for one in hypotheses for view in one.views]
    total = sum(x.numel() for view in views for name, x in view.facts.items() if name in ("weights", "tiles"))
    if total > MOST_WEIGHTS:
        raise ArgumentError(
            f"a page holds at most {MOST_WEIGHTS:,} weights, got {total:,}: capture {_ADVICE}, or fewer layers, or "
            "show fewer hypotheses"
        )
    for view in views:
        if not all(x.isfinite().all() for x in view.facts.values()):
            raise ArgumentError(f"{view.path} has weights that are not numbers (NaN): they cannot be shown")
    packing = _Packing(heads, sum(x.numel() for view in views for x in view.facts.values()) <= EXACT_UP_TO)
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

    That is the most important one, or where importance isn't known the sharpest of the last layer: the one whose
    queries look at the fewest keys.
    """
    source = [view for view in drawn if view["group"] == "source"] or list(drawn)
    places = [(view["path"], n, head.get("importance", 0.0)) for view in source for n, head in enumerate(view["heads"])]
    path, head, importance = max(places, key=lambda place: place[2])
    if importance > 0:
        return {"at": path, "head": head}
    last = max(source, key=lambda view: view["layer"])["path"]
    entropy = next(view.facts.get("entropy") for view in views if view.path == last)
    return {"at": last, "head": 0 if entropy is None else int(entropy.mean(-1).argmin())}


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


def _view(path: str, group: str, ends: tuple[str, str], axes: Axes, one: Observation, dropped: str = "") -> View:
    """Return what a page shows of one entry's Observation.

    Tiles of a single weight count as weights. Entropy and received are computed from the weights if they weren't asked
    for. If there is only the mean of the heads, it is shown as the only head.
    """
    known = {name: x.detach() for name, x in one.tensors().items()}
    mean = not known.keys() & {"weights", "pooled_heads"} and bool(known.keys() & {"head_mean", "pooled"})
    if mean:
        shown = {"head_mean": "weights", "pooled": "tiles"}
        known = {shown[name]: x[None] for name, x in known.items() if name in shown}
    elif "pooled_heads" in known:
        known["tiles"] = known["pooled_heads"]
    tiles = one.want.pooled if mean else one.want.pooled_heads
    if "tiles" in known and all(tile_size(len(axes[axis]), tiles) == 1 for axis in ends):
        known.setdefault("weights", known["tiles"])
    if "weights" in known:
        weights = known["weights"].float()
        known.setdefault("entropy", torch.special.entr(weights).sum(-1))
        known.setdefault("received", weights.sum(1))
    kept = ["weights"] if "weights" in known else ["tiles", "top", "top_keys"]
    facts = {name: known[name] for name in (*kept, "entropy", "received") if name in known}
    return View(path, group, *ends, facts, tiles, mean, dropped)


def _from_translation(attention: TranslationAttention, label: str) -> HypothesisViews:
    """Return the views of a translation: the source's self-attention, and the attention while it was written."""
    axes = {"source": attention.source_tokens, "written": attention.target_in, "next": attention.target_out}
    ends = {"encoder": ("source", "source"), "decoder": ("next", "written"), "source": ("next", "source")}
    names = {"encoder": "encoder.{}.self_attention", "decoder": "decoder.{}.self_attention"}
    names["source"] = "decoder.{}.source_attention"
    views = [
        _view(names[stack].format(layer), stack, ends[stack], axes, one[0])
        for stack in STACKS
        for layer, one in getattr(attention, stack).items()
    ]
    return HypothesisViews(label, axes, _drawable(views), {})


def _as_four_axes(weights: Tensor) -> Tensor:
    """Return weights as (batch, heads, queries, keys), also where they are sequence first (see `page`)."""
    if weights.dim() not in (2, 3, 4) or not weights.is_floating_point():
        raise ArgumentError(
            "weights must be floating-point, (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys), "
            f"got {weights.dtype} {tuple(weights.shape)}"
        )
    if weights.dim() < 4:
        return weights[(None,) * (4 - weights.dim())]
    first = weights.permute(2, 3, 0, 1)
    return first if _sum_to_one(first) and not _sum_to_one(weights) else weights


def _sum_to_one(weights: Tensor) -> bool:
    """Return whether each query's weights sum to 1, or to 0 where it may look nowhere."""
    sums = weights.detach().float().sum(-1)
    return bool(((sums - 1).abs().minimum(sums.abs()) < 0.02).all())


def _from_observation(
    one: Observation,
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
) -> HypothesisViews:
    """Return the view of a single attention: of a text to itself, or where `target` is given, of that to the tokens."""
    if one.batch is not None:
        _check_entry(one.batch, entry)
        one = one[entry]
    known = one.tensors()
    shapes = {name: known[name].shape[-2:] for name in ("weights", "head_mean") if name in known}
    lengths = next(iter(shapes.values()), None)
    if lengths is None and {"entropy", "received"} <= known.keys():
        lengths = known["entropy"].shape[-1], known["received"].shape[-1]
    if lengths is None:
        raise ArgumentError(f"a page of one Observation needs weights, or for long inputs {_ADVICE}")
    across = target is not None or lengths[0] != lengths[1]
    ends = ("target", "source") if across else ("tokens", "tokens")
    axes: Axes = {}
    one = _with_tokens(one, axes, ends, (lengths[0], lengths[1]), tokens, target)
    view = _view("attention", "source" if across else "self", ends, axes, one)
    if grid is not None:
        _check_grid(grid, len(axes[ends[1]]))
    return HypothesisViews("", axes, _drawable([view]), {} if grid is None else {ends[1]: grid})


def _with_tokens(
    one: Observation,
    axes: Axes,
    ends: tuple[str, str],
    sizes: tuple[int, int],
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
) -> Observation:
    """Give the axes of the queries and keys their tokens; return the Observation without what lies beyond these."""
    for axis, length in zip(ends, sizes, strict=True):
        axes[axis] = _axis(axes.get(axis), target if axis == "target" else tokens, length, axis)
    real = len(axes[ends[0]]), len(axes[ends[1]])
    return one if real == sizes else _cut(one, *real)


def _check_entry(batch: int, entry: int) -> None:
    if entry not in range(-batch, batch):
        raise ArgumentError(f"entry must be one of the batch's {batch}, from 0 to {batch - 1}, got {entry!r}")


def _from_capture(
    captured: Captured,
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
) -> HypothesisViews:
    """Return the views of a captured model. The paths tell which kind of attention each one is."""
    if not captured:
        raise ArgumentError("nothing was captured: call the model inside the context, and make the page after it")
    two_texts = any(_CROSS.search(path) for path in captured)
    axes: Axes = {}
    views = []
    for path, observation in captured.items():
        if observation.batch is not None:
            _check_entry(observation.batch, entry)
        one = observation[entry]
        group, queries, keys = _group_and_axes(path, two_texts)
        sizes = captured.lengths(path)
        one = _with_tokens(one, axes, (queries, keys), sizes, tokens, target)
        views.append(_view(path, group, (queries, keys), axes, one, captured.dropped.get(path, "")))
    if target is not None and "target" not in axes:
        raise ArgumentError("target is for an encoder-decoder; this model has one text: give its tokens as tokens")
    grids: dict[str, tuple[int, int]] = {}
    if grid is not None:
        axis = "source" if two_texts else "tokens"
        _check_grid(grid, len(axes[axis]))
        grids[axis] = grid
    views.sort(key=lambda view: (*STACKS, "self").index(view.group))  # as they stand on the page
    return HypothesisViews("", axes, _drawable(views), grids)


def _group_and_axes(path: str, two_texts: bool) -> tuple[str, str, str]:
    """Return the group of the attention at this path, and the names of its queries' and keys' axes."""
    if _CROSS.search(path):
        return "source", "target", "source"
    if two_texts:
        return ("decoder", "target", "target") if _DECODER.search(path) else ("encoder", "source", "source")
    return "self", "tokens", "tokens"


def _check_grid(grid: tuple[int, int], length: int) -> None:
    pair = isinstance(grid, Sequence) and len(grid) == 2 and all(isinstance(n, int) and n >= 1 for n in grid)
    if not pair or grid[0] * grid[1] > length:
        raise ArgumentError(f"grid must be (rows, columns) of at most {length} patches, got {grid!r}")


def _axis(known: list[str] | None, given: Sequence[str] | None, length: int, name: str) -> list[str]:
    """Return the tokens of an axis of this length: the given ones, or the numbers of the positions."""
    if given is not None:
        if isinstance(given, str) or not isinstance(given, Iterable):
            kind = type(given).__name__
            raise ArgumentError(f"{name} must be a sequence of tokens, got one {kind}: pass text.split(), for example")
        given = list(given)
        if not 0 < len(given) <= length:
            raise ArgumentError(f"there are {length} positions of the {name}, got {len(given)} tokens for them")
        return [str(token) for token in given]
    if known is not None and len(known) != length:
        raise ArgumentError(
            f"the {name} has {len(known)} positions in one attention and {length} in another: capture some layers "
            "at a time, with capture(model, layers=...)"
        )
    return [str(n) for n in range(length)]


def _drawable(views: list[View]) -> list[View]:
    """Return the views that have something to draw. Raises ArgumentError if there are none."""
    kept = [view for view in views if view.facts]
    if not kept:
        raise ArgumentError(
            f"nothing was captured that a page can draw: capture with Want(weights=True), or for long inputs {_ADVICE}"
        )
    return kept


def _cut(one: Observation, queries: int, keys: int) -> Observation:
    """Return the Observation of a padded entry without its padding."""
    facts = one.tensors()
    lengths = {"weights": (queries, keys), "head_mean": (queries, keys), "entropy": (queries,), "received": (keys,)}
    lengths |= {"top": (queries,), "top_keys": (queries,)}
    for name, ends in lengths.items():
        if name in facts:
            first = 0 if name == "head_mean" else 1
            for axis, length in enumerate(ends, start=first):
                facts[name] = facts[name].narrow(axis, 0, length)
    if facts.keys() & {"pooled", "pooled_heads"}:  # tiles would mix tokens and padding
        raise ArgumentError(f"tiles can't be cut to {queries} x {keys} tokens: capture one entry without padding")
    if "top_keys" in facts and (facts["top_keys"] >= keys).any():
        raise ArgumentError(
            f"the largest weights of some queries lie beyond the {keys} tokens given: mask the padding, or capture "
            "one entry without it"
        )
    facts.pop("received", None)  # it includes what padding gives
    return Observation(facts, one.want, None)
