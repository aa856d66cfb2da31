"""Clipping in a training: scores are bounded, nothing else changes, and a continued training comes to the same bits."""

import copy

import pytest
import torch
from torch.testing import assert_close

from glassformer import Want, capture
from glassformer.run.names import WATCHED, WEIGHTS
from glassformer.text.batching import Batch
from glassformer.training.step import Step
from glassformer.training.train import resume, train
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

VOCAB, PAD = 17, 16
SIZES = dict(d_model=12, heads=3, encoder_layers=2, decoder_layers=1, d_ff=13, dropout=0.0)


@pytest.fixture
def model() -> Transformer:
    model = Transformer(ModelConfig(**SIZES, source_vocab_size=VOCAB, target_vocab_size=VOCAB))
    with torch.no_grad():
        for attention in model.attentions.values():
            attention.in_proj_weight[:24] *= 4  # scores of 16 times the size
            attention.in_proj_bias.normal_()
    return model


@pytest.fixture
def batch() -> Batch:
    lengths = [(5, 7), (11, 3), (2, 2)]
    ends = torch.zeros(1, dtype=torch.long)
    pairs = [[torch.cat([torch.randint(1, PAD, (n - 1,)), ends]) for n in pair] for pair in lengths]
    return Batch.of(*zip(*pairs, strict=True), PAD, PAD)


def step_of(model: Transformer, **changes) -> Step:
    return Step(model, dtype=torch.float32, label_smoothing=0.1, clip_norm=1.0, optimizer="muon", **changes)


def scores(model: Transformer, batch: Batch) -> dict[str, torch.Tensor]:
    """The largest of each head, as `capture` has them."""
    with torch.no_grad(), capture(model, Want(max_score=True)) as seen:
        step_of(model).loss(batch)
    return {name: seen[name].max_score.amax((0, 2)) for name in seen}


def test_scores_of_the_batch_are_bounded_and_of_other_heads_as_before(model, batch):
    before = scores(model, batch)
    highest = torch.cat(list(before.values()))
    threshold = float(highest.median())
    step_of(model, qk_clip=threshold).update([batch], rate=0.0, number=1)  # nothing but clipping changes weights
    clipped = [name for name, x in before.items() if (x > threshold).any()]
    assert 0 < (highest > threshold).sum() < len(highest)
    assert len(clipped) > 1
    after = scores(model, batch)
    first = clipped[0]  # what comes after has other inputs
    assert_close(after[first], before[first].clamp(max=threshold))


def test_values_and_everything_else_are_left_alone(model, batch):
    before = copy.deepcopy(model.state_dict())
    step_of(model, qk_clip=0.01).update([batch], rate=0.0, number=1)
    for name, x in model.state_dict().items():
        if "in_proj" in name:
            assert torch.equal(x[24:], before[name][24:])
            assert (x[:24].abs() <= before[name][:24].abs()).all()
            assert not torch.equal(x[:24], before[name][:24])
        else:
            assert torch.equal(x, before[name])


def test_batches_of_an_update_count_together(model, batch):
    together, alone = copy.deepcopy(model), copy.deepcopy(model)
    others = Batch.of([batch.source[0, :2]], [batch.target_out[:2]], PAD, PAD)
    step_of(together, qk_clip=3.0).update([batch, others], rate=0.0, number=1)
    step_of(alone, qk_clip=3.0).update([others], rate=0.0, number=1)
    first = "encoder.0.self_attention"
    assert scores(together, batch)[first].max() <= 3.001
    assert scores(alone, batch)[first].max() > 3.1


def test_below_the_threshold_training_is_the_same_to_the_bit(model, batch):
    other = copy.deepcopy(model)
    clipping, plain = step_of(model, qk_clip=1e6), step_of(other)
    for number in range(1, 4):
        clipping.update([batch], rate=0.01, number=number)
        plain.update([batch], rate=0.01, number=number)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_nothing_is_left_behind(model, batch):
    step_of(model, qk_clip=1.0).update([batch], rate=0.01, number=1)
    assert not any("_measure" in vars(attention) for attention in model.attentions.values())


@pytest.mark.usefixtures("unchecked")
def test_a_training_that_goes_on_comes_to_the_same_weights(tiny, tmp_path, interrupting):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n} b c\tc b {n}\n" for n in range(40)))
    settings = dict(source=pairs, valid_source=pairs, tokenizer="char", encoder_layers=1, decoder_layers=1)
    settings |= dict(watch=3, max_updates=8)
    whole = train(tiny(tmp_path / "whole", **settings, qk_clip=0.5)).folder
    with interrupting(5):
        run = train(tiny(tmp_path / "run", **settings, qk_clip=0.5)).folder
    resume(run)
    free = train(tiny(tmp_path / "free", **settings)).folder
    for name in (WATCHED, WEIGHTS):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
        assert (run / name).read_bytes() != (free / name).read_bytes()
