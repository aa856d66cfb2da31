"""Sharded weights (FSDP2) in one process, which is all of them; test_distributed.py has several."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close

from glassformer.text.batching import Batch
from glassformer.training.distributed import gather_rows, shard_weights
from glassformer.training.objective import Objective
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

VOCAB = 11
SIZES = dict(d_model=10, heads=2, encoder_layers=2, decoder_layers=3, d_ff=17, dropout=0.0)
WIDTHS = {10, 17, 2 * 10, 3 * 10}
"""Rows and columns of the layers' matrices; no batch has as many rows."""
LAYERS = 2 * (4 * 10 * 10 + 2 * 10 * 17) + 3 * (8 * 10 * 10 + 2 * 10 * 17)
"""Numbers in these matrices."""

pytestmark = pytest.mark.usefixtures("alone", "unchecked")


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def objective(dtype: torch.dtype, *, sharded: bool) -> Objective:
    torch.manual_seed(3)
    model = Transformer(ModelConfig(source_vocab_size=VOCAB, target_vocab_size=VOCAB, shared_vocab=True, **SIZES))
    whole = Objective(model, dtype, 0.1)
    return shard_weights(whole, torch.device("cpu"), dtype) if sharded else whole


def batch() -> Batch:
    draw = torch.Generator().manual_seed(5)
    ids = [torch.randint(2, VOCAB - 1, (length,), generator=draw) for length in (3, 5, 7)]
    return Batch.of(ids, ids, VOCAB - 1, VOCAB - 1)


def gradients(loss: Objective) -> dict[str, Tensor]:
    loss(batch())[0].backward()
    found = {name: parameter.grad for name, parameter in loss.named_parameters()}
    return {name: gather_rows(gradient) for name, gradient in found.items() if gradient is not None}


@pytest.mark.parametrize("sharded", [False, True])
def test_no_copy_of_the_layers_weights_waits_for_the_backward_pass(sharded):
    loss = objective(torch.bfloat16, sharded=sharded)
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bfloat16 and tensor.dim() == 2 and set(tensor.shape) <= WIDTHS:
            saved.append(tensor)
        return tensor

    with saved_tensors_hooks(save, lambda tensor: tensor):
        loss(batch())
    kept = sum({id(tensor): tensor.untyped_storage().nbytes() for tensor in saved}.values())
    assert len(saved) >= 2 * 4 + 3 * 7, "each of the layers' matrices"
    assert kept == 0 if sharded else kept >= 2 * LAYERS


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.05)])
def test_gradients_are_those_of_whole_weights_and_of_their_type(dtype, tolerance):
    expected, found = (gradients(objective(dtype, sharded=sharded)) for sharded in (False, True))
    assert found.keys() == expected.keys()
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    assert_close(found, expected, rtol=tolerance, atol=tolerance * scale)
