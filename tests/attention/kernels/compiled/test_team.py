import sys
import threading
from pathlib import Path

import pytest
import torch

from glassformer.attention.kernels import choose

if not choose.compiler_is_there():
    pytest.skip("numba isn't installed, or there is no FMA here", allow_module_level=True)

from glassformer.attention.kernels.compiled import team


@pytest.fixture(params=["torch's", "ours"])
def whose(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose threads do the work."""
    if request.param == "ours":
        monkeypatch.setattr(team, "_torch_team", lambda: None)
    elif team._torch_team() is None:
        pytest.skip("torch has no libgomp here")
    return request.param


@pytest.mark.parametrize("threads", [2, 3])
def test_each_thread_calls_the_function_once(whose, threads):
    together = threading.Barrier(threads, timeout=10)
    called: list[int] = []

    def function() -> None:
        together.wait()
        called.append(threading.get_ident())

    for _ in range(3):
        called.clear()
        team.on_each_thread(function, threads)
        assert len(set(called)) == len(called) == threads
        assert threading.get_ident() in called


@pytest.mark.parametrize("mine", [True, False], ids=["this thread", "another"])
@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt("stop")], ids=repr)
def test_an_error_on_any_thread_is_raised(whose, mine, error):
    this = threading.get_ident()
    done: list[int] = []

    def function() -> None:
        done.append(threading.get_ident())
        if (threading.get_ident() == this) == mine:
            raise error

    with pytest.raises(type(error), match=str(error)):
        team.on_each_thread(function, 2)
    assert len(done) == 2


def test_torch_brings_its_threads_in_its_builds_for_linux():
    bundled = list((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if sys.platform != "linux" or not bundled:
        pytest.skip("another build")
    assert team._torch_team() is not None
