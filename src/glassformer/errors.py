"""Errors that the caller can mend. The command line prints each as one line and exits with 2."""

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's error numbers for a full disk, a full quota and a file that may not grow."""


def closest(word: str, known: Iterable[str]) -> str:
    """Return ": did you mean ...?" for the known word that is most like this one, or an empty text."""
    like = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f": did you mean {like[0]}?" if like else ""


def closest_path(path: Path, *, folder: bool = False) -> str:
    """Return ": did you mean ...?" for a file, or a `folder`, whose name is most like that of a missing one.

    Its ending is the same, so that train.de is not taken for train.en. The text is empty where there is none.
    """
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:
        return ""
    stems = {
        one.stem: one.name
        for one in beside
        if one.name != path.name and one.suffix == path.suffix and (one.is_dir() if folder else one.is_file())
    }
    like = difflib.get_close_matches(path.stem, stems, 1)
    return f": did you mean {path.with_name(stems[like[0]])}?" if like else ""


class GlassformerError(Exception):
    """The base of every error that glassformer raises on purpose."""


class ConfigError(GlassformerError):
    """A setting that can't work. The message names it, what was expected and what came."""


class DataError(GlassformerError):
    """A text file or corpus that can't be used. The message names the file and, where there is one, the line."""


class RunError(GlassformerError):
    """A run folder that is missing, damaged, foreign, in the way, or in a newer format."""


class DivergedError(GlassformerError):
    """A training whose losses are not usable. The message says which settings to change."""


class OutOfMemoryError(GlassformerError):
    """A device or process without memory. The message says what the memory was for, and which setting to lower."""


class ArgumentError(GlassformerError, ValueError, AssertionError, RuntimeError):
    """An argument of the wrong shape or type. The message names it, what was expected, what came, and the fix.

    `torch.nn.MultiheadAttention` raises AssertionError for some of these and RuntimeError for others. This class
    derives from both, so code that catches either keeps working.
    """
