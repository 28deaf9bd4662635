"""Database connections between jobs: as Django does between requests, and a little more."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from stoker.events import tell


class _Known(threading.local):
    """The connections of one thread, as far as they were ever open. To ask Django for them takes
    longer than many a job; it tells when it opens one."""

    def __init__(self) -> None:
        self.connections = connections.all(initialized_only=True)


_known = _Known()


def _note(**_: Any) -> None:
    _known.connections = connections.all(initialized_only=True)


connection_created.connect(_note, dispatch_uid="stoker.cluster.connections")


def tidy_connections() -> None:
    """Close this thread's connections that are broken, too old, or left inside a transaction: what
    the next job writes there would never be committed."""
    for connection in _known.connections:
        if connection.in_atomic_block:
            tell("transaction_left_open", database=connection.alias)
            del connections[connection.alias]
            with suppress(Exception):  # whatever the driver says, it is gone
                connection.connection.close()
            _known.connections = connections.all(initialized_only=True)
        else:
            connection.close_if_unusable_or_obsolete()
            connection.queries_log.clear()


def tidy_broken_connections() -> None:
    """Close only those that failed: others may be in the middle of something."""
    for connection in _known.connections:
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
