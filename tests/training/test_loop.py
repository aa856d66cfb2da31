"""What training leaves, when it stops, and that stopping and going on changes nothing."""

import importlib.util
import json
import math
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.testing import assert_close

from glassformer.data import preparation
from glassformer.data.corpus import Corpus
from glassformer.errors import ConfigError, DataError, DivergedError, RunError
from glassformer.generation.translator import Translator
from glassformer.pictures import can_draw
from glassformer.run.folder import load_run
from glassformer.text.batching import Batch
from glassformer.text.loading import load_tokenizer
from glassformer.text.scores import Score
from glassformer.training import loop, prepare, progress, validation
from glassformer.training.config import TrainConfig
from glassformer.training.loader import BatchLoader
from glassformer.training.objective import Objective
from glassformer.training.prepare import read_valid_pairs
from glassformer.training.train import resume, train, train_once

pytestmark = pytest.mark.usefixtures("undrawn")

EVERY_UPDATE = str(Path(__file__).with_name("every_update.py"))
OFTEN, NEVER = 1e-9, 1e9
"""Seconds between checkpoints: one is always being written, or none however slow the machine is."""
FINISHED = {"config.json", "metrics.jsonl", "model.safetensors", "source.symbols", "target.symbols"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def reports(folder: Path) -> list[tuple[str, int]]:
    """Kind and update of every line of metrics.jsonl."""
    return [("validation" if "valid_loss" in line else "training", line["update"]) for line in metrics(folder)]


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """How many updates were made inside."""
    updates = 0

    def count(*_: object) -> None:
        nonlocal updates
        updates += 1

    handle = register_optimizer_step_post_hook(count)
    try:
        yield lambda: updates
    finally:
        handle.remove()


# What is left


def test_a_finished_run_folder_holds_this_and_nothing_else(settings):
    config = settings(max_updates=30)
    result = train(config)
    assert (result.finished, result.updates) == (True, 30)
    saved = json.loads((config.out / "config.json").read_text(encoding="utf-8"))["training"]
    assert TrainConfig.from_json(saved["settings"]) == config
    assert (saved["pairs"]["train"]["kept"], saved["pairs"]["valid"]["kept"]) == (200, 20)
    assert result.score is not None
    assert names(result.folder) == FINISHED
    assert [path.name for path in result.folder.parent.iterdir()] == ["run"]
    assert reports(result.folder) == [
        ("validation", 10),
        ("training", 20),
        ("validation", 20),
        ("validation", 30),
    ]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_with_matplotlib_there_is_a_picture_of_it_too(settings, monkeypatch):
    monkeypatch.setattr(progress, "can_draw", can_draw)
    config = settings(max_updates=3)
    train(config)
    assert names(config.out) == FINISHED | {"curves.png"}
    assert (config.out / "curves.png").read_bytes().startswith(b"\x89PNG")
    train(settings(max_updates=3, overwrite=True))  # no file of somebody else's
    assert names(config.out) == FINISHED | {"curves.png"}


@pytest.mark.parametrize(("optimizer", "highest"), [("muon", 1 / (2 * 16)), ("adam", 1 / (4 * 16))])
def test_the_figures_of_training_are_recorded(settings, optimizer, highest):
    config = settings(max_updates=20, optimizer=optimizer, learning_rate=None, warmup=None)
    train(config)
    line = next(line for line in metrics(config.out) if "loss" in line)
    # The defaults: up to 1 / (2 d_model) with Muon, 1 / (4 d_model) with Adam, over 4 d_model updates.
    assert line["learning_rate"] == pytest.approx(highest * 20 / (4 * 16))
    assert line["epoch"] == 2
    assert 0 < line["loss"] < 2 * math.log(10)
    assert line["tokens_per_second"] > 0
    assert line["seconds"] > 0
    assert "left_out" not in line


@pytest.mark.parametrize("separate", [False, True])
def test_the_embedding_of_padding_is_exactly_zero(settings, separate):
    config = settings(max_updates=5, separate_vocab=separate)
    train(config)
    saved = load_file(config.out / "model.safetensors")
    embeddings = {name: tensor for name, tensor in saved.items() if "embedding" in name}
    assert len(embeddings) == 1 + separate
    for tensor in embeddings.values():
        assert torch.equal(tensor[-1], torch.zeros(16))
        assert tensor[:-1].abs().amax(1).min() > 0
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in saved.values())


def test_both_precisions_train(settings):
    saved = {}
    for precision in ("float32", "bfloat16"):
        config = settings(precision, precision=precision, max_updates=5)
        train(config)
        saved[precision] = load_file(config.out / "model.safetensors")
    for tensor in saved["bfloat16"].values():
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()
    assert any(not torch.equal(saved["float32"][name], saved["bfloat16"][name]) for name in saved["float32"])


def test_each_side_its_own_tokenizer(settings, tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"{'abcdefg'[: n % 7 + 1]}\t{' '.join('ABCDEFG'[: n % 7 + 1])}\n" for n in range(60)))
    config = settings(source=path, valid_source=path, source_tokenizer="char", max_updates=10)
    train(config)
    assert names(config.out) == FINISHED - {"source.symbols"} | {"source.spm"}
    run = load_run(config.out)
    assert not run.model.config.shared_vocab
    assert run.target_tokenizer.vocab_size == 7 + 3
    assert set(" ".join(Translator.load(config.out, "cpu").translate(["abc", "gfe"]))) <= set("ABCDEFG ⁇")


# Validation pairs


def test_without_validation_files_pairs_with_sources_of_their_own_are_held_out(settings, interrupting):
    config = settings(valid_source=None, max_updates=30)
    with interrupting(1):
        train(config)
    counts = json.loads((config.out / "config.json").read_text(encoding="utf-8"))["training"]["pairs"]
    assert counts["train"]["kept"] + counts["valid"]["kept"] == 200
    assert 1 <= counts["valid"]["kept"] <= 20  # a twentieth, give or take
    tokenizer = load_tokenizer(config.out / "source.symbols")
    corpora = (Corpus(config.out / "resume" / part) for part in ("train", "valid"))
    trained, valid = ({tuple(corpus.source[i].tolist()) for i in range(len(corpus))} for corpus in corpora)
    assert trained.isdisjoint(valid)
    assert {tokenizer.decode([list(ids)])[0] for ids in valid} >= {source for source, _ in read_valid_pairs(config.out)}


def test_too_few_pairs_to_hold_some_out(settings, tmp_path):
    (tmp_path / "one.tsv").write_text("a b\tb a\n")
    config = settings(source=tmp_path / "one.tsv", valid_source=None)
    with pytest.raises(DataError, match=r"one.tsv has too few pairs with different sources .*: give --valid-source"):
        train(config)
    assert names(tmp_path) == {"one.tsv"}


def test_validation_pairs_that_are_all_empty_are_named_as_such(settings, tmp_path):
    (tmp_path / "v.tsv").write_text("\t\n\ta\n")
    with pytest.raises(DataError, match=r"valid.*0 of 2 pairs, left out 2 empty"):
        train(settings(valid_source=tmp_path / "v.tsv"))


# Reproducible


def test_the_same_seed_gives_the_same_weights_another_seed_others(settings):
    changes = dict(max_updates=25, dropout=0.2)
    a, b, c = settings("a", **changes), settings("b", **changes), settings("c", **changes, seed=2)
    for config in (a, b, c):
        train(config)
    assert weights(a.out) == weights(b.out)
    assert weights(a.out) != weights(c.out)


# Interrupted and continued


@pytest.fixture
def every_report(monkeypatch) -> None:
    """A line in metrics.jsonl for every update."""
    monkeypatch.setattr(loop, "REPORT_EVERY", 1)


LENGTH = dict(max_updates=25, dropout=0.2, validate_every=10)


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory) -> Path:
    """The folder of a run of this LENGTH that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(tiny(folder, **LENGTH))
    return folder


@pytest.mark.parametrize(
    "updates",
    [(1,), (7,), (10,), (13,), (25,), (5, 5, 9)],
    ids=["first", "before a validation", "at a validation", "after one", "last", "three times"],
)
def test_interrupted_and_continued_is_as_if_uninterrupted(settings, interrupting, uninterrupted, updates):
    config = settings(**LENGTH)
    done, number = 0, signal.SIGTERM if updates == (7,) else signal.SIGINT
    for count in updates:
        with interrupting(count, number):
            result = resume(config.out) if done else train(config)
        done += count
        assert (result.finished, result.updates, result.score, result.signal) == (False, done, None, number)
        assert "resume" in names(config.out)
    result = resume(config.out)
    assert (result.finished, result.updates) == (True, 25)
    assert names(config.out) == FINISHED
    assert weights(config.out) == weights(uninterrupted)
    assert reports(config.out) == reports(uninterrupted)


@pytest.mark.parametrize("place", ["within an epoch", "at its end"])
def test_continued_after_some_epochs(settings, interrupting, place):
    changes = dict(max_epochs=2, validate_every=100)
    undisturbed, config = settings("undisturbed", **changes), settings(**changes)
    total = train(undisturbed).updates
    assert total > 30
    with interrupting(total // 2 if place == "at its end" else 5):
        train(config)
    assert resume(config.out).updates == total
    assert weights(config.out) == weights(undisturbed.out)


def test_what_an_interrupted_run_needs_is_in_its_folder_and_no_more(settings, interrupting):
    config = settings(**LENGTH, checkpoint_seconds=OFTEN)
    with interrupting(23):
        train(config)
    kept = names(config.out / "resume")
    assert any(name.startswith("best-") for name in kept)
    assert {name for name in kept if not name.startswith(("checkpoint", "best-"))} == {
        *("train", "valid", "valid.json", "snapshot-000000010.safetensors", "snapshot-000000020.safetensors")
    }
    checkpoints = sorted(name for name in kept if name.startswith("checkpoint"))
    assert len(checkpoints) == 2
    assert checkpoints[1] == "checkpoint-000000023"
    assert names(config.out / "resume" / checkpoints[1]) == {"00001-of-00001.safetensors"}


@pytest.mark.parametrize("seconds", [OFTEN, NEVER], ids=["checkpoints", "no checkpoint yet"])
def test_a_lost_process_continues_from_its_last_checkpoint(settings, crashing, uninterrupted, seconds):
    config = settings(**LENGTH, checkpoint_seconds=seconds)
    with crashing(24), pytest.raises(SystemError, match="lost"):
        train(config)
    with (config.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"update": 24, "lo')  # it was lost in the middle of a line
    (config.out / ".model.safetensors.4711.tmp").write_bytes(b"half a model")
    with counting() as updates:
        assert resume(config.out).updates == 25
    assert updates() <= 10 if seconds == OFTEN else updates() == 25
    assert names(config.out) == FINISHED
    assert weights(config.out) == weights(uninterrupted)
    assert reports(config.out) == reports(uninterrupted)


def spoil(folder: Path) -> None:
    """Change a bit of what a checkpoint holds."""
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_costs_the_updates_since_the_one_before(settings, interrupting, uninterrupted):
    config = settings(**LENGTH, checkpoint_seconds=OFTEN)
    with interrupting(13):
        train(config)
    before, last = sorted((config.out / "resume").glob("checkpoint-*"))
    spoil(last)
    with (
        counting() as updates,
        pytest.warns(UserWarning, match="is damaged .*; going on from the checkpoint before it"),
    ):
        resume(config.out)
    assert updates() == 25 - int(before.name[-9:])
    assert weights(config.out) == weights(uninterrupted)
    assert reports(config.out) == reports(uninterrupted)


def test_where_every_checkpoint_is_damaged_it_says_so_each_time(settings, interrupting):
    config = settings(**LENGTH)
    with interrupting(13):
        train(config)
    spoil(config.out / "resume" / "checkpoint-000000013")
    for _ in range(2):
        with pytest.raises(RunError, match=r"train anew with --overwrite \(.*checkpoint-000000013.* is damaged"):
            resume(config.out)


def test_a_snapshot_of_a_future_that_never_was_has_no_part_in_the_mean(settings, interrupting, crashing):
    config = settings(max_updates=25, checkpoint_seconds=NEVER)
    with interrupting(5):
        train(config)
    with crashing(18), pytest.raises(SystemError, match="lost"):
        resume(config.out)  # to update 23, with snapshots of 10 and 20
    resume(config.out, max_updates=12)
    expected = settings("expected", max_updates=12)
    train(expected)
    assert weights(config.out) == weights(expected.out)
    assert reports(config.out) == reports(expected.out)


# Continued with other settings


def test_the_learning_rate_cools_down_at_the_end_also_when_continued(settings, interrupting, every_report):
    config = settings(max_updates=20, cooldown=0.5, learning_rate=1e-3, warmup=1)
    with interrupting(12):
        train(config)
    resume(config.out)
    rates = [line["learning_rate"] for line in metrics(config.out) if "loss" in line]
    plain = [1e-3 * update**-0.5 for update in range(1, 21)]
    assert rates[:10] == pytest.approx(plain[:10])
    assert rates[10:] == pytest.approx([rate * (10 - n) / 10 for n, rate in enumerate(plain[10:], start=1)])


def test_text_is_split_anew_until_the_cooldown_also_when_continued(settings, interrupting, monkeypatch):
    batch, anew = BatchLoader.batch, []

    def noted(loader: BatchLoader, pairs: list[int], seed: int | None = None) -> Batch:
        found = batch(loader, pairs, seed)
        lengths = loader.corpus.source.lengths[list(pairs)]
        anew.append(found.sources.tokens != lengths.sum())
        return found

    # A batch holds some 180 words, each split in two with probability 0.1: none of them once in 10^8 times.
    config = settings(max_updates=20, cooldown=0.5, tokenizer="bpe", resample=1.0, batch_tokens=200, validate_every=100)
    with interrupting(3):
        train(config)
    monkeypatch.setattr(BatchLoader, "batch", noted)
    with interrupting(12):
        resume(config.out)
    resume(config.out)
    assert anew[:17] == [True] * 7 + [False] * 10
    assert not any(anew[17:])  # of the validation


def test_continued_with_another_learning_rate(settings, interrupting):
    config = settings(max_updates=20)
    with interrupting(13):
        train(config)
    resume(config.out, learning_rate=1e-4)
    rates = [line["learning_rate"] for line in metrics(config.out) if "loss" in line]
    assert rates == pytest.approx([1e-4 * (10 / 20) ** 0.5])


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        # 64 pairs of 5 tokens, 8 in a batch: 8 batches an epoch, of which 4 are done
        (dict(), 4 + 4 + 8),
        (dict(batch_tokens=80), 4 + 2 + 4),
        (dict(batch_tokens=20), 4 + 8 + 16),
        (dict(batch_tokens=10_000), 4 + 1 + 1),
        (dict(accumulate=2), 4 + 2 + 4),
        (dict(accumulate=3), 4 + 2 + 3),
        (dict(batch_tokens=20, accumulate=2), 4 + 4 + 8),
    ],
    ids=str,
)
def test_continued_with_batches_of_another_size_it_is_as_far_as_it_was(
    settings, interrupting, tmp_path, changes, total
):
    (tmp_path / "even.tsv").write_text("a b c d\td c b a\n" * 64)
    config = settings(source=tmp_path / "even.tsv", batch_tokens=40, max_epochs=2, validate_every=100)
    with interrupting(4):
        train(config)
    result = resume(config.out, **changes)
    assert (result.finished, result.updates) == (True, total)


def test_continues_with_the_threads_it_was_started_with(settings, interrupting):
    before = torch.get_num_threads()
    try:
        config = settings(threads=1, max_updates=12)
        with interrupting(11):
            train(config)
        torch.set_num_threads(2)
        resume(config.out)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_run_moved_to_another_folder_continues_there(settings, interrupting, tmp_path, uninterrupted):
    config = settings(**LENGTH)
    with interrupting(13):
        train(config)
    moved = config.out.rename(tmp_path / "moved")
    assert resume(moved).folder == moved
    assert weights(moved) == weights(uninterrupted)
    assert names(tmp_path) == {"moved"}


def test_nothing_is_pickled(settings, interrupting, monkeypatch, commands, flags):
    changes = dict(max_updates=20, checkpoint_seconds=OFTEN)
    config, lost = settings(**changes), settings("lost", **changes)
    killed = commands.start(sys.executable, EVERY_UPDATE, "train", *flags(lost), MISHAP=f"12 {signal.SIGKILL} 0")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    with interrupting(12):
        train(config)
    assert killed.wait(60) == -signal.SIGKILL, killed.stderr.read()
    for folder in (config.out, lost.out):
        left = {path.suffix for path in folder.rglob("*") if path.is_file()}
        assert left - {".tmp", ""} == {".json", ".jsonl", ".safetensors", ".symbols", ".ids", ".offsets"}
        assert resume(folder).updates == 20
        assert len(Translator.load(folder, "cpu").translate(["a b c"])) == 1


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda run: shutil.rmtree(run / "resume"), RunError, "the training of .* is complete: .*nothing to resume"),
        (lambda run: (run / "config.json").unlink(), RunError, "is not a run folder"),
        (lambda run: shutil.rmtree(run), RunError, "no such run folder"),
        (
            lambda run: (run / "config.json").write_text(
                (run / "config.json").read_text().replace('"accumulate"', '"hurry"')
            ),
            ConfigError,
            "do not fit this version of glassformer: .*hurry",
        ),
    ],
    ids=["finished", "no config", "no folder", "settings of another version"],
)
def test_what_cannot_be_continued(settings, interrupting, spoil, error, message):
    config = settings(max_updates=20)
    with interrupting(1):
        train(config)
    spoil(config.out)
    with pytest.raises(error, match=message):
        resume(config.out)


# When it stops


def test_max_epochs_is_passes_over_the_pairs(settings, tmp_path):
    (tmp_path / "even.tsv").write_text("a b c d\td c b a\n" * 16)
    # 16 pairs of 5 tokens, 8 in a batch: 2 updates an epoch
    config = settings(source=tmp_path / "even.tsv", batch_tokens=40, max_epochs=3)
    assert train(config).updates == 6


def test_max_minutes(settings):
    result = train(settings(max_minutes=0.002))
    assert result.finished
    assert 1 <= result.updates < 500


def scripted(monkeypatch, *scores: float) -> None:
    """Validations score these numbers, one after the other."""
    rest = iter(scores)
    monkeypatch.setattr(validation, "score", lambda *_, **__: Score("scripted", float(next(rest)), ""))


def test_after_patience_the_cooldown_still_comes(settings, monkeypatch, interrupting, every_report):
    scripted(monkeypatch, *range(9, -1, -1))
    config = settings(patience=3, average=1, cooldown=0.5, warmup=1, validate_every=3)
    with interrupting(14):
        train(config)
    assert resume(config.out).updates == 24  # the best at 3, then three more, and as long again
    rates = [line["learning_rate"] for line in metrics(config.out) if "loss" in line]
    plain = [3e-3 * update**-0.5 for update in range(1, 25)]
    assert rates == pytest.approx([rate * min(1, (24 - n) / 12) for n, rate in enumerate(plain, start=1)])


def test_continued_with_another_patience_it_counts_anew(settings, monkeypatch, interrupting):
    scripted(monkeypatch, *range(9, -1, -1))
    with interrupting(14):  # after patience was over
        train(settings(patience=3, average=1, cooldown=0.5, max_updates=30, validate_every=3))
    assert resume(settings().out, patience=0).updates == 30


# What is kept


def single(tiny, folder: Path, updates: int, **changes) -> dict[str, torch.Tensor]:
    """The weights after so many updates."""
    config = tiny(folder / str(updates), max_updates=updates, validate_every=updates, average=1, **changes)
    train(config)
    return load_file(config.out / "model.safetensors")


@pytest.fixture(scope="module")
def after(tiny, undrawn, tmp_path_factory) -> dict[int, dict[str, torch.Tensor]]:
    """The weights after four and after six updates."""
    folder = tmp_path_factory.mktemp("single")
    return {updates: single(tiny, folder, updates) for updates in (4, 6)}


@pytest.mark.parametrize(
    ("changes", "scores", "score", "kept"),
    [
        (dict(average=3), (10, 20, 30, 29), 30, [6]),  # the mean's loss is worse too: the first weights are raw
        (dict(average=3, metric="wer"), (90, 60, 40, 41), 40, [6]),
        (dict(average=1), (10, 30, 20), 30, [4]),
        (dict(average=2), (10, 30, 20, 31), 31, [4, 6]),
        (dict(average=2), (10, 30, 20, 29), 29, [4, 6]),  # the mean's loss is better, and the best score may be luck
    ],
    ids=["the best", "the lowest error rate", "the best without a mean", "a better mean", "a mean of lower loss"],
)
def test_the_best_weights_are_kept_single_ones_or_the_mean(settings, monkeypatch, after, changes, scores, score, kept):
    config = settings(max_updates=6, validate_every=2, **changes)
    scripted(monkeypatch, *scores)
    assert train(config).score == score
    expected = {name: (sum(after[n][name].double() for n in kept) / len(kept)).float() for name in after[4]}
    assert_close(load_file(config.out / "model.safetensors"), expected, rtol=0, atol=0)


def test_accumulated_halves_train_like_the_whole(settings, tmp_path):
    (tmp_path / "even.tsv").write_text("".join(f"{a} {b} c d\td c {b} {a}\n" for a in "abcd" for b in "efgh"))
    changes = dict(source=tmp_path / "even.tsv", max_epochs=10, dropout=0.0)  # 16 pairs of 5 tokens
    whole, halves = settings("whole", **changes, batch_tokens=80), settings(**changes, batch_tokens=40, accumulate=2)
    assert train(whole).updates == train(halves).updates == 10
    expected, got = (metrics(config.out)[-1]["valid_loss"] for config in (whole, halves))
    assert got == pytest.approx(expected, rel=1e-4)


def test_trained_once_it_goes_on_where_it_stopped_and_is_done_once(settings, interrupting):
    config = settings(max_updates=20)
    train(settings("whole", max_updates=20))
    with interrupting(7):
        assert not train_once(config).finished
    with counting() as updates:
        result = train_once(replace(config, threads=1))
    assert (result.finished, result.updates, updates()) == (True, 20, 13)
    assert weights(config.out) == weights(config.out.with_name("whole"))
    with counting() as updates:
        again = train_once(config)
    assert (again.finished, again.updates, again.metric, updates()) == (True, 20, result.metric, 0)
    assert 0 < again.seconds <= result.seconds


def test_trained_once_is_with_these_settings(settings):
    train(settings(max_updates=10))
    with pytest.raises(
        RunError,
        match=r"run was trained with other settings \(max_updates 10, now 20\): give those again, or choose an",
    ):
        train_once(settings(max_updates=20))
    assert train_once(settings(max_updates=20, overwrite=True)).updates == 20


# What goes wrong


def training_reports(folder: Path) -> list[tuple[int, int]]:
    """Update, and number of updates left out so far, of the lines of training."""
    return [(line["update"], line.get("left_out", 0)) for line in metrics(folder) if "loss" in line]


def test_updates_that_are_not_numbers_are_left_out_and_counted(settings, spoiling):
    config = settings(max_updates=40)
    with spoiling({1, 7, 8, 33}):
        assert train(config).finished
    assert training_reports(config.out) == [(20, 3), (40, 4)]
    assert all(math.isfinite(line["loss"]) for line in metrics(config.out) if "loss" in line)
    assert all(tensor.isfinite().all() for tensor in load_file(config.out / "model.safetensors").values())


def test_what_was_left_out_is_counted_on_after_an_interruption(settings, spoiling, interrupting):
    config = settings(max_updates=20)
    with spoiling({3, 4}), interrupting(7):
        train(config)
    with spoiling({2}):
        resume(config.out)
    assert training_reports(config.out) == [(20, 3)]


def test_stopped_while_updates_are_left_out_it_says_what_is_saved(settings, spoiling, interrupting):
    config = settings(max_updates=20)
    with interrupting(5):
        assert train(config).updates == 5
    with spoiling({3, 4}), interrupting(4):
        stopped = resume(config.out)
    assert (stopped.finished, stopped.updates) == (False, 5)


def test_updates_without_a_loss_to_show(settings, spoiling):
    config = settings(max_updates=40, max_left_out=21)
    with spoiling(range(21, 41)):
        assert train(config).finished
    assert [line["loss"] is None for line in metrics(config.out) if "loss" in line] == [False, True]


def test_too_many_in_a_row_end_the_training_and_a_lower_rate_goes_on(settings, spoiling):
    config = settings(max_updates=80, max_left_out=7, checkpoint_seconds=OFTEN)
    with (
        spoiling({3, *range(26, 100)}),
        pytest.raises(
            DivergedError,
            match=r"^the last 15 updates up to 40 were left out, because their loss or gradient was not a number, or "
            r"the loss jumped: go on with --resume and a lower --learning-rate \(it was 0\.0015\) or --clip-norm, or "
            r"train anew with a longer --warmup$",
        ),
    ):
        train(config)
    assert resume(config.out, learning_rate=1e-4).finished
    lines = [line for line in metrics(config.out) if "loss" in line]
    assert [line["update"] for line in lines] == [20, 40, 60, 80]
    assert lines[-1]["left_out"] <= 16
    assert lines[-1]["learning_rate"] == pytest.approx(1e-4 * (10 / 80) ** 0.5)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adam", r"updates up to \d+ were left out, .*a lower --learning-rate \(it was"),
        ("muon", "lower --learning-rate"),  # its steps are never infinite: here validation notices first
    ],
)
def test_a_rate_that_is_far_too_high_ends_with_advice(settings, optimizer, message):
    config = settings(learning_rate=1e6, weight_decay=0.0, clip_norm=0.0, max_updates=100, optimizer=optimizer)
    with pytest.raises(DivergedError, match=message):
        train(config)
    model = config.out / "model.safetensors"
    assert not model.exists() or all(tensor.isfinite().all() for tensor in load_file(model).values())


def test_a_validation_that_is_not_a_number_never_becomes_the_model(settings):
    def spoil_validation(module: torch.nn.Module, inputs: object, losses: tuple) -> tuple | None:
        if isinstance(module, Objective) and not torch.is_grad_enabled():
            return tuple(loss * math.nan for loss in losses)
        return None

    config = settings(max_updates=20)
    handle = register_module_forward_hook(spoil_validation)
    try:
        with pytest.raises(
            DivergedError, match="the validation loss is nan at update 10: lower --learning-rate, raise"
        ):
            train(config)
    finally:
        handle.remove()
    assert "model.safetensors" not in names(config.out)
    assert resume(config.out).finished


@pytest.mark.parametrize("exception", [KeyboardInterrupt, RuntimeError])
def test_stopped_while_preparing_leaves_nothing(settings, monkeypatch, exception):
    def stop(*_: object, **__: object) -> None:
        raise exception

    monkeypatch.setattr(preparation, "write_corpus", stop)
    config = settings()
    with pytest.raises(exception):
        train(config)
    assert list(config.out.parent.iterdir()) == []


def test_folders_made_on_the_way_go_with_what_failed(settings, tmp_path):
    with pytest.raises(ConfigError, match="vocab_size"):
        train(settings("new/folders/run", vocab_size=5000))
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_a_run(settings):
    first, second = settings(max_updates=20), settings(overwrite=True, max_updates=10, d_ff=29)
    train(first)
    train(second)
    assert names(second.out) == FINISHED
    assert [path.name for path in second.out.parent.iterdir()] == ["run"]
    assert reports(second.out) == [("validation", 10)]
    assert load_run(second.out).model.config.d_ff == 29


def test_overwrite_that_fails_to_prepare_leaves_the_old_run(settings):
    config = settings(max_updates=10)
    train(config)
    before = {path.name: path.read_bytes() for path in config.out.iterdir()}
    with pytest.raises(ConfigError, match="vocab_size 5000 is larger"):
        train(settings(overwrite=True, vocab_size=5000))
    assert {path.name: path.read_bytes() for path in config.out.iterdir()} == before
    assert [path.name for path in config.out.parent.iterdir()] == ["run"]


# What a review found


def test_after_weights_went_wrong_it_goes_on_from_before(settings):
    """A loss tells of damage one update late: by then the damage may be in the weights, and must not be in all
    checkpoints."""
    config = settings(max_updates=400, max_left_out=5, checkpoint_seconds=OFTEN, validate_every=1000)
    updates = 0

    def spoil(optimizer, *_):
        nonlocal updates
        updates += 1
        if updates == 130:
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
    assert all("left_out" not in line for line in metrics(config.out))


def test_changed_settings_hold_from_then_on(settings, interrupting):
    config = settings(max_updates=30)
    with interrupting(5):
        train(config)
    with interrupting(5):
        resume(config.out, learning_rate=1e-5, batch_tokens=48)
    resume(config.out)
    kept = json.loads((config.out / "config.json").read_text())["training"]["settings"]
    assert (kept["learning_rate"], kept["batch_tokens"], kept["max_updates"]) == (1e-5, 48, 30)
    rates = [line["learning_rate"] for line in metrics(config.out) if "learning_rate" in line]
    assert rates
    assert max(rates) <= 1e-5


def test_the_model_is_of_the_score_that_is_reported(settings, tiny, tmp_path, interrupting, crashing, monkeypatch):
    """Weights that were the best after the last checkpoint are no longer where the run doesn't come to them again."""
    config = settings(max_updates=25, checkpoint_seconds=NEVER, average=1)
    with monkeypatch.context() as patch:
        scripted(patch, 30, 40, 20)
        with interrupting(15):
            train(config)  # 30 at update 10
        with crashing(8), pytest.raises(SystemError, match="lost"):
            resume(config.out)  # 40 at update 20, lost at 23
        assert resume(config.out, max_updates=17).score == 30  # 20 at update 17
    assert_close(load_file(config.out / "model.safetensors"), single(tiny, tmp_path, 10), rtol=0, atol=0)


def test_the_reports_are_those_of_an_undisturbed_run(settings, interrupting):
    config, alone = settings(max_updates=20), settings("alone", max_updates=20)
    train(alone)
    with interrupting(11):
        train(config)
    resume(config.out)
    losses = [[line["loss"] for line in metrics(run.out) if "loss" in line] for run in (alone, config)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 1


def test_a_run_that_another_training_has_made_meanwhile_is_left_alone(settings, monkeypatch):
    config = settings()
    make = prepare.Preparation.make

    def slowly(self, folder, *checks):
        facts = make(self, folder, *checks)
        if not config.out.exists():
            config.out.mkdir()
            (config.out / "another's").touch()
        return facts

    monkeypatch.setattr(prepare.Preparation, "make", slowly)
    with pytest.raises(RunError, match="was made by another process meanwhile: choose another --out"):
        train(config)
    assert names(config.out) == {"another's"}
