"""Watching a training: what is looked at, what the figures are, and that nothing is left behind."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from glassformer import GlassformerError, MultiheadAttention, Want, capture, observe, watch
from glassformer.capture.alarms import Alarms, AttentionWarning
from glassformer.capture.heat import plot_sightings
from glassformer.capture.sightings import Sighting, read_sightings
from glassformer.errors import ArgumentError

from .conftest import make_encoder

B, L, E = 2, 7, 24
PATHS = ["layers.0.self_attn", "layers.1.self_attn"]
SEEN = Want(entropy=True, lse=True, distance=True)


def inputs() -> Tensor:
    return torch.randn(B, L, E)


def attributes(model: nn.Module) -> list[dict[str, Any]]:
    """What each module holds, but for its containers, which are compared by the modules in them."""
    return [{key: value for key, value in vars(module).items() if key[0] != "_"} for module in model.modules()]


@pytest.fixture
def model() -> nn.Module:
    return make_encoder(dropout=0.0)


def test_looks_at_every_so_manieth_step_and_leaves_the_others_alone(model):
    before = attributes(model)
    with watch(model, every=3) as seen:
        for step in range(8):
            assert seen.watching == (step % 3 == 0)
            assert (attributes(model) == before) == (step % 3 != 0)
            model(inputs()).sum().backward()
            sighting = seen.log(step)
            assert (sighting is None) == (step % 3 != 0)
    assert attributes(model) == before
    assert [sighting.step for sighting in seen.sightings] == [0, 3, 6]
    assert list(seen.sightings[0].figures) == PATHS


@pytest.mark.parametrize(
    ("steps", "seen_at"),
    [
        (range(1, 8), [1, 3, 6]),
        ([0, 2, 4, 6, 8, 10], [0, 4, 6, 10]),  # the next multiple of 3 is reached or passed
        ([7, 8, 9, 10], [7, 9]),
        ([4, 5, 0, 1, 2, 3], [4, 0, 3]),
    ],
)
def test_steps_are_looked_at_by_their_numbers(model, steps, seen_at):
    with watch(model, every=3) as seen:
        for step in steps:
            model(inputs())
            seen.log(step)
    assert [sighting.step for sighting in seen.sightings] == seen_at


def test_step_looks_inside_alone(model):
    before = attributes(model)
    seen = watch(model, every=3)
    for step in range(1, 8):
        with seen.step(step):
            assert seen.watching == (step in (1, 3, 6))
            model(inputs())
        assert attributes(model) == before
    assert [sighting.step for sighting in seen.sightings] == [1, 3, 6]


def test_a_training_that_goes_on_has_the_sightings_of_before(model, tmp_path):
    path = tmp_path / "attention.jsonl"
    first = watch(model, every=2, file=path)
    for step in range(5):
        with first.step(step):
            model(inputs())
    with path.open("a") as file:
        file.write('{"step": 6, "lay')
    second = watch(model, every=2, file=path)
    second.restore(3)
    assert [sighting.step for sighting in second.sightings] == [0, 2]
    for step in (4, 5, 6):
        with second.step(step):
            model(inputs())
    assert [sighting.step for sighting in read_sightings(path)] == [0, 2, 4, 6]
    assert len(path.read_text().splitlines()) == 4


def test_figures_are_those_of_the_captured_facts(model):
    x = inputs()
    with capture(model, SEEN) as captured:
        model(x)
    with watch(model, want=SEEN) as seen:
        model(x)
        figures = seen.log(0).figures
    for path in PATHS:
        observation = captured[path]
        assert_close(figures[path]["entropy"], (observation.entropy.mean((0, 2)) / math.log(L)).tolist())
        assert_close(figures[path]["lse"], observation.lse.amax((0, 2)).tolist())
        assert_close(figures[path]["distance"], observation.distance.mean((0, 2)).tolist())


def test_passes_of_a_step_are_taken_together(model):
    batches = inputs(), torch.randn(3, 11, E)
    figures = []
    for some in ([batches[0]], [batches[1]], batches):
        with watch(model, want=SEEN) as seen:
            for batch in some:
                model(batch).sum().backward()
            figures.append(seen.log(0).figures[PATHS[0]])
    first, second, both = figures
    queries = B * L, 3 * 11
    for head in range(4):
        mean = (first["entropy"][head] * queries[0] + second["entropy"][head] * queries[1]) / sum(queries)
        assert both["entropy"][head] == pytest.approx(mean, rel=1e-5)
        assert both["lse"][head] == max(first["lse"][head], second["lse"][head])


def test_entropy_of_causal_attention_is_a_share_of_what_a_query_may_see():
    attention = MultiheadAttention(E, 3, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.zero_()  # equal scores: every query looks everywhere alike
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    x = inputs()
    with watch(attention, want=Want(entropy=True)) as seen:
        attention(x, x, x, attn_mask=causal, is_causal=True)
        [facts] = seen.log(0).figures.values()
    assert_close(facts["entropy"], [1.0] * 3)


def test_entropy_of_padded_attention_is_a_share_of_what_is_no_padding():
    attention = MultiheadAttention(E, 3, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.zero_()
    x = inputs()
    padding = torch.arange(L).expand(B, L) >= torch.tensor([[3], [L]])
    causal = nn.Transformer.generate_square_subsequent_mask(L) != 0
    for mask in (None, causal):
        with watch(attention, want=Want(entropy=True)) as seen:
            attention(x, x, x, key_padding_mask=padding, attn_mask=mask)
            [facts] = seen.log(0).figures.values()
        assert_close(facts["entropy"], [1.0] * 3)


class WithSinks(nn.Module):
    """Looks alike at all keys, a sink's logit, log 2, being that of two more."""

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(B, 3, L, 4)
        output, _ = observe(zeros, zeros, zeros, causal=True, sinks=torch.full((3,), 2.0).log())
        return output


def test_entropy_of_causal_attention_with_sinks_is_a_share_of_what_a_query_may_see():
    model = WithSinks()
    with watch(model) as seen:
        model(inputs())
        [facts] = seen.log(0).figures.values()
    shares = [n / (n + 2) * math.log(n + 2) / math.log(n) for n in range(2, L + 1)]
    assert_close(facts["entropy"], [sum(shares) / len(shares)] * 3, rtol=1e-5, atol=0)


def test_queries_that_look_nowhere_dont_count(model):
    attention = MultiheadAttention(E, 3, batch_first=True)
    x = inputs()
    kept = {}
    for name, batch, blocked in (
        ("all", x, torch.arange(L).expand(B, L) < torch.tensor([[0], [L]])),
        ("one", x[:1], torch.zeros(1, L, dtype=torch.bool)),
    ):
        with watch(attention, want=SEEN) as seen:
            attention(batch, batch, batch, key_padding_mask=blocked)
            [kept[name]] = seen.log(0).figures.values()
    for fact, values in kept["one"].items():
        assert_close(kept["all"][fact], values)


def test_evaluation_is_left_out_and_its_outputs_are_the_same(model):
    x = inputs()
    expected = model.eval()(x)
    with watch(model.train(), want=SEEN) as seen:
        model(x)
        with torch.no_grad():
            assert_close(model.eval()(2 * x), model(2 * x))
            assert_close(model(x), expected)
        model.train()
        figures = seen.log(0).figures
    with watch(model, want=SEEN) as seen:
        model(x)
        assert seen.log(0).figures == figures


def test_a_step_of_evaluation_passes_its_turn_on(model):
    with watch(model, every=5) as seen:
        model.eval()(inputs())
        assert seen.log(0) is None
        assert seen.watching
        model.train()(inputs())
        assert seen.log(1).step == 1
        assert not seen.watching


def test_a_training_that_was_never_seen_is_warned_of(model):
    def train() -> None:
        with watch(model.eval()) as seen:
            for step in range(2):
                model(inputs())
                seen.log(step)

    with pytest.warns(AttentionWarning, match="saw nothing in 2 steps, because the model was in evaluation mode"):
        train()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_pass_that_checkpointing_computes_again_counts_once(model, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model.layers

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    x = inputs().requires_grad_()
    checkpointed = Checkpointed()
    with watch(checkpointed, want=SEEN) as seen:
        checkpointed(x).sum().backward()
        calls = [len(passes) for passes in seen._step._reduced.values()]
        figures = seen.log(0).figures
    assert calls == [2, 2]
    with watch(model, want=SEEN) as plain:
        model(x)
        expected = plain.log(0).figures
    for path in PATHS:
        for fact, values in expected[path].items():
            assert_close(figures[path][fact], values)


def test_no_graph_is_kept(model):
    with watch(model) as seen:
        model(inputs()).sum().backward()
        kept = [x for passes in seen._step._reduced.values() for one in passes for x in one.values()]
        assert kept
        assert not any(x.requires_grad for x in kept)
        seen.log(0)


def test_gradients_are_those_of_an_unwatched_step(model):
    x = inputs()
    model(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with watch(model):
        model(x).square().sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-5)


def test_an_error_inside_leaves_nothing_behind(model):
    before = attributes(model)
    seen = watch(model, every=1)
    with pytest.raises(RuntimeError, match="shape"), seen:
        model(torch.randn(B, L, E + 1))
    assert attributes(model) == before
    with seen:  # and it may be entered again
        model(inputs())
        assert seen.log(1).step == 1


def test_lines_of_the_file_are_the_sightings(model, tmp_path):
    with watch(model, every=2, file=tmp_path / "attention.jsonl") as seen:
        for step in range(3):
            model(inputs())
            seen.log(step)
    lines = [json.loads(line) for line in (tmp_path / "attention.jsonl").read_text().splitlines()]
    assert lines == [sighting.to_json() for sighting in seen.sightings]
    assert [line["step"] for line in lines] == [0, 2]
    assert lines[0]["layers"][PATHS[1]]["entropy"] == pytest.approx(
        seen.sightings[0].figures[PATHS[1]]["entropy"], rel=1e-4
    )


class Dashboard:
    """A logger as trackio and wandb are."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log(self, data: dict[str, Any]) -> None:
        self.rows.append(data)


class Writer:
    """A logger as TensorBoard's SummaryWriter is."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars.append((tag, scalar_value, global_step))


def test_loggers_get_a_few_numbers_of_each_layer(model):
    dashboard, writer = Dashboard(), Writer()
    with watch(model, loggers=[dashboard, writer]) as seen:
        model(inputs())
        figures = seen.log(3).figures
    [row] = dashboard.rows
    entropies = figures[PATHS[0]]["entropy"]
    assert row["attention/step"] == 3
    assert row[f"attention/entropy_lowest/{PATHS[0]}"] == min(entropies)
    assert row[f"attention/entropy_mean/{PATHS[0]}"] == pytest.approx(sum(entropies) / 4)
    assert row[f"attention/max_score_highest/{PATHS[1]}"] == max(figures[PATHS[1]]["max_score"])
    assert len(row) == 11  # of two layers: two of entropy, two of sink, one of max_score; and the step
    assert {tag: value for tag, value, step in writer.scalars if step == 3} == {
        name: value for name, value in row.items() if name != "attention/step"
    }


def test_a_logger_that_fails_leaves_the_watch_at_work(model):
    class Broken:
        def log(self, data: dict[str, Any]) -> None:
            raise ConnectionError("no network")

    with watch(model, every=1, loggers=[Broken()]) as seen:
        for step in range(2):
            model(inputs())
            with pytest.raises(ConnectionError):
                seen.log(step)
    assert [sighting.step for sighting in seen.sightings] == [0, 1]


def scaled_steps(scales: list[float]) -> Iterator[tuple[MultiheadAttention, float]]:
    attention = MultiheadAttention(E, 3, batch_first=True)
    start = attention.in_proj_weight.detach().clone()
    for scale in scales:
        with torch.no_grad():
            attention.in_proj_weight[: 2 * E] = start[: 2 * E] * scale
        yield attention, scale


def test_heads_whose_scores_run_away_and_collapse_are_named():
    steps = scaled_steps([1.0, 1.0, 30.0, 30.0])
    attention, _ = next(steps)
    x = inputs()
    with watch(attention, every=1) as seen:
        attention(x, x, x)
        seen.log(0)
        for number, _ in enumerate(steps, start=1):
            attention(x, x, x)
            if number == 2:
                with pytest.warns(AttentionWarning, match=r"step 2: .*looks at a single key.* and 3 more"):
                    seen.log(number)
            else:  # warnings are errors here: none comes again
                seen.log(number)
    alarms = seen.sightings[2].alarms
    assert sorted((alarm.kind, alarm.head) for alarm in alarms) == [
        (kind, head) for kind in ("collapse", "runaway") for head in range(3)
    ]
    assert all(alarm.now < 0.02 < 0.1 < alarm.before for alarm in alarms if alarm.kind == "collapse")
    assert "alarms" in seen.sightings[2].to_json()
    assert not seen.sightings[3].alarms


def test_alarm_is_called_in_place_of_a_warning():
    alarming: list[int] = []
    attention, _ = next(scaled_steps([1.0]))
    x = inputs()
    with watch(attention, every=1, alarm=lambda sighting: alarming.append(sighting.step)) as seen:
        for number in range(3):
            attention(x * 60**number, x, x)
            seen.log(number)
    assert alarming == [1, 2]


def test_figures_that_are_no_numbers_are_warned_of_and_null_in_the_file(tmp_path):
    attention = MultiheadAttention(E, 3, batch_first=True)
    x = inputs()
    x[0, 0, 0] = torch.nan
    with watch(attention, file=tmp_path / "a.jsonl") as seen:
        attention(x, x, x)
        with pytest.warns(AttentionWarning, match="head 0 has figures that are not numbers"):
            seen.log(0)
    line = json.loads((tmp_path / "a.jsonl").read_text())
    assert line["layers"][""]["max_score"] == [None] * 3
    assert {alarm["kind"] for alarm in line["alarms"]} == {"nan"}


def test_an_entropy_that_is_no_number_is_not_taken_for_a_collapse():
    attention = MultiheadAttention(E, 3, batch_first=True)
    x = inputs()
    alarmed: list[Sighting] = []
    with watch(attention, every=1, want=Want(entropy=True), alarm=alarmed.append) as seen:
        for step, value in enumerate((0.0, torch.nan)):
            x[0, 0, 0] = value
            attention(x, x, x)
            seen.log(step)
    [sighting] = alarmed
    assert {alarm.kind for alarm in sighting.alarms} == {"nan"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(every=0), "every must be a number of steps, 1 or more, got 0: every=100, say"),
        (dict(want=Want()), "want must ask for figures of heads .*, and asks for nothing"),
        (dict(want=Want(weights=True, top=3)), r"want must ask for figures of heads .*, got top, weights: capture\(\)"),
        (dict(want="entropy"), "want must be a Want, got 'entropy'"),
        (dict(loggers=3), r"loggers must be a list, got 3: loggers=\[\.\.\.\] for a single one"),
        (dict(alarm="stop"), "alarm must be a function that takes a Sighting, got 'stop'"),
        (dict(loggers=[3]), r"loggers must have log\(dict\), .* or add_scalar, .* got 3"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_watched_is_refused(model, settings, message):
    with pytest.raises(ArgumentError, match=message):
        watch(model, **settings)


@pytest.mark.parametrize("step", ["1", 1.0, -1, True])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_number_of_a_step_is_refused(model, step):
    with watch(model) as seen, pytest.raises(ArgumentError, match="step must be the number of the step that ends, 0"):
        seen.log(step)


def test_log_outside_and_entering_twice_are_refused(model):
    seen = watch(model)
    with pytest.raises(GlassformerError, match="log must be called inside the context"):
        seen.log(0)
    with seen, pytest.raises(GlassformerError, match="at work already"):
        seen.__enter__()


def test_a_model_without_attention_is_refused_and_can_be_tried_again():
    seen = watch(nn.Linear(2, 2))
    for _ in range(2):
        with pytest.raises(ArgumentError, match="model must contain attention"), seen:
            pass


@pytest.mark.parametrize("scores", [[-3.0, -1.0], [0.0, 0.0], [math.nan, -math.inf], [-2.0, 5.0], [7.0, 1.0]])
def test_plot_draws_scores_of_any_sign(scores):
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    figure = plot_sightings([Sighting(step, {"a": {"max_score": scores}}) for step in (1, 2)])
    low, high = figure.axes[0].collections[0].get_clim()
    finite = [score for score in scores if math.isfinite(score)]
    assert low == min([0.0, *finite]) < high or low < high == 0.0
    assert high >= max([-math.inf, *finite])


def test_a_head_that_recovered_from_nan_is_named_again():
    alarms = Alarms()
    named = [len(alarms.judge({"a": {"entropy": [0.5, x]}})) for x in (0.5, math.nan, math.nan, 0.5, math.nan)]
    assert named == [0, 1, 0, 0, 1]


def test_scalars_of_a_layer_with_a_nan_are_nan_wherever_it_is():
    for entropies in ([0.5, math.nan], [math.nan, 0.5]):
        scalars = Sighting(0, {"": {"entropy": entropies}}).to_scalars()
        assert list(scalars) == ["attention/entropy_lowest/model", "attention/entropy_mean/model"]
        assert all(map(math.isnan, scalars.values()))


def test_a_query_that_a_mask_blocks_does_not_count_whatever_is_wanted():
    attention = MultiheadAttention(E, 3, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.zero_()
    x, mask = inputs(), torch.zeros(L, L, dtype=torch.bool)
    mask[2] = True
    with watch(attention, want=Want(entropy=True)) as seen:
        attention(x, x, x, attn_mask=mask)
        [facts] = seen.log(0).figures.values()
    assert_close(facts["entropy"], [1.0] * 3)
    assert facts.keys() == {"entropy"}


def test_plot_has_a_panel_for_each_fact_and_marks_what_was_warned_of(model, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'glassformer[plots]'")
    with watch(model, every=1, want=SEEN) as seen:
        with pytest.raises(ArgumentError, match="nothing was seen yet"):
            seen.plot()
        for step in range(3):
            model(inputs())
            seen.log(step)
    figure = seen.plot(tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert len(panels) == 3
    assert [label.get_text() for label in panels[0].get_yticklabels()] == PATHS
    assert panels[0].collections[0].get_array().shape == (8, 3)


def test_padding_of_a_source_is_not_taken_for_padding_of_the_queries_where_both_are_as_long():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
            return self.source(x, memory, memory, key_padding_mask=padding)[0]

    reader, x, memory = Reader(), torch.randn(2, 6, 8), torch.randn(2, 7, 8)
    padding = torch.tensor([[False] * 6 + [True], [False] * 2 + [True] * 5])
    with watch(reader, every=1, want=Want(entropy=True, distance=True)) as seen:
        for n, length in enumerate((7, 6)):  # the seventh key is padding
            reader(x, memory[:, :length], padding[:, :length]).sum().backward()
            seen.log(n)
    longer, equal = (one.figures["source"] for one in seen.sightings)
    for fact in ("entropy", "distance"):
        assert equal[fact] == pytest.approx(longer[fact])
