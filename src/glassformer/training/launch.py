"""A launch of torchrun: its id, and how the processes of each of its starts find one another.

torchrun starts all processes of a machine again when one of them is lost, and those of every machine when machines
join. What it tells them is not enough: each machine counts its own starts, and a store may outlive many of them.
"""

import os
import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

from glassformer.errors import RunError

MEETING = timedelta(minutes=5)
"""Time within which all processes of a start must have come."""
_PAUSE = 0.02
"""Seconds between two looks at the store."""
_WITHOUT_ID = ("", "none")
"""torchrun's ids where no --rdzv-id is given."""


def launch_id(store: Store | None = None) -> str:
    """Return the id of this launch, the same in all of its starts; an empty text where it can't be known.

    It is torchrun's `--rdzv-id`, or where none is given a word that the first process leaves in torchrun's own `store`.
    """
    given = os.environ.get("TORCHELASTIC_RUN_ID", "")
    if given not in _WITHOUT_ID or store is None or not outlives_starts():
        return "" if given in _WITHOUT_ID else given
    return store.compare_set("glassformer launch", "", uuid4().hex).decode()


def is_restarted() -> bool:
    """Return whether this process's torchrun has started it again after one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def spans_machines() -> bool:
    """Return whether several torchruns, each on a machine of its own as a rule, have started the processes."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1


def outlives_starts() -> bool:
    """Return whether the processes meet in torchrun's own store, which holds what earlier starts left in it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def meet(store: Store, rank: int, size: int, patience: timedelta = MEETING) -> Store:
    """Return the part of `store` that is this start's own, once all of its processes have come.

    Each process leaves a new word under its rank. The first answers every word with the name of the start; it goes on
    as soon as one process of each rank has taken the name. So what earlier starts left in the store deceives nobody.
    Raises RunError where processes are missing after this `patience`.
    """
    own = uuid4().hex
    until = time.monotonic() + patience.total_seconds()
    name = _lead(store, own, size, until) if rank == 0 else _follow(store, own, rank, until)
    if name is None:
        raise RunError(
            f"process {rank} of {size} has not found the others within {patience.total_seconds():.0f} seconds: if "
            "machines come and go, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun on each of "
            "them (docs/scaling.md)"
        )
    return PrefixStore(name, store)


def _lead(store: Store, name: str, size: int, until: float) -> str | None:
    """Answer the words of the others with the name of the start; return it when all have taken it."""
    answered: dict[int, str] = {}
    while time.monotonic() < until:
        for rank in range(1, size):
            if store.check([f"word {rank}"]):
                word = store.get(f"word {rank}").decode()
                if answered.get(rank) != word:
                    store.set(f"answer {word}", name)
                    answered[rank] = word
        if len(answered) == size - 1 and all(store.check([f"taken {name} {word}"]) for word in answered.values()):
            store.set(f"complete {name}", "")
            return name
        time.sleep(_PAUSE)
    return None


def _follow(store: Store, word: str, rank: int, until: float) -> str | None:
    """Take the name of the start that the first process answers; return it when all have taken it."""
    store.set(f"word {rank}", word)
    while time.monotonic() < until:
        if store.check([f"answer {word}"]):
            name = store.get(f"answer {word}").decode()
            store.set(f"taken {name} {word}", "")
            if store.check([f"complete {name}"]):
                return name
        time.sleep(_PAUSE)
    return None
