"""Translations as they are returned, and their attention, observed along the path that generation took."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import get_args

from jaxtyping import Int
from torch import Tensor

from glassformer.attention.attend import attend
from glassformer.attention.observation import Observation
from glassformer.attention.observe import observe
from glassformer.attention.want import Want
from glassformer.errors import ConfigError
from glassformer.generation.engines.engine import Engine, Stack, inferring
from glassformer.generation.lexical.lines import LexicalUse
from glassformer.text.tokenizer import UNK, UNKNOWN
from glassformer.transformer.config import ModelConfig

STACKS: tuple[Stack, ...] = get_args(Stack)
PATHS: dict[Stack, str] = {
    "encoder": "encoder.{}.self_attention",
    "decoder": "decoder.{}.self_attention",
    "source": "decoder.{}.source_attention",
}
"""Path of each stack's attention in a model, with {} for the number of its layer."""


@dataclass(frozen=True)
class TranslationAttention:
    """Observations of one translation, layer by layer; their batch axis is 1 long.

    Query i of `decoder` and `source` has read target_in[i] and predicts target_out[i]. For example, what each source
    position receives from the whole translation is `attention.source[5].received[0, head]`.

    Example: docs/generation.md.
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


@dataclass(frozen=True)
class NextToken:
    """A token that follows others in a translation: chosen by `Translator.write`, or one of its `alternatives`.

    Example: docs/howto/serve.md.
    """

    id: int
    token: str
    """Name the token as the vocabulary does."""
    log_prob: float
    """Give its log-probability, in nats."""
    text: str
    """Hold the translation up to it. `write` gives it in whole characters."""


def additions(tokens: Iterator[NextToken]) -> Iterator[str]:
    """Yield what each token adds to the text."""
    length = 0
    for one in tokens:
        if len(one.text) > length:
            yield one.text[length:]
            length = len(one.text)


@dataclass(frozen=True)
class Translation:
    """One translation of a line, and how likely the model finds it.

    Example: docs/generation.md.
    """

    text: str
    score: float
    """Log-probability divided by the length penalty; higher is better."""
    log_prob: float
    """Sum of the tokens' log-probabilities, in nats."""
    tokens: list[str]
    """The target tokens, without `</s>`."""
    token_log_probs: list[float]
    """Each token's log-probability, in nats; the last one is that of `</s>`, if it came before the limit."""
    attention: TranslationAttention | None = None
    """Observations of its attention, if asked for."""
    lexical: LexicalUse | None = None
    """Counts of the glossary's terms and the placeholders in it; None where there were none to look for."""
    cut: bool = False
    """True where it reached its limit (`max_length`, or 3 tokens for each of the source's, plus 50) before `</s>`."""


Observations = dict[Stack, dict[int, Observation]]
"""Stack -> layer -> observation."""


def check_attention(
    engine: Engine, want: Want | Mapping[Stack, Want], layers: Sequence[int] | None
) -> dict[Stack, dict[int, Want]]:
    """Return what is wanted from each stack and layer; ConfigError for a stack or layer that the model lacks."""
    if not isinstance(want, Want | Mapping):
        raise _not_a_want(f"{want!r}")
    wants = dict.fromkeys(STACKS, want) if isinstance(want, Want) else want
    chosen = None if layers is None else _layer_numbers(layers)
    counts = {"encoder": engine.config.encoder_layers, "decoder": engine.config.decoder_layers}
    counts["source"] = counts["decoder"]
    for stack, wanted in wants.items():
        if stack not in counts:
            raise ConfigError(f"attention must be asked for by stack, one of {', '.join(STACKS)}, got {stack!r}")
        if not isinstance(wanted, Want):
            raise _not_a_want(f"{wanted!r} for {stack}")
        for layer in chosen or ():
            if not 0 <= layer < counts[stack]:
                raise ConfigError(f"layers must be from 0 to {counts[stack] - 1} for the {stack}, got {layer}")
    return {
        stack: dict.fromkeys(range(counts[stack]) if chosen is None else chosen, wanted)
        for stack, wanted in wants.items()
    }


def count_weights(
    config: ModelConfig, layers: Mapping[Stack, Iterable[int]], source: int, targets: Sequence[int]
) -> int:
    """Return how many weights these layers' heads have for a source and its translations, of so many tokens each."""
    sizes: dict[Stack, int] = {
        "encoder": len(targets) * source**2,
        "decoder": sum(target**2 for target in targets),
        "source": sum(target * source for target in targets),
    }
    return sum(
        config.heads_of(PATHS[stack].format(layer)) * sizes[stack] for stack, which in layers.items() for layer in which
    )


def _not_a_want(got: str) -> ConfigError:
    return ConfigError(
        f"attention must be a Want, or one for each stack, such as {{'source': Want(top=3)}}, got {got}: say what is "
        "wanted, Want(entropy=True)"
    )


def _layer_numbers(layers: Sequence[int]) -> list[int]:
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


@inferring
def observe_translation(
    engine: Engine,
    source: Int[Tensor, "1 source_len"],
    target_in: Int[Tensor, "1 target_len"],
    wants: Mapping[Stack, Mapping[int, Want]],
) -> Observations:
    """Return what these layers attend to while `target_in` is read after `source`, in one pass."""
    observations: Observations = {stack: {} for stack in STACKS}

    def observing(stack: Stack, layer: int, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool):
        want = wants.get(stack, {}).get(layer)
        if want is None:
            return attend(q, k, v, keep=keep, causal=causal)
        fitted = want.fitted(q.shape[2], k.shape[2])
        output, observations[stack][layer] = observe(q, k, v, keep=keep, causal=causal, want=fitted)
        return output

    engine.decode(target_in, source, attention=observing)
    return observations


def align(
    engine: Engine, source: Int[Tensor, "1 source_len"], target_in: Int[Tensor, "1 target_len"], among: Sequence[int]
) -> list[int]:
    """Return which of the source positions `among` gets most attention at each step.

    Attention is that of the last layer which has heads left, mean of the heads.
    """
    layers = engine.config.source_heads
    if not layers:
        raise ConfigError("replace_unknown reads the attention to the source, of which this run has no heads left")
    last = max(layers)
    observations = observe_translation(engine, source, target_in, {"source": {last: Want(head_mean=True)}})
    weights = observations["source"][last].head_mean[0]
    return [among[i] for i in weights[:, list(among)].argmax(-1).tolist()]


def replace_unknown(
    text: str,
    ids: Sequence[int],
    places: Sequence[int],
    surfaces: Sequence[str],
    attended: Callable[[Sequence[int]], list[int]],
) -> str:
    """Return `text` with each unknown token replaced by the source token that got most of its attention.

    The text is that of the tokens `ids` at `places`, and `surfaces` are the texts of the source's tokens. `attended`
    returns for each of `ids` which of the source's positions that it is given it attends to most.
    """
    among = [position for position, surface in enumerate(surfaces) if surface]
    if not among:
        return text
    positions = attended(among)
    parts = text.split(UNKNOWN)
    chosen = [surfaces[positions[place]] for place in places if ids[place] == UNK]
    if len(parts) != len(chosen) + 1:  # the text has the mark for other reasons too
        return text
    return "".join(part + new for part, new in zip(parts, [*chosen, ""], strict=True))
