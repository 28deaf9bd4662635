"""A process that holds a lock and calls its methods on request."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import django

from tests.locks.places import Place, all_opened


class Holder:
    """One lock at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock: Any = None

    def acquire(self, name: str, **options: Any) -> int | None:
        """Return the fence, or None if the lock is taken."""
        self._lock = self._place.lock(name, **options)
        return self._lock.fence if self._lock.acquire() else None

    def release(self) -> bool:
        return bool(self._lock.release())

    def check(self) -> str:
        """Return the message of the check; empty if the lock is held."""
        from stoker.exceptions import LockLost

        try:
            self._lock.check()
        except LockLost as error:
            return str(error)
        return ""

    def is_held(self) -> bool:
        return bool(self._lock.is_held)

    def write(self, note: str) -> bool:
        """Write with the fence. Return whether the ledger accepted it."""
        return write_fenced(self._place, self._lock.fence, note)


def write_fenced(place: Place, fence: int, note: str) -> bool:
    """Write for the place, unless a later holder has. Return whether it was written."""
    from tests.app.models import Ledger

    later = Ledger.objects.filter(job_id=place.name, started_ns__lte=fence)
    return bool(later.update(started_ns=fence, note=note))


def hold(place: Place, line: Connection) -> None:
    """Carry out each request until the process is killed."""
    django.setup()
    with all_opened():
        holder = Holder(place)
        line.send("ready")
        while True:
            verb, arguments = line.recv()
            line.send(getattr(holder, verb)(**arguments))
