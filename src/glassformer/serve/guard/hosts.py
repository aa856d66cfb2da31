"""By which names the server may be called, and which pages may use it: its own, and those that are allowed."""

import ipaddress
from urllib.parse import urlsplit

from glassformer.serve.config import ServeConfig
from glassformer.serve.guard.asgi import Scope
from glassformer.serve.guard.sending import SAFETY
from glassformer.serve.workers.messages import Refusal


class Hosts:
    """The names of the server, and the origins that are allowed."""

    def __init__(self, config: ServeConfig) -> None:
        self._names = {"localhost", config.host.lower(), *(name.lower() for name in config.allow_host)}
        self._origins = tuple(map(_as_sent, config.cors_origin))

    def check_host(self, headers: dict[str, str]) -> None:
        """Raise Refusal unless the server was called by a name that is allowed, or by an address in numbers.

        A page of another site can make its own name lead here (DNS rebinding), but not a number.
        """
        host = headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name in self._names or (name and _is_address(name.strip("[]"))):
            return
        raise Refusal("forbidden", "the server may not be called by this name: allow it with --allow-host NAME")

    def is_preflight(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Return whether a browser asks, for a page whose origin is allowed, what that page may send."""
        return scope["method"] == "OPTIONS" and headers.get("origin") in self._origins

    def check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raise Refusal for a request that a page of another site lets a browser make."""
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in ("GET", "HEAD"):
                raise Refusal("forbidden", "pages of other sites may not use the server")
            return
        if origin in self._origins or is_own(headers):
            return
        raise Refusal("forbidden", "pages of this origin may not use the server: allow it with --cors-origin ORIGIN")

    def answer_headers(self, scope: Scope) -> dict[str, str]:
        """Return the header fields that an answer gets."""
        origin = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"), "")
        if not self._origins:
            return SAFETY
        allowed = {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": "authorization, content-type",
            "cross-origin-resource-policy": "cross-origin",
        }
        return SAFETY | {"vary": "origin"} | (allowed if origin in self._origins else {})


def is_own(headers: dict[str, str]) -> bool:
    """Return whether a browser says that a page of this server makes the request."""
    return "origin" in headers and _host_of(headers["origin"]) == headers.get("host", "").lower()


def _as_sent(origin: str) -> str:
    """Return an origin as browsers send it: in small letters, without the port that its scheme has anyway."""
    scheme, _, host = origin.lower().partition("://")
    return f"{scheme}://{host.removesuffix({'http': ':80', 'https': ':443'}[scheme])}"


def _host_of(origin: str) -> str | None:
    """Return the host of an origin, with its port; None where it is no origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
