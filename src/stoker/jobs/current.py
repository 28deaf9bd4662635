"""The running job, for its own code: ``from stoker import job``.

Notes are rows in the queue's database, written on the connection that the task itself uses. So a
note made inside ``transaction.atomic()`` is committed or rolled back with the task's other writes.
"""

from __future__ import annotations

import math
import time
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import LeaseLost, NotInJob
from stoker.models.note import LONGEST_MESSAGE, Note
from stoker.store.engines import LARGE_BYTES, engine_of
from stoker.store.engines.sessions import explained
from stoker.values.text import stored_text

from .package import sealer_for
from .running import Running, current

REPORT_SECONDS = 0.5
"""Minimum interval between two writes of the progress."""


class CurrentJob:
    """The job that the current thread or coroutine runs: ``stoker.job``, the only instance. Outside
    a job, every attribute except ``is_running`` raises ``NotInJob``."""

    @property
    def is_running(self) -> bool:
        """Whether a job is running here."""
        return current.get() is not None

    @property
    def id(self) -> UUID:
        return _running().job_id

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return _running().attempt

    @property
    def last_checkpoint(self) -> Any:
        """The last checkpoint of this or an earlier attempt; None without one. Each access runs a
        query.

        Raises:
            UnreadablePackage: it was stored in a format that this process does not read.
        """
        running = _running()
        settings = settings_for(running.backend)
        with explained(settings.database):
            data = Note.objects.using(settings.database).checkpoint_of(running.job_id)
        return None if data is None else sealer_for(settings).open_value(data)

    async def alast_checkpoint(self) -> Any:
        """Async version of ``last_checkpoint``."""
        return await sync_to_async(lambda: self.last_checkpoint, thread_sensitive=True)()

    def checkpoint(self, data: Any) -> None:
        """Store data for the next attempt, replacing the previous checkpoint.

        A requeued dead letter starts with it, too.

        Args:
            data: anything that a task may return.

        Raises:
            NotSerializable: nothing was stored.
            PackageTooLarge: the database would not accept it.
            LeaseLost: another cluster has the job: return as soon as possible.
        """
        running = _running()
        settings = settings_for(running.backend)
        sealed = sealer_for(settings).seal_value(data)
        if len(sealed) >= LARGE_BYTES:
            engine_of(settings.database).refuse_too_large(sealed)
        _write(running, checkpoint=sealed)

    async def acheckpoint(self, data: Any) -> None:
        """Async version of ``checkpoint``."""
        await sync_to_async(self.checkpoint, thread_sensitive=True)(data)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the progress of the job, which ``result.progress`` shows.

        Calls within half a second of the last write are ignored, except the one that completes the
        total.

        Args:
            done: in any unit.
            total: in the same unit, if it is known.
            message: cut to 255 characters.

        Raises:
            ValueError: a value is not a number.
            LeaseLost: as ``checkpoint``.
        """
        running = _running()
        done = _finite("done", done)
        total = None if total is None else _finite("total", total)
        now = time.monotonic()
        is_complete = total is not None and done >= total
        if now - running.reported_at < REPORT_SECONDS and not is_complete:
            return
        _write(running, done=done, total=total, message=stored_text(message, LONGEST_MESSAGE))
        running.reported_at = now

    async def aprogress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Async version of ``progress``."""
        await sync_to_async(self.progress, thread_sensitive=True)(done, total, message)


job = CurrentJob()


def _running() -> Running:
    running = current.get()
    if running is None:
        raise NotInJob(
            "No job is running here: use stoker.job only while a worker (or stoker.testing) runs a "
            "task."
        )
    return running


def _finite(name: str, value: Any) -> float:
    """Return the value as a finite float; not every database stores infinity or NaN. Raises
    ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, float | str | None) else type(value).__name__
        raise ValueError(f"job.progress: {name} is {shown[:40]}; give a finite number.")
    return number


def _write(running: Running, **values: Any) -> None:
    settings = settings_for(running.backend)
    notes = Note.objects.using(settings.database)
    with explained(settings.database):
        lease_id = running.delivery.lease_id
        if broker_for(settings).is_inside(lease_id):
            is_lost = not notes.holds_lease(running.job_id, lease_id)
        else:
            is_lost = notes.is_over(running.job_id, running.attempt)
        if is_lost:
            raise LeaseLost(
                f"Another cluster has taken over job {running.job_id}, because this one could not "
                "extend its lease: nothing was stored."
            )
        notes.write(running.job_id, **values)


def fencing_number() -> int:
    """Return the fencing number of the running attempt.

    It increases with each attempt that gets a place under the same key. Store it with the task's
    writes and refuse lower numbers, which come from attempts that have lost their place.

    Returns:
        0 outside of a job, and for tasks without lock, limit, rate and sequence.
    """
    running = current.get()
    return 0 if running is None else running.delivery.fence
