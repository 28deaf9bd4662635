"""Processes that compete for one lock."""

from __future__ import annotations

import fcntl
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import django

from tests.locks.places import Place, all_opened


class Hammer:
    """Take a lock again and again. Under it, read a counter, wait a moment and write it back.

    If two processes did this at once, an increment would be lost and the file would be locked.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def strike(self, name: str, folder: str, least: int) -> dict[str, Any]:
        """Repeat until all processes together had this many turns. Return our turns and the faults
        seen."""
        turns, faults = 0, []
        counter = Path(folder) / "counter"
        count = 0
        with (Path(folder) / "guard").open("a") as guard:
            while count < least:
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
    """Run one hammer when the test sends its arguments."""
    django.setup()
    with all_opened():
        line.send("ready")
        _, arguments = line.recv()
        line.send(Hammer(place).strike(**arguments))
