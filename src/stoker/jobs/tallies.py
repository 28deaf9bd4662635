"""Tallies: what one process has recorded of attempts, summed up until it writes that to the history
of metrics. What it has not written when it is killed is missing there: a few seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress

from django.db import DatabaseError, InterfaceError

from stoker.conf import Settings
from stoker.models import Job, Tally
from stoker.models.job import Successes
from stoker.models.metrics import FINEST_SECONDS, Place, Sums
from stoker.store.statements import with_keys
from stoker.values.histogram import class_of

from .outcomes import Attempted, Cancelled, Failed, Outcome, Retry, Succeeded, Verdict

WRITE_SECONDS = 5.0
COUNTED: dict[type[Outcome], str] = {
    Succeeded: "successful",
    Failed: "failed",
    Cancelled: "cancelled",
    Retry: "retried",
}
"""A job that is put back unrun counts for nothing."""
UNRUN = ("expired", "unreadable", "unknown_task")
"""Why a job fails without having run."""
Times = tuple[float, float, float | None, float | None, int]
"""When an attempt that ran was begun, was over, and its job enqueued and due; which one it was."""


class Tallies:
    """The sums of one process."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._is_wanted = settings.keep_metrics_seconds > 0
        self._sums: dict[int, dict[Place, Sums]] = {}
        """By the beginning of the stretch of time in which it was recorded."""
        self._write_at = 0.0

    @property
    def are_due(self) -> bool:
        """Whether it is time to write."""
        return bool(self._sums) and time.monotonic() >= self._write_at

    def add(self, verdicts: Sequence[Verdict]) -> None:
        """Count what was recorded."""
        self._add([(verdict.attempted, verdict.outcome) for verdict in verdicts])

    def add_together(self, successes: Successes) -> None:
        """Count what was recorded by columns."""
        if not self._is_wanted:
            return
        all_sums = self._sums_of_now()
        ran = list(
            zip(
                *(
                    successes.started_at,
                    successes.finished_at,
                    successes.enqueued_at,
                    successes.run_after,
                    successes.attempts,
                ),
                strict=True,
            )
        )
        places = list(zip(successes.queues, successes.tasks, strict=True))
        for place in set(places):
            sums = all_sums.setdefault(Place(*place), Sums())
            some = list(compress(ran, [one == place for one in places]))
            sums.successful += len(some)
            _add_times(sums, some)

    def add_recorded(self, attempted: Iterable[Attempted]) -> None:
        """Count what workers have recorded themselves."""
        self._add([(one, one.outcome) for one in attempted])

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

    def _add(self, ends: Sequence[tuple[Attempted, Outcome]]) -> None:
        """What a cluster does, it does for every job: so the work is left to a few calls for each
        task and queue."""
        if not self._is_wanted or not ends:
            return
        all_sums = self._sums_of_now()
        tasks = self._tasks_of([one for one, _ in ends if not one.task])
        parts: dict[tuple[str, str], list[tuple[Attempted, Outcome]]] = {}
        for end in ends:
            attempted = end[0]
            delivery = attempted.delivery
            task = attempted.task or tasks.get(delivery.job_id, "")
            parts.setdefault((delivery.queue, task), []).append(end)
        for (queue, task), part in parts.items():
            _add_part(all_sums.setdefault(Place(queue, task), Sums()), part)

    def _sums_of_now(self) -> dict[Place, Sums]:
        if not self._sums:
            self._write_at = time.monotonic() + WRITE_SECONDS
        start = int(time.time()) // FINEST_SECONDS * FINEST_SECONDS
        return self._sums.setdefault(start, {})

    def _tasks_of(self, attempted: Sequence[Attempted]) -> dict[object, str]:
        """Of those whose package nobody opened, as that of a job whose worker died."""
        if not attempted:
            return {}
        with suppress(DatabaseError, InterfaceError):  # what is recorded is recorded
            jobs = Job.objects.using(self._alias)
            rows = with_keys(jobs, [one.delivery.job_id for one in attempted])
            return dict(rows.values_list("pk", "task"))
        return {}


def _add_part(sums: Sums, ends: Sequence[tuple[Attempted, Outcome]]) -> None:
    for kind, count in Counter(type(outcome) for _, outcome in ends).items():
        if kind in COUNTED:
            setattr(sums, COUNTED[kind], getattr(sums, COUNTED[kind]) + count)
    ran = [one for one, outcome in ends if type(outcome) is Succeeded or _has_run(one, outcome)]
    times = [
        (one.started_at, one.finished_at, one.enqueued_at, due, attempt)
        for one in ran
        for due, attempt in [(one.delivery.run_after, one.delivery.attempt)]
        if one.started_at is not None
    ]
    _add_times(sums, times)


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


def _has_run(attempted: Attempted, outcome: Outcome) -> bool:
    if attempted.delivery.refused or type(outcome) not in COUNTED:
        return False
    return not (isinstance(outcome, Failed) and outcome.reason in UNRUN)
