"""Find the key of a request: in its Authorization header, or in its body as clients of LibreTranslate send it."""

import base64
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from glassformer.decoding import decode_json
from glassformer.serve.guard.asgi import Scope
from glassformer.serve.guard.paths import LIBRE

MOST_KEY_CHARS = 256
CHALLENGE = {"www-authenticate": 'Bearer realm="key"'}
"""Says that a key is needed, to who can't be asked for a name and a password."""
BASIC_CHALLENGE = {"www-authenticate": 'Basic realm="any name, and the key as password", charset="UTF-8"'}
_KEY_OF_FORM = re.compile(
    rb'(?im:^content-disposition:(?>[^\r\n]{0,300}?;[ \t]*name=(?:"api_key"|api_key(?=[;\r]))))[^\r\n]*+\r\n'
    rb"(?>(?:[^\r\n]{1,300}\r\n){0,8})\r\n([^\r\n]{1,256})\r\n"
)
"""Find the part of a form that holds the key. No line is tried twice: anybody may send a body that is searched."""


def may_have_key_in_body(scope: Scope, headers: dict[str, str]) -> bool:
    """Return whether a request may have its key where LibreTranslate's clients have it."""
    return scope["path"] in LIBRE and "authorization" not in headers


def given_key(headers: dict[str, str], body: bytes) -> str | None:
    """Return the key of a request; None where it has none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()[:MOST_KEY_CHARS]
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(given, validate=True).decode().partition(":")[2][:MOST_KEY_CHARS]
        return None
    kind = content_kind(headers)
    if kind == "multipart/form-data":
        found = _KEY_OF_FORM.search(body)
        return found[1].decode(errors="replace") if found else None
    with suppress(ValueError):
        if kind == "application/x-www-form-urlencoded":
            return form_fields(body).get("api_key", "")[:MOST_KEY_CHARS]
        if kind == "application/json":
            found = decode_json(body, Any)
            key = found.get("api_key") if isinstance(found, dict) else None
            return key[:MOST_KEY_CHARS] if isinstance(key, str) else None
    return None


def challenge(headers: dict[str, str]) -> dict[str, str]:
    """Return the header field that says how to give a key. For one of them a browser asks by itself, above the page."""
    return CHALLENGE if is_of_page(headers) else BASIC_CHALLENGE


def is_of_page(headers: dict[str, str]) -> bool:
    """Return whether a script of the page makes a request, which says so as scripts of many pages do."""
    return "x-requested-with" in headers


def content_kind(headers: dict[str, str]) -> str:
    """Return the kind of a request's body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def form_fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form; ValueError where it is none, or has too many."""
    return dict(parse_qsl(body.decode(), max_num_fields=20))
