"""Muon against singular value decompositions and its recursions done by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from glassformer.training.muon import POLYNOMIALS, Muon, orthogonal
from glassformer.training.optimizer import Optimizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

FINE = torch.tensor(0.0)


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (11, 11), (1, 13)])
def test_singular_vectors_stay_and_values_become_about_one(shape):
    matrices = torch.randn(3, *shape, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e6])[:, None, None]
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    inside = u.mT @ orthogonal(matrices, torch.float64) @ vh.mT
    values = inside.diagonal(dim1=1, dim2=2)
    assert_close(inside, torch.diag_embed(values), rtol=0, atol=1e-9)
    certain = s > 0.003 * torch.linalg.matrix_norm(matrices)[:, None]
    assert certain.any()
    assert ((values > 0.78) & (values < 1.21))[certain].all()
    assert (values < 1.21).all()


def test_each_of_a_stack_is_as_it_is_alone_and_zeros_stay():
    matrices = torch.randn(3, 5, 7)
    matrices[1] = 0
    found = orthogonal(matrices, torch.float32)
    assert (found[1] == 0).all()
    for one, alone in zip(found, matrices, strict=True):
        assert_close(one, orthogonal(alone[None], torch.float32)[0])


def test_the_polynomials_are_the_best_for_where_the_ones_before_bring_the_values():
    """The error of a best one is equally large at four points, with alternating signs (Chebyshev)."""
    low, high = 0.003, 1.0
    for a, b, c in POLYNOMIALS:
        x = torch.linspace(low, high, 400_001, dtype=torch.float64)
        found = 1.01 * (a * x + b * x**3 * 1.01**2 + c * x**5 * 1.01**4)
        bends = [low, *x[1:-1][(found[1:-1] - found[:-2]) * (found[2:] - found[1:-1]) < 0].tolist(), high]
        assert len(bends) == 4
        at = torch.tensor(bends, dtype=torch.float64)
        errors = 1 - 1.01 * (a * at + b * at**3 * 1.01**2 + c * at**5 * 1.01**4)
        assert_close(errors, errors[0] * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64), rtol=0.01, atol=0)
        low, high = a * low + b * low**3 + c * low**5, float(1 - errors[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 2, 100])
def test_no_value_explodes(dtype, rank):
    """A matrix of rank 1 has a singular value of 1 from the start, where the first polynomial is steepest."""
    matrices = torch.randn(4, 100, rank) @ torch.randn(4, rank, 150)
    found = torch.linalg.matrix_norm(orthogonal(matrices, dtype), ord=2)
    assert ((found > 0.75) & (found < 1.25)).all()


def test_in_bfloat16_it_is_near():
    matrices = torch.randn(2, 17, 31)
    found = orthogonal(matrices, torch.bfloat16)
    assert found.dtype == torch.float32
    assert_close(found, orthogonal(matrices, torch.float32), rtol=0, atol=0.06)


@pytest.mark.parametrize("size", [1e-15, 1e-20, 1e-30, 1e-37, 0.0])
def test_the_smallest_numbers_do_not_explode(size):
    """As gradients under a tiny clip_norm: their squares underflow."""
    found = orthogonal(size * torch.randn(2, 5, 7), torch.float32)
    assert found.isfinite().all()
    assert (torch.linalg.matrix_norm(found, ord=2) <= 1.3).all()


def test_its_steps_are_those_of_the_momentums_look_ahead():
    weight = nn.Parameter(torch.randn(6, 5, dtype=torch.float64))
    expected, mean = weight.detach().clone(), torch.zeros(6, 5, dtype=torch.float64)
    muon = Muon({weight: 1}, torch.float64)
    for rate in (0.1, 0.03, 0.2):
        weight.grad = torch.randn_like(weight)
        mean = 0.95 * mean + 0.05 * weight.grad
        ahead = 0.95 * mean + 0.05 * weight.grad
        expected -= rate * 0.2 * 6**0.5 * orthogonal(ahead[None], torch.float64)[0]
        muon.step(rate, FINE)
        assert_close(weight.detach(), expected)
        assert_close(muon.momentum[weight], mean)


def test_matrices_one_below_the_other_are_taken_by_themselves():
    parts = [nn.Parameter(torch.randn(5, 7)) for _ in range(3)]
    packed = nn.Parameter(torch.cat([part.detach() for part in parts]))
    for part in parts:
        part.grad = torch.randn(5, 7) * 10
    packed.grad = torch.cat([part.grad for part in parts])
    Muon({packed: 3}, torch.float32).step(0.1, FINE)
    Muon(dict.fromkeys(parts, 1), torch.float32).step(0.1, FINE)
    assert_close(packed.detach(), torch.cat([part.detach() for part in parts]))


def test_many_matrices_are_worked_on_a_few_at_a_time(monkeypatch):
    weights = [nn.Parameter(torch.randn(5, 7)) for _ in range(7)]
    twins = copy.deepcopy(weights)
    for weight, twin in zip(weights, twins, strict=True):
        weight.grad = twin.grad = torch.randn(5, 7)
    Muon(dict.fromkeys(weights, 1), torch.float32).step(0.1, FINE)
    monkeypatch.setattr("glassformer.training.muon.TOGETHER", 2 * 5 * 7)
    Muon(dict.fromkeys(twins, 1), torch.float32).step(0.1, FINE)
    assert_close(weights, twins)


def test_it_takes_the_layers_matrices_and_adam_the_rest():
    config = ModelConfig.preset("tiny", source_vocab_size=17, target_vocab_size=19, shared_vocab=False)
    model = Transformer(config)
    optimizer = Optimizer(model, "muon", torch.float32)
    for name, parameter in model.named_parameters():
        keys = {"momentum"} if "_proj" in name or "feed_forward." in name else {"step", "exp_avg", "exp_avg_sq"}
        keys = keys if name.endswith("weight") else {"step", "exp_avg", "exp_avg_sq"}
        assert optimizer.state(parameter).keys() == keys, name
    plain = Optimizer(model, "adam", torch.float32)
    assert all("momentum" not in plain.state(parameter) for parameter in model.parameters())


def test_an_attention_that_lost_its_heads_is_no_hindrance():
    attention = nn.Parameter(torch.zeros(0, 5)), nn.Parameter(torch.zeros(5, 0))
    model = Transformer(ModelConfig.preset("tiny", source_vocab_size=17, target_vocab_size=17, shared_vocab=True))
    model.encoder[0].self_attention.in_proj_weight, model.encoder[0].self_attention.out_proj.weight = attention
    optimizer = Optimizer(model, "muon", torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.1, FINE)
    assert all("momentum" not in optimizer.state(parameter) for parameter in attention)
