"""The pictures: layers keep their numbers, and the curve of a pruning goes through its scores."""

from dataclasses import replace

from glassformer.insight.chart import plot_heads, plot_pruning
from glassformer.insight.prune import Pruning, Round, without_heads
from glassformer.insight.speed import Speed
from glassformer.insight.study import study_heads


def test_the_picture_has_the_layers_numbers(run, sentences):
    fewer = replace(run, model=without_heads(run.model, {"encoder.0.self_attention": [0, 1, 2]}))
    encoder, *_ = plot_heads(study_heads(fewer, sentences)).axes
    assert [label.get_text() for label in encoder.get_yticklabels()] == ["1"]


def test_the_curve():
    plain = dict(parameters=9, bytes=9, loss=1.0, removed={})
    whole = [Round(heads=18, before=30.0, score=31.0, **plain), Round(heads=18, before=31.0, score=31.5, **plain)]
    pruned = [Round(heads=9, before=20.0, score=30.5, **plain), Round(heads=6, before=18.0, score=29.0, **plain)]
    speed = Speed(before=1.0, after=1.0, ratio=1.0, low=1.0, high=1.0)
    report = Pruning(metric="wer", rounds=pruned, unpruned=whole, speed=speed, memory=(None, None), attentions={})
    (axes,) = plot_pruning(report).axes
    unpruned, trained, untrained = (list(zip(*line.get_data(), strict=True)) for line in axes.lines)
    share = 100 * 6 / 18
    assert unpruned == [(100, 30.0), (50, 31.0), (share, 31.5)]
    assert trained == [(100, 30.0), (50, 30.5), (share, 29.0)]
    assert untrained == [(50, 20.0), (share, 18.0)]
    assert axes.get_ylabel() == "wer"
