"""Whether something has fallen due, or when it will: asked before every claim, so in one plain
statement."""

from __future__ import annotations

from typing import NamedTuple

from django.db import connections

from .clock import MICROSECONDS, NOW_SQL
from .need import Need
from .statements import fetch


class Due(NamedTuple):
    """Where something waits whose moment has come."""

    jobs: bool
    """Among the deferred jobs."""
    keys: bool
    """Among the keys of guards: a rate has a permit again, or a turn was missed."""
    first_us: int | None
    """When the first of the deferred jobs is due, on the database's clock."""
    seconds: float | None
    """Until the first of all is due, 0 when it is overdue; None where nothing waits."""


def what_is_due(alias: str, from_us: int = 0, *, rated: bool = True) -> Due:
    """One look at the left edges of two indexes.

    Args:
        alias: of the database.
        from_us: deferred jobs that are due before it are not looked for.
        rated: whether jobs that wait for their rate count, too.
    """
    connection = connections[alias]
    parameters = {"from_us": from_us, "but": "" if rated else Need.Kind.RATE.value}
    now = NOW_SQL[connection.vendor]
    ((first_us, key_us, now_us),) = fetch(connection, "what_is_due", parameters, now=now)
    found = [due_us - now_us for due_us in (first_us, key_us) if due_us is not None]
    return Due(
        first_us is not None and first_us <= now_us,
        key_us is not None and key_us <= now_us,
        first_us,
        max(0, min(found)) / MICROSECONDS if found else None,
    )
