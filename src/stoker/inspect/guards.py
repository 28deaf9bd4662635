"""Keys of guards: the jobs that hold them and the number of waiting jobs.

``crowded`` lists, of ``LOOKED_AT`` keys, those that block most jobs. ``keys`` and ``unique_keys``
list all keys in pages; filters scan ``SCANNED`` keys, and the next page continues there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.exceptions import GuardNotFound
from stoker.guards.keys import id_and_name, ids_of_unique_text
from stoker.guards.sequences import halted, halts_in_effect
from stoker.jobs.change import HELD_US
from stoker.models import Blocked, GuardKey, Job, Need, UniqueKey
from stoker.store.counting import Number, count_of, counts_of
from stoker.store.engines.sessions import explained
from stoker.store.statements import with_keys
from stoker.store.written import MICROSECONDS, database_now_us, moment
from stoker.tasks.registry import tasks_of_apps
from stoker.values import rates
from stoker.values.ids import parse_job_id
from stoker.values.marks import InvalidFilter

from .scan import ScannedPage, scan

KEYS = 20
LOOKED_AT = 200
HOLDERS = 10
SCANNED = 10_000
"""Maximum number of keys that a page with a filter reads."""
COUNTED = 1_000
"""Pages count the jobs that wait for a key up to this number."""
KINDS = tuple(str(kind) for kind in Need.Kind)
STATES = ("waiting", "halted", *KINDS)
State = TypeVar("State")


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
    """Up to ten jobs that hold a place. Empty for rates, because a permit ends with the start of
    its job."""
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
    """The keys that block jobs: the details of those with the most waiting jobs, and the number of
    the other keys."""

    keys: tuple[CrowdedKey, ...]
    """The most crowded of the keys that were read, most waiting jobs first."""
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
        states = _states(alias, rows, counted=False)
        jobs = _jobs(alias, [job_id for one in states for job_id in one.holders[:HOLDERS]])
        keys = [_crowded_key(alias, one, jobs) for one in states]
        keys = [key for key in keys if key.waiting]
        keys.sort(key=lambda key: (-key.waiting, key.name))
        unseen = lines.count() - len(rows)
        return Crowded(tuple(keys[:KEYS]), max(0, len(keys) - KEYS) + unseen)


def _crowded_key(alias: str, state: KeyState, jobs: Mapping[UUID, Job]) -> CrowdedKey:
    waiting = count_of(Blocked.objects.using(alias).filter(key_id=state.id))
    return CrowdedKey(
        name=state.name,
        kind=state.kind,
        places=state.places,
        period_seconds=state.period_seconds,
        holders=tuple(
            Holder(str(job_id), jobs[job_id].task if job_id in jobs else "")
            for job_id in state.holders[:HOLDERS]
        ),
        waiting=waiting.number,
        is_exact=waiting.is_exact,
        next_start_seconds=state.next_start_seconds,
        halted_by=None if state.halted_by is None else str(state.halted_by),
        is_set_by_hand=state.places_set is not None,
    )


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key of a lock, a limit, a rate or a sequence."""

    id: UUID
    name: str
    kind: str
    places: int
    """Number of jobs that may run at once, or, for a rate, start in a period."""
    used: int
    """Number of occupied places; for a rate, number of starts in the current period."""
    most: int
    """Upper limit of ``used``. For a rate with a burst it is higher than ``places``."""
    holders: Sequence[UUID]
    """Jobs that hold a place, the oldest first. Empty for rates. Of a lock they can be several: a
    cluster has claimed them together, and starts them one after another."""
    waiting: Number
    places_set: int | None = None
    """The number of places set by ``set_limit``, which overrides the task's limit; None = no
    override."""
    is_unused: bool = False
    """Whether ``set_limit`` made the key, and no job has used it."""
    period_seconds: float | None = None
    """Period of a rate."""
    next_start_seconds: float | None = None
    """For a rate: seconds until the next job may start."""
    halted_by: UUID | None = None
    """The failed job that halts a sequence."""
    letter_id: UUID | None = None
    """The dead letter of that job. The sequence continues after its requeue or discard."""


@dataclass(frozen=True, slots=True)
class UniqueState:
    """A unique key and the last job that has taken it."""

    id: UUID
    name: str
    job_id: UUID
    taken_at: datetime
    until: datetime | None
    """The key stays taken until then, even if the job ends before."""


@dataclass(frozen=True, slots=True)
class KeyPage(Generic[State]):
    """A page of keys, in arbitrary order."""

    keys: Sequence[State]
    jobs: dict[UUID, Job]
    """Some of the jobs that hold the keys, without package and value."""
    next: str | None
    """Start of the next page; None = this is the last page."""
    is_cut: bool
    """Whether keys that were not read may match as well."""


def keys(
    settings: Settings, limit: int, after: str = "", *, state: str = "", text: str = ""
) -> KeyPage[KeyState]:
    """Return a page of the keys of locks, limits, rates and sequences.

    Args:
        limit: maximum number.
        after: ``KeyPage.next`` of the previous page.
        state: one of ``STATES``; "" = all.
        text: part of the key's name. A complete key is found regardless of the number of keys.

    Raises:
        ValueError: ``state`` or ``after`` is invalid.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    if state not in ("", *STATES):
        raise InvalidFilter(f"state={state[:50]!r}: write one of {', '.join(STATES)}.")
    alias = settings.database
    with explained(alias):
        rows = GuardKey.objects.using(alias)
        condition = _of_state(alias, state) & (Q(name__icontains=text) if text else Q())
        exact = [id_and_name(kind, text)[0] for kind in KINDS] if text else []
        found, last, is_cut = _page(rows, condition, exact, limit, after)
        states = _states(alias, found)
        jobs = _jobs(alias, [job_id for one in states for job_id in one.holders[:HOLDERS]])
        return KeyPage(states, jobs, last, is_cut)


def key(settings: Settings, key_id: UUID | str) -> KeyState:
    """Return one key of a lock, limit, rate or sequence.

    Raises:
        GuardNotFound: no job uses it (any more).
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    with explained(settings.database):
        wanted = parse_job_id(str(key_id))
        rows = GuardKey.objects.using(settings.database)
        row = None if wanted is None else rows.filter(pk=wanted).first()
        if row is None:
            raise GuardNotFound(f"There is no guard {str(key_id)!r} (any more).")
        return _states(settings.database, [row])[0]


def jobs_at(settings: Settings, one: KeyState, limit: int) -> tuple[list[Job], list[Job]]:
    """Return jobs that hold the key, and jobs that wait for it, ordered by queue and by
    position in the queue.

    Raises: as ``key``.
    """
    alias = settings.database
    with explained(alias):
        line = Blocked.objects.using(alias).filter(key_id=one.id)
        waiting = list(line.order_by("queue", "rank", "pk").values_list("pk", flat=True)[:limit])
        held = one.holders[:limit]
        jobs = _jobs(alias, [*held, *waiting])
        return (
            [jobs[job_id] for job_id in held if job_id in jobs],
            [jobs[job_id] for job_id in waiting if job_id in jobs],
        )


def unique_keys(
    settings: Settings, limit: int, after: str = "", *, text: str = ""
) -> KeyPage[UniqueState]:
    """Return a page of unique keys. See ``keys``."""
    alias = settings.database
    with explained(alias):
        condition = Q(name__icontains=text) if text else Q()
        exact = ids_of_unique_text(text, tasks_of_apps()) if text else []
        rows = UniqueKey.objects.using(alias)
        found, last, is_cut = _page(rows, condition, exact, limit, after)
        states = [_unique_state(row) for row in found]
        return KeyPage(states, _jobs(alias, [one.job_id for one in states]), last, is_cut)


def _of_state(alias: str, state: str) -> Q:
    if state in KINDS:
        return Q(kind=state)
    if state == "waiting":
        return Q(has_line=True)
    if state == "halted":
        halts = halts_in_effect(alias).filter(holds=OuterRef("pk"))
        return Q(Exists(halts), kind=Need.Kind.SEQUENCE)
    return Q()


def _page(
    rows: QuerySet[Any], condition: Q, exact: Collection[UUID], limit: int, after: str
) -> ScannedPage:
    """Return a page of rows.

    Args:
        exact: keys that are on the first page if they exist.
    """
    first = list(with_keys(rows, exact).filter(condition)) if exact and not after else []
    page = scan(rows.exclude(pk__in=exact), condition, limit, after, most=SCANNED)
    return page._replace(rows=[*first, *page.rows])


def _states(alias: str, rows: Sequence[GuardKey], *, counted: bool = True) -> list[KeyState]:
    """Read how many jobs hold each key and wait for it, with at most five queries.

    Args:
        counted: whether to count the jobs that wait.
    """
    now_us = database_now_us(alias)
    held = [row.pk for row in rows if row.kind != Need.Kind.RATE]
    holders = Need.objects.using(alias).holders(held) if held else {}
    lines = [row.pk for row in rows if row.has_line and counted]
    blocked = Blocked.objects.using(alias)
    counts = counts_of([blocked.filter(key_id=pk) for pk in lines], COUNTED)
    waiting = dict(zip(lines, counts, strict=True))
    failures = halted(alias, [row.pk for row in rows if row.kind == Need.Kind.SEQUENCE])
    states = []
    for row in rows:
        jobs = sorted(holders.get(row.pk, ()))
        is_rate = row.kind == Need.Kind.RATE
        halted_by, letter_id = failures.get(row.pk, (None, None))
        states.append(
            KeyState(
                id=row.pk,
                name=row.name,
                kind=row.kind,
                places=row.room,
                used=_used(row, jobs, now_us),
                most=row.rule.whole if is_rate else row.room,
                holders=jobs,
                waiting=waiting.get(row.pk, Number(0)),
                places_set=row.places_set,
                is_unused=row.places_by is None and row.places_set is not None and not jobs,
                period_seconds=row.period_us / MICROSECONDS if is_rate else None,
                next_start_seconds=_next_start_seconds(row, now_us) if is_rate else None,
                halted_by=halted_by,
                letter_id=letter_id,
            )
        )
    return states


def _used(row: GuardKey, holders: Sequence[UUID], now_us: int) -> int:
    if row.kind == Need.Kind.RATE:
        return row.rule.whole - rates.free(row.rule, row.starts, now_us)
    return min(len(holders), row.room) if row.kind == Need.Kind.LOCK else len(holders)


def _next_start_seconds(row: GuardKey, now_us: int) -> float:
    return max(0, rates.next_us(row.rule, row.starts, now_us) - now_us) / MICROSECONDS


def _unique_state(row: UniqueKey) -> UniqueState:
    return UniqueState(
        id=row.pk,
        name=row.name,
        job_id=row.job_id,
        taken_at=moment(row.taken_us / MICROSECONDS),
        until=moment(min(row.until_us, HELD_US) / MICROSECONDS) if row.until_us else None,
    )


def _jobs(alias: str, job_ids: Iterable[UUID]) -> dict[UUID, Job]:
    wanted = set(job_ids)
    rows = Job.objects.using(alias).defer("package", "value")
    return {job.pk: job for job in with_keys(rows, wanted)} if wanted else {}
