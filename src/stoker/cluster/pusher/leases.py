"""The leases of this pusher: extend them in time, and take over those of the previous pusher."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from uuid import UUID

from stoker.brokers.contract import Delivery, Extension
from stoker.brokers.dispatch import Dispatch
from stoker.cluster import board as place
from stoker.cluster.board import (
    Board,
    FinishedDelivery,
    fence_margin_ns,
    job_lease,
    lease_clock,
    lease_mark,
)
from stoker.cluster.crew import Death
from stoker.cluster.wire import Job, Report, open_job, permit_of
from stoker.conf import Settings
from stoker.signals import tell
from stoker.store.engines.sessions import Patience

from .flights import Flight, Flights
from .roster import Recall, Roster

LOCKED_SHARE = 24
"""The extension of a locked lease is retried after this part of its duration."""


class HeldLeases:
    """The times of all leases held here, on the lease clock."""

    def __init__(
        self, settings: Settings, broker: Dispatch, flights: Flights, board: Board
    ) -> None:
        self._lease_seconds = settings.lease_seconds
        self._broker = broker
        self._flights = flights
        self._board = board
        self._margin_seconds = (
            fence_margin_ns(settings) / 1e9 + 2 * self._lease_seconds / LOCKED_SHARE
        )
        self._check_at = 0.0
        self._has_extended = False
        """Whether leases were extended and the fence was not moved since."""

    def include(self, asked_at: float) -> None:
        """Note the time of a successful claim."""
        self._set_fence(min(asked_at, self._fenced_from() or asked_at))

    @property
    def next_check(self) -> float:
        """Time of the next check of the leases, in monotonic seconds."""
        return time.monotonic() + self._check_at - lease_clock()

    def extend_due(self, patience: Patience, of_store: Patience | None = None) -> list[Flight]:
        """Extend the leases that need it. Return the flights whose lease is lost, or is about to
        end because another transaction has locked it, or because the store or broker that granted
        it does not answer. When the caller has stopped them, ``move_fence`` is due.

        Args:
            of_store: makes the calls to the store, if a broker outside it has granted some of the
                leases. While one of both is unreachable, the jobs of the other continue.
        """
        now = lease_clock()
        if now < self._check_at:
            return []
        old = [one for one in self._flights if now - one.leased_at >= self._lease_seconds / 3]
        pause_seconds = self._lease_seconds / 6
        lost: list[Flight] = []
        for flights, calls in by_lessor(old, patience, of_store):
            leases = [flight.delivery.lease for flight in flights]
            answer = calls.call(
                partial(self._broker.extend_unlocked, leases, lease_seconds=self._lease_seconds)
            )
            if answer is None and of_store is None:
                return []
            if answer is None or answer.value.locked:
                pause_seconds = self._lease_seconds / LOCKED_SHARE
            if answer is None:
                lost += self._about_to_end(flights, now)
            else:
                lost += self._note(flights, answer.value, now)
        self._check_at = now + pause_seconds
        self._has_extended = True
        return lost

    def move_fence(self) -> None:
        """Set the fence to the end of the oldest lease, after leases were extended. Call this once
        the lost jobs are recalled or being stopped: the fence prevents that they start or run."""
        if self._has_extended:
            self._has_extended = False
            self._set_fence(self._flights.oldest_lease())

    def _note(self, old: Sequence[Flight], extension: Extension, now: float) -> list[Flight]:
        """Update the flights with the result of an extension, and return those whose lease is lost.
        A reported job counts as kept: the monitor may just have recorded it."""
        lost: list[Flight] = []
        for flight in old:
            flight.is_unfenced = flight.delivery.lease in extension.locked
            is_lost = flight.delivery.lease in extension.stale
            if flight.is_unfenced:
                is_lost = self._left_seconds(flight, now) <= self._margin_seconds
                # Only the store has locks: in a broker, one of several servers is down.
                flight.is_unanswered = is_lost and not isinstance(flight.delivery.lease_id, int)
            else:
                flight.leased_at = now
                flight.is_unanswered = flight.is_revoked = False
            if is_lost and flight.report is None:
                lost.append(flight)
        return lost

    def _about_to_end(self, flights: Sequence[Flight], now: float) -> list[Flight]:
        """Return the flights whose lease is about to end because the store or broker that granted
        it does not answer. The fence leaves out only these: it has to stop the others if this
        process hangs in a call."""
        ending = [one for one in flights if self._left_seconds(one, now) <= self._margin_seconds]
        for flight in ending:
            flight.is_unfenced = flight.is_unanswered = True
        return [flight for flight in ending if flight.report is None]

    def _left_seconds(self, flight: Flight, now: float) -> float:
        return flight.leased_at + self._lease_seconds - now

    def _fenced_from(self) -> float | None:
        fence_ns = self._board[place.FENCE_NS]
        return fence_ns / 1e9 - self._lease_seconds if fence_ns else None

    def _set_fence(self, leased_at: float | None) -> None:
        ends_at = 0.0 if leased_at is None else leased_at + self._lease_seconds
        self._board[place.FENCE_NS] = round(ends_at * 1e9)


def by_lessor(
    flights: Sequence[Flight], patience: Patience, of_store: Patience | None
) -> Iterator[tuple[Sequence[Flight], Patience]]:
    """Group the flights by the ``Patience`` that makes the calls to the store or broker that
    granted their leases."""
    if of_store is None:
        of_store = patience
    parts: dict[Patience, list[Flight]] = {}
    for flight in flights:
        is_stores = isinstance(flight.delivery.lease_id, int)
        parts.setdefault(of_store if is_stores else patience, []).append(flight)
    for calls, part in parts.items():
        yield part, calls


GREETING_SECONDS = 5.0
"""How long a worker may take to send its greeting."""


class Adoption:
    """Takes over the jobs of the previous pusher."""

    def __init__(
        self,
        flights: Flights,
        roster: Roster,
        recall: Recall,
        board: Board,
    ) -> None:
        self._flights = flights
        self._roster = roster
        self._recall = recall
        self._board = board
        self._last_number = flights.last_number
        """The last delivery number of the previous pusher."""
        self._expected: set[tuple[int, int]] | None = None
        self._adopted = 0
        self.closes_at = float("inf")
        """End of the wait for greetings, in monotonic seconds."""

    @property
    def is_open(self) -> bool:
        """Whether some worker has not greeted yet."""
        return self._expected is None or bool(self._expected)

    def take(self, held: Iterable[Delivery], leased_at: float) -> None:
        """Add the leases that the store lists for this cluster, as orphans."""
        for delivery in held:
            self._flights.orphans[delivery.job_id] = Flight(0, delivery, leased_at)

    def expect(self, workers: Iterable[Sequence[int]]) -> None:
        """Wait for the greetings of the workers that were started before this pusher."""
        self._expected = {(number, incarnation) for number, incarnation in workers}
        if self._expected:
            self.closes_at = time.monotonic() + GREETING_SECONDS

    def hello(
        self, worker: int, jobs: Iterable[tuple[Job, Report | None]]
    ) -> tuple[list[Flight], list[int]]:
        """Handle a worker's greeting, which lists its jobs. Return the flights whose reports are to
        be passed on, and the delivery numbers it runs without a lease of this pusher."""
        link = self._roster.links[worker]
        link.has_said_hello = True
        reported, unknown, listed = [], [], set()
        jobs = list(jobs)
        unreported = [job[0] for job, report in jobs if report is None]
        taken_back = self._recall.taken_back(worker, unreported)
        for job, report in jobs:
            number = job[0]
            listed.add(number)
            if report is None and number in taken_back:
                continue  # another worker may have received it meanwhile, under the same lease
            flight = self._adopt(worker, number, open_job(job), permit_of(job))
            if flight is None and report is None:
                unknown.append(number)
            elif flight is None:
                self._roster.confirm(worker, [number])
            elif report is not None and self._flights.report(worker, report):
                reported.append(flight)
        self._heard((worker, link.incarnation))
        reported += self._end_unlisted(worker, listed)
        if not unknown:
            return reported, []
        self._recall.recall(worker, max(unknown))
        self._recall.settle()
        return reported, [number for number in unknown if self._recall.has_started(worker, number)]

    def _end_unlisted(self, worker: int, listed: set[int]) -> list[Flight]:
        """Give up the jobs that were adopted while the worker was silent and that its greeting does
        not list. An earlier worker with this number has finished them, or this one has skipped
        them. Return the finished ones, each with a report that says that its outcome was lost."""
        held = self._flights.with_worker(worker)
        unlisted = [
            flight
            for number, flight in held.items()
            if number <= self._last_number and number not in listed
        ]
        if not unlisted:
            return []
        finished = self._board.finished()
        over = [flight for flight in unlisted if job_lease(flight.delivery) in finished]
        for flight in unlisted:
            if flight not in over:
                self._flights.take_back(flight)
        return self._roster.judge_finished(over)

    def settle(self, death: Death) -> None:
        """Adopt the jobs that were running in a worker that died before its greeting."""
        for number, job_id, _, mark in death.running:
            self._adopt_seen(death.worker, number, UUID(bytes=job_id), mark)
        self._heard((death.worker, death.incarnation))

    def close_when_complete(self) -> list[Flight]:
        """Once every worker has greeted or been given up, release the jobs that no worker has.

        Returns:
            The flights that had finished and whose report was lost, each with a report that says
            so.
        """
        if self.is_open and time.monotonic() >= self.closes_at:
            self._do_without_the_silent()
        if not self._flights.orphans or self.is_open:
            return []
        finished = [self._adopt(*ended, one) for ended, one in self._finished_orphans()]
        judged = self._roster.judge_finished([flight for flight in finished if flight])
        released = len(self._flights.orphans)
        self._flights.release_orphans()
        tell("adopted", count=self._adopted, released=released)
        return judged

    def _do_without_the_silent(self) -> None:
        """Give up the workers that have not greeted: recall their unstarted jobs, then read from
        the board which jobs they are running or have finished."""
        silent = [worker for worker, _ in self._expected or ()]
        for worker in silent:
            self._recall.recall(worker, self._last_number)
        self._recall.settle()
        for worker in silent:
            for job in self._board.occupied(worker):
                self._adopt_seen(worker, job.delivery, job.job_id, job.lease)
        for ended, delivery in self._finished_orphans():
            # A higher number than any that this worker has started is of an earlier worker.
            if ended.worker in silent and self._recall.has_started(*ended):
                self._adopt(*ended, delivery)
        self._expected = set()
        self.closes_at = float("inf")

    def _finished_orphans(self) -> list[tuple[FinishedDelivery, Delivery]]:
        """Return the orphans that a worker has finished, with the board's entries."""
        finished = self._board.finished()
        found = []
        for flight in self._flights.orphans.values():
            delivery = flight.delivery
            ended = finished.get(job_lease(delivery))
            if ended is not None:
                found.append((ended, delivery))
        return found

    def _adopt_seen(self, worker: int, number: int, job_id: UUID, mark: int) -> None:
        """Adopt a job that the board lists. If the lease differs, the job belongs to another
        holder and is ignored."""
        orphan = self._flights.orphans.get(job_id)
        if orphan is not None and lease_mark(orphan.delivery.lease_id) == mark:
            self._adopt(worker, number, orphan.delivery)

    def _adopt(
        self, worker: int, number: int, delivery: Delivery, permit_ns: int = 0
    ) -> Flight | None:
        known = self._flights.get(number)
        if known is not None:
            is_the_same = known.worker == worker and known.delivery.lease == delivery.lease
            return known if is_the_same else None
        orphan = self._flights.orphans.get(delivery.job_id)
        if orphan is None or orphan.delivery.lease_id != delivery.lease_id:
            return None
        del self._flights.orphans[delivery.job_id]
        self._adopted += 1
        return self._flights.adopt(number, delivery, worker, orphan.leased_at, permit_ns)

    def _heard(self, worker: tuple[int, int]) -> None:
        if self._expected is not None:
            self._expected.discard(worker)
            if not self._expected:
                self.closes_at = float("inf")
