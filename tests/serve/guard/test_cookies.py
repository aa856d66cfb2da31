"""The cookie of a session: its name, its attributes, and what of a header field is read."""

import pytest

from glassformer.serve.guard.cookies import cookie_with, no_cookie, read_cookie

PLAIN = {"host": "localhost:8000", "origin": "http://localhost:8000"}
BEHIND_TLS = {"host": "translate.example.org", "origin": "https://translate.example.org"}


def test_a_cookie_is_for_no_script_and_no_other_site():
    assert cookie_with("abc", PLAIN) == "glassformer-8000=abc; Path=/; HttpOnly; SameSite=Strict"
    assert no_cookie(PLAIN) == "glassformer-8000=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict"


def test_over_https_it_is_never_sent_in_the_clear_and_no_other_host_can_set_it():
    flags = "Path=/; HttpOnly; SameSite=Strict; Secure"
    assert cookie_with("abc", BEHIND_TLS) == f"__Host-glassformer=abc; {flags}"
    assert no_cookie(BEHIND_TLS) == f"__Host-glassformer=; Max-Age=0; {flags}"


@pytest.mark.parametrize(
    ("host", "cookie", "token"),
    [
        ("localhost:8000", "glassformer-8000=abc", "abc"),
        ("localhost:8000", "a=b; glassformer-8000=abc ;c", "abc"),
        ("localhost:8001", "glassformer-8000=abc", None),
        ("translate.example.org", "glassformer=own; __Host-glassformer=abc", "abc"),
        ("translate.example.org", "glassformer=abc", "abc"),
        ("translate.example.org", "", None),
        ("translate.example.org", ";;=;glassformer", ""),
    ],
)
def test_the_cookie_is_found_among_others(host, cookie, token):
    assert read_cookie({"host": host, "cookie": cookie}) == token
