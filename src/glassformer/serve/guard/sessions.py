"""Sessions of people who signed in with a key. They are kept in memory, so they end with the server.

A token has 256 random bits and nothing of the key. Only its hash is kept, and sessions are found by it: how long that
takes says nothing about a token, because nobody can foresee the hash of a guess.
"""

import secrets
from dataclasses import dataclass

from glassformer.serve.keys import hash_of

MOST_SESSIONS = 10_000
"""Sessions that are kept before the oldest ends."""


@dataclass(frozen=True)
class _Session:
    """A session as it is kept, by the hash of its token."""

    key: str
    """The hash of the key that began it."""
    until: float


class Sessions:
    """The sessions of a server, each of which lasts so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._held: dict[str, _Session] = {}
        """Keep them in the order in which they end."""

    def begin(self, key: str, now: float) -> str:
        """Begin a session for the key with this hash, and return its token."""
        while self._held and (len(self._held) >= MOST_SESSIONS or next(iter(self._held.values())).until <= now):
            del self._held[next(iter(self._held))]
        token = secrets.token_urlsafe(32)
        self._held[hash_of(token)] = _Session(key, now + self._seconds)
        return token

    def key_of(self, token: str, now: float) -> str | None:
        """Return the hash of the key that began a session; None for one that has ended, or never was."""
        session = self._held.get(hash_of(token))
        return session.key if session and now < session.until else None

    def end(self, token: str) -> None:
        """End a session."""
        self._held.pop(hash_of(token), None)
