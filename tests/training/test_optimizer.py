"""Weight decay against torch's AdamW and a step done by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from glassformer.training.optimizer import Optimizer
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

FINE, HARMFUL = torch.zeros(()), torch.ones(())
RATE, DECAY = 0.01, 0.3


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(1)
    model = Transformer(ModelConfig.preset("tiny", source_vocab_size=17, target_vocab_size=19, shared_vocab=False))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_adams_decay_of_matrices_is_that_of_adamw(model):
    before, given = weights(model), gradients(model)
    Optimizer(model, "adam", torch.float32, DECAY).step(RATE, FINE)
    for name, parameter in model.named_parameters():
        twin = nn.Parameter(before[name])
        twin.grad = given[name]
        decay = DECAY if parameter.dim() == 2 else 0.0
        torch.optim.AdamW([twin], lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=decay).step()
        assert_close(parameter, twin, msg=name)
    assert any(parameter.dim() != 2 for parameter in model.parameters())


def test_muons_step_is_added_to_what_decay_leaves(model):
    before, given = weights(model), gradients(model)
    Optimizer(model, "muon", torch.float32).step(RATE, FINE)
    steps = {name: parameter.detach() - before[name] for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.data, parameter.grad = before[name].clone(), given[name]
    Optimizer(model, "muon", torch.float32, DECAY).step(RATE, FINE)
    for name, parameter in model.named_parameters():
        left = 1 - RATE * DECAY if parameter.dim() == 2 else 1.0
        assert_close(parameter, before[name] * left + steps[name], msg=name)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_nothing_decays_in_a_step_that_is_left_out(model, kind):
    before = weights(model)
    Optimizer(model, kind, torch.float32, DECAY).step(RATE, HARMFUL)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
