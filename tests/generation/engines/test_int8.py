"""Searches in eight bits: the same whatever else is in the batch, and near float32."""

import pytest
import torch

from glassformer.errors import RunError
from glassformer.generation.batches import search_all
from glassformer.generation.config import SearchConfig
from glassformer.generation.engines.engine import Engine
from glassformer.generation.kernels import passes
from glassformer.generation.kernels.quantized import can_quantize
from glassformer.generation.search import Hypothesis
from glassformer.text.batching import pad_source
from glassformer.text.tokenizer import EOS
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this processor or torch has no products of eight bits")
CLASSES, LENGTHS = 131, [3, 23, 7, 1, 11, 19, 5]


def model(**changes) -> Transformer:
    torch.manual_seed(3)
    sizes = dict(source_vocab_size=CLASSES, target_vocab_size=CLASSES, d_model=48, heads=3, d_ff=80)
    config = ModelConfig.tiny(**{**sizes, "encoder_layers": 2, "decoder_layers": 2, **changes})
    return Transformer(config).eval()


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [[*torch.randint(3, CLASSES - 1, (length,), generator=generator).tolist(), EOS] for length in LENGTHS]


def searched(engine: Engine, given: list[list[int]], **settings) -> list[list[Hypothesis]]:
    return search_all(engine, given, SearchConfig(max_length=83, n_best=settings.get("beam", 1), **settings))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.skipif(passes.compiled() is None, reason="torch's passes may differ in their last bits")
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(
    "changes", [{}, dict(activation="swish", norm_first=True, final_norm=True)], ids=["", "pre-norm"]
)
def test_hypotheses_are_the_same_to_the_last_bit_in_any_batch_and_with_any_threads(beam, changes):
    engine, threads = Engine.of(model(**changes), torch.float32, int8=True), torch.get_num_threads()
    whole = searched(engine, sources(), beam=beam)
    assert len({len(best.ids) for [best, *_] in whole}) > 3, "limits follow the source's length"
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for lines in (1, 3):
                assert searched(engine, sources(), beam=beam, batch_lines=lines) == whole
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("compiled", [True, False])
def test_logits_are_near_those_of_float32(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(passes, "compiled", lambda: None)
    made = model()
    source, keep = pad_source([torch.tensor(ids) for ids in sources()], made.source_pad)
    target = torch.randint(3, CLASSES - 1, (len(LENGTHS), 7))
    exact, rounded = (
        Engine.of(made, torch.float32, int8=int8).decode(target, source, keep)[..., : CLASSES - 1].detach()
        for int8 in (False, True)
    )
    assert (rounded - exact).std() < 0.05 * exact.std()


def test_numbers_that_overflow_are_said():
    made = model()
    made.decoder[0].feed_forward.inner.weight.data.fill_(1e30)
    with pytest.raises(RunError, match="the model computed numbers that are not finite"):
        searched(Engine.of(made, torch.float32, int8=True), sources(), beam=2)
