"""Batches side by side: on a CPU several batches with one thread each go faster than one after the other with all."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_WORKERS = 4


def in_workers(
    work: Callable[[Item], Result], items: Sequence[Item], most: int = MOST_WORKERS
) -> Generator[tuple[int, Result], None, None]:
    """The results of `work` on each item with the item's place, in the order in which they are ready.

    torch's threads are shared out among `most` workers. A step of generation is a hundred small operations; one batch
    alone leaves the other threads idle between them. Measured with two threads on Intel: 1.4 times as fast. To be
    closed (contextlib.closing) where its reader may fail; a thread started meanwhile has a worker's number of threads.
    """
    threads = torch.get_num_threads()
    workers = min(threads, most, len(items))
    if workers < 2:
        yield from ((place, work(item)) for place, item in enumerate(items))
        return
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        places = {pool.submit(work, item): place for place, item in enumerate(items)}
        for future in as_completed(places):
            yield places[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a worker's number is the default of threads started later
