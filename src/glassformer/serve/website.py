"""The page at `/`: its files, which are those of serve/web and what `page` shares with them, and how they are sent.

A script's address is its place in the package, so that scripts import each other as they lie there. Before it stands
the version of all files together: a browser may keep what it has of a version for ever.

Nothing is inline and nothing comes from elsewhere, so that the policy of `guard` holds for the page too.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response

from glassformer.page.assets import translator_code

DOCUMENT = Path(__file__).parent / "web" / "index.html"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
FOR_EVER, ASK = "private, max-age=31536000, immutable", "no-cache"


@dataclass(frozen=True)
class WebFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    tag: str
    """Its ETag: a digest of the content, in quotes."""


def add_website(app: FastAPI, *, has_keys: bool) -> None:
    """Add the page's routes to an app. Where the server has keys, the page lets people sign out."""

    async def page(request: Request) -> Response:
        return _response(request, document(has_keys), ASK)

    app.add_route("/", page, include_in_schema=False)
    app.add_route("/static/{version}/{path:path}", _file, include_in_schema=False)


@cache
def files() -> dict[str, WebFile]:
    """Return the page's scripts and styles, by their places in the package."""
    return {
        path: _web_file(content, TYPES[Path(path).suffix]) for path, content in translator_code("serve/web").items()
    }


@cache
def version() -> str:
    """Return a digest of all files."""
    return _digest("".join(one.tag for one in files().values()).encode())


@cache
def document(has_keys: bool) -> WebFile:
    """Return the document, with the addresses of this version's files."""
    text = DOCUMENT.read_text(encoding="utf-8")
    text = text.replace("{version}", version()).replace("{has_keys}", "true" if has_keys else "false")
    return _web_file(text.encode(), "text/html; charset=utf-8")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def _web_file(content: bytes, media_type: str) -> WebFile:
    return WebFile(content, media_type, f'"{_digest(content)}"')


async def _file(request: Request) -> Response:
    if (found := files().get(request.path_params["path"])) is None:
        raise HTTPException(404)
    return _response(request, found, FOR_EVER if request.path_params["version"] == version() else ASK)


def _response(request: Request, file: WebFile, keep: str) -> Response:
    """Return a file, or only that the browser has it already."""
    headers = {"ETag": file.tag, "Cache-Control": keep}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
