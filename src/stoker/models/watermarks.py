"""Where a claim begins: at what this process has claimed last, not at the start of the line.

The entries of jobs that were claimed stay in the index until a vacuum removes them, which it cannot
while somebody holds an old snapshot; and each claim from the start walks over all of them. But what
is behind a mark is not always gone: jobs come there late (a transaction that took long, a host
whose clock is slow), come back (retried, given back, called), or were locked when they were passed.
So marks are good for a moment only. Nothing depends on them but the time that a claim takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, TypeVar
from uuid import UUID

from django.db import connections

from .claimed import Claim
from .ready import Place, Ready
from .statements import fetch, moves_rows_in_one_statement

T = TypeVar("T")

JOB_ID, QUEUE, PRIORITY = 0, 3, 4
"""Of a ``Claim``."""
FIRST_RANK, LAST_RANK = -32768, 32767
FIRST_ID = UUID(int=0)
SHARE = 10
"""Looking from the start may take one part of so many of the time."""
LONGEST_SECONDS = 5.0
"""For so long at most a job behind a mark waits while others are claimed."""
NEW_QUEUES_SECONDS = 0.1
"""For so long at most jobs of a queue that was not known are passed over while others are claimed.
To look for such queues with each claim would make a small one twice as dear."""
DEAR = 2
"""So many times as long as by the marks: else it does not matter where a claim begins."""
FEW = 20
"""What is the same for every claim takes as long as so many jobs."""


class Watermarks:
    """The marks of one process, for each queue and rank. There are none where the claim cannot be
    told where to begin.

    Args:
        alias: of the database.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._marks: dict[str, dict[int, UUID]] = {}
        self._good_until = 0.0
        self._first_due_us = 0
        self._dearest = 0.0
        """What a job may take by the marks, if they are to be worth it; seconds."""
        self.queues: list[str] = []
        """Where jobs were at the last look from the start, or came since."""
        self._look_for_queues_at = 0.0

    def are_good(self) -> bool:
        """Whether it is too early for the next look from the start."""
        return time.monotonic() < self._good_until

    def forget(self) -> None:
        """Look from the start next time."""
        self._good_until = 0.0
        self._first_due_us = 0
        self._marks.clear()

    @property
    def due_from_us(self) -> int:
        """Deferred jobs that are due before that are not to be looked for now."""
        return self._first_due_us if self.are_good() else 0

    def begin_due_at(self, first_us: int | None) -> None:
        """The first of the deferred jobs was due then, and it is past that: who is deferred from
        now on is due later."""
        self._first_due_us = first_us or 0

    def guide(
        self, claim: Callable[[], list[T]], named: Sequence[str], is_more: Callable[[], bool]
    ) -> list[T]:
        """Have it claim by the marks, if they are good; else, or when it finds nothing so, from the
        start: who finds nothing has looked everywhere.

        Args:
            claim: takes where to begin from ``spans``.
            named: the queues; none = all that have jobs.
            is_more: whether it had no time to look at all that is there.
        """
        if not named and self.are_good():
            self._look_for_queues()
        began = time.monotonic()
        if self.are_good() and ((found := claim()) or is_more()):
            if _each(began, found) > self._dearest:
                self.forget()
            return found
        began = time.monotonic()
        self.forget()
        if not named:
            self.queues = Ready.objects.using(self._alias).queues()
        found = claim()
        if moves_rows_in_one_statement(connections[self._alias]):
            now = time.monotonic()
            self._good_until = now + min(SHARE * (now - began), LONGEST_SECONDS)
            self._dearest = _each(began, found) / DEAR
        return found

    def _look_for_queues(self) -> None:
        """Learn of queues whose first jobs have come since the last look."""
        now = time.monotonic()
        if now < self._look_for_queues_at:
            return
        self._look_for_queues_at = now + NEW_QUEUES_SECONDS
        known = {"known": self.queues}
        rows = fetch(connections[self._alias], "new_queues", known)
        self.queues += sorted({queue for (queue,) in rows})

    def note(self, rows: Iterable[Claim], guarded: Sequence[Claim]) -> None:
        """A claim has come to these rows, in the order of the line. Those with guards may stay."""
        last = {(row[QUEUE], row[PRIORITY]): row for row in rows}
        first_to_stay = {(row[QUEUE], row[PRIORITY]): row for row in reversed(guarded)}
        for (queue, priority), row in {**last, **first_to_stay}.items():
            self._marks.setdefault(queue, {})[-priority] = row[JOB_ID]

    def lower(self, places: Iterable[Place]) -> None:
        """These jobs have come to the line, where they may be before a mark."""
        for place in places:
            marks = self._marks.get(place.queue, {})
            if place.job_id < marks.get(place.rank, FIRST_ID):
                marks[place.rank] = place.job_id
            if place.queue not in self.queues:
                self.queues.append(place.queue)

    def spans(self, queues: Iterable[str]) -> dict[str, list[Any]]:
        """Their lines in parts: each from a mark to the rank of the next, the first from the start,
        the last to the end. As arrays, in order, for ``claim.sql``."""
        spans: dict[str, list[Any]] = {
            name: [] for name in ("queues", "span_queues", "low_ranks", "low_ids", "high_ranks")
        }
        for queue in queues:
            spans["queues"].append(queue)
            starts = [(FIRST_RANK, FIRST_ID), *sorted(self._marks.get(queue, {}).items())]
            ends = [rank - 1 for rank, _ in starts[1:]] + [LAST_RANK]
            for (rank, job_id), end in zip(starts, ends, strict=True):
                spans["span_queues"].append(queue)
                spans["low_ranks"].append(rank)
                spans["low_ids"].append(job_id)
                spans["high_ranks"].append(end)
        return spans


def _each(began: float, found: Sized) -> float:
    return (time.monotonic() - began) / (len(found) + FEW)
