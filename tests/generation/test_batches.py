import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from glassformer.generation.batches import MOST_WORKERS, work_in_threads


@pytest.fixture
def threads(request):
    """torch's number of threads for one test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def of_threads(*numbers: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("threads", numbers, indirect=True)


def results(work: Callable, items: Sequence, most: int = MOST_WORKERS) -> list[tuple[Any, Any]]:
    """Each item with its result, in the order they came."""
    received: list[tuple[Any, Any]] = []
    work_in_threads(work, items, lambda *both: received.append(both), most)
    return received


@of_threads(1, 2, 7)
@pytest.mark.parametrize("items", [[5, 3, 11, 2, 7], []], ids=["five", "none"])
def test_every_result_comes_with_its_item(threads, items):
    assert sorted(results(lambda item: item * item, items)) == [(item, item * item) for item in sorted(items)]


@of_threads(3)
def test_one_worker_keeps_the_order(threads):
    assert results(lambda item: item, [5, 3, 11], 1) == [(5, 5), (3, 3), (11, 11)]


@pytest.mark.parametrize(
    ("threads", "share", "workers"), [(2, 1, 2), (4, 1, 4), (7, 1, 4), (9, 2, 4)], indirect=["threads"]
)
def test_workers_share_the_threads_and_the_number_is_as_before_afterwards(threads, share, workers):
    together = threading.Barrier(workers)  # passed only if so many work at once

    def work(item: int) -> tuple[int, str]:
        together.wait(timeout=20)
        return torch.get_num_threads(), threading.current_thread().name

    found = [result for _, result in results(work, range(workers))]
    assert {number for number, _ in found} == {share}
    assert len({name for _, name in found}) == workers
    assert torch.get_num_threads() == threads
    inside = []
    thread = threading.Thread(target=lambda: inside.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert inside == [threads], "also in threads that are started later"


@of_threads(2)
def test_one_item_has_all_threads(threads):
    found = results(lambda item: (torch.get_num_threads(), threading.current_thread()), ["one"])
    assert found == [("one", (2, threading.main_thread()))]


@of_threads(1, 2)
@pytest.mark.parametrize("of", ["work", "receive"])
def test_an_error_comes_through_and_what_has_not_begun_is_left(threads, of):
    begun = []

    def fail_at_second(step: str, item: int) -> None:
        if of == step and item == 1:
            raise ValueError("the second item")

    def work(item: int) -> None:
        begun.append(item)
        fail_at_second("work", item)
        time.sleep(0.01)

    with pytest.raises(ValueError, match="the second item"):
        work_in_threads(work, range(100), lambda item, _: fail_at_second("receive", item))
    count = len(begun)
    assert count < 50
    time.sleep(0.05)
    assert len(begun) == count, "no worker goes on"
    assert torch.get_num_threads() == threads
