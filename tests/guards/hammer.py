"""Processes that all want the same lock."""

from __future__ import annotations

import fcntl
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import django

from tests.guards.places import Place


class Hammer:
    """Takes a lock again and again, and under it reads a counter, waits a moment, and writes it
    back: with two at once a count would be missing, and the guard would be found locked."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def strike(self, name: str, folder: str, until: float, least: int) -> dict[str, Any]:
        """Up to that moment of the monotonic clock, and until all together have had so many turns.
        What was done and seen."""
        turns, faults = 0, []
        counter = Path(folder) / "counter"
        count = 0
        with (Path(folder) / "guard").open("a") as guard:
            while time.monotonic() < until or count < least:
                with self._place.lock(name, wait=120, lease=60) as held:
                    try:
                        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        faults.append(f"another was in while {held.fence} was")
                        continue
                    count, fence = map(int, counter.read_text().split())
                    if held.fence <= fence:
                        faults.append(f"{held.fence} came after {fence}")
                    time.sleep(0.002)
                    counter.write_text(f"{count + 1} {held.fence}")
                    turns += 1
                    fcntl.flock(guard, fcntl.LOCK_UN)
                    if not held.is_held:
                        faults.append(f"{held.fence} was lost")
        return {"turns": turns, "faults": faults}


def strike(place: Place, line: Connection) -> None:
    """Strike when told to."""
    django.setup()
    with place.opened():
        line.send("ready")
        _, arguments = line.recv()
        line.send(Hammer(place).strike(**arguments))
