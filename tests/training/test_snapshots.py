import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from glassformer.training.snapshots import (
    KEPT_BEST,
    average,
    drop_snapshots_after,
    restore_best,
    save_best,
    save_snapshot,
    snapshots,
)

EXACT = dict(rtol=0.0, atol=0.0)


def updates(folder) -> list[float]:
    return [load_file(path)["w"].item() for path in snapshots(folder)]


@pytest.mark.parametrize("keep", [1, 3])
def test_rotation_keeps_the_last(tmp_path, keep):
    for update in (9, 10, 11, 100, 1000):
        save_snapshot(tmp_path, {"w": torch.tensor([float(update)])}, update, keep)
    assert updates(tmp_path) == [9, 10, 11, 100, 1000][-keep:]


def test_average_is_the_mean(tmp_path):
    tensors = torch.randn(3, 5, 7)
    for update, tensor in enumerate(tensors):
        save_snapshot(tmp_path, {"a": tensor, "b": tensor[0] + 1}, update, keep=5)
    mean, count = average(snapshots(tmp_path))
    assert count == 3
    assert mean.keys() == {"a", "b"}
    assert mean["a"].dtype == torch.float32
    assert_close(mean["a"], tensors.double().mean(0).float(), **EXACT)
    assert_close(mean["b"], (tensors[:, 0] + 1).double().mean(0).float(), **EXACT)
    assert average([]) == ({}, 0)


def best(folder):
    return load_file(folder / "model.safetensors")["a"].item() if (folder / "model.safetensors").exists() else None


@pytest.fixture
def saved(tmp_path):
    """A folder `resume` with the best weights of three updates; returns their checksums."""
    (tmp_path / "resume").mkdir()
    checksums = {}
    for update in (5, 11, 23):
        weights = {"a": torch.tensor(float(update))}
        checksums[update] = save_best(tmp_path / "resume", tmp_path / "model.safetensors", weights, update, [])
        assert best(tmp_path) == update
    return checksums


def test_the_best_weights_are_again_those_of_an_earlier_update(tmp_path, saved):
    resume, file = tmp_path / "resume", tmp_path / "model.safetensors"
    assert restore_best(resume, file, 11, saved[11])
    assert best(tmp_path) == 11
    assert sorted(path.name for path in resume.iterdir()) == [f"best-{n:09d}.safetensors" for n in (5, 11)]
    assert restore_best(resume, file, None, "")
    assert best(tmp_path) is None
    assert list(resume.iterdir()) == []


def test_the_weights_to_begin_with_may_be_the_best(tmp_path):
    file, checksums = tmp_path / "model.safetensors", {}
    for update in (0, 5):
        checksums[update] = save_best(tmp_path, file, {"a": torch.tensor(float(update))}, update, [])
    assert restore_best(tmp_path, file, 0, checksums[0])
    assert best(tmp_path) == 0
    assert kept_best(tmp_path) == [0]


def flip(path):
    """Change a bit, in a file of its own: the best weights are linked."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)


def test_damaged_best_weights_are_made_whole_by_those_in_use(tmp_path, saved):
    damaged, file = tmp_path / "resume" / "best-000000023.safetensors", tmp_path / "model.safetensors"
    flip(damaged)
    assert restore_best(tmp_path / "resume", file, 23, saved[23])
    assert best(tmp_path) == 23
    assert damaged.read_bytes() == file.read_bytes()


def test_damaged_best_weights_are_not_taken_for_the_best(tmp_path, saved):
    flip(tmp_path / "resume" / "best-000000011.safetensors")
    with pytest.warns(UserWarning, match=r"best-000000011\.safetensors is damaged; the next validation counts as the"):
        assert not restore_best(tmp_path / "resume", tmp_path / "model.safetensors", 11, saved[11])
    assert best(tmp_path) is None


def kept_best(folder):
    return sorted(int(path.stem.removeprefix("best-")) for path in folder.glob("best-*"))


def test_the_best_weights_of_the_last_updates_and_of_each_checkpoint_are_kept(tmp_path):
    file, checksums = tmp_path / "model.safetensors", {}
    for update in range(1, 30, 2):
        weights = {"a": torch.tensor(float(update))}
        checkpoints = [point for point in (3, 6) if point <= update]
        checksums[update] = save_best(tmp_path, file, weights, update, checkpoints)
    assert kept_best(tmp_path) == [1, 3, 5, *range(15, 30, 2)]
    assert restore_best(tmp_path, file, 5, checksums[5])
    assert best(tmp_path) == 5
    assert kept_best(tmp_path) == [1, 3, 5]
    checksums[7] = save_best(tmp_path, file, {"a": torch.tensor(7.0)}, 7, [])
    assert kept_best(tmp_path) == [1, 3, 5, 7]


def test_only_the_last_best_weights_are_kept_where_no_checkpoint_needs_others(tmp_path):
    for update in range(1, 20):
        save_best(tmp_path, tmp_path / "model.safetensors", {"a": torch.tensor(float(update))}, update, [])
    assert kept_best(tmp_path) == [*range(20 - KEPT_BEST, 20)]


def test_best_weights_that_are_missing_are_not_taken_for_later_ones(tmp_path, saved):
    (tmp_path / "resume" / "best-000000011.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"best-000000011\.safetensors is missing; the next validation counts as the"):
        assert not restore_best(tmp_path / "resume", tmp_path / "model.safetensors", 11, saved[11])
    assert best(tmp_path) is None


def test_runs_that_know_no_checksum_keep_the_best_weights_that_they_have(tmp_path, saved):
    (tmp_path / "resume" / "best-000000011.safetensors").unlink()
    assert restore_best(tmp_path / "resume", tmp_path / "model.safetensors", 11, "")
    assert best(tmp_path) == 23


def test_a_damaged_one_is_left_out_of_the_mean_with_a_warning(tmp_path):
    tensors = torch.randn(3, 5, 7)
    for update, tensor in enumerate(tensors):
        save_snapshot(tmp_path, {"a": tensor}, update, keep=5)
    path = snapshots(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"snapshot-000000001.*is damaged \(.*\); it is left out of the mean"):
        mean, count = average(snapshots(tmp_path))
    assert count == 2
    assert_close(mean["a"], tensors[[0, 2]].double().mean(0).float(), **EXACT)


@pytest.mark.parametrize(("update", "left"), [(0, []), (5, [3, 5]), (6, [3, 5]), (1000, [3, 5, 7, 100])])
def test_those_of_a_future_that_will_be_another_are_dropped(tmp_path, update, left):
    for saved in (3, 5, 7, 100):
        save_snapshot(tmp_path, {"w": torch.tensor([float(saved)])}, saved, keep=5)
    drop_snapshots_after(tmp_path, update)
    assert updates(tmp_path) == left


def test_other_files_are_no_snapshots(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "state.safetensors")
    (tmp_path / ".snapshot-000000003.safetensors.ab3_e9xy.tmp").mkdir()
    (tmp_path / "checkpoint-000000003").mkdir()
    assert snapshots(tmp_path) == []
