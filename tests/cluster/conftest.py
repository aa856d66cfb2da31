"""A cluster of two nodes on this machine, and a run."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.text.tokenizer import SymbolTokenizer

STORE = 100 << 20
"""Bytes of each node's object store."""
RAYS_OWN = {"health_check_period_ms": 300, "worker_niceness": 0}
"""Ray's own settings: that a lost node refuses five calls is seen in 1.5 seconds rather than 15, and workers, which Ray
puts behind all other processes, aren't."""


class TwoNodes:
    """A Ray cluster whose second node can be lost."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False, "_system_config": RAYS_OWN}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._second: Any = None

    @property
    def address(self) -> str:
        """Where the cluster is."""
        return self._cluster.address

    def add_second(self) -> str:
        """Start the second node; returns its id."""
        self._second = self._cluster.add_node(num_cpus=1, object_store_memory=STORE)
        return self._second.node_id

    def lose_second(self) -> None:
        """End all processes of the second node at once."""
        self._cluster.remove_node(self._second, allow_graceful=False)

    def stop(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, random_run: Callable[..., Any]) -> Path:
    """A random run from letters to capitals."""
    folder = tmp_path_factory.mktemp("run") / "run"
    random_run(folder, SymbolTokenizer("abcdefg"), SymbolTokenizer("ABCDE"))
    return folder


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[TwoNodes]:
    """The cluster, to which this process is connected."""
    ray = pytest.importorskip("ray", reason="pip install 'glassformer[cluster]'")
    source = Path(__file__).parents[2] / "src"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(source), prepend=os.pathsep)  # for the workers
        with warnings.catch_warnings(action="ignore"):  # Ray Data's own settings warn of themselves when they are made
            from ray.data import DataContext

            DataContext.get_current()
        from glassformer.cluster.pool import keeping_sigterm

        with keeping_sigterm():  # each node, too, takes SIGTERM over in the process that starts it
            nodes = TwoNodes()
            nodes.add_second()
            ray.init(address=nodes.address, logging_level="error", log_to_driver=False)
        yield nodes
        ray.shutdown()
        nodes.stop()
