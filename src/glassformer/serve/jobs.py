"""Files that are translated as jobs: plain text and TMX, a few lines at a time beside all other requests.

What a job reads and writes lies in a folder of the server's own, which goes when the server ends.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from xml.etree import ElementTree
from xml.parsers import expat

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from glassformer.pairs.memories import LANGUAGE, language_of, texts_of
from glassformer.serve.guard.visits import Visit
from glassformer.serve.languages import ServedRun
from glassformer.serve.schemas import Choosing, Failure, Job, JobState
from glassformer.serve.service import Service
from glassformer.serve.strict import read_form
from glassformer.serve.workers import messages
from glassformer.serve.workers.messages import Failure as Refusal

AT_ONCE = 32
"""Lines of a job that are translated at a time, so that a stop loses little and nobody waits long."""
LONGEST = 600.0
"""Seconds that they may take: nobody waits for an answer, and they wait for everyone else."""
PAUSE = 0.5
"""Seconds before a job that found the queue full tries again."""
MOST_LOSSES = 3
"""Workers that may be lost over the same lines: those lines may be what ends them."""
DEEPEST, MOST_ELEMENTS = 100, 1_000_000
"""Most elements of a TMX file within one another, and in all: a tree takes a hundred bytes for each."""
Kind = Literal["text", "tmx"]


@dataclass
class _Work:
    """A job, and what the server knows of it."""

    id: str
    key: str
    run: ServedRun
    kind: Kind
    search: dict[str, int]
    lines: list[str]
    file: bytes
    """The TMX file, which is smaller than its tree; empty for a text."""
    total: int
    """Number of its lines, which themselves are forgotten once they are translated."""
    state: JobState = "waiting"
    done: int = 0
    error: str | None = None
    ended: float | None = None
    task: asyncio.Task[None] | None = None
    translations: list[str] = field(default_factory=list)

    def described(self) -> Job:
        """Return it as an answer has it."""
        return Job(
            id=self.id,
            state=self.state,
            run=self.run.name,
            kind=self.kind,
            lines=self.total,
            done=self.done,
            error=self.error,
        )


class Jobs:
    """The jobs of a server, by their ids, which can't be guessed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._works: dict[str, _Work] = {}
        self._folder: TemporaryDirectory[str] | None = None
        self._turn = asyncio.Semaphore(1)

    @property
    def running(self) -> int:
        """Number of jobs that wait or run."""
        return sum(work.ended is None for work in self._works.values())

    def begin(self, work: _Work) -> None:
        """Take on a job; Failure where there are too many."""
        self._forget()
        self._folder = self._folder or TemporaryDirectory(prefix="glassformer-jobs-")
        if len(self._works) >= self._service.config.max_jobs:
            raise Refusal("busy", f"there are {len(self._works)} jobs already: remove those that are done", 60)
        self._works[work.id] = work
        work.task = asyncio.create_task(self._run(work))

    def find(self, number: str, key: str) -> _Work:
        """Return the job of this id, if it belongs to the key; Failure where there is none."""
        self._forget()
        work = self._works.get(number)
        if work is None or work.key != key:
            raise Refusal("not_found", "there is no such job")
        return work

    def remove(self, work: _Work) -> None:
        """End a job and forget it."""
        del self._works[work.id]
        if work.task is not None:
            work.task.cancel()
        self.path(work).unlink(missing_ok=True)

    async def stop(self) -> None:
        """End the jobs and remove what they made."""
        tasks = [work.task for work in self._works.values() if work.task is not None]
        for work in list(self._works.values()):
            self.remove(work)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._folder is not None:
            self._folder.cleanup()

    def path(self, work: _Work) -> Path:
        """Return where the result of a job lies."""
        assert self._folder is not None
        return Path(self._folder.name) / work.id

    async def _run(self, work: _Work) -> None:
        """Translate a job's lines, after those of jobs that came before."""
        try:
            async with self._turn:
                work.state = "running"
                for start in range(0, len(work.lines), AT_ONCE):
                    work.translations += await self._translated(work, work.lines[start : start + AT_ONCE])
                    work.done = len(work.translations)
                await asyncio.to_thread(self._write, work)
            work.state = "done"
        except Refusal as failure:
            work.state, work.error = "failed", str(failure)
        except OSError as error:
            work.state, work.error = "failed", f"the result can't be written: {error.strerror}"
        except asyncio.CancelledError:
            work.state = "cancelled"
            raise
        finally:
            work.ended = time.monotonic()
            work.lines, work.translations, work.file = [], [], b""

    async def _translated(self, work: _Work, lines: Sequence[str]) -> list[str]:
        """Return the translations of some lines, whenever there is room in the queue."""
        losses = 0
        while True:
            try:
                rows = await self._service.ask(work.run, messages.Translate, LONGEST, lines=list(lines), **work.search)
                return [row["translations"][0]["text"] for row in rows]
            except Refusal as failure:
                losses += failure.code == "worker_lost"
                if failure.code not in ("busy", "starting", "worker_lost") or losses == MOST_LOSSES:
                    raise
            await asyncio.sleep(PAUSE)

    def _write(self, work: _Work) -> None:
        if work.kind == "text":
            content = "".join(f"{line}\n" for line in work.translations).encode()
        else:
            content = _with_translations(_read_tmx(work.file), work.run, work.translations)
        self.path(work).write_bytes(content)

    def _forget(self) -> None:
        """Remove the jobs whose time is over."""
        before = time.monotonic() - 60 * self._service.config.job_minutes
        for work in [work for work in self._works.values() if work.ended is not None and work.ended < before]:
            self.remove(work)


def make_router(service: Service, jobs: Jobs) -> APIRouter:
    """Return the routes."""
    failures: dict[int | str, dict[str, Any]] = {
        status: {"model": Failure} for status in (400, 403, 404, 413, 429, 500, 503)
    }
    router = APIRouter(prefix="/v1/jobs", tags=["Jobs"], responses=failures)
    fields = {name: {"type": "string"} for name in ("run", "source", "target", "kind", "beam")}
    form = {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary"}, **fields},
    }
    described = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}

    @router.post("", status_code=202, openapi_extra=described)
    async def begin(request: Request) -> Job:
        """Begin to translate a file."""
        visit: Visit = request.state.visit
        given = await read_form(request, service.config.max_file_bytes)
        work = await _planned(service, visit, given)
        jobs.begin(work)
        return work.described()

    @router.get("/{number}")
    async def progress(number: str, request: Request) -> Job:
        """Return how far a job is."""
        return jobs.find(number, request.state.visit.key).described()

    @router.get("/{number}/result", response_class=StreamingResponse)
    async def result(number: str, request: Request) -> Response:
        """Return the translated file."""
        work = jobs.find(number, request.state.visit.key)
        if work.state != "done":
            raise Refusal("not_found", f"the job has no result: it is {work.state}")
        kind = "text/plain; charset=utf-8" if work.kind == "text" else "application/x-tmx+xml; charset=utf-8"
        ending = "txt" if work.kind == "text" else "tmx"
        headers = {"content-disposition": f'attachment; filename="translated.{ending}"'}
        return StreamingResponse(_blocks(jobs.path(work)), media_type=kind, headers=headers)

    @router.delete("/{number}", status_code=204)
    async def remove(number: str, request: Request) -> None:
        """End a job, and remove what it made."""
        jobs.remove(jobs.find(number, request.state.visit.key))

    return router


async def _planned(service: Service, visit: Visit, given: dict[str, Any]) -> _Work:
    """Return the job that a form asks for."""
    if unknown := set(given) - {"file", "run", "source", "target", "kind", "beam"}:
        raise Refusal("invalid", f"the form has {len(unknown)} unknown fields")
    if not isinstance(given.get("file"), tuple):
        raise Refusal("invalid", "file is missing: send a form with a file of that name")
    name, data = given["file"]
    kind = str(given.get("kind") or ("tmx" if name.lower().endswith(".tmx") else "text"))
    if kind not in ("text", "tmx"):
        raise Refusal("invalid", "kind must be text or tmx")
    wanted = str(given.get("beam") or service.search()["beam"])
    if not re.fullmatch("[0-9]{1,4}", wanted) or not 1 <= int(wanted) <= service.config.max_beam:
        raise Refusal("invalid", f"beam must be a whole number from 1 to {service.config.max_beam}")
    search = service.search(beam=int(wanted))
    chosen = {side: str(given[side]) for side in ("run", "source", "target") if given.get(side)}
    run = service.chosen(Choosing(**chosen))
    lines = _lines_of_text(data) if kind == "text" else await asyncio.to_thread(_lines_of_tmx, data, run.source)
    config = service.config
    if len(lines) > config.max_job_lines:
        raise Refusal("too_many_lines", f"a job may have at most {config.max_job_lines:,} lines, got {len(lines):,}")
    for number, line in enumerate(lines, start=1):
        if len(line) > config.max_line_chars:
            raise Refusal("too_long", f"line {number} has {len(line):,} characters, at most {config.max_line_chars:,}")
    service.count(visit, lines)
    file = data if kind == "tmx" else b""
    return _Work(secrets.token_hex(16), visit.key, run, kind, search, lines, file, len(lines))


def _lines_of_text(data: bytes) -> list[str]:
    """Return the lines of a text, none of an empty one; only a newline ends a line."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        raise Refusal("invalid", f"the file is not UTF-8 (byte {error.start:,})") from None
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.removesuffix("\r").replace("\r", " ").replace("\0", " ") for line in lines]


def _read_tmx(data: bytes) -> ElementTree.Element:
    """Return the root of a TMX file; Failure for others, and for one that declares entities or has a huge tree."""
    depth = count = 0

    def enter(*_: object) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > DEEPEST or count > MOST_ELEMENTS:
            raise Refusal("invalid", "the file has too many elements, or they are nested too deeply")

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    checking = expat.ParserCreate()
    checking.EntityDeclHandler = _no_entities
    checking.StartElementHandler, checking.EndElementHandler = enter, leave
    try:
        checking.Parse(data, True)
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, expat.ExpatError, ValueError, LookupError):
        raise Refusal("invalid", "the file is not XML that can be read") from None
    if root.tag != "tmx":
        raise Refusal("invalid", "the file is not a TMX file: its root must be tmx")
    return root


def _no_entities(*_: object) -> None:
    raise Refusal("invalid", "the file declares entities, and such XML is not read")


def _units(tree: ElementTree.Element, source: str) -> Iterator[tuple[ElementTree.Element, ElementTree.Element]]:
    """Yield each unit that has a segment in the source language, with that segment."""
    for unit in tree.iter("tu"):
        for variant in unit.findall("tuv"):
            segment = variant.find("seg")
            if segment is not None and _is_language(variant, source):
                yield unit, segment
                break


def _is_language(variant: ElementTree.Element, code: str) -> bool:
    """Return whether a variant is in a language, or in one of its regions: en-GB is en. Any is, where none is known."""
    own = language_of(variant).lower()
    return not code or own == code.lower() or own.partition("-")[0] == code.lower()


def _lines_of_tmx(data: bytes, source: str) -> list[str]:
    """Return the segments of a TMX file in the source language."""
    return [" ".join("".join(texts_of(segment)).split()) for _, segment in _units(_read_tmx(data), source)]


def _with_translations(tree: ElementTree.Element, run: ServedRun, translations: Sequence[str]) -> bytes:
    """Return a TMX file whose units have these translations, in place of those that they had in the language."""
    target = run.target or "und"
    for (unit, _), text in zip(list(_units(tree, run.source)), translations, strict=True):
        for variant in [one for one in unit.findall("tuv") if _is_language(one, target)]:
            unit.remove(variant)
        variant = ElementTree.SubElement(unit, "tuv", {LANGUAGE: target})
        ElementTree.SubElement(variant, "seg").text = text
    return ElementTree.tostring(tree, encoding="utf-8", xml_declaration=True)


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    """Yield a file in blocks."""
    with path.open("rb") as file:
        while block := await asyncio.to_thread(file.read, 1 << 16):
            yield block
