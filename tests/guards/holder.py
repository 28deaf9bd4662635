"""A process that holds a lock, and does with it what it is told."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import django

from tests.guards.places import Place


class Holder:
    """One lock at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock: Any = None

    def acquire(self, name: str, **options: Any) -> int | None:
        """The fence, or None."""
        self._lock = self._place.lock(name, **options)
        return self._lock.fence if self._lock.acquire() else None

    def release(self) -> bool:
        return bool(self._lock.release())

    def check(self) -> str:
        """What the check says; empty when the lock is held."""
        from stoker.exceptions import LockLost

        try:
            self._lock.check()
        except LockLost as error:
            return str(error)
        return ""

    def is_held(self) -> bool:
        return bool(self._lock.is_held)

    def write(self, note: str) -> bool:
        """Write with the fence. Whether the ledger took it."""
        return write_fenced(self._lock.fence, note)


def write_fenced(fence: int, note: str) -> bool:
    """A write that is refused when a later holder has written."""
    from tests.app.models import Ledger

    later = Ledger.objects.filter(job_id="fenced", started_ns__lte=fence)
    return bool(later.update(started_ns=fence, note=note))


def hold(place: Place, line: Connection) -> None:
    """Do what is said until nothing more comes."""
    django.setup()
    with place.opened():
        holder = Holder(place)
        line.send("ready")
        while True:
            verb, arguments = line.recv()
            line.send(getattr(holder, verb)(**arguments))
