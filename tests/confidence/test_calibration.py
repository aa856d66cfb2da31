"""The fit of a calibration, its error worked out by hand, and its file."""

import json

import pytest
import torch
from msgspec.structs import asdict

from glassformer import ModelConfig
from glassformer.confidence.calibration import (
    Calibration,
    calibration_error,
    fit_logistic,
    fit_temperature,
    read_calibration,
    reliability,
    write_calibration,
)
from glassformer.confidence.features import FEATURES
from glassformer.errors import ArgumentError, RunError
from glassformer.run.names import CALIBRATION

KEPT = Calibration(
    weights=(0.5, *[0.25] * (len(FEATURES) - 1)),
    bias=-1.0,
    temperature=2.0,
    layer=0,
    heads=(1, 0),
    shift=0,
    omitted_below=0.125,
    omissions_found=0.5,
    false_alarms=0.02,
    lines=7,
    words=100,
    right=0.75,
)
MODEL = ModelConfig.tiny(source_vocab_size=11, target_vocab_size=11)


@pytest.fixture
def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a model that is too sure by a temperature of 2, and what is right."""
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(20_000, generator=generator)
    return logits, torch.bernoulli((logits / 2).sigmoid(), generator=generator)


def test_expected_calibration_error_is_that_worked_out_by_hand():
    bins = reliability([0.05, 0.05, 0.5, 0.98, 1.0], [0, 1, 1, 1, 0])
    assert [(one.size, round(one.probability, 9), one.right) for one in bins] == [
        (2, 0.05, 0.5),
        (1, 0.5, 1.0),
        (2, 0.99, 0.5),
    ]
    assert calibration_error(bins) == pytest.approx((2 * 0.45 + 1 * 0.5 + 2 * 0.49) / 5)
    with pytest.raises(ArgumentError, match="must be of the same words, at least one, got 1, 0"):
        reliability([0.5], [])
    with pytest.raises(ArgumentError, match="probabilities must be from 0 to 1, got nan"):
        reliability([0.5, float("nan")], [0, 1])
    with pytest.raises(ArgumentError, match="right must be from 0 to 1, got 2"):
        reliability([0.5], [2])
    with pytest.raises(ArgumentError, match="bins must be what reliability returns, at least one, got none"):
        calibration_error([])


def test_a_feature_that_hardly_differs_has_no_weight_that_a_file_can_not_hold():
    right = torch.arange(1000) % 2.0
    weights, bias = fit_logistic(torch.stack([right * 1e-8, right * 1e-2], dim=1), right)
    assert abs(float(weights[0])) < 1
    assert 100 < float(weights[1]) < 1e6
    assert abs(bias) < 1e6


def test_fit_recovers_the_temperature_that_the_data_were_drawn_with(drawn):
    logits, right = drawn
    assert fit_temperature(logits, right) == pytest.approx(2, abs=0.05)
    before = calibration_error(reliability(logits.sigmoid().tolist(), right.tolist()))
    after = calibration_error(reliability((logits / 2).sigmoid().tolist(), right.tolist()))
    assert before > 0.05 > 0.02 > after


def test_regression_finds_the_weights_and_passes_over_what_never_changes(drawn):
    logits, right = drawn
    weights, bias = fit_logistic(torch.stack([logits, torch.full_like(logits, 3.0)], dim=1), right)
    assert weights.tolist() == pytest.approx([0.5, 0.0], abs=0.02)
    assert bias == pytest.approx(0.0, abs=0.05)
    again, _ = fit_logistic(torch.stack([logits, torch.full_like(logits, 3.0)], dim=1), right)
    assert torch.equal(weights, again)


def test_regression_stays_finite_where_a_feature_tells_all():
    x = torch.tensor([[-1.0], [-2.0], [1.0], [2.0]])
    weights, bias = fit_logistic(x, torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert 0 < float(weights[0]) < 10
    assert bias == pytest.approx(0.0, abs=1e-6)


def test_file_is_read_as_it_was_written(tmp_path):
    assert read_calibration(tmp_path, MODEL) is None
    write_calibration(tmp_path, KEPT)
    assert read_calibration(tmp_path, MODEL) == KEPT
    features = torch.zeros(1, len(FEATURES))
    features[0, 0] = 4.0
    assert KEPT.probabilities(features).tolist() == pytest.approx([1 / (1 + 2.718281828459045**-1)])


def test_it_counts_for_the_weights_that_it_was_fitted_for(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"before")
    write_calibration(tmp_path, KEPT)
    assert read_calibration(tmp_path, MODEL) == KEPT
    (tmp_path / "model.safetensors").write_bytes(b"trained on")
    assert read_calibration(tmp_path, MODEL) is None
    write_calibration(tmp_path, KEPT)
    assert read_calibration(tmp_path, MODEL) == KEPT


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weights", [1.0], "weights must be"),
        ("temperature", 0, "temperature must be"),
        ("right", 1.5, "right must be"),
        ("heads", [99], "names head 99 of decoder.0.source_attention, which this model lacks: fit it again"),
        ("layer", 99, "names head 1 of decoder.99.source_attention, which this model lacks: fit it again"),
        ("surprise", 1, "has surprise, which is unknown"),
    ],
)
def test_damaged_file_is_refused_in_one_line(field, value, message, tmp_path):
    (tmp_path / CALIBRATION).write_text(json.dumps({**asdict(KEPT), field: value}))
    with pytest.raises(RunError, match=message) as error:
        read_calibration(tmp_path, MODEL)
    assert "\n" not in str(error.value)
