"""Adopt the leases of a pusher that died, and take back jobs that a worker has not started."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from uuid import UUID

from stoker.brokers.contract import Delivery
from stoker.cluster import board as place
from stoker.cluster.board import Board, FinishedDelivery, job_lease, lease_mark
from stoker.cluster.watch import Death
from stoker.cluster.wire import Job, Report, open_job, permit_of
from stoker.signals import tell

from .flights import Flight, Flights
from .roster import Roster

PATIENCE_SECONDS = 5.0
"""How long a worker may take to say hello."""


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
        """Monotonic seconds."""

    @property
    def is_open(self) -> bool:
        """Whether some worker has yet to be heard."""
        return self._expected is None or bool(self._expected)

    def take(self, held: Iterable[Delivery], leased_at: float) -> None:
        """Leases that the store says are ours."""
        for delivery in held:
            self._flights.orphans[delivery.job_id] = Flight(0, delivery, leased_at)

    def expect(self, workers: Iterable[Sequence[int]]) -> None:
        """The workers that were there before this pusher: number and incarnation."""
        self._expected = {(number, incarnation) for number, incarnation in workers}
        self.closes_at = time.monotonic() + PATIENCE_SECONDS

    def hello(
        self, worker: int, jobs: Iterable[tuple[Job, Report | None]]
    ) -> tuple[list[Flight], list[int]]:
        """Handle a worker's greeting, which lists its jobs. Return the flights whose reports are to
        be passed on, and the delivery numbers it runs without a lease of this pusher."""
        link = self._roster.links[worker]
        link.has_said_hello = True
        reported, unknown = [], []
        for job, report in jobs:
            number = job[0]
            if report is None and self._recall.has_taken_back(worker, number):
                continue  # another worker may have it by now, under the same lease
            flight = self._adopt(worker, number, open_job(job), permit_of(job))
            if flight is None and report is None:
                unknown.append(number)
            elif flight is None:
                self._roster.confirm(worker, [number])
            elif report is not None and self._flights.report(worker, report):
                reported.append(flight)
        self._heard((worker, link.incarnation))
        if not unknown:
            return reported, []
        self._recall.recall(worker, max(unknown))
        self._recall.settle()
        return reported, [number for number in unknown if self._recall.has_started(worker, number)]

    def settle(self, death: Death) -> None:
        """Adopt the jobs that were running in a worker that died before its greeting."""
        for number, job_id, _, mark in death.running:
            self._adopt_seen(death.worker, number, UUID(bytes=job_id), mark)
        self._heard((death.worker, death.incarnation))

    def close_when_complete(self) -> list[Flight]:
        """Once every worker has greeted or been given up, release the jobs that no worker has.

        Returns:
            The flights that had finished but lost their report, with a report that says so.
        """
        if self.is_open and time.monotonic() >= self.closes_at:
            self._do_without_the_silent()
        if not self._flights.orphans or self.is_open:
            return []
        finished = [self._adopt(*ended, one) for ended, one in self._finished_orphans()]
        judged = self._roster.judge_finished([flight for flight in finished if flight])
        released = len(self._flights.orphans)
        self._flights.give_back_orphans()
        tell("adopted", count=self._adopted, released=released)
        return judged

    def _do_without_the_silent(self) -> None:
        """Give up the workers that have not greeted: recall what they have not started, then read
        from the board what they run and what they have finished."""
        silent = [worker for worker, _ in self._expected or ()]
        for worker in silent:
            self._recall.recall(worker, self._last_number)
        self._recall.settle()
        for worker in silent:
            for job in self._board.occupied(worker):
                self._adopt_seen(worker, job.delivery, job.job_id, job.lease)
        for ended, delivery in self._finished_orphans():
            if ended.worker in silent:
                self._adopt(*ended, delivery)
        self._expected = set()

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
        """Adopt what stands on the board; the same job under another lease is another's."""
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


UNFAIR_SECONDS = 0.02
"""How long a job may wait behind another while some worker is idle."""
BEHIND_SECONDS = 0.25
"""How long a job may wait behind another while none is."""
SETTLES_SECONDS = 0.002


class Recall:
    """The recalls of one cluster."""

    def __init__(self, roster: Roster, flights: Flights, board: Board) -> None:
        self._roster = roster
        self._flights = flights
        self._board = board
        self._since: dict[int, tuple[int, float]] = {}
        """Worker -> through which number, and since when; until it has settled."""

    def recall_all(self) -> None:
        """Recall all unstarted jobs from all workers."""
        for worker in self._roster.links:
            self.recall(worker)

    def recall_late(self) -> None:
        """Recall jobs that wait behind a long job: soon if an idle worker can run them, otherwise
        in time for other clusters."""
        self.take_back()
        now = time.monotonic()
        seconds = UNFAIR_SECONDS if self._roster.is_unfair() else BEHIND_SECONDS
        for worker in self._roster.links:
            if worker not in self._since and self._has_waited(worker, now - seconds):
                self.recall(worker)

    def _has_waited(self, worker: int, since: float) -> bool:
        """Return whether a worker has had an unstarted job since then."""
        oldest = next(iter(self._flights.with_worker(worker).values()), None)
        if oldest is None or oldest.sent_at > since:
            return False
        unstarted = self._unstarted(worker)
        return bool(unstarted) and unstarted[0].sent_at <= since

    def recall_paused(self) -> None:
        """Recall the unstarted jobs of a worker that has some of a paused queue. Those of other
        queues are sent out again."""
        for worker in self._roster.links:
            unstarted = self._unstarted(worker)
            is_paused = any(one.delivery.queue in self._flights.paused for one in unstarted)
            if is_paused and worker not in self._since:
                self.recall(worker)

    def recall(self, worker: int, through: int | None = None) -> None:
        """Forbid a worker to start the jobs sent to it so far."""
        held = self._flights.with_worker(worker)
        through = max([through or 0, *held, self._board.worker(worker, place.RECALLED_THROUGH)])
        if through:
            self._board.set_worker(worker, place.RECALLED_THROUGH, through)
            self._since[worker] = (through, time.monotonic())

    def take_back(self) -> None:
        """After a recall has settled, everything not started by then is ours again."""
        now = time.monotonic()
        for worker, (through, since) in list(self._since.items()):
            if now - since >= SETTLES_SECONDS:
                del self._since[worker]
                for flight in self._unstarted(worker):
                    if flight.number <= through:
                        self._flights.take_back(flight)

    def settle(self) -> None:
        """Wait for the recalls that are under way. It is a moment."""
        if self._since:
            time.sleep(SETTLES_SECONDS)
            self.take_back()

    def has_started(self, worker: int, number: int) -> bool:
        """Return whether a job may have started. True for a worker that has gone, until the
        sentinel reports how it died."""
        link = self._roster.links.get(worker)
        last_started = self._board.worker(worker, place.LAST_STARTED)
        is_there = link and link.incarnation == self._board.worker(worker, place.INCARNATION)
        return not is_there or number <= last_started

    def has_taken_back(self, worker: int, number: int) -> bool:
        """Whether a worker that has this job will leave it, because it was recalled before the job
        began. The slot shows it for a moment even so: look again after that."""
        if number > self._board.worker(worker, place.RECALLED_THROUGH):
            return False
        if self._is_in_slot(worker, number):
            time.sleep(SETTLES_SECONDS)
        return not self._is_in_slot(worker, number) and not any(
            one.delivery == number for one in self._board.finished().values()
        )

    def _is_in_slot(self, worker: int, number: int) -> bool:
        return any(job.delivery == number for job in self._board.occupied(worker))

    def next_look(self, now: float) -> float:
        """Return when a recall may be due or complete, in monotonic seconds."""
        if self._since:
            return now + SETTLES_SECONDS
        if self._roster.is_unfair():
            return now + UNFAIR_SECONDS
        return now + BEHIND_SECONDS if self._roster.is_ahead() else float("inf")

    def _unstarted(self, worker: int) -> list[Flight]:
        held = self._flights.with_worker(worker)
        return [one for number, one in held.items() if not self.has_started(worker, number)]
