"""Claim ready jobs. Watermarks tell where to start the search, guards decide which jobs may run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db.models.functions import Length

from stoker.brokers.contract import (
    CLAIM_BYTES,
    ClaimRequest,
    Delivery,
    due_in,
    seconds_until,
)
from stoker.guards.admission import AdmissionTerms, Admitted, admit, lease
from stoker.models import Job
from stoker.models.claimed import Claim, Leasing
from stoker.models.guard_key import Decisions
from stoker.models.need import Need
from stoker.models.paused_queue import PausedQueue
from stoker.models.ready import Place, Ready
from stoker.signals import tell
from stoker.store.engines import engine_of
from stoker.store.statements import deciding, with_keys
from stoker.store.written import MICROSECONDS, microseconds
from stoker.values.ids import new_lease_id

T = TypeVar("T")

JOB_ID, QUEUE, PRIORITY = 0, 3, 4
"""Positions in a ``Claim`` row."""
FIRST_RANK, LAST_RANK = -32768, 32767
FIRST_ID = UUID(int=0)
SHARE = 10
"""At most one part in ``SHARE`` of the time is spent on scans from the start."""
LONGEST_SECONDS = 5.0
"""The longest time that a job behind a watermark waits while other jobs are claimed."""
NEW_QUEUES_SECONDS = 0.1
"""The longest time that jobs of a queue without watermarks are skipped while other jobs are
claimed. A search for new queues on every claim would double the cost of a small claim."""
DEAR = 2
"""Use watermarks only if a claim from the start costs at least this many times as much."""
SPANS = ("queues", "first_spans", "last_spans", "low_ranks", "low_ids", "high_ranks")
FEW = 20
"""The fixed cost of a claim, as a number of jobs."""


class Watermarks:
    """The watermarks of one process, per queue and rank. They are unused if the engine cannot start
    a claim at a position.

    Args:
        alias: alias of the database.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.engine = engine_of(alias)
        self._marks: dict[str, dict[int, UUID]] = {}
        self._good_until = 0.0
        self._first_due_us = 0
        self._dearest = 0.0
        """Maximum duration of a claim by watermarks, in seconds per job. Slower claims drop the
        watermarks."""
        self.queues: list[str] = []
        """Queues that had jobs at the last scan from the start, or got jobs since then."""
        self._look_for_queues_at = 0.0

    def are_good(self) -> bool:
        """Return whether the last scan from the start was so recent that the watermarks may be
        used."""
        return time.monotonic() < self._good_until

    def forget(self) -> None:
        """Drop the watermarks, so that the next claim scans from the start."""
        self._good_until = 0.0
        self._first_due_us = 0
        self._marks.clear()

    @property
    def due_from_us(self) -> int:
        """Lower bound of the due times to search, in microseconds; 0 = no bound."""
        return self._first_due_us if self.are_good() else 0

    def begin_due_at(self, first_us: int | None) -> None:
        """Start the next searches at the earliest due time of all deferred jobs."""
        self._first_due_us = first_us or 0

    def guide(
        self, claim: Callable[[], list[T]], named: Sequence[str], is_more: Callable[[], bool]
    ) -> list[T]:
        """Claim from the watermarks on if they may be used. Otherwise, or if that finds nothing,
        scan from the start. So an empty result means that no job is ready.

        Args:
            claim: claims from the position given by ``spans``.
            named: the queues; empty means all that have jobs.
            is_more: returns whether the claim ran out of time before it had searched everything.
        """
        if not named and self.are_good():
            self._look_for_queues()
        began = time.monotonic()
        if self.are_good() and ((found := claim()) or is_more()):
            if _each(began, found) > self._dearest:
                self.forget()
            return found
        began = time.monotonic()
        self.forget()
        if not named:
            self.queues = Ready.objects.using(self.alias).queues()
        found = claim()
        if self.engine.claims_by_marks:
            now = time.monotonic()
            self._good_until = now + min(SHARE * (now - began), LONGEST_SECONDS)
            self._dearest = _each(began, found) / DEAR
        return found

    def _look_for_queues(self) -> None:
        """Add the queues that got their first jobs since the last scan to ``queues``."""
        now = time.monotonic()
        if now < self._look_for_queues_at:
            return
        self._look_for_queues_at = now + NEW_QUEUES_SECONDS
        known = {"known": self.queues}
        rows = self.engine.fetch("new_queues", known)
        self.queues += sorted({queue for (queue,) in rows})

    def note(self, rows: Iterable[Claim], guarded: Sequence[Claim]) -> None:
        """Set the watermarks to the last rows of a claim. Rows with guards may stay in the queue,
        so a watermark stops at the first of them."""
        last = {(row[QUEUE], row[PRIORITY]): row for row in rows}
        first_to_stay = {(row[QUEUE], row[PRIORITY]): row for row in reversed(guarded)}
        for (queue, priority), row in {**last, **first_to_stay}.items():
            self._marks.setdefault(queue, {})[-priority] = row[JOB_ID]

    def lower(self, places: Iterable[Place]) -> None:
        """Move watermarks back for jobs that were added before them."""
        for place in places:
            marks = self._marks.get(place.queue, {})
            if place.job_id < marks.get(place.rank, FIRST_ID):
                marks[place.rank] = place.job_id
            if place.queue not in self.queues:
                self.queues.append(place.queue)

    def spans(self, queues: Iterable[str]) -> dict[str, list[Any]]:
        """Return the parts of each queue that a claim has to search, as arrays for ``claim.sql``.
        Each part reaches from a watermark to the rank of the next one; the first starts at the
        beginning, and the last reaches to the end. Each queue has the numbers of its first and last
        part, from 1."""
        spans: dict[str, list[Any]] = {name: [] for name in SPANS}
        for queue in queues:
            spans["queues"].append(queue)
            spans["first_spans"].append(len(spans["low_ranks"]) + 1)
            starts = [(FIRST_RANK, FIRST_ID), *sorted(self._marks.get(queue, {}).items())]
            ends = [rank - 1 for rank, _ in starts[1:]] + [LAST_RANK]
            for (rank, job_id), end in zip(starts, ends, strict=True):
                spans["low_ranks"].append(rank)
                spans["low_ids"].append(job_id)
                spans["high_ranks"].append(end)
            spans["last_spans"].append(len(spans["low_ranks"]))
        return spans


def _each(began: float, found: Sized) -> float:
    return (time.monotonic() - began) / (len(found) + FEW)


class Due(NamedTuple):
    """Whether deferred jobs or guard keys are overdue, and when the next job becomes due."""

    jobs: bool
    """Whether deferred jobs are due."""
    keys: bool
    """Whether guard keys are due, because a rate has a permit again or a blocked job was
    skipped."""
    first_us: int | None
    """Due time of the earliest deferred job, in microseconds on the database's clock. None: no job
    is deferred."""
    seconds: float | None
    """Seconds until the earliest job is due, 0 if it is overdue, None if nothing waits."""


def what_is_due(alias: str, from_us: int = 0, *, rated: bool = True) -> Due:
    """Read the smallest due times from two indexes.

    Args:
        alias: alias of the database.
        from_us: ignore deferred jobs that are due earlier than this.
        rated: whether to include jobs that wait for their rate.
    """
    engine = engine_of(alias)
    parameters = {"from_us": from_us, "but": "" if rated else Need.Kind.RATE.value}
    ((first_us, key_us, now_us),) = engine.fetch("what_is_due", parameters, now=engine.now_sql)
    found = [due_us - now_us for due_us in (first_us, key_us) if due_us is not None]
    return Due(
        first_us is not None and first_us <= now_us,
        key_us is not None and key_us <= now_us,
        first_us,
        max(0, min(found)) / MICROSECONDS if found else None,
    )


PROMOTE_SECONDS = 0.1
"""How often due jobs are moved to ready during a backlog, so that it does not delay them."""
TRUST_SECONDS = 1.1
"""Time for which the answer that no deferred job is due is cached. A job that is enqueued meanwhile
and becomes due earlier is found by the next claim that returns nothing else. It is a little longer
than the default of POLL_SECONDS, so that each claim of an idle pusher looks only once."""


class DueTimes:
    """The time at which the next deferred job becomes due, as one process knows it."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._nothing_due_until = 0.0
        """Monotonic time in seconds up to which no deferred job is expected to become due."""
        self._next_due_at: float | None = None
        """Monotonic time in seconds of the next deferred job, as the last claim has read it after
        it had found nothing. Infinity: no job is deferred. None: it was not read then."""
        self._promote_at = 0.0
        self._had_room = True

    @property
    def should_look(self) -> bool:
        """Whether to look for due jobs before the next claim."""
        now = time.monotonic()
        return now >= self._nothing_due_until and (self._had_room or now >= self._promote_at)

    def forget(self) -> None:
        """Forget the time that was read: the next claim may defer jobs until their rate has a
        permit."""
        self._next_due_at = None

    def note_claim(self, found: int, limit: int) -> None:
        """Note how many jobs a claim has found."""
        self._had_room = found < limit

    def read(self, from_us: int) -> Due:
        """Read which jobs and guard keys are due, see ``what_is_due``."""
        now = time.monotonic()
        self._promote_at = now + PROMOTE_SECONDS
        due = what_is_due(self._alias, from_us)
        if not from_us and due.seconds != 0:
            self._next_due_at = due_in(due.seconds, now)
        return due

    def seconds_until_next(self, *, rated: bool) -> float | None:
        """Return the seconds until the next job is due, see ``Broker.next_due_seconds``."""
        now, due_at = time.monotonic(), self._next_due_at
        if due_at is None or not rated:
            due_at = due_in(what_is_due(self._alias, rated=rated).seconds, now)
        if rated:
            self._nothing_due_until = min(due_at, now + TRUST_SECONDS)
        self.forget()
        return seconds_until(due_at)


def leasing_of(request: ClaimRequest) -> Leasing:
    return Leasing(new_lease_id(), request.holder, microseconds(request.lease_seconds))


def terms_of(request: ClaimRequest) -> AdmissionTerms:
    permit_us = microseconds(request.permit_seconds)
    others = request.turns, request.ahead, request.queues, request.passed_over
    return AdmissionTerms(request.rated_limit, permit_us, time.monotonic(), *others)


def deliveries_of(claims: Iterable[Claim], lease_id: int) -> list[Delivery]:
    """Return deliveries that all share one lease id object. So it is sent to a worker only once.
    Packages that the claim did not read are empty."""
    return [
        Delivery(job_id, lease_id, bytes(package or b""), *rest)
        for job_id, _, package, *rest in claims
    ]


PACKAGE = itemgetter(2)
"""Position of the package in a ``Delivery``."""


def read_long(alias: str, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """Read the packages that a claim omitted because of their length.

    Returns:
        The deliveries with their packages, and the deliveries that exceed ``CLAIM_BYTES``. At least
        one is returned with its package.
    """
    unread = [one for one in deliveries if not one.package]
    if not unread:
        return deliveries, []
    jobs = Job.objects.using(alias)
    job_ids = [one.job_id for one in unread]
    sizes = dict(with_keys(jobs.all(), job_ids).values_list("pk", Length("package")))
    room_bytes = CLAIM_BYTES - sum(len(one.package) for one in deliveries)
    chosen: set[UUID] = set()
    # first those that have a permit, because a released job would lose it
    for one in sorted(unread, key=lambda one: not one.permit_seconds):
        room_bytes -= sizes.get(one.job_id, 0)
        if chosen and room_bytes < 0 and not one.permit_seconds:
            break
        chosen.add(one.job_id)
    packages = dict(with_keys(jobs.all(), chosen).values_list("pk", "package"))
    read = [
        one if one.package else one._replace(package=bytes(packages.get(one.job_id, b"")))
        for one in deliveries
        if one.package or one.job_id in chosen
    ]
    return read, [one for one in unread if one.job_id not in chosen]


LOOK_MOST = 500
"""Maximum number of ready jobs to examine in one transaction."""
LEASE_ID = 1
"""Position of the lease id in a ``Claim`` row."""


CAREFUL_SECONDS = 10.0
"""How long claims skip locked guard keys after one claim has waited too long for such a lock."""
LOGGED_KEYS = 3
"""Maximum number of guard keys that a log line names."""


class GuardedSearch:
    """The search of one process for ready jobs whose guards let them start. It may take several
    claims."""

    def __init__(self) -> None:
        self.began: float | None = None
        """Time of the start of the search, in monotonic seconds; None = no search has begun."""
        self._look = 0
        self._careful_until = 0.0
        self._logged: set[str] = set()
        """Names of the locked guard keys that were logged since claims began to skip them."""

    @property
    def seconds(self) -> float:
        """Return the number of seconds since the start of the search; 0 = no search has begun."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def waits(self) -> bool:
        """Return whether to wait for guard keys that other transactions have locked."""
        return time.monotonic() >= self._careful_until

    def be_careful(self, locked: Collection[str] = ()) -> None:
        """Skip locked guard keys in the next claims. Another transaction has locked some for
        longer than Stoker's own transactions take.

        Args:
            locked: names of these keys; new ones are logged. Empty: unknown.
        """
        if self.waits:
            self._logged.clear()
        self._careful_until = time.monotonic() + CAREFUL_SECONDS
        if new := sorted(set(locked) - self._logged):
            self._logged.update(new)
            named = ", ".join(map(repr, new[:LOGGED_KEYS]))
            more = f" and {len(new) - LOGGED_KEYS:,} more" if len(new) > LOGGED_KEYS else ""
            keys = "key" if len(new) == 1 else "keys"
            tell(
                "guards_put_off", error=f"another transaction holds the guard {keys} {named}{more}."
            )

    def end(self) -> None:
        """End the search, because it has found jobs or has examined all ready jobs. The next claim
        begins a new one."""
        self.began, self._look = None, 0

    def look(self, limit: int) -> int:
        """Begin a round. Return how many ready jobs to examine: ``limit`` in the first round, and
        twice as many in each further round, up to LOOK_MOST, because no job of the earlier rounds
        may start."""
        if self.began is None:
            self.began = time.monotonic()
        look = max(limit, self._look)
        self._look = min(2 * look, LOOK_MOST)
        return look


class Claiming:
    """Moves ready jobs to claimed, lowest rank first, then oldest.

    Args:
        queues: names of the queues to serve, without duplicates.
        limit: maximum number of jobs.
        terms: how to admit jobs with guards.
        marks: where to start in the first round.
        search: the search that this claim begins or continues.
    """

    def __init__(
        self,
        queues: Sequence[str],
        limit: int,
        leasing: Leasing,
        terms: AdmissionTerms,
        marks: Watermarks,
        search: GuardedSearch,
    ) -> None:
        self.is_over = False
        """Whether the claim is complete: its limit is reached, or no further job is ready."""
        self._alias = marks.alias
        self._engine = marks.engine
        self._queues = queues
        self._limit = limit
        self._leasing = leasing
        self._terms = terms
        self._marks = marks
        self._search = search

    def go_round(self) -> Iterator[list[Claim]]:
        """Run one round and yield its claims. Claims that were yielded stay leased even if a later
        step raises."""
        look = self._search.look(self._limit)
        found = self._claim_plain() if look == self._limit else None
        if found is None:
            yield self._decide(partial(self._best, look), look, self._limit)
            return
        guarded = [row for row in found if row[LEASE_ID] is None]
        self._marks.note(found, guarded)
        self.is_over = not guarded
        yield [row for row in found if row[LEASE_ID] is not None] if guarded else found
        if guarded:
            yield from self._go_on(
                [row[JOB_ID] for row in guarded], self._limit - len(found) + len(guarded)
            )

    def _go_on(self, guarded: Sequence[UUID], room: int) -> Iterator[list[Claim]]:
        """Lease the jobs with guards of a round, if their guards admit them. Lease those with free
        keys first, because the database can do that in one statement."""
        if self._search.waits:
            claims = self._engine.claim_free_keys(guarded, self._leasing)
            yield claims
            leased = {claim[JOB_ID] for claim in claims}
            guarded = [job_id for job_id in guarded if job_id not in leased]
            room -= len(leased)
        self.is_over = not guarded
        if guarded:
            yield self._decide(partial(self._lock, guarded), room, room)

    def _claim_plain(self) -> list[Claim] | None:
        """Claim jobs without guards. See ``Engine.claim_ready``."""
        ready = Ready.objects.using(self._alias)
        spans = self._marks.spans(self._queues) if self._engine.claims_by_marks else {}
        with self._engine.deciding_at_once():
            return self._engine.claim_ready(ready, self._queues, spans, self._limit, self._leasing)

    def _decide(self, lock: Callable[[], list[Place]], look: int, room: int) -> list[Claim]:
        """Lease the ready jobs that no guard holds back."""
        with deciding(self._alias):
            places = lock()
            if not any(place.guards for place in places):
                self.is_over = True
                plain = [Admitted(place) for place in places[:room]]
                return lease(self._alias, Decisions(places[:room]), self._leasing, plain)
            decision = admit(
                self._alias,
                places,
                room,
                self._leasing,
                self._terms,
                waits=self._search.waits,
                searched_us=microseconds(self._search.seconds),
            )
        if decision.locked:
            self._search.be_careful(decision.locked)
        if decision.has_called:
            self._marks.forget()
        are_all = len(places) < look and not decision.has_called
        self.is_over = are_all or not decision.turned_away
        return decision.claims

    def _lock(self, job_ids: Sequence[UUID]) -> list[Place]:
        rows = self._engine.find_by_key("ready_lock", [job_id.hex for job_id in job_ids])
        return [Place(*row) for row in rows]

    def _best(self, look: int) -> list[Place]:
        ready = Ready.objects.using(self._alias)
        paused = self._paused_here()
        served = [queue for queue in self._queues if queue not in paused]
        best = ready.lock_first(served, look)
        if len(served) > 1:
            best.sort(key=lambda place: (place.rank, place.job_id))
        return best[:look]

    def _paused_here(self) -> Collection[str]:
        """Return the names of paused queues if the engine's own claim statement leaves them out.
        On other engines ``served`` does not contain them."""
        if not self._engine.claims_by_marks:
            return ()
        return PausedQueue.objects.using(self._alias).names()
