"""LibreTranslate's API, as its clients speak it."""

import re
from asyncio import to_thread
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from glassformer.generation.segments.sentences import segments_of
from glassformer.markup.segments import Document
from glassformer.run.languages import name_of
from glassformer.serve.guard.visits import Visit
from glassformer.serve.languages import ServedRun
from glassformer.serve.schemas import (
    FAILURES,
    TOO_MUCH,
    Closed,
    DetectedLanguage,
    DetectRequest,
    Language,
    LibreAnswer,
    LibreRequest,
    Status,
)
from glassformer.serve.service import Service
from glassformer.serve.strict import StrictRoute, content_type, invalid, read_form, read_json
from glassformer.serve.workers import messages
from glassformer.serve.workers.messages import Refusal
from glassformer.serve.workers.rows import put_in_documents

Model = TypeVar("Model", bound=Closed)
AUTO = "auto"
_LINES = re.compile(r"(\r\n|\n|\r)")


def make_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["LibreTranslate's API"], route_class=StrictRoute, responses=FAILURES)

    about = _described(LibreRequest)

    @router.post("/translate", openapi_extra=about, response_model=LibreAnswer, responses=TOO_MUCH)
    async def translate(request: Request) -> Any:
        """Translate a text, or several."""
        given = await _read(request, needed=("q", "source", "target"))
        answer = await _translate(service, _checked(LibreRequest, given), request.state.visit)
        return JSONResponse(answer.model_dump(exclude_none=True))

    @router.post("/detect", openapi_extra=_described(DetectRequest))
    async def detect(request: Request) -> list[DetectedLanguage]:
        """Return the language that all runs translate from; an error where there are several."""
        wanted = _checked(DetectRequest, await _read(request, needed=("q",)))
        service.check_chars([wanted.q] if isinstance(wanted.q, str) else wanted.q)
        return [DetectedLanguage(language=service.only_source())]

    @router.get("/languages")
    async def languages() -> list[Language]:
        """Return the languages that are translated from, each with those that it is translated to."""
        pairs = [(run.source, run.target) for run in service.runs.values() if run.source]
        codes = dict.fromkeys(code for pair in pairs for code in pair)
        targets = {code: sorted(target for source, target in pairs if source == code) for code in codes}
        return [Language(code=code, name=name_of(code), targets=targets[code]) for code in codes]

    @router.get("/health")
    async def health() -> Status:
        """Return ok: the server answers."""
        return Status(status="ok")

    @router.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Return what LibreTranslate's own page asks for."""
        config = service.config
        first = next((run for run in service.runs.values() if run.source), None)
        source, target = (first.source, first.target) if first else ("", "")
        return {
            "apiKeys": config.keys is not None,
            "charLimit": config.max_chars,
            "filesTranslation": False,
            "frontendTimeout": 500,
            "keyRequired": config.keys is not None,
            "language": {
                "source": {"code": source, "name": name_of(source)},
                "target": {"code": target, "name": name_of(target)},
            },
            "suggestions": False,
            "supportedFilesFormat": [],
        }

    return router


def _described(model: type[Closed]) -> dict[str, Any]:
    """Return what OpenAPI says of a route that takes a model as JSON and as a form."""
    schema = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, schema)}}


async def _read(request: Request, needed: tuple[str, ...]) -> dict[str, Any]:
    """Return what is asked for, in JSON or a form; Refusal where a field that is needed is missing or empty."""
    kind = content_type(request)
    given = await read_json(request) if kind == "application/json" else await read_form(request)
    for name in needed:
        if given.get(name) in (None, "", []):
            raise Refusal("invalid", f"Invalid request: missing {name} parameter")  # LibreTranslate's own words
    if kind != "application/json" and "alternatives" in given:
        if not re.fullmatch(r"[0-9]{1,4}", str(given["alternatives"])):
            raise Refusal("invalid", "alternatives must be a whole number")
        given["alternatives"] = int(given["alternatives"])
    return given


def _checked(model: type[Model], given: dict[str, Any]) -> Model:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise Refusal("invalid", invalid(error.errors())) from None


async def _translate(service: Service, wanted: LibreRequest, visit: Visit) -> LibreAnswer:
    run = service.for_target(wanted.target) if wanted.source == AUTO else service.for_pair(wanted.source, wanted.target)
    n_best = 1 + (wanted.alternatives or 0)
    if n_best > (most := service.config.max_n_best):
        raise Refusal("invalid", f"alternatives must be at most {most - 1}, got {n_best - 1}")
    texts = [wanted.q] if isinstance(wanted.q, str) else list(wanted.q)
    service.check_chars(texts)
    if wanted.format == "html":
        return _answer(wanted, run, [[text] for text in await _with_tags(service, run, texts, visit)])
    documents = [segments_of(_LINES.split(text)) for text in texts]
    lines = [" ".join(line.splitlines()) for document in documents for line in document.texts]
    service.admit(run, visit, lines)
    found = await _found(service, run, lines, n_best)
    answers: list[list[str]] = []
    for document in documents:
        own, found = found[: len(document.texts)], found[len(document.texts) :]
        made = [document.joined([texts[min(n, len(texts) - 1)] for texts in own]) for n in range(n_best)]
        answers.append(list(dict.fromkeys(made)))
    return _answer(wanted, run, answers)


async def _with_tags(service: Service, run: ServedRun, texts: list[str], visit: Visit) -> list[str]:
    """Return the translation of each text in HTML."""
    documents = [Document(text, "html") for text in texts]
    segments = [segment for document in documents for segment in document.segments]
    lines = [segment.text for segment in segments]
    service.admit(run, visit, lines)
    linked = [n for n, segment in enumerate(segments) if segment.elements]
    rows: list[dict[str, Any]] = []
    if lines:
        asked: dict[str, Any] = dict(lines=lines, paragraphs=run.segment == "paragraph", linked=linked)
        rows = await service.ask(run, messages.TranslateTagged, **asked, **service.search())
    return await to_thread(put_in_documents, documents, rows)


async def _found(service: Service, run: ServedRun, lines: list[str], n_best: int) -> list[list[str]]:
    """Return up to `n_best` translations of each line."""
    if not lines:
        return []
    search = service.search(n_best=n_best)
    rows = await service.ask(run, messages.Translate, lines=lines, paragraphs=run.segment == "paragraph", **search)
    return [[one["text"] for one in row["translations"]] for row in rows]


def _answer(wanted: LibreRequest, run: ServedRun, answers: list[list[str]]) -> LibreAnswer:
    best, others = [made[0] for made in answers], [made[1:] for made in answers]
    is_one = isinstance(wanted.q, str)
    detected = DetectedLanguage(language=run.source)
    return LibreAnswer(
        translatedText=best[0] if is_one else best,
        alternatives=(others[0] if is_one else others) if wanted.alternatives else None,
        detectedLanguage=None if wanted.source != AUTO else detected if is_one else [detected] * len(answers),
    )
