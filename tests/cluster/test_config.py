"""Settings of a cluster: what is no address, or out of range, is refused before Ray is loaded."""

import pytest

from glassformer.cluster.config import ClusterConfig
from glassformer.errors import ConfigError

ADDRESSES = ("auto", "local", "10.0.0.1:6379", "head.example:6379", "ray://head:10001", "[::1]:6379")


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses(address):
    assert ClusterConfig(cluster=address).cluster == address


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": "here"}, r"cluster must be auto, local or an address \(10.0.0.1:6379\), got 'here'"),
        ({"cluster": "head:port"}, "cluster must be auto, local or an address"),
        ({"cluster": ""}, "cluster must be auto, local or an address"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"cores": 0}, "cores must be at least 1, got 0"),
        ({"patience": 0.0}, "patience must be above 0, got 0.0"),
    ],
)
def test_what_is_out_of_range_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ClusterConfig(**changes)
