"""The names of devices and precisions, and errors about memory."""

import mmap
import sys

import pytest
import torch

from glassformer import device as device_module
from glassformer.device import attention_for_any_shape, explaining_memory, pick_device, pick_precision
from glassformer.errors import ConfigError, OutOfMemoryError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, by what torch says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("name", "device"), [("auto", "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1")])
def test_a_device_has_its_name(name, device):
    assert pick_device(name) == torch.device(device)
    assert pick_device(torch.device(device)) == torch.device(device)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "^device must be one of auto, cpu, cuda, mps, got 'tpu'$"),
        ("mps", "^device mps is not available on this machine: choose one of auto, cpu, cuda$"),
        ("cuda:x", "^device must be auto, cpu, mps, cuda, or cuda:N for the N-th GPU, got 'cuda:x'$"),
        ("cuda:2", "^device cuda:2 is not there: this machine has 2 GPUs, from cuda:0$"),
        (torch.device("cuda:2"), "^device cuda:2 is not there: this machine has 2 GPUs, from cuda:0$"),
        (0, "^device must be one of auto, cpu, cuda, mps, got 0$"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_other_devices_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        pick_device(name)


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [({}, torch.float32), ({"avx512_bf16": True}, torch.bfloat16), ({"amx_bf16": True}, torch.bfloat16)],
)
def test_auto_is_bfloat16_where_the_processor_has_instructions_for_it(monkeypatch, capabilities, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert pick_precision("auto", torch.device("cpu")) == precision
    assert pick_precision("float32", torch.device("cpu")) == torch.float32


def test_other_precisions_are_refused():
    with pytest.raises(ConfigError, match=r"^precision must be one of auto, float32, bfloat16, got 'int8'$"):
        pick_precision("int8", torch.device("cpu"))


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA out of memory. Tried"), RuntimeError("std::bad_alloc")]
)
def test_memory_that_has_run_out_is_explained(error):
    with (
        pytest.raises(OutOfMemoryError, match=r"^out of memory here: lower this$"),
        explaining_memory(lambda: "here: lower this"),
    ):
        raise error


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match=r"^shapes$"), explaining_memory(lambda: ""):
        raise RuntimeError("shapes")


@pytest.mark.parametrize("before", [True, False])
def test_attention_that_plans_for_each_shape_is_left_out_for_a_while(before):
    used = torch.backends.cuda
    at_first = used.cudnn_sdp_enabled()
    used.enable_cudnn_sdp(before)
    try:
        with pytest.raises(KeyError, match=r"^False$"), attention_for_any_shape():
            raise KeyError(used.cudnn_sdp_enabled())
        assert used.cudnn_sdp_enabled() == before
    finally:
        used.enable_cudnn_sdp(at_first)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux is asked")
def test_huge_pages_are_asked_for_whole_blocks(monkeypatch):
    asked = []

    class Library:
        def __init__(self, name: str | None) -> None:
            assert name is None

        def madvise(self, first, size, advice):
            asked.append((first.value, size.value, advice))

    monkeypatch.setattr(device_module.ctypes, "CDLL", Library)
    small, large = torch.empty(1 << 10), torch.empty((1 << 22) + 7, dtype=torch.uint8)
    device_module.use_huge_pages(small)
    assert not asked
    device_module.use_huge_pages(large)
    [(first, size, advice)] = asked
    assert first % mmap.PAGESIZE == 0
    assert 0 <= first - large.data_ptr() < mmap.PAGESIZE
    assert first + size == large.data_ptr() + large.nbytes
    assert advice == mmap.MADV_HUGEPAGE
