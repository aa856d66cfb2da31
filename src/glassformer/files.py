"""Files and folders that appear whole or not at all, whatever stops the process that makes them. Loads no torch.

What is being made is in a hidden folder beside its place, `.NAME.xxxxxxxx.tmp`, and is renamed when it is complete.
Nobody can foresee that name or put a link in the folder. A lock in it says that its process lives: a folder whose lock
is free was left by a process that was killed, and is removed by the next one that writes to the same place.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote_to_bytes

from glassformer.errors import FULL, ConfigError, DataError, GlassformerError, RunError
from glassformer.stopping import unbroken, unbroken_ends

if sys.platform != "win32":  # which has no flock: nothing is locked there
    import fcntl

_TEMPORARY = re.compile(r"\.(?P<place>.+)\.[a-z0-9_]{8}\.tmp", re.DOTALL)
_LOCK = ".lock"
PACKED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
"""Endings of the names of packed files."""
_LONGEST = 50
"""Characters of a name that go into a temporary one, which may have 255 bytes as well."""
_ABANDONED = 7 * 24 * 3600
"""Seconds after which a scratch folder counts as left by a process that was killed, where there are no locks."""
_RENAME_EXCHANGE, _HERE = 2, -100

SCHEME = "file:"
_WHERE_THERE_ARE = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
GUARDED = sum(getattr(os, name, 0) for name in _WHERE_THERE_ARE)
"""Flags to open a file with: a link is not followed, a pipe doesn't wait for its other end, bytes stay as they are."""


def check_name(path: Path) -> None:
    """Raise RunError unless the path of a folder, or of a file in it, is UTF-8, as safetensors and onnxruntime need."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RunError(f"{path}: the name of a folder must be UTF-8, rename it or choose another") from None


def check_writable(path: Path) -> None:
    """Raise DataError where no file can be written to `path`. Call it before long work."""
    if path == Path("-"):
        raise DataError("-: standard output won't do here: give the name of a file to write")
    if path.suffix.lower() in PACKED_ENDINGS:
        raise DataError(f"{path} would be written unpacked: leave out {path.suffix}")
    if path.is_dir():
        raise DataError(f"{path} is a folder: give the name of a file to write")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: no such folder to write {path.name} to")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a device or a pipe, which a file can't replace: give the name of a file to write")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DataError(f"{path.parent}: {path.name} can't be written into this folder: allow it, or choose another")


def names_file(text: str) -> bool:
    """Return whether a text is the name of a file."""
    try:
        return Path(text).is_file()
    except OSError:  # too long for a name
        return False


def check_apart(written: Mapping[str, Path | None], read: Mapping[str, Path | Iterable[Path] | None]) -> None:
    """Raise ConfigError where a file that is written would take the place of one that is read, or of another one.

    Files stand beside the names by which a user knows them; None is no file. Call it before long work.

    >>> check_apart({"--output": Path("a.txt")}, {"--input": Path("./a.txt")})
    Traceback (most recent call last):
    glassformer.errors.ConfigError: --output and --input must be two files, got a.txt for both
    """
    given = [(name, path) for name, path in written.items() if path is not None]
    others = list(given)
    for name, paths in read.items():
        others += [(name, path) for path in ((paths,) if isinstance(paths, Path) else paths or ())]
    for n, (name, path) in enumerate(given, start=1):
        for other, place in others[n:]:
            if _are_one(path, place):
                raise ConfigError(f"{name} and {other} must be two files, got {path} for both")


def _are_one(path: Path, other: Path) -> bool:
    """Return whether two paths lead to one file, which need not be there yet."""
    if followed(path) == followed(other):
        return True
    with suppress(OSError):  # one of them is not there
        return path.samefile(other)
    return False


def check_new_folder(path: Path) -> None:
    """Raise RunError unless nothing is at `path`, or an empty folder. Call it before long work.

    What a process that was killed was making there is removed.
    """
    if path.name in ("", ".."):
        raise RunError(f"{path} can't be replaced by a new folder: give the name of one")
    remove_unfinished(_nearest(path), path.name)
    if path.is_symlink() or (path.exists() and not is_empty_folder(path)):
        raise RunError(f"{path} is there already: give a new name, or remove it first")
    check_place(path)


def is_empty_folder(path: Path) -> bool:
    """Return whether a folder is there, and nothing in it."""
    return path.is_dir() and not any(path.iterdir())


def _nearest(path: Path) -> Path:
    """Return the nearest of the folders above that is there."""
    return next(folder for folder in path.absolute().parents if folder.exists())


def check_place(path: Path) -> None:
    """Raise RunError where no folder can be made at `path`. Call it before long work."""
    above = _nearest(path)
    try:
        with unbroken:
            os.rmdir(tempfile.mkdtemp(prefix=f".{path.name[:_LONGEST]}.", suffix=".tmp", dir=above))
    except OSError as error:
        if error.errno not in FULL:
            raise RunError(
                f"{above}: no folder to write {path.name} to ({error.strerror}): choose another place"
            ) from None


@unbroken_ends
def scratch_folder(place: Path) -> Iterator[Path]:
    """Give an empty hidden folder beside `place` to make it in; afterwards it is removed with all that is in it.

    What processes that were killed have left of theirs for this place is removed before.
    """
    remove_unfinished(place.parent, place.name)
    try:
        folder, descriptor = _make_scratch(place)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(place)) from None
    try:
        yield folder
    except OSError as error:
        unnamed = error.filename is None and error.errno in FULL
        if unnamed or str(error.filename).startswith(str(folder)):  # a folder that the user has never heard of
            error.filename = str(place)
        raise
    finally:
        try:
            _remove_scratch(folder, descriptor)
        except BaseException:  # a signal came in between: what is left is like that of a process that was killed
            remove_unfinished(place.parent, place.name)
            raise


@unbroken_ends
def replacement(path: Path) -> Iterator[Path]:
    """Give the path of a temporary file to write: it takes the place of `path`, or is removed where an error comes."""
    check_writable(path)
    with scratch_folder(path) as scratch:
        temporary = scratch / path.name
        yield temporary
        _flush(temporary)
        temporary.replace(path)


@unbroken_ends
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a temporary file to write to: it takes the place of `path`, or is removed where an error comes."""
    with replacement(path) as temporary, temporary.open("xb") as file:
        yield file


@unbroken_ends
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder to fill: it becomes `path`, or is removed where an error comes.

    Folders above `path` are made, and removed again where an error comes. Raises RunError where `path` is there, before
    or when the folder is complete, unless it is an empty folder.
    """
    check_new_folder(path)
    with folders_above(path), scratch_folder(path) as scratch:
        made = scratch / path.name
        made.mkdir()
        yield made
        flush_folder(made)
        move_folder(made, path)


@unbroken_ends
def folders_above(path: Path) -> Iterator[None]:
    """Make the folders above `path` that are missing; they are removed again where an error comes."""
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # others have put something there
            for folder in missing:
                folder.rmdir()
        raise


def move_folder(made: Path, path: Path) -> None:
    """Move a folder to a place where nothing is, or an empty folder; RunError where there is more by now."""
    try:
        if path.exists():  # not every system puts a folder in the place of an empty one
            path.rmdir()
        made.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise RunError(f"{path} was made by another process meanwhile: choose another --out") from None
    _flush(path.parent)


def remove_at_once(folder: Path) -> None:
    """Remove a folder with all that is in it; a kill meanwhile leaves nothing under its name."""
    with scratch_folder(folder) as scratch:
        folder.rename(scratch / folder.name)


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places, at once where the system can do that (Linux, most file systems)."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # a C library before 2018
            rename = ctypes.CDLL(None, use_errno=True).renameat2
            if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0:
                return
            if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
    aside = other.with_name(f"{other.name}.replaced")  # where nobody clears up, if this process is killed here
    other.rename(aside)
    try:
        one.rename(other)
    except BaseException:
        aside.rename(other)
        raise
    aside.rename(one)


def flush_folder(folder: Path) -> None:
    """Write all files under a folder to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            _flush(path)
    _flush(folder)


def followed(path: Path) -> Path:
    """Return the path with every link in it followed; raise DataError for a link that leads to itself."""
    try:
        return path.resolve()
    except (RuntimeError, OSError):  # RuntimeError before Python 3.13
        raise DataError(f"{path} is a link that leads to itself: remove it, or give another name") from None


def link_or_copy(file: Path, place: Path) -> None:
    """Make a file appear at `place` too: as a hard link, or as a copy where the file system can't link.

    Only for files that are never changed in place, since a change would show at both names.
    """
    try:
        place.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, place)


def open_own(path: Path, flags: int, *, error: type[GlassformerError] = RunError) -> int:
    """Open a regular file with these flags and return its descriptor; raise `error` for anything else at its place."""
    try:
        descriptor = os.open(path, flags | GUARDED, 0o666)
    except OSError as reason:
        if reason.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise error(f"{path} must be a file, and is a link, a folder, a pipe or a device: remove it, or give another name")


def open_to_append(path: Path, *, error: type[GlassformerError] = RunError) -> int:
    """Open a file to write at its end, made if it is missing, as `open_own` does."""
    return open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, error=error)


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock an open file until it is closed, and return whether it was free.

    Returns None where there are no locks: on Windows, and on some network filesystems. Shared locks don't exclude each
    other.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOLCK, EOPNOTSUPP, EINVAL
        return None
    return True


@unbroken_ends
def alone(lock: Path, work: str) -> Iterator[None]:
    """Hold the lock of a folder in the file `lock`; RunError where another process does the same `work` there."""
    descriptor = open_to_append(lock)
    try:
        if try_lock(descriptor) is False:
            raise RunError(f"{lock.parent} is used by another {work}: wait for it, or stop it")
        yield
    finally:
        os.close(descriptor)


@unbroken_ends
def in_turn(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block with this folder; where there are no locks, go on at once."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # ENOLCK, EOPNOTSUPP, EINVAL
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether this open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_temporary(name: str) -> bool:
    """Return whether this is the name of something that is being made.

    >>> is_temporary(".config.json.a0_4x9zz.tmp"), is_temporary("notes.tmp")
    (True, False)
    """
    return _TEMPORARY.fullmatch(name) is not None


def remove_unfinished(folder: Path, place: str | None = None) -> None:
    """Remove what processes that were killed were making in a folder; for one `place` in it, or for all.

    What a living process is making stays.
    """
    wanted = None if place is None else place[:_LONGEST]
    with suppress(OSError), os.scandir(folder) as entries:  # one that may not be read, say
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name)
            if found and wanted in (None, found["place"]) and entry.is_dir(follow_symlinks=False):
                _remove_abandoned(Path(entry.path))


def path_as_text(path: Path) -> str:
    """Return a path as JSON can hold it: as it is, or where its name isn't UTF-8 as a `file:` URI."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return SCHEME + quote(os.fsencode(path))
    return SCHEME + quote(text) if text.startswith(SCHEME) else text


def path_from_text(text: str) -> Path:
    """Return the path that `path_as_text` gave this text for.

    >>> path_from_text(path_as_text(Path("pairs.tsv"))), path_from_text("file:pairs%FF.tsv").name
    (PosixPath('pairs.tsv'), 'pairs\\udcff.tsv')
    """
    return Path(os.fsdecode(unquote_to_bytes(text.removeprefix(SCHEME))) if text.startswith(SCHEME) else text)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _make_scratch(place: Path) -> tuple[Path, int]:
    """Make a scratch folder beside `place`; return it, and a descriptor that holds its lock."""
    while True:  # until none who clears up has come in between
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name[:_LONGEST]}.", suffix=".tmp", dir=place.parent))
        with suppress(FileNotFoundError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR | GUARDED | os.O_CREAT | os.O_EXCL, 0o600)
            if try_lock(descriptor) is not False and is_at(descriptor, folder / _LOCK):
                return folder, descriptor
            os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove a scratch folder unless its process lives, or it isn't ours: then it has no lock in it."""
    with suppress(OSError):
        folder.rmdir()  # empty: its process was killed, or else makes another
        return
    with suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | GUARDED)
        free = try_lock(descriptor)
        if free is None:  # whether its process lives can't be known: it does nothing for so long
            free = time.time() - os.fstat(descriptor).st_mtime > _ABANDONED
        if free:
            _remove_scratch(folder, descriptor)
        else:
            os.close(descriptor)


def _remove_scratch(folder: Path, descriptor: int) -> None:
    """Remove a scratch folder, and free its lock. The lock's file goes last: what a kill leaves is known by it.

    It goes before the lock is free: one who has just made the folder would get the lock of a file that is to go.
    """
    try:
        with suppress(OSError):
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _LOCK:
                    path.unlink()
        _remove_empty(folder)
    finally:
        os.close(descriptor)
    _remove_empty(folder)  # Windows keeps a file that is open, and a network file system the folder that it was in


def _remove_empty(folder: Path) -> None:
    """Remove a scratch folder where nothing is in it but its lock."""
    with suppress(OSError):
        if all(path.name == _LOCK for path in folder.iterdir()):
            (folder / _LOCK).unlink(missing_ok=True)
            folder.rmdir()


def _flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    if path.is_dir():
        if sys.platform == "win32":  # which can't
            return
        descriptor = os.open(path, os.O_RDONLY)
    else:
        descriptor = os.open(path, os.O_RDWR)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
