"""Jobs and the lines that they wait in: each that has not ended is in exactly one place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import CharField, Count, Max, Q, Value

from stoker.models import Attempt, Claimed, Job, Need, Ready
from stoker.models.isolation import deciding
from stoker.models.places import PLACES, WAITING
from stoker.models.ready import Place
from stoker.models.statements import delete_by_key, lock_by_key, with_keys

from .look import Kind, Look

LOST = Kind(
    "lost_jobs",
    "These jobs have not ended, and are in no line: nobody would ever run them.",
    "they are ready again",
)
DOUBLE = Kind(
    "jobs_in_two_places",
    "These jobs are in more than one place, so that they might run twice.",
    "the place next to running is kept",
)
ENDED = Kind(
    "ended_jobs_in_line",
    "These jobs have ended and yet wait or are leased, so that they might run once more.",
    "they are taken out of the line",
)
WITHOUT_JOB = Kind(
    "places_without_job",
    "There is a place for these jobs, but their packages are gone: whoever claims one makes a dead "
    "letter of it.",
)
UNGUARDED = Kind(
    "jobs_without_their_guards",
    "These jobs wait without what they need (their rows in stoker_need are not as many as they "
    "should be), so that they might run beside others.",
)
NEXT_TO_RUNNING = ("running", "ready", "blocked", "deferred")


class Jobs(Look):
    """Those that have not ended have a place."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        for page in self.scene.pages(Job, "status"):
            alive = [job_id for job_id, status in page if status is None]
            # In this order: what has not ended after the look had not ended during it.
            nowhere = set(alive) - places_of(self.alias, alive).keys()
            yield LOST, sorted(self._alive(nowhere))

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        """With the job's row locked: whoever else mends it waits, and then finds it in line."""
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

    def _alive(self, job_ids: Collection[UUID]) -> set[UUID]:
        if not job_ids:
            return set()
        jobs = with_keys(Job.objects.using(self.alias).filter(status=None), job_ids)
        return set(jobs.values_list("pk", flat=True))

    def _counts(self, job_ids: Sequence[UUID]) -> dict[UUID, tuple[int, int, int]]:
        """Attempts, crashes and needs, as they are written down elsewhere."""
        crashed = Count("pk", filter=Q(kind=Attempt.Kind.CRASHED))
        tried = Attempt.objects.using(self.alias).filter(job_id__in=job_ids).values_list("job_id")
        attempts = {row[0]: row[1:] for row in tried.annotate(last=Max("number"), crashed=crashed)}
        needs = Need.objects.using(self.alias).filter(job_id__in=job_ids).values_list("job_id")
        needed = dict(needs.annotate(Count("pk")))
        return {one: (*attempts.get(one, (0, 0)), needed.get(one, 0)) for one in job_ids}


class Lines(Look):
    """Whoever is in one of them is a job, is nowhere else, and has not ended."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        for name, table in PLACES.items():
            for page in self.scene.pages(table, "guards"):
                yield from self._judge(name, table, dict(page))

    def _judge(
        self, name: str, table: type[models.Model], guards: dict[UUID, int]
    ) -> Iterator[tuple[Kind, Sequence[Any]]]:
        places = places_of(self.alias, guards)
        double = [one for one, names in places.items() if len(names) > 1 and names[0] == name]
        yield DOUBLE, double
        jobs = with_keys(Job.objects.using(self.alias), guards.keys())
        status = dict(jobs.values_list("pk", "status"))
        # Looked at after its job's end, which takes it away: what is there still, is wrong.
        ended = [one for one in guards if status.get(one) is not None]
        yield ENDED, self._still_in(table, ended)
        yield WITHOUT_JOB, self._still_in(table, [one for one in guards if one not in status])
        if table is not Claimed:
            guarded = {one: count for one, count in guards.items() if count and one not in double}
            yield UNGUARDED, self._unguarded(table, guarded)

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        return self._let_go(ids) if kind is ENDED else self._keep_one_place(ids)

    def _still_in(self, table: type[models.Model], job_ids: Collection[UUID]) -> list[UUID]:
        if not job_ids:
            return []
        rows = with_keys(table._default_manager.using(self.alias), job_ids)
        return sorted(rows.values_list("pk", flat=True))

    def _unguarded(self, table: type[models.Model], guards: dict[UUID, int]) -> list[UUID]:
        """Looked at again: it may have become another call meanwhile, with other guards."""
        if not guards:
            return []
        needs = Need.objects.using(self.alias).filter(job_id__in=guards).values_list("job_id")
        needed = dict(needs.annotate(Count("pk")))
        lacking = [one for one, count in guards.items() if needed.get(one, 0) != count]
        rows = with_keys(table._default_manager.using(self.alias), lacking)
        still = dict(rows.values_list("pk", "guards")) if lacking else {}
        return [one for one in lacking if still.get(one) == guards[one]]

    def _let_go(self, ids: Sequence[UUID]) -> int:
        """An end is for good, so that nothing has to be looked at again."""
        waiting = self.scene.broker.withdraw(ids)
        leased = with_keys(Claimed.objects.using(self.alias), ids)
        keys = list(leased.values_list("pk", "lease_id"))
        freed = Claimed.objects.using(self.alias).settle(keys) if keys else None
        return len(waiting.union(job_id for job_id, _ in freed.valid) if freed else waiting)

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
    """Job id -> every place where it is. One statement, so one moment."""
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
