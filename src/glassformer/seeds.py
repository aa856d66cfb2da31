"""Seeds of single draws, derived from the one seed that a run is given. Loads no torch."""

PER_SEED, PER_EPOCH, PER_PROCESS = 1_000_003, 7_368_787, 1 << 40
"""Distances between the seeds of neighbouring runs, epochs and processes: two primes, and more than both come to."""


def derive_seed(seed: int, index: int, *, epoch: int = 0, rank: int = 0) -> int:
    """Return seed * 1,000,003 + epoch * 7,368,787 + rank * 2^40 + index.

    A run draws at many places, and a continued run must draw the same again: each draw follows from the run's seed and
    the numbers of what it is for. Two runs with neighbouring seeds share no derived seed below index 1,000,003.

    | what is drawn | index | epoch | rank |
    |---|---|---|---|
    | the order of the batches | the epoch | | |
    | dropout | the update | | of the process |
    | how a batch is split into subwords | the batch's first pair | the epoch | |

    >>> derive_seed(1, 5), derive_seed(2, 5), derive_seed(1, 5, epoch=3), derive_seed(0, 5, rank=1)
    (1000008, 2000011, 23106369, 1099511627781)
    """
    return seed * PER_SEED + epoch * PER_EPOCH + rank * PER_PROCESS + index
