"""A server in a process of its own, and requests to it that are in order."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLOW, DEADLINE, KEEP_ALIVE = 1.5, 8.0, 1.0
"""The server's seconds for slow senders, for a translation, and between two requests."""
LENGTH = 40
"""Longest translation: that of a random model always is."""
HOST = b"Host: localhost\r\n"
GOOD: dict[str, Any] = {"q": "the cat sat on the mat", "source": "en", "target": "de"}


def head(method: str, path: str, fields: bytes = b"", length: int | None = None) -> bytes:
    """Return a request without its body."""
    sized = b"" if length is None else b"Content-Length: %d\r\n" % length
    return method.encode() + b" " + path.encode() + b" HTTP/1.1\r\n" + HOST + fields + sized + b"\r\n"


def post(path: str, body: bytes, kind: str = "application/json", fields: bytes = b"") -> bytes:
    """Return a request with a body."""
    return head("POST", path, b"Content-Type: " + kind.encode("utf-8", "replace") + b"\r\n" + fields, len(body)) + body


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: list[bytes] = field(default_factory=list)

    @property
    def said(self) -> str:
        """What stands in its log."""
        return b"".join(self.log).decode(errors="replace")

    def children(self) -> list[int]:
        """Return the processes that it has started."""
        return [
            int(child)
            for thread in Path(f"/proc/{self.process.pid}/task").iterdir()
            for child in (thread / "children").read_text(encoding="utf-8").split()
        ]

    def files(self) -> int:
        """Return how many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def served(run: Path, *flags: str) -> Iterator[Served]:
    """Start `glassformer serve`, and wait until it is ready; kill what is left of it in the end."""
    command = [sys.executable, "-W", "ignore", "-m", "glassformer", "serve", str(run), "--port", "0"]
    command += ["--workers", "1", "--threads", "1", "--precision", "float32", "--share-batches"]
    command += ["--max-chars-per-minute", "0", "--max-length", str(LENGTH)]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        made = Served(process, int(process.stdout.readline().rsplit(b":", 1)[1]))
        while (line := process.stderr.readline()) and line.strip() != b"ready":
            made.log.append(line)
        stderr = process.stderr
        reading = threading.Thread(target=lambda: made.log.extend(stderr), daemon=True)
        reading.start()
        yield made
        process.kill()
        process.wait()
        reading.join(10)
    finally:
        process.kill()
        process.communicate()


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Return status and body of a request that is in order."""
    return await exchange(port, head("GET", path, b"Connection: close\r\n"))


async def translate(port: int) -> tuple[int, bytes]:
    """Return status and body of a translation."""
    return await exchange(port, post("/translate", json.dumps(GOOD).encode(), fields=b"Connection: close\r\n"))


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """Send a request over a connection of its own, and return status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    status, body, _ = await read_answer(reader)
    writer.close()
    return status, body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return status and body of an answer, and whether the server closes the connection after it.

    IncompleteReadError, where the connection ends before that.
    """
    first = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(first.split(b"content-length:")[1].split(b"\r\n")[0])
    return int(first.split(b" ")[1]), await reader.readexactly(length), b"connection: close" in first
