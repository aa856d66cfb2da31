"""The attention of what was generated, seen through `observe`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import get_args

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.attention.attend import attend
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.attention.want import Want
from glassformer.errors import ConfigError
from glassformer.generation.engine import Engine, Stack

STACKS: tuple[Stack, ...] = get_args(Stack)


@dataclass(frozen=True)
class Attention:
    """Observations of one translation, layer by layer; their batch axis is 1 long.

    Query i of `decoder` and `source` has read target_in[i] and predicts target_out[i]. What a source position
    receives from the whole translation, say, is `attention.source[5].received[0, head]`.
    """

    encoder: dict[int, Observation]
    """The source's attention to itself: queries and keys are source_tokens."""
    decoder: dict[int, Observation]
    """The translation's attention to what is written: queries and keys are target_in."""
    source: dict[int, Observation]
    """The translation's attention to the source: queries are target_in, keys are source_tokens."""
    source_tokens: list[str]
    target_in: list[str]
    target_out: list[str]


Seen = dict[Stack, dict[int, Observation]]


def check_attention(
    engine: Engine, want: Want | Mapping[Stack, Want], layers: Sequence[int] | None
) -> dict[Stack, dict[int, Want]]:
    """What to see of each stack and layer; ConfigError for stacks or layers that there are none of."""
    if not isinstance(want, Want | Mapping):
        raise _no_want(f"{want!r}")
    wants = dict.fromkeys(STACKS, want) if isinstance(want, Want) else want
    chosen = None if layers is None else _numbers(layers)
    counts = {"encoder": engine.config.encoder_layers, "decoder": engine.config.decoder_layers}
    counts["source"] = counts["decoder"]
    for stack, wanted in wants.items():
        if stack not in counts:
            raise ConfigError(f"attention is of {', '.join(STACKS)}, got {stack!r}")
        if not isinstance(wanted, Want):
            raise _no_want(f"{wanted!r} for {stack}")
        for layer in chosen or ():
            if not 0 <= layer < counts[stack]:
                raise ConfigError(f"layers must be from 0 to {counts[stack] - 1} for the {stack}, got {layer}")
    return {
        stack: dict.fromkeys(range(counts[stack]) if chosen is None else chosen, wanted)
        for stack, wanted in wants.items()
    }


def _no_want(got: str) -> ConfigError:
    return ConfigError(
        f"attention must be a Want, or one for each stack, such as {{'source': Want(top=3)}}, got {got}: say what to "
        "see, Want(entropy=True)"
    )


def _numbers(layers: Sequence[int]) -> list[int]:
    try:
        given = list(layers)
        if any(isinstance(layer, bool) for layer in given):
            raise TypeError
        return [index(layer) for layer in given]
    except TypeError:
        raise ConfigError(
            f"layers must be a sequence of whole numbers, such as [0, 2], got {layers!r}: for one layer pass [0], for "
            "all of them None"
        ) from None


@torch.inference_mode()
def see_attention(
    engine: Engine,
    source: Int[Tensor, "1 source_len"],
    target_in: Int[Tensor, "1 target_len"],
    wants: Mapping[Stack, Mapping[int, Want]],
) -> Seen:
    """What the layers see when `target_in` is read after `source`: the path that generation took, in one pass."""
    seen: Seen = {stack: {} for stack in STACKS}

    def look(stack: Stack, layer: int, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
        want = wants.get(stack, {}).get(layer)
        if want is None:
            return attend(q, k, v, keep=keep, causal=causal)
        fitted = want.fitted(q.shape[2], k.shape[2])
        output, seen[stack][layer] = observe(q, k, v, keep=keep, causal=causal, want=fitted)
        return output

    engine.decode(target_in, source, look=look)
    return seen


def align(
    engine: Engine, source: Int[Tensor, "1 source_len"], target_in: Int[Tensor, "1 target_len"], among: Sequence[int]
) -> list[int]:
    """Which of these source positions gets most attention at each step: last layer that has heads, their mean."""
    config = engine.config
    layers = [n for n in range(config.decoder_layers) if config.heads_of(f"decoder.{n}.source_attention")]
    if not layers:
        raise ConfigError("replace_unknown reads the attention to the source, of which this run has no heads left")
    last = layers[-1]
    seen = see_attention(engine, source, target_in, {"source": {last: Want(head_mean=True)}})
    weights = seen["source"][last].head_mean[0]
    return [among[place] for place in weights[:, list(among)].argmax(-1).tolist()]
