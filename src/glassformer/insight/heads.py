"""What each head of a model does, over a set of sentences: statistics, importance for the task, and a role."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.want import Want
from glassformer.capture.capture import capture
from glassformer.errors import DataError, RunError
from glassformer.insight.gates import importance, rise_without
from glassformer.insight.syntax import ABOVE, Following, Link, Syntax, Treebank
from glassformer.run.folder import Run
from glassformer.text.batching import Batch
from glassformer.text.pairs import Pair
from glassformer.text.tokenizer import EOS

POSITIONAL = 0.9
"""Share of the queries whose largest weight must fall on one relative position for a head to be positional (Voita et
al. 2019, section 5.2.1)."""
RARE = 0.66
"""Share of the sentences whose rarest or second rarest token must receive most of a head's attention for it to be one
for rare words: what Voita et al. 2019 (section 5.2.3) found of theirs."""
FREQUENT = 500
"""Tokens so frequent aren't rare: sentences without a rarer one don't count."""
PARKED = 0.5
"""Mean weight on the sentence's end from which on a head rests there."""
AT_ONCE = 2048
"""Tokens of a batch at the most."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A head, and what was measured of it. Means are over all tokens that look, but for padding."""

    attention: str
    """Path of its attention in the model."""
    head: int
    confidence: float
    """Mean of the largest weight, that on the source's end left aside."""
    entropy: float
    """Mean, in nats."""
    offset: int
    """The relative position on which the largest weight falls most often: -1 is the token before."""
    positional: float
    """Share of the tokens whose largest weight falls there."""
    previous: float
    """Mean weight on the token before; for attention to the source, on the position before."""
    next: float
    """Mean weight on the token after."""
    end: float
    """Mean weight on the source's end, or in the decoder's attention to itself on its start."""
    rare: float | None
    """Share of sentences in which the rarest token or the second rarest receives most; None where that is not asked:
    in the decoder, and of sentences without rare tokens."""
    syntax: Syntax | None
    """The relation it follows best; None in the decoder, without trees, and of relations that are too few."""
    importance: float
    """By the gradient: see `importance`."""
    without: float
    """How much the loss rises when the head is switched off, nats a token."""
    role: str
    """positional, syntactic, rare words, end, or nothing of these."""


@dataclass(frozen=True)
class Sentences:
    """Pairs as ids with their ends, in batches of like length, and how rare each source token is in the text."""

    sources: list[Int[Tensor, " _"]]
    targets: list[Int[Tensor, " _"]]
    batches: list[list[int]]
    ranks: Mapping[int, int]
    """0 is the most frequent token."""
    links: list[list[Link] | None]
    """Of each source, where its tree is known."""

    @classmethod
    def of(cls, run: Run, pairs: Iterable[Pair], most: int, trees: Treebank | None = None) -> "Sentences":
        """The first `most` pairs; DataError if there are none, or `trees` for none of them."""
        all_pairs = [pair for pair in pairs if all(pair)]
        if not all_pairs:
            raise DataError("there are no sentences to study: every line is empty")
        sides = ([pair[side] for pair in all_pairs] for side in (0, 1))
        source, target = next(sides), next(sides)
        encoded = run.source_tokenizer.encode(source)
        frequencies = Counter(i for ids in encoded for i in ids)
        ranks = {token: rank for rank, (token, _) in enumerate(frequencies.most_common())}
        sources, targets = (
            [torch.tensor([*ids, EOS]) for ids in side]
            for side in (encoded[:most], run.target_tokenizer.encode(target[:most]))
        )
        links: list[list[Link] | None] = [None] * len(sources)
        if trees is not None:
            links = trees.of([run.source_tokenizer.surfaces(line) for line in source[:most]])
        order = sorted(range(len(sources)), key=lambda n: (len(sources[n]), len(targets[n])))
        batches: list[list[int]] = [[]]
        for n in order:
            longest = max(len(sources[n]), len(targets[n]))
            if batches[-1] and longest * (len(batches[-1]) + 1) > AT_ONCE:
                batches.append([])
            batches[-1].append(n)
        return cls(sources, targets, batches, ranks, links)

    def batch(self, run: Run, indices: Sequence[int]) -> Batch:
        """These pairs, on the model's device."""
        model = run.model
        source, target = ([side[n] for n in indices] for side in (self.sources, self.targets))
        return Batch.of(source, target, model.source_pad, model.target_pad).to(model.target_embedding.weight.device)


def study_heads(run: Run, sentences: Sentences) -> list[Head]:
    """What each head does on these sentences, in the order of the layers; RunError if there is no head."""
    if not any(attention.num_heads for attention in run.model.attentions.values()):
        raise RunError("this run has no attention heads left: there is nothing to study")
    run.model.eval()
    batches = [sentences.batch(run, indices) for indices in sentences.batches]
    gradients, rises = importance(run.model, batches), rise_without(run.model, batches)
    sums = {name: _Sums(module.num_heads) for name, module in run.model.attentions.items()}
    for indices, batch in zip(sentences.batches, batches, strict=True):
        with torch.no_grad(), capture(run.model, Want(weights=True)) as seen:
            start = run.model.start(run.model.encode(batch.source, packing=batch.sources), packing=batch.sources)
            run.model.decode(batch.target_in, start, batch.targets)
        sources, targets = batch.sources.keep[:, 0, 0].cpu(), batch.targets.keep[:, 0, 0].cpu()
        ends = sources & ~F.pad(sources[:, 1:], (0, 1))
        starts = torch.zeros_like(targets)
        starts[:, 0] = True
        for name, one in seen.items():
            in_decoder = name.startswith("decoder")
            queries = targets if in_decoder else sources
            special = starts if in_decoder and "self_attention" in name else ends
            sums[name].add(one.weights.cpu(), queries, special)
            if not in_decoder:
                sums[name].add_rare(one.weights.cpu(), [sentences.sources[n] for n in indices], sentences.ranks)
                sums[name].add_links(one.weights.cpu(), [sentences.links[n] for n in indices], batch.sources.keep.cpu())
    return [head for name, found in sums.items() for head in found.heads(name, gradients[name], rises[name])]


def read_heads(path: Path) -> list[Head]:
    """Those that `glassformer heads` has left in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["heads"]
        return [Head(**{**one, "syntax": one["syntax"] and Syntax(**one["syntax"])}) for one in found]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not what glassformer heads writes ({error}): run it again") from None


def as_table(heads: Sequence[Head]) -> Iterator[str]:
    """Lines for people: a head each, under what the columns are."""
    width = max(len(head.attention) for head in heads)
    yield (
        f"{'attention':{width}}  head  loss without  importance  confidence  entropy  offset  there  before  after"
        "    end   rare  role"
    )
    for head in heads:
        rare = "" if head.rare is None else f"{head.rare:.0%}"
        yield (
            f"{head.attention:{width}}{head.head:6}{head.without:+14.4f}{head.importance:12.2f}{head.confidence:12.2f}"
            f"{head.entropy:9.2f}{head.offset:+8d}{head.positional:7.0%}{head.previous:8.0%}{head.next:7.0%}"
            f"{head.end:7.0%}{rare:>7}  {head.role}{f': {head.syntax}' if head.role == 'syntactic' else ''}"
        ).rstrip()


class _Sums:
    """Statistics of the heads of an attention, added up."""

    def __init__(self, heads: int) -> None:
        self._heads = heads
        self._tokens = 0
        self._confidence, self._entropy, self._previous, self._next, self._end = torch.zeros(5, heads).double()
        self._offsets = [Counter[int]() for _ in range(heads)]
        self._rare, self._sentences = torch.zeros(heads), 0
        self._following = Following(heads)

    def add(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        queries: Bool[Tensor, "batch q_len"],
        special: Bool[Tensor, "batch k_len"],
    ) -> None:
        """Of a batch, where `queries` are no padding and `special` are the ends, or the starts."""
        weights = weights.double()
        real = queries[:, None].to(weights.dtype)
        self._tokens += int(queries.sum())
        self._end += ((weights * special[:, None, None]).sum(-1) * real).sum((0, 2))
        self._entropy += (torch.special.entr(weights).sum(-1) * real).sum((0, 2))
        self._confidence += (weights.masked_fill(special[:, None, None], 0.0).amax(-1) * real).sum((0, 2))
        for total, offset in ((self._previous, -1), (self._next, 1)):
            beside = weights.diagonal(offset, 2, 3)  # query i, key i + offset
            first = max(0, -offset)
            total += (beside * real[..., first : first + beside.shape[2]]).sum((0, 2))
        away = weights.argmax(-1) - torch.arange(weights.shape[2])
        for head, offsets in enumerate(self._offsets):
            offsets.update(away[:, head][queries].tolist())

    def add_rare(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        sources: Sequence[Int[Tensor, " _"]],
        ranks: Mapping[int, int],
    ) -> None:
        """Which token of each source receives most: of the rarest two?"""
        for of_heads, ids in zip(weights.sum(2), sources, strict=True):
            tokens = ids[:-1].tolist()
            if not tokens or max(ranks[token] for token in tokens) < FREQUENT:
                continue
            rarest = sorted(range(len(tokens)), key=lambda n: -ranks[tokens[n]])[:2]
            most = of_heads[:, : len(tokens)].argmax(-1)
            self._rare += torch.stack([most == place for place in rarest]).any(0)
            self._sentences += 1

    def add_links(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        links: Sequence[list[Link] | None],
        keep: Bool[Tensor, "batch 1 1 k_len"],
    ) -> None:
        """Which tokens look along the relations of their sentence?"""
        for of_heads, of_sentence, length in zip(weights, links, keep.sum((1, 2, 3)).tolist(), strict=True):
            if of_sentence:
                self._following.add(of_heads[:, : length - 1, : length - 1], of_sentence)

    def heads(self, name: str, gradient: Float[Tensor, " heads"], rise: Float[Tensor, " heads"]) -> list[Head]:
        """The heads of the attention of this name."""
        found = []
        for n in range(self._heads):
            offset, count = min(self._offsets[n].items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
            head = Head(
                attention=name,
                head=n,
                confidence=float(self._confidence[n]) / self._tokens,
                entropy=float(self._entropy[n]) / self._tokens,
                offset=offset,
                positional=count / self._tokens,
                previous=float(self._previous[n]) / self._tokens,
                next=float(self._next[n]) / self._tokens,
                end=float(self._end[n]) / self._tokens,
                rare=float(self._rare[n]) / self._sentences if self._sentences else None,
                syntax=self._following.best(n),
                importance=float(gradient[n]),
                without=float(rise[n]),
                role="",
            )
            found.append(replace(head, role=role_of(head)))
        return found


def role_of(head: Head) -> str:
    """By the criteria above, the first that holds."""
    if head.positional >= POSITIONAL:
        return "positional"
    if head.syntax is not None and head.syntax.found >= head.syntax.by_position + ABOVE:
        return "syntactic"
    if head.rare is not None and head.rare >= RARE:
        return "rare words"
    return "end" if head.end >= PARKED else ""
