"""The blocks of files as a source of Ray Data: a row for each block, which nothing that Ray does can divide."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow
from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from glassformer.cluster.forms import FORMS
from glassformer.cluster.lines import Piece
from glassformer.cluster.plan import Block, PlannedFile
from glassformer.cluster.storage import Storage
from glassformer.errors import DataError
from glassformer.generation.stream import LINES_AT_ONCE

FIELDS = (
    *(("file", pyarrow.int64()), ("block", pyarrow.int64()), ("rows", pyarrow.int64())),
    *(("content", pyarrow.large_binary()), ("too_long", pyarrow.list_(pyarrow.int64()))),
)
SCHEMA = pyarrow.schema(FIELDS)


class BlockSource(Datasource):
    """The blocks of files that are still to be translated. Each file is read by one task, from its beginning."""

    def __init__(
        self, storage: Storage, files: Mapping[int, PlannedFile], missing: Mapping[int, Collection[int]]
    ) -> None:
        """Take the files by their places in the plan, and the numbers of the blocks to read of each."""
        super().__init__()
        self._storage, self._files, self._missing = storage, files, missing

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: how large packed files become is not known."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[Any]:
        """Return a `ReadTask` for each file."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [
            ReadTask(partial(read_blocks, self._storage, place, self._files[place], numbers), unknown, SCHEMA)
            for place, numbers in self._missing.items()
        ]


def read_blocks(storage: Storage, place: int, file: PlannedFile, wanted: Collection[int]) -> Iterator[pyarrow.Table]:
    """Yield the wanted blocks of a file, each as a table of one row; DataError where the file has changed."""
    left = len(wanted)
    for number, piece in enumerate(FORMS[file.form].pieces(storage, file.name, LINES_AT_ONCE)):
        if number in wanted:
            if piece.rows != file.rows_in(number):
                break
            yield pyarrow.Table.from_pylist([_row(place, number, piece)], SCHEMA)
            left -= 1
            if not left:
                return
    raise DataError(f"{file.name} has changed while it was translated: start over with what it is now")


def block_of(row: Mapping[str, Any]) -> tuple[Block, Piece]:
    """Return which block a row is, and its content."""
    piece = Piece(row["rows"], row["content"], tuple(row["too_long"]))
    return (row["file"], row["block"]), piece


def _row(place: int, number: int, piece: Piece) -> dict[str, Any]:
    return {
        "file": place,
        "block": number,
        "rows": piece.rows,
        "content": piece.content,
        "too_long": list(piece.too_long),
    }
