"""Halted sequences: a failed job keeps its place until its dead letter is requeued or discarded.

Everything here runs within a transaction. Keys are locked before dead letters are written, in the
same order as when jobs are recorded.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from stoker.models.guard_key import GuardKey
from stoker.models.need import Need, need_ids
from stoker.store.statements import update_by_key, with_keys
from stoker.store.turns import call_next

MOST_GUARDS = 64


def pass_on(alias: str, from_job_id: UUID, to_job_id: UUID) -> set[str]:
    """Pass the place of a failed job in its halted sequence to a new job, which then runs first.

    If the new job belongs to another sequence, the old sequence goes on.

    Returns:
        The queues in which blocked jobs became ready.
    """
    halting = _halting(alias, [from_job_id])
    if not halting:
        return set()
    needs = Need.objects.using(alias)
    keys = GuardKey.objects.using(alias).lock({need.key_id for need in halting})
    mine = {need.key_id: need for need in with_keys(needs, _ids(to_job_id))}
    needs.remove([need.pk for need in halting])
    queues: set[str] = set()
    for old in halting:
        new = mine.get(old.key_id)
        if new is not None and new.job_id == to_job_id:
            update_by_key(needs, [new.pk], holds=old.key_id, fence=old.fence)
        elif old.key_id in keys:
            queues |= call_next(alias, keys[old.key_id], 1)
    return queues


def resume_after(alias: str, job_ids: Collection[UUID]) -> set[str]:
    """Let the sequences go on that were halted because these jobs failed.

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


def halts_of(alias: str, job_id: UUID) -> list[Need]:
    """Return the needs with which a waiting job holds its failed predecessor's place in a
    sequence."""
    return [need for need in _halting(alias, [job_id]) if need.holds is not None]


def halt_again(alias: str, passed: Collection[Need], job_id: UUID) -> None:
    """Give the place in a sequence back to the failed job, after its requeue was withdrawn in this
    transaction."""
    GuardKey.objects.using(alias).lock({need.key_id for need in passed})
    for need in passed:
        number = need.pk.int - need.job_id.int
        need.pk, need.job_id = UUID(int=job_id.int + number), job_id
    Need.objects.using(alias).bulk_create(passed)


def _halting(alias: str, job_ids: Collection[UUID]) -> list[Need]:
    ids = [need_id for job_id in job_ids for need_id in _ids(job_id)]
    found = with_keys(Need.objects.using(alias), ids).filter(halts=True)
    return [need for need in found if need.job_id in job_ids]


def _ids(job_id: UUID) -> list[UUID]:
    return need_ids(job_id, MOST_GUARDS)
