"""Count what the server does, for Prometheus."""

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from glassformer.serve.workers.messages import Measured
from glassformer.serve.workers.pool import Pool

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Meters:
    """The counters, each in a registry of their own."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self._requests = Counter(
            "glassformer_requests", "Requests that were answered.", ["route", "method", "status"], registry=own
        )
        self._seconds = Histogram(
            "glassformer_request_seconds",
            "Time from a request's first byte to its answer.",
            ["route"],
            buckets=SECONDS,
            registry=own,
        )
        self._chars = Counter("glassformer_chars", "Characters that were sent to be translated.", registry=own)
        self._queue = Gauge("glassformer_queue", "Requests that wait or are worked on.", ["run"], registry=own)
        self._workers = Gauge("glassformer_workers", "Workers that are ready.", ["run"], registry=own)
        self._lost = Counter("glassformer_workers_lost", "Workers that were lost.", ["run"], registry=own)
        self._tokens = Counter(
            "glassformer_tokens", "Tokens that were read and written.", ["run", "side"], registry=own
        )
        self._lines = Counter("glassformer_lines", "Lines that were translated.", ["run"], registry=own)
        self._batch_lines = Histogram(
            "glassformer_batch_lines", "Lines of a batch.", ["run"], buckets=LINES, registry=own
        )
        self._batch_seconds = Histogram(
            "glassformer_batch_seconds", "Time that a batch took.", ["run"], buckets=SECONDS, registry=own
        )
        self._jobs = Gauge("glassformer_jobs", "Jobs that wait or run.", registry=own)
        Gauge("glassformer_start_seconds", "When the server began, in seconds since 1970.", registry=own).set(
            time.time()
        )

    def answered(self, route: str, method: str, status: int, seconds: float, chars: int) -> None:
        """Count a request. `route` is one of the server's own, so that their number has an end."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        self._chars.inc(chars)

    def translated(self, run: str, batch: Measured) -> None:
        """Count a batch."""
        self._tokens.labels(run, "source").inc(batch.source_tokens)
        self._tokens.labels(run, "target").inc(batch.target_tokens)
        self._lines.labels(run).inc(batch.lines)
        self._batch_lines.labels(run).observe(batch.lines)
        self._batch_seconds.labels(run).observe(batch.seconds)

    def lost(self, run: str) -> None:
        """Count a worker that was lost."""
        self._lost.labels(run).inc()

    def text(self, pools: Mapping[str, Pool], jobs: int) -> bytes:
        """Return all of it as Prometheus reads it."""
        for run, pool in pools.items():
            self._queue.labels(run).set(pool.pending)
            self._workers.labels(run).set(len(pool.processes))
        self._jobs.set(jobs)
        return generate_latest(self._registry)
