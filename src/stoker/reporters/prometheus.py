"""Prometheus: numbers of the store, to be scraped.

There is one truth, and any process can tell it: however many processes and hosts there are, one of
them is scraped, and counters go on where they were when it is started anew. See
docs/howto/monitor-with-prometheus.md.
"""

from __future__ import annotations

import threading
import time

from django.utils.crypto import constant_time_compare
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from stoker.conf import Settings, settings_for
from stoker.exceptions import ConfigurationError
from stoker.tasks import own_backends

from .base import Reporter
from .prometheus_numbers import Numbers
from .prometheus_server import serve

FRESH_SECONDS = 5.0
"""So long numbers stand: more than one server may scrape, and more often than the store likes."""
NAME = "prometheus"


class PrometheusReporter(Reporter):
    """Lets the numbers of its backend be scraped: by the view of ``stoker.reporters.urls``, and on
    a port of its own in each cluster.

    Args:
        token: what a scraper must send as ``Authorization: Bearer ...``. "" = on the port nobody is
            asked for one; the view is then for users with the permission ``stoker.view_job`` only.
        port: on which a cluster answers, at ``/metrics``; None = it does not. Where several
            clusters run on one host, the first of them has it, and another one after it.
        address: of that port. Whoever can reach it can scrape, if there is no token.
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
        """One process of a cluster is enough."""
        if role == "scheduler" and self._port is not None:
            serve(self._address, self._port, self.token, scrape)


def is_token(given: str) -> bool:
    """Whether it is that of a backend whose numbers are told."""
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
    """Those that have this reporter."""
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
    """What was told last, and when. One at a time asks the store."""

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
    """All numbers, as text.

    Args:
        accept: the header of that name: OpenMetrics is spoken, too.

    Returns:
        The text, and its content type.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_scrape.numbers())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
