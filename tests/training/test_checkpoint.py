import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from glassformer.errors import RunError
from glassformer.training.checkpoint import Position, average, load_state, save_snapshot, save_state, snapshots
from glassformer.transformer.config import ModelConfig
from glassformer.transformer.model import Transformer

EXACT = dict(rtol=0.0, atol=0.0)


def model_and_optimizer():
    sizes = dict(d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=5)
    model = Transformer(ModelConfig(source_vocab_size=7, target_vocab_size=11, shared_vocab=False, **sizes))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-9, fused=True)


def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


@pytest.fixture
def trained():
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def test_state_comes_back_exactly(trained, tmp_path):
    model, optimizer = trained
    position = Position(update=3, epoch=1, batch=2, seconds=0.1, best=[1 / 3, -2.5], since_best=4)
    save_state(tmp_path, model, optimizer, position)

    other, its_optimizer = model_and_optimizer()
    assert load_state(tmp_path, other, its_optimizer) == position

    assert_close(other.state_dict(), model.state_dict(), **EXACT)
    before, after = optimizer.state_dict(), its_optimizer.state_dict()
    assert before["state"].keys() == after["state"].keys()
    assert {"step", "exp_avg", "exp_avg_sq"} <= before["state"][0].keys()
    assert_close(after["state"], before["state"], **EXACT)
    assert after["param_groups"] == before["param_groups"]


def test_the_next_step_is_the_same_step(trained, tmp_path):
    model, optimizer = trained
    save_state(tmp_path, model, optimizer, Position())
    other, its_optimizer = model_and_optimizer()
    load_state(tmp_path, other, its_optimizer)
    for each in ((model, optimizer), (other, its_optimizer)):
        torch.manual_seed(5)
        step(*each)
    assert_close(other.state_dict(), model.state_dict(), **EXACT)


def test_without_a_state_training_begins(trained, tmp_path):
    model, optimizer = trained
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert load_state(tmp_path, model, optimizer) == Position() == Position(0, 0, 0, 0.0, None, 0)
    assert_close(model.state_dict(), before, **EXACT)


def test_a_first_validation_still_to_come_is_kept(trained, tmp_path):
    save_state(tmp_path, *trained, Position(update=1))
    assert load_state(tmp_path, *trained).best is None


def test_a_cut_off_state_is_refused(trained, tmp_path):
    save_state(tmp_path, *trained, Position())
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(RunError, match=r"state.safetensors is damaged \(.*\): copy it again"):
        load_state(tmp_path, *trained)


def test_a_failed_save_leaves_the_state_before(trained, tmp_path, monkeypatch):
    save_state(tmp_path, *trained, Position(update=3))
    before = (tmp_path / "state.safetensors").read_bytes()
    step(*trained)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(tmp_path, *trained, Position(update=4))
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    assert (tmp_path / "state.safetensors").read_bytes() == before


@pytest.mark.parametrize("keep", [1, 3])
def test_rotation_keeps_the_last(tmp_path, keep):
    for update in (9, 10, 11, 100, 1000):
        save_snapshot(tmp_path, {"w": torch.tensor([float(update)])}, update, keep)
    updates = [load_file(path)["w"].item() for path in snapshots(tmp_path)]
    assert updates == [9, 10, 11, 100, 1000][-keep:]


def test_average_is_the_mean(tmp_path):
    tensors = torch.randn(3, 5, 7)
    for update, tensor in enumerate(tensors):
        save_snapshot(tmp_path, {"a": tensor, "b": tensor[0] + 1}, update, keep=5)
    mean = average(snapshots(tmp_path))
    assert mean.keys() == {"a", "b"}
    assert mean["a"].dtype == torch.float32
    assert_close(mean["a"], tensors.double().mean(0).float(), **EXACT)
    assert_close(mean["b"], (tensors[:, 0] + 1).double().mean(0).float(), **EXACT)


def test_average_of_one_is_itself(tmp_path):
    weights = {"a": torch.randn(5, 7)}
    save_snapshot(tmp_path, weights, 1, keep=5)
    assert_close(average(snapshots(tmp_path)), weights, **EXACT)


def test_average_of_none(tmp_path):
    with pytest.raises(RunError, match="no checkpoints to average: training has not reached a validation"):
        average(snapshots(tmp_path))


def test_other_files_are_no_snapshots(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "state.safetensors")
    assert snapshots(tmp_path) == []
