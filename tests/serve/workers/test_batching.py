"""The queue of a worker: fair turns, and batches of like lines."""

import time

import pytest

from glassformer.generation.config import SearchConfig
from glassformer.serve.workers.batching import Client, Line, Lines, Rows, Steps, Turns

GREEDY, WIDE = SearchConfig(beam=1), SearchConfig(beam=5)


def no_rows() -> Rows:
    yield
    return []


def request(number: int, lengths: list[int], config: SearchConfig = GREEDY, *, alone: bool = False) -> Lines:
    client = Client(time.monotonic() + 60)
    task = Lines(number, client, config=config, alone=alone, found=[], rest=no_rows(), rest_waits=False)
    task.put([Line(task, n, [7] * length, []) for n, length in enumerate(lengths)])
    return task


def turns(most_tokens: int = 1000, most_lines: int = 1000, *, shares: bool = True) -> Turns:
    return Turns(lambda config: (most_tokens // config.beam, most_lines), shares=shares)


def taken(queue: Turns, idle: int = 1) -> list[tuple[int, int]]:
    """What the next batch holds: request and length."""
    return [(line.task.id, len(line.ids)) for line in queue.take(idle)]


def test_requests_of_like_settings_share_a_batch():
    queue = turns()
    for task in (request(1, [5]), request(2, [5, 6], WIDE), request(3, [4]), request(4, [5], alone=True)):
        queue.add(task)
    assert taken(queue) == [(1, 5), (3, 4)]
    assert taken(queue) == [(2, 6), (2, 5)]
    assert taken(queue) == [(4, 5)]
    assert queue.take() is None


def test_a_short_line_does_not_wait_for_a_long_document():
    queue = turns(most_lines=10)
    queue.add(request(1, [20] * 100))
    queue.add(request(2, [20]))
    queue.add(request(3, [3]))  # too short for a batch of the others
    first, second = taken(queue), taken(queue)
    assert sorted(first) == [(1, 20)] * 9 + [(2, 20)]
    assert second == [(3, 3)]
    queue.add(request(4, [20]))
    assert sorted(taken(queue)) == [(1, 20)] * 9 + [(4, 20)]


def test_two_documents_share_alike():
    queue = turns(most_lines=10)
    queue.add(request(1, [20] * 50))
    queue.add(request(2, [20] * 50))
    for _ in range(10):
        batch = taken(queue)
        assert [batch.count((n, 20)) for n in (1, 2)] == [5, 5]
    assert len(queue) == 0


def test_lines_of_a_batch_are_of_like_lengths_and_fit_with_their_padding():
    queue = turns(most_tokens=200)
    queue.add(request(1, [40, 30, 27, 26, 9, 8, 2, 60]))
    batches = []
    while batch := queue.take():
        lengths = [len(line.ids) for line in batch]
        assert max(lengths) * len(lengths) <= 200
        assert max(lengths) <= 4 * min(lengths) or max(lengths) - min(lengths) <= 16
        batches.append(sorted(lengths))
    assert sorted(length for batch in batches for length in batch) == [2, 8, 9, 26, 27, 30, 40, 60]
    assert len(batches) <= 4


def test_a_line_longer_than_a_batch_is_a_batch():
    queue = turns(most_tokens=50)
    queue.add(request(1, [70, 60]))
    assert [taken(queue), taken(queue)] == [[(1, 70)], [(1, 60)]]


def test_idle_threads_share_out_what_there_is():
    queue = turns()
    queue.add(request(1, [5] * 40))
    assert len(taken(queue, idle=2)) == 20
    assert len(taken(queue, idle=4)) == 5
    assert len(taken(queue, idle=1)) == 15


def test_requests_share_nothing_where_their_numbers_would_depend_on_each_other():
    queue = turns(shares=False)
    queue.add(request(1, [5, 5]))
    queue.add(request(2, [5]))
    assert not queue.may_grow()
    assert [taken(queue), taken(queue)] == [[(1, 5), (1, 5)], [(2, 5)]]


def test_a_batch_waits_for_others_only_while_there_is_room():
    queue = turns(most_tokens=100, most_lines=10)
    assert not queue.may_grow()
    queue.add(request(1, [5] * 9))
    assert queue.may_grow()
    queue.add(request(2, [5] * 9, WIDE))
    queue.add(request(3, [5]))
    assert not queue.may_grow()
    assert queue.may_grow(idle=2)
    queue.add(request(4, [80]))
    queue.add(request(5, [80]))
    assert not queue.may_grow(idle=2)
    alone = turns()
    alone.add(request(1, [5], alone=True))
    assert not alone.may_grow()


def test_steps_take_turns_with_batches():
    queue = turns(most_lines=1)
    stream = Steps(9, Client(time.monotonic() + 60), steps=no_rows())
    queue.add(stream)
    queue.add(request(1, [5, 5]))
    seen = []
    for _ in range(4):
        work = queue.take()
        seen.append("stream" if work is stream else "batch")
        if work is stream:
            queue.add(stream)
    assert seen == ["stream", "batch", "stream", "batch"]


def test_what_nobody_waits_for_is_dropped():
    queue, now = turns(), time.monotonic()
    late, left, kept = request(1, [5]), request(2, [5]), request(3, [5])
    late.client.until, left.client.has_left = now - 1, True
    for task in (late, left, kept):
        queue.add(task)
    assert queue.drop(now) == [late, left]
    assert taken(queue) == [(3, 5)]


@pytest.mark.parametrize("seed", range(5))
def test_every_line_is_taken_once(seed):
    import random

    draw, queue, waiting = random.Random(seed), turns(most_tokens=300, most_lines=17), {}
    for number in range(20):
        lengths = [draw.randint(1, 90) for _ in range(draw.randint(1, 30))]
        waiting[number] = list(range(len(lengths)))
        queue.add(request(number, lengths, draw.choice([GREEDY, WIDE]), alone=draw.random() < 0.2))
    while batch := queue.take(draw.randint(1, 3)):
        assert len({(line.task.config, line.task.alone and line.task.id) for line in batch}) == 1
        for line in batch:
            waiting[line.task.id].remove(line.number)
    assert not any(waiting.values())
