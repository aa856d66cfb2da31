"""The files of the page: their addresses, types, tags, and what a browser may keep of them."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from glassformer.page.assets import PACKAGE
from glassformer.serve import website
from glassformer.serve.keys import add_key

WEB = Path(website.__file__).parent / "web"
TRANSLATOR = PACKAGE / "page" / "translator"
SHARED = {"chosen.js", "data.js", "drawing.js", "map.js", "overview.js", "page.css", "saving.js", "words.js"}
IMPORTS = re.compile(r'^import [^;]*? from "([^"]+)";$', re.MULTILINE)
ATTRIBUTES = re.compile(r'(?:src|href)="(static/[^"]+)"')


@pytest.fixture(scope="module")
def app() -> FastAPI:
    made = FastAPI()
    website.add_website(made, has_keys=False)
    return made


def ask(app: Any, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = dict(type="http", http_version="1.1", method=method, path=path, headers=fields, query_string=b"")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start, *parts = sent
    told = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], told, b"".join(part.get("body", b"") for part in parts)


def loaded(app: FastAPI) -> dict[str, bytes]:
    """All files that the document leads to, by address, as a browser asks for them."""
    found: dict[str, bytes] = {}
    left = [f"/{address}" for address in ATTRIBUTES.findall(ask(app, "/")[2].decode())]
    while left:
        address = left.pop()
        if address in found:
            continue
        status, headers, found[address] = ask(app, address)
        assert status == 200, address
        assert headers["cache-control"] == "private, max-age=31536000, immutable"
        assert headers["content-type"] == website.TYPES[Path(address).suffix]
        if address.endswith(".js"):
            folder = Path(address).parent
            left += [Path("/", *_walk(folder / name)).as_posix() for name in IMPORTS.findall(found[address].decode())]
    return found


def _walk(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts[1:]:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return parts


def test_the_document_leads_to_every_file_and_to_nothing_else(app):
    names = {address.removeprefix(f"/static/{website.version()}/") for address in loaded(app)}
    own = {path.name for path in WEB.iterdir() if path.suffix in website.TYPES}
    shared = {path.name for path in TRANSLATOR.iterdir()}
    assert names == {
        *(f"serve/web/{name}" for name in own),
        *(f"page/translator/{name}" for name in shared),
        *(f"page/web/{name}" for name in SHARED),
    }


def test_nothing_is_inline_evaluated_or_from_elsewhere(app):
    document = ask(app, "/")[2].decode()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", document) == [""]
    assert not re.search(r"<style| style=| on\w+=", document)
    for address, content in loaded(app).items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")  # the name of a format
        assert not re.search(r"https?://|\beval\(|new Function|innerHTML|@import", text), address


def test_a_browser_that_has_a_file_is_told_so(app):
    for path in ("/", f"/static/{website.version()}/serve/web/main.js"):
        status, headers, body = ask(app, path)
        assert (status, bool(body)) == (200, True)
        tag = headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            status, again, body = ask(app, path, if_none_match=known)
            assert (status, body, again["etag"]) == (304, b"", tag)
        assert ask(app, path, if_none_match='"other"')[0] == 200
        assert ask(app, path, "HEAD")[:2] == (200, headers)


def test_the_document_and_files_of_another_version_are_asked_for_again(app):
    for path in ("/", "/static/older/serve/web/main.js"):
        assert ask(app, path)[1]["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        *("serve/web/index.html", "serve/web/../app.py", "serve/app.py", "page/web/page.html", "serve/web", "", "/"),
        *("serve/web/main.js/", "..%2f..%2fetc/passwd", "../../../../etc/passwd", "/etc/passwd"),
    ],
)
def test_there_are_no_other_files(app, path):
    assert ask(app, f"/static/{website.version()}/{path}")[0] == 404


def test_nothing_is_written(app):
    assert ask(app, "/", "POST")[0] == 405


def test_they_are_loaded_under_the_policy_of_all_answers(client):
    asks = client()
    for path in ("/", f"/static/{website.version()}/serve/web/main.js"):
        reply = asks("GET", path)
        assert reply.status == 200
        policy = reply.headers["content-security-policy"]
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy.split("; "))
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_with_keys_nobody_has_them_without_one_not_even_a_cache_that_is_shared(client, tmp_path):
    keys = tmp_path / "keys.json"
    key = add_key(keys, "alice")
    asks = client(keys=keys)
    for path in ("/", f"/static/{website.version()}/serve/web/main.js", "/openapi.json"):
        assert asks("GET", path).status == 401
        reply = asks("GET", path, authorization=f"Bearer {key}")
        assert reply.status == 200
        assert "public" not in reply.headers["cache-control"]
