"""The page's search gives the ids of ours, over tables of scores in the place of a model."""

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer import SearchConfig
from glassformer.generation.batches import search_batch
from glassformer.generation.engines.cache import BeamCache
from glassformer.generation.engines.engine import Engine
from glassformer.generation.kernels import passes

STATES, CLASSES = 53, 17
SETTINGS = [
    dict(beam=beam, n_best=min(beam, 3), length_penalty=alpha, penalty=penalty, stopping=stopping)
    for beam, alpha, penalty, stopping in itertools.product(
        (1, 2, 4, 7), (0.0, 1.0, 2.5), ("plain", "wu"), ("exact", "heuristic", "first")
    )
]


class TableCache(BeamCache):
    """The state of each row: a number."""

    def __init__(self, states: Tensor, width: int) -> None:
        self.states = states.repeat_interleave(width)
        self.width = width

    @property
    def sources(self) -> int:
        return len(self.states) // self.width

    def branch(self, parents: Tensor) -> None:
        first = torch.arange(len(parents))[:, None] * self.width
        self.states = self.states[(first + parents).flatten()]


class TableEngine(Engine):
    """The logits of what follows are those of a table for the row's state, which every token changes."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.device, self.dtype = table, table.device, table.dtype
        self.source_pad = self.target_pad = table.shape[1] - 1

    def start(self, source: Tensor, keep: Any, width: int) -> BeamCache:
        return TableCache(source[:, 0], width)

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        cache.states = (cache.states * 31 + tokens + 1) % len(self.table)
        return self.table[cache.states][:, :-1].contiguous(), tokens.new_zeros(1, 1, 1, 1).float()

    def step_best(self, tokens: Tensor, cache: Any, k: int, forbidden: int | None) -> Any:
        logits, query = self.step(tokens, cache)
        return *passes.best_classes(logits, k, forbidden), query

    @property
    def classes(self) -> int:
        return self.table.shape[1] - 1


@pytest.fixture(scope="module")
def tables() -> list[Tensor]:
    """Scores of some models: padding would be the likeliest, and the end is likely enough to come anywhere."""
    made = [torch.randn(STATES, CLASSES, generator=torch.Generator().manual_seed(seed)) * 2 for seed in range(3)]
    for n, table in enumerate(made):
        table[:, -1] = 9.0
        table[:, 0] += n
    return made


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    draw = random.Random(7)
    return [
        dict(
            table=n % 3,
            source=[draw.randrange(STATES)],
            limit=draw.choice((1, 5, 30)),
            prefix=draw.choice(([], [3, 5])),
        )
        | settings
        for n, settings in enumerate(SETTINGS)
    ]


def ours(table: Tensor, case: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    names = ("beam", "n_best", "length_penalty", "penalty", "stopping")
    config = SearchConfig(max_length=max(case["limit"], len(case["prefix"])), **{name: case[name] for name in names})
    generator = torch.Generator()
    (found,) = search_batch(TableEngine(table), [case["source"]], [case["prefix"]], config, generator)
    return [(one.ids, one.token_log_probs) for one in found]


def test_ids_are_those_of_our_search(in_node, tables, cases, unchecked):
    names = {"n_best": "nBest", "length_penalty": "lengthPenalty"}
    asked = [
        {names.get(name, name): value for name, value in case.items()}
        | {"limit": max(case["limit"], len(case["prefix"]))}
        for case in cases
    ]
    found = in_node("search.mjs", "search.js", {"tables": [table.tolist() for table in tables], "cases": asked})
    wanted = [ours(tables[case["table"]], case) for case in cases]
    assert [[one["ids"] for one in each] for each in found] == [[ids for ids, _ in each] for each in wanted]
    assert len({tuple(ids) for each in wanted for ids, _ in each}) > 100
    gains = [gain for each in found for one in each for gain in one["gains"]]
    assert gains == pytest.approx([gain for each in wanted for _, gains in each for gain in gains], abs=2e-6)


def test_padding_is_never_among_the_likeliest(in_node, tables):
    cases = [{"table": 1, "source": [5], "prefix": [4], "count": CLASSES}]
    ((*found,),) = in_node("search.mjs", "search.js", {"tables": [table.tolist() for table in tables], "cases": cases})
    state = ((5 * 31 + CLASSES) * 31 + 5) % STATES
    log_probs = tables[1][state, :-1].log_softmax(0)
    assert [token for token, _ in found] == log_probs.argsort(descending=True).tolist()
    assert sum(torch.tensor([gain for _, gain in found]).exp()) == pytest.approx(1, abs=1e-5)
