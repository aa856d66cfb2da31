"""The lines of a text file: UTF-8, or UTF-16 with its mark; plain or packed with gzip, bzip2, xz or zstandard."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.errors import DataError, closest_path
from glassformer.memory import in_words, total_memory

PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}
"""First bytes of packed files."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LONGEST_LINE = 1 << 20
"""Most bytes of a line in UTF-8, 1 MiB: some books are shorter. To split a line, sentencepiece takes up to 400 times
its size, and the distance of two lines takes time that grows with the square of theirs."""
LARGEST_WHOLE, TIMES_READ = 1 << 30, 20
"""Most bytes of a file that is held whole, unpacked, and how many times its size reading it takes: 5 for an array of
JSON, 12 for TMX, 22 for PO."""
_BUFFER = 1 << 17
"""Bytes in a buffer: without one, reading lines takes twice as long."""
_CHECKED_AT_ONCE = 1 << 24
"""Bytes of a whole file after which its size is compared with the memory once more."""
_AT_ONCE = 64
"""Lines that are read before their bytes are counted."""
_STEP = 1 << 10
"""Bytes of a zstandard file that are unpacked at a time: one byte may become 32 KiB."""


class RawLines:
    """The lines of a text file as bytes in UTF-8, read many at a time: one by one would take twice as long."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "RawLines":
        with readable(self._path):
            self._packed = self._path.open("rb")
        self._size = max(1, self._path.stat().st_size)
        with readable(self._path):
            self._file = open_lines(self._packed, self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._packed.close()

    def take_bytes(self, size: int) -> list[bytes]:
        """Return further lines until they have `size` bytes together, or what is left."""
        with readable(self._path):
            return self._file.readlines(size)

    def take(self, count: int, size: int) -> list[bytes]:
        """Return `count` further lines, or fewer that have about `size` bytes together, or what is left."""
        lines, taken = list[bytes](), 0
        with readable(self._path):
            while taken < size and (more := list(islice(self._file, min(count - len(lines), _AT_ONCE)))):
                lines += more
                taken += sum(map(len, more))
        return lines

    def count_rest(self) -> int:
        """Read the rest and return how many lines it has."""
        with readable(self._path):
            return sum(1 for _ in self._file)

    def share(self) -> float:
        """Return the share of the file that has been read; 0 of a stream, whose end nobody knows."""
        return min(1.0, self._packed.tell() / self._size) if self._packed.seekable() else 0.0


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file without their ends. Only a newline ends a line."""
    with readable(path), path.open("rb") as packed:
        for number, raw in enumerate(open_lines(packed, path), start=1):
            yield decode_line(raw, number, str(path))


def decode_line(raw: bytes, number: int, name: str) -> str:
    """Return one line as text without its end; `name` and `number` say in the DataError where it stands."""
    if number == 1:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1}); "
            f"{advice_on_encoding(error)}"
        ) from None


def unpacked(file: io.BufferedReader) -> io.BufferedReader:
    """Return the content of an open file, unpacked if it is packed."""
    head = file.peek(6)
    packing = next((name for begins, name in PACKED.items() if head.startswith(begins)), None)
    if packing is None:
        return file
    openers: dict[str, Callable[[Any], Any]] = {
        "gzip": lambda packed: gzip.GzipFile(fileobj=packed),
        "bzip2": bz2.BZ2File,
        "xz": lzma.LZMAFile,
        "zstandard": _open_zstandard,
    }
    return io.BufferedReader(openers[packing](file), _BUFFER)


def open_lines(packed: io.BufferedReader, path: Path, *, returns: bool = False) -> io.BufferedReader:
    """Return the text of an open file, unpacked, as UTF-8; reading raises DataError in a line above LONGEST_LINE.

    With `returns` a carriage return alone ends a line too.
    """
    return io.BufferedReader(_LineLimit(as_utf_8(unpacked(packed)), str(path), returns=returns), _BUFFER)


def too_long(place: str, hint: str = "do its lines end with something else than a newline?") -> DataError:
    """Return the error for a line of more than LONGEST_LINE bytes.

    `place` says where it is, such as a.tsv, line 3. `hint` asks what may be wrong.
    """
    return DataError(f"{place}: it has more than {LONGEST_LINE:,} bytes, the most that a line may have ({hint})")


def read_whole(file: io.BufferedReader, path: Path) -> bytes:
    """Return the rest of an open file; raise DataError where it is too large to be read whole, before it is held."""
    parts, size, checked = list[bytes](), 0, 0
    while part := file.read(_BUFFER):
        parts.append(part)
        size += len(part)
        if size >= checked + _CHECKED_AT_ONCE:  # to ask for the memory takes longer than to read a part
            check_whole(size, path)
            checked = size
    check_whole(size, path)
    return b"".join(parts)


def check_whole(size: int, path: Path) -> None:
    """Raise DataError where a file that can only be read whole has so many bytes, unpacked, that memory won't do."""
    there = total_memory()
    most = LARGEST_WHOLE if there is None else min(LARGEST_WHOLE, there // TIMES_READ)
    if size > most:
        raise DataError(
            f"{path} has more than {in_words(most)}, unpacked, and a file of its kind is held whole: split it, or save "
            "it as lines, TSV or JSON"
        )


def as_utf_8(file: io.BufferedReader) -> io.BufferedReader:
    """Return the text of an open file as UTF-8, which it is unless it begins with the mark of UTF-16."""
    return io.BufferedReader(_Recoded(file), _BUFFER) if file.peek(2).startswith(UTF_16) else file


class _LineLimit(io.RawIOBase):
    """The same bytes, up to a line that is too long."""

    def __init__(self, file: io.BufferedReader, name: str, *, returns: bool) -> None:
        self._file, self._name, self._returns = file, name, returns
        self._ended = self._length = 0  # lines that have ended, and bytes of the one that has not

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read1(min(len(buffer), _BUFFER))
        lines = content.replace(b"\r", b"\n") if self._returns else content
        first = lines.find(b"\n")
        if self._length + (len(lines) if first < 0 else first) > LONGEST_LINE:
            raise too_long(f"{self._name}, line {self._ended + 1}")
        self._ended += content.count(b"\n")
        self._length = self._length + len(lines) if first < 0 else len(lines) - 1 - lines.rfind(b"\n")
        buffer[: len(content)] = content
        return len(content)


class _Recoded(io.RawIOBase):
    """The text of a UTF-16 file as UTF-8."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill half of the buffer or more: two bytes of UTF-16 become three of UTF-8 at most."""
        content = b""
        while not content:
            raw = self._file.read(len(buffer) // 2)
            content = self._decoder.decode(raw, final=not raw).encode()
            if not raw:
                break
        buffer[: len(content)] = content
        return len(content)


class _Zstandard(io.RawIOBase):
    """The content of a zstandard file of one frame or several; EOFError where the last is incomplete."""

    def __init__(self, file: BinaryIO, new_frame: Callable[[], Any]) -> None:
        self._file, self._new_frame = file, new_frame
        self._frame: Any = None
        self._raw = self._content = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what is left of the last step, or with what the next bytes of the file give."""
        while not self._content:
            self._raw = self._raw or self._file.read(_STEP)
            if not self._raw:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or self._new_frame()
            self._content, self._raw = self._frame.decompress(self._raw), b""
            if self._frame.eof:
                self._raw, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        return size


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the errors of opening and reading a file into DataError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file{closest_path(path)}") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, a file was expected") from None
    except PermissionError:
        raise DataError(f"{path}: permission denied") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} begins with the mark of UTF-16 but isn't UTF-16 ({error.reason})") from None
    except (EOFError, lzma.LZMAError, zlib.error, *_zstandard_errors()) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        if error.errno is None:  # gzip and bzip2 say so that the content is wrong
            raise _damaged(path, error) from None
        raise


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is a packed file that is damaged or incomplete ({error}): get it again")


def _zstandard_errors() -> tuple[type[Exception], ...]:
    """Return what a reader of zstandard raises, if one is loaded."""
    module = sys.modules.get("zstandard")
    return () if module is None else (module.ZstdError,)


def _open_zstandard(file: BinaryIO) -> Any:
    """Return a reader of a zstandard file; ImportError, which names the extra, where nothing can read it."""
    try:
        import zstandard
    except ImportError:
        raise ImportError('a zstandard file needs the extra zstd: pip install "glassformer[zstd]"') from None
    return _Zstandard(file, zstandard.ZstdDecompressor().decompressobj)


def advice_on_encoding(error: UnicodeDecodeError) -> str:
    """Return what to do about bytes that aren't UTF-8: how to convert them from the encodings their line may be in."""
    if error.object.startswith(UTF_16):
        return "convert it with iconv -f utf-16 -t utf-8"
    raw = error.object[error.object.rfind(b"\n", 0, error.start) + 1 :].partition(b"\n")[0]
    if b"\0" in raw:
        return "it looks like UTF-16 without its mark: convert it with iconv -f utf-16le -t utf-8"
    likely = [encoding for encoding, is_common in COMMON.items() if _reads_well(raw, encoding, is_common)]
    likely = likely or _likeliest_alphabet(raw)
    if not likely:
        return "convert it from the encoding that it is in, for example with iconv -f windows-1252 -t utf-8"
    named = likely[0] if len(likely) == 1 else "ENCODING"
    return f"it may be {' or '.join(likely)}: convert it with iconv -f {named} -t utf-8"


def _is_common_chinese(character: str) -> bool:
    """Return whether GB 2312 has the character among its 3,755 frequent ones, or its signs."""
    code = character.encode("gb18030")
    return len(code) == 2 and code[1] >= 0xA1 and (0xB0 <= code[0] <= 0xD7 or 0xA1 <= code[0] <= 0xA3)


def _is_common_in_big5(character: str) -> bool:
    """Return whether Big5 has the character among its 5,401 frequent ones, or its signs."""
    code = character.encode("big5", errors="ignore")
    return len(code) == 2 and 0xA1 <= code[0] <= 0xC6


COMMON: Mapping[str, Callable[[str], bool]] = {
    "euc_kr": lambda character: "\uac00" <= character <= "\ud7a3",
    "shift_jis": lambda character: "\u3000" <= character <= "\u30ff",  # kana and signs, half of a text at least
    "gb18030": _is_common_chinese,
    "big5": _is_common_in_big5,
}
"""Encodings in which text isn't UTF-8, and whether a character is a common one in text of that encoding."""
SHARES = {"euc_kr": 0.95, "shift_jis": 0.4, "gb18030": 0.95, "big5": 0.95}
"""Share of the characters beyond ASCII that are common ones in a text, at the least."""


ALPHABETS: Mapping[str, str] = {
    **dict.fromkeys(("windows-1251", "koi8-r"), "оеаинтсрвл"),
    "windows-1253": "αοιετσνηυρ",
    "windows-1255": "יוהלאמרתבנ",
}
"""Encodings of one byte a letter, and the most frequent letters of what is written in them."""


def _likeliest_alphabet(raw: bytes) -> list[str]:
    """Return the encoding of one byte a letter in which the text is mostly frequent letters, or nothing.

    Words must be of such letters, not only a letter here and there as in French.
    """
    shares: dict[str, float] = {}
    for encoding, frequent in ALPHABETS.items():
        text = raw.decode(encoding, errors="replace")
        if "\ufffd" not in text and re.search(r"[^\W\d_a-zA-Z]{3}", text):
            beyond = [character for character in text if not character.isascii()]
            shares[encoding] = sum(character in frequent for character in beyond) / len(beyond)
    best = max(shares, key=shares.__getitem__, default="")
    return [best] if shares.get(best, 0.0) >= 0.4 else []


def _reads_well(raw: bytes, encoding: str, is_common: Callable[[str], bool]) -> bool:
    """Return whether the bytes beyond ASCII read as text of this encoding; the last character may be cut."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(raw)
    except UnicodeDecodeError:
        return False
    beyond = [character for character in text if not character.isascii()]
    return len(beyond) > 1 and sum(map(is_common, beyond)) >= SHARES[encoding] * len(beyond)
