"""The objective, against the cross-entropy of the model's own logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from glassformer.text.batching import Batch
from glassformer.training.objective import Objective
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

SOURCES = [torch.tensor([5, 6, 7, 0]), torch.tensor([8, 0])]
TARGETS = [torch.tensor([3, 4, 0]), torch.tensor([9, 2, 7, 0])]
IDS = 20


def made(**changes: object) -> Transformer:
    settings = dict(source_vocab_size=IDS, target_vocab_size=IDS, dropout=0.0, d_model=24, heads=3, d_ff=40)
    model = Transformer(ModelConfig(**{**settings, "encoder_layers": 1, "decoder_layers": 2, **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def batch_of(model: Transformer) -> Batch:
    return Batch.of(SOURCES, TARGETS, model.source_pad, model.target_pad)


def expected(model: Transformer, smoothing: float) -> Tensor:
    """Return the summed loss of the logits that the model gives itself."""
    start = torch.tensor([model.target_pad])
    target_in = pad_sequence([torch.cat([start, ids[:-1]]) for ids in TARGETS], True, model.target_pad)
    logits = model(pad_sequence(SOURCES, True, model.source_pad), target_in)
    targets = pad_sequence(TARGETS, True, -100)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("r_drop", [0.0, 3.0])  # of two equal passes it adds nothing
@pytest.mark.parametrize("changes", [{}, {"output_bias": True}, {"output_bias": True, "tied_output": False}], ids=str)
def test_loss_and_gradients_are_those_of_the_models_logits(changes, r_drop):
    model = made(**changes)
    loss, nll = Objective(model, torch.float64, 0.1, r_drop=r_drop)(batch_of(model))
    exact = expected(model, 0.1)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-12)
    assert nll.item() == pytest.approx(expected(model, 0.0).item(), rel=1e-12)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found, of_exact = (torch.autograd.grad(one, parameters) for one in (loss, exact))
    for name, grad, other in zip(names, found, of_exact, strict=True):
        assert_close(grad, other, rtol=1e-9, atol=1e-12, msg=name)
