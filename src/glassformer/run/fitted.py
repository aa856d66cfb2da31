"""Files of a run folder that hold for its weights as they are now, and not for those that more training leaves."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from glassformer.decoding import read_json
from glassformer.files import write_json
from glassformer.run.names import WEIGHTS


class Fitted(Struct, frozen=True, kw_only=True):
    """A choice or a fit that holds for one model."""

    fitted_for: str = ""
    """SHA-256 of that model's weights, in a run folder; empty where nobody knows, and anywhere else."""


F = TypeVar("F", bound=Fitted)


def write_fitted(path: Path, fitted: Fitted) -> None:
    """Write a file of a run folder, for the weights that the folder has now."""
    digest = digest_of_weights(path.parent) if (path.parent / WEIGHTS).exists() else ""
    write_json(path, to_builtins(replace(fitted, fitted_for=digest)))


def read_fitted(path: Path, kind: type[F]) -> F | None:
    """Return what a file of a run folder holds; None where there is no file, or one for other weights."""
    if not path.exists():
        return None
    fitted = read_json(path, kind)
    if fitted.fitted_for and (path.parent / WEIGHTS).exists() and fitted.fitted_for != digest_of_weights(path.parent):
        return None
    return replace(fitted, fitted_for="")


def digest_of_weights(folder: Path) -> str:
    """Return the SHA-256 of the weights in a run folder; it is computed once, unless they change."""
    path = folder / WEIGHTS
    state = path.stat()
    return _digest(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _digest(path: Path, changed: int, size: int) -> str:
    """Return the digest of a file that was last changed at this time, and has this size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
