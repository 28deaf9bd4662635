"""A ledger of the jobs that have a place under each key, from the return of the claim until just
before the ack."""

from __future__ import annotations

import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable

from stoker.models.need import NewNeed


class Overlaps:
    """Counts the jobs under each key, and records a fault if there are too many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[uuid.UUID, Counter[uuid.UUID]] = defaultdict(Counter)
        self.most: Counter[str] = Counter()
        """Name of a key -> the most jobs that had a place there at once."""
        self.faults: list[str] = []

    def enter(self, job_id: uuid.UUID, needs: Iterable[NewNeed]) -> None:
        """Note that a job has started."""
        with self._lock:
            for need in needs:
                there = self._places[need.key_id]
                there[job_id] += 1
                self.most[need.name] = max(self.most[need.name], there.total())
                if there.total() > need.places:
                    self.faults.append(f"{need.name}: {there.total()} at once")

    def leave(self, job_id: uuid.UUID, needs: Iterable[NewNeed]) -> None:
        """Note that a job is about to give up its places."""
        with self._lock:
            for need in needs:
                self._places[need.key_id][job_id] -= 1
