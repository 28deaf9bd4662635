"""Database connections between jobs: as Django does between requests, and a little more."""

from __future__ import annotations

from contextlib import suppress

from django.db import connections

from stoker.events import tell


def tidy_connections() -> None:
    """Close this thread's connections that are broken, too old, or left inside a transaction: what
    the next job writes there would never be committed."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            tell("transaction_left_open", database=connection.alias)
            del connections[connection.alias]
            with suppress(Exception):  # whatever the driver says, it is gone
                connection.connection.close()
        else:
            connection.close_if_unusable_or_obsolete()
            connection.queries_log.clear()


def tidy_broken_connections() -> None:
    """Close only those that failed: others may be in the middle of something."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
