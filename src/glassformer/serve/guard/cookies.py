"""The cookie that holds a session's token. No script can read it, and no page of another site has it sent.

It lasts until the browser is closed. A browser sends a cookie to every port of a host, so the port is in its name. Over
HTTPS the name begins with `__Host-`: no other host of the same domain can set it, and it is never sent unencrypted.
"""

NAME, SECURE = "glassformer", "__Host-"


def read_cookie(headers: dict[str, str]) -> str | None:
    """Return the token that a request has."""
    parts = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
    given = {name: value for name, _, value in parts}
    name = _name(headers)
    return given.get(SECURE + name, given.get(name))


def cookie_with(token: str, headers: dict[str, str]) -> str:
    """Return the header field that sets the cookie, for who has sent a request with these header fields."""
    return f"{_name_to_set(headers)}={token}; {_attributes(headers)}"


def no_cookie(headers: dict[str, str]) -> str:
    """Return the header field that removes the cookie."""
    return f"{_name_to_set(headers)}=; Max-Age=0; {_attributes(headers)}"


def _name(headers: dict[str, str]) -> str:
    port = headers.get("host", "").rpartition(":")[2]
    return f"{NAME}-{port}" if port.isdecimal() else NAME


def _name_to_set(headers: dict[str, str]) -> str:
    return (SECURE if _is_encrypted(headers) else "") + _name(headers)


def _attributes(headers: dict[str, str]) -> str:
    return "Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if _is_encrypted(headers) else "")


def _is_encrypted(headers: dict[str, str]) -> bool:
    """Return whether the browser speaks HTTPS, to a proxy perhaps: its origin says so."""
    return headers.get("origin", "").startswith("https://")
