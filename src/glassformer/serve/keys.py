"""API keys: 128 random bits each, of which a file holds only the hash. Loads no FastAPI.

A key is random, so one round of SHA-256 is enough: there is nothing to guess. What a client gives is compared with
every hash, in constant time. The file is read again when it changes, so a key is withdrawn by removing its entry.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct
from msgspec.json import encode
from msgspec.json import format as format_json

from glassformer.decoding import MOST_BYTES, read_json, read_limited
from glassformer.errors import ConfigError, DataError
from glassformer.files import check_writable, is_at, open_own, remove_unfinished, replacing, try_lock
from glassformer.stopping import unbroken_ends

PREFIX = "gf_"
NAME = re.compile(r"[\w.@-]{1,64}")
LOOKED_AT_EVERY = 1.0
"""Seconds after which the file is looked at again."""
TRIES, WAIT = 500, 0.01
"""Attempts to get the lock of the file, and the seconds between two of them."""


class Key(Struct, frozen=True, forbid_unknown_fields=True):
    """A key as the file holds it."""

    name: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    keys: list[Key]


class KeyFile:
    """The keys of a file. DataError where the file is not one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = -LOOKED_AT_EVERY
        self._known: tuple[tuple[int, int, int] | None, list[Key]] = (None, [])
        """Keep the signs by which a change of the file is seen, and its keys."""
        self._refresh()
        if not self._known[1]:
            how = f"glassformer serve --keys {path} --new-key NAME"
            raise DataError(f"{path} has no keys, so that nobody could use the server: make one with {how}")

    def name_of(self, given: str | None) -> str | None:
        """Return the name of the key that was given; None where it is none of these, or the file can't be read now."""
        return self.name_of_hash(hash_of(given or ""))

    def name_of_hash(self, given: str) -> str | None:
        """Return the name of the key that has this hash; None where it is none of these, or the file can't be read."""
        try:
            self._refresh()
        except (DataError, OSError):
            return None
        names = [key.name for key in self._known[1] if hmac.compare_digest(key.sha256, given)]
        return names[0] if names else None

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        now = time.monotonic()
        if now < self._looked_at + LOOKED_AT_EVERY:
            return
        self._looked_at = now
        (stamp, keys), self._known = self._known, (None, [])  # a file that can't be read lets nobody in
        try:
            found = os.stat(self._path)
            new = found.st_mtime_ns, found.st_size, found.st_ino
            self._known = new, keys if new == stamp else _read(self._path)
        except FileNotFoundError:
            how = f"glassformer serve --keys {self._path} --new-key NAME"
            raise DataError(f"{self._path}: no such file of keys: make one with {how}") from None


def add_key(path: Path, name: str, show: Callable[[str], object] = lambda key: None) -> str:
    """Make a key, `show` it, add its hash to the file, and return it; it can't be read from there.

    Whatever stops it, the file holds all older keys, and a key that couldn't be shown isn't added.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"new_key must be a name of at most 64 letters, digits and . _ @ -, got {name!r}")
    check_writable(path)
    given = PREFIX + secrets.token_hex(16)
    with _held(path) as before:
        remove_unfinished(path.parent, path.name)
        keys = _read(path)
        if any(key.name == name for key in keys):
            raise ConfigError(f"new_key {name} is in {path} already: choose another name, or remove its entry")
        with replacing(path) as file:
            _make_like(file, before, path)
            show(given)
            file.write(format_json(encode(_File([*keys, Key(name, hash_of(given))])), indent=2) + b"\n")
    return given


@unbroken_ends
def _held(path: Path) -> Iterator[os.stat_result]:
    """Keep other processes from adding a key to the file, which is made if it is missing; tell its mode and owner."""
    for _ in range(TRIES):
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT, error=DataError)
        try:
            if try_lock(descriptor) is not False and is_at(descriptor, path):  # it may have been replaced in between
                found = os.fstat(descriptor)
                try:
                    yield found
                finally:
                    if not found.st_size and is_at(descriptor, path):
                        path.unlink()  # nothing came of it
                return
        finally:
            os.close(descriptor)
        time.sleep(WAIT)
    raise DataError(f"{path}: another process is adding a key to it: try again")


def _make_like(new: BinaryIO, before: os.stat_result, path: Path) -> None:
    """Give a file the mode and the owner of the one in whose place it comes: another user may run the server.

    In the place of an empty one it is for its owner alone. Raises DataError where the owner can't be kept. The file is
    named by its descriptor: at its path somebody else may have put a link.
    """
    own = os.fstat(new.fileno())
    if before.st_size and (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(new.fileno(), before.st_uid, before.st_gid)
        except OSError:
            raise DataError(
                f"{path} belongs to a user or group that this user can't give a file to: add the key as its owner"
            ) from None
    mode = stat.S_IMODE(before.st_mode) if before.st_size else 0o600
    if hasattr(os, "fchmod"):
        os.fchmod(new.fileno(), mode)


def _read(path: Path) -> list[Key]:
    if not read_limited(path, MOST_BYTES, error=DataError):
        return []
    return read_json(path, _File, error=DataError).keys


def hash_of(given: str) -> str:
    """Return the hash of a key, or of another secret that is random."""
    return hashlib.sha256(given.encode(errors="replace")).hexdigest()
