"""A case: a command and the files that stand in place of the samples'; kept as a small file if it failed."""

import base64
import hashlib
import json
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutations import Special

KEPT = Path(__file__).parent / "cases"
"""Where cases are kept that failed once."""
LONGEST = 2000
"""Most characters of a text that a kept case holds as it is; more is packed."""
LARGEST = 1 << 16
"""Most bytes of a kept case: a larger one is told by its command alone."""

Content = bytes | Special


@dataclass(frozen=True)
class Case:
    """A command, run in a folder of samples."""

    target: str
    """What is tried: a file that is read, or a command."""
    command: tuple[str, ...]
    """The arguments of the command line, or the name of a function of `readers.CALLS` and its arguments."""
    files: Mapping[str, Content] = field(default_factory=dict)
    """What stands at these paths in place of a sample."""
    needs: tuple[str, ...] = ()
    """Samples that it needs beside those that the command names."""
    writes: tuple[str, ...] = ()
    """Patterns of the paths that the command may change where it succeeds."""
    stdin: bytes = b""

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def name(self) -> str:
        """A name that only this case has."""
        stem = "".join(letter if letter.isalnum() else "-" for letter in self.target).strip("-")
        return f"{stem}-{hashlib.blake2b(self.to_json(), digest_size=4).hexdigest()}"

    @property
    def line(self) -> str:
        """The command as a shell takes it, cut to a line."""
        return shlex.join(word if len(word) <= 60 else word[:57] + "..." for word in self.command)

    def to_json(self) -> bytes:
        """Return the content of the file that keeps the case."""
        values = {
            "target": self.target,
            "command": [_encode(word.encode(errors="surrogateescape")) for word in self.command],
            "files": {path: _encode(content) for path, content in self.files.items()},
            "needs": self.needs,
            "writes": self.writes,
            "stdin": _encode(self.stdin),
        }
        return (json.dumps(values, indent=1) + "\n").encode()

    def keep(self) -> Path | None:
        """Write the case beside those that failed before; return its path, or None where it is too large."""
        content = self.to_json()
        if len(content) > LARGEST:
            return None
        KEPT.mkdir(exist_ok=True)
        path = KEPT / f"{self.name}.json"
        path.write_bytes(content)
        return path


def read_case(path: Path) -> Case:
    """Read a kept case."""
    values = json.loads(path.read_bytes())
    command = tuple(_decode(word) for word in values["command"])
    files = {path: _decode(content) for path, content in values["files"].items()}
    return Case(
        target=values["target"],
        command=tuple(word.decode(errors="surrogateescape") for word in command if isinstance(word, bytes)),
        files=files,
        needs=tuple(values["needs"]),
        writes=tuple(values["writes"]),
        stdin=bytes(_decode(values["stdin"])),
    )


def _encode(content: Content) -> Any:
    """Return a content as JSON: text as it is, other bytes packed, what is no file by its name."""
    if isinstance(content, Special):
        return {"special": content.value}
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if len(content) <= LONGEST and (text or not content):
        return text
    return {"packed": base64.b85encode(zlib.compress(content, 9)).decode()}


def _decode(value: Any) -> Content:
    if isinstance(value, str):
        return value.encode()
    return Special(value["special"]) if "special" in value else zlib.decompress(base64.b85decode(value["packed"]))
