"""Servers that do what none may, to see that it is reported: prints a line for each, its name and the verdict."""

import asyncio

import hostile
from hostile import SECRET, Case, judge, send
from service import head

ERROR = b'{"error": "there is no such route", "code": "not_found"}'


def answer(status: int, body: bytes) -> bytes:
    """Return an answer."""
    return b"HTTP/1.1 %d \r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


PLANTED: dict[str, bytes | None] = {
    "nothing": answer(404, ERROR),
    "another status": answer(200, b"{}"),
    "an error of the server": answer(500, ERROR),
    "text in an error": answer(404, ERROR.replace(b"route", SECRET.encode())),
    "an error of another form": answer(404, b'{"detail": "Not Found"}'),
    "no answer": b"",
    "no HTTP": b"hello\r\n\r\n",
    "a hang": None,
}
"""What comes back; None where nothing does, and the connection stays open."""


async def verdict(back: bytes | None) -> str | None:
    """Return what is said of a server that sends this back."""
    ended = asyncio.Event()

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if back is None:
            await ended.wait()
        writer.write(back or b"")
        writer.close()

    case = Case([head("GET", "/nothing")], statuses=(404,))
    async with await asyncio.start_server(act, "127.0.0.1", 0) as server:
        said = judge(case, await send(server.sockets[0].getsockname()[1], case))
        ended.set()
    return said


def main() -> None:
    """Print a line for each."""
    hostile.LIMIT = 0.5
    for name, back in PLANTED.items():
        print(name, asyncio.run(verdict(back)), sep="\t")


if __name__ == "__main__":
    main()
