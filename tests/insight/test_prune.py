"""`glassformer prune`: the least important heads go, and every other command takes what is left."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest
import torch

from glassformer.commands.prune import prune_heads
from glassformer.errors import ConfigError, DataError, DivergedError, OutOfMemoryError, RunError
from glassformer.files import alone
from glassformer.generation.translator import Translator
from glassformer.insight import prune as module
from glassformer.insight.config import PruneConfig
from glassformer.insight.gates import least_missed
from glassformer.insight.prune import Pruning, _draw_pairs, prune
from glassformer.insight.study import Sentences
from glassformer.pairs.files import PairFiles
from glassformer.run.config import read_config
from glassformer.run.folder import load_run, open_run
from glassformer.text.tokenizer import SymbolTokenizer
from glassformer.training import progress
from glassformer.training.config import TrainConfig
from glassformer.training.result import TrainResult


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """No pictures of the trainings, and speed measured on few lines: a random model writes until its limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "can_draw", lambda: False)
        patch.setattr(module, "SPEED_LINES", 1)
        patch.setattr("glassformer.insight.speed.TURNS", 2)
        patch.setattr(module, "peak_memory", lambda *_: None)  # it takes processes of their own
        yield


@pytest.fixture(scope="module")
def given(random_run, tmp_path_factory) -> Path:
    """A folder with a run and pairs, which stay as they are."""
    folder, symbols = tmp_path_factory.mktemp("given"), SymbolTokenizer("abcd")
    lines = [f"{'abcd'[n % 4]} {'abcd'[n // 4 % 4]} {'abcd'[n // 16 % 4]}" for n in range(64)]
    pairs = [f"{line}\t{line[::-1]}\n" for line in lines]
    (folder / "pairs.tsv").write_text("".join(pairs))
    (folder / "valid.tsv").write_text("".join(pairs[::20]))
    random_run(folder / "run", symbols, symbols, shared=True, encoder_layers=2)
    return folder


@pytest.fixture(scope="module")
def settings(given) -> dict:
    paths = {"run": given / "run", "data": (given / "pairs.tsv",), "valid": (given / "valid.tsv",)}
    return dict(**paths, rounds=2, updates=3, sentences=20, batch_tokens=64, metric="ser", device="cpu")


@pytest.fixture
def config(settings, tmp_path) -> Callable[..., PruneConfig]:
    return lambda **changes: PruneConfig(**{**settings, "out": tmp_path / "pruned", **changes})


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory) -> tuple[Pruning, list[str], Path]:
    """A pruning that wasn't stopped: its report, what it said, and the folder it left."""
    said: list[str] = []
    out = tmp_path_factory.mktemp("whole") / "pruned"
    return prune(PruneConfig(**settings, out=out), said.append, tracker=Noted()), said, out


class Noted:
    """A tracker that keeps what it is given."""

    rows: ClassVar[list] = []

    def log(self, metrics, *, step):
        self.rows.append((step, metrics))


def test_a_tracker_gets_the_rounds(whole):
    report, *_ = whole
    expected = [
        {
            f"{name}/heads": one.heads,
            f"{name}/parameters": one.parameters,
            f"{name}/loss": one.loss,
            f"{name}/ser": one.score,
        }
        for pruned, unpruned in zip(report.rounds, report.unpruned, strict=True)
        for name, one in (("pruned", pruned), ("unpruned", unpruned))
    ]
    assert Noted.rows == [(1, expected[0] | expected[1]), (2, expected[2] | expected[3])]


def test_the_report_and_the_smaller_run(whole, given):
    report, said, out = whole
    first = "18 of 18 heads, for comparison:"
    speed = "measuring the speed of both, 11 times in turn"
    assert said == [first, "14 of 18 heads:", first, "9 of 18 heads:", speed]
    assert [one.heads for one in report.rounds] == [14, 9]
    assert [one.heads for one in report.unpruned] == [18, 18]
    of_a_head = 4 * 8 * 24 + 3 * 8
    parameters = [one.parameters for one in report.rounds]
    assert [report.unpruned[0].parameters - count for count in parameters] == [4 * of_a_head, 9 * of_a_head]
    assert report.rounds[1].bytes < report.rounds[0].bytes < report.unpruned[0].bytes
    assert sum(map(len, report.rounds[0].removed.values())) == 4
    assert report.unpruned[1].before == report.unpruned[0].score  # it goes on from there
    pruned = load_run(out)
    assert report.attentions == {name: module.num_heads for name, module in pruned.model.attentions.items()}
    assert sum(report.attentions.values()) == 9
    assert report.speed.low <= report.speed.ratio <= report.speed.high
    written = json.loads((out / "prune.json").read_text())
    assert (written["rounds"][0]["heads"], written["metric"]) == (14, "ser")
    assert Translator.load(out, "cpu").translate(["a b c"])
    assert [path.name for path in out.parent.iterdir()] == ["pruned"]  # nothing hidden is left
    assert open_run(given / "run").model_config.all_heads == 18
    assert open_run(out).model_config.dropout == 0.1  # the run's


@pytest.mark.parametrize("by_valid", [True, False])
def test_the_heads_that_are_missed_least_go(config, given, tmp_path, by_valid):
    """The validation pairs choose them, where there are some."""
    chosen = config(sentences=64, **({} if by_valid else {"valid": ()}))
    module._remove_some(given / "run", 13, chosen, tmp_path / "fewer")
    assert read_config(tmp_path / "fewer").training.languages == ("en", "de")
    removed = read_config(tmp_path / "fewer").training.removed
    assert removed is not None
    run = load_run(given / "run")
    sentences = Sentences.from_pairs(run, PairFiles(given / ("valid.tsv" if by_valid else "pairs.tsv")), 64)
    expected = least_missed(run.model, [sentences.batch(run, indices) for indices in sentences.batches], 5)
    assert sorted((name, head) for name, heads in removed.items() for head in heads) == sorted(expected)


def test_the_unpruned_model_is_trained_as_long_with_the_same_settings(config, given, tmp_path, monkeypatch):
    trainings: list[TrainConfig] = []
    train_once = module.train_once
    monkeypatch.setattr(module, "train_once", lambda config: trainings.append(config) or train_once(config))
    unpruned = tmp_path / "beside" / "whole"
    changes = dict(learning_rate=0.05, dropout=0.25, weight_decay=0.5, seed=7)
    report = prune(config(rounds=1, unpruned=unpruned, **changes))
    for training in trainings:
        assert {name: getattr(training, name) for name in changes} == changes
    assert [training.max_updates for training in trainings] == [3, 3]
    models = [open_run(folder).model_config for folder in (unpruned, tmp_path / "pruned")]
    assert [(model.all_heads, model.dropout) for model in models] == [(18, 0.25), (9, 0.25)]
    before = load_run(given / "run").model.target_embedding.weight
    assert not load_run(unpruned).model.target_embedding.weight.equal(before)
    assert report.unpruned[0].heads == 18
    with pytest.raises(RunError, match="whole exists already: choose another --unpruned, or remove it first"):
        prune(config(out=tmp_path / "other", unpruned=unpruned))


def test_the_pairs_may_be_columns_of_tables(config, given, whole, tmp_path):
    for name in ("pairs", "valid"):
        lines = (given / f"{name}.tsv").read_text().splitlines()
        rows = "".join(f"{n}\t{line}\n" for n, line in enumerate(lines))
        (tmp_path / f"{name}.tsv").write_text(f"id\tasked\tanswered\n{rows}")
    files = dict(data=(tmp_path / "pairs.tsv",), valid=(tmp_path / "valid.tsv",), columns=("asked", "answered"))
    pruning = prune(config(**files), print)
    assert pruning is not None
    assert [(one.score, one.loss) for one in pruning.rounds] == [(one.score, one.loss) for one in whole[0].rounds]


def test_columns_are_those_of_the_table_where_other_pairs_are_two_files(config, tmp_path):
    sides, columns = (tmp_path / "a.txt", tmp_path / "b.txt"), ("asked", "answered")
    table = (tmp_path / "table.tsv",)
    for data, valid, expected in ((sides, table, (None, columns)), (table, sides, (columns, None))):
        mixed = config(data=data, valid=valid, columns=columns)
        assert (mixed.pairs.columns, mixed.valid_pairs.columns) == expected
    with pytest.raises(ConfigError, match="columns are for one file of both sides, got two files: leave them out"):
        _ = config(data=sides, valid=sides, columns=columns).pairs


def test_all_heads_may_go(config, tmp_path):
    report = prune(config(keep=0.0, rounds=1, updates=2))
    assert set(report.attentions.values()) == {0}
    with pytest.raises(RunError, match="pruned has no heads left: there is nothing to remove"):
        prune(config(run=tmp_path / "pruned", out=tmp_path / "again"))


@pytest.mark.parametrize(
    ("error", "changes", "advice"),
    [
        (DivergedError, {"learning_rate": 1e30}, r"diverged: .* with a lower --learning-rate than 1e[+]30"),
        (DivergedError, {}, "diverged: .* with a lower --learning-rate than its default"),
        (OutOfMemoryError, {}, "ran out of memory: .* with a smaller --batch-tokens than 64"),
    ],
)
def test_a_training_that_fails_says_what_to_change(config, tmp_path, monkeypatch, error, changes, advice):
    def failing(settings: TrainConfig) -> NoReturn:
        settings.out.mkdir()
        raise error("nan")

    monkeypatch.setattr(module, "train_once", failing)
    with pytest.raises(error, match=rf"^a training of the pruning {advice}$") as raised:
        prune(config(**changes))
    assert f"remove {tmp_path / '.pruned.pruning'}, and start again" in str(raised.value)
    assert (tmp_path / ".pruned.pruning").is_dir()


def test_the_score_is_that_of_the_training_unless_another_is_given(given, config):
    assert module._metric(config(metric="chrf")) == "chrf"
    assert module._metric(config(metric=None)) == "bleu"  # the random run's training had no settings
    path = given / "run" / "config.json"
    before = path.read_text()
    auto = {"settings": {"metric": "auto"}, "chosen": {"metric": "exact"}}
    for training, metric in (({"settings": {"metric": "wer"}}, "wer"), (auto, "exact")):
        path.write_text(json.dumps({**json.loads(before), "training": training}))
        assert module._metric(config(metric=None)) == metric
    path.write_text(before)


def test_it_trains_on_as_the_run_was_trained(given, config, tmp_path):
    run = Path(shutil.copytree(given / "run", tmp_path / "run"))
    content = json.loads((run / "config.json").read_text())
    own = {"join_lines": 3, "max_tokens": 100, "max_ratio": 4.0, "label_smoothing": 0.0}
    content["training"] = {"settings": {**own, "warmup": 77}}
    (run / "config.json").write_text(json.dumps(content))
    prune(config(run=run, rounds=1, updates=1))
    training = read_config(tmp_path / "pruned").training
    assert training.settings is not None
    assert {name: training.settings[name] for name in own} == own
    assert training.settings["warmup"] == 1
    assert training.pairs is not None
    assert training.pairs["train"]["joined"] > 0


# Slow: it prunes in two rounds, each of which trains, as the fixture `whole` does.
def test_stopped_and_given_again_it_continues(config, given, whole, tmp_path, monkeypatch):
    expected, _, out = whole
    train_once, calls = module.train_once, []

    def stopped(settings: TrainConfig) -> object:
        calls.append(settings.out.name)
        if len(calls) == 2:
            raise SystemError("lost")
        return train_once(settings)

    monkeypatch.setattr(module, "train_once", stopped)
    with pytest.raises(SystemError) as lost:
        prune(config())
    assert lost.value.__notes__ == ["what is done is kept: the same command continues"]
    assert not (tmp_path / "pruned").exists()
    with pytest.raises(ConfigError, match=r"\.pruned\.pruning holds a pruning with other settings"):
        prune(config(keep=0.4))
    for path in (given / "valid.tsv", given / "run" / "config.json"):
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        with pytest.raises(ConfigError, match=r"holds a pruning of what the run or the files were before: remove it"):
            prune(config())
        path.write_bytes(before)

    def stopped_again(*_: object) -> None:
        raise SystemError("lost")

    unpruned = tmp_path / "beside"
    with monkeypatch.context() as patched:
        patched.setattr(module, "move_folder", stopped_again)
        with pytest.raises(SystemError) as lost:
            prune(config(unpruned=unpruned))
    assert lost.value.__notes__ == [module.CONTINUES]
    assert unpruned.is_dir()
    with monkeypatch.context() as patched:  # the run and the data may be gone
        for name in ("run", "pairs.tsv", "valid.tsv"):
            (given / name).rename(given / f"{name} elsewhere")
        try:
            patched.setattr(module, "compare_speed", lambda *_: pytest.fail("measured again"))
            said = []
            report = prune(config(unpruned=unpruned), said.append)
        finally:
            for name in ("run", "pairs.tsv", "valid.tsv"):
                (given / f"{name} elsewhere").rename(given / name)
    assert said == []
    finished = ["1-unpruned", "1-trained", "2-unpruned", "2-trained"]
    assert calls == ["1-unpruned", "1-trained", *finished]  # a finished training returns at once
    assert (report.rounds, report.unpruned) == (expected.rounds, expected.unpruned)
    assert open_run(unpruned).model_config.all_heads == 18
    one, other = (load_run(folder).model.state_dict() for folder in (out, tmp_path / "pruned"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "pruned"]


def test_pairs_of_white_space_are_not_drawn(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\tb a\n \t \n\u3000\tc\n", encoding="utf-8")
    assert _draw_pairs(PairFiles(tmp_path / "pairs.tsv"), 1, 9) == [("a b", "b a")]


def test_the_status_is_that_of_the_signal_which_stopped_it(config, monkeypatch, capsys):
    stopped = TrainResult(Path(), finished=False, updates=1, seconds=0.1, metric="ser", score=None, signal=15)
    monkeypatch.setattr(module, "train_once", lambda _: stopped)
    assert prune_heads(config()) == 143
    assert capsys.readouterr().out == "what is done is kept: the same command continues\n"


def test_a_kill_right_at_the_end_leaves_a_folder_that_is_removed(config, tmp_path):
    work = tmp_path / ".pruned.pruning"
    for folder in (tmp_path / "pruned", work / "1-unpruned"):
        folder.mkdir(parents=True)
    (work / "moved").touch()
    with pytest.raises(RunError, match="pruned exists already"):
        prune(config())
    assert [path.name for path in tmp_path.iterdir()] == ["pruned"]


def test_two_prunings_at_once_are_refused_and_nothing_is_removed(config, tmp_path):
    work = tmp_path / ".pruned.pruning"
    work.mkdir()
    with (
        alone(work / "lock", "pruning"),
        pytest.raises(RunError, match=r"\.pruned\.pruning is used by another pruning: wait for it"),
    ):
        prune(config())
    assert work.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 0.99}, "keep must leave fewer than all 18 heads, got 0.99: give a smaller share"),
        ({"keep": 0.9, "rounds": 3}, "rounds must be at most 2, the number of heads that go, got 3"),
        ({"metric": "blue"}, "metric"),
        ({"data": (Path("nowhere.tsv"),)}, "nowhere.tsv"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"dropout": 1.0}, "dropout"),
        ({"tokenize": "14a"}, "tokenize must be auto or one of"),
    ],
    ids=str,
)
def test_a_mistake_leaves_nothing_in_the_way_of_another_try(config, tmp_path, changes, message):
    with pytest.raises((ConfigError, DataError), match=message):
        prune(config(**changes))
    assert not (tmp_path / ".pruned.pruning").exists()


def test_a_folder_that_exists_is_not_replaced(config, tmp_path):
    (tmp_path / "pruned").mkdir()
    with pytest.raises(RunError, match="pruned exists already: choose another --out, or remove it first"):
        prune(config())


def test_the_command_line(given, tmp_path, capsys, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    files = f"{given / 'run'} --out smaller --data {given / 'pairs.tsv'} --valid {given / 'valid.tsv'}"
    assert run_command(f"prune {files} --rounds 1 --updates 2 --keep 0.5 --metric ser --device cpu") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("heads  parameters       size")
    assert "ser before training on" in out[0]
    assert [line.split()[0] for line in out[1:3]] == ["18", "9"]
    assert out[3].startswith("speed of translation: ")
    assert out[5] == "smaller/prune.png: the scores"
    assert Path("smaller/prune.png").read_bytes().startswith(b"\x89PNG")
