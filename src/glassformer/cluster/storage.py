"""A folder of files: on this machine, or in any store that pyarrow knows (s3://, gs://, hdfs://)."""

import posixpath
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import fs

from glassformer.errors import DataError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/+")
"""The beginning of a URI; a drive of Windows has one letter."""
UNFINISHED = "_unfinished"
"""The folder of all that is not complete."""


@dataclass(frozen=True)
class Storage:
    """A folder. Names in it are relative, with / between folders.

    A file appears whole or not at all: it is written to the folder `_unfinished/writing`, and renamed. Stores without
    renaming, such as S3, make the object when its writer closes it, and copy it.
    """

    filesystem: fs.FileSystem
    root: str

    @classmethod
    def of(cls, place: str) -> "Storage":
        """Return the folder at a path or a URI."""
        try:
            filesystem, root = fs.FileSystem.from_uri(place) if is_uri(place) else _local(place)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{place} can't be opened: {error}") from None
        return cls(filesystem, root.rstrip("/") or "/")

    def names(self, folder: str = "") -> dict[str, int]:
        """Return the files directly in a folder, each with its size; none where there is no such folder."""
        selector = fs.FileSelector(self._path(folder), allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        return {one.base_name: one.size for one in found if one.type == fs.FileType.File}

    def is_file(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return self.filesystem.get_file_info(self._path(name)).type == fs.FileType.File

    def open(self, name: str) -> Any:
        """Open a file to read it from its beginning to its end, as it is: packed if it is packed."""
        return self.filesystem.open_input_stream(self._path(name), compression=None)

    def open_anywhere(self, name: str) -> Any:
        """Open a file to read it in any order."""
        return self.filesystem.open_input_file(self._path(name))

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.open(name) as file:
            return file.read()

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Give a file to write to: it gets its name when all is written."""
        path, temporary = self._path(name), self._path(f"{UNFINISHED}/writing/{uuid.uuid4().hex}")
        for above in (path, temporary):
            self.filesystem.create_dir(posixpath.dirname(above), recursive=True)
        with self.filesystem.open_output_stream(temporary, compression=None) as file:
            yield file
        self.filesystem.move(temporary, path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        with self.writing(name) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.filesystem.delete_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        if self.filesystem.get_file_info(self._path(name)).type == fs.FileType.Directory:
            self.filesystem.delete_dir(self._path(name))

    def __str__(self) -> str:
        return self.root

    def _path(self, name: str) -> str:
        return posixpath.join(self.root, name) if name else self.root


def is_uri(place: str) -> bool:
    """Return whether this is a URI, such as s3://bucket/folder, not a path.

    >>> is_uri("s3://bucket/folder"), is_uri("folder"), is_uri("c:/folder")
    (True, False, False)
    """
    return _SCHEME.match(place) is not None


def place_of(path: Path) -> str:
    """Return what the user wrote: a URI with the two slashes of which a path keeps one, or the path.

    >>> place_of(Path("s3://bucket/folder")), place_of(Path("folder"))
    ('s3://bucket/folder', 'folder')
    """
    text = str(path)
    return _SCHEME.sub(r"\1://", text, count=1) if is_uri(text) else text


def _local(place: str) -> tuple[fs.FileSystem, str]:
    return fs.LocalFileSystem(), Path(place).absolute().as_posix()
