"""The workers that fit into a cluster; its machines are made up."""

import pytest

from glassformer.errors import ConfigError

pytest.importorskip("ray", reason="pip install 'glassformer[cluster]'")

from glassformer.cluster import pool
from glassformer.cluster.config import ClusterConfig
from glassformer.cluster.pool import Pool, pick_pool, pick_worker_precision, shrunk


@pytest.fixture
def machines(monkeypatch) -> list[dict]:
    """The machines of the cluster: 7 cores, 5 cores and 2 GPUs, and one that is lost."""
    found = [
        {"Alive": True, "Resources": {"CPU": 7.0, "memory": 1e9}},
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 2.0}},
        {"Alive": False, "Resources": {"CPU": 11.0}},
    ]
    monkeypatch.setattr(pool.ray, "nodes", lambda: found)
    return found


@pytest.mark.parametrize(
    ("cores", "device", "workers"), [(1, "cpu", 12), (3, "cpu", 3), (5, "cpu", 2), (2, "cuda", 2), (3, "cuda:1", 1)]
)
def test_each_worker_fits_into_one_machine(machines, cores, device, workers):
    assert pick_pool(ClusterConfig(cores=cores), device) == Pool(workers, cores, device.partition(":")[0])


def test_gpus_are_taken_where_there_are_any(machines):
    assert pick_pool(ClusterConfig(workers=1), "auto") == Pool(1, 1, "cuda")
    del machines[1]
    assert pick_pool(ClusterConfig(workers=1), "auto") == Pool(1, 1, "cpu")


def test_more_workers_than_fit_are_refused(machines):
    expected = r"at most 0, .* 11 cores each on cpu, got 1: .* has 12 cores, at most 7 on one machine, and 2 GPUs"
    with pytest.raises(ConfigError, match=expected):
        pick_pool(ClusterConfig(cores=11), "cpu")
    with pytest.raises(ConfigError, match=r"workers must be at most 3, .* 3 cores each on cpu, got 4"):
        pick_pool(ClusterConfig(cores=3, workers=4), "cpu")
    with pytest.raises(ConfigError, match="device must be auto, cpu or cuda on a cluster, got mps"):
        pick_pool(ClusterConfig(), "mps")


def test_the_precision_is_asked_of_a_worker_only_where_it_is_on_another_machine(machines, monkeypatch):
    asked = []

    class Remote:
        def __init__(self, function):
            self.function = function

        def remote(self, *arguments):
            asked.append(arguments)
            return self.function(*arguments)

    monkeypatch.setattr(pool.ray, "remote", lambda **needs: Remote)
    monkeypatch.setattr(pool.ray, "get", lambda found: found)
    machines[:] = [{"Alive": True, "NodeManagerHostname": pool.platform.node(), "Resources": {"CPU": 2.0}}]
    assert str(pick_worker_precision(Pool(1, 1, "cpu"), "bfloat16")) == "bfloat16"
    with pytest.raises(ConfigError, match="precision must be one of auto"):
        pick_worker_precision(Pool(1, 1, "cpu"), "int3")
    assert asked == []
    machines.append({"Alive": True, "NodeManagerHostname": "another", "Resources": {"CPU": 2.0}})
    assert str(pick_worker_precision(Pool(1, 1, "cpu"), "bfloat16")) == "bfloat16"
    assert asked == [("bfloat16", "cpu")]


def test_a_pool_shrinks_to_what_is_left(machines):
    full = Pool(3, 3, "cpu")
    del machines[0]
    assert shrunk(full) == Pool(1, 3, "cpu")
    machines.clear()
    assert shrunk(full) == Pool(1, 3, "cpu")
