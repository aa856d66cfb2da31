"""Times of what processes tell each other: rings, trees, and both over nodes whose devices have faster links.

Every function takes the bytes that the result has in each process. Sources: Thakur, Rabenseifner & Gropp 2005,
"Optimization of Collective Communication Operations in MPICH"; Sanders, Speck & Träff 2009 for two trees whose
halves work side by side; NCCL's own model of its choice (src/graph/tuning.cc).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A connection between neighbours."""

    latency: float
    """Seconds of a step, however short its message is."""
    bandwidth: float
    """Bytes a second that a process sends, and receives at the same time."""


def ring_gather(size: float, processes: int, link: Link) -> float:
    """Return the seconds in which each process gets the parts of all others: n - 1 steps of an n-th.

    Summing whole tensors of which each process keeps a part, a reduce-scatter, takes as long.
    """
    return (processes - 1) * (link.latency + size / processes / link.bandwidth)


def ring_reduce(size: float, processes: int, link: Link) -> float:
    """Return the seconds of an all-reduce by ring: the parts are summed on one way round, and gathered on the next."""
    return 2 * ring_gather(size, processes, link)


def tree_reduce(size: float, processes: int, link: Link) -> float:
    """Return the seconds of an all-reduce by two binary trees: up and down, in pieces that follow one another."""
    if processes == 1:
        return 0.0
    return 2 * math.ceil(math.log2(processes)) * link.latency + 2 * size / link.bandwidth


@dataclass(frozen=True)
class Network:
    """Nodes with several devices: fast links inside, and between nodes one for each device."""

    per_node: int
    inside: Link
    between: Link
    between_tree: float
    """Seconds of a step between nodes in a tree, whose messages are cut into other pieces."""

    def split(self, devices: int) -> tuple[int, int]:
        """Return the devices of a node and the nodes."""
        inside = min(devices, self.per_node)
        return inside, math.ceil(devices / inside)

    def gather(self, size: float, devices: int) -> float:
        """Return the seconds of a gather, or a reduce-scatter, by a ring over all devices."""
        inside, nodes = self.split(devices)
        if nodes == 1:
            return ring_gather(size, inside, self.inside)
        steps = (devices - nodes) * self.inside.latency + (nodes - 1) * self.between.latency
        return steps + (devices - 1) / devices * size / self._across()

    def ring(self, size: float, devices: int) -> float:
        """Return the seconds of an all-reduce by a ring over all devices."""
        return 2 * self.gather(size, devices)

    def tree(self, size: float, devices: int) -> float:
        """Return the seconds of an all-reduce: summed in each node by a ring, over the nodes by trees, and gathered."""
        inside, nodes = self.split(devices)
        own = ring_reduce(size, inside, self.inside)
        if nodes == 1:
            return own
        return own + tree_reduce(size / inside, nodes, Link(self.between_tree, self.between.bandwidth))

    def reduce(self, size: float, devices: int) -> float:
        """Return the seconds of an all-reduce by the better of both."""
        return 0.0 if devices == 1 else min(self.ring(size, devices), self.tree(size, devices))

    def _across(self) -> float:
        """Return the bandwidth of rings that leave a node on all of its links at once."""
        return min(self.inside.bandwidth, self.per_node * self.between.bandwidth)
