"""What a job of a schedule carries with it: which, and which moment was meant."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime

from stoker.wall_clock import zone_named

from .running import current
from .sealing import carrying

NAME, MOMENT, ZONE = "stoker.schedule", "stoker.moment", "stoker.zone"


def scheduled_moment() -> datetime | None:
    """The moment that was meant by the schedule of which this job is: an aware datetime of the
    schedule's time zone, the same for every attempt, however late it runs.

    Returns:
        None outside of a job, and in a job that no schedule has enqueued.
    """
    running = current.get()
    if running is None or MOMENT not in running.metadata:
        return None
    moment = datetime.fromisoformat(running.metadata[MOMENT])
    return moment.astimezone(zone_named(running.metadata.get(ZONE, "UTC")))


def marked(name: str, moment: datetime, zone: str) -> AbstractContextManager[None]:
    """Let the jobs that are enqueued here be known as those of that tick."""
    return carrying({NAME: name, MOMENT: moment.isoformat(), ZONE: zone})
