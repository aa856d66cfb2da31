"""Checkpoints come back to the bit; one that is damaged or half written costs no more than going on from the last."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

from glassformer.errors import RunError
from glassformer.tensors import write_checked_tensors
from glassformer.text.batching import Batch
from glassformer.training import agreement, checkpoint
from glassformer.training.checkpoint import Checkpoints
from glassformer.training.distributed import Processes
from glassformer.training.state import TrainingState
from glassformer.training.step import Step
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

EXACT = dict(rtol=0.0, atol=0.0)
SOURCE_VOCAB, TARGET_VOCAB = 17, 19


def new_step(**changes: int) -> Step:
    sizes = dict(d_model=6, heads=2, encoder_layers=1, decoder_layers=1, d_ff=13)
    vocabularies = dict(source_vocab_size=SOURCE_VOCAB, target_vocab_size=TARGET_VOCAB, shared_vocab=False)
    model = Transformer(ModelConfig(**{**sizes, **vocabularies, **changes}, dropout=0.2))
    return Step(model, dtype=torch.float32, label_smoothing=0.1, clip_norm=1.0, optimizer="muon")


def advance(step: Step, *seeds: int) -> None:
    """An update for each seed."""
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        source, target = (
            [torch.randint(1, vocab - 1, (length,), generator=draw) for length in (2, 3, 5)]
            for vocab in (SOURCE_VOCAB, TARGET_VOCAB)
        )
        batch = Batch.of(source, target, SOURCE_VOCAB - 1, TARGET_VOCAB - 1)
        step.update([batch], rate=0.01, number=seed)


def state(step: Step) -> dict[str, torch.Tensor]:
    """Everything that the updates to come depend on."""
    named = dict(step.model.named_parameters())
    return {
        "watch": step.outliers.state.clone(),
        **{name: parameter.detach().clone() for name, parameter in named.items()},
        **{f"{name} {key}": t.clone() for name, p in named.items() for key, t in step.optimizer.state(p).items()},
    }


def saved(folder: Path) -> list[int]:
    """The updates of the checkpoints that are there."""
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Checkpoints]]:
    """Checkpoints in the test's folder."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(closing(Checkpoints(tmp_path, **changes)))


def save(checkpoints: Checkpoints, step: Step, update: int) -> None:
    checkpoints.save(step, TrainingState(update=update))
    checkpoints.wait()


@pytest.fixture
def twice(make: Callable[..., Checkpoints]) -> dict[int, dict[str, torch.Tensor]]:
    """Checkpoints of the updates 3 and 5, and the states that are in them."""
    step, checkpoints, states = new_step(), make(), {}
    advance(step, 1)
    for update in (3, 5):
        advance(step, update)
        save(checkpoints, step, update)
        states[update] = state(step)
    return states


# There and back


def test_it_comes_back_exactly_and_the_next_updates_are_the_same(make):
    step = new_step()
    advance(step, 1, 2, 3)
    position = TrainingState(
        update=3, epoch=1, batch=2, batches=7, seconds=0.1, best=[1 / 3, -2.5], validated=2, since_best=4
    )
    checkpoints = make()
    checkpoints.save(step, position)
    checkpoints.wait()
    other = new_step()
    assert make().load(other) == position
    before = state(step)
    assert {"watch", "target_embedding.weight step", "target_embedding.weight exp_avg_sq"} <= before.keys()
    assert before["encoder.0.feed_forward.inner.weight momentum"].any()
    assert before["target_embedding.weight step"] == 3
    assert before["watch"][2] == 3
    assert_close(state(other), before, **EXACT)
    for each in (step, other):
        advance(each, 4, 5)
    assert_close(state(other), state(step), **EXACT)


@pytest.mark.parametrize("killed", [False, True], ids=["empty", "killed while it wrote the first"])
def test_where_no_checkpoint_is_training_begins(make, tmp_path, killed):
    if killed:
        (tmp_path / "checkpoint-000000002").mkdir()
        (tmp_path / "checkpoint-000000002" / ".00001-of-00001.safetensors.ab3_e9xy.tmp").mkdir()
    step = new_step()
    before = {name: tensor.clone() for name, tensor in step.model.state_dict().items()}
    checkpoints = make()
    assert checkpoints.load(step) == TrainingState()
    checkpoints.drop_newer()
    assert_close(step.model.state_dict(), before, **EXACT)
    assert not any(tensor.any() for name, tensor in state(step).items() if " " in name)
    assert saved(tmp_path) == []


def test_the_files_are_safetensors_that_others_can_read(make, tmp_path):
    step = new_step()
    advance(step, 1)
    save(make(), step, 1)
    path = tmp_path / "checkpoint-000000001" / "00001-of-00001.safetensors"
    tensors = load_file(path)
    assert_close(tensors["model.target_embedding.weight"], step.model.target_embedding.weight.detach(), **EXACT)
    assert path.stat().st_mode == (tmp_path / "checkpoint-000000001").stat().st_mode & 0o666 | 0o100000


def test_one_of_another_model_is_refused(make, twice):
    with pytest.raises(RunError, match=r"does not fit the model of the run: it has no model\.encoder\.1\."):
        make().load(new_step(encoder_layers=2))


def split(folder: Path, count: int) -> None:
    """Make of a checkpoint what so many processes write of a sharded model: equal parts, but for the last."""
    whole = folder / "00001-of-00001.safetensors"
    with safe_open(whole, "pt") as file:
        position = file.metadata()["position"]
    tensors = load_file(whole)
    whole.unlink()
    for rank in range(count):
        mine, starts = {}, {}
        for name, tensor in tensors.items():
            each = -(-len(tensor) // count) if tensor.dim() else 0
            if tensor.dim() and name != "watch":
                starts[name] = min(rank * each, len(tensor))
                mine[name] = tensor[rank * each : (rank + 1) * each].clone()
            else:
                mine[name] = tensor
        metadata = {"position": position, "starts": json.dumps(starts)}
        write_checked_tensors(folder / f"{rank + 1:05d}-of-{count:05d}.safetensors", mine, metadata)


@pytest.mark.parametrize("count", [2, 7])
def test_what_several_processes_wrote_is_read_by_one(make, twice, tmp_path, count):
    split(tmp_path / "checkpoint-000000005", count)
    other = new_step()
    assert make().load(other).update == 5
    assert_close(state(other), twice[5], **EXACT)


# Written in the background


def test_training_goes_on_while_one_is_written(make, monkeypatch):
    goes_on, begin = threading.Event(), hashlib.blake2b
    monkeypatch.setattr(hashlib, "blake2b", lambda *a, **k: goes_on.wait(60) and begin(*a, **k))  # slow from the start
    step, checkpoints = new_step(), make(seconds=1e-9)
    advance(step, 1)
    before = state(step)
    assert checkpoints.due()
    checkpoints.save(step, TrainingState(update=1))
    assert checkpoints.writing
    assert not checkpoints.due()  # there is no second one meanwhile
    advance(step, 2, 3)
    goes_on.set()
    checkpoints.wait()
    assert not checkpoints.writing
    assert checkpoints.due()
    other = new_step()
    assert make().load(other).update == 1
    assert_close(state(other), before, **EXACT)


def test_the_last_two_are_kept(make, tmp_path):
    step, checkpoints = new_step(), make()
    (tmp_path / "checkpoint-000000001").mkdir()  # killed while it was being removed
    for update, kept in ((9, [1, 9]), (10, [9, 10]), (11, [10, 11]), (1000, [11, 1000])):
        save(checkpoints, step, update)
        assert saved(tmp_path) == kept
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2


def test_the_interval_that_is_asked_for(make):
    step, checkpoints = new_step(), make(seconds=0.05)
    for update in (1, 2):
        assert not checkpoints.due()
        time.sleep(0.06)
        assert checkpoints.due()
        save(checkpoints, step, update)
    assert checkpoints.pause == 0.05


def test_left_out_it_is_ten_seconds(make):
    checkpoints = make()
    save(checkpoints, new_step(), 1)
    assert make().pause == checkpoints.pause == 10
    assert not checkpoints.due()


def test_left_out_writing_takes_two_percent_of_the_time(make, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHORTEST", 0.0)
    step, checkpoints = new_step(d_model=64, d_ff=20011, encoder_layers=2), make()  # 57 MB with the optimizer's state
    save(checkpoints, step, 1)
    began, used = time.monotonic(), time.process_time()
    save(checkpoints, step, 2)
    used, passed = time.process_time() - used, time.monotonic() - began
    assert 50 * used / 2 < checkpoints.pause < 50 * passed
    assert not checkpoints.due()


def test_of_several_processes_the_first_says_when_and_writes_what_all_have(make, tmp_path):
    checkpoints = make(processes=Processes(rank=1, size=2), seconds=1e-9)
    assert not checkpoints.due()
    save(checkpoints, new_step(), 1)
    assert not checkpoints.due()
    assert saved(tmp_path) == []


@pytest.mark.parametrize("noticed", ["due", "wait", "save"])
def test_one_that_cannot_be_written_is_an_error_and_leaves_those_before(
    make, twice, tmp_path, tree, full_disk, noticed
):
    before = tree(tmp_path)
    step, checkpoints = new_step(), make()
    with full_disk(10_000):
        checkpoints.save(step, TrainingState(update=7))
        while checkpoints.writing:
            time.sleep(0.001)
    ask = {"due": checkpoints.due, "wait": checkpoints.wait, "save": lambda: save(checkpoints, step, 8)}
    with pytest.raises(OSError, match=r"File too large: '.*checkpoint-000000007"):
        ask[noticed]()
    other, checkpoints = new_step(), make()
    assert checkpoints.load(other).update == 5
    assert_close(state(other), twice[5], **EXACT)
    checkpoints.drop_newer()
    assert tree(tmp_path) == before


# Damage


def flip(path: Path) -> None:
    """Change a bit; test_tensors.py finds that of any byte."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def one_file(folder: Path, update: int) -> Path:
    return folder / f"checkpoint-{update:09d}" / "00001-of-00001.safetensors"


@pytest.mark.parametrize(
    ("count", "spoil", "message"),
    [
        (1, flip, r"000000005/00001-of-00001.safetensors is damaged \(.+\); going on from the checkpoint before"),
        (3, flip, r"000000005/00003-of-00003.safetensors is damaged \(.+\); going on from the checkpoint before"),
        (3, Path.unlink, "checkpoint-000000005 is not complete; going on from before it"),
    ],
)
def test_one_with_a_damaged_file_is_passed_over_with_a_warning(make, twice, tmp_path, count, spoil, message):
    split(tmp_path / "checkpoint-000000005", count)
    spoil(tmp_path / "checkpoint-000000005" / f"{count:05d}-of-{count:05d}.safetensors")
    other, checkpoints = new_step(), make()
    with pytest.warns(UserWarning, match=message):
        assert checkpoints.load(other).update == 3
    assert_close(state(other), twice[3], **EXACT)
    assert saved(tmp_path) == [3, 5], "as long as the training may fail, nothing is removed"
    checkpoints.drop_newer()
    assert saved(tmp_path) == [3]  # what is newer than the training would only mislead
    advance(other, 5)
    assert_close(state(other), twice[5], **EXACT)


def test_one_that_was_being_written_is_removed_without_a_word(make, twice, tmp_path):
    path = one_file(tmp_path, 5)
    path.rename(path.with_name(f".{path.name}.ab3_e9xy.tmp"))
    checkpoints = make()
    assert checkpoints.load(new_step()).update == 3
    checkpoints.drop_newer()
    assert saved(tmp_path) == [3]


def test_where_all_are_damaged_nothing_is_guessed_and_nothing_removed(make, twice, tmp_path, tree):
    for update in (3, 5):
        flip(one_file(tmp_path, update))
    before = tree(tmp_path)
    for _ in range(2):  # asking again changes nothing
        with pytest.raises(
            RunError,
            match=r"no checkpoint in .* can be read any more, so the run can't be continued: train anew with "
            r"--overwrite \(\S+5/00001-of-00001.* is damaged \(.+\); \S+3/00001-of-00001.* is damaged \(.+\)\)$",
        ):
            make().load(new_step())
    assert tree(tmp_path) == before


@pytest.fixture
def with_another(make, monkeypatch) -> Callable[[set[str]], Checkpoints]:
    """Makes checkpoints of the first of two processes, of which the other sees only those of these updates."""
    monkeypatch.setattr(agreement, "TRIES", 1)
    monkeypatch.setattr(Processes, "agree", lambda _, *values: [float(value) for value in values])

    def make_them(updates: set[str]) -> Checkpoints:
        def gather(_: Processes, lines: list[str]) -> list[str]:
            seen = json.loads(lines[0])
            return [*lines, json.dumps({update: seen[update] for update in updates})]

        monkeypatch.setattr(Processes, "gather", gather)
        return make(processes=Processes(rank=0, size=2))

    return make_them


def test_one_that_another_process_does_not_see_is_passed_over_with_a_warning(with_another, twice):
    checkpoints, other = with_another({"3"}), new_step()
    with pytest.warns(UserWarning, match=r"of update 5 in .* is not seen by all processes; going on from before it"):
        assert checkpoints.load(other).update == 3
    assert_close(state(other), twice[3], **EXACT)


def test_one_that_all_see_and_none_can_read_is_damaged(with_another, twice, tmp_path):
    one_file(tmp_path, 5).write_bytes(b"no header")
    checkpoints, other = with_another({"3", "5"}), new_step()
    with pytest.warns(UserWarning, match=r"000000005/00001-of-00001.safetensors is damaged .+; going on from the chec"):
        assert checkpoints.load(other).update == 3
    assert_close(state(other), twice[3], **EXACT)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_one_that_may_not_be_read_is_not_taken_for_damaged(make, twice, tmp_path):
    one_file(tmp_path, 5).chmod(0)
    with pytest.raises(OSError, match="checkpoint-000000005"):
        make().load(new_step())
    assert saved(tmp_path) == [3, 5]
