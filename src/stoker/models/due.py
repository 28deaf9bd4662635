"""Whether something has fallen due: asked before every claim, so in one plain statement."""

from __future__ import annotations

from typing import NamedTuple

from django.db import connections

from .clock import NOW_SQL


class Due(NamedTuple):
    """Where something waits whose moment has come."""

    jobs: bool
    """Among the deferred jobs."""
    keys: bool
    """Among the keys of guards: a rate has a permit again, or a turn was missed."""


def what_is_due(alias: str) -> Due:
    """One look at the left edges of two indexes."""
    connection = connections[alias]
    now = NOW_SQL[connection.vendor]
    with connection.cursor() as cursor:
        # Not EXISTS with a condition: a planner that expects many rows would read all of them.
        cursor.execute(
            f"SELECT (SELECT min(due_us) FROM stoker_deferred) <= {now},"  # noqa: S608 - our words
            f" (SELECT min(due_us) FROM stoker_key) <= {now}"
        )
        jobs, keys = cursor.fetchone()
    return Due(bool(jobs), bool(keys))
