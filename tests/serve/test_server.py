"""A server at work, over sockets: clients of LibreTranslate and curl, a worker that is lost, slow senders, its end."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from libretranslatepy import LibreTranslateAPI

from glassformer.errors import ConfigError
from glassformer.generation.config import SearchConfig
from glassformer.generation.translator import Translator
from glassformer.markup.translate import translate_markup
from glassformer.serve import server
from glassformer.serve.config import ServeConfig
from glassformer.serve.keys import add_key
from glassformer.serve.server import listen, say_hello
from glassformer.serve.workers import pool as workers

LINES = ["the cat sat on the mat", "a dog", "on a log"]
PAIR = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def expected(run, live) -> list[str]:
    config = SearchConfig(beam=SearchConfig().beam, max_length=live.server.config.max_length)
    return Translator.load(run, "cpu", "float32").translate(LINES, config)


def ready(live) -> None:
    """Wait until the server is ready."""
    until = time.monotonic() + 60
    while live.ask("GET", "/health/ready").status != 200:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_libretranslatepy_works_unchanged(live, expected):
    api = LibreTranslateAPI(f"http://127.0.0.1:{live.port}/")
    assert [api.translate(line, "en", "de") for line in LINES] == expected
    assert api.translate(LINES[0], "auto", "de") == expected[0]
    assert api.detect(LINES[0]) == [{"confidence": 100, "language": "en"}]
    assert api.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
    with pytest.raises(urllib.error.HTTPError) as error:
        api.translate("x", "en", "fr")
    with error.value as answer:
        assert (answer.code, json.load(answer)["code"]) == (400, "unknown_language")


def test_html_comes_back_with_its_tags(live, run):
    q = "<p>the <b>cat</b> sat <code>on</code></p>a <i>dog</i><br>"
    reply = live.ask("POST", "/translate", {"q": q, "source": "en", "target": "de", "format": "html"})
    config = SearchConfig(beam=SearchConfig().beam, max_length=live.server.config.max_length)
    assert (
        reply.json["translatedText"] == translate_markup(Translator.load(run, "cpu", "float32"), [q], "html", config)[0]
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    "how",
    [
        ["-H", "Content-Type: application/json", "-d", json.dumps({"q": LINES[0], "source": "en", "target": "de"})],
        ["--data-urlencode", f"q={LINES[0]}", "-d", "source=en", "-d", "target=de"],
        ["-F", f"q={LINES[0]}", "-F", "source=auto", "-F", "target=de"],
    ],
    ids=["json", "form", "multipart"],
)
def test_curl_works_in_each_of_its_ways(live, expected, how):
    address = f"http://127.0.0.1:{live.port}/translate"
    done = subprocess.run(["curl", "-sS", "--max-time", "30", address, *how], capture_output=True, check=True)
    assert json.loads(done.stdout)["translatedText"] == expected[0]


def test_many_at_once_get_what_each_would_get_alone(live, expected):
    def ask(n: int) -> list[str]:
        lines = LINES[n % 3 :] + LINES[: n % 3]
        reply = live.ask("POST", "/v1/translate", {"q": lines, "beam": 5})
        return [line["translations"][0]["text"] for line in reply.json["lines"]]

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(ask, range(24)))
    assert answers == [expected[n % 3 :] + expected[: n % 3] for n in range(24)]
    text = live.ask("GET", "/metrics").body.decode()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    lines, batches = (float(figures[f'glassformer_batch_lines_{part}{{run="tiny"}}']) for part in ("sum", "count"))
    assert lines / batches > 3, "they shared batches"
    assert float(figures['glassformer_queue{run="tiny"}']) == 0
    assert float(figures['glassformer_tokens_total{run="tiny",side="target"}']) > 48


def test_a_stream_comes_piece_by_piece(live):
    reply = live.ask("POST", "/v1/translate/stream", {"q": LINES[0], "max_length": 9})
    events = [event.split("\ndata: ") for event in reply.body.decode().strip().split("\n\n")]
    kinds = [kind.removeprefix("event: ") for kind, _ in events]
    assert kinds == ["start", *["piece"] * (len(kinds) - 2), "done"]
    done = json.loads(events[-1][1])["lines"][0]["translations"][0]
    assert json.loads(events[-2][1])["text"] == done["text"]
    assert [json.loads(data)["piece"] for _, data in events[1:-1]] == [one["piece"] for one in done["pieces"]]


def test_a_choice_among_alternatives_continues_the_translation(live):
    first = live.ask("POST", "/v1/translate", {"q": LINES[0], "beam": 1, "scores": True}).json["lines"][0]
    prefix = [one["piece"] for one in first["translations"][0]["pieces"]][:2]
    found = live.ask("POST", "/v1/alternatives", {"q": LINES[0], "prefix": prefix, "count": 5}).json["alternatives"]
    chosen = next(one for one in found[1:] if one["piece"] != "</s>")
    wanted = {"q": LINES[0], "prefixes": [[*prefix, chosen["piece"]]], "scores": True}
    line = live.ask("POST", "/v1/translate", wanted).json["lines"][0]
    assert [one["piece"] for one in line["translations"][0]["pieces"]][:3] == [*prefix, chosen["piece"]]


@pytest.fixture
def narrow(run, served, monkeypatch):
    """A server of its own, whose queue is short."""
    monkeypatch.setattr(workers, "GRACE", 0.5)
    with served(ServeConfig(run=(run,), workers=1, max_queue=4)) as started:
        yield started


def test_a_full_queue_and_a_deadline_are_said_and_a_worker_that_hangs_is_replaced(narrow, monkeypatch):
    pool, service = narrow.server.pools["tiny"], narrow.server.service
    (process,) = narrow.do(lambda: pool.processes)
    os.kill(process, signal.SIGSTOP)
    wanted = {"q": LINES[0]}
    with ThreadPoolExecutor(4) as clients, monkeypatch.context() as hasty:

        def ask_two(pending: int) -> list[Future]:
            """Let two more wait, so that so many do."""
            asked = [clients.submit(narrow.ask, "POST", "/translate", wanted | PAIR) for _ in range(2)]
            while narrow.do(lambda: pool.pending) < pending:
                time.sleep(0.01)
            return asked

        patient = ask_two(2)
        hasty.setattr(service, "config", replace(service.config, deadline_seconds=0.5))
        hurried = ask_two(4)
        busy = narrow.ask("POST", "/v1/translate", wanted)
        assert (busy.status, busy.json["code"], busy.headers["retry-after"]) == (503, "busy", "1")
        for asked, code in ((hurried, "deadline"), (patient, "worker_lost")):
            answers = [future.result(20) for future in asked]
            assert [(reply.status, reply.json["code"]) for reply in answers] == [(503, code)] * 2
    unready = narrow.ask("POST", "/v1/translate", wanted)
    assert (unready.status, unready.json["code"]) == (503, "starting")
    assert narrow.ask("GET", "/health/ready").status == 503
    assert narrow.ask("GET", "/health/live").status == 200
    ready(narrow)
    assert narrow.do(lambda: pool.pending) == 0
    again = narrow.ask("POST", "/translate", wanted | PAIR)
    assert (again.status, list(again.json)) == (200, ["translatedText"])
    assert b'glassformer_workers_lost_total{run="tiny"} 1.0' in narrow.ask("GET", "/metrics").body


def receive_all(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def knock(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes over a connection, with pauses, and return what comes until it is closed."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        return receive_all(connection)


BROKEN = [
    (b"nonsense\r\n\r\n", 400),
    (b"GET / HTTP/1.0\r\n\r\n", 403),
    (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    (b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    (b"GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    (b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\nConnection: close\r\n\r\n", 403),
    (b"\x16\x03\x01\x02\x00\x01\x00", None),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 120 + b"Connection: close\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"1" * 70_000 + b"\r\n\r\n", 431),
]


@pytest.mark.parametrize(("sent", "status"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_request_is_refused_and_the_connection_closed(live, sent, status):
    if status is None:
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            connection.sendall(sent)
    else:
        got = knock(live.port, sent)
        head, _, body = got.partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        assert set(json.loads(body)) == {"error", "code"}
        assert b"passwd" not in body
    assert live.ask("GET", "/health/live").status == 200


def test_dropped_connections_leave_nothing_behind(live):
    fields = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    head = b"POST /v1/translate HTTP/1.1\r\n" + fields
    body = json.dumps({"q": [" ".join(LINES)] * 20, "beam": 10}).encode()
    for sent in (head % 1000 + b"{", head[:40], (head % len(body)) + body):
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            connection.sendall(sent)
            time.sleep(0.05)
    pool, until = live.server.pools["tiny"], time.monotonic() + 10
    while live.do(lambda: pool.pending + live.server.guard.working) and time.monotonic() < until:
        time.sleep(0.02)
    assert live.do(lambda: pool.pending + live.server.guard.working) == 0


def start(run, *flags: str) -> subprocess.Popen:
    """Start the command."""
    command = [sys.executable, "-m", "glassformer", "serve", str(run), "--port", "0", "--threads", "1", *flags]
    environment = {**os.environ, "PYTHONWARNINGS": ""}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def port_of(process: subprocess.Popen) -> int:
    return int(process.stdout.readline().rsplit(":", 1)[1])


def test_who_still_waits_at_the_end_is_told(live, beside):
    (process,) = live.do(lambda: live.server.pools["tiny"].processes)
    wanted = {"q": LINES[0]}
    paths = ("/v1/translate", "/v1/translate/stream", "/v1/alternatives")
    with beside(live, drain_seconds=0.3) as ending, ThreadPoolExecutor(len(paths)) as clients:
        os.kill(process, signal.SIGSTOP)
        try:
            asked = [clients.submit(ending.ask, "POST", path, wanted) for path in paths]
            while ending.do(lambda: ending.server.guard.working) < len(paths):
                time.sleep(0.01)
            ending.do(lambda: ending.web.handle_exit(signal.SIGTERM, None))
            for future in asked:
                reply = future.result(20)
                assert (reply.status, reply.json["code"]) == (503, "stopping")
                assert reply.json["error"] == workers.ENDING.error
        finally:
            os.kill(process, signal.SIGCONT)
    assert live.ask("POST", "/v1/translate", wanted).status == 200


def test_further_signals_end_it_at_once_and_none_puts_the_end_off(live, beside, monkeypatch):
    clock = [1000.0]
    with beside(live, drain_seconds=25.0) as ending, monkeypatch.context() as timed:
        ending.server.guard.working += 1

        async def ends_after(seconds: float) -> bool:
            clock[0] += seconds
            return await ending.web.on_tick(1)

        async def signals() -> list[bool]:
            timed.setattr(server, "time", SimpleNamespace(monotonic=lambda: clock[0]))
            ending.web.handle_exit(signal.SIGTERM, None)
            waits = [await ends_after(20.0)]
            ending.web.handle_exit(signal.SIGTERM, None)
            for _ in range(4):
                waits.append(await ends_after(0.9 * server.LAST_WORDS / 2))
                ending.web.handle_exit(signal.SIGINT, None)
            timed.undo()
            return waits

        waits = asyncio.run_coroutine_threadsafe(signals(), ending.loop).result(20)
        ending.server.guard.working -= 1
    assert waits == [False, False, False, True, True]


def test_who_is_slow_or_idle_is_let_go(live, beside):
    with beside(live, slow_seconds=0.4, keep_alive_seconds=0.2) as server:
        began = time.monotonic()
        assert b"408" in knock(server.port, b"GET /health HTTP/1.1\r\n", b"X: 1\r\n", pause=0.1)
        body = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc"
        assert b"408" in knock(server.port, body)
        idle = knock(server.port, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.endswith(b'{"status":"ok"}')
        assert time.monotonic() - began < 10


def test_who_is_one_too_many_is_sent_away(live, beside):
    with beside(live, max_connections=40) as server:
        many = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        while live.do(lambda: len(server.web.server_state.connections)) < 40:
            time.sleep(0.01)
        assert b"there are too many connections" in knock(server.port)
        for connection in many:
            connection.close()


def test_libretranslatepy_gives_its_key(live, beside, tmp_path, expected):
    path = tmp_path / "keys.json"
    key = add_key(path, "alice")
    with beside(live, keys=path) as server:
        address = f"http://127.0.0.1:{server.port}/"
        api = LibreTranslateAPI(address, key)
        assert api.languages()
        assert api.detect(LINES[0]) == [{"confidence": 100, "language": "en"}]
        assert api.translate(LINES[0], "en", "de") == expected[0]
        with pytest.raises(urllib.error.HTTPError) as error:
            LibreTranslateAPI(address, "wrong").translate(LINES[0], "en", "de")
        with error.value as answer:
            assert (answer.code, json.load(answer)["code"]) == (403, "forbidden")


def test_ctrl_c_ends_it_well_even_while_it_loads(run):
    process = start(run)
    try:
        port_of(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_what_keeps_it_from_starting_is_said_in_one_line(run, tmp_path, monkeypatch, run_command, capfd):
    monkeypatch.chdir(tmp_path)
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        elsewhere = "--host must be an address of this machine alone, such as 127.0.0.1, got"
        wrong = {
            "serve": "serve needs RUN: the folder of a run",
            "serve none": "none: no such run folder",
            f"serve {run} --port {port}": f"--port must be a free one, got {port}: stop what listens there",
            f"serve {run} --host 0.0.0.0": f"{elsewhere} 0.0.0.0: other machines need a key, so give --keys;",
            f"serve {run} --host example.org": f"{elsewhere} example.org",
            f"serve {run} --host 192.0.2.1 --keys k": "--host must be an address of this machine, got 192.0.2.1",
            f"serve {run} --port 0 --keys keys.json": "keys.json: no such file of keys: make one with",
            f"serve {run} {run}": "tiny is named twice: name each run once",
            f"serve {run} --languages tiny=english": "--languages must be RUN=SOURCE-TARGET",
            f"serve {run} --max-n-best 11": "--max-n-best must be at most --max-beam, got --max-n-best 11",
            f"serve {run} --new-key bob": "--new-key needs --keys",
            f"serve {run} --port 70000": "--port must be at least 0 and at most 65,535, got 70000",
        }
        for command, message in wrong.items():
            assert run_command(command) == 2, command
            complaint = run_command.complaint(capfd.readouterr().err)
            assert message in complaint, (command, complaint)


def test_a_model_that_cannot_be_loaded_ends_it_in_one_line(run, monkeypatch, run_command, capfd):
    monkeypatch.setattr(server, "write_log", Mock())  # which is for a process of its own
    assert run_command(f"serve {run} --port 0 --precision int5") == 2
    out, err = capfd.readouterr()
    assert out.startswith("http://127.0.0.1:")
    assert err.splitlines() == [
        "glassformer: error: --precision must be one of auto, float32, bfloat16, float16, int8, got 'int5'"
    ]


def test_a_key_is_printed_once(tmp_path, monkeypatch, run_command, capfd):
    monkeypatch.chdir(tmp_path)
    assert run_command("serve --keys keys.json --new-key alice") == 0
    out, err = capfd.readouterr()
    assert out.startswith("gf_")
    assert err.startswith(
        "keep this key, which is never shown again; start the server with glassformer serve RUN --keys "
    )
    assert out.strip() not in (tmp_path / "keys.json").read_text(encoding="utf-8")


def test_a_key_that_could_not_be_shown_is_not_added(tmp_path):
    command = [sys.executable, "-m", "glassformer", "serve", "--keys", "keys.json", "--new-key", "alice"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "keys.json was not written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_is_said(run, monkeypatch, run_command, capfd):
    for name in ("server", "app", "libretranslate", "translating", "jobs", "strict"):
        monkeypatch.delitem(sys.modules, f"glassformer.serve.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert run_command(f"serve {run}") == 2
    assert 'serving needs fastapi: pip install "glassformer[serve]"' in capfd.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".org", "no such host"])
def test_a_host_that_is_none_is_said(host):
    with pytest.raises(ConfigError, match=rf"^host must be an address of this machine, got '{re.escape(host)}' \("):
        listen(host, 0)


def test_an_address_in_brackets_is_shown_as_one(capsys):
    with listen("127.0.0.1", 0) as listening:
        say_hello(ServeConfig(run=(Path("run"),), host="[::1]"), [], listening)
    assert capsys.readouterr().out.startswith("http://[::1]:")
