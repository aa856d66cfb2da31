"""The division of attention's queries among threads, so that each computes as many weights as another."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from glassformer.attention.kernels.blocks import Problem, open_keys


def spans_of(problem: Problem, height: int, threads: int) -> list[Tensor]:
    """Return what each thread computes: (spans, 6), a span's entry, head, first and last row, first and last key.

    Heads are cut between blocks of `height` rows. Keys of padding before and after all that an entry may look at are
    left out. The division depends on nothing but the sizes, the padding and the number of threads.
    """
    batch, heads, q_len, _ = problem.q.shape
    k_len = problem.k.shape[2]
    open_ = [open_keys(problem.keep, slice(entry, entry + 1), k_len) for entry in range(batch)]
    starts = torch.arange(0, q_len, height)
    ends = (starts + height).clamp(max=q_len)
    first, last = (torch.tensor(ends_)[:, None] for ends_ in zip(*((x.start, x.stop) for x in open_), strict=True))
    seen = (last - first).expand(batch, len(starts))
    if problem.causal:
        seen = torch.minimum(last, ends + k_len - q_len) - first
    cost = (seen.clamp(min=1) * (ends - starts))[:, None].expand(batch, heads, len(starts)).flatten().cumsum(0)
    cuts = [0, *(torch.searchsorted(cost, cost[-1] * n / threads) for n in range(1, threads)), len(cost)]
    return [_between(int(a), int(b), len(starts), heads, q_len, height, open_) for a, b in pairwise(cuts)]


def shared_keys(shares: list[Tensor], served: int) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Return the spans with a number each, and whose keys the numbers from 0 on stand for: entry and head of keys.

    -1 is the number of a span whose keys no other thread uses, so that it may write their gradients itself; the others
    have one for each thread and head of keys. `served` heads share the keys of one.
    """
    owners = [[(entry, head // served) for entry, head in spans[:, :2].tolist()] for spans in shares]
    users = Counter(owner for of_thread in owners for owner in set(of_thread))
    found: list[tuple[int, int]] = []
    numbered = []
    for spans, of_thread in zip(shares, owners, strict=True):
        own = dict.fromkeys(of_thread, -1)
        for owner in own:
            if users[owner] > 1:
                own[owner] = len(found)
                found.append(owner)
        numbered.append(torch.cat([spans, torch.tensor([[own[owner]] for owner in of_thread]).view(-1, 1)], 1))
    return numbered, found


def _between(begin: int, end: int, blocks: int, heads: int, q_len: int, height: int, open_: list[slice]) -> Tensor:
    """Return the spans from one block to another, counted through all entries and heads."""
    found = []
    while begin < end:
        head, block = divmod(begin, blocks)
        stop = min(end, (head + 1) * blocks)
        entry = head // heads
        last = min(q_len, (block + stop - begin) * height)
        found.append((entry, head % heads, block * height, last, open_[entry].start, open_[entry].stop))
        begin = stop
    return torch.tensor(found, dtype=torch.int64).view(-1, 6)


def side_by_side(work: list[Callable[[], None]]) -> None:
    """Do each piece of work on a thread of its own, the first on this one."""
    if len(work) == 1:
        work[0]()
        return
    with ThreadPoolExecutor(len(work) - 1, "glassformer") as pool:
        others = [pool.submit(piece) for piece in work[1:]]
        work[0]()
        for other in others:
            other.result()
