"""What training leaves, when it stops, which weights it keeps, and what goes wrong in it."""

import importlib.util
import itertools
import json
import math
import shutil
import signal

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.testing import assert_close

from glassformer.commands.train import report
from glassformer.errors import ConfigError, DivergedError, OutOfMemoryError
from glassformer.generation.translator import Translator
from glassformer.pictures import can_draw
from glassformer.run.folder import load_run
from glassformer.scoring.scores import Score
from glassformer.training import loop, pace, progress, validation
from glassformer.training.config import TrainConfig
from glassformer.training.result import TrainResult
from glassformer.training.step import Step
from glassformer.training.train import resume, train

pytestmark = pytest.mark.usefixtures("undrawn", "unchecked_trainings")

OFTEN, NEVER = 1e-9, 1e9
"""Seconds between checkpoints: one is always being written, or none however slow the machine is."""
FINISHED = {"config.json", "metrics.jsonl", "model.safetensors", "source.symbols", "target.symbols"}


# What is left


def test_a_finished_run_folder_holds_this_and_nothing_else(settings, files):
    config = settings(max_updates=30)
    result = train(config)
    assert (result.finished, result.updates) == (True, 30)
    saved = json.loads((config.out / "config.json").read_text(encoding="utf-8"))["training"]
    assert TrainConfig.from_json(saved["settings"]) == config
    assert (saved["pairs"]["train"]["kept"], saved["pairs"]["valid"]["kept"]) == (200, 20)
    assert result.score is not None
    assert files.names(result.folder) == FINISHED
    assert files.names(result.folder.parent) == {"run"}
    lines = files.metrics(result.folder)
    kinds = [next(kind for kind in ("averaged", "valid_loss", "loss") if kind in line) for line in lines]
    assert kinds == ["valid_loss", "loss", "valid_loss", "valid_loss", "averaged"]
    assert [line["update"] for line in lines] == [10, 20, 20, 30, 30]
    assert (lines[-1]["averaged"], lines[-1]["averaged_score"]) == (2, result.score)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_with_matplotlib_there_is_a_picture_of_it_too(settings, monkeypatch, files):
    monkeypatch.setattr(progress, "can_draw", can_draw)
    config = settings(max_updates=3)
    train(config)
    assert files.names(config.out) == FINISHED | {"curves.png"}
    assert (config.out / "curves.png").read_bytes().startswith(b"\x89PNG")
    train(settings(max_updates=3, overwrite=True))  # no file of somebody else's
    assert files.names(config.out) == FINISHED | {"curves.png"}


def test_the_figures_of_training_are_recorded(settings, files):
    config = settings(max_updates=20, optimizer="muon", learning_rate=None, warmup=None)
    train(config)
    [line] = files.reports(config.out)
    # The defaults: up to 1 / (2 d_model) with Muon, over a tenth of the updates.
    assert line["learning_rate"] == pytest.approx(1 / (2 * 16) * math.sqrt(2 / 20))
    assert line["epoch"] == 2
    assert 0 < line["loss"] < 2 * math.log(10)
    assert line["tokens_per_second"] > 0
    assert line["seconds"] > 0
    assert "left_out" not in line


@pytest.mark.parametrize("separate", [False, True])
def test_the_embedding_of_padding_is_exactly_zero(settings, files, separate):
    config = settings(max_updates=5, separate_vocab=separate)
    train(config)
    embeddings = {name: tensor for name, tensor in files.weights(config.out).items() if "embedding" in name}
    assert len(embeddings) == 1 + separate
    for tensor in embeddings.values():
        assert torch.equal(tensor[-1], torch.zeros(16))
        assert tensor[:-1].abs().amax(1).min() > 0


def test_both_precisions_train(settings, files):
    saved = []
    for precision in ("float32", "bfloat16"):
        config = settings(precision, precision=precision, max_updates=5)
        train(config)
        saved.append(files.weights(config.out))
        assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in saved[-1].values())
    assert any(not torch.equal(tensor, saved[1][name]) for name, tensor in saved[0].items())


def test_each_side_its_own_tokenizer(settings, tmp_path, files):
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"{'abcdefg'[: n % 7 + 1]}\t{' '.join('ABCDEFG'[: n % 7 + 1])}\n" for n in range(60)))
    config = settings(source=path, valid_source=path, source_tokenizer="char", max_updates=10)
    train(config)
    assert files.names(config.out) == FINISHED - {"source.symbols"} | {"source.spm"}
    run = load_run(config.out)
    assert not run.model.config.shared_vocab
    assert run.target_tokenizer.vocab_size == 7 + 3
    assert set(" ".join(Translator.load(config.out, "cpu").translate(["abc", "gfe"]))) <= set("ABCDEFG ⁇")


def test_the_same_seed_gives_the_same_weights_another_seed_others(settings, files):
    outcomes = []
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        config = settings(out, seed=seed, max_updates=25, dropout=0.2)
        train(config)
        outcomes.append(files.outcome(config.out))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] != outcomes[2][0]


def test_overwrite_replaces_a_run(settings, files):
    train(settings(max_updates=20))
    config = settings(overwrite=True, max_updates=10, d_ff=29)
    train(config)
    assert files.names(config.out) == FINISHED
    assert files.names(config.out.parent) == {"run"}
    assert [line["update"] for line in files.metrics(config.out)] == [10]
    assert load_run(config.out).model.config.d_ff == 29


# When it stops


def test_max_minutes(settings):
    result = train(settings(max_minutes=0.002))
    assert result.finished
    assert 1 <= result.updates < 500


def scripted(monkeypatch, *scores: float) -> None:
    """Validations score these numbers, one after the other."""
    rest = iter(scores)
    monkeypatch.setattr(validation, "score", lambda *_, **__: Score("scripted", float(next(rest)), ""))


def test_after_patience_the_cooldown_still_comes(settings, monkeypatch, interrupting, files):
    monkeypatch.setattr(loop, "REPORT_EVERY", 1)
    scripted(monkeypatch, *range(9, -1, -1))
    config = settings(patience=3, average=1, cooldown=0.5, warmup=1, validate_every=3)
    with interrupting(14):
        train(config)
    assert resume(config.out).updates == 24  # the best at 3, then three more, and as long again
    rates = [line["learning_rate"] for line in files.reports(config.out)]
    plain = [3e-3 * update**-0.5 for update in range(1, 25)]
    assert rates == pytest.approx([rate * min(1, (24 - n) / 12) for n, rate in enumerate(plain, start=1)])


def test_continued_with_another_patience_it_counts_anew(settings, monkeypatch, interrupting):
    scripted(monkeypatch, *range(9, -1, -1))
    with interrupting(14):  # after patience was over
        train(settings(patience=3, average=1, cooldown=0.5, max_updates=30, validate_every=3))
    assert resume(settings().out, patience=0).updates == 30


def test_killed_before_its_first_checkpoint_it_still_has_the_other_patience(
    settings, monkeypatch, interrupting, crashing
):
    scripted(monkeypatch, *range(20, -1, -1))
    with interrupting(14):
        train(settings(patience=3, average=1, cooldown=0.5, max_updates=30, validate_every=3))
    with crashing(1), pytest.raises(SystemError):
        resume(settings().out, patience=0)
    assert resume(settings().out).updates == 30


# What is kept


@pytest.fixture(scope="module")
def after(tiny, undrawn, files, tmp_path_factory) -> dict[int, dict[str, torch.Tensor]]:
    """The weights after so many updates."""
    folder, found = tmp_path_factory.mktemp("single"), {}
    for updates in (4, 6, 10):
        config = tiny(folder / str(updates), max_updates=updates, validate_every=updates, average=1)
        train(config)
        found[updates] = files.weights(config.out)
    return found


@pytest.mark.parametrize(
    ("changes", "scores", "score", "kept"),
    [
        (dict(average=3), (10, 20, 30, 29), 30, [6]),  # the mean's loss is worse too: the first weights are raw
        (dict(average=3), (10, 20, 30, 30), 30, [6]),
        (dict(average=3, metric="wer"), (90, 60, 40, 41), 40, [6]),
        (dict(average=1), (10, 30, 20), 30, [4]),
        (dict(average=2), (10, 30, 20, 31), 31, [4, 6]),
        (dict(average=2), (10, 30, 20, 29), 29, [4, 6]),  # the mean's loss is better, and the best score may be luck
    ],
    ids=[
        *("the best", "a mean as good, of higher loss", "the lowest error rate", "the best without a mean"),
        *("a better mean", "a mean of lower loss"),
    ],
)
def test_the_best_weights_are_kept_single_ones_or_the_mean(
    settings, monkeypatch, after, files, changes, scores, score, kept
):
    config = settings(max_updates=6, validate_every=2, **changes)
    scripted(monkeypatch, *scores)
    assert train(config).score == score == TrainResult.from_folder(config.out).score
    expected = {name: (sum(after[n][name].double() for n in kept) / len(kept)).float() for name in after[4]}
    assert_close(files.weights(config.out), expected, rtol=0, atol=0)


def test_the_model_is_of_the_score_that_is_reported(settings, after, files, interrupting, crashing, monkeypatch):
    """Weights that were the best after the last checkpoint are no longer where the run doesn't come to them again."""
    config = settings(max_updates=25, checkpoint_seconds=NEVER, average=1)
    scripted(monkeypatch, 30, 40, 20)
    with interrupting(15):
        train(config)  # 30 at update 10
    with crashing(8), pytest.raises(SystemError, match="lost"):
        resume(config.out)  # 40 at update 20, lost at 23
    assert resume(config.out, max_updates=17).score == 30  # 20 at update 17
    assert_close(files.weights(config.out), after[10], rtol=0, atol=0)


def test_accumulated_halves_train_like_the_whole(settings, tmp_path, files):
    (tmp_path / "even.tsv").write_text("".join(f"{a} {b} c d\td c {b} {a}\n" for a in "abcd" for b in "efgh"))
    changes = dict(source=tmp_path / "even.tsv", max_epochs=10, dropout=0.0)  # 16 pairs of 5 tokens
    whole, halves = settings("whole", **changes, batch_tokens=80), settings(**changes, batch_tokens=40, accumulate=2)
    assert train(whole).updates == train(halves).updates == 10
    expected, got = (files.metrics(config.out)[-1]["valid_loss"] for config in (whole, halves))
    assert got == pytest.approx(expected, rel=1e-4)


# What goes wrong


def test_updates_that_are_not_numbers_are_left_out_and_counted(settings, spoiling, files):
    config = settings(max_updates=60, max_left_out=21)
    with spoiling({1, 7, 8, 33, *range(41, 61)}):
        assert train(config).finished
    lines = files.reports(config.out)
    assert [(line["update"], line["left_out"]) for line in lines] == [(20, 3), (40, 4), (60, 24)]
    assert all(math.isfinite(line["loss"]) for line in lines[:2])
    assert lines[2]["loss"] is None
    assert all(tensor.isfinite().all() for tensor in files.weights(config.out).values())


def test_what_was_left_out_is_counted_on_after_an_interruption(settings, spoiling, interrupting, files):
    config = settings(max_updates=20)
    with spoiling({3, 4}), interrupting(7):
        train(config)
    with spoiling({2}):
        resume(config.out)
    assert [line["left_out"] for line in files.reports(config.out)] == [3]


def test_the_plan_of_a_training_limited_in_time_has_lines_of_its_own(settings, monkeypatch, capfd):
    monkeypatch.setattr(pace, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(pace, "LEAST_SHARE", 0.0)
    train(settings(max_updates=8, max_minutes=1.0, validate_every=None, warmup=None))
    said = capfd.readouterr().err
    assert "about 8 updates: --warmup 1 --validate-every 1\n  (a busy machine makes fewer updates" in said
    assert "\\n" not in said


def test_a_limit_of_time_that_is_far_away_changes_nothing(settings, files):
    changes = dict(max_updates=30, validate_every=None, warmup=None)
    plain, limited = settings("plain", **changes), settings("limited", **changes, max_minutes=60.0)
    assert train(plain).updates == train(limited).updates == 30
    assert len(files.reports(limited.out)) == len(files.reports(plain.out))
    assert files.outcome(limited.out) == files.outcome(plain.out)


def test_a_higher_limit_changes_the_interval_of_validations_and_not_the_warm_up(settings, interrupting, capfd):
    config = settings(max_updates=24, validate_every=None, warmup=None)
    with interrupting(5):
        train(config)
    assert "about 24 updates: --warmup 2 --validate-every 2\n" in capfd.readouterr().err
    with interrupting(3):
        resume(config.out, max_updates=60)
    assert "about 60 updates: --warmup 2 --validate-every 5\n" in capfd.readouterr().err
    resume(config.out)
    assert "about" not in capfd.readouterr().err


def test_a_signal_that_comes_while_it_ends_is_told_of(settings, monkeypatch):
    finish = loop.TrainingLoop._finish

    def late(self: loop.TrainingLoop) -> TrainResult:
        signal.raise_signal(signal.SIGTERM)
        return finish(self)

    monkeypatch.setattr(loop.TrainingLoop, "_finish", late)
    result = train(settings(max_updates=3))
    assert (result.finished, result.updates, result.signal) == (True, 3, signal.SIGTERM)
    assert report(result) == 0, "it has done what it was asked to do"


def test_stopped_while_updates_are_left_out_it_goes_on_to_one_that_can_be_saved(settings, spoiling, interrupting):
    config = settings(max_updates=20)
    with interrupting(5):
        assert train(config).updates == 5
    with spoiling({3, 4, 5}), interrupting(4):
        stopped = resume(config.out)
    assert (stopped.finished, stopped.updates) == (False, 5 + 6)


def test_stopped_while_too_many_updates_are_left_out_it_says_what_is_saved(settings, spoiling, interrupting, capfd):
    config = settings(max_updates=19, max_left_out=4)
    with interrupting(5):
        train(config)
    with spoiling(range(3, 20)), interrupting(4):
        stopped = resume(config.out)
    assert (stopped.finished, stopped.updates) == (False, 5)
    with interrupting(1):
        assert resume(config.out).updates == 6
    assert "\ngoing on from update 5\n" in capfd.readouterr().err


def test_one_process_says_that_it_splits_nothing(settings, capfd):
    train(settings(max_updates=1, shard=True))
    assert "this is the only one: torchrun starts several\n" in capfd.readouterr().err


def test_too_many_in_a_row_end_the_training_and_a_lower_rate_goes_on(settings, spoiling, files):
    config = settings(max_updates=60, max_left_out=7, checkpoint_seconds=OFTEN)
    message = (
        r"^the last 15 updates up to 40 were left out, because their loss or gradient was not a number, or "
        r"the loss jumped: go on with --resume and a lower --learning-rate \(it was 0\.0015\) or --clip-norm, or "
        r"train anew with a longer --warmup$"
    )
    with spoiling({3, *range(26, 100)}), pytest.raises(DivergedError, match=message):
        train(config)
    assert resume(config.out, learning_rate=1e-4).finished
    lines = files.reports(config.out)
    assert [line["update"] for line in lines] == [20, 40, 60]
    assert lines[-1]["left_out"] <= 16
    assert lines[-1]["learning_rate"] == pytest.approx(1e-4 * (10 / 60) ** 0.5)


@pytest.mark.parametrize(
    ("validate_every", "message"),
    [(10, "^the validation loss is nan at update 30: "), (60, "^the last 15 updates up to 40 were left out, ")],
)
def test_weights_that_an_update_spoils_are_not_gone_on_with(settings, monkeypatch, validate_every, message):
    """An update is saved before its weights have a loss, which is the first to be left out."""
    make = Step.update

    def spoiling(self, *arguments, number, **others):
        result = make(self, *arguments, number=number, **others)
        if number == 25:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter *= 1e30
        return result

    config = settings(max_updates=60, max_left_out=7, checkpoint_seconds=OFTEN, validate_every=validate_every)
    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", spoiling)
        with pytest.raises(DivergedError, match=message):
            train(config)
    result = resume(config.out, learning_rate=1e-4)
    assert (result.finished, result.updates) == (True, 60)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adam", r"updates up to \d+ were left out, .*a lower --learning-rate \(it was"),
        ("muon", "lower --learning-rate"),  # its steps are never infinite: here validation notices first
    ],
)
def test_a_rate_that_is_far_too_high_ends_with_advice(settings, files, optimizer, message):
    config = settings(learning_rate=1e6, weight_decay=0.0, clip_norm=0.0, max_updates=100, optimizer=optimizer)
    with pytest.raises(DivergedError, match=message):
        train(config)
    if (config.out / "model.safetensors").exists():
        assert all(tensor.isfinite().all() for tensor in files.weights(config.out).values())


def test_a_validation_that_is_not_a_number_never_becomes_the_model(settings, spoiling, files):
    config = settings(max_updates=20)
    message = "the validation loss is nan at update 10: lower --learning-rate, raise"
    with spoiling(validations=True), pytest.raises(DivergedError, match=message):
        train(config)
    assert "model.safetensors" not in files.names(config.out)
    assert resume(config.out).finished


def test_too_little_memory_names_the_batch_and_the_setting(settings, tmp_path, monkeypatch):
    (tmp_path / "long.tsv").write_text("a b c d e f\tf e d c b a\n" * 900, encoding="utf-8")
    config = settings(source=tmp_path / "long.tsv", batch_tokens=6000, max_updates=2)
    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", lambda *_, **__: torch.empty(1 << 50))  # more than a process can address
        with pytest.raises(OutOfMemoryError) as raised:
            train(config)
    assert str(raised.value) == (
        "out of memory in update 1, with a batch of 857 pairs with 5,999 source and 5,999 target tokens, the longest "
        "7: go on with --resume and a smaller --batch-tokens (it is 6,000; twice --accumulate, which is 1, makes up "
        "for half of it), or leave longer pairs out with --max-tokens"
    )
    assert resume(config.out, batch_tokens=64).updates == 2


# Slow: a jump is told from a hundred updates on, and there is a checkpoint of every one.
@pytest.mark.usefixtures("unchecked")
def test_after_weights_went_wrong_it_goes_on_from_before(settings, files):
    """A loss tells of damage one update late: by then the damage may be in the weights, and must not be in all
    checkpoints."""
    config = settings(max_updates=400, max_left_out=5, checkpoint_seconds=OFTEN, validate_every=1000)
    updates = itertools.count(1)

    def spoil(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if next(updates) == 130:
            with torch.no_grad():
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter *= 6

    handle = register_optimizer_step_post_hook(spoil)
    try:
        with pytest.raises(DivergedError, match="go on with --resume and a lower --learning-rate"):
            train(config)
    finally:
        handle.remove()
    newest = max(int(path.name.split("-")[1]) for path in (config.out / "resume").glob("checkpoint-*"))
    assert newest <= 130
    shutil.rmtree(config.out / "resume" / "checkpoint-000000130", ignore_errors=True)  # if it was made in that moment
    result = resume(config.out, learning_rate=1e-3, max_updates=160)
    assert (result.finished, result.updates) == (True, 160)
    assert all("left_out" not in line for line in files.metrics(config.out))


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        (dict(max_updates=5), "max_updates 5"),
        (dict(max_updates=60, max_minutes=1e-9), "max_minutes 1e-09"),
        (dict(max_updates=5, max_epochs=9, max_minutes=1e-9), "max_updates 5 and max_minutes 1e-09"),
    ],
)
def test_an_end_that_is_passed_already_is_refused_and_changes_nothing(settings, interrupting, tree, ends, named):
    config = settings(max_updates=24)
    with interrupting(5):
        train(config)
    before = tree(config.out)
    with pytest.raises(ConfigError, match=rf"^{named}: .* has 5 updates already, .*: give more$"):
        resume(config.out, **ends)
    assert tree(config.out) == before
    assert resume(config.out).updates == 24
