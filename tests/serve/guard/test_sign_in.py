"""Signing in on the page: what it shows, what a session may do and for how long, and what other pages can't."""

import json
import re

import pytest

from glassformer.serve import keys as key_files
from glassformer.serve.keys import add_key

ASK = {"q": "the cat", "source": "en", "target": "de"}
OWN = {"origin": "http://localhost:8000"}
FORM = {"content_type": "application/x-www-form-urlencoded"}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(key_files, "LOOKED_AT_EVERY", 0.0)
    return tmp_path / "keys.json"


@pytest.fixture
def key(path):
    return add_key(path, "alice")


@pytest.fixture
def asks(client, path, key):
    return client(keys=path)


def sign_in(asks, key: str, **headers: str):
    return asks("POST", "/sign-in", f"key={key}".encode(), **{**FORM, **OWN, **headers})


def cookie_of(reply) -> str:
    return reply.headers["set-cookie"].partition(";")[0]


def is_refused(reply) -> bool:
    return reply.status in (401, 403) and set(reply.json) == {"error", "code"}


@pytest.mark.parametrize("path_of_page", ["/", "/docs"])
def test_without_a_key_a_page_to_sign_in_on_stands_in_its_place_and_says_nothing_else(asks, path_of_page):
    reply = asks("GET", path_of_page)
    text = reply.body.decode()
    assert (reply.status, reply.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert '<form method="post" action="sign-in">' in text
    assert f'name="page" type="hidden" value="{path_of_page}"' in text
    for told in ("glassformer", "tiny", "translat", "english", "german", '"en-', "<script", "http"):
        assert told not in text.lower().replace('method="post"', "")
    policy = reply.headers["content-security-policy"]
    assert re.search(r"default-src 'none'; style-src 'sha256-[\w+/]{43}='; img-src data:", policy)
    assert "unsafe" not in policy
    assert reply.headers["www-authenticate"].startswith("Bearer "), "a browser asks by itself where it is Basic"
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("query", "accepted", "title"),
    [
        ("", "", "Sign in"),
        ("", "en-GB,en;q=0.9,zh;q=0.8", "Sign in"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "登录"),
        ("", "fr, zh-TW;q=0.5", "登录"),
        ("?language=zh", "en", "登录"),
        ("?language=en", "zh", "Sign in"),
        ("?language=<b>", "de", "Sign in"),
    ],
)
def test_it_speaks_the_language_of_the_browser_and_can_be_changed(asks, query, accepted, title):
    text = asks("GET", f"/{query}", accept_language=accepted).body.decode()
    assert f"<title>{title}</title>" in text
    other = "en" if title == "登录" else "zh"
    assert f'href="?language={other}"' in text


def test_a_session_stands_for_the_key_everywhere(asks, key):
    reply = sign_in(asks, key)
    assert (reply.status, reply.headers["location"], reply.body) == (303, "./", b"")
    name, _, token = cookie_of(reply).partition("=")
    assert name == "glassformer-8000"
    assert key.removeprefix("gf_") not in token
    assert reply.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    signed = {"cookie": cookie_of(reply)}
    main = re.search(rb'src="(static/[^"]+)"', asks("GET", "/", **signed).body)[1].decode()
    for path in ("/", f"/{main}", "/docs", "/openapi.json", "/languages", "/v1/runs", "/metrics", "/health"):
        assert asks("GET", path, **signed).status == 200, path
    assert b'data-has-keys="true"' in asks("GET", "/", **signed).body
    for path in ("/translate", "/v1/translate"):
        assert asks("POST", path, ASK, **signed, **OWN).status == 200
    assert asks.pool.asked
    assert is_refused(asks("GET", f"/{main}"))


def test_where_it_came_from_is_where_it_leads(asks, key):
    for page, place in (("/docs", "docs"), ("/", "./"), ("https://evil.org", "./"), ("//evil.org", "./")):
        reply = asks("POST", "/sign-in", f"key={key}&page={page}".encode(), **FORM, **OWN)
        assert (reply.status, reply.headers["location"]) == (303, place)


def test_a_wrong_key_is_told_on_the_page_and_nothing_begins(asks, key):
    for wrong in ("", "wrong", key[:-1], key.upper(), "x" * 300, "%ff%00", "<b>"):
        reply = asks("POST", "/sign-in", f"key={wrong}&language=zh&page=/docs".encode(), **FORM, **OWN)
        text = reply.body.decode()
        assert reply.status == 401
        assert '<p class="refused" role="alert">密钥不正确。</p>' in text
        assert 'value="/docs"' in text
        assert "set-cookie" not in reply.headers
    assert asks("POST", "/sign-in", b"", **FORM, **OWN).status == 401
    for body in (b"\xff\xfe", b"&".join(b"f%d=1" % n for n in range(30))):
        reply = asks("POST", "/sign-in", body, **FORM, **OWN)
        assert (reply.status, reply.json["code"]) == (400, "invalid")
    assert asks("POST", "/sign-in", b"x" * 5000, **FORM, **OWN).status == 413
    assert asks("GET", "/sign-in").status == 405


def test_a_script_of_the_page_is_answered_as_scripts_are(asks, key):
    script = {"x_requested_with": "XMLHttpRequest"}
    reply = sign_in(asks, key, **script)
    assert (reply.status, reply.body) == (204, b"")
    assert asks("GET", "/v1/runs", cookie=cookie_of(reply)).status == 200
    for refused in (sign_in(asks, "wrong", **script), asks("GET", "/v1/runs", **script)):
        assert (refused.status, refused.json["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer ")
    assert asks("GET", "/v1/runs").headers["www-authenticate"].startswith("Basic ")


OTHERS = [
    {},
    {"origin": "http://localhost:8001"},
    {"origin": "http://evil.example.org"},
    {"origin": "null"},
    {"origin": "https://page.example.org"},
]


@pytest.mark.parametrize("others", OTHERS, ids=range(len(OTHERS)))
def test_no_other_page_signs_in_or_out_or_uses_a_session(client, path, key, others):
    asks = client(keys=path, cors_origin=("https://page.example.org",))
    signed = {"cookie": cookie_of(sign_in(asks, key))}
    for to in ("/sign-in", "/sign-out"):
        reply = asks("POST", to, f"key={key}".encode(), **FORM, **others, **signed)
        assert reply.status == 403
        assert "set-cookie" not in reply.headers
    for to in ("/translate", "/v1/translate", "/v1/jobs"):
        assert is_refused(asks("POST", to, ASK, **others, **signed)), to
    assert asks.pool.asked == []
    assert asks("GET", "/v1/runs", **signed).status == 200, "its session goes on"
    assert "access-control-allow-credentials" not in asks("GET", "/v1/runs", **others, **signed).headers


def test_signing_out_ends_the_session_for_all(asks, key):
    signed = {"cookie": cookie_of(sign_in(asks, key))}
    reply = asks("POST", "/sign-out", b"", **signed, **OWN)
    assert (reply.status, reply.headers["location"]) == (303, "./")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert is_refused(asks("GET", "/v1/runs", **signed))
    assert asks("POST", "/sign-out", b"", **OWN).status == 303, "nobody was signed in"


def test_a_session_ends_with_its_time_with_its_key_and_with_the_server(new_client, path, key, monkeypatch):
    asks = new_client(keys=path, session_hours=1e-9)
    assert is_refused(asks("GET", "/v1/runs", cookie=cookie_of(sign_in(asks, key))))
    asks = new_client(keys=path)
    signed = {"cookie": cookie_of(sign_in(asks, key))}
    assert asks("GET", "/v1/runs", **signed).status == 200
    assert is_refused(new_client(keys=path)("GET", "/v1/runs", **signed))
    bob = add_key(path, "bob")
    held = json.loads(path.read_text(encoding="utf-8"))
    held["keys"] = [one for one in held["keys"] if one["name"] != "alice"]
    path.write_text(json.dumps(held), encoding="utf-8")
    assert is_refused(asks("GET", "/v1/runs", **signed)), "the key was withdrawn"
    assert asks("GET", "/v1/runs", cookie=cookie_of(sign_in(asks, bob))).status == 200


def test_attempts_are_counted(client, path, key):
    asks = client(keys=path, max_sign_ins_per_minute=3)
    assert [sign_in(asks, given).status for given in ("wrong", key, "wrong", key)] == [401, 303, 401, 429]
    reply = sign_in(asks, key)
    assert "too many attempts" in reply.body.decode()
    assert 0 < int(reply.headers["retry-after"]) <= 20
    reply = sign_in(asks, key, x_requested_with="XMLHttpRequest")
    assert (reply.status, reply.json["code"]) == (429, "too_many")
    assert asks("GET", "/v1/runs", authorization=f"Bearer {key}").status == 200


def test_a_link_from_another_site_shows_the_page_to_who_has_signed_in(asks):
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert asks("GET", "/", **followed).headers["refresh"] == "0; url=?language=en"
    assert "refresh" not in asks("GET", "/?language=en", **followed).headers, "it asks again once"
    assert "refresh" not in asks("GET", "/", sec_fetch_site="none").headers


def test_the_log_has_the_name_of_the_key_and_no_secret(asks, key, caplog):
    caplog.set_level("INFO", "glassformer.serve")
    signed = cookie_of(sign_in(asks, key))
    asks("GET", "/v1/runs", cookie=signed)
    sign_in(asks, "wrong")
    first, second, third = caplog.messages
    assert "route=/sign-in status=303" in first
    assert first.endswith("key=alice")
    assert second.endswith("key=alice")
    assert "route=/sign-in status=401" in third
    assert key not in caplog.text
    assert signed.partition("=")[2] not in caplog.text


def test_without_keys_there_is_nothing_to_sign_in_to(client):
    asks = client()
    assert asks("GET", "/").status == 200
    assert b'data-has-keys="false"' in asks("GET", "/").body
    assert asks("POST", "/sign-in", b"key=a", **FORM, **OWN).status == 404
