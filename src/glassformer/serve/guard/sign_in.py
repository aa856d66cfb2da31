"""Signing in: a page for people, whose form exchanges a key for a session.

The page says nothing about what is behind it. A session serves requests that only read, and of the others those that a
page of this server makes: a browser names the origin of each of them. So no page of another site signs anyone in or
out, or uses a session.
"""

import hashlib
import math
import re
import time
from base64 import b64encode
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import parse_qsl

from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.allowance import Allowance
from glassformer.serve.guard.asgi import Receive, Scope
from glassformer.serve.guard.cookies import cookie_with, no_cookie, read_cookie
from glassformer.serve.guard.credentials import CHALLENGE, MOST_KEY_CHARS, form_fields, is_of_page
from glassformer.serve.guard.hosts import is_own
from glassformer.serve.guard.limits import read_body
from glassformer.serve.guard.paths import PAGES, SIGN_OUT
from glassformer.serve.guard.sending import Sending
from glassformer.serve.guard.sessions import Sessions
from glassformer.serve.guard.visits import Visit
from glassformer.serve.keys import KeyFile, hash_of
from glassformer.serve.workers.messages import Refusal

MOST_BYTES = 4096
"""Largest body of somebody who signs in."""
PAGE = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
STYLE = PAGE.template.partition("<style>")[2].partition("</style>")[0]
STYLE_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",  # without a referrer a browser doesn't name the origin of a form
    "vary": "accept-language, cookie",
}
ENGLISH = {
    "language": "en",
    "title": "Sign in",
    "label": "Key",
    "button": "Sign in",
    "note": "Whoever runs this server gives out the keys.",
    "other": "zh",
    "other_name": "中文",
    "wrong": "This key was not accepted.",
    "often": "There were too many attempts. Try again in {} s.",
}
CHINESE = {
    "language": "zh",
    "title": "登录",
    "label": "密钥",
    "button": "登录",
    "note": "密钥由服务器管理员发放。",
    "other": "en",
    "other_name": "English",
    "wrong": "密钥不正确。",
    "often": "尝试次数过多，请在 {} 秒后重试。",
}
WORDS = {"en": ENGLISH, "zh": CHINESE}


class SignIn:
    """The page to sign in on, and the sessions that begin there."""

    def __init__(self, config: ServeConfig, keys: KeyFile) -> None:
        self._seconds = config.slow_seconds
        self._keys = keys
        self._sessions = Sessions(config.session_hours * 3600)
        self._attempts = Allowance(config.max_sign_ins_per_minute)

    def name_of(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """Return the name of the key by which the sender of a request has signed in; None where nobody has."""
        token = read_cookie(headers)
        if token is None or not (scope["method"] in ("GET", "HEAD") or is_own(headers)):
            return None
        key = self._sessions.key_of(token, time.monotonic())
        return None if key is None else self._keys.name_of_hash(key)

    async def ask(self, scope: Scope, headers: dict[str, str], send: Sending) -> None:
        """Send the page in place of one that needs a key."""
        asked = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        words = _words(asked.get("language"), headers)
        more = {}
        if headers.get("sec-fetch-site") == "cross-site" and not asked:
            # A browser that follows a link from another site leaves the cookie out, and sends it when it asks again.
            more["refresh"] = f"0; url=?language={words['language']}"
        await _show(send, 401, words, scope["path"], CHALLENGE | more)

    async def answer(
        self, scope: Scope, headers: dict[str, str], receive: Receive, send: Sending, visit: Visit
    ) -> None:
        """Sign somebody in or out; Refusal for a request that may not."""
        if scope["method"] != "POST":
            raise Refusal("wrong_method", "the route doesn't take this method")
        if not is_own(headers):
            raise Refusal("forbidden", "only a page of this server may sign in or out: send the key with each request")
        body = await read_body(headers, receive, visit, most=MOST_BYTES, seconds=self._seconds)
        if scope["path"] == SIGN_OUT:
            self._sessions.end(read_cookie(headers) or "")
            await _lead_to("/", headers, send, no_cookie(headers))
            return
        try:
            form = form_fields(body)
        except ValueError:
            raise Refusal("invalid", "the body is not a form that can be read") from None
        await self._sign_in(form, headers, send, visit)

    async def _sign_in(self, form: dict[str, str], headers: dict[str, str], send: Sending, visit: Visit) -> None:
        """Begin a session for who has a key.

        Wrong keys alone are counted: behind a proxy all have one address, and nobody may lock the others out.
        """
        now, words = time.monotonic(), _words(form.get("language"), headers)
        page = form.get("page", "/") if form.get("page") in PAGES else "/"
        given = form.get("key", "").strip()[:MOST_KEY_CHARS]
        name = self._keys.name_of(given)
        if name is not None:
            visit.key = name
            await _lead_to(page, headers, send, cookie_with(self._sessions.begin(hash_of(given), now), headers))
        elif wait := math.ceil(self._attempts.take(visit.key, 1, now)):
            if is_of_page(headers):
                raise Refusal("too_many", "there were too many attempts to sign in", wait)
            await _show(send, 429, words, page, {"retry-after": str(wait)}, words["often"].format(wait))
        elif is_of_page(headers):
            raise Refusal("unauthorized", "this key was not accepted")
        else:
            await _show(send, 401, words, page, CHALLENGE, words["wrong"])


async def _show(
    send: Sending, status: int, words: dict[str, str], page: str, headers: dict[str, str], refused: str = ""
) -> None:
    """Send the page, with what was wrong with the last attempt."""
    told = f'<p class="refused" role="alert">{escape(refused)}</p>\n' if refused else ""
    text = PAGE.substitute(words, page=page, refused=told)
    await send.whole(status, text.encode(), HEADERS | headers)


async def _lead_to(page: str, headers: dict[str, str], send: Sending, cookie: str) -> None:
    """Send a browser to a page, or tell a script that it is done; with this cookie."""
    if is_of_page(headers):
        await send.whole(204, b"", {"set-cookie": cookie})
    else:
        await send.whole(303, b"", {"set-cookie": cookie, "location": PAGES[page]})


def _words(wanted: str | None, headers: dict[str, str]) -> dict[str, str]:
    """Return the page's words in the language that is wanted, or else the first of them that the browser prefers."""
    if wanted in WORDS:
        return WORDS[wanted]
    preferred = re.findall(r"(?:^|,)\s*(en|zh)\b", headers.get("accept-language", "").lower())
    return WORDS[preferred[0] if preferred else "en"]
