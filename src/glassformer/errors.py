"""What glassformer raises when the caller can mend it. The command line prints these as one line and exits with 2."""

import errno

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the system's errors that say there is no space."""


class GlassformerError(Exception):
    """Base of every error that glassformer raises on purpose."""


class ConfigError(GlassformerError):
    """A setting or argument that cannot work; the message says which, what was expected and what came."""


class DataError(GlassformerError):
    """A text file or corpus that cannot be used; the message names the file and, where there is one, the line."""


class RunError(GlassformerError):
    """A run folder that is missing, damaged, foreign, in the way, or of a newer format."""


class DivergedError(GlassformerError):
    """Training produced losses that are no use; the message says which settings to change."""


class OutOfMemoryError(GlassformerError):
    """The device or the process has no memory left; the message says for what, and which setting to lower."""


class ArgumentError(GlassformerError, ValueError, AssertionError, RuntimeError):
    """An argument of the wrong shape or type; the message says which, what was expected, what came, and the fix.

    `torch.nn.MultiheadAttention` raises AssertionError for some of these and RuntimeError for others: code that catches
    either keeps working.
    """
