"""The paths that the guard treats in a way of their own."""

LIVE, READY, JOBS = "/health/live", "/health/ready", "/v1/jobs"
LIBRE = ("/translate", "/languages", "/frontend/settings")
"""Paths whose clients expect 403 where a key is missing, as LibreTranslate answers."""
ALWAYS = (LIVE, READY, "/health", "/metrics")
"""Paths that are answered while the server ends."""
STATIC = "/static/"
"""Begins the paths of the page's own files. Like the page they hold nothing secret: it asks for the key itself."""
