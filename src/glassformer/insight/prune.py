"""Heads removed for good: a smaller model that computes the same as one in which they add nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from glassformer.errors import ArgumentError
from glassformer.insight.gates import attentions_of
from glassformer.transformer.model import Transformer


def without_heads(model: Transformer, removed: Mapping[str, Sequence[int]]) -> Transformer:
    """A copy of the model without these heads of its attentions, named by their paths; an attention may lose all.

    Their rows of the query, key and value projections and their columns of the output's are gone. Heads that are left
    are numbered anew.
    """
    attentions = attentions_of(model)
    if unknown := sorted(set(removed) - set(attentions)):
        raise ArgumentError(f"heads must be of the model's attentions, got {', '.join(unknown)}")
    left = {}
    for name, heads in removed.items():
        count = attentions[name].num_heads
        if wrong := [head for head in heads if not 0 <= head < count]:
            raise ArgumentError(f"{name} has heads 0 to {count - 1}, got {wrong[0]}")
        left[name] = [head for head in range(count) if head not in heads]
    state = model.state_dict()
    with_all = Transformer(model.config).to(model.target_embedding.weight)
    with_all.load_state_dict(state)
    for name, kept in left.items():
        attentions_of(with_all)[name].keep_heads(kept)
    counts = {**model.config.heads_left, **{name: len(kept) for name, kept in left.items()}}
    whole = model.config.heads
    with_all.config = replace(model.config, heads_left={name: count for name, count in counts.items() if count < whole})
    return with_all.train(model.training)
