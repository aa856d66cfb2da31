"""Requests that nobody should send, made from a seed; how they are sent, and what is wrong with what comes back."""

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from service import DEADLINE, GOOD, HOST, KEEP_ALIVE, SLOW, head, post

SECRET = "xyzzyplugh"
"""Stands in all texts, paths and header fields that are sent."""
LIMIT = DEADLINE + SLOW + KEEP_ALIVE + 4.0
"""Seconds after which a connection must have been answered or closed, on a busy machine too."""
PATHS = ("/translate", "/v1/translate", "/v1/translate/stream", "/v1/alternatives")


@dataclass
class Case:
    """What is sent over a connection, and how it ends."""

    parts: list[bytes | float]
    """Bytes to send, and seconds to wait."""
    end: str = "read"
    """read until it is closed; drop it; reset it; half: close the sender's half, and read; deaf: read nothing."""
    whole: bool = True
    """It is a request with an end, or can't become one, so that an answer must come."""
    statuses: tuple[int, ...] = ()
    """What it must be answered with; left out: anything but 5xx, 501 and 503 apart."""


def asked(path: str, **changes: Any) -> dict[str, Any]:
    """Return the JSON of a good request, with changes."""
    few = GOOD | ({"max_length": 8} if path in PATHS[1:3] else {})
    return few | changes


def text(rng: random.Random, length: int) -> str:
    """Return a line of about so many characters, with the secret word in it."""
    words = ["the", "cat", "sat", "on", "a", SECRET]
    made = SECRET
    while len(made) < length:
        made += " " + rng.choice(words)
    return made[:length]


def sizes(rng: random.Random) -> Case:
    """Make a body about a limit, or one whose length is a lie."""
    path = rng.choice(PATHS[:2])
    which = rng.randrange(8)
    if which == 0:
        return Case(
            [post(path, json.dumps(asked(path, q=text(rng, 5000 + rng.randint(1, 3)))).encode())], statuses=(400,)
        )
    if which == 1:
        many = [text(rng, 12)] * (128 + rng.randint(1, 9000))
        return Case([post(path, json.dumps(asked(path, q=many)).encode())], statuses=(400,))
    if which == 2:
        many = [text(rng, 5000)] * rng.randint(11, 100)
        return Case([post(path, json.dumps(asked(path, q=many)).encode())], statuses=(400,))
    if which == 3:
        body = b" " * ((1 << 20) + rng.randint(1, 1000))
        return Case([post(path, body)], statuses=(413,))
    if which == 4:
        return Case([head("POST", path, length=rng.choice((1 << 21, 1 << 40, 10**15, 10**19))) + b"{"], statuses=(413,))
    if which == 5:
        return Case([head("POST", path, length=rng.randint(100, 1000)) + SECRET.encode()], statuses=(408,))
    if which == 6:
        chunks = [b"%x\r\n" % (1 << 16) + b" " * (1 << 16) + b"\r\n" for _ in range(rng.randint(17, 40))]
        return Case([head("POST", path, b"Transfer-Encoding: chunked\r\n"), *chunks], statuses=(413,))
    number = rng.choice(("1" + "0" * rng.randint(5, 200_000), "1e" + "9" * rng.randint(3, 400)))
    return Case([post(path, json.dumps(asked(path)).encode().replace(b'"en"', number.encode()))], statuses=(400,))


def types(rng: random.Random) -> Case:
    """Make JSON whose fields hold what they may not."""
    path = rng.choice(PATHS)
    names = ["q", "source", "target", "format", "alternatives", "api_key", "beam", "n_best", "max_length", "prefixes"]
    names += ["scores", "confidence", "attention", "run", "prefix", "count", "length_penalty", "unknown", "__class__"]
    names += ["glossary", "placeholders"]
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        1 << 70,
        1.5,
        -0.0,
        "",
        SECRET,
        [],
        {},
        [SECRET],
        {SECRET[:3]: SECRET},
        [[]],
    ]
    values += [[None], [1, "a"], "5", {"stacks": [SECRET]}, {"layers": [99]}, {"layers": [-1]}, {"top": 1 << 40}]
    values += [[{"source": SECRET}], [{"source": SECRET, "target": [SECRET, ""]}], [{"source": SECRET[:3]}] * 101]
    values += [{"facts": ["weights"] * 500}, ["\0"], "a\nb", "\u2028", [""] * 100, 11, 256, 257, 10**9]
    body = asked(path)
    for name in rng.sample(names, rng.randint(1, 4)):
        body[name] = rng.choice(values)
    if rng.random() < 0.2:
        return Case([post(path, json.dumps(rng.choice(values)).encode())])
    raw = json.dumps(body)
    if rng.random() < 0.2:
        raw = raw.replace('"en"', rng.choice(("NaN", "-Infinity", "1E400", "nul", '"en","q":"twice"', "'en'", "0x10")))
    return Case([post(path, raw.encode())])


def encodings(rng: random.Random) -> Case:
    """Make bodies that aren't UTF-8, are packed, or are not of the kind that they say."""
    path = rng.choice(PATHS)
    good = json.dumps(asked(path, q=text(rng, 40)))
    form = f"q={SECRET}&source=en&target=de"
    options: list[Callable[[], Case]] = [
        lambda: Case([post(path, good.encode(rng.choice(("utf-16", "utf-32", "utf-7", "utf-8-sig"))))]),
        lambda: Case([post(path, good.encode(), fields=b"Content-Encoding: gzip\r\n")], statuses=(415,)),
        lambda: Case([post(path, good.encode() + rng.randbytes(20))]),
        lambda: Case([post(path, good.replace(SECRET, "\\ud800" + SECRET, 1).encode())], statuses=(400,)),
        lambda: Case([post(path, good.replace(SECRET, SECRET + "\\u0000\\ufffe\\u202e", 1).encode())]),
        lambda: Case([post(path, good.encode().replace(b"xyzzy", b"\xc0\xafxyzzy", 1))], statuses=(400,)),
        lambda: Case([post(path, good.encode(), rng.choice(("text/plain", "application/xml", "", "é", "a" * 3000)))]),
        lambda: Case([post("/translate", form.encode() + b"%ff%00%zz&=&&" + rng.randbytes(9), FORM)]),
        lambda: Case([post("/translate", (form + "&q=2" * rng.randint(1, 5000)).encode(), FORM)], statuses=(400,)),
        lambda: Case([post("/translate", multipart(rng), f"multipart/form-data; boundary={rng.choice(BOUNDARIES)}")]),
        lambda: Case([post("/v1/jobs", multipart(rng), "multipart/form-data; boundary=x")]),
        lambda: Case([post(path, rng.randbytes(rng.randint(0, 3000)), rng.choice(("application/json", FORM)))]),
    ]
    return rng.choice(options)()


FORM = "application/x-www-form-urlencoded"
BOUNDARIES = ("x", "", "x" * 300, "x; boundary=y", '"x', "\x00")


def multipart(rng: random.Random) -> bytes:
    """Return a form in parts, in which something may be wrong."""
    file = rng.choice((f"{SECRET}\n" * 3, TMX, BOMB, "\0" * 100, "<tmx>" * 2000)).encode()
    names = ("a.txt", "../../etc/passwd", "a.tmx", "C:\\a.tmx", "x" * 5000 + ".tmx", "\u202e.tmx", "")
    name = rng.choice((*names, "a.xlf", "a.po", "a.srt", "a.vtt", "a.json", "a.html"))
    parts = [b'--x\r\nContent-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n\r\n' + file]
    parts += [b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\nen' % n for n in (b"source", b"target", b"q")]
    made = b"\r\n".join(parts) + b"\r\n--x--\r\n"
    if rng.random() < 0.5:
        start = rng.randrange(len(made))
        made = (
            made[:start] + rng.choice((b"", b"\0", b"\r\n--x", rng.randbytes(8))) + made[start + rng.randint(0, 30) :]
        )
    return made


TMX = f'<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>{SECRET}</seg></tuv></tu></body></tmx>'
BOMB = "<!DOCTYPE a [<!ENTITY a 'aaaaaaaa'>" + "".join(
    f"<!ENTITY {b} '&{a};&{a};&{a};&{a};&{a};&{a};&{a};&{a};'>" for a, b in zip("abcdefg", "bcdefgh", strict=True)
) + "]><tmx><body><tu><tuv xml:lang='en'><seg>&h;</seg></tuv></tu></body></tmx>"  # fmt: skip


def depth(rng: random.Random) -> Case:
    """Make JSON or HTML of many levels."""
    path = rng.choice(PATHS)
    deep = rng.choice((9, 100, 1000, 10_000, 200_000))
    opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"q":', "}]")))
    nest = opened * deep + ("0" if opened[-1] == ":" else "") + (closed * deep if rng.random() < 0.7 else "")
    if rng.random() < 0.3:
        tags = rng.choice(("<b>", "<b", "<!--", "<![CDATA[", "</p>", "<a b='", "&amp", "&#", "<script>", "<?"))
        html = (tags * 10_000)[:4990]
        return Case([post("/translate", json.dumps(asked("/translate", q=html, format="html")).encode())])
    field = rng.choice(("q", "attention", "prefixes", "api_key"))
    body = json.dumps(asked(path, **{field: "HERE"})).replace('"HERE"', nest)
    return Case([post(path, rng.choice((body, nest)).encode()[: 1 << 20])], statuses=(400,))


def slow(rng: random.Random) -> Case:
    """Send a request so slowly that it must be given up, or in small pieces that still come in time."""
    whole = post("/v1/translate", json.dumps(asked("/v1/translate", q=text(rng, 30))).encode(), fields=b"X: 1\r\n")
    cuts = sorted(rng.sample(range(1, len(whole)), rng.randint(3, 12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    if rng.random() < 0.4:
        pause = 0.3 / len(pieces)
        return Case([one for piece in pieces for one in (piece, pause)], statuses=(200,))
    place = rng.randint(1, len(pieces) - 2)  # the last piece never comes
    dribble = [one for byte in pieces[place][:40] for one in (bytes([byte]), 0.25)][:24]
    return Case([*pieces[:place], *dribble], end=rng.choice(("read", "read", "deaf")), statuses=(408,))


def dropped(rng: random.Random) -> Case:
    """Leave in the middle of a request, or before its answer."""
    path = rng.choice(PATHS)
    changes = {"q": [text(rng, 60)] * 8, "beam": 10} if path == "/v1/translate" else {"q": text(rng, 60)}
    whole = post(path, json.dumps(asked(path, **changes)).encode())
    sent = whole if rng.random() < 0.5 else whole[: rng.randrange(1, len(whole))]
    return Case([sent, rng.choice((0.0, 0.001, 0.02, 0.1))], end=rng.choice(("drop", "reset", "half")), whole=False)


def flood(rng: random.Random) -> Case:
    """Make header fields that are many, long, twice, or not what they should be."""
    which = rng.randrange(9)
    body = json.dumps(asked("/translate", q=text(rng, 20))).encode()
    secret = SECRET.encode()
    if which == 0:
        return Case(
            [head("GET", "/languages", b"".join(b"X%d: 1\r\n" % n for n in range(rng.randint(101, 2000))))],
            statuses=(431,),
        )
    if which == 1:
        return Case([head("GET", "/languages", b"X: " + secret * rng.randint(850, 20_000) + b"\r\n")], statuses=(431,))
    if which == 2:
        field = rng.choice(
            (b"Host: a\r\n", b"Content-Type: text/plain\r\n", b"Content-Length: 5\r\n", b"Content-Length: +5\r\n")
        )
        return Case([post("/translate", body, fields=field)], statuses=(400,))
    if which == 3:
        fields = b"Transfer-Encoding: " + rng.choice(
            (b"chunked, gzip", b"gzip", b"xchunked", b"chunked\r\nTransfer-Encoding: chunked")
        )
        return Case([head("POST", "/translate", fields + b"\r\n") + b"0\r\n\r\n"])
    if which == 4:
        name = rng.choice(
            (b"X y: 1", b": 1", b"X\x00: 1", b"X: \x00", b"X: 1\r\n  folded", b"X: \x7f\xff", b"\xc3\xa9: 1")
        )
        return Case([head("GET", "/languages", name + secret + b"\r\n")])
    if which == 5:
        host = rng.choice((b"evil.example", b"localhost:80@evil", b"localhost\x00", b"[::1", b"127.1.evil", b"a" * 300))
        return Case([b"GET /languages HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"], statuses=(400, 403))
    if which == 6:
        fields = rng.choice(
            (
                b"Origin: http://evil\r\n",
                b"Origin: null\r\n",
                b"Sec-Fetch-Site: cross-site\r\n",
                b"Origin: http://[\r\n",
            )
        )
        return Case([post("/translate", body, fields=fields)], statuses=(400, 403))
    if which == 7:
        fields = (
            b"Authorization: "
            + rng.choice((b"Bearer " + secret, b"Basic ====", b"Basic " + b"A" * 7000, b"\xff"))
            + b"\r\n"
        )
        return Case([post("/translate", body, fields=fields)])
    size = rng.choice((b"zz", b"-1", b"0x5", b"f" * 30, b"5;" + b"x" * 9000, b""))
    return Case(
        [head("POST", "/translate", b"Transfer-Encoding: chunked\r\n") + size + b"\r\n" + body], whole=size != b"f" * 30
    )


def paths(rng: random.Random) -> Case:
    """Ask for what isn't there, in ways that may lead elsewhere."""
    tricks = ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/x/../../../app.py", "/static/x/serve/app.py"]
    tricks += [
        "/static/x/..%2f..%2fconfig.json",
        "/static//etc/passwd",
        "//health/live",
        "/health/live/",
        "/./translate",
    ]
    tricks += [
        "/translate%00",
        "/translate;a=b",
        "/TRANSLATE",
        "/v1/jobs/../runs",
        "/v1/jobs/%2e%2e",
        "/v1/jobs/" + "a" * 4000,
    ]
    tricks += [
        "/static/%252e%252e/x",
        "/\\..\\..\\x",
        "/v1//translate",
        "*",
        "http://evil.example/",
        "/?" + "a=1&" * 5000,
    ]
    tricks += [
        "/languages?" + SECRET,
        f"/{SECRET}",
        "/%ff%fe",
        "/%",
        "/static/x/serve/web/",
        "/metrics/..",
        "/docs/../openapi.json",
    ]
    method = rng.choice(
        ("GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "G" * 100, "get")
    )
    path = rng.choice(tricks)
    if rng.random() < 0.3:
        path += "/" + "".join(rng.choice("./%2fe\\;:@&=+$,~*'()") for _ in range(rng.randint(1, 60)))
    return Case([head(method, path, b"Connection: close\r\n", length=0)])


def lines(rng: random.Random) -> Case:
    """Make text that is allowed, and that tokenizers and searches don't like."""
    path = rng.choice(PATHS)
    signs = [
        "\u0301" * 300,
        "\U0001f468\u200d\U0001f469" * 60,
        "\u202e" * 50,
        "\u00a0\u3000\u2028",
        "\ufeff",
        "a" * 4000,
        "1" * 3000,
    ]
    signs += [
        "\U0010ffff" * 40,
        "▁" * 500,
        "<unk><pad></s>",
        ">>de<<",
        "\t \v\f",
        "\u0085",
        "ﷺ" * 500,
        "ß" * 700,
        "%s{}" * 100,
    ]
    changes: dict[str, Any] = {"q": SECRET + " " + rng.choice(signs) + rng.choice(signs)[:500]}
    if path == "/v1/translate":
        changes |= {"beam": rng.choice((1, 10)), "max_length": rng.choice((1, 8)), "scores": True, "confidence": True}
        changes |= rng.choice(({}, {"attention": {}}, {"prefixes": [SECRET]}, {"prefixes": [["▁the", "nothing"]]}))
    if path == "/v1/alternatives":
        changes |= {"prefix": rng.choice(([], ["▁"], ["</s>"], [""] * 50, [SECRET]))}
    return Case([post(path, json.dumps(asked(path, **changes)).encode())], statuses=(200, 400))


def pipes(rng: random.Random) -> Case:
    """Send several requests at once, or what is another protocol."""
    which = rng.randrange(5)
    if which == 0:
        one = head("GET", rng.choice(("/languages", "/openapi.json", "/", "/metrics")))
        return Case([one * rng.randint(2, 300)], end=rng.choice(("read", "deaf", "drop")), whole=False)
    if which == 1:
        return Case([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(40)])
    if which == 2:
        return Case([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500)], whole=False)
    if which == 3:
        return Case(
            [
                rng.choice(
                    (b"GET /\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", b"\r\n" * 500)
                )
            ],
            whole=False,
        )
    one = post("/translate", json.dumps(asked("/translate")).encode())
    return Case([one + one + head("GET", "/languages", b"Connection: close\r\n")], statuses=(200,))


def flipped(rng: random.Random) -> Case:
    """Change bytes of a good request."""
    path = rng.choice(PATHS)
    made = bytearray(post(path, json.dumps(asked(path, q=text(rng, 20))).encode(), fields=b"Connection: close\r\n"))
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(made))
        change = rng.randrange(3)
        if change == 0:
            made[place] = rng.randrange(256)
        elif change == 1:
            del made[place : place + rng.randint(1, 8)]
        else:
            made[place:place] = rng.choice((b"\r\n", b"\0", b"\n", rng.randbytes(3), made[:place][-20:]))
    return Case([bytes(made)], whole=False)


KINDS: dict[str, Callable[[random.Random], Case]] = {
    one.__name__: one for one in (sizes, types, encodings, depth, slow, dropped, flood, paths, lines, pipes, flipped)
}


def make(seed: int, number: int) -> tuple[str, Case]:
    """Return the kind of the case of this number, and the case."""
    kind = list(KINDS)[number % len(KINDS)]
    return kind, KINDS[kind](random.Random(f"{seed} {number}"))


# How they are sent


@dataclass
class Outcome:
    """What came of a case."""

    received: bytes
    seconds: float
    hung: bool = False

    @property
    def status(self) -> int:
        """The status of the first answer; 0 where there was none."""
        return int(self.received[9:12]) if self.received[9:12].isdigit() else 0


async def send(port: int, case: Case) -> Outcome:
    """Send a case over a connection of its own, and return what came back."""
    began = time.monotonic()
    got = bytearray()
    try:
        async with asyncio.timeout(LIMIT):
            await _talk(port, case, got)
    except TimeoutError:
        return Outcome(bytes(got), time.monotonic() - began, hung=True)
    except ConnectionError:
        pass  # the server closed it while more was sent
    return Outcome(bytes(got), time.monotonic() - began)


async def _talk(port: int, case: Case, got: bytearray) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    connection = writer.get_extra_info("socket")
    reading = asyncio.create_task(_read(reader, got)) if case.end != "deaf" else None
    try:
        for part in case.parts:
            if writer.is_closing() or (reading and reading.done()):
                break
            if isinstance(part, bytes):
                writer.write(part)
                with suppress(ConnectionError):
                    await writer.drain()
            else:
                await asyncio.sleep(part)
        if case.end == "half":
            writer.write_eof()
        if case.end == "deaf":
            await asyncio.sleep(SLOW + 0.5)
        elif case.end in ("read", "half") and reading:
            await reading
        if case.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    finally:
        if reading:
            reading.cancel()
        writer.close()


async def _read(reader: asyncio.StreamReader, got: bytearray) -> None:
    """Read until the server closes the connection, which it does `KEEP_ALIVE` seconds after its last answer."""
    with suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            got += part


def judge(case: Case, outcome: Outcome) -> str | None:
    """Return what is wrong with what came of a case."""
    if outcome.hung:
        return f"it hung for {LIMIT:g} s, after {bytes(outcome.received[:100])!r}"
    if not outcome.received:
        needs = case.whole and case.end == "read"
        return "there was no answer" if needs else None
    first, _, body = outcome.received.partition(b"\r\n\r\n")
    status = outcome.status
    if not status or not first.startswith(b"HTTP/1.1 "):
        return f"the answer is none: {first[:80]!r}"
    if status >= 500 and status not in (501, 503):  # 501: a transfer coding that HTTP/1.1 lets a server refuse
        return f"status {status}"
    if case.statuses and case.end == "read" and status not in case.statuses:
        return f"status {status} in place of {case.statuses}: {body[:200]!r}"
    if status >= 400:
        if SECRET.encode() in outcome.received.lower():
            return f"text came back with status {status}: {body[:200]!r}"
        is_head = b"content-length: 0" in first.lower() or not body
        if not is_head:
            with suppress(ValueError):  # several answers in a row are not looked at
                if set(json.loads(body)) != {"error", "code"}:
                    return f"an error of another form: {body[:200]!r}"
    return None


def shown(case: Case) -> str:
    """Return the beginning of what is sent."""
    return repr(b"".join(part for part in case.parts if isinstance(part, bytes))[:300])
