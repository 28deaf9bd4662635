"""Lock and change waiting jobs in whichever table they are.

Claims skip a locked job until the transaction that holds it has ended. That may take long, so code
that moves jobs skips locked rows instead of waiting for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from stoker.models.blocked import Blocked
from stoker.models.deferred import Deferred
from stoker.models.job import Job, Message
from stoker.models.need import Need, NewNeed, StatedNeed, need_ids
from stoker.models.ready import Place, Ready

from .engines import engine_of
from .engines.base import PLACE
from .places import WAITING
from .statements import delete_by_key, insert_with_packages, update_by_key
from .written import as_uuid, microseconds, moment

REPLACED_FIELDS = ("task", "queue", "priority", "package", "enqueued_at", "run_after")


class Held(NamedTuple):
    """A waiting job that this transaction has locked."""

    table: str
    place: Place


def hold(alias: str, waits: Mapping[UUID, str], *, alone: bool) -> dict[UUID, Held]:
    """Lock waiting jobs, so that they stay where they are until this transaction has ended.

    Args:
        alias: alias of the database.
        waits: job id -> the table where the job was seen.
        alone: whether to lock exclusively, in order to change the jobs. False: other transactions
            may hold the same jobs.

    Returns:
        The jobs that were still there.
    """
    engine, lock = engine_of(alias), "UPDATE" if alone else "SHARE"
    held: dict[UUID, Held] = {}
    for name, table in WAITING.items():
        job_ids = [job_id for job_id, where in waits.items() if where == name]
        if job_ids:
            for job_id, *rest in engine.hold(table.objects.using(alias), PLACE, job_ids, lock):
                place = Place(as_uuid(job_id), *rest)
                held[place.job_id] = Held(name, place)
    return held


def replace(alias: str, replacements: Sequence[tuple[Held, Message]]) -> set[UUID]:
    """Replace the arguments, queue, priority, due time and guards of waiting jobs. They keep their
    ids, their place among jobs of the same priority, and the attempts used.

    Args:
        alias: alias of the database.
        replacements: each job as it was locked exclusively, and its new values.

    Returns:
        The guard keys to check after this transaction has ended.
    """
    if not replacements:
        return set()
    _write_jobs(alias, [job for _, job in replacements])
    freed = _change_needs(alias, replacements)
    blocked = [held.place.job_id for held, _ in replacements if held.table == "blocked"]
    engine_of(alias).add_waits_of_blocked(blocked)
    for name, table in WAITING.items():
        moved = [held.place.job_id for held, _ in replacements if held.table == name]
        delete_by_key(table.objects.using(alias), moved)
    ready = [_place(held, job) for held, job in replacements if job.run_after is None]
    Ready.objects.using(alias).add(ready)
    Deferred.objects.using(alias).bulk_create(
        Deferred(due_us=microseconds(job.run_after), **_place(held, job)._asdict())
        for held, job in replacements
        if job.run_after is not None
    )
    return freed


def lines_of(alias: str, held: Collection[Held]) -> set[UUID]:
    """Return the keys that block the given jobs. A locked job is skipped when its turn comes, so
    check these keys afterwards."""
    blocked = [one.place.job_id for one in held if one.table == "blocked"]
    rows = Blocked.objects.using(alias).filter(pk__in=blocked)
    return set(rows.values_list("key_id", flat=True))


def _write_jobs(alias: str, jobs: Iterable[Message]) -> None:
    """Write the jobs' new values. The rows exist and are locked, so this acts as an UPDATE of many
    rows on every database."""
    features = connections[alias].features
    insert_with_packages(
        Job.objects.using(alias),
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


def _place(held: Held, job: Message) -> Place:
    return held.place._replace(queue=job.queue, rank=-job.priority, guards=len(job.needs))


def _change_needs(alias: str, replacements: Sequence[tuple[Held, Message]]) -> set[UUID]:
    """Replace the needs of jobs whose guards have changed. A place that a job keeps between its
    attempts is kept. Lock no keys, because this transaction may be long.

    Returns:
        The keys of sequences that the jobs have left, those under which they gave up a turn, and
        the rates in whose lines they were.
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
    left = {need.key_id for need in gone if need.kind == Need.Kind.SEQUENCE} - kept
    for held, job in replacements:
        if held.table == "ready":
            had_turn = {need.key_id for need in old[job.job_id]}
            left |= had_turn - _keys_keeping_turn(held, job)
        elif held.table == "blocked":  # the due time of a rate depends on the first in its line
            left |= {need.key_id for need in old[job.job_id] if need.kind == Need.Kind.RATE}
    return left


def _keys_keeping_turn(held: Held, job: Message) -> set[UUID]:
    """Return the keys under which a ready job keeps its turn. It keeps none if it is deferred,
    moves to another queue or gets a lower priority."""
    if (
        job.run_after is not None
        or job.queue != held.place.queue
        or -job.priority > held.place.rank
    ):
        return set()
    return {need.key_id for need in job.needs}


def _as_new(needs: Iterable[StatedNeed]) -> list[NewNeed]:
    return [NewNeed(*(getattr(need, name) for name in NewNeed._fields)) for need in needs]
