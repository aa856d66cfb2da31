"""Jobs: files of text and documents, with progress, a result, and only for whom they belong to."""

import asyncio
import shutil
import threading
from dataclasses import replace

import pytest

from glassformer.documents.endings import ENDINGS_OF
from glassformer.serve import jobs
from glassformer.serve.keys import add_key
from glassformer.serve.workers.messages import Check, Refusal, Translate

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header srclang="en" datatype="plaintext" segtype="sentence" adminlang="en" o-tmf="x"
 creationtool="x" creationtoolversion="1"/><body>
<tu><tuv xml:lang="en-GB"><seg>the <bpt i="1">&lt;b&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept></seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>le chien</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>alt</seg></tuv><tuv xml:lang="en"><seg>a
 dog</seg></tuv></tu></body></tmx>"""


def form(file: bytes, name: str = "x.txt", **fields: str) -> tuple[bytes, str]:
    """The body of a form, and its content type."""
    parts = [f'--x\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'.encode() for n, v in fields.items()]
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return b"".join([*parts, head, file, b"\r\n--x--\r\n"]), "multipart/form-data; boundary=x"


async def send(asks, file: bytes, name: str = "x.txt", key: str = "", **fields: str):
    body, kind = form(file, name, **fields)
    given = {"authorization": f"Bearer {key}"} if key else {}
    return await asks.call("POST", "/v1/jobs", body, content_type=kind, **given)


async def ended(asks, number: str):
    while (reply := await asks.call("GET", f"/v1/jobs/{number}")).json["state"] in ("waiting", "running"):
        await asyncio.sleep(0.01)
    return reply.json


def test_a_text_comes_back_line_by_line(new_client, monkeypatch):
    monkeypatch.setattr(jobs, "AT_ONCE", 2)

    async def work() -> None:
        asks = new_client()
        reply = await send(asks, "\ufeffthe cat\r\na dog\n\nsat\rx\x00y\n".encode(), beam="3", source="en", target="de")
        assert reply.status == 202
        number = reply.json["id"]
        assert reply.json == {
            **{"id": number, "state": "waiting", "run": "tiny", "kind": "text", "lines": 4, "done": 0, "error": None}
        }
        assert len(number) == 32
        assert (await ended(asks, number))["done"] == 4
        result = await asks.call("GET", f"/v1/jobs/{number}/result")
        assert result.body.decode() == "THE CAT\nA DOG\n\nSAT X Y\n"
        assert result.headers["content-disposition"] == 'attachment; filename="translated.txt"'
        asked = [(kind, len(fields["lines"]), fields["first_line"]) for kind, fields in asks.pool.asked]
        assert asked == [(kind, 2, first) for kind in (Check, Translate) for first in (1, 3)]
        assert {fields["beam"] for _, fields in asks.pool.asked} == {3}
        assert not any(fields["paragraphs"] for _, fields in asks.pool.asked)
        assert (await asks.call("DELETE", f"/v1/jobs/{number}")).status == 204
        assert (await asks.call("GET", f"/v1/jobs/{number}")).status == 404
        await asks.server.jobs.stop()

    asyncio.run(work())


def test_a_tmx_file_gets_the_language_and_nothing_else_changes(new_client):
    async def work() -> None:
        asks = new_client()
        reply = await send(asks, TMX.encode(), "memory.TMX")
        assert (reply.status, reply.json["kind"], reply.json["lines"]) == (202, "tmx", 1)
        await ended(asks, reply.json["id"])
        result = await asks.call("GET", f"/v1/jobs/{reply.json['id']}/result")
        assert result.headers["content-type"] == "application/x-tmx+xml"
        seg = '<seg><bpt i="1">&lt;b&gt;</bpt>CAT<ept i="1">&lt;/b&gt;</ept> THE</seg>'
        whole = '<tuv xml:lang="en-GB"><seg>the <bpt i="1">&lt;b&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept></seg></tuv>'
        assert result.body.decode() == TMX.replace(whole, f'{whole}<tuv xml:lang="de">{seg}</tuv>')
        await asks.server.jobs.stop()

    asyncio.run(work())


CUE = "00:00:01,000 --> 00:00:02,000"
DOCUMENTS = {
    "a.po": (
        *("po", 2, 'msgid "the cat\\n\\na dog"\nmsgstr ""\n'),
        'msgid "the cat\\n\\na dog"\nmsgstr ""\n"CAT THE\\n"\n"\\n"\n"DOG A"\n',
    ),
    "a.json": ("json", 1, '{"the": ["a cat", 1]}', '{"the": ["CAT A", 1]}'),
    "a.srt": ("srt", 1, f"1\n{CUE}\n<i>a cat</i>\n", f"1\n{CUE}\n<i>CAT A</i>\n"),
    "a.vtt": (
        "vtt",
        1,
        "WEBVTT\n\n00:01.000 --> 00:02.000\n<v B>a cat\n",
        "WEBVTT\n\n00:01.000 --> 00:02.000\n<v B>CAT A\n",
    ),
    "a.htm": (
        *("html", 2, "<title>the\ncat</title><script>a\nb</script><p>a <b>dog</b> <!-- x -->\n"),
        "<title>CAT THE</title><script>a\nb</script><p><b>DOG</b> A <!-- x -->\n",
    ),
    "a.XLF": (
        *("xliff", 1, '<xliff version="1.2"><trans-unit><source>a cat</source></trans-unit></xliff>'),
        '<xliff version="1.2"><trans-unit><source>a cat</source><target state="translated">CAT A</target>'
        "</trans-unit></xliff>",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_comes_back_with_its_texts_translated(new_client, name, monkeypatch):
    monkeypatch.setattr(jobs, "AT_ONCE", 1)
    kind, lines, content, expected = DOCUMENTS[name]

    async def work() -> None:
        asks = new_client()
        reply = await send(asks, content.encode(), name)
        assert (reply.status, reply.json["kind"], reply.json["lines"]) == (202, kind, lines)
        assert (await ended(asks, reply.json["id"]))["state"] == "done"
        result = await asks.call("GET", f"/v1/jobs/{reply.json['id']}/result")
        assert result.body.decode() == expected
        assert result.headers["content-disposition"] == f'attachment; filename="translated.{kind}"'
        assert all(fields["placeholders"] for _, fields in asks.pool.asked), "programs fail without theirs"
        await asks.server.jobs.stop()

    asyncio.run(work())


@pytest.mark.parametrize("name", ["a.txt", "a.htm"])
def test_a_job_translates_sentence_by_sentence_where_that_is_asked_for(new_client, name):
    async def work() -> None:
        asks = new_client()
        reply = await send(asks, b"The cat. A dog.\n", name, segment="paragraph")
        assert (await ended(asks, reply.json["id"]))["state"] == "done"
        assert [fields["paragraphs"] for _, fields in asks.pool.asked] == [True, True]
        await asks.server.jobs.stop()

    asyncio.run(work())


ENTITIES = b'<!DOCTYPE tmx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><tmx><body><tu>&b;</tu></body></tmx>'
EXTERNAL = b'<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]><tmx>&a;</tmx>'


@pytest.mark.parametrize(
    ("file", "name", "fields", "message"),
    [
        (ENTITIES, "x.tmx", {}, "declares entities"),
        (EXTERNAL, "x.tmx", {}, "declares entities"),
        (b"<tmx>", "x.tmx", {}, "is not XML that can be read"),
        (b"<tmx>" + b"<tu>" * 2000 + b"</tu>" * 2000 + b"</tmx>", "x.tmx", {}, "nested too deeply"),
        (b"<html/>", "x.tmx", {}, "the file is XML with the root element html, tmx was expected"),
        (b"<tmx/>", "x.tmx", {}, "the file has no segment in the language en"),
        (b'<?xml version="1.0" encoding="nonsense"?><tmx/>', "x.tmx", {}, "save it as UTF-8"),
        (b"{", "x.json", {}, "the file is not JSON"),
        (b"hello", "x.txt", {"kind": "po"}, "the file has no msgid: is it a PO file?"),
        (b"caf\xe9", "x.txt", {}, "the file is not UTF-8 (byte 3)"),
        (b"a\n" * 12, "x.txt", {}, "a job may have at most 11 lines, got 12"),
        (b"a\n" + b"x" * 51, "x.txt", {}, "line 2 has 51 characters, at most 50"),
        (b"a", "x.txt", {"beam": "11"}, "beam must be a whole number from 1 to 10"),
        (b"a", "x.txt", {"beam": "-1"}, "beam must be"),
        (b"a", "x.txt", {"beam": "\u0663"}, "beam must be"),
        (b"a", "x.txt", {"kind": "docx"}, "kind must be one of text, tmx, xliff, po, srt, vtt, json, html"),
        (b"a", "x.txt", {"segment": "sentence"}, "segment must be line or paragraph"),
        (b"a", "x.txt", {"run": "none"}, "there is no such run"),
        (b"a", "x.txt", {"colour": "red"}, "1 unknown fields"),
    ],
)
def test_files_that_cannot_be_translated_are_refused(new_client, file, name, fields, message):
    async def work() -> None:
        asks = new_client(max_job_lines=11, max_line_chars=50)
        reply = await send(asks, file, name, **fields)
        assert reply.status == 400
        assert message in reply.json["error"]
        await asks.server.jobs.stop()

    asyncio.run(work())


def test_a_job_belongs_to_its_key_and_jobs_are_few(new_client, tmp_path):
    path = tmp_path / "keys.json"
    alice, bob = add_key(path, "alice"), add_key(path, "bob")

    async def work() -> None:
        asks = new_client(keys=path, max_jobs=2, max_chars_per_minute=2)
        asks.pool.gate = asyncio.Event()
        first = (await send(asks, b"a", key=alice)).json["id"]
        assert (await send(asks, b"a", key=bob)).status == 202
        for method, route in (("GET", ""), ("GET", "/result"), ("DELETE", "")):
            reply = await asks.call(method, f"/v1/jobs/{first}{route}", authorization=f"Bearer {bob}")
            assert (reply.status, reply.json["code"]) == (404, "not_found")
        unready = await asks.call("GET", f"/v1/jobs/{first}/result", authorization=f"Bearer {alice}")
        assert "the job has no result: it is" in unready.json["error"]
        full = await send(asks, b"a", key=alice)
        assert (full.status, full.json["code"]) == (503, "busy")
        assert (await asks.call("DELETE", f"/v1/jobs/{first}", authorization=f"Bearer {alice}")).status == 204
        assert (await send(asks, b"a", key=alice)).status == 202
        assert asks.server.jobs.running == 2
        asks.pool.gate.set()
        await asks.server.jobs.stop()
        assert asks.server.jobs.running == 0

    asyncio.run(work())


def test_a_job_waits_for_room_and_its_failure_is_told(new_client, monkeypatch):
    monkeypatch.setattr(jobs, "PAUSE", 0.01)

    async def work() -> None:
        asks, answers = (
            new_client(),
            [Refusal("busy", "full"), Refusal("worker_lost", "lost"), Refusal("failed", "not finite")],
        )

        async def ask(*_, **__) -> None:
            raise answers.pop(0)

        asks.pool.ask = ask
        number = (await send(asks, b"a")).json["id"]
        job = await ended(asks, number)
        assert (job["state"], job["error"], answers) == ("failed", "not finite", [])
        await asks.server.jobs.stop()

    asyncio.run(work())


@pytest.mark.parametrize("name", ["a.txt", "a.htm"])
def test_a_line_that_cannot_be_translated_is_told_before_others_are(new_client, name, monkeypatch):
    monkeypatch.setattr(jobs, "AT_ONCE", 1)

    async def work() -> None:
        asks = new_client()
        answer = asks.pool.answer

        def refuse(kind: type, fields: dict[str, object]) -> list[dict[str, object]]:
            if fields["first_line"] == 2:
                raise Refusal("too_long", "line 2 has 70 tokens")
            return answer(kind, fields)

        asks.pool.answer = refuse
        job = await ended(asks, (await send(asks, b"<p>a cat</p>\n<p>a dog</p>\n", name)).json["id"])
        assert (job["state"], job["error"], job["done"]) == ("failed", "line 2 has 70 tokens", 0)
        assert {kind for kind, _ in asks.pool.asked} == {Check}
        await asks.server.jobs.stop()

    asyncio.run(work())


def test_a_job_ends_that_ends_workers_or_cannot_be_written(new_client, monkeypatch):
    monkeypatch.setattr(jobs, "PAUSE", 0.01)

    async def work() -> None:
        asks, answers = new_client(), [Refusal("worker_lost", "lost")] * 5
        answer = asks.pool.ask

        async def lose(*_, **__) -> None:
            raise answers.pop()

        asks.pool.ask = lose
        job = await ended(asks, (await send(asks, b"a")).json["id"])
        assert (job["state"], job["error"], job["lines"], len(answers)) == ("failed", "lost", 1, 2)
        asks.pool.ask, asks.pool.gate = answer, asyncio.Event()
        number = (await send(asks, b"a")).json["id"]
        place = asks.server.jobs.path(asks.server.jobs.find(number, "127.0.0.1"))
        place.mkdir()
        asks.pool.gate.set()
        job = await ended(asks, number)
        assert (job["state"], job["error"]) == ("failed", "the result can't be written: Is a directory")
        place.rmdir()
        number = (await send(asks, b"")).json["id"]
        assert (await ended(asks, number))["lines"] == 0
        assert (await asks.call("GET", f"/v1/jobs/{number}/result")).body == b""
        await asks.server.jobs.stop()

    asyncio.run(work())


def test_results_are_removed_after_their_time(new_client, monkeypatch):
    async def work() -> None:
        asks = new_client()
        number = (await send(asks, b"a")).json["id"]
        await ended(asks, number)
        path = asks.server.jobs.path(asks.server.jobs.find(number, "127.0.0.1"))
        assert path.exists()
        service = asks.server.service
        monkeypatch.setattr(service, "config", replace(service.config, job_minutes=1e-4))
        await asyncio.sleep(0.01)  # more than 6 ms
        assert (await asks.call("GET", f"/v1/jobs/{number}")).status == 404
        assert not path.exists()
        await asks.server.jobs.stop()

    asyncio.run(work())


def test_a_job_that_is_removed_while_its_result_is_written_leaves_nothing(new_client, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    written = jobs._TextFile.written

    def slowly(file, rows):
        begun.set()
        assert goes_on.wait(30)
        return written(file, rows)

    monkeypatch.setattr(jobs._TextFile, "written", slowly)

    async def work() -> None:
        asks = new_client()
        number = (await send(asks, b"a")).json["id"]
        folder = asks.server.jobs.path(asks.server.jobs.find(number, "127.0.0.1")).parent
        assert await asyncio.to_thread(begun.wait, 30)
        assert (await asks.call("DELETE", f"/v1/jobs/{number}")).status == 204
        goes_on.set()
        await asyncio.get_running_loop().shutdown_default_executor()  # waits for what writes
        assert list(folder.iterdir()) == []
        await asks.server.jobs.stop()

    asyncio.run(work())


def test_each_kind_of_document_can_be_sent():
    assert set(jobs.MEDIA_TYPES) == {"text", *ENDINGS_OF}


def test_a_folder_that_is_removed_costs_the_results_in_it_alone(new_client):
    async def work() -> None:
        asks = new_client()
        first = (await send(asks, b"a")).json["id"]
        await ended(asks, first)
        shutil.rmtree(asks.server.jobs.path(asks.server.jobs.find(first, "127.0.0.1")).parent)
        reply = await asks.call("GET", f"/v1/jobs/{first}/result")
        assert (reply.status, reply.json["error"]) == (404, "the job has no result: its file was removed")
        second = (await send(asks, b"b")).json["id"]
        assert (await ended(asks, second))["state"] == "done"
        assert (await asks.call("GET", f"/v1/jobs/{second}/result")).body == b"B\n"
        await asks.server.jobs.stop()

    asyncio.run(work())
