"""The job: one enqueued call of a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, connections, models, transaction
from django.utils import timezone

from stoker.store.clock import instant_us, instants_us, microseconds
from stoker.store.prepared import array_literal, list_literal
from stoker.store.statements import (
    Written,
    columns,
    fetch,
    insert_rows,
    moves_a_list_in_json,
    moves_rows_in_one_statement,
    with_keys,
)

from .deferred import Deferred
from .need import Need, NewNeed
from .ready import Place, Ready

COLUMNS = (
    "id", "task", "queue", "priority", "package", "enqueued_at", "run_after", "attempts",
    "worker_id", "reason",
)  # fmt: skip
"""Of a job that is added: the rest is NULL until it has ended."""


@dataclass(slots=True)
class NewJob:
    """A job to be added, as the store needs it."""

    job_id: UUID
    task: str
    queue: str
    priority: int
    package: bytes
    enqueued_at: float
    run_after: float | None = None
    needs: Sequence[NewNeed] = ()


class JobQuerySet(models.QuerySet["Job"]):
    def add(self, jobs: Sequence[NewJob]) -> None:
        """Insert jobs with the row that says where they wait. An id that is there is left alone."""
        connection = connections[self.db]
        jobs = _each_id_once(jobs)
        if not jobs:
            return
        if moves_rows_in_one_statement(connection):
            self._add_in_one_statement(jobs)
            return
        try:
            self._add_unknown(jobs)
        except IntegrityError:
            if connection.in_atomic_block:
                raise
            self._add_unknown(jobs)  # somebody added one of them just now: this time it is seen

    def _add_in_one_statement(self, jobs: Sequence[NewJob]) -> None:
        connection = connections[self.db]
        if any(job.needs for job in jobs):
            with transaction.atomic(using=self.db, savepoint=False):
                added = {row[0] for row in fetch(connection, "job_add", _as_arrays(jobs))}
                self._add_needs([job for job in jobs if job.job_id in added])
        elif len(jobs) == 1:
            fetch(connection, "job_add_one", as_parameters(jobs[0]))
        else:
            fetch(connection, "job_add", _as_arrays(jobs))

    def _add_needs(self, jobs: Iterable[NewJob]) -> None:
        needed = [(job.job_id, job.needs) for job in jobs if job.needs]
        Need.objects.using(self.db).add(needed)

    def _add_unknown(self, jobs: Sequence[NewJob]) -> None:
        with transaction.atomic(using=self.db, savepoint=False):
            job_ids = [job.job_id for job in jobs]
            known = set(with_keys(self, job_ids).values_list("pk", flat=True))
            fresh = [job for job in jobs if job.job_id not in known]
            insert_rows(self, COLUMNS, rows_of(fresh, Written(connections[self.db])))
            Deferred.objects.using(self.db).bulk_create(
                [_deferred(job, job.run_after) for job in fresh if job.run_after is not None]
            )
            Ready.objects.using(self.db).add(
                Place(job.job_id, job.queue, -job.priority, guards=len(job.needs))
                for job in fresh
                if job.run_after is None
            )
            self._add_needs(fresh)

    def ensure(self, jobs: Sequence[NewJob]) -> None:
        """Insert the rows of jobs that wait nowhere in the store. An id that is there is left
        alone."""
        connection = connections[self.db]
        if jobs and moves_rows_in_one_statement(connection):
            arrays = _as_arrays(jobs)
            wanted = ("id", "task", "queue", "priority", "package", "enqueued_us")
            fetch(connection, "job_ensure", {name: arrays[name] for name in wanted})
            return
        rows = [
            Job(
                id=job.job_id,
                task=job.task,
                queue=job.queue,
                priority=job.priority,
                package=job.package,
                enqueued_at=moment(job.enqueued_at),
            )
            for job in jobs
        ]
        self.bulk_create(rows, ignore_conflicts=True)

    def finish(self, endings: Sequence[Ending]) -> None:
        """Write how these jobs ended."""
        connection = connections[self.db]
        if not endings:
            return
        if moves_rows_in_one_statement(connection):
            fetch(connection, "job_finish", endings_as_arrays(endings))
        else:
            self._write_each(ending_rows(endings, Written(connection)))

    def succeeding(self, successes: Successes) -> Callable[[], object]:
        """What writes that these jobs ended well, all made ready: where one writes at a time, the
        others should not have to wait for that as well."""
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            arrays = successes.as_arrays()
            return lambda: fetch(connection, "job_finish", arrays)
        rows = successes.as_rows(Written(connection))
        return lambda: self._write_each(rows)

    def _write_each(self, rows: Sequence[tuple[Any, ...]]) -> None:
        connection = connections[self.db]
        table = connection.ops.quote_name(self.model._meta.db_table)
        statement = (
            f"UPDATE {table} SET status = %s, attempts = %s, worker_id = %s, started_at = %s,"  # noqa: S608 - the table's own name
            " finished_at = %s, value = %s, reason = %s WHERE id = %s"
        )
        with connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def packages(self, job_ids: Sequence[UUID]) -> Mapping[UUID, bytes]:
        """Job id -> package."""
        rows = with_keys(self, job_ids).values_list("pk", "package")
        return {job_id: bytes(package) for job_id, package in rows}

    def packages_and_moments(
        self, job_ids: Sequence[UUID]
    ) -> Mapping[UUID, tuple[bytes, float | None]]:
        """Job id -> package, and the moment that it was enqueued for: seconds since 1970."""
        connection = connections[self.db]
        if moves_a_list_in_json(connection):
            by_hex = {job_id.hex: job_id for job_id in job_ids}
            found = fetch(connection, "listed_packages", {"job_ids": json.dumps(list(by_hex))})
            return {
                by_hex[key]: (package, due and as_seconds(connection, due))
                for key, package, due in found
            }
        rows = with_keys(self, job_ids).values_list("pk", "package", "run_after")
        return {
            job_id: (bytes(package), None if run_after is None else run_after.timestamp())
            for job_id, package, run_after in rows
        }


class Job(models.Model):
    """Written once when enqueued and once when finished."""

    class Status(models.TextChoices):
        SUCCESSFUL = "SUCCESSFUL"
        FAILED = "FAILED"
        CANCELLED = "CANCELLED"

    id = models.UUIDField(primary_key=True)
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField(default=0)
    package = models.BinaryField()
    enqueued_at = models.DateTimeField()
    run_after = models.DateTimeField(null=True)

    status = models.CharField(max_length=10, choices=Status.choices, null=True)  # noqa: DJ001 - see below
    """NULL until the job has ended: the narrow tables say where it is."""
    attempts = models.SmallIntegerField(default=0)
    worker_id = models.CharField(max_length=128, default="")
    """The worker of the last attempt; those of the others are in Attempt."""
    started_at = models.DateTimeField(null=True)
    """When the last attempt started."""
    finished_at = models.DateTimeField(null=True)
    value = models.BinaryField(null=True)
    """The serialised return value."""
    reason = models.CharField(max_length=255, default="")
    """Why it was cancelled or failed, in one line."""

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = "job"
        permissions = (
            ("cancel_job", "Can cancel jobs"),
            ("pause_queue", "Can pause queues, and resume them"),
            ("clear_queue", "Can clear queues"),
        )

    def __str__(self) -> str:
        return f"{self.task} {self.pk}"


def moment(seconds: float) -> datetime:
    """Seconds since 1970 as what a DateTimeField takes under the project's USE_TZ."""
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def as_seconds(connection: Any, written: datetime) -> float:
    """A moment as SQLite has it, in seconds since 1970."""
    zone = connection.timezone if settings.USE_TZ else None
    return written.replace(tzinfo=zone).timestamp()


def _each_id_once(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Two rows that say where one job waits would be two jobs."""
    first: dict[UUID, NewJob] = {}
    for job in jobs:
        first.setdefault(job.job_id, job)
    return list(first.values())


def rows_of(jobs: Sequence[NewJob], written: Written) -> list[tuple[Any, ...]]:
    """The values of ``COLUMNS``."""
    return [
        (
            written.id(job.job_id),
            job.task,
            job.queue,
            job.priority,
            written.data(job.package),
            written.moment(job.enqueued_at),
            written.moment(job.run_after),
            0,
            "",
            "",
        )
        for job in jobs
    ]


def _deferred(job: NewJob, run_after: float) -> Deferred:
    return Deferred(
        job_id=job.job_id,
        queue=job.queue,
        rank=-job.priority,
        due_us=microseconds(run_after),
        guards=len(job.needs),
    )


def as_parameters(job: NewJob) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "package": job.package,
        "enqueued_us": instant_us(job.enqueued_at),
        "run_after_us": instant_us(job.run_after),
        "due_us": None if job.run_after is None else microseconds(job.run_after),
        "guards": len(job.needs),
    }


def _as_arrays(jobs: Sequence[NewJob]) -> dict[str, Any]:
    rows = [as_parameters(job) for job in jobs]
    return {name: [row[name] for row in rows] for name in rows[0]}


SUCCESSFUL = "SUCCESSFUL"
"""As ``Job.Status`` has it, which is made later."""


class Ending(NamedTuple):
    """How a job ended, as the store keeps it."""

    job_id: UUID
    status: str
    attempts: int
    worker_id: str
    started_at: float | None
    finished_at: float
    value: bytes | None = None
    reason: str = ""


class Successes(NamedTuple):
    """How jobs ended well, by columns: there are many, and an object for each would cost more than
    all that is done with it."""

    job_ids: Sequence[str]
    """The 32 digits of each; each once."""
    lease_ids: Sequence[int]
    attempts: Sequence[int]
    worker_ids: Sequence[str]
    started_at: Sequence[float]
    """Seconds since 1970, as all moments here."""
    finished_at: Sequence[float]
    values: Sequence[bytes]
    queues: Sequence[str]
    tasks: Sequence[str]
    enqueued_at: Sequence[float]
    run_after: Sequence[float | None]

    def as_arrays(self) -> dict[str, str]:
        """For ``job_finish.sql``."""
        count = len(self.job_ids)
        return {
            "id": list_literal(self.job_ids),
            "status": list_literal(repeat(SUCCESSFUL, count)),
            "attempts": list_literal(map(str, self.attempts)),
            "worker_id": array_literal(self.worker_ids),
            "started_us": list_literal(map(str, instants_us(self.started_at))),
            "finished_us": list_literal(map(str, instants_us(self.finished_at))),
            "value": list_literal([f'"\\\\x{value.hex()}"' for value in self.values]),
            "reason": list_literal(repeat('""', count)),
        }

    def as_rows(self, written: Written) -> list[tuple[Any, ...]]:
        """The values of an UPDATE of one row each; the key comes last."""
        started = written.moments(self.started_at)
        finished = written.moments(self.finished_at)
        same = (self.attempts, self.worker_ids, started, finished, self.values)
        return list(zip(repeat(SUCCESSFUL), *same, repeat(""), self.job_ids))


def endings_as_arrays(endings: Sequence[Ending]) -> dict[str, Any]:
    """For ``job_finish.sql``."""
    names = (
        "id", "status", "attempts", "worker_id", "started_us", "finished_us", "value", "reason",
    )  # fmt: skip
    rows = [
        (
            ending.job_id,
            ending.status,
            ending.attempts,
            ending.worker_id,
            instant_us(ending.started_at),
            instant_us(ending.finished_at),
            ending.value,
            ending.reason[:255],
        )
        for ending in endings
    ]
    return dict(zip(names, columns(rows, len(names)), strict=True))


def ending_rows(endings: Sequence[Ending], written: Written) -> list[tuple[Any, ...]]:
    """The values of an UPDATE of one row each; the key comes last."""
    return [
        (
            ending.status,
            ending.attempts,
            ending.worker_id,
            written.moment(ending.started_at),
            written.moment(ending.finished_at),
            written.data(ending.value),
            ending.reason[:255],
            written.id(ending.job_id),
        )
        for ending in endings
    ]
