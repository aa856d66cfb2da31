import threading
import time
from contextlib import closing

import pytest
import torch

from glassformer.generation.workers import in_workers


@pytest.fixture
def threads(request):
    """torch's number of threads for one test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 7], indirect=True)
def test_every_result_comes_with_its_place(threads):
    items = [5, 3, 11, 2, 7]
    assert sorted(in_workers(lambda item: item * item, items)) == [(n, item * item) for n, item in enumerate(items)]


@pytest.mark.parametrize("threads", [1, 2, 7], indirect=True)
def test_nothing_to_do(threads):
    assert list(in_workers(lambda item: item, [])) == []


@pytest.mark.parametrize(
    ("threads", "share", "workers"), [(2, 1, 2), (4, 1, 4), (7, 1, 4), (9, 2, 4)], indirect=["threads"]
)
def test_workers_share_the_threads_and_the_number_is_as_before_afterwards(threads, share, workers):
    together = threading.Barrier(workers)  # passed only if so many work at once

    def work(item: int) -> tuple[int, str]:
        together.wait(timeout=20)
        return torch.get_num_threads(), threading.current_thread().name

    found = [result for _, result in in_workers(work, range(workers))]
    assert {number for number, _ in found} == {share}
    assert len({name for _, name in found}) == workers
    assert torch.get_num_threads() == threads
    inside = []
    thread = threading.Thread(target=lambda: inside.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert inside == [threads], "also in threads that are started later"


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_one_item_has_all_threads(threads):
    assert list(in_workers(lambda item: (torch.get_num_threads(), threading.current_thread()), ["one"])) == [
        (0, (2, threading.main_thread()))
    ]


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_an_error_comes_through_and_what_has_not_begun_is_left(threads):
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise ValueError("the second item")
        time.sleep(0.01)
        return item

    with pytest.raises(ValueError, match="the second item"):
        list(in_workers(work, range(100)))
    assert len(begun) < 50
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("threads", [3], indirect=True)
def test_closed_early_it_leaves_nothing_behind(threads):
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.01)
        return item

    with closing(in_workers(work, range(100))) as found:
        next(found)
    count = len(begun)
    assert count < 50
    time.sleep(0.05)
    assert len(begun) == count
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("threads", [3], indirect=True)
def test_one_worker_keeps_the_order(threads):
    assert list(in_workers(lambda item: item, [5, 3, 11], 1)) == [(0, 5), (1, 3), (2, 11)]
