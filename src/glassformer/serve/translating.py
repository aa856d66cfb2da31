"""The routes under /v1: runs, translations with all that is known of them, streams, and alternatives."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from msgspec.json import encode

from glassformer.run.languages import name_of
from glassformer.serve.guard.visits import Visit
from glassformer.serve.languages import ServedRun
from glassformer.serve.schemas import (
    FAILURES,
    TOO_MUCH,
    AlternativesAnswer,
    AlternativesRequest,
    Run,
    Runs,
    StreamRequest,
    Term,
    TranslateAnswer,
    TranslateRequest,
)
from glassformer.serve.service import Service, facts_of
from glassformer.serve.strict import StrictRoute
from glassformer.serve.workers import messages
from glassformer.serve.workers.messages import Answer, Refusal
from glassformer.text.units import units_of

LONGEST_TERM = 200
"""Most characters of a term, and of all its targets together."""


def make_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1", tags=["Translations"], route_class=StrictRoute, responses=FAILURES)

    @router.get("/runs")
    async def runs() -> Runs:
        """Return the runs that are served, and the server's limits."""
        return Runs(runs=[_described(service, run) for run in service.runs.values()], limits=service.config.limits)

    @router.post("/translate", response_model=TranslateAnswer, responses=TOO_MUCH)
    async def translate(wanted: TranslateRequest, request: Request) -> Any:
        """Translate lines, with scores, probabilities of words, and attention."""
        lines = [wanted.q] if isinstance(wanted.q, str) else list(wanted.q)
        names = ("beam", "n_best", "max_length", "length_penalty")
        search = service.search(**{name: getattr(wanted, name) for name in names})
        run = _admitted(service, wanted, lines, request.state.visit)
        rows = await service.ask(run, messages.Translate, **search, **_asked(wanted, lines))
        return as_json(_answer(run, rows))

    @router.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses=TOO_MUCH
        | {200: {"content": {"text/event-stream": {}}, "description": "Events: start, piece, done, error."}},
    )
    async def stream(wanted: StreamRequest, request: Request) -> Any:
        """Translate a line greedily, piece by piece as it is chosen."""
        max_length = service.search(max_length=wanted.max_length)["max_length"]
        service.check_line(wanted.q)
        run = service.chosen(wanted)
        service.admit(run, request.state.visit, [wanted.q])
        asked = dict(line=wanted.q, max_length=max_length, attention=facts_of(wanted.attention))
        coming = service.follow(run, messages.Stream, **asked)
        first = await anext(coming)  # what is refused before it begins is an answer of its own
        unbuffered = {"x-accel-buffering": "no"}  # for nginx
        kind = "text/event-stream; charset=utf-8"
        return StreamingResponse(_events(run, first, coming), media_type=kind, headers=unbuffered)

    @router.post("/alternatives", response_model=AlternativesAnswer, responses=TOO_MUCH)
    async def alternatives(wanted: AlternativesRequest, request: Request) -> Any:
        """Return the likeliest next pieces after the first ones of a translation."""
        service.check_line(wanted.q)
        run = service.chosen(wanted)
        if len(wanted.prefix) > service.config.max_length:
            raise Refusal("invalid", f"prefix may have at most {service.config.max_length} pieces")
        service.admit(run, request.state.visit, [wanted.q])
        asked: dict[str, Any] = dict(line=wanted.q, prefix=list(wanted.prefix), count=wanted.count)
        rows = await service.ask(run, messages.Alternatives, **asked)
        return as_json({"run": run.name, "alternatives": rows})

    return router


def as_json(value: dict[str, Any]) -> Response:
    """Return an answer that is known to fit its schema."""
    return Response(encode(value), media_type="application/json")


def _described(service: Service, run: ServedRun) -> Run:
    ready, model = service.pools[run.name].ready, run.model
    return Run(
        run=run.name,
        source=run.source,
        target=run.target,
        source_name=name_of(run.source),
        target_name=name_of(run.target),
        encoder_layers=model.encoder_layers,
        decoder_layers=model.decoder_layers,
        heads=model.heads,
        precision=ready.precision if ready else "",
        parameters=ready.parameters if ready else 0,
        segment=run.segment,
        ready=ready is not None,
    )


def _admitted(service: Service, wanted: TranslateRequest, lines: list[str], visit: Visit) -> ServedRun:
    """Return the run that a request chooses, once all is checked that can be without its model."""
    for line in lines:
        service.check_line(line)
    if wanted.prefixes is not None:
        if len(wanted.prefixes) != len(lines):
            raise Refusal("invalid", f"prefixes must be one for each line: {len(wanted.prefixes)} for {len(lines)}")
        for prefix in wanted.prefixes:
            if isinstance(prefix, str):
                service.check_line(prefix, "prefixes")
            if len(prefix) > service.config.max_line_chars:
                raise Refusal("too_long", f"a prefix may have at most {service.config.max_line_chars:,} characters")
    if wanted.glossary is not None:
        _check_terms(service, wanted.glossary)
    if wanted.segment == "paragraph":
        _check_paragraphs(wanted)
    most = service.config.max_attention_lines
    if wanted.attention is not None and len(lines) > most:
        raise Refusal("too_many_lines", f"attention is observed for at most {most} lines at once, got {len(lines)}")
    run = service.chosen(wanted)
    service.admit(run, visit, lines)
    return run


def _check_paragraphs(wanted: TranslateRequest) -> None:
    """Raise Refusal for what the sentences of a line can't have together."""
    asked = {
        "n_best": wanted.n_best > 1,
        "prefixes": wanted.prefixes is not None,
        "scores": wanted.scores,
        "confidence": wanted.confidence,
        "attention": wanted.attention is not None,
    }
    if too_much := [name for name, is_asked in asked.items() if is_asked]:
        raise Refusal(
            "invalid", f"segment paragraph has one text with its score for each line: leave out {', '.join(too_much)}"
        )


def _check_terms(service: Service, terms: Sequence[Term]) -> None:
    """Raise Refusal for terms that are too many or too long, or that no line can have."""
    if len(terms) > (most := service.config.max_terms):
        raise Refusal("invalid", f"glossary may have at most {most:,} terms, got {len(terms):,}")
    for number, term in enumerate(terms):
        for name, texts in (("source", [term.source]), ("target", _forms(term))):
            for text in texts:
                service.check_line(text, f"glossary[{number}].{name}")
            if (chars := sum(map(len, texts))) > LONGEST_TERM:
                at_most = f"at most {LONGEST_TERM:,} characters"
                raise Refusal("too_long", f"glossary[{number}].{name} has {chars:,} characters, and may have {at_most}")
        if not units_of(term.source):
            raise Refusal("invalid", f"glossary[{number}].source must have letters or marks")


def _forms(term: Term) -> list[str]:
    return [term.target] if isinstance(term.target, str) else list(term.target)


def _asked(wanted: TranslateRequest, lines: list[str]) -> dict[str, Any]:
    """Return the fields of the message for a worker."""
    names = ("prefixes", "placeholders", "scores", "confidence")
    fields = {name: getattr(wanted, name) for name in names}
    terms = [(term.source, _forms(term)) for term in wanted.glossary or ()]
    fields |= {"lines": lines, "paragraphs": wanted.segment == "paragraph"}
    return {**fields, "terms": terms, "attention": facts_of(wanted.attention)}


def _answer(run: ServedRun, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"run": run.name, "source": run.source, "target": run.target, "lines": rows}


async def _events(
    run: ServedRun, first: messages.Event | Answer, coming: AsyncGenerator[messages.Event | Answer]
) -> AsyncIterator[bytes]:
    """Yield server-sent events: start, pieces, and done or error."""
    about = {"run": run.name, "source": run.source, "target": run.target}
    message: messages.Event | Answer | None = first
    try:
        while message is not None:
            if isinstance(message, Answer):
                yield _event("done", _answer(run, message.value))
            else:
                yield _event(message.kind, about | message.data if message.kind == "start" else message.data)
            message = await anext(coming, None)
    except Refusal as failure:
        yield _event("error", {"error": str(failure), "code": failure.code})
    finally:
        await coming.aclose()


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode(data) + b"\n\n"
