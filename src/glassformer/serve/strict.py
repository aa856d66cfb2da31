"""Reading bodies: JSON without what JSON has not, forms of few fields, and errors that never repeat what was sent."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.routing import APIRoute
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from glassformer.decoding import decode_strictly
from glassformer.errors import closest
from glassformer.serve import schemas
from glassformer.serve.workers.messages import Refusal


def _fields(model: type) -> Iterable[str]:
    """Return the names of a model's fields; none of another class."""
    return model.model_fields if issubclass(model, schemas.Closed) else ()


DEEPEST = 8
"""Most lists and objects within one another."""
MOST_FIELDS = 20
"""Most fields of a form, and of an object."""
KNOWN = sorted({name for model in vars(schemas).values() if isinstance(model, type) for name in _fields(model)})
"""Names of the fields of all requests."""


class StrictRoute(APIRoute):
    """A route whose JSON is read by `parse_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly


class _StrictRequest(Request):
    """A request whose JSON is strict."""

    async def json(self) -> Any:
        """Return the body; FastAPI hands on an HTTPException as it is."""
        try:
            return parse_json(await self.body())
        except Refusal as failure:
            raise HTTPException(400, str(failure)) from None


def parse_json(body: bytes) -> Any:
    """Return the value of a body of JSON.

    Raises Refusal for what isn't UTF-8 or JSON, for NaN and Infinity, names that an object has twice, halves of
    surrogate pairs, numbers of thousands of digits, and deep nesting.
    """
    try:
        value = decode_strictly(body)
    except RecursionError:
        raise Refusal("invalid", "the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise Refusal("invalid", "the body is not UTF-8") from None
    except ValueError:
        raise Refusal("invalid", "the body is not JSON, or has NaN, huge numbers or a name twice in it") from None
    _check([value])
    return value


def content_type(request: Request) -> str:
    """Return the kind of a request's body, without its parameters."""
    return parse_options_header(request.headers.get("content-type"))[0].decode("latin-1")


async def read_json(request: Request) -> dict[str, Any]:
    """Return the object in a request's body of JSON."""
    value = parse_json(await request.body())
    if not isinstance(value, dict):
        raise Refusal("invalid", "the body must be an object")
    return value


async def read_form(request: Request, most_bytes: int = 1 << 20) -> dict[str, Any]:
    """Return the fields of a request's form; a file is its name and its bytes."""
    found: list[tuple[str, Any]]
    if content_type(request) == "application/x-www-form-urlencoded":
        found = _urlencoded(await request.body())
    else:
        try:
            async with request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=most_bytes) as form:
                found = [(name, await _value(value)) for name, value in form.multi_items()]
        except (HTTPException, UnicodeError):
            raise Refusal("invalid", "the body is not a form that can be read, or has too many fields") from None
    fields = dict(found)
    if len(fields) < len(found):
        raise Refusal("invalid", "a field of a form may be given once")
    _check([value for value in fields.values() if isinstance(value, str)])
    return fields


def _urlencoded(body: bytes) -> list[tuple[str, str]]:
    """Return the fields of a form in UTF-8, whether its characters are escaped or not: starlette takes Latin-1."""
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError:
        raise Refusal("invalid", "the body is not a form in UTF-8") from None
    except ValueError:
        raise Refusal("invalid", f"the body has too many fields, more than {MOST_FIELDS}") from None


async def _value(value: UploadFile | str) -> tuple[str, bytes] | str:
    return value if isinstance(value, str) else (value.filename or "", await value.read())


def invalid(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return what is wrong with a request, in one sentence, of what pydantic says.

    That names the field, and never what came.
    """
    said: dict[str, str] = {}
    for error in errors:
        place = [part for part in error["loc"] if part != "body"]
        name = _name(place)
        message = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if error["type"] == "missing":
            said[name] = f"{name} is missing" if place else "a body is missing"
        elif error["type"] == "extra_forbidden":
            where = _name(place[:-1]) if len(place) > 1 else "the body"
            said[where] = f"{where} has an unknown field{closest(str(place[-1]), KNOWN)}"
        elif error["type"] in ("model_attributes_type", "model_type"):
            said[name] = (
                "the body must be an object of JSON, sent as application/json"
                if not place
                else f"{name} must be an object"
            )
        else:
            must = "have at least one entry" if error["type"] == "too_short" else f"be {message}"
            said.setdefault(name, f"{name} must {must}")
    return "; ".join(list(said.values())[:3])


def _name(place: Sequence[int | str]) -> str:
    """Return a field's name, without the names that pydantic gives to the types that it tried."""
    names = ""
    for part in place:
        if isinstance(part, int):
            names += f"[{part}]"
        elif part in KNOWN:
            names += f".{part}" if names else part
    return names or "a field"


def _check(values: list[Any]) -> None:
    """Raise Refusal for values that are nested too deeply, or hold a text that can't be written."""
    depth = 0
    while values:
        depth += 1
        if depth > DEEPEST:
            raise Refusal("invalid", "the body is nested too deeply")
        below: list[Any] = []
        for value in values:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, list):
                below += value
            elif isinstance(value, dict):
                if len(value) > MOST_FIELDS:
                    raise Refusal("invalid", f"an object may have at most {MOST_FIELDS} fields")
                below += [*value.keys(), *value.values()]
        values = below


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal("invalid", "the body has half of a surrogate pair, which is no character") from None
