"""Admission: decide at the claim which jobs with guards may start, under the locks of their keys.

Everything here runs within a transaction. Rows are locked in one order everywhere: first a job's
row in its hot table, then keys by their ids. A transaction that has locked keys waits for no other
row. See ``docs/decisions/0015-guards-decide-at-claim.md``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from stoker.models.blocked import BlockedLine
from stoker.models.claimed import Claim, Claimed, Leasing
from stoker.models.deferred import Deferred
from stoker.models.guard_key import Decisions, GuardKey, LockedKey, learn
from stoker.models.need import Need, StatedNeed
from stoker.models.ready import Place, Ready
from stoker.models.wait import NewWait, Wait
from stoker.store.engines import engine_of
from stoker.store.engines.rows import FIRST, HEAD, HOLDER, NOW
from stoker.store.statements import with_keys
from stoker.store.turns import LOOK_AGAIN_US, call_all
from stoker.store.written import MICROSECONDS
from stoker.values import rates as rate_window

ALREADY_RUNNING = "already running"
LOOK_AGAIN_EACH_US = 20_000
"""For each job that already waits because its keys are locked, the check of the next such job is
delayed by this time, in microseconds."""
LOOK_AGAIN_LATEST_US = 10_000_000


class AdmissionTerms(NamedTuple):
    """The limits and conditions under which a claim admits jobs with guards."""

    rated_limit: int
    """Maximum number of jobs with a rate to start."""
    permit_us: int = 0
    """Minimum validity of their permits, in microseconds."""
    asked_at: float = 0.0
    """Time of the claim request, in monotonic seconds of this process."""
    turns: int = 1
    """Maximum number of jobs under one lock. The cluster starts them one after another."""
    ahead: Container[UUID] = ()
    """The jobs behind which others with the same lock may be admitted, according to the cluster.
    Those whose lease it has lost are left out."""
    queues: Collection[str] = ()
    """The queues that the claim serves; empty = all."""
    passed_over: Container[str] = ()
    """The queues that it does not serve, because they are paused."""


class Admitted(NamedTuple):
    """A job to lease now."""

    place: Place
    fence: int = 0
    """Fencing number, higher than that of every earlier holder of one of its keys."""
    permit_seconds: float = 0.0
    """Seconds after the request during which a job with a rate may start; 0 = as long as the lease
    lasts."""
    refused: str = ""
    """Why the job must end as cancelled instead of running; "" = it may run."""
    turn: UUID | None = None
    """The key under which the cluster starts its jobs one after another."""


class AdmissionResult(NamedTuple):
    """The decisions about a batch of ready jobs."""

    claims: list[Claim]
    """The claims of the admitted jobs."""
    turned_away: int
    """Number of jobs that were moved to blocked or deferred."""
    has_called: bool
    """Whether blocked jobs were made ready."""
    locked: Collection[str]
    """Names of the keys that other transactions hold. Jobs that need them were deferred."""


def admit(
    alias: str,
    places: Sequence[Place],
    room: int,
    leasing: Leasing,
    terms: AdmissionTerms,
    *,
    waits: bool = True,
    searched_us: int = 0,
) -> AdmissionResult:
    """Decide which of the given ready jobs may start, and lease these. Block or defer the others.

    Args:
        alias: of the database.
        places: the jobs' rows, locked by the caller, in the order in which they are to start.
        room: maximum number of jobs to admit.
        leasing: the values of all new leases.
        terms: limits for jobs with a rate, and for jobs whose lock the same cluster holds.
        waits: whether to wait for keys that other transactions have locked. If False, jobs that
            need such keys are deferred for a moment, so that they do not delay other jobs.
        searched_us: duration of the caller's search for jobs that may start, in microseconds.
            Deferred jobs are deferred for this much longer. Otherwise a slow search would find the
            same jobs again before it reaches the jobs behind them.
    """
    admission = _Admission(
        alias, places, leasing.holder, terms, waits=waits, searched_us=searched_us
    )
    return admission.decide(room, leasing)


def lease(
    alias: str, decisions: Decisions, leasing: Leasing, admitted: Sequence[Admitted]
) -> list[Claim]:
    """Carry out decisions. Return the claims of the admitted jobs."""
    ready, needs = Ready.objects.using(alias), Need.objects.using(alias)
    claims = engine_of(alias).carry_out(ready, needs, decisions, leasing)
    return [
        (*claim[:7], one.fence, one.permit_seconds, one.refused, claim[-1], one.turn)
        for claim, one in zip(claims, admitted, strict=True)
    ]


class _Admission:
    """The decisions of one claim."""

    _locked: Collection[str] = ()
    """Names of the keys that other transactions have locked."""
    _has_unseen_lines: Collection[UUID] = ()
    """Keys of rates that also block jobs of queues that this claim does not serve."""

    def __init__(
        self,
        alias: str,
        places: Sequence[Place],
        holder: UUID,
        terms: AdmissionTerms,
        *,
        waits: bool,
        searched_us: int,
    ) -> None:
        self._alias = alias
        self._terms = terms
        self._searched_us = searched_us
        self._rated_left = terms.rated_limit
        self._needs = Need.objects.using(alias).of_jobs(
            {place.job_id: place.guards for place in places if place.guards}
        )
        self._places, self._kept_out = (places, []) if waits else self._sorted_out(places)
        stated = [
            need for place in self._places if place.guards for need in self._needs[place.job_id]
        ]
        self._keys = GuardKey.objects.using(alias).lock_or_make(stated)
        self._holders: dict[UUID, set[UUID]] = {key_id: set() for key_id in self._keys}
        self._firsts: dict[UUID, UUID | None] = {}
        """Key of a sequence -> its oldest job."""
        self._heads: dict[UUID, dict[str, tuple[int, UUID]]] = {}
        """Key -> queue -> rank and id of the first job in that line."""
        self._now_us = 0
        self._waited_seconds = time.monotonic() - terms.asked_at
        self._look()
        self._ahead = self._held_ahead(holder)
        self._blocked: list[tuple[Place, UUID]] = []
        self._deferred: list[tuple[Place, int]] = []
        self._waits: list[NewWait] = []
        """Waits to record for the jobs that are checked again later."""
        self._passed_over: dict[UUID, int] = {}
        """Key -> number of jobs that were first in its line but could not start because of
        another key."""
        self._led: set[UUID] = set()
        """Locks of newly admitted jobs, behind which other jobs may be admitted."""
        self._next_weight: dict[UUID, int] = {}
        """Key of a rate -> weight of the first job in its line, if this claim has refused it."""
        self._drawn_on: set[UUID] = set()
        """Keys whose numbers have changed, or under which a job has had its turn."""
        self._changed: dict[UUID, LockedKey] = {}
        """The keys to write."""
        self._fences: dict[UUID, int] = {}
        """Need -> its fencing number, for the admitted jobs."""
        self._next_fence = {key_id: key.fence for key_id, key in self._keys.items()}
        self._learn(stated)

    def decide(self, room: int, leasing: Leasing) -> AdmissionResult:
        admitted: list[Admitted] = []
        decided = 0
        for place in self._places:
            if len(admitted) == room:
                break
            decided += 1
            needed = self._needs[place.job_id] if place.guards else []
            refusal = next((need for need in needed if not self._may_start(need, place)), None)
            if refusal is None:
                permit_seconds = self._enter(place, needed)
                fence, turn = self._give_fence(needed), self._turn_of(place, needed)
                admitted.append(Admitted(place, fence, permit_seconds, turn=turn))
                if turn is not None:
                    self._ahead.add(place.job_id)
                    if self._keys[turn].has_line and not self._has_other_lines(turn, place):
                        self._led.add(turn)
            elif refusal.on_busy == "skip":
                self._pass_over(place, needed, refusal)
                admitted.append(Admitted(place, refused=ALREADY_RUNNING))
            else:
                self._pass_over(place, needed, refusal)
                self._turn_away(place, refusal)
        if self._kept_out:
            later_us = self._look_again_us()
            self._deferred += [(place, later_us) for place in self._kept_out]
        claims = self._carry_out(admitted, leasing)
        called = self._call_passed_over()  # this may include jobs that were just blocked
        turned_away = decided + len(self._kept_out) - len(admitted)
        return AdmissionResult(claims, turned_away, bool(called), self._locked)

    def _learn(self, stated: Iterable[StatedNeed]) -> None:
        """Take over the numbers of the newest jobs."""
        for key in learn(self._keys, stated):
            self._changed[key.pk] = key
            self._drawn_on.add(key.pk)
            self._passed_over[key.pk] = key.room  # the limit may have been raised

    def _look(self) -> None:
        """Lock the keys and read the data that the decisions need."""
        kinds = {key_id: key.kind for key_id, key in self._keys.items()}
        lines = {
            BlockedLine(need.key_id, place.queue)
            for place in self._places
            if place.guards
            for need in self._needs[place.job_id]
            if self._keys[need.key_id].has_line and need.kind != Need.Kind.SEQUENCE
        }
        lines |= self._lines_of_other_queues({line.key_id for line in lines}, kinds)
        state = engine_of(self._alias).guard_state(
            [key_id for key_id, kind in kinds.items() if kind != Need.Kind.RATE],
            [key_id for key_id, kind in kinds.items() if kind == Need.Kind.SEQUENCE],
            lines,
        )
        for what, key_id, job_id, queue, number in state:
            if what == NOW:
                self._now_us = number
            elif key_id is None or job_id is None:
                continue
            elif what == HOLDER:
                self._holders[key_id].add(job_id)
            elif what == FIRST:
                self._firsts[key_id] = job_id
            elif what == HEAD:
                self._heads.setdefault(key_id, {})[queue] = (number, job_id)

    def _lines_of_other_queues(
        self, key_ids: Iterable[UUID], kinds: Mapping[UUID, str]
    ) -> set[BlockedLine]:
        """Return all lines of the locks under which jobs may follow others, and the lines of the
        rates in the queues that this claim serves."""
        terms, wanted = self._terms, {Need.Kind.RATE}
        if terms.turns > 1:
            wanted.add(Need.Kind.LOCK)
        found = engine_of(self._alias).lines_of([pk for pk in key_ids if kinds[pk] in wanted])
        lines = {
            BlockedLine(key_id, queue)
            for key_id, queue in found
            if kinds[key_id] == Need.Kind.LOCK
            or ((not terms.queues or queue in terms.queues) and queue not in terms.passed_over)
        }
        self._has_unseen_lines = {key_id for key_id, _ in set(found) - lines}
        return lines

    def _held_ahead(self, holder: UUID) -> set[UUID]:
        """Return the jobs behind which others may be leased: they hold a key and are still leased
        to this cluster. No other cluster can take them over before this transaction ends, because
        it has locked their keys."""
        ahead = self._terms.ahead
        held = {one for holders in self._holders.values() for one in holders if one in ahead}
        if not held:
            return set()
        leases = with_keys(Claimed.objects.using(self._alias), held)
        return set(leases.filter(holder=holder).values_list("pk", flat=True))

    def _sorted_out(self, places: Sequence[Place]) -> tuple[list[Place], list[Place]]:
        """Split the jobs into those whose keys can be locked, and those whose keys other
        transactions have locked."""
        needs = [need for needed in self._needs.values() for need in needed]
        locked = GuardKey.objects.using(self._alias).lock_free({need.key_id for need in needs})
        self._locked = {need.name for need in needs if need.key_id in locked}
        free: list[Place] = []
        kept_out: list[Place] = []
        for place in places:
            needed = self._needs[place.job_id] if place.guards else []
            is_kept_out = any(need.key_id in locked for need in needed)
            (kept_out if is_kept_out else free).append(place)
        return free, kept_out

    def _look_again_us(self) -> int:
        """Return when to check jobs again whose keys other transactions have locked. The more such
        jobs are deferred, and the longer that takes, the later this is. Otherwise the first would
        be due again before the last are deferred."""
        latest_us = self._now_us + LOOK_AGAIN_LATEST_US
        deferred = Deferred.objects.using(self._alias).filter(
            guards__gt=0, due_us__gt=self._now_us, due_us__lte=latest_us
        )
        count = deferred.order_by()[: LOOK_AGAIN_LATEST_US // LOOK_AGAIN_EACH_US].count()
        later_us = min(self._now_us + LOOK_AGAIN_US + count * LOOK_AGAIN_EACH_US, latest_us)
        return later_us + self._searched_us

    # -- the rules --------------------------------------------------------------------------------

    def _may_start(self, need: StatedNeed, place: Place) -> bool:
        key, holders = self._keys[need.key_id], self._holders[need.key_id]
        if need.kind == Need.Kind.SEQUENCE:
            return holders <= {place.job_id} and (bool(holders) or self._is_first(need))
        is_rate = need.kind == Need.Kind.RATE
        has_room = not is_rate and len(holders - {place.job_id}) < key.room
        if self._is_another_ahead(key, place):
            # This happens, for example, while another transaction withdraws the job before.
            if has_room and key.due_us is None:
                key.due_us = self._now_us + LOOK_AGAIN_US
                self._changed[key.pk] = key
            return False
        if is_rate:
            return self._rated_left > 0 and self._is_permitted(key, need)
        return has_room or self._may_follow(need, place)

    def _may_follow(self, need: StatedNeed, place: Place) -> bool:
        """Return whether the cluster may lease this job although its lock is taken, to start it
        after the jobs that hold the lock."""
        holders = self._holders[need.key_id]
        if self._turn_of(place, [need]) is None or len(holders) >= self._terms.turns:
            return False
        return holders <= self._ahead and not self._has_other_lines(need.key_id, place)

    def _turn_of(self, place: Place, needed: Sequence[StatedNeed]) -> UUID | None:
        """Return the key under which the cluster may start this job and others one after another:
        that of a lock, if it is the job's only guard."""
        if place.guards != 1 or len(needed) != 1:  # a need may have been deleted
            return None
        (need,) = needed
        is_lock = need.kind == Need.Kind.LOCK and self._keys[need.key_id].room == 1
        return need.key_id if is_lock and need.on_busy == "wait" else None

    def _is_permitted(self, key: LockedKey, need: StatedNeed) -> bool:
        weight = rate_window.cost(key.rule, need.weight)
        if rate_window.free(key.rule, key.starts, self._now_us) >= weight:
            return True
        key.starts = rate_window.take(key.rule, key.starts, self._now_us, 0)
        self._changed[key.pk] = key
        return False

    def _is_first(self, need: StatedNeed) -> bool:
        return self._firsts.get(need.key_id) == need.job_id

    def _is_another_ahead(self, key: LockedKey, place: Place) -> bool:
        """Return whether another job is blocked by the key and comes first. For a rate it may be of
        any queue that the claim serves: otherwise a job with a weight would wait for as long as
        other queues have lighter ones."""
        heads = self._heads.get(key.pk, {})
        ahead = heads.values() if key.kind == Need.Kind.RATE else [heads.get(place.queue)]
        return any(head is not None and head < (place.rank, place.job_id) for head in ahead)

    def _has_other_lines(self, key_id: UUID, place: Place) -> bool:
        """Return whether the key blocks jobs of other queues. Such jobs may start only when the key
        is free, because another cluster serves their queue or they have further guards."""
        return any(queue != place.queue for queue in self._heads.get(key_id, ()))

    # -- what follows -----------------------------------------------------------------------------

    def _enter(self, place: Place, needed: Iterable[StatedNeed]) -> float:
        """Take a place under each of the keys. Return for how many seconds the permit is valid."""
        permits_us = []
        at_least_us = self._terms.permit_us
        for need in needed:
            key = self._keys[need.key_id]
            if need.kind == Need.Kind.RATE:
                key.starts = rate_window.take(
                    key.rule, key.starts, self._now_us, need.weight, at_least_us=at_least_us
                )
                permits_us.append(rate_window.margin_us(key.rule, at_least_us))
                self._changed[key.pk] = key
                self._drawn_on.add(key.pk)
            else:
                self._holders[need.key_id].add(place.job_id)
        if not permits_us:
            return 0.0
        self._rated_left -= 1
        return self._waited_seconds + min(permits_us) / MICROSECONDS

    def _give_fence(self, needed: Iterable[StatedNeed]) -> int:
        """Return a fencing number above all earlier ones of the given keys; 0 without keys."""
        fence = max((self._next_fence[need.key_id] for need in needed), default=0)
        for need in needed:
            self._fences[need.pk] = fence
            self._next_fence[need.key_id] = fence + 1
        return fence

    def _pass_over(self, place: Place, needed: Iterable[StatedNeed], refusal: StatedNeed) -> None:
        """Note that the job, which is refused because of one key, does not take its turn under its
        other keys."""
        for key_id in {need.key_id for need in needed} - {refusal.key_id}:
            self._passed_over[key_id] = self._passed_over.get(key_id, 0) + 1
            if not self._is_another_ahead(self._keys[key_id], place):
                self._drawn_on.add(key_id)

    def _turn_away(self, place: Place, refusal: StatedNeed) -> None:
        if refusal.on_busy == "retry":
            self._deferred.append((place, self._now_us + refusal.retry_us))
            waits_for = (refusal.kind, refusal.name, self._now_us, refusal.retry_us)
            self._waits.append(NewWait(place.job_id, place.attempts, *waits_for))
            return
        key = self._keys[refusal.key_id]
        if not self._is_another_ahead(key, place):
            self._next_weight.setdefault(key.pk, refusal.weight)
        self._blocked.append((place, key.pk))
        if not key.has_line:
            key.has_line = True
            self._changed[key.pk] = key
        heads, turn = self._heads.setdefault(key.pk, {}), (place.rank, place.job_id)
        heads[place.queue] = min(heads.get(place.queue, turn), turn)

    def _carry_out(self, admitted: Sequence[Admitted], leasing: Leasing) -> list[Claim]:
        for key_id, number in self._next_fence.items():
            key = self._keys[key_id]
            if number - 1 > key.fence:
                key.fence = number - 1
                self._changed[key_id] = key
            if key.kind == Need.Kind.RATE and key.has_line:
                key.starts = rate_window.take(key.rule, key.starts, self._now_us, 0)
                key.due_us = self._next_start_us(key)
                self._changed[key_id] = key
        Wait.objects.using(self._alias).add(self._waits)
        return lease(
            self._alias,
            Decisions(
                [one.place for one in admitted],
                self._blocked,
                self._deferred,
                self._fences,
                list(self._changed.values()),
                self._now_us,
            ),
            leasing,
            admitted,
        )

    def _next_start_us(self, key: LockedKey) -> int:
        """Return when to look at the line of a rate again: when its first job may start. If this
        claim has not seen that job, and has changed nothing for it, the time stays as it is."""
        now_us, weight, due_us = self._now_us, self._next_weight.get(key.pk), key.due_us
        if due_us is not None and weight is None and key.pk not in self._drawn_on:
            return min(due_us, rate_window.latest_us(key.rule, now_us))
        next_us = rate_window.next_us(key.rule, key.starts, now_us, weight or 1)
        if due_us is not None and key.pk in self._has_unseen_lines:
            return min(due_us, next_us)  # the first job of another line may be lighter
        return next_us

    def _call_passed_over(self) -> set[str]:
        """Make other jobs ready under keys that still have room, and behind the new jobs of locks.
        Return their queues."""
        counts = {
            key_id: count
            for key_id, count in self._passed_over.items()
            if len(self._holders[key_id]) < self._keys[key_id].room
        }
        for key_id in self._led:
            counts[key_id] = self._terms.turns - len(self._holders[key_id])
        keys = [(self._keys[key_id], count) for key_id, count in counts.items()]
        return call_all(
            self._alias, [(key, count) for key, count in keys if key.kind != Need.Kind.RATE]
        )
