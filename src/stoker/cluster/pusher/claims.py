"""Claim jobs, release those that were not started, and choose the time of the next claim."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from uuid import UUID

from django.db import Error

from stoker.brokers.contract import (
    CLAIM_BYTES,
    Broker,
    ClaimRequest,
    Delivery,
    Lease,
    PartlyUnavailable,
    Return,
)
from stoker.brokers.dispatch import Dispatch
from stoker.cluster import board as place
from stoker.cluster.board import Board, job_lease, lease_clock
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.leases import HeldLeases, by_lessor
from stoker.cluster.pusher.requests import Requests
from stoker.exceptions import BrokerError
from stoker.signals import tell
from stoker.store.engines.sessions import CallResult, Patience
from stoker.store.locked_jobs import locked_jobs

CLAIM_AT_ONCE = 1000
MUCH_BYTES = CLAIM_BYTES // 4
"""After a claim with this many bytes of packages, the next one waits until workers need jobs."""
RELEASED_AT_ONCE = 500
LOCKED_SECONDS = 1.0
"""Pause before the next try to release jobs that other transactions had locked, or whose server
did not answer."""
PARTLY_HELD_SECONDS = 5.0
"""Pause before leases are compared again after one of several servers did not list them."""
RATED_SECONDS = 60.0
"""How long after the claim of a job with a rate the due time of rate limits is checked often."""


class Claims:
    """Claims jobs from the broker, and releases jobs that were not started."""

    def __init__(
        self,
        plan: Plan,
        broker: Dispatch,
        patience: Patience,
        flights: Flights,
        board: Board,
        requests: Requests,
    ) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._queues = plan.served_queues
        self._broker = broker
        self._patience = self.of_store = patience
        """Make the calls to the broker, and to the store alone: see ``Pusher``. They are the same
        if there is only one of both."""
        self._flights = flights
        self._board = board
        self._requests = requests
        self.leases = HeldLeases(self._settings, broker, flights, board)
        self.tempo = Tempo(self._settings.poll_seconds)
        requests.pauses.on_resume = self.tempo.hurry
        self._most = defaultdict[Patience, int](lambda: CLAIM_AT_ONCE)
        """Maximum number of jobs in the next claim. It is lower if packages are long, because
        the broker would lease and release the jobs that do not fit, and after a failed claim."""
        self._doubts: dict[Broker, float] = {}
        """Store or broker that may have carried out a claim that failed here -> when to compare
        its leases with those known here, in monotonic seconds."""
        self._rated_until = 0.0
        """Rate limits count as being in use until this time on the lease clock."""
        self._locked: frozenset[UUID] = frozenset()
        """Jobs that cannot be released now, because other transactions have locked their rows, or
        one of several servers does not answer."""
        self._look_at_locked = 0.0
        self._had_no_slot = False
        """Whether the last claim had no slots for jobs with a rate limit, although such jobs may
        wait."""
        self._look_ahead: Callable[[], CallResult[float | None] | None] | None = None
        self.found_nothing = False
        """Whether the last claim, made while nothing was in flight, found nothing on any server,
        and a message server outside the store has no messages either."""

    def claim(
        self, room: int, *, is_hungry: bool, prompt_room: Callable[[], int], turns: int = 1
    ) -> None:
        """Claim up to ``room`` jobs if a claim is due.

        Args:
            is_hungry: whether a worker will soon be idle.
            prompt_room: returns how many of the jobs may have a rate limit.
            turns: how many of the jobs may have the same lock.
        """
        if self._had_no_slot and prompt_room() > 0:
            self._had_no_slot = False
            self.tempo.hurry()
        if room <= 0 or not self.tempo.is_due(is_hungry):
            return
        if time.monotonic() < self._paused_until():
            return
        if not self._broker.sees_pauses and not self._requests.allow_claims(self.of_store):
            return
        source: Dispatch | Broker = self._broker
        calls, asked = self._patience, self._broker.lessors
        if self._is_broker_away():
            source, calls, asked = asked[0], self.of_store, asked[:1]
        limit, rated_limit = min(room, self._most[calls]), max(0, prompt_room())
        asked_at = lease_clock()
        request = self._request(limit, rated_limit, turns)
        answer = calls.call(lambda: source.claim(request))
        if answer is None:
            self._note_failure(calls, asked, limit)
            return
        self._doubt(self._broker.in_doubt())
        self._requests.note_claim()
        deliveries = answer.value
        is_idle = not deliveries and not len(self._flights)
        self.found_nothing = is_idle and self._has_asked_all(source)
        if deliveries:
            self._flights.add(deliveries, asked_at)
            self.leases.include(asked_at)
        if any(map(attrgetter("permit_seconds"), deliveries)):
            self._rated_until = asked_at + RATED_SECONDS
        uses_rates = asked_at < self._rated_until
        self._had_no_slot = uses_rates and not rated_limit
        is_much = sum(map(len, map(attrgetter("package"), deliveries))) > MUCH_BYTES
        more = self._most[calls] + self._most[calls] // 4 + 1
        self._most[calls] = len(deliveries) if is_much else min(more, CLAIM_AT_ONCE)
        self.tempo.note(limit if is_much else len(deliveries), limit)
        if self.tempo.is_going_to_sleep or (uses_rates and self.tempo.is_pausing):
            next_due_seconds = partial(source.next_due_seconds, rated=rated_limit > 0)
            self._look_ahead = partial(calls.call, next_due_seconds)

    def _note_failure(self, calls: Patience, asked: Sequence[Broker], limit: int) -> None:
        if calls.has_met_a_lock:  # nothing was leased; other rows may be unlocked soon
            self.tempo.note(0, limit)
        else:  # a slow database may answer a smaller claim in time
            self._most[calls] = max(1, limit // 2)
            self._doubt(asked)

    def _has_asked_all(self, source: Dispatch | Broker) -> bool:
        """Return whether a claim from this source has asked every server, and a message server
        outside the store has no messages."""
        arrivals = self._broker.arrivals
        is_empty = arrivals is None or arrivals.is_server_empty
        return is_empty and source is self._broker and not self._broker.is_partial

    @property
    def next_claim(self) -> float:
        """Time of the next claim, in monotonic seconds. Infinity: claim when workers need jobs."""
        return max(self.tempo.next_claim, self._paused_until())

    def _paused_until(self) -> float:
        """Return the end of the pause after a failed call, in monotonic seconds."""
        if self._is_broker_away():
            return self.of_store.try_at
        return max(self.of_store.try_at, self._patience.try_at)

    def _is_broker_away(self) -> bool:
        """Return whether to claim from the store alone, because the broker outside it has not
        answered since a failed call. A lock that a call has met is in the store."""
        if self.of_store is self._patience:
            return False
        if self._patience.is_waiting:
            return not self._patience.has_met_a_lock
        compare_at = self._doubts.get(self._broker.lessors[-1], float("inf"))
        return compare_at <= time.monotonic()

    def _request(self, limit: int, rated_limit: int, turns: int) -> ClaimRequest:
        return ClaimRequest(
            limit,
            holder=self._plan.cluster_id,
            lease_seconds=self._settings.lease_seconds,
            queues=self._queues,
            passed_over=self._requests.pauses.queues,
            rated_limit=rated_limit,
            permit_seconds=self._flights.permits.seconds,
            turns=turns,
            ahead=self._flights.turns,
        )

    def look_ahead(self) -> None:
        """Ask the broker when the next job is due. Done only after claimed jobs have been sent
        out, because their permits run out."""
        if self._look_ahead is not None:
            due = self._look_ahead()
            self._look_ahead = None
            self.tempo.wake_in(due.value if due else None)

    def release(self) -> None:
        """Release jobs to the store or broker as if they had never been claimed. While one of both
        is away, those of the other are released. A job whose lease may have ended meanwhile is
        released when its lease has been extended again."""
        flights = [one for one in self._flights.to_release() if not one.is_unanswered]
        if self._locked and time.monotonic() >= self._look_at_locked:
            self._locked = frozenset()
        flights = [one for one in flights if one.delivery.job_id not in self._locked]
        for some, calls in by_lessor(flights, self._patience, self.of_store):
            if not calls.is_waiting:
                self._release(some[:RELEASED_AT_ONCE], calls)

    @property
    def next_release(self) -> float:
        """Time of the next call of ``release`` that can release a job, in monotonic seconds.
        Infinity: none waits for it."""
        times = []
        flights = [one for one in self._flights.to_release() if not one.is_unanswered]
        for some, calls in by_lessor(flights, self._patience, self.of_store):
            # The store is asked first which of the jobs are to be cancelled.
            due = max(calls.try_at, self.of_store.try_at)
            if all(one.delivery.job_id in self._locked for one in some):
                due = max(due, self._look_at_locked)
            times.append(due)
        return min(times, default=float("inf"))

    def _release(self, flights: Sequence[Flight], calls: Patience) -> None:
        flights = self._requests.cancels.end_unstarted(self.of_store, flights)
        if not flights:
            return
        returns = [
            Return(
                flight.delivery.lease,
                attempts=flight.delivery.attempt - 1,
                crashes=flight.delivery.crashes,
            )
            for flight in flights
        ]
        answer = calls.call(lambda: self._settle(returns))
        if answer is not None:
            left = answer.value
            self._flights.forget_released(
                [one for one in flights if one.delivery.lease not in left]
            )
            self._put_off({lease.job_id for lease in left})
            self._announce()
        elif calls.has_met_a_lock:
            job_ids = [flight.delivery.job_id for flight in flights]
            with suppress(BrokerError, Error):  # the next call notices that the store is away
                self._put_off(locked_jobs(self._settings.database, job_ids))
            self._look_at_locked = time.monotonic() + LOCKED_SECONDS

    def _settle(self, returns: Sequence[Return]) -> Collection[Lease]:
        """Release jobs. Return the leases on one of several servers that does not answer. It is no
        failure of the broker, so that claims from the others go on."""
        try:
            self._broker.settle(again=returns)
        except PartlyUnavailable as error:
            return error.leases
        return ()

    def _put_off(self, job_ids: Collection[UUID]) -> None:
        """Leave these jobs alone for a moment, and release others."""
        if job_ids:
            self._locked |= set(job_ids)
            self._look_at_locked = time.monotonic() + LOCKED_SECONDS

    def note_handed_out(self, flights: Sequence[Flight]) -> list[Flight]:
        """Record that these jobs are being sent to workers. Return those that could not be
        recorded, because the store or broker that leased them is away."""
        left: list[Flight] = []
        for some, calls in by_lessor(flights, self._patience, self.of_store):
            leases = [flight.delivery.lease for flight in some]
            if calls.call(partial(self._broker.note_handed_out, leases)) is None:
                left += some
        return left

    def _announce(self) -> None:
        """Wake the other clusters for the jobs that no worker here can start."""
        queues, self._flights.to_announce = self._flights.to_announce, set()
        if queues:
            self.of_store.call(lambda: self._broker.wake_up(queues))

    def doubt(self) -> None:
        """Request a comparison of the broker's leases with this pusher's. A claim whose answer was
        lost may reach the store after an earlier comparison."""
        self._doubt(self._broker.lessors)

    def _doubt(self, lessors: Iterable[Broker]) -> None:
        for lessor in lessors:
            self._doubts.setdefault(lessor, 0.0)

    def clear_up_doubts(self) -> None:
        """Release leases that this pusher does not know. Otherwise each would block its job until
        it expires, and count as an attempt. Leases of jobs that a worker has started are kept."""
        for lessor, compare_at in list(self._doubts.items()):
            if time.monotonic() >= compare_at:
                self._compare(lessor)

    def _compare(self, lessor: Broker) -> None:
        asked_at = lease_clock()
        calls = self.of_store if lessor is self._broker.store else self._patience
        held = calls.call(lambda: lessor.held_by(self._plan.cluster_id, packages=False))
        if held is not None:
            del self._doubts[lessor]
            if lessor.is_partial:
                self._doubts[lessor] = time.monotonic() + PARTLY_HELD_SECONDS
            unknown = self._flights.unknown(held.value)
            begun = self._board.begun() if unknown else set()
            if unbegun := [one for one in unknown if job_lease(one) not in begun]:
                self._flights.release_leases(unbegun, asked_at)
                self.leases.include(asked_at)

    def insist_on_held(self, beat: Callable[[], None]) -> list[Delivery]:
        """Return this cluster's leases from the broker. Retry until it answers."""
        return self._patience.insist(self._held, beat)

    def note_numbers(self) -> None:
        """Write the highest delivery number to the board before a worker sees it, so that the
        next pusher does not use it again."""
        self._board[place.LAST_DELIVERY] = self._flights.last_number

    def _held(self) -> list[Delivery]:
        return self._broker.held_by(self._plan.cluster_id)


CLEAN_UP_LOOK_SECONDS = 0.1
"""Pause between two looks whether upkeep has cleaned up, at the end of a drain."""


class Drain:
    """Decides when a cluster that runs with ``--drain`` and holds no job ends.

    It first waits for its upkeep to clean up after dead clusters. Otherwise, if no run lasted
    long, their jobs would never be rescued.
    """

    def __init__(self, plan: Plan, claims: Claims, board: Board) -> None:
        self._is_wanted = plan.drain
        self._claims = claims
        self._board = board
        settings = plan.settings
        self._waits_until = time.monotonic() + settings.start_seconds + settings.lease_seconds
        """Then the cluster ends without the clean-up, for example if its scheduler cannot start."""
        self._is_cleaned_up = False

    def check(self) -> bool:
        """Return whether the cluster is to end, because the last claim, made after the clean-up,
        found nothing. Return True only once."""
        if not (self._is_wanted and self._claims.found_nothing):
            return False
        if self._is_cleaned_up:
            self._is_wanted = False
            return True
        is_cleaned_up = bool(self._board[place.CLEANED_UP])
        if is_cleaned_up or time.monotonic() >= self._waits_until:
            if not is_cleaned_up:
                tell("drained_without_rescue")
            self._is_cleaned_up, self._claims.found_nothing = True, False
            self._claims.tempo.hurry()  # rescued jobs may wait
        else:
            self._claims.tempo.wake_in(CLEAN_UP_LOOK_SECONDS)
        return False


SHORTEST_PAUSE_SECONDS = 0.002
OVERDUE_PAUSE_SECONDS = 0.02
"""Pause before the next look at a due deferred job that another transaction has locked."""


class Tempo:
    """Decides when a pusher claims next.

    Args:
        poll_seconds: the longest pause.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._pause_seconds = SHORTEST_PAUSE_SECONDS
        self._there_is_more = False
        self.next_claim = 0.0
        """Time of the next claim, in monotonic seconds. Infinity: claim when workers need jobs."""

    @property
    def is_pausing(self) -> bool:
        """Whether the next claim waits for a time, and not until workers need jobs."""
        return not self._there_is_more

    @property
    def is_going_to_sleep(self) -> bool:
        """Whether the pause has grown long enough to ask when the next deferred job is due."""
        return self.is_pausing and self._pause_seconds >= min(0.05, self._poll_seconds)

    def is_due(self, is_hungry: bool) -> bool:
        """Whether to claim now."""
        if self._there_is_more:
            return is_hungry
        return time.monotonic() >= self.next_claim

    def hurry(self, *, closely: bool = True) -> None:
        """Claim now, as jobs may have arrived. ``closely``: start again with short pauses."""
        if closely:
            self._pause_seconds = SHORTEST_PAUSE_SECONDS
        self.next_claim = min(self.next_claim, time.monotonic())

    def note(self, got: int, asked: int) -> None:
        """Choose the next pause from the result of a claim."""
        self._there_is_more = got == asked
        if self._there_is_more:
            self.next_claim = float("inf")
            return
        if got:
            self._pause_seconds = SHORTEST_PAUSE_SECONDS
        else:
            self._pause_seconds = min(self._poll_seconds, self._pause_seconds * 2)
        self.next_claim = time.monotonic() + self._pause_seconds

    def wake_in(self, seconds: float | None) -> None:
        """Claim at the latest in ``seconds``, because a deferred job is due then."""
        if seconds is not None:
            shortest = SHORTEST_PAUSE_SECONDS if seconds > 0 else OVERDUE_PAUSE_SECONDS
            due = time.monotonic() + max(seconds, shortest)
            self.next_claim = min(self.next_claim, due)
