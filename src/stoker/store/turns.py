"""Choose the blocked jobs that may start next when places under a guard key become free.

All functions run in a transaction. Code that has locked guard keys waits for no other rows: it
skips waiting jobs that others have locked, and looks at their keys again a moment later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from stoker.models.blocked import Blocked
from stoker.models.guard_key import GuardKey, LockedKey
from stoker.models.need import Need, need_ids
from stoker.store.engines import engine_of
from stoker.store.written import MICROSECONDS, database_now_us

from .statements import update_by_key

LOOK_AGAIN_US = 1 * MICROSECONDS
"""Delay until a key is checked again if another transaction has locked the next job of its line.
That transaction may withdraw the job."""
_NONE: Mapping[UUID, int] = {}


def free(
    alias: str,
    *,
    over: Mapping[UUID, int] = _NONE,
    again: Mapping[UUID, int] = _NONE,
    failed: Collection[UUID] = (),
) -> set[str]:
    """Free the places of jobs that are no longer claimed, and let the next jobs take them.

    Args:
        alias: alias of the database.
        over: job id -> number of guards, for jobs that have ended.
        again: job id -> number of guards, for jobs that will be retried. They keep their needs.
        failed: the jobs in ``over`` that became dead letters.

    Returns:
        The queues with jobs that became ready.
    """
    ended = None
    if not again and not failed:
        ids = [one for job_id, count in over.items() for one in need_ids(job_id, count)]
        ended = engine_of(alias).end_needs(ids)
    if ended is None:
        lines, vacant = _give_up(alias, over, again, failed)
    else:
        lines = {key_id: LockedKey(key_id, kind, has_line=True) for key_id, kind, _ in ended}
        vacant = {key_id: count for key_id, _, count in ended}
    for key_id in _to_become_free(alias, lines):
        del lines[key_id]
    return call_all(alias, [(key, vacant[key_id]) for key_id, key in lines.items()])


def _give_up(
    alias: str, over: Mapping[UUID, int], again: Mapping[UUID, int], failed: Collection[UUID]
) -> tuple[dict[UUID, LockedKey], dict[UUID, int]]:
    """Lock the jobs' guard keys and free the jobs' places. Delete the needs of the jobs that have
    ended, except those that halt a sequence. Return the locked keys that may block other jobs, and
    the number of places that became free under each key."""
    needs = Need.objects.using(alias).of_jobs({**over, **again})
    lines = GuardKey.objects.using(alias).lock_lines(
        {need.key_id for needed in needs.values() for need in needed}
    )
    gone: list[UUID] = []
    released: list[UUID] = []
    vacant: dict[UUID, int] = {}
    for job_id, needed in needs.items():
        for need in needed:
            if job_id in over and not (need.halts and job_id in failed):
                gone.append(need.pk)
            elif need.kind != Need.Kind.SEQUENCE:
                released.append(need.pk)
            if need.kind != Need.Kind.RATE:  # the places of a rate become free with time
                vacant[need.key_id] = vacant.get(need.key_id, 0) + 1
    Need.objects.using(alias).remove(gone)
    update_by_key(Need.objects.using(alias), released, holds=None)
    return {key_id: lines[key_id] for key_id in vacant if key_id in lines}, vacant


def _to_become_free(alias: str, lines: Mapping[UUID, LockedKey]) -> list[UUID]:
    """Return the locks that must be completely free before another job starts: some job still holds
    them, and they block jobs of several queues. See ``_Admission._has_other_lines``."""
    locks = [key_id for key_id, key in lines.items() if key.kind == Need.Kind.LOCK]
    holders = Need.objects.using(alias).holders(locks) if locks else {}
    held = [key_id for key_id, job_ids in holders.items() if job_ids]
    queues = Counter(key_id for key_id, _ in engine_of(alias).lines_of(held))
    return [key_id for key_id, count in queues.items() if count > 1]


def leave(alias: str, guards: Mapping[UUID, int], table: str) -> set[UUID]:
    """Delete the needs of withdrawn jobs. Lock no keys, because the caller's transaction may be
    long.

    A ready job may have been next under each of its keys. A blocked job may have been the first in
    the line of a rate, whose due time depends on the weight of that job.

    Args:
        alias: alias of the database.
        guards: job id -> number of guards.
        table: where the jobs waited: "ready", "deferred" or "blocked".

    Returns:
        The keys to check after the transaction has ended.
    """
    found = Need.objects.using(alias).of_jobs(guards)
    needs = [need for needed in found.values() for need in needed]
    Need.objects.using(alias).remove([need.pk for need in needs])
    if table == "ready":
        return {need.key_id for need in needs}
    kinds = {Need.Kind.SEQUENCE}
    if table == "blocked":
        kinds.add(Need.Kind.RATE)
    return {need.key_id for need in needs if need.kind in kinds}


def call_next(alias: str, key: GuardKey, count: int) -> set[str]:
    """Move up to ``count`` jobs of each queue from the front of a key's line to ready. They then
    compete in the next claim like other jobs. The caller has locked the key.

    Returns:
        The queues of the moved jobs.
    """
    return call_all(alias, [(key, count)])


def call_all(alias: str, turns: Sequence[tuple[GuardKey | LockedKey, int]]) -> set[str]:
    """Do the same as ``call_next`` for many keys, each with its own count."""
    lines = {key.pk: (key, count) for key, count in turns if key.has_line and count > 0}
    if not lines:
        return set()
    blocked, needs = Blocked.objects.using(alias), Need.objects.using(alias)
    sequences = [key_id for key_id, (key, _) in lines.items() if key.kind == Need.Kind.SEQUENCE]
    counts = {key_id: count for key_id, (_, count) in lines.items() if key_id not in sequences}
    called = [blocked.call(counts), blocked.call_these(needs.firsts(sequences))]
    _note(alias, [lines[key_id][0] for one in called for key_id in one.empty], None)
    missed = [lines[key_id][0] for one in called for key_id in one.missed]
    if missed:
        _note(alias, missed, database_now_us(alias) + LOOK_AGAIN_US)
    return {queue for one in called for queue in one.queues}


def _note(alias: str, keys: Collection[GuardKey | LockedKey], due_us: int | None) -> None:
    """Record that keys have no waiting jobs, or when to check the keys again."""
    if not keys:
        return
    for key in keys:
        key.has_line, key.due_us = due_us is not None, due_us
    keys_of_alias = GuardKey.objects.using(alias)
    key_ids = [key.pk for key in keys]
    update_by_key(keys_of_alias, key_ids, has_line=due_us is not None, due_us=due_us)
