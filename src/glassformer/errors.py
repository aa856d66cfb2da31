"""Errors that the caller can mend. The command line prints each as one line and exits with 2."""

import difflib
import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's error numbers for a full disk, a full quota and a file that may not grow."""

MOST_SHOWN = 80
"""Most characters of a wrong value that a message shows."""
MOST_COMPARED = 100
"""Most characters of a word that is compared with known ones: the time grows with the square of its length."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udc7f\udd00-\udfff]")


def shown(value: object) -> str:
    """Return a value as a message shows it: its repr in one line, cut to `MOST_SHOWN` characters.

    Of a tensor or an array it is the type and the shape.
    """
    try:
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
        if dtype is not None and shape is not None and not isinstance(value, type):
            return f"{type(value).__name__} of {dtype} {tuple(shape)}"
        text = repr(value)
        return abridged(" ".join(text.split()) if "\n" in text else text)
    except ValueError:  # Python doesn't write out whole numbers of more than 4,300 digits
        return "a number of thousands of digits"


@contextmanager
def noting(words: Callable[[], str]) -> Iterator[None]:
    """Add a note to whatever stops the work inside, if there are words for one then, and it has none yet."""
    try:
        yield
    except BaseException as error:
        if not getattr(error, "__notes__", ()) and (note := words()):
            error.add_note(note)
        raise


def counted(number: int | float, noun: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "line"), counted(2_000, "line")
    ('1 line', '2,000 lines')
    """
    return f"{number:,.0f} {noun}{'' if round(number) == 1 else 's'}"


def abridged(text: str, most: int = MOST_SHOWN) -> str:
    """Return the text, or of a longer one its beginning and three dots."""
    return text if len(text) <= most else f"{text[:most]}..."


def printable(text: str) -> str:
    """Return a text with its control characters as escapes, so that a name can't move the cursor or turn the line.

    Ends of lines and paragraphs, marks that turn the direction of writing, and half surrogate pairs are escaped too,
    but not those that stand for the bytes of a name that isn't UTF-8: such a name is printed as it is.

    >>> print(printable("pairs\x1b[2J.tsv"))
    pairs\\x1b[2J.tsv
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def describe_full(error: OSError) -> str:
    """Return in words what an error of `FULL` says, and which file was not written.

    >>> describe_full(OSError(errno.ENOSPC, "No space left on device", "runs/x"))
    'the disk is full: runs/x was not written'
    """
    words = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
    what = words.get(error.errno or 0, "the file may not grow any larger")
    return what if error.filename is None else f"{what}: {error.filename} was not written"


def closest(word: str, known: Iterable[str]) -> str:
    """Return ": did you mean ...?" for the known word that is most like this one, or an empty text."""
    if len(word) > MOST_COMPARED:
        return ""
    like = difflib.get_close_matches(word, [one for one in known if len(one) <= MOST_COMPARED], 1, 0.6)
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
    """The base of every error that glassformer raises on purpose.

    Its message is for the user: a program shows it as it is. Errors of other classes are bugs, or come from the system
    (OSError: the disk is full, say) or from a missing extra (ImportError, which names the extra).

    >>> from glassformer import GlassformerError, Translator
    >>> try:
    ...     translator = Translator.load("runs/none")
    ... except GlassformerError as error:
    ...     print(error)
    runs/none: no such run folder
    """


class ConfigError(GlassformerError):
    """A setting that can't work. The message names it, what was expected and what came.

    Raised by every class of settings when it is made (`TrainConfig`, `ModelConfig`, `SearchConfig`, `PruneConfig`), by
    whatever takes settings, and for wrong flags of a command. Trying again is useless: change the setting.

    >>> from glassformer import SearchConfig
    >>> SearchConfig(beam=0)
    Traceback (most recent call last):
        ...
    glassformer.errors.ConfigError: beam must be at least 1, got 0
    """


class DataError(GlassformerError):
    """A text file or corpus that can't be used. The message names the file and, where there is one, the line.

    Raised by whatever reads pairs, lines or tokenizers: `train`, `translate_file`, `score`, `prune`, `PairFiles`. A
    program shows the message and takes another file, or mends the line.

    >>> from pathlib import Path
    >>> from glassformer import PairFiles
    >>> PairFiles(Path("none.tsv")).check()
    Traceback (most recent call last):
        ...
    glassformer.errors.DataError: none.tsv: no such file
    """


class RunError(GlassformerError):
    """A run folder that is missing, damaged, foreign, in the way, or in a newer format.

    Raised by whatever reads a run folder (`Translator.load`, `open_run`, `resume`, `prune`), by `train` where the
    output folder is taken or another process trains in it, and by the import of a model. Nothing was overwritten. A
    program takes another folder, or does what the message says (`--overwrite`, copy it again, upgrade).

    >>> from glassformer import open_run
    >>> open_run("runs/none")
    Traceback (most recent call last):
        ...
    glassformer.errors.RunError: runs/none: no such run folder
    """


class DivergedError(GlassformerError):
    """A training whose losses are not usable. The message says which settings to change.

    Raised by `train`, `resume`, `train_once` and `prune` after `max_left_out` updates in a row that would have done
    harm, or when a validation loss is not a number. A program goes on from the last checkpoint with a lower learning
    rate. A pruning is started again.

    Example: docs/howto/resume.md.
    """


class OutOfMemoryError(GlassformerError):
    """A device or process without memory. The message says what the memory was for, and which setting to lower.

    Raised by `train`, `resume`, `train_once` and `prune`, in an update or a validation. A program goes on from the last
    checkpoint with smaller batches. A pruning is started again. Also raised, with both figures and before memory is
    taken, by whatever builds a model that is larger than the memory: a training, `Translator.load`, an import;
    and by `compare_runs` for a test set that is too large to be resampled, which it says in its place.

    Example: docs/howto/resume.md.
    """


class ArgumentError(GlassformerError, ValueError, AssertionError, RuntimeError):
    """An argument of the wrong shape or type. The message names it, what was expected, what came, and the fix.

    Raised by `attend`, `observe`, `capture`, `page` and everything else that takes tensors, models or lines. It is a
    bug of the calling program. `torch.nn.MultiheadAttention` raises AssertionError for some of these and RuntimeError
    for others. This class derives from both, so code that catches either keeps working.

    >>> from glassformer import MultiheadAttention
    >>> MultiheadAttention(embed_dim=10, num_heads=3)
    Traceback (most recent call last):
        ...
    glassformer.errors.ArgumentError: embed_dim must be a positive multiple of num_heads, got embed_dim 10, num_heads 3
    """


def check_sequence(name: str, lines: object) -> None:
    """Raise ArgumentError unless these are a sequence, and no single text."""
    if isinstance(lines, str):
        raise ArgumentError(f"{name} must be a sequence of lines, got one str: pass [line]")
    if not isinstance(lines, Sequence):
        raise ArgumentError(f"{name} must be a sequence of lines, got {type(lines).__name__}: pass list({name})")


def check_texts(name: str, lines: Sequence[str]) -> None:
    """Raise ArgumentError unless these are a sequence of str."""
    check_sequence(name, lines)
    for i, line in enumerate(lines):
        if not isinstance(line, str):
            raise ArgumentError(f"{name} must be str, got {type(line).__name__} for {name}[{i}]")
