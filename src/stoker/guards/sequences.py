"""Halted sequences: a failed job keeps its place until its dead letter is requeued or discarded.

Everything here runs within a transaction. Keys are locked before dead letters are written, in the
same order as when jobs are recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from stoker.models.blocked import Blocked
from stoker.models.dead_letter import DeadLetter
from stoker.models.guard_key import GuardKey
from stoker.models.job import Job
from stoker.models.need import Need, NewNeed, need_ids
from stoker.store.statements import update_by_key, with_keys
from stoker.store.turns import call_next

MOST_GUARDS = 64
JOBS_AT_ONCE = 250


def pass_on(alias: str, jobs: Mapping[UUID, UUID]) -> set[str]:
    """Pass the places of failed jobs in their halted sequences to newer jobs, which then run first.

    If the newer job belongs to another sequence, the old sequence goes on. It also goes on
    if the newer job is blocked and another transaction has locked its row.

    Args:
        jobs: failed job -> the job that continues it.

    Returns:
        The queues in which blocked jobs became ready.
    """
    halting = _halting(alias, jobs)
    if not halting:
        return set()
    needs = Need.objects.using(alias)
    halted = {need.key_id for need in halting}
    keys = GuardKey.objects.using(alias).lock(halted)
    halting = _halting(alias, jobs)  # the sequence may have gone on meanwhile
    new_ids = [need_id for old in halting for need_id in need_ids(jobs[old.job_id], MOST_GUARDS)]
    mine = {
        (need.job_id, need.key_id): need
        for need in with_keys(needs, new_ids)
        if need.key_id in halted
    }
    needs.remove([need.pk for need in halting])
    called = Blocked.objects.using(alias).call_these({key_id: one for one, key_id in mine})
    queues = set(called.queues)
    for old in halting:
        new = mine.get((jobs[old.job_id], old.key_id))
        if new is not None and old.key_id not in called.missed:
            update_by_key(needs, [new.pk], holds=old.key_id, fence=old.fence)
        elif old.key_id in keys:
            queues |= call_next(alias, keys[old.key_id], 1)
    return queues


def halts_in_effect(alias: str) -> QuerySet[Need]:
    """Return the needs with which failed jobs halt sequences: their dead letters are not closed.
    The rows of the jobs themselves may have been deleted."""
    return Need.objects.using(alias).filter(Exists(_letter_of_need(alias)), halts=True)


def halted(alias: str, key_ids: Collection[UUID]) -> dict[UUID, tuple[UUID, UUID]]:
    """Return the halted sequences among these: key -> failed job and its dead letter."""
    if not key_ids:
        return {}
    needs = halts_in_effect(alias).filter(holds__in=key_ids)
    letter_id = Subquery(_letter_of_need(alias).values("pk")[:1])
    rows = needs.values_list("holds", "job_id", letter_id)
    return {key_id: (job_id, found) for key_id, job_id, found in rows}


def _letter_of_need(alias: str) -> QuerySet[DeadLetter]:
    return DeadLetter.objects.using(alias).unclosed().filter(job_id=OuterRef("job_id"))


def resume_after(alias: str, job_ids: Collection[UUID]) -> set[str]:
    """Resume the sequences that were halted because these jobs failed.

    Returns:
        The queues that have more ready jobs now.
    """
    halting = _halting(alias, job_ids)
    keys = GuardKey.objects.using(alias).lock({need.key_id for need in halting})
    Need.objects.using(alias).remove([need.pk for need in halting])
    queues: set[str] = set()
    for _, key in sorted(keys.items()):
        queues |= call_next(alias, key, 1)
    return queues


def halts_of(alias: str, job_ids: Collection[UUID]) -> list[Need]:
    """Return the needs with which waiting jobs hold the places of their failed predecessors in
    sequences."""
    return [need for need in _halting(alias, job_ids) if need.holds is not None]


def halt_again(alias: str, passed: Collection[Need], jobs: Mapping[UUID, UUID]) -> None:
    """Give places in sequences back to the failed jobs, after their requeues were withdrawn in this
    transaction.

    Args:
        passed: the needs of the new jobs.
        jobs: new job -> the failed job that it continued.
    """
    GuardKey.objects.using(alias).lock({need.key_id for need in passed})
    for need in passed:
        number, job_id = need.pk.int - need.job_id.int, jobs[need.job_id]
        need.pk, need.job_id = UUID(int=job_id.int + number), job_id
    Need.objects.using(alias).bulk_create(passed)


def wait_for(alias: str, running: Mapping[UUID, NewNeed]) -> None:
    """Put running jobs into the sequences of the jobs that must follow them. A running job usually
    is in its sequence already, unless its task had another ``on_conflict`` when it was enqueued.

    Locks no keys, because the caller's transaction may be long. Upkeep removes the place after the
    running job has ended.

    Args:
        running: running job -> the need of the job that follows it.
    """
    holders = Need.objects.using(alias).holders({need.key_id for need in running.values()})
    outside = {one for one, need in running.items() if one not in holders[need.key_id]}
    if not outside:  # nearly always
        return
    # Read afterwards: a job that has left its sequence by its end is not put into it again.
    Need.objects.using(alias).bulk_create(
        Need(
            id=need_ids(job_id, MOST_GUARDS)[-1],
            job_id=job_id,
            holds=running[job_id].key_id,
            **running[job_id]._asdict(),
        )
        for job_id in Job.objects.using(alias).unended(outside)
    )


def _halting(alias: str, job_ids: Collection[UUID]) -> list[Need]:
    """Return the needs with which these jobs halt sequences. The needs of a job are a range of
    ids: MariaDB would take a third of a second for the 16,000 ids of 250 jobs."""
    wanted, found = list(job_ids), list[Need]()
    for first in range(0, len(wanted), JOBS_AT_ONCE):
        ranges = Q()
        for job_id in wanted[first : first + JOBS_AT_ONCE]:
            ranges |= Q(pk__gte=job_id, pk__lt=UUID(int=job_id.int + MOST_GUARDS))
        found += Need.objects.using(alias).filter(ranges, halts=True)
    return [need for need in found if need.job_id in job_ids]
