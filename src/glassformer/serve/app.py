"""The application: all routes, what their errors become, and the guard around them."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from glassformer.data.processes import count_cores
from glassformer.serve import jobs, libretranslate, translating
from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.guard import Guard
from glassformer.serve.guard.paths import LIVE, READY
from glassformer.serve.guard.sending import STATUS, failure_headers
from glassformer.serve.keys import KeyFile
from glassformer.serve.languages import ServedRun
from glassformer.serve.meters import Meters
from glassformer.serve.schemas import FAILURES, DetectRequest, LibreRequest, Status
from glassformer.serve.service import Service
from glassformer.serve.strict import invalid
from glassformer.serve.website import add_website
from glassformer.serve.workers.messages import Refusal, Settings
from glassformer.serve.workers.pool import Pool
from glassformer.serve.workers.terms import read_terms

ABOUT = "Translates with runs of glassformer, and shows where they looked. Each error is a code and a sentence."
CODES = {400: "invalid", 404: "not_found", 405: "wrong_method", 413: "too_large"}
"""The code of an error that has a status alone."""
SENTENCES = {404: "there is no such route", 405: "the route doesn't take this method"}
CPU_WORKERS = 2
"""Most workers of a run that is computed on a CPU, where nobody says how many."""


class Server:
    """The application with what it owns: workers, jobs, meters. `guard` is what uvicorn runs."""

    def __init__(self, config: ServeConfig, runs: Sequence[ServedRun]) -> None:
        self.config = config
        self.meters = Meters()
        self._terms = read_terms(config, runs)
        self.pools = {run.name: self._pool(run) for run in runs}
        self.service = Service(config, runs, self.pools, self.meters)
        self.jobs = jobs.Jobs(self.service)
        keys = None if config.keys is None else KeyFile(config.keys)
        self.guard = Guard(self._application(), config, keys, self.meters)

    async def start(self) -> None:
        """Start the workers and wait until all are ready; GlassformerError says why one can't be."""
        for pool in self.pools.values():
            await pool.start()

    def give_up(self) -> None:
        """Refuse what is under way, because the server ends."""
        for pool in self.pools.values():
            pool.give_up()

    async def stop(self) -> None:
        """End jobs and workers."""
        await self.jobs.stop()
        for pool in self.pools.values():
            await pool.stop()

    @property
    def is_ready(self) -> bool:
        """Return whether new work is taken on, and can be done."""
        return self.service.is_ready and not self.guard.draining

    def _pool(self, run: ServedRun) -> Pool:
        config, meters = self.config, self.meters
        workers = config.workers or min(CPU_WORKERS, count_cores())
        settings = Settings(
            run=str(run.folder.resolve()),
            device=config.device,
            precision=config.precision,
            threads=config.threads,
            workers=workers,
            gather_seconds=config.gather_ms / 1000,
            batch_tokens=config.batch_tokens,
            max_source_tokens=config.max_source_tokens,
            share_batches=config.share_batches,
            terms=self._terms[run.name],
            placeholders=config.placeholders,
        )
        return Pool(
            settings,
            or_one=config.workers is None,
            queue=config.max_queue,
            measured=lambda batch: meters.translated(run.name, batch),
            lost=lambda: meters.lost(run.name),
        )

    def _application(self) -> FastAPI:
        app = FastAPI(
            title="glassformer",
            description=ABOUT,
            version="1",
            redirect_slashes=False,
            docs_url=None,
            redoc_url=None,
            exception_handlers={
                Refusal: _failed,
                RequestValidationError: _misunderstood,
                HTTPException: _refused,
                Exception: _broken,
            },
        )
        app.include_router(libretranslate.make_router(self.service))
        app.include_router(translating.make_router(self.service))
        app.include_router(jobs.make_router(self.service, self.jobs))
        add_website(app, has_keys=self.config.keys is not None)
        self._add_operation(app)
        original = app.openapi

        def openapi() -> dict[str, Any]:
            described = original()
            for route in (route for methods in described["paths"].values() for route in methods.values()):
                route["responses"].pop("422", None)  # FastAPI's own, in whose place is 400
            for name in ("HTTPValidationError", "ValidationError"):
                described["components"]["schemas"].pop(name, None)
            for model in (LibreRequest, DetectRequest):  # whose routes read them themselves: JSON or a form
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                described["components"]["schemas"].setdefault(model.__name__, schema)
            return described

        app.openapi = openapi
        return app

    def _add_operation(self, app: FastAPI) -> None:
        """Add the routes for whoever runs the server."""

        @app.get(LIVE, tags=["Operation"], responses=FAILURES)
        async def live() -> Status:
            """Return ok: the server answers. No model is asked."""
            return Status(status="ok")

        @app.get(READY, tags=["Operation"], responses=FAILURES)
        async def ready(response: Response) -> Status:
            """Return 200 once every run has translated something, and 503 before that and while the server ends."""
            if not self.is_ready:
                response.status_code = 503
            return Status(status="ready" if self.is_ready else "stopping" if self.guard.draining else "starting")

        @app.get("/metrics", tags=["Operation"], response_class=PlainTextResponse, responses=FAILURES)
        async def metrics() -> Response:
            """Return the counters, as Prometheus reads them."""
            text = self.meters.text(self.pools, self.jobs.running)
            return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

        @app.get("/docs", include_in_schema=False)
        async def docs() -> HTMLResponse:
            """Return this description as a page, which loads nothing."""
            return HTMLResponse(as_page(app.openapi()))


async def _failed(request: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, Refusal)
    body = {"error": str(failure), "code": failure.code}
    return JSONResponse(body, STATUS[failure.code], headers=failure_headers(failure))


async def _misunderstood(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"error": invalid(error.errors()), "code": "invalid"}, 400)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentence = SENTENCES.get(error.status_code, error.detail)
    body = {"error": sentence, "code": CODES.get(error.status_code, "invalid")}
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed: its log says where", "code": "failed"}, 500)


def as_page(described: Mapping[str, Any]) -> str:
    """Return what OpenAPI says of the routes as one page of HTML without scripts."""
    parts = [f"<h1>{_text(described['info']['title'])}</h1><p>{_text(described['info']['description'])}</p>"]
    parts.append('<p>The same for programs: <a href="/openapi.json">/openapi.json</a></p>')
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {_text(path)}</code></h2>")
            parts.append(f"<p>{_text(route.get('description', ''))}</p>")
            for title, content in (("Request", route.get("requestBody", {})), ("Answer", _answer(route))):
                if kinds := content.get("content"):
                    schemas = dict.fromkeys(_type(one.get("schema", {})) for one in kinds.values())
                    parts.append(f"<p>{title} ({_text(', '.join(kinds))}): {' or '.join(schemas)}</p>")
    parts.append("<h1>Types</h1>")
    for name, schema in described["components"]["schemas"].items():
        parts.append(f'<h2 id="{_text(name)}">{_text(name)}</h2><p>{_text(schema.get("description", ""))}</p><table>')
        needed = schema.get("required", ())
        for field, one in schema.get("properties", {}).items():
            default = f"default {one['default']!r}" if one.get("default") is not None else ""
            note = "needed" if field in needed else default
            about = _text(one.get("description", ""))
            parts.append(f"<tr><td><code>{_text(field)}</code><td>{_type(one)}<td>{_text(note)}<td>{about}")
        parts.append("</table>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>glassformer: routes</title>'
    head += '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    return f"{head}{''.join(parts)}</html>"


def _answer(route: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first answer of a route, which is the good one."""
    return next(iter(route["responses"].values()))


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema in words, as HTML."""
    if "$ref" in schema:
        name = _text(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{_text(str(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return _text(" ".join([schema.get("type", "anything"), *bounds]))


def _text(text: str) -> str:
    return html.escape(text)
