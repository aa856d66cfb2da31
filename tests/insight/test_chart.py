"""The pictures: layers keep their numbers, and the curve of a pruning goes through its scores."""

from dataclasses import replace

import pytest

from glassformer.insight.chart import plot_heads, plot_pruning
from glassformer.insight.heads import Head
from glassformer.insight.prune import Pruning, Round, without_heads
from glassformer.insight.speed import Speed
from glassformer.insight.study import study_heads


def test_the_picture_has_the_layers_numbers(run, sentences):
    fewer = replace(run, model=without_heads(run.model, {"encoder.0.self_attention": [0, 1, 2]}))
    encoder, *_ = plot_heads(study_heads(fewer, sentences)).axes
    assert [label.get_text() for label in encoder.get_yticklabels()] == ["1"]


def head(attention: str, number: int, without: float, role: str = "") -> Head:
    plain = dict.fromkeys(("confidence", "entropy", "positional", "previous", "next", "end", "importance"), 0.5)
    return Head(
        attention=attention, head=number, offset=-1, rare=None, syntax=None, without=without, role=role, **plain
    )


def model(layers: dict[str, int], heads: int) -> list[Head]:
    names = [f"{name.format(n)}_attention" for name, count in layers.items() for n in range(count)]
    return [head(name, n, 0.01 * n) for name in names for n in range(heads)]


SIX_LAYERS = {"encoder.{}.self": 6, "decoder.{}.self": 6, "decoder.{}.source": 6}


def test_panels_have_cells_of_one_size_and_one_top():
    figure = plot_heads(model({"encoder.{}.self": 3, "decoder.{}.self": 2, "decoder.{}.source": 2}, 4))
    figure.canvas.draw()
    *panels, _ = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["Encoder", "Decoder → itself", "Decoder → source"]
    cells = [axes.transData.transform([(0, 0), (1, 1)]) for axes in panels]
    sizes = {tuple(abs(second - first).round(3)) for first, second in cells}
    assert len(sizes) == 1
    width, height = sizes.pop()
    assert width == pytest.approx(height)
    assert len({first[1].round(3) for first, _ in cells}) == 1


def test_cells_tell_the_rise_of_the_loss_and_the_role_in_words_that_can_be_read():
    name = "encoder.0.self_attention"
    figure = plot_heads([head(name, 0, 0.1234), head(name, 1, -0.0001, "positional"), head(name, 2, -0.004)])
    encoder, bar = figure.axes
    written = {text.get_text(): (text.get_position()[0], text.get_color()) for text in encoder.texts}
    assert written == {"0.123": (0, "white"), "0.000": (1, "black"), "-1": (1, "black"), "-0.004": (2, "black")}
    assert bar.get_xlabel().splitlines() == [
        "loss without the head, minus loss with it, nats per token",
        "(darker: the model needs this head more)",
        "below the number, where the head looks: -1, +1, ... so many tokens away",
    ]


@pytest.mark.parametrize(("heads", "written"), [(8, 6 * 8), (16, 0)])
def test_many_heads_fit_and_have_numbers_only_where_these_can_be_read(heads, written):
    figure = plot_heads(model(SIX_LAYERS, heads))
    assert figure.get_size_inches()[0] < 15
    assert [len(axes.texts) for axes in figure.axes] == [written, written, written, 0]
    assert [len(axes.patches) for axes in figure.axes[:3]] == [6 * heads] * 3


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
    assert axes.get_ylabel() == "word error rate, %"
    assert axes.get_xlabel() == "heads left, % of 18"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "all 18 heads, trained as long",
        "fewer heads, trained on",
        "fewer heads, before training on",
    ]
    assert [text.get_text() for text in axes.texts] == ["9 heads", "6 heads"]
