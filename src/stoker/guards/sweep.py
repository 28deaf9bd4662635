"""Upkeep of guards: rates that are due, and leftovers of crashes, changed limits or edited tables.

Usually claims and recorded outcomes free places and make blocked jobs ready. The sweep repairs what
they could not.

Each function locks its keys before it decides. Keys that other transactions hold are left to the
next run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from stoker.conf import Settings
from stoker.guards.sequences import halts_in_effect
from stoker.models.claimed import Claimed
from stoker.models.guard_key import GuardKey
from stoker.models.job import Job
from stoker.models.need import Need
from stoker.models.wait import Wait
from stoker.signals import tell
from stoker.store.prepared import any_of
from stoker.store.statements import deciding, update_by_key, with_keys
from stoker.store.turns import LOOK_AGAIN_US, call_all, call_next
from stoker.store.written import DatabaseNow, database_now_us
from stoker.values import rates as rate_window

if TYPE_CHECKING:
    from stoker.brokers.dispatch import Dispatch

KEYS_AT_ONCE = 200
WAITS_AT_ONCE = 500
ALL_SECONDS = 3600.0
"""Interval between checks of keys without blocked jobs, and of needs and waits of past jobs."""

Page = Callable[[Any], tuple[int, Any]]


def call_due(alias: str, rated_limit: int) -> int:
    """Make jobs ready whose rate has a permit again, and blocked jobs that were skipped while a row
    was locked. Return the number of checked keys.

    Args:
        alias: of the database.
        rated_limit: maximum number of jobs per rate; with 0 no rate is checked.
    """
    due = GuardKey.objects.using(alias).filter(due_us__lte=DatabaseNow())
    if not rated_limit:
        due = due.exclude(kind=Need.Kind.RATE)
    key_ids = list(due.order_by("due_us").values_list("pk", flat=True)[:KEYS_AT_ONCE])
    if not key_ids:
        return 0
    with deciding(alias):
        keys = GuardKey.objects.using(alias).lock(key_ids, waits=False)
        now_us = database_now_us(alias)
        still = [key for key in keys.values() if key.due_us is not None and key.due_us <= now_us]
        for key in still:
            if key.kind == Need.Kind.RATE:
                _call_rated(alias, key, now_us, rated_limit)
        missed = {key.pk: key for key in still if key.kind != Need.Kind.RATE}
        update_by_key(GuardKey.objects.using(alias), missed, due_us=None)
        _call_where_room(alias, missed)
    return len(keys)


def _call_rated(alias: str, key: GuardKey, now_us: int, limit: int) -> None:
    permits = rate_window.free(key.rule, key.starts, now_us)
    if permits > 0:
        call_next(alias, key, min(permits, limit))
        key.due_us = now_us + LOOK_AGAIN_US if key.has_line else None
    else:
        key.starts = rate_window.take(key.rule, key.starts, now_us, 0)
        key.due_us = rate_window.next_us(key.rule, key.starts, now_us)
    key.save(using=alias, update_fields=["due_us", "starts"])


def sweep_keys(
    alias: str, after: UUID | None, limit: int, *, only_lines: bool
) -> tuple[int, UUID | None]:
    """Free places of jobs that no longer run, and make blocked jobs ready where there is room.

    Args:
        alias: of the database.
        after: the last key of the previous page; None = the first page.
        limit: maximum number of keys.
        only_lines: check only keys with blocked jobs. False: check all keys and delete unused ones.

    Returns:
        The number of freed places, and the last key of this page; None after the last page.
    """
    later = GuardKey.objects.using(alias).order_by("pk")
    if after is not None:
        later = later.filter(pk__gt=after)
    if only_lines:
        later = later.filter(has_line=True)
    key_ids = list(later.values_list("pk", flat=True)[:limit])
    if not key_ids:
        return 0, None
    freed = tidy_keys(alias, key_ids, forgets=not only_lines)
    return freed, key_ids[-1] if len(key_ids) == limit else None


def tidy_keys(alias: str, key_ids: Collection[UUID], *, forgets: bool) -> int:
    """Free the places of jobs that no longer run under these keys, and make blocked jobs ready
    where there is room. Return the number of freed places.

    Args:
        forgets: whether to delete unused keys.
    """
    with deciding(alias):
        keys = GuardKey.objects.using(alias).lock(key_ids, waits=False)
        holders = Need.objects.using(alias).holders(keys)
        stale = _stale_places(alias, keys, holders)
        needs = Need.objects.using(alias)
        over = {need.pk for need in stale if need.kind == Need.Kind.SEQUENCE}
        needs.remove(over)
        update_by_key(needs, [need.pk for need in stale if need.pk not in over], holds=None)
        _call_where_room(alias, keys)
        if forgets:
            GuardKey.objects.using(alias).forget(keys)
    return len(stale)


def look_after(alias: str, key_ids: Collection[UUID]) -> set[str]:
    """Make blocked jobs ready if their keys have room. Usually the job that frees a place does so
    when it ends; call this for keys that it left out. The next claim checks the rates among them.

    Returns:
        The queues in which blocked jobs became ready.
    """
    with deciding(alias):
        keys = GuardKey.objects.using(alias).lock(key_ids)
        rates = [pk for pk, key in keys.items() if key.has_line and key.kind == Need.Kind.RATE]
        if rates:
            update_by_key(GuardKey.objects.using(alias), rates, due_us=database_now_us(alias))
        return _call_where_room(alias, {pk: keys[pk] for pk in keys.keys() - set(rates)})


def _call_where_room(alias: str, keys: Mapping[UUID, GuardKey]) -> set[str]:
    lines = {key_id: key for key_id, key in keys.items() if key.has_line}
    _make_due(alias, [key for key in lines.values() if key.kind == Need.Kind.RATE])
    holders = Need.objects.using(alias).holders(lines) if lines else {}
    return call_all(
        alias,
        [
            (key, key.room - len(holders[key_id]))
            for key_id, key in lines.items()
            if key.kind != Need.Kind.RATE
        ],
    )


def _make_due(alias: str, rates: Collection[GuardKey]) -> None:
    """Make the rates due that have no due time, or one that is too late because the clock was
    turned back."""
    if not rates:
        return
    now_us = database_now_us(alias)
    undue = [
        key.pk
        for key in rates
        if key.due_us is None or key.due_us > rate_window.latest_us(key.rule, now_us)
    ]
    if undue:
        update_by_key(GuardKey.objects.using(alias), undue, due_us=now_us)


def _stale_places(
    alias: str, keys: dict[UUID, GuardKey], holders: dict[UUID, set[UUID]]
) -> list[Need]:
    """Return the needs that hold a place although their job is not claimed, or, in a sequence, has
    ended and does not halt it."""
    job_ids = {job_id for key_id in keys for job_id in holders[key_id]}
    claimed = Claimed.objects.using(alias)
    running = set(with_keys(claimed, job_ids).values_list("pk", flat=True))
    idle = job_ids - running
    alive = Job.objects.using(alias).unended(idle)
    needs = list(Need.objects.using(alias).filter(job_id__in=idle, holds__isnull=False))
    halting = _halting(alias, needs, alive)
    return [
        need
        for need in needs
        if need.kind != Need.Kind.SEQUENCE or not (need.job_id in alive or need.pk in halting)
    ]


def _halting(alias: str, needs: Iterable[Need], alive: Collection[UUID]) -> set[UUID]:
    """Return the needs with which ended jobs halt a sequence."""
    ended = [need.pk for need in needs if need.halts and need.job_id not in alive]
    halting = with_keys(halts_in_effect(alias), ended)
    return set(halting.values_list("pk", flat=True)) if ended else set()


def forget_needs(alias: str, after: UUID | None, limit: int) -> tuple[int, UUID | None]:
    """Delete the needs of jobs that have ended or are gone. Keep the needs that halt a sequence.

    Arguments and return value are those of ``sweep_keys``, with ids of needs.
    """
    later = Need.objects.using(alias).order_by("pk")
    if after is not None:
        later = later.filter(pk__gt=after)
    rows: Sequence[Need] = list(later.only("pk", "job_id", "halts")[:limit])
    alive = Job.objects.using(alias).unended({row.job_id for row in rows})
    halting = _halting(alias, rows, alive)
    over = [row.pk for row in rows if row.job_id not in alive and row.pk not in halting]
    Need.objects.using(alias).remove(over)
    return len(over), rows[-1].pk if len(rows) == limit else None


def forget_waits(alias: str, after: int | None, limit: int) -> tuple[int, int | None]:
    """Delete what jobs waited for that do not exist any more.

    Arguments and return value are those of ``sweep_keys``, with ids of waits.
    """
    rows = Wait.objects.using(alias).order_by("pk")
    if after is not None:
        rows = rows.filter(pk__gt=after)
    page = list(rows.values_list("pk", "job_id")[:limit])
    jobs = with_keys(Job.objects.using(alias), {job_id for _, job_id in page})
    there = set(jobs.values_list("pk", flat=True)) if page else set()
    gone = [pk for pk, job_id in page if job_id not in there]
    if gone:
        Wait.objects.using(alias).filter(pk__in=gone).delete()
    return len(gone), page[-1][0] if len(page) == limit else None


class GuardSweep:
    """Repairs the guards of one store.

    Args:
        beat: called after each page, as a heartbeat.
    """

    def __init__(self, settings: Settings, broker: Dispatch, beat: Callable[[], None]) -> None:
        self._alias = settings.database
        self._broker = broker
        self._beat = beat
        self._all_at = 0.0
        self._any_line = any_of(GuardKey.objects.using(self._alias).filter(has_line=True))

    def sweep(self) -> int:
        """Repair all keys with blocked jobs, and once an hour all keys, needs and waits.

        Returns the number of freed places.
        """
        if not self._broker.capabilities.guards:
            return 0
        freed = 0
        if self._any_line.fetch():
            freed = self._look_through(
                lambda after: sweep_keys(self._alias, after, KEYS_AT_ONCE, only_lines=True)
            )
        if time.monotonic() >= self._all_at:
            self._look_through(lambda after: forget_needs(self._alias, after, KEYS_AT_ONCE))
            freed += self._look_through(
                lambda after: sweep_keys(self._alias, after, KEYS_AT_ONCE, only_lines=False)
            )
            self._look_through(lambda after: forget_waits(self._alias, after, WAITS_AT_ONCE))
            self._all_at = time.monotonic() + ALL_SECONDS
        if freed:
            tell("places_freed", count=freed)
        return freed

    def _look_through(self, page: Page) -> int:
        total, after = page(None)
        while after is not None:
            self._beat()
            count, after = page(after)
            total += count
        return total
