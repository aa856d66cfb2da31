"""Settings of a cluster: where it is, and the workers on it. Loads neither Ray nor torch."""

import re
from dataclasses import dataclass, fields
from typing import Annotated

from glassformer.errors import ConfigError, shown
from glassformer.settings.checks import Flag, Natural, Positive, Threads, check_settings
from glassformer.settings.docstrings import with_fields

_ADDRESS = re.compile(r"auto|local|(ray://)?[\w.:\[\]-]{1,255}:[0-9]{1,5}", re.ASCII)


@with_fields
@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The workers that translate in bulk, and the cluster that they are on.

    Raises ConfigError for values out of range.

    >>> ClusterConfig(workers=2).cores
    1
    """

    cluster: Annotated[str | None, Flag("ADDRESS")] = None
    """Translate on a Ray cluster. Give its address; or local: one on this machine alone, which is started and ended;
    or auto: the one that runs here already, else local."""
    workers: Natural = 0
    """On a cluster: number of workers. 0: one for each GPU, or without GPUs one for each --cores CPU cores."""
    cores: Threads = 1
    """On a cluster: cores of each worker."""
    patience: Positive = 600.0
    """On a cluster: if no block is done for this many seconds, the rest is given to the workers that are left."""
    column: Annotated[str | None, Flag("NAME")] = None
    """On a cluster: the column of parquet or JSON lines to translate. Left out: the only one with text, else text or
    source."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.cluster is not None and not _ADDRESS.fullmatch(self.cluster):
            raise ConfigError(f"cluster must be auto, local or an address (10.0.0.1:6379), got {shown(self.cluster)}")

    @property
    def is_wanted(self) -> bool:
        """Return whether a cluster is named; ConfigError where only its workers are described."""
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        if given and self.cluster is None:
            raise ConfigError(f"`{given[0]}` is for a cluster: give `cluster` auto, or its address")
        return self.cluster is not None
