"""Guards that block jobs: their keys, the jobs that hold them and the number of waiting jobs."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.models import Blocked, GuardKey, Job, Need
from stoker.store.counting import count_of
from stoker.store.engines.sessions import explained
from stoker.store.statements import with_keys
from stoker.store.written import MICROSECONDS, database_now_us

KEYS = 20
LOOKED_AT = 200
HOLDERS = 10


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds a place."""

    job_id: str
    task: str


@dataclass(frozen=True, slots=True)
class CrowdedKey:
    """A key that jobs wait for."""

    name: str
    kind: str
    """``lock``, ``limit``, ``rate`` or ``sequence``."""
    places: int
    """Number of jobs that may run at once, or, for a rate, start in a period."""
    period_seconds: float | None
    """Period of a rate; None for other guards."""
    holders: tuple[Holder, ...]
    """Up to ten jobs that hold a place. Empty for rates, whose permits are in the past."""
    waiting: int
    is_exact: bool
    """Whether the number of waiting jobs was counted, not estimated."""
    next_start_seconds: float | None
    """For a rate: seconds until the next job may start."""
    halted_by: str | None
    """The failed job that halts a sequence until its dead letter is requeued or discarded."""
    is_set_by_hand: bool
    """Whether ``set_limit`` overrides the task's limit."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """The keys that block jobs."""

    keys: tuple[CrowdedKey, ...]
    """The keys with most waiting jobs first, among those that were read."""
    more: int
    """Number of other keys that block jobs."""


def crowded(settings: Settings) -> Crowded:
    """Return the keys that block jobs, with their holders.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    if not broker_for(settings).capabilities.guards:
        return Crowded((), 0)
    alias = settings.database
    with explained(alias):
        lines = GuardKey.objects.using(alias).filter(has_line=True)
        rows = list(lines.order_by("pk")[:LOOKED_AT])
        holders = Need.objects.using(alias).holders([row.pk for row in rows])
        now_us = database_now_us(alias)
        keys = [_key(alias, row, holders[row.pk], now_us) for row in rows]
        keys = [key for key in keys if key.waiting]
        keys.sort(key=lambda key: (-key.waiting, key.name))
        unseen = lines.count() - len(rows)
        return Crowded(tuple(keys[:KEYS]), max(0, len(keys) - KEYS) + unseen)


def _key(alias: str, row: GuardKey, job_ids: set[UUID], now_us: int) -> CrowdedKey:
    waiting = count_of(Blocked.objects.using(alias).filter(key_id=row.pk))
    is_rate = row.kind == Need.Kind.RATE
    shown = [] if is_rate else sorted(job_ids)[:HOLDERS]
    jobs = {job.pk: job for job in with_keys(Job.objects.using(alias), shown).defer("package")}
    failed = [job for job in jobs.values() if job.status == Job.Status.FAILED]
    is_halted = bool(failed) and row.kind == Need.Kind.SEQUENCE
    next_us = max(0, row.due_us - now_us) if row.due_us is not None else None
    return CrowdedKey(
        name=row.name,
        kind=row.kind,
        places=row.room,
        period_seconds=row.period_us / MICROSECONDS if is_rate else None,
        holders=tuple(
            Holder(str(job_id), jobs[job_id].task if job_id in jobs else "") for job_id in shown
        ),
        waiting=waiting.number,
        is_exact=waiting.is_exact,
        next_start_seconds=None if next_us is None else next_us / MICROSECONDS,
        halted_by=str(failed[0].pk) if is_halted else None,
        is_set_by_hand=row.places_set is not None,
    )
