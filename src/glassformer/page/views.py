"""Collect the views that a page shows of a capture, an observation, plain weights or a translation."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe_weights
from glassformer.attention.want import Want, tile_size
from glassformer.capture.record import Captured
from glassformer.errors import ArgumentError, shown
from glassformer.generation.attention import PATHS, STACKS, Translation, TranslationAttention

LONG_INPUT_WANT = Want(pooled_heads=64, top=8, entropy=True, received=True)
"""The facts to capture from inputs with too many weights: tiles, the largest weights of each query, and exact sums."""
ADVICE = f"Want({', '.join(f'{name}={getattr(LONG_INPUT_WANT, name)}' for name in LONG_INPUT_WANT.asked)})"
IMAGE_SIDE = 448
"""Most pixels a side of an image that a page holds."""
_CROSS = re.compile(
    r"multihead_attn|encoder_attn|source_attention|src_tgt_attention|cross_?att|EncDecAttention", re.IGNORECASE
)
_DECODER = re.compile(r"decoder", re.IGNORECASE)

Seen = (
    Mapping[str, Observation]
    | Observation
    | Tensor
    | Sequence[Tensor]
    | TranslationAttention
    | Translation
    | Sequence[Translation]
)
"""Name all that a page can show: records, observations, weights, those of several layers, or translations."""
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
    tiles of queries, tiles of keys); entropy, in nats (heads, q_len); received (heads, k_len); top and top_keys (heads,
    q_len, top)."""
    tile: tuple[int, int] = (1, 1)
    """How many queries and keys share a tile."""
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
    """Rows and columns of the axes whose last positions are the patches of an image."""
    images: Mapping[str, Tensor]
    """The images of these axes, as far as they are known: uint8 (height, width, 3)."""


def collect_hypotheses(
    seen: Seen,
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
    image: Tensor | None,
) -> list[HypothesisViews]:
    """Return the hypotheses of what `page` was given: one for a capture, one for each translation."""
    if isinstance(seen, Tensor):
        seen = _observed(seen)
    if isinstance(seen, Observation):
        seen = {"attention" if _are_own([seen], target) else "source_attention": seen}
    layers = [one for one in seen if isinstance(one, Tensor)] if isinstance(seen, Sequence) else []
    if isinstance(seen, Sequence) and layers and len(layers) == len(seen):
        observed = [_observed(one) for one in layers]
        name = "layer {}" if _are_own(observed, target) else "source_attention.{}"
        seen = {name.format(number): one for number, one in enumerate(observed)}
    if isinstance(seen, Mapping):
        return [_from_capture(seen, tokens, target, entry, grid, image)]
    if isinstance(seen, Sequence) and any(isinstance(one, Observation) for one in seen):
        raise ArgumentError(
            "seen must be one Observation, without the output that observe returns beside it; or of several attentions "
            'a dict, such as {"layer 0": first, "layer 1": second}'
        )
    of_translations = isinstance(seen, TranslationAttention | Translation | Sequence)
    if of_translations and (tokens is not None or target is not None or entry or grid or image is not None):
        raise ArgumentError("tokens, target, entry, grid and image are for a capture: translations know their own")
    if isinstance(seen, TranslationAttention):
        return [_from_translation(seen, "")]
    translations = [seen] if isinstance(seen, Translation) else list(seen) if isinstance(seen, Sequence) else []
    # Of an empty line there is nothing to see.
    given = [one for one in translations if not isinstance(one, Translation) or one.attention or one.tokens]
    if not given or not all(isinstance(one, Translation) and one.attention for one in given):
        raise ArgumentError(
            "seen must be what capture or observe recorded, weights, or translations with their attention, of a line "
            f"that isn't empty: translations(lines, attention=Want(weights=True)), got {type(seen).__name__}"
        )
    return [
        _from_translation(one.attention, f"{one.text}  ({one.score:.2f})")
        for one in given
        if isinstance(one, Translation) and one.attention
    ]


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
    wanted = one.want.pooled if mean else one.want.pooled_heads
    queries, keys = (tile_size(len(axes[axis]), wanted) for axis in ends)
    tile = one.tiles.get("pooled" if mean else "pooled_heads", (queries, keys))
    if "tiles" in known and tile == (1, 1):
        known.setdefault("weights", known["tiles"])
    if "weights" in known:
        weights = known["weights"].float()
        known.setdefault("entropy", torch.special.entr(weights).sum(-1))
        known.setdefault("received", weights.sum(1))
    kept = ["weights"] if "weights" in known else ["tiles", "top", "top_keys"]
    facts = {name: known[name] for name in (*kept, "entropy", "received") if name in known}
    return View(path, group, *ends, facts, tile, mean, dropped)


def _from_translation(attention: TranslationAttention, label: str) -> HypothesisViews:
    """Return the views of a translation: the source's self-attention, and the attention while it was written."""
    axes = {"source": attention.source_tokens, "written": attention.target_in, "next": attention.target_out}
    ends = {"encoder": ("source", "source"), "decoder": ("next", "written"), "source": ("next", "source")}
    views = [
        _view(PATHS[stack].format(layer), stack, ends[stack], axes, one[0])
        for stack in STACKS
        for layer, one in getattr(attention, stack).items()
    ]
    return HypothesisViews(label, axes, _drawable(views), {}, {})


def _observed(weights: Tensor) -> Observation:
    """Return plain weights as what `observe` would have recorded of them."""
    return observe_weights(_as_four_axes(weights), Want(weights=True))


def _as_four_axes(weights: Tensor) -> Tensor:
    """Return weights as (batch, heads, queries, keys), also where they are sequence first (see `page`)."""
    if weights.dim() not in (2, 3, 4) or not weights.is_floating_point():
        raise ArgumentError(
            "weights must be floating-point, (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys), "
            f"got {weights.dtype} {tuple(weights.shape)}"
        )
    first = weights.permute(2, 3, 0, 1) if weights.dim() == 4 else weights
    weights = first if _sum_to_one(first) and not _sum_to_one(weights) else weights
    if (weights < 0).any() or (weights.detach().float().sum(-1) > 1.02).any():
        raise ArgumentError(
            "weights must be at least 0 and sum to at most 1 over the keys, the last axis: pass scores.softmax(-1), or "
            "call model.eval() first, for dropout raises them"
        )
    return weights[(None,) * (4 - weights.dim())]


def _sum_to_one(weights: Tensor) -> bool:
    """Return whether each query's weights sum to 1, or to 0 where it may look nowhere."""
    sums = weights.detach().float().sum(-1)
    return bool(((sums - 1).abs().minimum(sums.abs()) < 0.02).all())


def _are_own(observed: Sequence[Observation], target: Sequence[str] | None) -> bool:
    """Return whether attention is that of a text to itself; where `target` is given, it is of that to the tokens."""
    return target is None and all(queries == keys for queries, keys in map(_lengths, observed))


def _lengths(one: Observation) -> tuple[int, int]:
    """Return how many queries and keys an Observation has. Raises ArgumentError if its facts don't tell."""
    known = one.tensors()
    for name in ("weights", "head_mean"):
        if name in known:
            return known[name].shape[-2], known[name].shape[-1]
    if {"entropy", "received"} <= known.keys():
        return known["entropy"].shape[-1], known["received"].shape[-1]
    raise ArgumentError(f"a page of an Observation needs weights, or for long inputs {ADVICE}")


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


def _from_capture(
    seen: Mapping[str, Observation],
    tokens: Sequence[str] | None,
    target: Sequence[str] | None,
    entry: int,
    grid: tuple[int, int] | None,
    image: Tensor | None,
) -> HypothesisViews:
    """Return the views of a captured model, or of observations by name; the names tell the kinds of attention."""
    if not seen:
        raise ArgumentError("nothing was captured: call the model inside the context, and make the page after it")
    for path, one in seen.items():
        if not isinstance(path, str):
            raise ArgumentError(
                f"seen must have a name for each attention, such as 'layer 0', got {shown(path)}: of a "
                "translation pass the whole, page(translation)"
            )
        if not isinstance(one, Observation):
            raise ArgumentError(
                f"seen[{path!r}] must be an Observation, got {shown(one)}: observe returns the output beside it"
            )
    two_texts = any(_CROSS.search(path) for path in seen)
    axes: Axes = {}
    views = []
    for path, one in seen.items():
        if one.batch is not None:
            if entry not in range(-one.batch, one.batch):
                raise ArgumentError(
                    f"entry must be one of the batch's {one.batch}, from 0 to {one.batch - 1}, got {entry!r}"
                )
            one = one[entry]
        group, queries, keys = _group_and_axes(path, two_texts)
        if isinstance(seen, Captured):
            sizes, dropped = seen.lengths(path), seen.dropped.get(seen.path(path), "")
        else:
            sizes, dropped = _lengths(one), ""
        one = _with_tokens(one, axes, (queries, keys), sizes, tokens, target)
        views.append(_view(path, group, (queries, keys), axes, one, dropped))
    if target is not None and "target" not in axes:
        raise ArgumentError("target is for an encoder-decoder; this model has one text: give its tokens as tokens")
    views.sort(key=lambda view: (*STACKS, "self").index(view.group))  # as they stand on the page
    axis = "source" if two_texts else "tokens"
    return HypothesisViews("", axes, _drawable(views), *_patches(axis, len(axes.get(axis, ())), grid, image))


def _group_and_axes(path: str, two_texts: bool) -> tuple[str, str, str]:
    """Return the group of the attention at this path, and the names of its queries' and keys' axes."""
    if _CROSS.search(path):
        return "source", "target", "source"
    if two_texts:
        return ("decoder", "target", "target") if _DECODER.search(path) else ("encoder", "source", "source")
    return "self", "tokens", "tokens"


def _patches(
    axis: str, length: int, grid: tuple[int, int] | None, image: Tensor | None
) -> tuple[dict[str, tuple[int, int]], dict[str, Tensor]]:
    """Return the grids and the images by axis, for an axis of this length. Raises ArgumentError if they don't fit."""
    if grid is None:
        if image is not None:
            raise ArgumentError("image needs grid: the rows and columns of its patches, such as grid=(14, 14)")
        return {}, {}
    pair = isinstance(grid, Sequence) and len(grid) == 2 and all(isinstance(n, int) and n >= 1 for n in grid)
    if not pair or grid[0] * grid[1] > length:
        raise ArgumentError(f"grid must be (rows, columns) of at most {length} patches, got {grid!r}")
    return {axis: grid}, {} if image is None else {axis: _as_pixels(image)}


def _as_pixels(image: Tensor) -> Tensor:
    """Return an image as uint8 (height, width, 3), made smaller if it has more pixels a side than a page shows."""
    if not isinstance(image, Tensor) or not (image.dim() == 2 or (image.dim() == 3 and image.shape[0] in (1, 3))):
        what = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ArgumentError(f"image must be a tensor (3, height, width) or (height, width), got {what}")
    pixels = image.detach().cpu().float() / (1 if image.is_floating_point() else 255)
    if not image.numel() or not 0 <= pixels.min() <= pixels.max() <= 1:
        raise ArgumentError(
            "image must be from 0 to 1, or uint8: give the picture as it was before it was normalised for the model"
        )
    if pixels.dim() == 2:
        pixels = pixels[None]
    if (longest := max(pixels.shape[1:])) > IMAGE_SIDE:
        size = [max(1, round(side * IMAGE_SIDE / longest)) for side in pixels.shape[1:]]
        pixels = functional.interpolate(pixels[None], size, mode="area")[0]
    return (pixels.expand(3, -1, -1) * 255).round().to(torch.uint8).permute(1, 2, 0)


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
    kept = [view for view in views if view.facts and (not view.heads or all(x.numel() for x in view.facts.values()))]
    if not kept:
        raise ArgumentError(
            f"nothing was captured that a page can draw: capture with Want(weights=True), or for long inputs {ADVICE}"
        )
    return kept


def _cut(one: Observation, queries: int, keys: int) -> Observation:
    """Return the Observation of a padded entry without its padding, at which no query that is left may look."""
    facts = one.tensors()
    for name in facts.keys() & {"weights", "head_mean"}:
        if keys < facts[name].shape[-1] and (most := float(facts[name][..., :queries, keys:].sum(-1).max())) > 0.001:
            raise ArgumentError(
                f"tokens leave out positions that carry up to {most:.1%} of a query's weight, so they aren't masked "
                f"padding: give all {facts[name].shape[-1]} tokens"
            )
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
