"""Tallies: what one process has recorded of attempts, summed up until it writes that to the history
of metrics. What it has not written when it is killed is missing there: a few seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress
from typing import Any, cast
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from stoker.conf import Settings
from stoker.models import Job, Tally
from stoker.models.metrics import FINEST_SECONDS, Sums, TaskInQueue
from stoker.store.statements import with_keys
from stoker.values.histogram import class_of

from .batch import Batch
from .outcomes import Cancelled, Failed, Outcome, Retry

WRITE_SECONDS = 5.0
COUNTED: dict[type[Outcome], str] = {
    Failed: "failed",
    Cancelled: "cancelled",
    Retry: "retried",
}
"""What did not succeed. A job that is put back unrun counts for nothing."""
UNRUN = ("expired", "unreadable", "unknown_task")
"""Why a job fails without having run."""
Times = tuple[Any, float, float | None, float | None, int]
"""When an attempt that ran was begun, was over, and its job enqueued and due; which one it was."""


class Tallies:
    """The sums of one process."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._is_wanted = settings.keep_metrics_seconds > 0
        self._sums: dict[int, dict[TaskInQueue, Sums]] = {}
        """By the beginning of the stretch of time in which it was recorded."""
        self._write_at = 0.0

    @property
    def are_due(self) -> bool:
        """Whether it is time to write."""
        return bool(self._sums) and time.monotonic() >= self._write_at

    def add(self, batch: Batch) -> None:
        """Count what was recorded. What a cluster does, it does for every job: so the work is left
        to a few calls for each task and queue."""
        if not self._is_wanted or not len(batch):
            return
        all_sums = self._sums_of_now()
        moments = (batch.started_at, batch.finished_at, batch.enqueued_at, batch.run_after)
        ran: list[Times | None] = list(zip(*moments, batch.attempts, strict=True))
        for at, outcome in batch.decided.items():
            if not _has_run(outcome, batch.refused[at]):
                ran[at] = None
        lines = list(zip(batch.queues, self._tasks_of(batch), strict=True))
        for line in set(lines):
            sums = all_sums.setdefault(TaskInQueue(*line), Sums())
            is_here = [one == line for one in lines]
            some = list(compress(ran, is_here))
            if None in batch.started_at or batch.decided:
                some = [one for one in some if one is not None and one[0] is not None]
            _add_times(sums, cast("list[Times]", some))
            sums.successful += sum(is_here)
            _add_troubles(sums, [one for at, one in batch.decided.items() if is_here[at]])

    def write(self) -> None:
        """Write all of it to the history.

        Raises:
            DatabaseError: it was not written, and is kept.
        """
        tallies = Tally.objects.using(self._alias)
        self._write_at = time.monotonic() + WRITE_SECONDS
        rows = [
            row
            for start, sums in self._sums.items()
            for row in tallies.rows_of(start, FINEST_SECONDS, sums)
        ]
        tallies.bulk_create(rows)
        self._sums = {}

    def _sums_of_now(self) -> dict[TaskInQueue, Sums]:
        if not self._sums:
            self._write_at = time.monotonic() + WRITE_SECONDS
        start = int(time.time()) // FINEST_SECONDS * FINEST_SECONDS
        return self._sums.setdefault(start, {})

    def _tasks_of(self, batch: Batch) -> Sequence[str]:
        """Return the tasks of these jobs. Look up those whose package no worker opened."""
        if all(batch.tasks):  # nearly always
            return batch.tasks
        unknown = [
            job_id for job_id, task in zip(batch.ids(), batch.tasks, strict=True) if not task
        ]
        known: dict[UUID, str] = {}
        with suppress(DatabaseError, InterfaceError):  # what is recorded is recorded
            rows = with_keys(Job.objects.using(self._alias), unknown)
            known = dict(rows.values_list("pk", "task"))
        pairs = zip(batch.ids(), batch.tasks, strict=True)
        return [task or known.get(job_id, "") for job_id, task in pairs]


def _add_troubles(sums: Sums, decided: Sequence[Outcome]) -> None:
    """Count what did not succeed, and was counted as if it had."""
    sums.successful -= len(decided)
    for kind, count in Counter(map(type, decided)).items():
        if kind in COUNTED:
            setattr(sums, COUNTED[kind], getattr(sums, COUNTED[kind]) + count)


def _add_times(sums: Sums, times: Sequence[Times]) -> None:
    runs = [finished_at - started_at for started_at, finished_at, _, _, _ in times]
    waits = [
        # Not below 0: the clocks of two hosts may differ.
        max(0.0, started_at - (max(enqueued_at, run_after) if run_after else enqueued_at))
        for started_at, _, enqueued_at, run_after, attempt in times
        if attempt == 1 and enqueued_at is not None
    ]
    sums.run_seconds += sum(runs)
    sums.run_classes.update(map(class_of, runs))
    sums.wait_seconds += sum(waits)
    sums.wait_classes.update(map(class_of, waits))


def _has_run(outcome: Outcome, refused: str) -> bool:
    if refused or type(outcome) not in COUNTED:
        return False
    return not (isinstance(outcome, Failed) and outcome.reason in UNRUN)
