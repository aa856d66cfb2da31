"""That stopping a training and going on changes nothing, with which settings it goes on, and when it is refused."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from glassformer.data.corpus import Corpus
from glassformer.errors import ConfigError, RunError
from glassformer.run.config import read_config
from glassformer.text.batching import Batch
from glassformer.training import loop
from glassformer.training.config import TrainConfig
from glassformer.training.loader import BatchLoader
from glassformer.training.train import resume, train, train_once

pytestmark = pytest.mark.usefixtures("undrawn", "unchecked_trainings")

OFTEN, NEVER = 1e-9, 1e9
"""Seconds between checkpoints: one is always being written, or none however slow the machine is."""
LENGTH = dict(max_updates=25, dropout=0.2, validate_every=10)


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How many updates were made inside."""
    updates: list[object] = []
    handle = register_optimizer_step_post_hook(lambda *_: updates.append(None))
    try:
        yield lambda: len(updates)
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory) -> Path:
    """The folder of a run of this LENGTH that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(tiny(folder, **LENGTH))
    return folder


# Interrupted and continued


def test_no_update_takes_attention_that_plans_for_each_shape(settings, interrupting):
    planned = list[bool]()
    handle = register_optimizer_step_post_hook(lambda *_: planned.append(torch.backends.cuda.cudnn_sdp_enabled()))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        with interrupting(2):
            stopped = train(settings("planned", max_updates=5)).folder
        first = len(planned)
        resume(stopped)
    finally:
        handle.remove()
    assert (first > 0, len(planned) > first, any(planned)) == (True, True, False)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_what_the_data_and_the_limits_decided_stays_when_a_training_goes_on(settings, interrupting, files):
    left = dict(tokenizer="auto", preset="auto", metric="auto", batch_tokens=None, warmup=None, validate_every=None)
    whole, stopped = (settings(out, **left, max_updates=24) for out in ("whole", "stopped"))
    train(whole)
    for updates in (3, 9):
        with interrupting(updates):
            train_once(stopped)
    assert resume(stopped.out).updates == 24
    assert files.outcome(stopped.out) == files.outcome(whole.out)
    chosen = json.loads((whole.out / "config.json").read_text(encoding="utf-8"))["training"]["chosen"]
    assert set(chosen) == {"source_tokenizer", "target_tokenizer", "preset", "dropout", "metric", "batch_tokens"}
    assert len(files.metrics(whole.out)) > 12, "it was validated every other update"


@pytest.mark.parametrize(
    "updates",
    [(1,), (7,), (10,), (13,), (25,), (5, 5, 9)],
    ids=["first", "before a validation", "at a validation", "after one", "last", "three times"],
)
def test_interrupted_and_continued_is_as_if_uninterrupted(settings, interrupting, uninterrupted, files, updates):
    config = settings(**LENGTH)
    done, number = 0, signal.SIGTERM if updates == (7,) else signal.SIGINT
    for count in updates:
        with interrupting(count, number):
            result = resume(config.out) if done else train(config)
        done += count
        assert (result.finished, result.updates, result.score, result.signal) == (False, done, None, number)
        assert "resume" in files.names(config.out)
    result = resume(config.out)
    assert (result.finished, result.updates) == (True, 25)
    assert files.names(config.out) == files.names(uninterrupted)
    assert files.outcome(config.out) == files.outcome(uninterrupted)


def test_joined_neighbours_come_again_when_a_training_goes_on(settings, interrupting, files):
    whole, stopped = (settings(out, max_updates=24, join_lines=3) for out in ("whole", "stopped"))
    train(whole)
    with interrupting(11):
        train(stopped)
    assert len(Corpus(stopped.out / "resume" / "train")) > 200
    with pytest.raises(ConfigError, match="leave out `join_lines`"):
        resume(stopped.out, join_lines=2)
    assert resume(stopped.out).updates == 24
    assert files.outcome(stopped.out) == files.outcome(whole.out)
    assert read_config(whole.out).training.join_lines == 3
    assert read_config(whole.out).training.pairs["train"]["joined"] > 50


def test_continued_at_the_end_of_an_epoch(settings, interrupted, files):
    total = train(undisturbed := settings("undisturbed", max_epochs=2, validate_every=100)).updates
    assert total > 30
    config = interrupted(total // 2, max_epochs=2, validate_every=100)
    assert resume(config.out).updates == total
    assert files.outcome(config.out) == files.outcome(undisturbed.out)


def test_a_run_moved_to_another_folder_continues_there(interrupted, tmp_path, uninterrupted, files):
    config = interrupted(13, **LENGTH)
    moved = config.out.rename(tmp_path / "moved")
    assert resume(moved).folder == moved
    assert files.outcome(moved) == files.outcome(uninterrupted)
    assert files.names(tmp_path) == {"moved"}


def test_what_an_interrupted_run_needs_is_in_its_folder_and_no_more(interrupted, files):
    config = interrupted(23, **LENGTH, checkpoint_seconds=OFTEN)
    kept = files.names(config.out / "resume")
    assert any(name.startswith("best-") for name in kept)
    assert {name for name in kept if not name.startswith(("checkpoint", "best-"))} == {
        *(
            "train",
            "valid",
            "valid.json",
            "checksums.json",
            "snapshot-000000010.safetensors",
            "snapshot-000000020.safetensors",
        )
    }
    _, newest = sorted(name for name in kept if name.startswith("checkpoint"))
    assert newest == "checkpoint-000000023"
    assert files.names(config.out / "resume" / newest) == {"00001-of-00001.safetensors"}


@pytest.mark.parametrize("seconds", [OFTEN, NEVER], ids=["checkpoints", "no checkpoint yet"])
def test_a_lost_process_continues_from_its_last_checkpoint(settings, crashing, uninterrupted, files, seconds):
    config = settings(**LENGTH, checkpoint_seconds=seconds)
    with crashing(24), pytest.raises(SystemError, match="lost"):
        train(config)
    with (config.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"update": 24, "lo')  # it was lost in the middle of a line
    half = config.out / ".model.safetensors.ab3_e9xy.tmp"
    half.mkdir()
    for name in (".lock", "model.safetensors"):
        (half / name).write_bytes(b"half a model")
    with counting() as updates:
        assert resume(config.out).updates == 25
    assert updates() <= 10 if seconds == OFTEN else updates() == 25
    assert files.names(config.out) == files.names(uninterrupted)
    assert files.outcome(config.out) == files.outcome(uninterrupted)


def test_lost_after_its_last_validation_it_ends_with_the_same_figures(settings, uninterrupted, files, monkeypatch):
    config = settings(**LENGTH, checkpoint_seconds=OFTEN)

    def lose(_: Path) -> None:
        raise SystemError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "remove_at_once", lose)
        with pytest.raises(SystemError):
            train(config)
    resume(config.out)
    assert files.outcome(config.out) == files.outcome(uninterrupted)


def test_a_snapshot_of_a_future_that_never_was_has_no_part_in_the_mean(settings, interrupted, crashing, files):
    config = interrupted(5, max_updates=25, checkpoint_seconds=NEVER)
    with crashing(18), pytest.raises(SystemError, match="lost"):
        resume(config.out)  # to update 23, with snapshots of 10 and 20
    resume(config.out, max_updates=12)
    train(expected := settings("expected", max_updates=12))
    assert files.outcome(config.out) == files.outcome(expected.out)


def test_text_is_split_anew_until_the_cooldown_also_when_continued(interrupted, interrupting, monkeypatch):
    batch, anew = BatchLoader.batch, []

    def noted(loader: BatchLoader, pairs: list[int], seed: int | None = None) -> Batch:
        found = batch(loader, pairs, seed)
        lengths = loader.corpus.source.lengths[list(pairs)]
        anew.append(found.sources.tokens != lengths.sum())
        return found

    # A batch holds some 180 words, each split in two with probability 0.1: none of them once in 10^8 times.
    course = dict(max_updates=20, cooldown=0.5, batch_tokens=200, validate_every=100)
    config = interrupted(3, tokenizer="bpe", resample=1.0, **course)
    monkeypatch.setattr(BatchLoader, "batch", noted)
    with interrupting(12):
        resume(config.out)
    resume(config.out)
    assert anew[:17] == [True] * 7 + [False] * 10
    assert not any(anew[17:])  # of the validation


# Continued with the same settings or with others


def test_continues_with_the_threads_it_was_started_with(interrupted, monkeypatch):
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    config = interrupted(11, threads=3, max_updates=12)
    given.clear()
    resume(config.out)
    assert given[0] == 3


def test_changed_settings_hold_from_then_on(interrupted, interrupting, files):
    config = interrupted(5, max_updates=20)
    with interrupting(5):
        resume(config.out, learning_rate=1e-5, batch_tokens=48)
    resume(config.out)
    kept = json.loads((config.out / "config.json").read_text())["training"]["settings"]
    assert (kept["learning_rate"], kept["batch_tokens"], kept["max_updates"]) == (1e-5, 48, 20)
    assert [line["learning_rate"] for line in files.reports(config.out)] == pytest.approx([1e-5 * (10 / 20) ** 0.5])


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        # 64 pairs of 5 tokens, 8 in a batch: 8 batches an epoch, of which 4 are done
        (dict(), 4 + 4 + 8),
        (dict(batch_tokens=80), 4 + 2 + 4),
        (dict(accumulate=3), 4 + 2 + 3),
        (dict(batch_tokens=20, accumulate=2), 4 + 4 + 8),
    ],
    ids=str,
)
def test_with_batches_of_another_size_it_is_as_far_as_it_was(interrupted, tmp_path, changes, total):
    (tmp_path / "even.tsv").write_text("a b c d\td c b a\n" * 64)
    config = interrupted(4, source=tmp_path / "even.tsv", batch_tokens=40, max_epochs=2, validate_every=100)
    result = resume(config.out, **changes)
    assert (result.finished, result.updates) == (True, total)


def test_settings_of_another_version_are_refused(interrupted):
    config = interrupted(1, max_updates=20)
    path = config.out / "config.json"
    path.write_text(path.read_text().replace('"accumulate"', '"hurry"'))
    with pytest.raises(ConfigError, match=r"do not fit this version of glassformer: .*hurry"):
        resume(config.out)


def test_trained_once_it_goes_on_where_it_stopped_and_is_done_once(settings, interrupting, files):
    config, whole = settings(max_updates=20), settings("whole", max_updates=20)
    train(whole)
    with interrupting(7):
        assert not train_once(config).finished
    with counting() as updates:
        result = train_once(replace(config, threads=1))
    assert (result.finished, result.updates, updates()) == (True, 20, 13)
    assert files.outcome(config.out) == files.outcome(whole.out)
    with counting() as updates:
        again = train_once(config)
    assert (again.finished, again.updates, again.metric, updates()) == (True, 20, result.metric, 0)
    assert 0 < again.seconds <= result.seconds


def test_what_a_kill_at_the_very_end_left_is_removed_by_whoever_asks_next(settings):
    config = settings(max_updates=2)
    train(config)
    left = config.out / ".resume.ab3_e9xy.tmp"
    for ask in (train_once, lambda config: resume(config.out)):
        (left / "resume").mkdir(parents=True)
        (left / ".lock").touch()
        with nullcontext() if ask is train_once else pytest.raises(RunError):
            ask(config)
        assert not list(config.out.glob(".*"))


def test_trained_once_files_may_be_given_alone_or_in_a_list(settings):
    config = settings(max_updates=2)
    train(replace(config, source=(config.source,)))
    assert train_once(config).updates == 2


@pytest.mark.usefixtures("unchecked")
def test_paths_may_be_strings(tmp_path):
    config = TrainConfig(source=["a.tsv", "b.tsv"], valid_source="v.tsv", out=str(tmp_path))
    assert config.source == (Path("a.tsv"), Path("b.tsv"))
    assert (config.valid_source, config.out) == (Path("v.tsv"), tmp_path)


def test_trained_once_is_with_these_settings(settings):
    train(settings(max_updates=10))
    message = r"run was trained with other settings \(max_updates 10, now 20\): give those again, or choose an"
    with pytest.raises(RunError, match=message):
        train_once(settings(max_updates=20))
    assert train_once(settings(max_updates=20, overwrite=True)).updates == 20


def test_trained_once_a_change_of_resume_stays_and_the_script_goes_on(settings, interrupting):
    """The script of docs/howto/resume.md, stopped after its change of the learning rate, was refused ever after."""
    config = settings(max_updates=20)
    first = {"learning_rate": config.learning_rate}
    with interrupting(7):
        train_once(config)
    with interrupting(5):
        resume(config.out, learning_rate=1e-4)
    with interrupting(3):
        resume(config.out, learning_rate=2e-4, max_updates=25)
    result = train_once(config)
    assert (result.finished, result.updates) == (True, 25)
    recorded = read_config(config.out).training
    assert ((recorded.settings or {})["learning_rate"], recorded.begun_with) == (2e-4, {"max_updates": 20, **first})
    assert train_once(config).updates == 25
    assert train_once(replace(config, learning_rate=2e-4, max_updates=25)).updates == 25
    with pytest.raises(RunError, match=r"other settings \(learning_rate 0\.003, now 0\.0003\)"):
        train_once(replace(config, learning_rate=3e-4))


# Started again by torchrun


@pytest.fixture
def launched(monkeypatch) -> Callable[..., None]:
    """As under torchrun with this --rdzv-id, after so many starts."""

    def launch(known: str, starts: int = 0) -> None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", known)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(starts))

    return launch


def test_a_run_of_the_same_launch_goes_on_whichever_machine_starts_it(settings, launched, interrupting, files):
    launched("job")
    config = settings(**LENGTH, overwrite=True)
    with interrupting(7):
        assert train(config).updates == 7
    assert json.loads((config.out / "config.json").read_text())["training"]["launch"] == "job"
    (config.out.parent / ".run.ab3_e9xy.tmp").mkdir()  # where it was prepared, by a process that was killed
    assert train(config).updates == 25
    assert files.names(config.out.parent) == {"run"}
    with counting() as made:
        assert train(config).updates == 25, "started again at its very end"
        launched("job", starts=1)
        assert resume(config.out).updates == 25
        assert made() == 0


def test_an_equal_finished_run_of_another_launch_is_replaced_or_refused(settings, launched):
    launched("yesterday")
    train(settings(max_updates=3))
    launched("today", starts=1)
    with counting() as made:
        train(settings(max_updates=3, overwrite=True))
        assert made() == 3
    launched("tomorrow", starts=1)
    with pytest.raises(RunError, match=r"run exists: --overwrite replaces it, or choose another --out$"):
        train(settings(max_updates=3))


def test_a_launch_has_the_same_settings_on_all_machines(settings, launched, interrupting):
    launched("job")
    with interrupting(2):
        train(settings(max_updates=5))
    message = (
        r"run was begun by this launch of torchrun \(--rdzv-id job\) with other settings \(max_updates 5, now 7\): "
        "give all machines the same, or for another training another --rdzv-id$"
    )
    with pytest.raises(RunError, match=message):
        train(settings(max_updates=7, overwrite=True))


def test_without_an_id_nobody_knows_whose_the_run_is(settings, launched):
    launched("none")
    train(settings(max_updates=2))
    launched("none", starts=1)
    with pytest.raises(RunError, match=r"has started its processes again: .*; give torchrun an --rdzv-id$"):
        train(settings(max_updates=2, overwrite=True))
