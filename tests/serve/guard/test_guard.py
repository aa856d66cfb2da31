"""What a request must be like before it reaches a route: each limit, each refusal, each header."""

import asyncio
import base64
import json
import logging
import time

import pytest

from glassformer.serve.guard.credentials import given_key
from glassformer.serve.guard.paths import LIBRE
from glassformer.serve.guard.sending import SAFETY
from glassformer.serve.keys import add_key

ASK = {"q": "the cat", "source": "en", "target": "de"}


def refused(reply, status: int, code: str) -> str:
    assert (reply.status, reply.json["code"]) == (status, code), reply
    assert set(reply.json) == {"error", "code"}
    return reply.json["error"]


def test_a_request_that_is_in_order_is_answered_with_the_headers_of_safety(client):
    reply = client()("POST", "/translate", ASK)
    assert (reply.status, reply.json) == (200, {"translatedText": "THE CAT"})
    assert SAFETY.items() <= reply.headers.items()
    assert "access-control-allow-origin" not in reply.headers
    assert len(reply.headers["x-request-id"]) == 12


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        *[(host, True) for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "192.168.0.7")],
        *[("translate.example.org", True), ("evil.example.org", False), ("", False), ("localhost.evil.org", False)],
        *[("translate.example.org:443", True), ("1.2.3.4.evil.org", False), ("localhost:80@evil.org", False)],
    ],
)
def test_only_names_that_are_allowed_reach_it(client, host, allowed):
    reply = client(allow_host=("translate.example.org",))("GET", "/languages", host=host)
    if allowed:
        assert reply.status == 200
    else:
        assert "--allow-host" in refused(reply, 403, "forbidden")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://localhost:8000"}, True),
        ({"origin": "https://localhost:8000"}, True),  # behind a proxy that speaks TLS
        ({"origin": "https://page.example.org"}, True),
        ({"origin": "https://evil.example.org"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://["}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-origin"}, True),
    ],
)
def test_pages_of_other_sites_may_not_use_it(client, headers, allowed):
    reply = client(cors_origin=("https://page.example.org",))("POST", "/translate", ASK, **headers)
    if allowed:
        assert reply.status == 200
    else:
        refused(reply, 403, "forbidden")


def test_an_origin_may_be_written_as_people_write_it(client):
    asks = client(cors_origin=("https://Page.Example.org:443", "http://other.example.org:8080"))
    for origin in ("https://page.example.org", "http://other.example.org:8080"):
        assert asks("POST", "/translate", ASK, origin=origin).status == 200
    refused(asks("POST", "/translate", ASK, origin="http://other.example.org"), 403, "forbidden")


def test_a_page_that_is_allowed_may_ask_before_it_sends(client):
    asks = client(cors_origin=("https://page.example.org",))
    reply = asks("OPTIONS", "/translate", origin="https://page.example.org", access_control_request_method="POST")
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == "https://page.example.org"
    assert asks("OPTIONS", "/translate", origin="https://evil.example.org").status == 403
    assert client()("OPTIONS", "/translate", origin="https://page.example.org").status == 403


def test_a_body_is_counted_as_it_arrives(client):
    asks = client(max_body_bytes=100)
    parts = [b"x" * 40, b"x" * 40, b"x" * 40, b"never asked for"]
    assert "at most 100 bytes" in refused(asks("POST", "/translate", parts=parts), 413, "too_large")
    told = asks("POST", "/translate", b"x", content_length="101")
    refused(told, 413, "too_large")
    refused(asks("POST", "/translate", b"x", content_length="9" * 20), 413, "too_large")
    fits = b'{"q":"a","source":"en","target":"de"}'
    assert asks("POST", "/translate", parts=[fits[:9], b"", fits[9:]], content_type="application/json").status == 200


def test_packed_bodies_are_refused(client):
    for encoding in ("gzip", "br", "GZIP, identity"):
        reply = client()("POST", "/translate", ASK, content_encoding=encoding)
        assert "without Content-Encoding" in refused(reply, 415, "encoding")


def test_header_fields_are_few_and_short(client):
    asks = client(max_headers=5, max_header_bytes=256)
    refused(asks("GET", "/languages", **{f"x{n}": "1" for n in range(5)}), 431, "headers")
    refused(asks("GET", "/languages", x="1" * 257), 431, "headers")
    assert client(max_headers=6)("GET", "/languages", **{f"x{n}": "1" for n in range(5)}).status == 200


def test_a_slow_body_is_given_up(client):
    async def slowly() -> None:
        asks = client(slow_seconds=0.05)

        async def receive() -> dict:
            await asyncio.sleep(0.03)
            return {"type": "http.request", "body": b"x", "more_body": True}

        sent = []

        async def send(message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [(b"host", b"localhost")]}
        began = time.monotonic()
        await asks.server.guard(scope, receive, send)
        assert sent[0]["status"] == 408
        assert time.monotonic() - began < 5

    asyncio.run(slowly())


def test_a_client_that_does_not_read_is_given_up(client, caplog):
    async def unread() -> None:
        asks = client(slow_seconds=0.05)

        async def receive() -> dict:
            return {"type": "http.request", "body": b"", "more_body": False}

        tried = []

        async def send(message) -> None:
            tried.append(message["type"])
            await asyncio.sleep(60)

        scope = {"type": "http", "method": "GET", "path": "/languages", "headers": [(b"host", b"localhost")]}
        scope |= {"query_string": b"", "root_path": "", "raw_path": b"/languages"}
        waiting = asyncio.Event()

        async def receive_then_wait() -> dict:
            if waiting.is_set():
                await asyncio.sleep(60)
            waiting.set()
            return await receive()

        began = time.monotonic()
        await asyncio.wait_for(asks.server.guard(scope, receive_then_wait, send), 5)
        assert 0.05 <= time.monotonic() - began < 5
        assert tried == ["http.response.start"], "nothing more is sent to it"
        assert asks.server.guard.working == 0

    asyncio.run(unread())


def test_a_client_that_leaves_ends_its_work(client):
    async def leave() -> None:
        asks = client()
        asks.pool.gate = asyncio.Event()
        leaving = asyncio.Event()
        body = b'{"q": "the cat", "source": "en", "target": "de"}'
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict:
            if parts:
                return parts.pop()
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message) -> None:
            raise AssertionError("nobody listens")

        scope = {"type": "http", "method": "POST", "path": "/translate", "query_string": b"", "root_path": ""}
        scope |= {"headers": [(b"host", b"localhost"), (b"content-type", b"application/json")]}
        answering = asyncio.create_task(asks.server.guard(scope, receive, send))
        while not asks.pool.asked:
            await asyncio.sleep(0.001)
        assert asks.server.guard.working == 1
        leaving.set()
        await asyncio.wait_for(answering, 5)
        assert asks.pool.left == 1
        assert asks.server.guard.working == 0

    asyncio.run(leave())


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{key}".encode()).decode()


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.json"
    return path, add_key(path, "alice")


READ = [
    *("/static/x/serve/web/main.js", "/languages", "/health", "/health/ready", "/metrics", "/docs/", "/openapi.json"),
    *("/v1/runs", "/v1/jobs/1", "/frontend/settings", "/nothing", "/health/live/", "//health/live", "/sign-in/", "//"),
]
POSTED = [
    *("/translate", "/detect", "/v1/translate", "/v1/translate/stream", "/v1/alternatives", "/v1/jobs", "/static/"),
]
ROUTES = [
    *(("GET", path) for path in READ),
    *(("POST", path) for path in POSTED),
    *(("DELETE", "/v1/jobs/1"), ("OPTIONS", "/translate")),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_but_liveness_needs_a_key(client, keys, method, path):
    asks = client(keys=keys[0])
    for given in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": basic("wrong")},
        {"authorization": "Basic \xff"},
    ):
        reply = asks(method, path, **given)
        code = "forbidden" if path in LIBRE and not given else "unauthorized"
        refused(reply, {"unauthorized": 401, "forbidden": 403}[code], code)
        assert ("www-authenticate" in reply.headers) is (code == "unauthorized")
    assert asks("GET", "/health/live").json == {"status": "ok"}


MULTIPART = "multipart/form-data; boundary=x"


def test_a_key_comes_in_a_header_or_where_clients_of_libretranslate_have_it(client, keys):
    asks, key = client(keys=keys[0]), keys[1]
    form = f"q=the+cat&source=en&target=de&api_key={key}".encode()
    fields = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in ASK.items()
    )
    parts = f'{fields}--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\n{key}\r\n'

    escaped = json.dumps(ASK | {"api_key": key}).replace("_", "\\u005f")

    def in_form(name: str) -> bytes:
        return f"{fields}--x\r\nContent-Disposition: form-data; {name}\r\n\r\n{key}\r\n--x--\r\n".encode()

    for reply in (
        asks("POST", "/translate", ASK, authorization=f"Bearer {key}"),
        asks("POST", "/translate", ASK, authorization=basic(key)),
        asks("POST", "/translate", ASK | {"api_key": key}),
        asks("POST", "/translate", form, content_type="application/x-www-form-urlencoded"),
        asks("POST", "/translate", f"{parts}--x--\r\n".encode(), content_type="multipart/form-data; boundary=x"),
        asks("POST", "/translate", in_form('name="api_key"\r\nContent-Type: text/plain'), content_type=MULTIPART),
        asks("POST", "/translate", in_form("name=api_key"), content_type=MULTIPART),
        asks("POST", "/translate", escaped.encode(), content_type="application/json"),
    ):
        assert (reply.status, reply.json) == (200, {"translatedText": "THE CAT"})
    refused(asks("POST", "/translate", ASK | {"api_key": key[:-1]}), 403, "forbidden")
    refused(asks("POST", "/translate", ASK | {"api_key": [key]}), 403, "forbidden")


def test_a_body_is_read_of_those_who_have_a_key(client, keys):
    asks = client(keys=keys[0], max_body_bytes=100, max_file_bytes=100)
    for path in ("/v1/jobs", "/v1/translate"):
        reply = asks("POST", path, b"x" * 101)
        assert "needs an API key" in refused(reply, 401, "unauthorized")
        reply = asks("POST", path, b"x" * 101, authorization=f"Bearer {keys[1]}")
        assert "at most 100 bytes" in refused(reply, 413, "too_large")
    reply = asks("POST", "/translate", b"x" * 101)
    assert "at most 100 bytes" in refused(reply, 413, "too_large")
    reply = asks("POST", "/translate", b"x" * 101, authorization="Bearer wrong")
    assert "this API key was not accepted: ask" in refused(reply, 401, "unauthorized")


def test_characters_a_minute_are_counted_for_each_key(client, keys):
    other = add_key(keys[0], "bob")
    asks = client(keys=keys[0], max_chars_per_minute=20)
    line = {**ASK, "q": "x" * 15}
    assert asks("POST", "/translate", line, authorization=f"Bearer {keys[1]}").status == 200
    reply = asks("POST", "/translate", line, authorization=f"Bearer {keys[1]}")
    assert "at most 20 characters a minute" in refused(reply, 429, "too_many")
    assert 20 <= int(reply.headers["retry-after"]) <= 30
    assert asks("POST", "/translate", line, authorization=f"Bearer {other}").status == 200


def test_while_the_server_ends_only_its_health_is_told(new_client):
    asks = new_client()
    assert asks("GET", "/health/ready").json == {"status": "ready"}
    asks.server.guard.draining = True
    reply = asks("POST", "/translate", ASK)
    refused(reply, 503, "stopping")
    assert (reply.headers["connection"], reply.headers["retry-after"]) == ("close", "5")
    ready = asks("GET", "/health/ready")
    assert (ready.status, ready.json) == (503, {"status": "stopping"})
    assert asks("GET", "/health/live").status == asks("GET", "/metrics").status == 200
    asks.server.guard.draining, asks.pool.ready = False, None
    ready = asks("GET", "/health/ready")
    assert (ready.status, ready.json) == (503, {"status": "starting"})
    assert asks("GET", "/health/live").status == 200


@pytest.mark.parametrize("log_text", [False, True])
def test_the_log_has_sizes_and_durations_and_text_only_if_asked(client, caplog, log_text):
    caplog.set_level(logging.INFO, "glassformer.serve")
    asks = client(log_text=log_text)
    asks("POST", "/translate", {**ASK, "q": "secret \x1b[2J"})
    asks("POST", "/v1/translate", {"q": "secret", "secret": 5, "secret field": 1})
    asks("POST", "/secret", b"secret")
    first, second, third = caplog.messages
    assert "method=POST route=/translate status=200 lines=1 chars=11 bytes_in=" in first
    assert ("secret" in first) is log_text
    assert "\x1b" not in first
    assert "route=/v1/translate status=400" in second
    assert "route=other status=404" in third
    assert "secret" not in second + third
    assert first.split()[0].startswith("id=")


def test_an_error_of_the_server_is_told_without_its_message(client, caplog, monkeypatch):
    asks, message = client(), " ".join(["a", "secret", "text"])

    async def fail(*_, **__) -> None:
        raise ValueError(message)

    monkeypatch.setattr(asks.pool, "ask", fail)
    reply = asks("POST", "/translate", ASK)
    assert refused(reply, 500, "failed")
    assert "ValueError" in caplog.text
    assert "in fail" in caplog.text
    assert message not in caplog.text


LINES = [b"content-disposition:", b"content-disposition: ;name=api_key\r\n", b"a: b\r\n"]
LINES += [b"content-disposition:" + b";name=api_key" * 21 + b";\r\n"]


@pytest.mark.parametrize("line", LINES)
def test_a_form_is_searched_for_a_key_in_time_that_grows_with_its_length(line):
    headers = {"content-type": MULTIPART}
    began = time.thread_time()
    assert given_key(headers, line * ((1 << 20) // len(line))) is None
    assert time.thread_time() - began < 1


def test_a_form_in_an_encoding_that_is_none_is_refused(client):
    body = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n--x--\r\n'
    reply = client()("POST", "/translate", body, content_type=f"{MULTIPART}; charset=undefined")
    assert refused(reply, 400, "invalid") == "the body is not a form that can be read, or has too many fields"
