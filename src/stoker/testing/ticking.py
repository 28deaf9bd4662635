"""Schedules in tests: fire due ticks as if clusters had been running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stoker.conf import settings_for
from stoker.schedules import service as schedules
from stoker.schedules.declare import Declaring, find_declared
from stoker.schedules.fire import Firing
from stoker.tasks.options import as_timestamp
from stoker.values.ticks import as_moment


def declare(backend: str = "default") -> None:
    """Store the schedules of code and settings, as ``stoker run`` does.

    Raises: any error of importing the ``tasks`` modules.
    """
    settings = settings_for(backend)
    Declaring(settings, find_declared(settings)).sync()


def fire_due(
    at: datetime | timedelta | None = None, *, name: str | None = None, backend: str = "default"
) -> list[datetime]:
    """Fire every tick that is due until a moment, in order. No tick counts as missed.

    The jobs are enqueued; ``drain()`` runs them. A tick that ``overlap="queue"`` has held back is
    fired first if the job before it has ended.

    Args:
        at: an aware datetime, or a timedelta from now; None = now.
        name: name of one schedule; None = all schedules.
        backend: an alias in ``TASKS``.

    Returns:
        The moments that were fired, in order.

    Raises: any error of a schedule, such as UnknownTask.
    """
    if at is None or isinstance(at, timedelta):
        at = datetime.now(UTC) + (at or timedelta())
    until_us = int(as_timestamp(at) * 1_000_000)
    firing = Firing(settings_for(backend))
    known = schedules.find(backend=backend)
    if name is not None:
        known = known.filter(name=name)
    held = known.filter(held_us__isnull=False).order_by("held_us").values_list("pk", flat=True)
    fired = [done for pk in list(held) if (done := firing.release(pk)) is not None]
    rows = known.filter(due_us__lte=until_us).order_by("due_us")
    while (row := rows.first()) is not None and row.due_us is not None:
        done = firing.fire(row.pk, row.due_us)
        if done is None:  # another process has fired it
            rows = rows.exclude(pk=row.pk)
        else:
            fired.append(done)
    return [as_moment(one.moment_us) for one in fired if one.outcome == "fired"]
