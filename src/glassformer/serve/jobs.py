"""Files that are translated as jobs: text and documents, a few lines at a time beside all other requests.

What a job reads and writes lies in a folder of the server's own, which goes when the server ends.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from glassformer.documents.endings import ENDINGS_OF, DocumentKind, kind_of, tags_of
from glassformer.documents.reading import lines_of, read_units
from glassformer.documents.units import Edit, Unit, apply
from glassformer.errors import GlassformerError
from glassformer.generation.config import SEGMENTATIONS
from glassformer.generation.segments.sentences import Segments
from glassformer.markup.scan import Format
from glassformer.markup.segments import Document
from glassformer.serve.guard.visits import Visit
from glassformer.serve.languages import ServedRun
from glassformer.serve.schemas import FAILURES, TOO_MUCH, Choosing, Failure, Job, JobKind, JobState
from glassformer.serve.service import Service
from glassformer.serve.strict import read_form
from glassformer.serve.workers import messages
from glassformer.serve.workers.messages import Refusal
from glassformer.serve.workers.rows import Row, put_in_documents

AT_ONCE = 32
"""Lines of a job that are translated at a time, so that a stop loses little and nobody waits long."""
LONGEST = 600.0
"""Seconds that they may take: nobody waits for an answer, and they wait for everyone else."""
PAUSE = 0.5
"""Seconds before a job that found the queue full tries again."""
MOST_LOSSES = 3
"""Workers that may be lost over the same lines: those lines may be what ends them."""
MEDIA_TYPES: dict[JobKind, str] = {
    "text": "text/plain; charset=utf-8",
    "tmx": "application/x-tmx+xml",
    "xliff": "application/xliff+xml",
    "po": "text/x-gettext-translation",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "json": "application/json",
    "html": "text/html",
}
"""The kinds of files, each with the type of its content."""
FIELDS = {
    **{name: str(field.description) for name, field in Choosing.model_fields.items()},
    "kind": "Kind of the file; left out, its name decides, or it is text.",
    "segment": "line, or paragraph to translate sentence by sentence.",
    "beam": "Number of hypotheses that the search keeps.",
}
"""The fields of a form, beside its file, and what they are."""


class _TextFile:
    """Lines of text."""

    message: type[messages.Request] = messages.Translate
    """Ask for the translations of lines."""

    def __init__(self, data: bytes) -> None:
        """Read them; Refusal for what isn't UTF-8. An empty text has none, and only a newline ends a line."""
        try:
            text = data.removeprefix(b"\xef\xbb\xbf").decode()
        except UnicodeDecodeError as error:
            raise Refusal("invalid", f"the file is not UTF-8 (byte {error.start:,})") from None
        lines = text.removesuffix("\n").split("\n") if text else []
        self.lines = [line.removesuffix("\r").replace("\r", " ").replace("\0", " ") for line in lines]

    def to_check(self, start: int, end: int) -> dict[str, Any]:
        """Return the fields of the message that asks whether some of its lines can be translated."""
        return {"lines": self.lines[start:end], "first_line": start + 1}

    def to_translate(self, start: int, end: int) -> dict[str, Any]:
        """Return the fields of the message that asks for some of its lines."""
        return self.to_check(start, end)

    def written(self, rows: Sequence[Row]) -> bytes:
        """Return the file with the translations."""
        return "".join(f"{row['translations'][0]['text']}\n" for row in rows).encode()


class _DocumentFile:
    """A document, of which all bytes but those of translations stay as they are."""

    message: type[messages.Request] = messages.TranslateTagged

    def __init__(self, data: bytes, kind: DocumentKind, languages: tuple[str, str] | None) -> None:
        """Read its texts, but those that have a translation; Refusal where it can't be read."""
        self._data = data
        self._texts: list[tuple[Unit, Document | Segments]] = []
        self.lines = list[str]()
        self._linked = set[int]()
        try:
            units = read_units(data, kind, "the file", languages)
            for unit in units:
                if not unit.is_translated:
                    self._take(unit, tags_of(kind))
        except GlassformerError as error:
            raise Refusal("invalid", str(error)) from None

    def _take(self, unit: Unit, format: Format) -> None:
        """Add a text, which is taken apart at its tags or at the ends of its lines."""
        if not unit.has_tags:
            lines = lines_of(unit.source)
            self._texts.append((unit, lines))
            self.lines += [" ".join(line.replace("\0", " ").split()) for line in lines.texts]
            return
        document = Document(unit.source, format)
        self._texts.append((unit, document))
        for segment in document.segments:
            if segment.elements:
                self._linked.add(len(self.lines))
            self.lines.append(segment.text)

    def to_check(self, start: int, end: int) -> dict[str, Any]:
        """Return the fields of the message that asks whether some of its lines can be translated.

        Their placeholders are copied: programs need them.
        """
        return {"lines": self.lines[start:end], "first_line": start + 1, "placeholders": True}

    def to_translate(self, start: int, end: int) -> dict[str, Any]:
        """Return the fields of the message that asks for some of its lines."""
        linked = [n - start for n in range(start, min(end, len(self.lines))) if n in self._linked]
        return self.to_check(start, end) | {"linked": linked}

    def written(self, rows: Sequence[Row]) -> bytes:
        """Return the file with the translations."""
        coming, edits = iter(rows), list[Edit]()
        for unit, text in self._texts:
            if isinstance(text, Document):
                [translation] = put_in_documents([text], coming)
            else:
                translation = text.joined([next(coming)["text"] for _ in text.texts])
            edits += unit.place(translation)
        return apply(self._data, edits)


@dataclass
class _Work:
    """A job, and what the server knows of it."""

    id: str
    key: str
    run: ServedRun
    kind: JobKind
    search: dict[str, Any]
    paragraphs: bool
    """Its lines are translated sentence by sentence."""
    file: _TextFile | _DocumentFile | None
    """The file, which is forgotten once it is translated."""
    total: int
    """Number of its lines."""
    state: JobState = "waiting"
    done: int = 0
    error: str | None = None
    ended: float | None = None
    task: asyncio.Task[None] | None = None
    rows: list[Row] = field(default_factory=list)
    """The translations so far."""

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

    def begin(self, work: _Work, visit: Visit) -> None:
        """Take on a job; Refusal where there are too many, or its client has had its characters of this minute."""
        self._forget()
        self._folder = self._folder or _new_folder()
        if len(self._works) >= self._service.config.max_jobs:
            raise Refusal("busy", f"there are {len(self._works)} jobs already: remove those that are done", 60)
        self._service.allow(visit)
        self._works[work.id] = work
        work.task = asyncio.create_task(self._run(work))

    def find(self, number: str, key: str) -> _Work:
        """Return the job of this id, if it belongs to the key; Refusal where there is none."""
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
                file = work.file
                assert file is not None
                parts = [(start, start + AT_ONCE) for start in range(0, work.total, AT_ONCE)]
                for part in parts:  # a line that can't be translated is told before others were
                    await self._answered(work, messages.Check, file.to_check(*part))
                for part in parts:
                    work.rows += await self._answered(work, file.message, file.to_translate(*part))
                    work.done = len(work.rows)
                await asyncio.to_thread(self._write, work, file)
            work.state = "done"
        except Refusal as failure:
            work.state, work.error = "failed", str(failure)
        except OSError as error:
            work.state, work.error = "failed", f"the result can't be written: {error.strerror}"
        except asyncio.CancelledError:
            work.state = "cancelled"
            raise
        finally:
            if work.state == "running":  # a fault of ours, which the log shows
                work.state, work.error = "failed", "the server failed: see its log"
            work.ended = time.monotonic()
            work.rows, work.file = [], None

    async def _answered(self, work: _Work, kind: type[messages.Request], fields: dict[str, Any]) -> list[Row]:
        """Return the rows of an answer about some lines, whenever there is room in the queue."""
        losses = 0
        while True:
            try:
                return [
                    *await self._service.ask(
                        work.run, kind, LONGEST, paragraphs=work.paragraphs, **fields, **work.search
                    )
                ]
            except Refusal as failure:
                losses += failure.code == "worker_lost"
                if failure.code not in ("busy", "starting", "worker_lost") or losses == MOST_LOSSES:
                    raise
            await asyncio.sleep(PAUSE)

    def _write(self, work: _Work, file: _TextFile | _DocumentFile) -> None:
        content = file.written(work.rows)
        try:
            self.path(work).write_bytes(content)
        except FileNotFoundError:  # temporary folders are removed after some days
            if self._works.get(work.id) is not work:
                return  # it was removed meanwhile, or all of them
            gone, self._folder = self._folder, _new_folder()
            if gone is not None:
                gone.cleanup()
            self.path(work).write_bytes(content)
        if self._works.get(work.id) is not work:  # it was removed as this was written
            self.path(work).unlink(missing_ok=True)

    def _forget(self) -> None:
        """Remove the jobs whose time is over."""
        before = time.monotonic() - 60 * self._service.config.job_minutes
        for work in [work for work in self._works.values() if work.ended is not None and work.ended < before]:
            self.remove(work)


def _new_folder() -> TemporaryDirectory[str]:
    """Return a folder for results, which others may remove."""
    return TemporaryDirectory(prefix="glassformer-jobs-", ignore_cleanup_errors=True)


def make_router(service: Service, jobs: Jobs) -> APIRouter:
    """Return the routes."""
    missing: dict[int | str, dict[str, Any]] = {404: {"model": Failure}}
    router = APIRouter(prefix="/v1/jobs", tags=["Jobs"], responses=FAILURES)
    fields = {name: {"type": "string", "description": about} for name, about in FIELDS.items()}
    form = {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "format": "binary", "description": "The file."}, **fields},
    }
    described = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}

    @router.post("", status_code=202, openapi_extra=described, responses=TOO_MUCH)
    async def begin(request: Request) -> Job:
        """Begin to translate a file."""
        visit: Visit = request.state.visit
        given = await read_form(request, service.config.max_file_bytes)
        work = await _planned(service, visit, given)
        jobs.begin(work, visit)
        return work.described()

    @router.get("/{number}", responses=missing)
    async def progress(number: str, request: Request) -> Job:
        """Return how far a job is."""
        return jobs.find(number, request.state.visit.key).described()

    @router.get("/{number}/result", response_class=StreamingResponse, responses=missing)
    async def result(number: str, request: Request) -> Response:
        """Return the translated file."""
        work = jobs.find(number, request.state.visit.key)
        if work.state != "done":
            raise Refusal("not_found", f"the job has no result: it is {work.state}")
        try:
            file = jobs.path(work).open("rb")
        except FileNotFoundError:
            raise Refusal("not_found", "the job has no result: its file was removed") from None
        ending = ".txt" if work.kind == "text" else ENDINGS_OF[work.kind][0]
        headers = {"content-disposition": f'attachment; filename="translated{ending}"'}
        closing = BackgroundTask(file.close)  # also where nobody reads it
        return StreamingResponse(_blocks(file), media_type=MEDIA_TYPES[work.kind], headers=headers, background=closing)

    @router.delete("/{number}", status_code=204, responses=missing)
    async def remove(number: str, request: Request) -> None:
        """End a job, and remove what it made."""
        jobs.remove(jobs.find(number, request.state.visit.key))

    return router


async def _planned(service: Service, visit: Visit, given: dict[str, Any]) -> _Work:
    """Return the job that a form asks for."""
    if unknown := set(given) - {"file", *FIELDS}:
        raise Refusal("invalid", f"the form has {len(unknown)} unknown fields")
    if not isinstance(given.get("file"), tuple):
        raise Refusal("invalid", "file is missing: send a form with a file of that name")
    name, data = given["file"]
    kind = str(given.get("kind") or kind_of(name) or "text")
    if kind not in MEDIA_TYPES:
        raise Refusal("invalid", f"kind must be one of {', '.join(MEDIA_TYPES)}")
    wanted = str(given.get("beam") or service.search()["beam"])
    if not re.fullmatch("[0-9]{1,4}", wanted) or not 1 <= int(wanted) <= service.config.max_beam:
        raise Refusal("invalid", f"beam must be a whole number from 1 to {service.config.max_beam}")
    search = service.search(beam=int(wanted))
    segment = given.get("segment") or "line"
    if segment not in SEGMENTATIONS:
        raise Refusal("invalid", f"segment must be {' or '.join(SEGMENTATIONS)}")
    chosen = {side: str(given[side]) for side in ("run", "source", "target") if given.get(side)}
    run = service.chosen(Choosing(**chosen))
    languages = (run.source, run.target) if run.source else None
    file = _TextFile(data) if kind == "text" else await asyncio.to_thread(_DocumentFile, data, kind, languages)
    lines = file.lines
    config = service.config
    if len(lines) > config.max_job_lines:
        raise Refusal("too_many_lines", f"a job may have at most {config.max_job_lines:,} lines, got {len(lines):,}")
    for number, line in enumerate(lines, start=1):
        if len(line) > config.max_line_chars:
            raise Refusal("too_long", f"line {number} has {len(line):,} characters, at most {config.max_line_chars:,}")
    service.note(visit, lines)
    paragraphs = segment == "paragraph"
    return _Work(secrets.token_hex(16), visit.key, run, kind, search, paragraphs, file, len(lines))


async def _blocks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield a file in blocks, and close it."""
    with file:
        while block := await asyncio.to_thread(file.read, 1 << 16):
            yield block
