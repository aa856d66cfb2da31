"""Importance of heads, against losses and gradients written out."""

from collections import Counter
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from glassformer.errors import ArgumentError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.insight.gates import gated, importance, least_missed, loss_rise_without
from glassformer.insight.study import Sentences
from glassformer.run.folder import Run


def loss_of(run: Run, source: Tensor, target: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Negative log-likelihood of one target, summed, by the model's plain forward pass with some weights replaced."""
    target_in = torch.cat([torch.tensor([run.model.target_pad]), target[:-1]])
    logits = torch.func.functional_call(run.model, weights or {}, (source[None], target_in[None]))
    return F.cross_entropy(logits[0], target, reduction="sum")


@pytest.fixture
def batches(run, sentences):
    return [sentences.batch(run, indices) for indices in sentences.batches]


@torch.no_grad()
def test_without_a_head_is_its_columns_of_the_output_zeroed(run, batches, encoded):
    rises = loss_rise_without(run.model, batches)
    tokens = sum(len(target) for _, target in encoded)
    base = sum(loss_of(run, *pair) for pair in encoded) / tokens
    for name, attention in run.model.attentions.items():
        for head in range(attention.num_heads):
            weight = attention.out_proj.weight.clone()
            weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
            changed = {f"{name}.out_proj.weight": weight}
            rise = sum(loss_of(run, *pair, changed) for pair in encoded) / tokens - base
            assert rises[name][head].item() == pytest.approx(rise.item(), abs=2e-5), (name, head)


def test_importance_is_the_mean_over_sentences_of_the_gradients_size(run, batches, encoded):
    found = importance(run.model, batches)
    for name, attention in run.model.attentions.items():
        total, weight = torch.zeros(3), attention.out_proj.weight.detach()
        for pair in encoded:
            gate = torch.ones(3, requires_grad=True)
            changed = {f"{name}.out_proj.weight": weight * gate.repeat_interleave(attention.head_dim)}
            total += torch.autograd.grad(loss_of(run, *pair, changed), gate)[0].abs()
        assert_close(found[name].float(), total / total.norm(), rtol=1e-3, atol=1e-5)


# Slow: the loss without a head is measured again before each of 12 goes.
@pytest.mark.usefixtures("unchecked")
def test_one_of_two_heads_that_replace_each_other_stays(run, pairs):
    name = "encoder.0.self_attention"
    attention = run.model.attentions[name]
    q_k_v = attention.in_proj_weight.detach().view(3, 3, attention.head_dim, -1)
    columns = attention.out_proj.weight.detach().view(-1, 3, attention.head_dim)
    q_k_v[:, 1], columns[:, 1] = q_k_v[:, 0], columns[:, 0]
    columns.mul_(100)  # so that after the norm one of the two says what both do
    sources = [source for source, _ in pairs if source]
    translator = Translator.of(run.model, run.source_tokenizer, run.target_tokenizer, precision="float32")
    targets = translator.translate(sources, SearchConfig(beam=1, min_length=4, max_length=6))
    own = Sentences.from_pairs(run, list(zip(sources, targets, strict=True)), 100)
    batches = [own.batch(run, indices) for indices in own.batches]

    alone = loss_rise_without(run.model, batches)
    ranked = sorted((float(rise), path, head) for path, rises in alone.items() for head, rise in enumerate(rises))
    order, twins = [(path, head) for _, path, head in ranked], {(name, 0), (name, 1)}
    count = 1 + max(order.index(twin) for twin in twins)
    assert count < 18
    chosen = least_missed(run.model, batches, count)
    assert len(set(chosen)) == count
    assert not twins <= set(chosen)
    assert least_missed(run.model, batches, 2) == chosen[:2]
    most = least_missed(run.model, batches, 12)  # leaves one to each of the six attentions
    assert Counter(path for path, _ in most) == dict.fromkeys(alone, 2)
    assert most[:count] == chosen
    assert len(twins & set(most)) == 1
    assert set(least_missed(run.model, batches, 18)) == {(path, head) for path in alone for head in range(3)}
    with pytest.raises(ArgumentError, match="count must be from 0 to the model's 18 heads, got 19"):
        least_missed(run.model, batches, 19)


def test_gates_leave_nothing_behind_and_must_be_of_the_model(run):
    before = {name: set(module.__dict__) for name, module in run.model.named_modules()}
    with pytest.raises(ArgumentError, match=r"such as encoder\.0\.self_attention, got encoder\.7"):
        gated(run.model, {"encoder.7": torch.ones(1, 3)}).__enter__()
    with pytest.raises(ZeroDivisionError), gated(run.model, {"encoder.0.self_attention": torch.ones(1, 3)}):
        raise ZeroDivisionError
    assert {name: set(module.__dict__) for name, module in run.model.named_modules()} == before
