"""Alignments read from attention: which words of a line a model looks at for each word of its translation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glassformer.alignment.heads import AligningHeads, read_aligning_heads, source_heads
from glassformer.alignment.links import Link
from glassformer.attention.attend import attend
from glassformer.attention.kernels.weigh import weigh
from glassformer.errors import ConfigError
from glassformer.generation.batches import batches_by_length, ended
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Engine, Stack, inferring
from glassformer.generation.translator import Translator
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import Tokenizer, check_lines
from glassformer.text.words import Word, split_words, words_of_tokens

BATCH_TOKENS = 4096
"""Most tokens of a side of a batch, padding included."""
LIKELY = 0.3
"""Least weight of a link beside the largest of a target word."""


@dataclass(frozen=True)
class Alignment:
    """The words of a line and of its translation, and which stand for which.

    Example: docs/howto/align.md.
    """

    source: list[Word]
    target: list[Word]
    links: list[Link]
    """The links, in the order of the source; their probability is the weight below."""
    weights: Float[Tensor, "target_words source_words"]
    """The attention of each target word to each source word; a row sums to at most 1, the rest is on the end."""


@dataclass(frozen=True)
class TokenizedLine:
    """A line with its tokens and words."""

    ids: list[int]
    """The ids of its tokens, without `</s>`."""
    words: list[Word]
    word_of: list[int]
    """The number of each token's word."""

    def tokens_by_word(self) -> Float[Tensor, "words tokens"]:
        """Return 1 where a token belongs to a word, else 0."""
        return torch.zeros(len(self.words), len(self.ids)).index_put_(
            (torch.tensor(self.word_of, dtype=torch.long), torch.arange(len(self.ids))), torch.ones(())
        )


def tokenize_lines(
    tokenizer: Tokenizer, lines: Sequence[str], side: str, words: Sequence[Sequence[Word]] | None = None
) -> list[TokenizedLine]:
    """Return the tokens and the words of lines, cut with a warning.

    Words are these, or else what white space separates, and in scripts without it each token.
    """
    found = list[TokenizedLine]()
    for n, (line, ids, spans) in enumerate(_tokens(tokenizer, lines, side)):
        starts = [start for start, _ in spans]
        own = split_words(line, starts) if words is None else list(words[n])
        if own:
            found.append(TokenizedLine(ids, own, words_of_tokens(starts[: len(ids)], own)))
        else:
            found.append(TokenizedLine([], [], []))
    return found


def tokenize_into_pieces(tokenizer: Tokenizer, lines: Sequence[str], side: str) -> list[TokenizedLine]:
    """Return the tokens of lines, cut with a warning, each a word of its own.

    A token that stands for no text, such as a lone space, is written as it stands in the vocabulary.
    """
    found = list[TokenizedLine]()
    for line, ids, spans in _tokens(tokenizer, lines, side):
        words = [
            Word(line[start:end] or token, start, end)
            for token, (start, end) in zip(tokenizer.tokens(ids), spans[: len(ids)], strict=True)
        ]
        found.append(TokenizedLine(ids, words, list(range(len(ids)))))
    return found


def _tokens(
    tokenizer: Tokenizer, lines: Sequence[str], side: str
) -> Iterator[tuple[str, list[int], list[tuple[int, int]]]]:
    """Yield each line with the ids of its tokens, without `</s>`, and where each begins and ends, those cut off too."""
    encoded = ended(tokenizer.encode(lines), lines, SearchConfig.max_source_tokens, side)
    for line, ids in zip(lines, encoded, strict=True):
        yield line, ids[:-1], tokenizer.spans(line) if ids else []


def choosing_command(folder: Path) -> str:
    """Return the command that chooses the aligning heads of a run."""
    return f"glassformer align {quote(str(folder))} --source PAIRS.tsv"


class AttentionAligner:
    """Aligns pairs by the attention that a run pays to the source as it reads the target.

    Example: docs/howto/align.md.
    """

    def __init__(self, translator: Translator, heads: AligningHeads | None = None) -> None:
        """Take the heads that the translator's run folder keeps, or others; ConfigError if there are none."""
        folder = translator.folder
        if heads is None and folder is not None:
            heads = read_aligning_heads(folder, translator.engine.config)
        if heads is None:
            source_heads(translator.engine.config)  # RunError for a run that has none to choose
            command = "" if folder is None else f"{choosing_command(folder)} chooses them, "
            raise ConfigError(
                f"{folder or 'this translator'} has no aligning heads chosen for its weights: {command}choose_heads "
                "from Python"
            )
        self.translator, self.heads = translator, heads

    def align(self, sources: Sequence[str], targets: Sequence[str], *, pieces: bool = False) -> list[Alignment]:
        """Return the alignment of each pair; an empty line has no links.

        With `pieces` tokens are aligned in place of words. Raises ConfigError unless there are as many targets.
        """
        _check_pairs(sources, targets)
        tokenize = tokenize_into_pieces if pieces else tokenize_lines
        return self._align(
            tokenize(self.translator.source_tokenizer, sources, "source"),
            tokenize(self.translator.target_tokenizer, targets, "target"),
        )

    def align_words(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        source_words: Sequence[Sequence[Word]],
        target_words: Sequence[Sequence[Word]],
    ) -> list[Alignment]:
        """Return the alignment of the given words of each pair, such as the tokens of another run."""
        _check_pairs(sources, targets)
        return self._align(
            tokenize_lines(self.translator.source_tokenizer, sources, "source", source_words),
            tokenize_lines(self.translator.target_tokenizer, targets, "target", target_words),
        )

    def _align(self, here: Sequence[TokenizedLine], there: Sequence[TokenizedLine]) -> list[Alignment]:
        aligned = [
            Alignment(x.words, y.words, [], torch.zeros(len(y.words), len(x.words)))
            for x, y in zip(here, there, strict=True)
        ]
        chosen = {self.heads.layer: self.heads.heads}
        for n, weights in source_weights(self.translator.engine, here, there, chosen):
            of_tokens = shifted(weights[self.heads.layer].mean(0), self.heads.shift)
            of_words, on_end = by_word(of_tokens, here[n], there[n])
            aligned[n] = Alignment(here[n].words, there[n].words, links_of(of_words, on_end), of_words)
        return aligned


def _check_pairs(sources: Sequence[str], targets: Sequence[str]) -> None:
    check_lines("sources", sources)
    check_lines("targets", targets)
    if len(sources) != len(targets):
        raise ConfigError(f"align needs a target for each source, got {len(sources)} and {len(targets)}")


def align_translation(translator: Translator, source: str, target: str) -> Alignment:
    """Return which words of a line the words of its translation stand for, by the run's aligning heads.

    Example: docs/howto/align.md.
    """
    return AttentionAligner(translator).align([source], [target])[0]


@inferring
def decode_with_weights(
    engine: Engine, source: Tensor, keep: Tensor, target_in: Tensor, heads: dict[int, tuple[int, ...]]
) -> tuple[
    Float[Tensor, "batch target_len classes"],
    dict[int, Float[Tensor, "batch heads target_len source_len"]],
]:
    """Return the logits of a batch, and the weights of some heads of the attention to the source by layer."""
    found = dict[int, Tensor]()

    def looking(stack: Stack, layer: int, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, causal: bool) -> Tensor:
        if stack == "source" and layer in heads:
            of = torch.tensor(heads[layer], device=q.device)
            dtype = torch.promote_types(q.dtype, torch.float32)
            found[layer] = weigh(q[:, of].to(dtype), k[:, of].to(dtype), keep=keep).cpu()
        return attend(q, k, v, keep=keep, causal=causal)

    return engine.decode(target_in, source, keep, looking), found


def source_weights(
    engine: Engine,
    sources: Sequence[TokenizedLine],
    targets: Sequence[TokenizedLine],
    heads: dict[int, tuple[int, ...]],
) -> Iterator[tuple[int, dict[int, Float[Tensor, "heads steps source_len"]]]]:
    """Yield the number of each pair with tokens on both sides and, by layer, the attention of some heads to the source.

    Step t has read the target's token t - 1, at the beginning the start, and predicts token t, at last the end. The
    last source position is `</s>`.
    """
    real = [n for n, (x, y) in enumerate(zip(sources, targets, strict=True)) if x.ids and y.ids]
    longest = [max(sources[n].ids, targets[n].ids, key=len) for n in real]
    for batch in batches_by_length(longest, BATCH_TOKENS, len(real)):
        numbers = [real[n] for n in batch]
        source, keep = pad_source([torch.tensor([*sources[n].ids, 0]) for n in numbers], engine.source_pad)
        target_in = pad_sequence(
            [torch.tensor([engine.target_pad, *targets[n].ids]) for n in numbers],
            batch_first=True,
            padding_value=engine.target_pad,
        )
        device = engine.device
        _, found = decode_with_weights(engine, source.to(device), keep.to(device), target_in.to(device), heads)
        for row, n in enumerate(numbers):
            steps, width = len(targets[n].ids) + 1, len(sources[n].ids) + 1
            yield n, {layer: weights[row, :, :steps, :width].float() for layer, weights in found.items()}


def shifted(
    weights: Float[Tensor, "*heads steps source_len"], shift: int
) -> Float[Tensor, "*heads target_len source_len"]:
    """Return the attention of the states that write the target's tokens, or with shift 1 of those that read them."""
    return weights[..., 1:, :] if shift else weights[..., :-1, :]


def by_word(
    weights: Float[Tensor, "*heads target_len source_len"], source: TokenizedLine, target: TokenizedLine
) -> tuple[Float[Tensor, "*heads target_words source_words"], Float[Tensor, "*heads target_words"]]:
    """Return the attention of each target word, the mean of its tokens', to each source word, and to `</s>`."""
    belongs = target.tokens_by_word()
    of_words = (belongs / belongs.sum(1, keepdim=True).clamp(min=1)) @ weights
    return of_words[..., :-1] @ source.tokens_by_word().T, of_words[..., -1]


def links_of(weights: Float[Tensor, "target_words source_words"], on_end: Float[Tensor, " target_words"]) -> list[Link]:
    """Return links in the order of the source: of each target word to the source word with most of its attention.

    Others that have LIKELY or more are linked too. A word that looks at the end of the source above all has no link.
    """
    best, place = weights.max(1)
    is_linked = best > on_end
    chosen = (weights >= LIKELY) & is_linked[:, None]
    chosen[torch.arange(len(place)), place] = is_linked
    return sorted(Link(s, t, round(min(1.0, float(weights[t, s])), 6)) for t, s in chosen.nonzero().tolist())
