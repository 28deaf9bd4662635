"""Prometheus: serves metrics that are read from the store.

All numbers come from the store, so it suffices to scrape any one process, and counters continue
after a restart. See docs/howto/monitor-with-prometheus.md.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, connections
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stoker.brokers.adapters import place_of
from stoker.conf import Settings, settings_for
from stoker.exceptions import ConfigurationError, StokerError
from stoker.inspect.queue_depths import STATES, queues
from stoker.inspect.stats import clusters, dead_letters, longest_silence, state_of
from stoker.metrics import by_task, totals
from stoker.signals import tell
from stoker.store.transactions import without_request_transaction
from stoker.tasks.decorator import own_backends

from .base import Reporter

RECENT = timedelta(minutes=5)
QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}

PLACE = ("backend", "queue", "task")
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "stoker_jobs": (
        "Jobs that ended, by outcome: successful, failed (dead letters), cancelled.",
        (*PLACE, "outcome"),
    ),
    "stoker_retries": ("Failed attempts that are retried.", PLACE),
    "stoker_run_seconds": ("Run time of attempts in seconds, whatever their outcome.", PLACE),
    "stoker_wait_seconds": (
        "Seconds that jobs waited for their first attempt since they were due.",
        PLACE,
    ),
}
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "stoker_up": ("Whether the store could be read: 1, else 0.", ("backend",)),
    "stoker_queue_jobs": (
        "Jobs of a queue by state: ready, deferred, blocked, running. Very many are estimated.",
        ("backend", "queue", "state"),
    ),
    "stoker_queue_oldest_ready_seconds": (
        "How long the next ready job has waited; 0 without one, absent if unknown.",
        ("backend", "queue"),
    ),
    "stoker_queue_paused": ("Whether the queue is paused: 1, else 0.", ("backend", "queue")),
    "stoker_dead_letters": ("Dead letters that are not closed, by reason.", ("backend", "reason")),
    "stoker_clusters": (
        "Clusters, by state: running, quiet, stopping, silent (no heartbeat: it may be dead).",
        ("backend", "state"),
    ),
    "stoker_cluster_silent_seconds": (
        "Seconds since the last heartbeat of a cluster.",
        ("backend", "cluster", "host"),
    ),
    "stoker_workers": (
        "Worker processes; 0 if the cluster is silent.",
        ("backend", "cluster", "host"),
    ),
    "stoker_jobs_running": (
        "Jobs that ran at a cluster's last heartbeat; 0 if the cluster is silent.",
        ("backend", "cluster", "host"),
    ),
    "stoker_task_run_seconds": (
        "Quantiles of how long attempts ran in the last five minutes.",
        ("backend", "task", "quantile"),
    ),
    "stoker_task_wait_seconds": (
        "Quantiles of how long jobs waited in the last five minutes.",
        ("backend", "task", "quantile"),
    ),
}

Sample = tuple[str, Sequence[str], float]
"""Name, labels without the backend, and value."""
Read = Callable[[Settings], Iterator[Sample]]


class MetricSource(NamedTuple):
    """A function that reads metrics."""

    read: Read
    whose: Callable[[Settings], tuple[str, ...]]
    """Returns the identity of the measured system. Backends that share the system return the same
    identity."""


class Numbers(Collector):
    """The current metrics of some backends.

    Metrics that several backends share are reported once, under the first one, so that sums are
    right.
    """

    def __init__(self, backends: Iterable[Settings]) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: kind(name, doc, labels=labels)
            for kind, known in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES))
            for name, (doc, labels) in known.items()
        }
        told: set[tuple[str, ...]] = set()
        for settings in backends:
            is_up = True
            for source in SOURCES:
                if (whose := source.whose(settings)) not in told:
                    told.add(whose)
                    is_up &= self._read(settings, source.read)
            self._add(settings, ("stoker_up", (), float(is_up)))

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield from self._families.values()

    def _read(self, settings: Settings, read: Read) -> bool:
        """Read metrics. If the store cannot be read, report none instead of wrong ones."""
        try:
            samples = list(read(settings))
        except (StokerError, DatabaseError, InterfaceError):
            return False
        for sample in samples:
            self._add(settings, sample)
        return True

    def _add(self, settings: Settings, sample: Sample) -> None:
        name, labels, value = sample
        self._families[name].add_metric([settings.alias, *labels], value)


def _counted(settings: Settings) -> Iterator[Sample]:
    for total in totals(settings):
        place = (total.queue, total.task)
        for outcome in ("successful", "failed", "cancelled"):
            yield "stoker_jobs", (*place, outcome), getattr(total, outcome)
        yield "stoker_retries", place, total.retried
        yield "stoker_run_seconds", place, total.run_seconds
        yield "stoker_wait_seconds", place, total.wait_seconds


def _recent(settings: Settings) -> Iterator[Sample]:
    now = timezone.now()
    for one in by_task(settings, now - RECENT, now):
        for label, name in QUANTILES.items():
            for times, metric in ((one.figures.run, "run"), (one.figures.wait, "wait")):
                value = getattr(times, name)
                if value is not None:
                    yield f"stoker_task_{metric}_seconds", (one.task, label), value


def _waiting(settings: Settings) -> Iterator[Sample]:
    for queue in queues(settings):
        for state in STATES:
            yield "stoker_queue_jobs", (queue.name, state), getattr(queue, state)
        if queue.oldest_ready_seconds is not None or not queue.ready:
            oldest = queue.oldest_ready_seconds or 0.0
            yield "stoker_queue_oldest_ready_seconds", (queue.name,), oldest
        yield "stoker_queue_paused", (queue.name,), float(queue.paused is not None)


def _dead(settings: Settings) -> Iterator[Sample]:
    for reason, count in dead_letters(settings).by_reason.items():
        yield "stoker_dead_letters", (reason,), count


def _running(settings: Settings) -> Iterator[Sample]:
    longest = longest_silence(settings)
    known = [(one, state_of(one, longest)) for one in clusters(settings)]
    for state in ("running", "quiet", "stopping", "silent"):
        count = sum(its_state == state for _, its_state in known)
        yield "stoker_clusters", (state,), count
    for one, its_state in known:
        place = (one.id[:8], one.host)
        workers = () if its_state == "silent" else one.workers
        yield "stoker_cluster_silent_seconds", place, one.silent_seconds
        yield "stoker_workers", place, len(workers)
        yield "stoker_jobs_running", place, sum(len(worker.running) for worker in workers)


SOURCES = (
    MetricSource(_counted, lambda settings: ("counted", settings.database)),
    MetricSource(_recent, lambda settings: ("recent", settings.database)),
    MetricSource(_waiting, lambda settings: ("waiting", settings.database, *place_of(settings))),
    MetricSource(_dead, lambda settings: ("dead", settings.database)),
    MetricSource(_running, lambda settings: ("running", settings.alias)),
)


PATH = "/metrics"
AGAIN_SECONDS = 5.0
"""Pause before retrying to bind a port that another cluster on this host uses."""
PATIENCE_SECONDS = 10.0
"""Time-out for a client to send its request."""

Scrape = Callable[[str], tuple[bytes, str]]


def serve(address: str, port: int, token: str, scrape: Scrape) -> None:
    """Serve metrics in a separate thread until this process ends.

    Raises:
        OSError: the address cannot be bound, for another reason than a used port.
    """
    first = _bind(address, port, token, scrape)
    threading.Thread(
        target=_serve, args=(first, address, port, token, scrape), name="metrics", daemon=True
    ).start()


def _serve(
    server: ThreadingHTTPServer | None, address: str, port: int, token: str, scrape: Scrape
) -> None:
    while server is None:
        time.sleep(AGAIN_SECONDS)
        server = _bind(address, port, token, scrape)
    server.serve_forever()


def _bind(address: str, port: int, token: str, scrape: Scrape) -> ThreadingHTTPServer | None:
    """Return a server that listens on the port, or None if the port is in use."""
    try:
        server = ThreadingHTTPServer((address, port), _handler(token, scrape))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    tell("metrics_served", address=address, port=port)
    return server


def _handler(token: str, scrape: Scrape) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self._answer(404, f"Only {PATH} is served here.\n".encode())
            elif token and not self._is_known():
                self._answer(401, b"Send the header Authorization: Bearer TOKEN.\n")
            else:
                self._tell()

        def _tell(self) -> None:
            try:
                text, content_type = scrape(self.headers.get("Accept", ""))
            finally:
                connections.close_all()  # the connections of this thread, which serves one request
            self._answer(200, text, content_type)

        def _is_known(self) -> bool:
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            return scheme.lower() == "bearer" and constant_time_compare(given.strip(), token)

        def _answer(self, status: int, text: bytes, content_type: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Do not log requests."""

    return Handler


FRESH_SECONDS = 5.0
"""How long metrics are cached, because several servers may scrape often."""
NAME = "prometheus"


class PrometheusReporter(Reporter):
    """Makes the metrics of its backend available for scraping, by the view of
    ``stoker.reporters.urls`` and on a port of each cluster.

    Args:
        token: token that scrapers send as ``Authorization: Bearer ...``. "" = the port requires
            none, and the view requires the permission ``stoker.view_job``.
        port: port on which a cluster serves ``/metrics``; None = none. If several clusters run on
            one host, the first one serves the port, and another takes over when it stops.
        address: address of that port. Without a token, everyone who can reach the port can scrape.
    """

    def __init__(
        self, *, token: str = "", port: int | None = None, address: str = "127.0.0.1"
    ) -> None:
        if port is not None and not 0 < port < 1 << 16:
            raise ConfigurationError("port must be a number from 1 to 65535")
        self.token = token
        self._port = port
        self._address = address

    def begin(self, role: str) -> None:
        """Start serving the port in the process of the scheduler, because one process of a cluster
        is enough."""
        if role in ("scheduler", "core") and self._port is not None:
            serve(self._address, self._port, self.token, scrape)


def is_token(given: str) -> bool:
    """Return whether the text is the token of a backend with this reporter."""
    reporters = [
        PrometheusReporter(**named.options)
        for settings in told_backends()
        for named in settings.reporters
        if named.name == NAME
    ]
    return bool(given) and any(
        reporter.token and constant_time_compare(given, reporter.token) for reporter in reporters
    )


def told_backends() -> list[Settings]:
    """Return the backends with this reporter."""
    found = []
    for alias in own_backends():
        try:
            settings = settings_for(alias)
        except ConfigurationError:  # `manage.py check` says what is wrong
            continue
        if any(named.name == NAME for named in settings.reporters):
            found.append(settings)
    return found


class _Scrape:
    """Cached metrics. One thread at a time reads the store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Numbers | None = None
        self._read_at = float("-inf")

    def numbers(self) -> Numbers:
        with self._lock:
            now = time.monotonic()
            if self._numbers is None or now - self._read_at > FRESH_SECONDS:
                self._numbers = Numbers(told_backends())
                self._read_at = now
            return self._numbers


_scrape = _Scrape()


def scrape(accept: str) -> tuple[bytes, str]:
    """Return all metrics as text.

    Args:
        accept: the request's ``Accept`` header; OpenMetrics is supported.

    Returns:
        The text and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_scrape.numbers())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@login_not_required
@without_request_transaction
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return all metrics as a text response."""
    if not told_backends():
        return _refuse(404, 'No backend of TASKS has "prometheus" under REPORTERS.')
    if not (_has_token(request) or _may_look(request)):
        return _refuse(
            403,
            "Send the token of REPORTERS as Authorization: Bearer, or sign in as a user with "
            "permission.",
        )
    text, content_type = scrape(request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)


def _has_token(request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and is_token(given.strip())


def _may_look(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.has_perm("stoker.view_job")


def _refuse(status: int, sentence: str) -> HttpResponse:
    return HttpResponse(f"{sentence}\n", status=status, content_type="text/plain")
