"""The processes of a start find one another, whatever earlier starts left in the store, and know their launch."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from glassformer.errors import RunError
from glassformer.training.launch import is_restarted, launch_id, meet, spans_machines

ENOUGH, SHORT = timedelta(seconds=60), timedelta(seconds=0.1)


def meet_all(store: Store, size: int) -> list[Store]:
    """What each process of a start gets."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: meet(store, rank, size, ENOUGH), range(size)))


@pytest.mark.parametrize("size", [2, 5])
def test_each_start_has_a_part_of_the_store_for_itself(size):
    store = HashStore()
    first = meet_all(store, size)
    first[0].set("said", "before")
    assert [part.get("said") for part in first] == [b"before"] * size
    second = meet_all(store, size)
    assert not any(part.check(["said"]) for part in second)
    second[-1].set("said", "now")
    assert [part.get("said") for part in second] == [b"now"] * size
    assert first[-1].get("said") == b"before"


def test_a_start_has_other_processes_than_the_one_before():
    store = HashStore()
    meet_all(store, 3)
    two = meet_all(store, 2)
    two[1].set("said", "by two")
    assert two[0].get("said") == b"by two"


@pytest.mark.parametrize("rank", [0, 1])
def test_where_others_are_missing_it_says_so(rank):
    store = HashStore()
    meet_all(store, 2)
    message = (
        rf"^process {rank} of 2 has not found the others within 0 seconds: if machines come and go, set "
        r"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun on each of them \(docs/scaling\.md\)$"
    )
    with pytest.raises(RunError, match=message):
        meet(store, rank, 2, SHORT)


@pytest.mark.parametrize(("given", "known"), [("job-7", "job-7"), ("none", ""), (None, "")])
def test_a_launch_is_known_by_the_id_that_torchrun_was_given(monkeypatch, given, known):
    if given is None:
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    else:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", given)
    assert launch_id() == launch_id(HashStore()) == known


def test_without_one_a_launch_is_known_by_the_store_of_torchrun(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    here, elsewhere = HashStore(), HashStore()
    known = launch_id(here)
    assert len(known) == 32
    assert launch_id(PrefixStore("", here)) != known, "another part of the store"
    assert launch_id(here) == known != launch_id(elsewhere)


def test_what_torchrun_says_of_a_start(monkeypatch):
    for name in ("TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (is_restarted(), spans_machines()) == (False, False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    assert (is_restarted(), spans_machines()) == (True, True)
