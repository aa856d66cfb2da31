"""A Ray Dataset and its translations: for those who read, sort and write with Ray Data themselves."""

from pathlib import Path
from typing import Any

try:
    import ray.data

    from glassformer.cluster.config import ClusterConfig
    from glassformer.cluster.pool import pick_pool, pick_worker_precision
    from glassformer.cluster.weights import Packed, pack_run, unpack_run
except ImportError as error:
    raise ImportError(f'a cluster needs {error.name}: pip install "glassformer[cluster]"') from None

from glassformer.generation.config import SearchConfig, as_config
from glassformer.generation.stream import LINES_AT_ONCE


class DatasetWorker:
    """Translates batches of a Dataset; Ray Data makes one for each place of the pool."""

    def __init__(
        self,
        run: "ray.ObjectRef[Packed]",
        device: str,
        precision: str,
        threads: int,
        config: SearchConfig,
        column: str,
        into: str,
    ) -> None:
        """Load the run; its files are in the object store."""
        self._translator = unpack_run(run, device, precision, threads)
        self._config, self._column, self._into = config, column, into

    def __call__(self, batch: Any) -> Any:
        """Return the batch with a column of translations."""
        return self._translator.map_batches(batch, self._config, column=self._column, into=self._into)


def translate_dataset(
    dataset: "ray.data.Dataset",
    run: str | Path,
    config: SearchConfig | None = None,
    *,
    column: str = "text",
    into: str = "translation",
    cluster: ClusterConfig | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> "ray.data.Dataset":
    """Return the Dataset with a column of translations, which Ray Data computes when it is consumed.

    Each row stays one row; the other columns stay. `cluster` says how many workers translate, and of how many cores;
    its address is not used, since whoever has a Dataset is connected. `device` and `precision` are as in
    `Translator.load`.

    Example: docs/howto/cluster.md.
    """
    config = as_config(config)
    pool = pick_pool(cluster or ClusterConfig(), device)
    picked = pick_worker_precision(pool, precision)
    arguments = (pack_run(Path(run)), pool.device, str(picked), pool.cores, config, column, into)
    return pool.map_batches(dataset, DatasetWorker, arguments, LINES_AT_ONCE)
