"""The paths that the guard treats in a way of their own."""

LIVE, READY, JOBS = "/health/live", "/health/ready", "/v1/jobs"
LIBRE = ("/translate", "/detect", "/languages", "/frontend/settings")
"""Paths whose clients expect 403 where a key is missing, as LibreTranslate answers."""
ALWAYS = (LIVE, READY, "/health", "/metrics")
"""Paths that are answered while the server ends."""
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
PAGES = {"/": "./", "/docs": "docs"}
"""Pages that people open, by their paths, and how one comes to them from `SIGN_IN`. Without a key they get the page to
sign in on. The ways are relative, because a proxy may have all of it below a path of its own."""
