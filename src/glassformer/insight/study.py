"""A study of each head of a model on a set of sentences: statistics, importance for the task, and a role."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.want import Want
from glassformer.capture.capture import capture
from glassformer.data.held_out import is_usable
from glassformer.errors import DataError, RunError
from glassformer.insight.gates import importance, in_evaluation, loss_rise_without
from glassformer.insight.heads import Head
from glassformer.insight.syntax import SYNTACTIC_MARGIN, Arc, RelationCounts, Treebank
from glassformer.pairs.files import Pair
from glassformer.run.folder import Run
from glassformer.text.batching import Batch
from glassformer.text.tokenizer import EOS

POSITIONAL = 0.9
"""Share of the tokens whose largest weight must fall on one relative position to make a head positional (Voita et al.
2019, section 5.2.1)."""
RARE_WORDS = 0.66
"""Share of the sentences whose rarest or second rarest token must receive most of a head's attention to make it a head
for rare words: the share that Voita et al. 2019 (section 5.2.3) found in theirs."""
FREQUENT = 500
"""This many most frequent tokens are not rare. Sentences without a rarer one don't count."""
END = 0.5
"""Mean weight on the sentence's end that makes a head one that rests there."""
BATCH_TOKENS = 2048
"""Most tokens of a side of a batch, padding among them."""
FEWEST_AT_ONCE = 256
"""Fewest targets that are tokenised at once in search of sentences."""
LONGEST = 1024
"""Most tokens of a sentence that is studied: all weights of its attention are held at once."""


@dataclass(frozen=True)
class Sentences:
    """Pairs of sentences as ids that end with EOS, in batches of similar length, with what is known of the sources."""

    sources: list[Int[Tensor, " _"]]
    targets: list[Int[Tensor, " _"]]
    batches: list[list[int]]
    ranks: Mapping[int, int]
    """Rank of each source token by frequency; 0 is the most frequent."""
    arcs: list[list[Arc] | None]
    """Dependency arcs of each source; None where its tree is unknown."""

    @classmethod
    def from_pairs(cls, run: Run, pairs: Iterable[Pair], most: int, trees: Treebank | None = None) -> "Sentences":
        """Encode the first `most` pairs that have text on both sides; token frequencies are counted in all pairs.

        Pairs with a side of more than LONGEST tokens are left out. Raises DataError if there are no pairs, or if
        `trees` has a tree for none of them.
        """
        all_pairs = [pair for pair in pairs if is_usable(*pair)]
        if not all_pairs:
            raise DataError("there are no sentences to study: every line is empty")
        source, target = ([pair[side] for pair in all_pairs] for side in (0, 1))
        encoded = run.source_tokenizer.encode(source)
        frequencies = Counter(i for ids in encoded for i in ids)
        ranks = {token: rank for rank, (token, _) in enumerate(frequencies.most_common())}
        short, beside = [n for n, ids in enumerate(encoded) if len(ids) < LONGEST], dict[int, list[int]]()
        at_once = max(most, FEWEST_AT_ONCE)
        for begin in range(0, len(short), at_once):
            tried = short[begin : begin + at_once]
            ids_of = zip(tried, run.target_tokenizer.encode([target[n] for n in tried]), strict=True)
            beside |= {n: ids for n, ids in ids_of if len(ids) < LONGEST}
            if len(beside) >= most:
                break
        chosen = list(beside)[:most]
        if not chosen:
            raise DataError(f"there are no sentences to study: each is longer than {LONGEST:,} tokens")
        sources, targets = (
            [torch.tensor([*ids, EOS]) for ids in side]
            for side in ((encoded[n] for n in chosen), (beside[n] for n in chosen))
        )
        arcs: list[list[Arc] | None] = [None] * len(sources)
        if trees is not None:
            arcs = trees.arcs_of_all([run.source_tokenizer.surfaces(source[n]) for n in chosen])
        lengths = [(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
        return cls(sources, targets, _batches_of_similar_length(lengths), ranks, arcs)

    def batch(self, run: Run, indices: Sequence[int]) -> Batch:
        """Return these pairs as a batch on the model's device."""
        model = run.model
        source, target = ([side[n] for n in indices] for side in (self.sources, self.targets))
        return Batch.of(source, target, model.source_pad, model.target_pad).to(model.target_embedding.weight.device)


def _batches_of_similar_length(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the numbers of the pairs, given by their lengths, in batches of at most BATCH_TOKENS, or one pair."""
    batches: list[list[int]] = [[]]
    longest = 0
    for n in sorted(range(len(lengths)), key=lambda n: lengths[n]):
        longest = max(longest, *lengths[n])
        if batches[-1] and longest * (len(batches[-1]) + 1) > BATCH_TOKENS:
            batches.append([])
            longest = max(lengths[n])
        batches[-1].append(n)
    return batches


def study_heads(run: Run, sentences: Sentences) -> list[Head]:
    """Measure what each head of a run does on these sentences, in the order of the layers.

    Raises RunError if the model has no heads left.
    """
    if not any(attention.num_heads for attention in run.model.attentions.values()):
        raise RunError("this run has no attention heads left: there is nothing to study")
    statistics = {name: _Statistics(module.num_heads) for name, module in run.model.attentions.items()}
    with in_evaluation(run.model):
        batches = [sentences.batch(run, indices) for indices in sentences.batches]
        gradients, rises = importance(run.model, batches), loss_rise_without(run.model, batches)
        for indices, batch in zip(sentences.batches, batches, strict=True):
            with torch.no_grad(), capture(run.model, Want(weights=True)) as captured:
                cache = run.model.start(run.model.encode(batch.source, packing=batch.sources), packing=batch.sources)
                run.model.decode(batch.target_in, cache, batch.targets)
            sources, targets = batch.sources.keep[:, 0, 0].cpu(), batch.targets.keep[:, 0, 0].cpu()
            ends = sources & ~F.pad(sources[:, 1:], (0, 1))
            starts = torch.zeros_like(targets)
            starts[:, 0] = True
            for name, observation in captured.items():
                sums, weights = statistics[name], observation.weights.cpu()
                in_decoder = name.startswith("decoder")
                queries = targets if in_decoder else sources
                special = starts if in_decoder and "self_attention" in name else ends
                sums.add(weights, queries, special)
                if not in_decoder:
                    sums.add_rare(weights, [sentences.sources[n] for n in indices], sentences.ranks)
                    sums.add_arcs(weights, [sentences.arcs[n] for n in indices], batch.sources.keep.cpu())
    return [head for name, sums in statistics.items() for head in sums.heads(name, gradients[name], rises[name])]


class _Statistics:
    """Sums over sentences for the heads of one attention."""

    def __init__(self, heads: int) -> None:
        self._heads = heads
        self._tokens = 0
        self._confidence, self._entropy, self._previous, self._next, self._end = torch.zeros(5, heads).double()
        self._offsets = [Counter[int]() for _ in range(heads)]
        self._rare, self._sentences = torch.zeros(heads), 0
        self._relations = RelationCounts(heads)

    def add(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        queries: Bool[Tensor, "batch q_len"],
        special: Bool[Tensor, "batch k_len"],
    ) -> None:
        """Add a batch. `queries` marks those that are not padding, `special` marks the ends or the starts."""
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
        offsets = weights.argmax(-1) - torch.arange(weights.shape[2])
        for head, counts in enumerate(self._offsets):
            counts.update(offsets[:, head][queries].tolist())

    def add_rare(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        sources: Sequence[Int[Tensor, " _"]],
        ranks: Mapping[int, int],
    ) -> None:
        """Count the sources in which one of the two rarest tokens receives most."""
        for by_head, ids in zip(weights.sum(2), sources, strict=True):
            tokens = ids[:-1].tolist()
            if not tokens or max(ranks[token] for token in tokens) < FREQUENT:
                continue
            rarest = sorted(range(len(tokens)), key=lambda n: -ranks[tokens[n]])[:2]
            most = by_head[:, : len(tokens)].argmax(-1)
            self._rare += torch.stack([most == place for place in rarest]).any(0)
            self._sentences += 1

    def add_arcs(
        self,
        weights: Float[Tensor, "batch heads q_len k_len"],
        arcs: Sequence[list[Arc] | None],
        keep: Bool[Tensor, "batch 1 1 k_len"],
    ) -> None:
        """Count which tokens follow the relations of their sentence."""
        for by_head, of_sentence, length in zip(weights, arcs, keep.sum((1, 2, 3)).tolist(), strict=True):
            if of_sentence:
                self._relations.add(by_head[:, : length - 1, : length - 1], of_sentence)

    def heads(self, name: str, gradient: Float[Tensor, " heads"], rise: Float[Tensor, " heads"]) -> list[Head]:
        """Return the heads of the attention of this name."""
        heads = []
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
                syntax=self._relations.best(n),
                importance=float(gradient[n]),
                without=float(rise[n]),
                role="",
            )
            heads.append(replace(head, role=role_of(head)))
        return heads


def role_of(head: Head) -> str:
    """Return the first role whose criterion holds."""
    if head.positional >= POSITIONAL:
        return "positional"
    if head.syntax is not None and head.syntax.found >= head.syntax.by_position + SYNTACTIC_MARGIN:
        return "syntactic"
    if head.rare is not None and head.rare >= RARE_WORDS:
        return "rare words"
    return "end" if head.end >= END else ""
