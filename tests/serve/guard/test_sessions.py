"""Sessions: tokens that can't be guessed, kept as hashes, each with an end."""

from glassformer.serve.guard import sessions
from glassformer.serve.guard.sessions import Sessions
from glassformer.serve.keys import hash_of

KEY = hash_of("gf_1")


def test_a_session_lasts_as_long_as_it_may():
    held = Sessions(60.0)
    token = held.begin(KEY, now=100.0)
    assert held.key_of(token, now=159.0) == KEY
    assert held.key_of(token, now=160.0) is None
    for wrong in ("", token[:-1], token.swapcase(), hash_of(token), "ä\ud800"):
        assert held.key_of(wrong, now=101.0) is None


def test_a_session_is_ended_alone():
    held = Sessions(60.0)
    one, other = held.begin(KEY, now=100.0), held.begin(KEY, now=100.0)
    held.end(one)
    held.end("none")
    assert (held.key_of(one, now=100.0), held.key_of(other, now=100.0)) == (None, KEY)


def test_tokens_are_random_and_only_their_hashes_are_kept():
    held = Sessions(60.0)
    tokens = {held.begin(KEY, now=100.0) for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) == 43, "256 bits in base64"
    kept = repr(held._held)
    assert not any(token in kept for token in tokens)


def test_sessions_that_ended_are_forgotten_and_there_are_only_so_many(monkeypatch):
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 5)
    held = Sessions(60.0)
    first = held.begin(KEY, now=100.0)
    later = [held.begin(KEY, now=120.0) for _ in range(5)]
    assert held.key_of(first, now=121.0) is None
    assert all(held.key_of(token, now=121.0) == KEY for token in later)
    held.begin(KEY, now=500.0)
    assert len(held._held) == 1
