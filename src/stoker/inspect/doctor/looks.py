"""Checks of the doctor: jobs, steps and dead letters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import CharField, Count, Exists, Max, OuterRef, Q, Value

from stoker.brokers.contract import Lease
from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings
from stoker.dead_letters.search import told_by_dead_letters
from stoker.models import (
    Attempt,
    Claimed,
    DeadLetter,
    Job,
    Need,
    Ready,
    Requeue,
    Step,
    UniqueKey,
    Workflow,
)
from stoker.models.ready import Place
from stoker.store.places import PLACES, WAITING
from stoker.store.statements import deciding, delete_by_key, lock_by_key, with_keys
from stoker.store.written import database_now_us
from stoker.values.progress import come_so_far

AT_ONCE = 500
"""Number of rows per page and statement."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of problem."""

    name: str
    sentence: str
    remedy: str = ""
    """Description of the repair; "" = no repair is safe."""
    is_fault: bool = True
    """Whether a guarantee is broken. False: a notice, or a problem that upkeep repairs."""


@dataclass(slots=True)
class Scene:
    """The store to check.

    Args:
        most: maximum number of rows per table.
    """

    settings: Settings
    broker: Dispatch
    most: int
    looked_at: int = 0
    cut_short: set[str] = field(default_factory=set)
    """Tables that were not read completely."""

    @property
    def alias(self) -> str:
        return self.settings.database

    def pages(self, model: type[models.Model], *names: str) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield the rows of a table in pages along its primary key: the key and the named
        fields."""
        rows = model._default_manager.using(self.alias).order_by("pk").values_list("pk", *names)
        after: Any = None
        seen = 0
        while page := list((rows if after is None else rows.filter(pk__gt=after))[:AT_ONCE]):
            yield page
            seen += len(page)
            self.looked_at += len(page)
            come_so_far(self.looked_at)
            after = page[-1][0]
            if len(page) < AT_ONCE:
                return
            if seen >= self.most:
                self.cut_short.add(model._meta.db_table)
                return


class Look(ABC):
    """A check of one part of the store."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.alias = scene.alias

    @abstractmethod
    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        """Yield the problems page by page: kind, and ids of the rows."""

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        """Repair the rows that have not changed since they were read. Return their number."""
        raise NotImplementedError  # each check has its own

    def existing(self, table: type[models.Model], keys: Collection[UUID]) -> list[UUID]:
        """Return the primary keys among these that the table still has, in order."""
        if not keys:
            return []
        rows = with_keys(table._default_manager.using(self.alias), keys)
        return sorted(rows.values_list("pk", flat=True))


LOST = FindingKind(
    "lost_jobs",
    "These jobs have not ended, but are in no queue: no cluster would ever run them.",
    "they become ready",
)
DOUBLE = FindingKind(
    "jobs_in_two_places",
    "These jobs are in more than one state table, so they might run twice.",
    "the row that is closest to running is kept",
)
ENDED = FindingKind(
    "ended_jobs_in_line",
    "These jobs have ended, but still wait or are leased, so they might run once more.",
    "their rows are deleted from the queue",
)
WITHOUT_JOB = FindingKind(
    "places_without_job",
    "These jobs are in a queue, but their packages do not exist: a claim turns them into dead "
    "letters.",
)
UNGUARDED = FindingKind(
    "jobs_without_their_guards",
    "Rows in stoker_need are missing for these jobs, so they might run at the same time as jobs "
    "with the same key.",
)
NEXT_TO_RUNNING = ("running", "ready", "blocked", "deferred")


class Jobs(Look):
    """Check that each unfinished job is in a hot table."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        for page in self.scene.pages(Job, "status"):
            alive = [job_id for job_id, status in page if status is None]
            # In this order: a job that has not ended after the read had not ended during it.
            nowhere = set(alive) - places_of(self.alias, alive).keys()
            yield LOST, sorted(Job.objects.using(self.alias).unended(nowhere))

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        """Put lost jobs into the ready table. Locks their rows, so that concurrent repairs wait."""
        with deciding(self.alias):
            names = ("id", "queue", "priority", "status")
            rows = lock_by_key(Job.objects.using(self.alias), ids, *names)
            alive = {row.id: row for row in rows if row.status is None}
            lost = [alive[one] for one in alive.keys() - places_of(self.alias, alive).keys()]
            counts = self._counts([row.id for row in lost])
            Ready.objects.using(self.alias).add(
                Place(row.id, row.queue, -row.priority, *counts[row.id]) for row in lost
            )
        self.scene.broker.wake_up({row.queue for row in lost})
        return len(lost)

    def _counts(self, job_ids: Sequence[UUID]) -> dict[UUID, tuple[int, int, int]]:
        """Return the number of attempts, crashes and needs of each job, from other tables."""
        crashed = Count("pk", filter=Q(kind=Attempt.Kind.CRASHED))
        tried = Attempt.objects.using(self.alias).filter(job_id__in=job_ids).values_list("job_id")
        attempts = {row[0]: row[1:] for row in tried.annotate(last=Max("number"), crashed=crashed)}
        needs = Need.objects.using(self.alias).filter(job_id__in=job_ids).values_list("job_id")
        needed = dict(needs.annotate(Count("pk")))
        return {one: (*attempts.get(one, (0, 0)), needed.get(one, 0)) for one in job_ids}


class Lines(Look):
    """Check that each row of a hot table belongs to an unfinished job, and that no job has two such
    rows."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        for name, table in PLACES.items():
            for page in self.scene.pages(table, "guards"):
                yield from self._judge(name, table, dict(page))

    def _judge(
        self, name: str, table: type[models.Model], guards: dict[UUID, int]
    ) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        places = places_of(self.alias, guards)
        double = [one for one, names in places.items() if len(names) > 1 and names[0] == name]
        yield DOUBLE, double
        jobs = with_keys(Job.objects.using(self.alias), guards.keys())
        status = dict(jobs.values_list("pk", "status"))
        # The end of a job deletes this row. A row that still exists after the job's end is wrong.
        ended = [one for one in guards if status.get(one) is not None]
        yield ENDED, self.existing(table, ended)
        yield WITHOUT_JOB, self.existing(table, [one for one in guards if one not in status])
        if table is not Claimed:
            guarded = {one: count for one, count in guards.items() if count and one not in double}
            yield UNGUARDED, self._unguarded(table, guarded)

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        return self._remove_ended(ids) if kind is ENDED else self._keep_one_place(ids)

    def _unguarded(self, table: type[models.Model], guards: dict[UUID, int]) -> list[UUID]:
        """Return the jobs whose needs are still missing at a second read. The first read may be
        outdated, because a replaced call has other guards."""
        if not guards:
            return []
        needs = Need.objects.using(self.alias).filter(job_id__in=guards).values_list("job_id")
        needed = dict(needs.annotate(Count("pk")))
        lacking = [one for one, count in guards.items() if needed.get(one, 0) < count]
        rows = with_keys(table._default_manager.using(self.alias), lacking)
        still = dict(rows.values_list("pk", "guards")) if lacking else {}
        return [one for one in lacking if still.get(one) == guards[one]]

    def _remove_ended(self, ids: Sequence[UUID]) -> int:
        """Remove finished jobs from the hot tables. No second check is needed, because an end is
        final."""
        waiting = self.scene.broker.withdraw(ids)
        leased = with_keys(Claimed.objects.using(self.alias), ids)
        held = dict(leased.values_list("pk", "lease_id"))
        leases = {Lease(job_id, lease_id) for job_id, lease_id in held.items()}
        stale = self.scene.broker.settle([*leases])
        return len(waiting.union(lease.job_id for lease in leases - stale))

    def _keep_one_place(self, ids: Sequence[UUID]) -> int:
        with deciding(self.alias):
            there: dict[UUID, list[str]] = {}
            for name in NEXT_TO_RUNNING:
                rows = PLACES[name]._default_manager.using(self.alias)
                for row in lock_by_key(rows, ids, "job_id"):
                    there.setdefault(row.job_id, []).append(name)
            for name, table in WAITING.items():
                spare = [one for one, names in there.items() if name in names[1:]]
                delete_by_key(table._default_manager.using(self.alias), spare)
            return sum(len(names) > 1 for names in there.values())


def places_of(alias: str, job_ids: Collection[UUID]) -> dict[UUID, list[str]]:
    """Return the hot tables that contain each job, read in one statement."""
    if not job_ids:
        return {}
    found = [
        with_keys(place._default_manager.using(alias), job_ids).values_list(
            "pk", Value(name, CharField())
        )
        for name, place in PLACES.items()
    ]
    places: dict[UUID, list[str]] = {}
    for job_id, name in found[0].union(*found[1:], all=True):
        places.setdefault(job_id, []).append(name)
    order = list(PLACES)
    return {job_id: sorted(names, key=order.index) for job_id, names in places.items()}


LEFT_BEHIND = FindingKind(
    "steps_left_behind",
    "The jobs of these steps have ended or do not exist, but their workflows have not continued: "
    "later steps would never begin. Requeue the job, or cancel the workflow.",
)


class StuckSteps(Look):
    """Check that workflows of this backend have advanced after the end of each job."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        workflows = Workflow.objects.using(self.alias).filter(pk=OuterRef("workflow_id"))
        is_of_another = Exists(workflows.exclude(backend=self.scene.settings.alias))
        for page in self.scene.pages(Step, "state", "job_id"):
            enqueued = {row[0]: row[2] for row in page if row[1] == Step.State.ENQUEUED}
            if enqueued:
                alive = self._alive([job_id for job_id in enqueued.values() if job_id])
                over = [pk for pk, job_id in enqueued.items() if job_id not in alive]
                rows = with_keys(Step.objects.using(self.alias), over)
                still = rows.filter(~is_of_another, state=Step.State.ENQUEUED)
                ids = still.values_list("pk", "job_id")
                yield LEFT_BEHIND, [pk for pk, job_id in ids if job_id == enqueued[pk]]

    def _alive(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the jobs that have not ended. A broker outside the database may be the only place
        that has them; on their way from an outbox, jobs are in both."""
        broker = self.scene.broker
        if broker.capabilities.transactional:
            return Job.objects.using(self.alias).unended(job_ids)
        alive = {row.pk for row in broker.outgoing(job_ids)} | broker.not_arrived(job_ids)
        return alive | broker.states(job_ids).keys()


CONTRADICTED = FindingKind(
    "dead_letters_of_no_failure",
    "These dead letters are open, but their jobs have not failed.",
)
UNRESOLVED = FindingKind(
    "unresolved_dead_letters",
    "These dead letters were requeued, and the new job has succeeded: they should be resolved.",
    "they are resolved",
)
DESERTED = FindingKind(
    "deserted_dead_letters",
    "These dead letters were requeued, and the new job was deleted or cancelled: no job "
    "continues them.",
    "they are reopened",
    is_fault=False,
)
DANGLING = FindingKind(
    "requeues_without_dead_letter",
    "The dead letters of these requeues (the ids are those of the new jobs) do not exist.",
    "they are deleted",
    is_fault=False,
)
ORPHANED = FindingKind(
    "attempts_without_job",
    "The jobs of these attempts do not exist, and no dead letter shows the attempts.",
    "they are deleted",
    is_fault=False,
)
LEFT_KEYS = FindingKind(
    "unique_keys_without_job",
    "The jobs that took these unique keys do not exist. The keys count as free.",
    "they are deleted",
    is_fault=False,
)
BY = "stoker doctor"


class Letters(Look):
    """Check that open dead letters belong to failed jobs, and requeued ones to unfinished jobs."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        for page in self.scene.pages(DeadLetter, "state", "job_id", "successor_id"):
            open_ones = {row[0]: row[2] for row in page if row[1] == DeadLetter.State.OPEN}
            carried = {row[0]: row[3] for row in page if row[1] == DeadLetter.State.REQUEUED}
            job_ids = [*open_ones.values(), *filter(None, carried.values())]
            jobs = with_keys(Job.objects.using(self.alias), job_ids)
            status = dict(jobs.values_list("pk", "status"))
            wrong = {
                pk: job_id
                for pk, job_id in open_ones.items()
                if status.get(job_id, Job.Status.FAILED) != Job.Status.FAILED
            }
            yield CONTRADICTED, self._still("job_id", wrong)
            over = {pk: one for pk, one in carried.items() if status.get(one, "gone") is not None}
            done = {pk: one for pk, one in over.items() if status.get(one) == Job.Status.SUCCESSFUL}
            yield UNRESOLVED, self._still("successor_id", done)
            left = {pk: one for pk, one in over.items() if pk not in done}
            yield DESERTED, self._still("successor_id", left)

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        letters = DeadLetter.objects.using(self.alias)
        seen = list(with_keys(letters.filter(state=DeadLetter.State.REQUEUED), ids))
        if kind is DESERTED:
            return sum(letters.reopen(one) for one in seen)
        state, why = DeadLetter.State.RESOLVED, "the job that it was requeued as has succeeded"
        return sum(letters.close(one, state, BY, why) for one in seen)

    def _still(self, name: str, seen: dict[UUID, Any]) -> list[UUID]:
        """Return the ids of the dead letters that have not changed since they were read."""
        if not seen:
            return []
        rows = with_keys(DeadLetter.objects.using(self.alias).unclosed(), seen.keys())
        return sorted(pk for pk, job_id in rows.values_list("pk", name) if job_id == seen[pk])


class LeftoverNotes(Look):
    """Find rows that are no longer used. They do no harm, but their number grows."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        for page in self.scene.pages(Requeue, "identity"):
            yield DANGLING, self._dangling([row[0] for row in page])
        for page in self.scene.pages(Attempt, "job_id"):
            jobs = self._gone({row[1] for row in page})
            yield ORPHANED, [pk for pk, job_id in page if job_id in jobs]
        for page in self.scene.pages(UniqueKey, "job_id", "until_us"):
            now_us = database_now_us(self.alias)
            jobs = self._gone({row[1] for row in page if row[2] <= now_us})
            yield LEFT_KEYS, [pk for pk, job_id, _ in page if job_id in jobs]

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        if kind is DANGLING:
            rows: Any = Requeue.objects.using(self.alias)
            return int(rows.filter(pk__in=self._dangling(ids)).delete()[0])
        if kind is LEFT_KEYS:
            return UniqueKey.objects.using(self.alias).forget_these(ids)
        job = Job.objects.using(self.alias).filter(pk=OuterRef("job_id"))
        attempts = Attempt.objects.using(self.alias).filter(~Exists(job), pk__in=ids)
        return int(attempts.delete()[0])

    def _dangling(self, job_ids: Sequence[UUID]) -> list[UUID]:
        letter = DeadLetter.objects.using(self.alias).filter(identity=OuterRef("identity"))
        rows = with_keys(Requeue.objects.using(self.alias), job_ids)
        return sorted(rows.filter(~Exists(letter)).values_list("pk", flat=True))

    def _gone(self, job_ids: set[UUID]) -> set[UUID]:
        """Return the jobs that do not exist any more and that no dead letter refers to."""
        gone = job_ids - set(self.existing(Job, job_ids))
        return gone - told_by_dead_letters(self.alias, gone) if gone else gone
