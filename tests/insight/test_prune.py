"""`glassformer prune`: the least important heads go, and every other command takes what is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from glassformer import cli
from glassformer.errors import ConfigError, DataError, DivergedError, OutOfMemoryError, RunError
from glassformer.generation.translator import Translator
from glassformer.insight.chart import plot_pruning
from glassformer.insight.config import PruneConfig
from glassformer.insight.gates import least_missed
from glassformer.insight.heads import Sentences
from glassformer.insight.prune import Pruning, Round, _copy, prune
from glassformer.insight.speed import Speed
from glassformer.run.folder import Run, load_run, open_run
from glassformer.text.pairs import PairFiles
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training import loop
from glassformer.training.config import TrainConfig


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    """No pictures of the trainings, and speed measured on few lines: a random model writes until its limit."""
    monkeypatch.setattr(loop, "can_draw", lambda: False)
    monkeypatch.setattr("glassformer.insight.prune.LINES", 1)
    monkeypatch.setattr("glassformer.insight.speed.TURNS", 2)
    monkeypatch.setattr("glassformer.insight.prune.peak_memory", lambda *_: None)  # it takes processes of their own


@pytest.fixture
def files(tmp_path) -> Path:
    lines = [f"{'abcd'[n % 4]} {'abcd'[n // 4 % 4]} {'abcd'[n // 16 % 4]}" for n in range(64)]
    pairs = [f"{line}\t{line[::-1]}\n" for line in lines]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    (tmp_path / "valid.tsv").write_text("".join(pairs[::20]))
    return tmp_path / "pairs.tsv"


@pytest.fixture
def run(random_run, tmp_path) -> Run:
    symbols = SymbolTokenizer("abcd")
    return random_run(tmp_path / "run", symbols, symbols, shared=True, encoder_layers=2)


@pytest.fixture
def config(run, files, tmp_path) -> Callable[..., PruneConfig]:
    plain = dict(
        **{
            "run": tmp_path / "run",
            "data": (files,),
            "valid": (tmp_path / "valid.tsv",),
            "rounds": 2,
            "updates": 3,
            "sentences": 20,
        },
        **{"batch_tokens": 64, "metric": "ser", "device": "cpu"},
    )
    return lambda **changes: PruneConfig(**{**plain, "out": tmp_path / "pruned", **changes})


def test_the_report_and_the_smaller_run(config, run, tmp_path):
    said: list[str] = []
    found = prune(config(), said.append)
    whole = "18 of 18 heads, to compare with:"
    assert said == [whole, "14 of 18 heads:", whole, "9 of 18 heads:"]
    assert [one.heads for one in found.rounds] == [14, 9]
    assert [one.heads for one in found.unpruned] == [18, 18]
    of_a_head = 4 * 8 * 24 + 3 * 8
    parameters = [one.parameters for one in found.rounds]
    assert [found.unpruned[0].parameters - count for count in parameters] == [4 * of_a_head, 9 * of_a_head]
    assert found.rounds[1].bytes < found.rounds[0].bytes < found.unpruned[0].bytes
    assert sum(map(len, found.rounds[0].removed.values())) == 4
    assert found.unpruned[1].before == found.unpruned[0].score  # it goes on from there
    pruned = load_run(tmp_path / "pruned")
    assert found.attentions == {name: module.num_heads for name, module in pruned.model.attentions.items()}
    assert sum(found.attentions.values()) == 9
    assert found.speed.low <= found.speed.ratio <= found.speed.high
    report = json.loads((tmp_path / "pruned" / "prune.json").read_text())
    assert report["rounds"][0]["heads"] == 14
    assert report["metric"] == "ser"
    assert Translator.load(tmp_path / "pruned", "cpu").translate(["a b c"])
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == [
        *("pairs.tsv", "pruned", "run", "valid.tsv"),
    ]
    assert not (tmp_path / ".pruned.pruning").exists()
    assert (load_run(tmp_path / "run").model.state_dict()["encoder.0.self_attention.in_proj_weight"]).equal(
        run.model.state_dict()["encoder.0.self_attention.in_proj_weight"]
    )


@pytest.mark.parametrize("given", [True, False])
def test_the_heads_that_are_missed_least_go(config, run, files, tmp_path, given):
    """By the validation pairs, where there are some."""
    settings = config(rounds=1, keep=0.7, sentences=64, **({} if given else {"valid": ()}))
    removed = prune(settings).rounds[0].removed
    sentences = Sentences.of(run, PairFiles(tmp_path / "valid.tsv" if given else files), 64)
    found = least_missed(run.model, [sentences.batch(run, indices) for indices in sentences.batches], 5)
    assert sorted((name, head) for name, heads in removed.items() for head in heads) == sorted(found)


def test_weight_decay_keeps_the_weights_small(config, tmp_path):
    norms = []
    for decay in (0.0, 10.0):
        prune(config(out=tmp_path / f"{decay}", rounds=1, learning_rate=0.05, weight_decay=decay))
        norms.append(load_run(tmp_path / f"{decay}").model.target_embedding.weight.norm())
    # The rates of the three updates are 0.033, 0.012 and 0: a decay of 10 takes off a third, then an eighth.
    assert norms[1] < 0.8 * norms[0]


@pytest.mark.parametrize(("given", "of_both"), [(0.25, 0.25), (None, 0.1)])
def test_dropout_is_that_of_the_run_or_the_one_given(config, run, tmp_path, given, of_both):
    assert run.model.config.dropout == 0.1
    prune(config(rounds=1, updates=1, dropout=given, unpruned=tmp_path / "whole"))
    for name in ("pruned", "whole"):
        assert open_run(tmp_path / name).model_config.dropout == of_both


def test_the_unpruned_model_trained_as_long_is_left_where_it_is_asked_for(config, run, tmp_path):
    found = prune(config(rounds=1, learning_rate=0.05, unpruned=tmp_path / "beside" / "whole"))
    model = load_run(tmp_path / "beside" / "whole").model
    assert sum(attention.num_heads for attention in model.attentions.values()) == 18
    assert not model.target_embedding.weight.equal(run.model.target_embedding.weight)
    assert found.unpruned[0].heads == 18
    with pytest.raises(RunError, match="whole is there already: choose another --unpruned, or remove it first"):
        prune(config(out=tmp_path / "other", unpruned=tmp_path / "beside" / "whole"))


def test_all_heads_may_go(config):
    found = prune(config(keep=0.0, rounds=1, updates=2))
    assert set(found.attentions.values()) == {0}
    with pytest.raises(RunError, match="pruned has no heads left: there is nothing to remove"):
        prune(config(run=config().out, out=config().out.with_name("again")))


@pytest.mark.parametrize("unpruned", ["pruned", "pruned/inside", ".", ".pruned.pruning", ".pruned.pruning/whole"])
def test_the_unpruned_model_is_left_beside_the_pruned_one(config, tmp_path, unpruned):
    with pytest.raises(
        ConfigError, match=r"unpruned must lie neither in \S+pruned(.pruning)? nor around it, got \S+: give"
    ):
        config(unpruned=tmp_path / unpruned)


@pytest.mark.parametrize(("rate", "than"), [(1e30, "1e[+]30"), (None, "its default")])
def test_what_diverges_is_begun_again_with_a_lower_rate(config, tmp_path, monkeypatch, rate, than):
    message = (
        rf"^a training of the pruning diverged: remove \S+[.]pruned[.]pruning, .* a lower --learning-rate than {than}$"
    )
    if rate is None:
        monkeypatch.setattr("glassformer.insight.prune.train_once", _raising(DivergedError("nan")))
    with pytest.raises(DivergedError, match=message):
        prune(config(learning_rate=rate))
    assert (tmp_path / ".pruned.pruning").is_dir()


def test_what_takes_too_much_memory_is_begun_again_with_smaller_batches(config, monkeypatch):
    message = r"^a training of the pruning ran out of memory: remove \S+, .* a smaller --batch-tokens than 64$"
    monkeypatch.setattr("glassformer.insight.prune.train_once", _raising(OutOfMemoryError("cuda")))
    with pytest.raises(OutOfMemoryError, match=message):
        prune(config())


def _raising(error: Exception) -> Callable[[TrainConfig], NoReturn]:
    def raise_(_: TrainConfig) -> NoReturn:
        raise error

    return raise_


def test_stopped_and_given_again_it_goes_on(config, tmp_path, monkeypatch):
    whole = prune(config(out=tmp_path / "whole"))
    train_once, calls = loop.train_once, []

    def stopped(settings):
        calls.append(settings.out.name)
        if len(calls) == 2:
            raise SystemError("lost")
        return train_once(settings)

    monkeypatch.setattr("glassformer.insight.prune.train_once", stopped)
    with pytest.raises(SystemError):
        prune(config())
    assert not (tmp_path / "pruned").exists()
    with pytest.raises(ConfigError, match=r"\.pruned\.pruning holds a pruning that was begun with other settings"):
        prune(config(keep=0.4))
    found = prune(config(unpruned=tmp_path / "beside"))
    assert calls == ["1-unpruned", "1-trained", "1-unpruned", "1-trained", "2-unpruned", "2-trained"]
    assert (found.rounds, found.unpruned) == (whole.rounds, whole.unpruned)
    assert (tmp_path / "beside").is_dir()
    one, other = (load_run(tmp_path / name).model.state_dict() for name in ("whole", "pruned"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_stopped_after_the_unpruned_model_was_left_it_goes_on(config, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    copy = _copy

    def stopped(folder: Path, to: Path) -> None:
        copy(folder, to)
        raise SystemError("lost")

    with monkeypatch.context() as patched:
        patched.setattr("glassformer.insight.prune._copy", stopped)
        with pytest.raises(SystemError):
            prune(config(rounds=1, unpruned=whole))
    assert whole.is_dir()
    assert prune(config(rounds=1, unpruned=whole)) is not None
    assert open_run(tmp_path / "pruned").model_config.all_heads == 9
    assert open_run(whole).model_config.all_heads == 18


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 1.0}, "keep must be at least 0 and less than 1, a share of the heads, got 1.0"),
        ({"keep": 0.99}, "keep 0.99 leaves all 18 heads: give a smaller share"),
        ({"keep": 0.9, "rounds": 3}, "rounds must be at most 2, the number of heads that go, got 3"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"data": ()}, "--data takes a file of sources and one of targets, or one TSV file, got 0 files"),
    ],
)
def test_settings_that_cannot_be(config, changes, message):
    with pytest.raises(ConfigError, match=message):
        prune(config(**changes))


def test_a_mistake_does_not_stand_in_the_way_of_what_is_right(config, tmp_path):
    for mistake in (
        {"metric": "blue"},
        {"data": (tmp_path / "nowhere.tsv",)},
        {"batch_tokens": 0},
        {"weight_decay": -1.0},
        {"dropout": 1.0},
    ):
        with pytest.raises((ConfigError, DataError)):
            prune(config(**mistake))
        assert not (tmp_path / ".pruned.pruning").exists()
    assert prune(config(rounds=1)) is not None


def test_what_is_there_is_not_replaced(config, tmp_path):
    (tmp_path / "pruned").mkdir()
    with pytest.raises(RunError, match="pruned is there already: choose another --out, or remove it first"):
        prune(config())


def test_the_command_line(config, files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = f"prune run --out smaller --data {files.name} --valid valid.tsv --rounds 1 --updates 2 --keep 0.5"
    with pytest.raises(SystemExit) as exit_:
        cli.main([*arguments.split(), "--metric", "ser", "--device", "cpu"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("heads  parameters       size")
    assert "ser before training on" in out[0]
    assert [line.split()[0] for line in out[1:3]] == ["18", "9"]
    assert out[3].startswith("speed of translation: ")
    assert out[5] == "smaller/prune.png: the scores"
    assert Path("smaller/prune.png").read_bytes().startswith(b"\x89PNG")


def test_the_curve():
    plain = dict(parameters=9, bytes=9, loss=1.0, removed={})
    whole = [Round(heads=18, before=30.0, score=31.0, **plain), Round(heads=18, before=31.0, score=31.5, **plain)]
    pruned = [Round(heads=9, before=20.0, score=30.5, **plain), Round(heads=6, before=18.0, score=29.0, **plain)]
    speed = Speed(before=1.0, after=1.0, ratio=1.0, low=1.0, high=1.0)
    found = Pruning(metric="wer", rounds=pruned, unpruned=whole, speed=speed, memory=(None, None), attentions={})
    (axes,) = plot_pruning(found).axes
    unpruned, trained, untrained = (list(zip(*line.get_data(), strict=True)) for line in axes.lines)
    share = 100 * 6 / 18
    assert unpruned == [(100, 30.0), (50, 31.0), (share, 31.5)]
    assert trained == [(100, 30.0), (50, 30.5), (share, 29.0)]
    assert untrained == [(50, 20.0), (share, 18.0)]
    assert axes.get_ylabel() == "wer"
