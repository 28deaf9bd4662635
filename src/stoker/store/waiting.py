"""Jobs that wait, wherever they do: held where they are, and changed.

A held job is passed over by every claim until the transaction of its holder has ended. That may
take its time, so nobody else may wait for such a row: whoever moves jobs leaves out what is locked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from stoker.models.blocked import Blocked
from stoker.models.deferred import Deferred
from stoker.models.job import Job, NewJob, moment
from stoker.models.need import Need, NewNeed, StatedNeed, need_ids
from stoker.models.ready import Place, Ready

from .clock import microseconds
from .engines import engine_of
from .engines.base import PLACE
from .statements import delete_by_key, update_by_key
from .written import as_uuid

TABLES: Mapping[str, type[Ready | Deferred | Blocked]] = {
    "ready": Ready,
    "deferred": Deferred,
    "blocked": Blocked,
}
REPLACED_FIELDS = ("task", "queue", "priority", "package", "enqueued_at", "run_after")


class Held(NamedTuple):
    """A job that waits where it is until this transaction has ended."""

    table: str
    place: Place


def hold(alias: str, waits: Mapping[UUID, str], *, alone: bool) -> dict[UUID, Held]:
    """Let these jobs wait on until this transaction has ended.

    Args:
        alias: of the database.
        waits: job id -> the table in which it was seen.
        alone: to change them. False: any number of transactions may hold them together.

    Returns:
        Those that still were there.
    """
    engine, lock = engine_of(alias), "UPDATE" if alone else "SHARE"
    held: dict[UUID, Held] = {}
    for name, table in TABLES.items():
        job_ids = [job_id for job_id, where in waits.items() if where == name]
        if job_ids:
            for job_id, *rest in engine.hold(table.objects.using(alias), PLACE, job_ids, lock):
                place = Place(as_uuid(job_id), *rest)
                held[place.job_id] = Held(name, place)
    return held


def replace(alias: str, replacements: Sequence[tuple[Held, NewJob]]) -> set[UUID]:
    """Let waiting jobs become other calls: arguments, queue, priority, moment and guards, under
    their ids. They keep their place among those of the same priority, and the attempts used.

    Args:
        alias: of the database.
        replacements: each as it was held alone, and what it shall be.

    Returns:
        The keys of guards that are to be looked after when this transaction has ended.
    """
    if not replacements:
        return set()
    _write_jobs(alias, [job for _, job in replacements])
    let_go = _change_needs(alias, replacements)
    for name, table in TABLES.items():
        moved = [held.place.job_id for held, _ in replacements if held.table == name]
        delete_by_key(table.objects.using(alias), moved)
    ready = [_place(held, job) for held, job in replacements if job.run_after is None]
    Ready.objects.using(alias).add(ready)
    Deferred.objects.using(alias).bulk_create(
        Deferred(due_us=microseconds(job.run_after), **_place(held, job)._asdict())
        for held, job in replacements
        if job.run_after is not None
    )
    return let_go


def lines_of(alias: str, held: Collection[Held]) -> set[UUID]:
    """The keys in whose lines held jobs are blocked. Their turn is missed while they are held, so
    these keys, too, are to be looked after."""
    blocked = [one.place.job_id for one in held if one.table == "blocked"]
    rows = Blocked.objects.using(alias).filter(pk__in=blocked)
    return set(rows.values_list("key_id", flat=True))


def _write_jobs(alias: str, jobs: Iterable[NewJob]) -> None:
    """They are there, and held: in effect this is an UPDATE, in one statement on every database."""
    features = connections[alias].features
    Job.objects.using(alias).bulk_create(
        [
            Job(
                id=job.job_id,
                task=job.task,
                queue=job.queue,
                priority=job.priority,
                package=job.package,
                enqueued_at=moment(job.enqueued_at),
                run_after=None if job.run_after is None else moment(job.run_after),
            )
            for job in jobs
        ],
        update_conflicts=True,
        update_fields=REPLACED_FIELDS,
        unique_fields=["id"] if features.supports_update_conflicts_with_target else None,
    )


def _place(held: Held, job: NewJob) -> Place:
    return held.place._replace(queue=job.queue, rank=-job.priority, guards=len(job.needs))


def _change_needs(alias: str, replacements: Sequence[tuple[Held, NewJob]]) -> set[UUID]:
    """Write down the new needs where they are others. What a job has between its attempts, it goes
    on to have. No key is locked, as this transaction may last.

    Returns:
        The keys of sequences that these jobs have left.
    """
    needs = Need.objects.using(alias)
    old = needs.of_jobs({job.job_id: held.place.guards for held, job in replacements})
    changed = [job for _, job in replacements if _as_new(old[job.job_id]) != list(job.needs)]
    gone = [need for job in changed for need in old[job.job_id]]
    needs.remove([need.pk for need in gone])
    needs.add((job.job_id, job.needs) for job in changed)
    had = {(need.job_id, need.key_id): need.fence for need in gone if need.holds is not None}
    for job in changed:
        for need_id, need in zip(need_ids(job.job_id, len(job.needs)), job.needs, strict=True):
            if (job.job_id, need.key_id) in had:
                fence = had[job.job_id, need.key_id]
                update_by_key(needs, [need_id], holds=need.key_id, fence=fence)
    kept = {need.key_id for job in changed for need in job.needs}
    return {need.key_id for need in gone if need.kind == Need.Kind.SEQUENCE} - kept


def _as_new(needs: Iterable[StatedNeed]) -> list[NewNeed]:
    return [NewNeed(*(getattr(need, name) for name in NewNeed._fields)) for need in needs]
