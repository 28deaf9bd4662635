"""The pusher's workers: how many jobs each may hold, which worker gets which jobs, and which jobs
are taken back.

Short jobs are prefetched so that a worker never waits; the longer the jobs of their tasks take, the
fewer are prefetched, down to none. A job of a task whose run time is not known goes to a free slot
only. Jobs that wait behind one that takes longer than expected are recalled, and
released if no worker here can start them. A job with a rate limit has a permit that soon runs out:
it goes first, to a slot that is free or about to be.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.channel import Stream
from stoker.cluster.crew import Death
from stoker.cluster.plan import Plan
from stoker.cluster.process import resident_bytes
from stoker.cluster.wire import Report, pack_job
from stoker.jobs.outcomes import Cancelled, Crashed, Outcome, TimedOut, pack_outcome
from stoker.jobs.package import sealer_for

from .estimates import PREFETCH_SECONDS, RunTimes
from .flights import Flight, Flights

FRAME_JOBS = 50
PROMPT_SECONDS = 0.01
"""Expected run time of the jobs before a job with a permit. The permit is valid for at least
twice as long."""
LATE_SECONDS = 2 * PREFETCH_SECONDS
"""After this time a sent job should have ended, because only short jobs are sent ahead."""
MOST_TURNS = 100
"""Maximum number of jobs under one lock to claim together."""
SHOWN_JOBS = 20
"""Maximum number of unstarted jobs per worker that a heartbeat lists."""
OUTGOING_LIMIT_BYTES = 8 << 20
LOST_REPORT = "the job had finished, and its worker was gone before the outcome was recorded"


class WorkerLink(Stream):
    """The pusher's connection to one worker."""

    def __init__(self, endpoint: socket.socket, incarnation: int) -> None:
        super().__init__(endpoint)
        self.incarnation = incarnation
        self.has_said_hello = False
        self.is_leaving = False
        self.is_silent = False
        """Whether the worker did not start a job although it had a free slot, like a suspended
        process. The worker gets no jobs until it reports that it has skipped that job."""


class Roster:
    """All workers of one cluster."""

    def __init__(self, plan: Plan, flights: Flights, board: Board) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._flights = flights
        self._board = board
        self.times = RunTimes(sealer_for(plan.settings))
        self.links: dict[int, WorkerLink] = {}
        self.note_handed_out: Callable[[Sequence[Flight]], Sequence[Flight]] = lambda _: ()
        """Called before jobs are sent to workers for their last attempt. Those that it returns are
        not sent."""

    def welcome(self, worker: int, incarnation: int, stream: Stream) -> WorkerLink:
        """Connect to a worker, and tell it which jobs of the previous worker with its number are
        not recorded yet."""
        link = WorkerLink(stream.socket, incarnation)
        self.links[worker] = link
        reported = self._flights.reported()
        if inherited := [flight.number for flight in reported if flight.worker == worker]:
            link.queue(("unrecorded", inherited))
        return link

    # -- how much ---------------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more jobs of average length all workers may hold."""
        return sum(self._room(worker) for worker in self._takers())

    def is_hungry(self) -> bool:
        """Return whether some worker will soon be idle."""
        return not self._flights.waiting and any(map(self._is_low, self._takers()))

    def turns(self) -> int:
        """Return how many jobs under one lock to claim together: as many as are expected to end
        soon, one after another."""
        seconds = max(self.times.mean_seconds, self.times.turn_seconds)
        return max(1, min(int(PREFETCH_SECONDS / seconds), MOST_TURNS))

    def prompt_room(self) -> int:
        """Return how many more jobs can start at once or nearly so. Every worker that will soon be
        idle counts for at least one: otherwise jobs with a rate limit would starve while others
        wait."""
        none_waits = not self._flights.waiting
        room = sum(
            max(self._room(worker, PROMPT_SECONDS), int(none_waits and self._is_low(worker)))
            for worker in self._takers()
        )
        return room - len(self._flights.permitted)

    def hand_out(self) -> None:
        """Queue frames with waiting jobs for the workers with the least work. Before that, tell
        the broker in one call which jobs in their last attempt may start from now on."""
        frames = [*self._permitted_frames(), *self._waiting_frames()]
        self._note([flight for _, flights in frames for flight in flights])
        for worker, flights in frames:
            jobs = [
                pack_job(one.number, one.delivery, one.permit_ns)
                for one in flights
                if one.worker is not None
            ]
            if jobs:
                self.links[worker].queue(("jobs", jobs))

    def _waiting_frames(self) -> Iterator[tuple[int, list[Flight]]]:
        while self._flights.waiting and (takers := self._takers()):
            worker = max(takers, key=self._spare_seconds)
            share = -(-len(self._flights.waiting) // len(takers))
            count = self._fitting(worker, min(share, FRAME_JOBS))
            if not count:
                break
            yield worker, self._flights.send(worker, count)

    def _permitted_frames(self) -> Iterator[tuple[int, list[Flight]]]:
        while self._flights.permitted and (takers := self._takers()):
            worker = max(takers, key=self._spare_seconds)
            if not self._room(worker, PROMPT_SECONDS) and not self._is_low(worker):
                break
            first = self._flights.permitted[0]
            first.expected_seconds, first.is_last_try = self.times.estimate(first.delivery)
            yield worker, self._flights.send_permitted(worker, 1)

    def _fitting(self, worker: int, most: int) -> int:
        """Return how many of the waiting jobs to send to this worker: one for each free slot,
        and more if all its jobs are expected to end soon."""
        held = len(self._held(worker))
        free = self._settings.concurrency - held
        most = min(most, free + self._settings.prefetch)
        spare_seconds, estimate = self._spare_seconds(worker), self.times.estimate
        count = 0
        for flight in islice(self._flights.waiting, max(0, most)):
            flight.expected_seconds, flight.is_last_try = estimate(flight.delivery)
            if count >= free and flight.expected_seconds > spare_seconds:
                break
            spare_seconds -= flight.expected_seconds
            count += 1
        return count

    def _note(self, flights: Iterable[Flight]) -> None:
        """Tell the broker which jobs in their last attempt are being sent. If it is unreachable,
        release these jobs, so that they do not delay others."""
        unnoted = [one for one in flights if one.is_last_try and not one.is_noted]
        left = self.note_handed_out(unnoted) if unnoted else ()
        for flight in unnoted:
            flight.is_noted = flight not in left
        for flight in left:
            self._flights.release(flight)

    def _is_low(self, worker: int) -> bool:
        """Return whether a worker will soon be idle."""
        held = len(self._held(worker))
        return held < max(1, (held + self._room(worker)) // 2)

    def _room(self, worker: int, seconds: float = PREFETCH_SECONDS) -> int:
        """Return how many more jobs a worker may hold: one for each free slot, and more if all
        are expected to take at most this time per slot."""
        free = self._settings.concurrency - len(self._held(worker))
        spare = int(self._spare_seconds(worker, seconds) / self.times.mean_seconds)
        return max(0, free, min(spare, free + self._settings.prefetch))

    def _spare_seconds(self, worker: int, seconds: float = PREFETCH_SECONDS) -> float:
        """Return how much more work a worker may hold. A slot whose job takes longer than expected
        has no room."""
        concurrency = self._settings.concurrency
        load_seconds = self._flights.load_seconds(worker) + PREFETCH_SECONDS * self._late(worker)
        return seconds * concurrency - load_seconds

    def _late(self, worker: int) -> int:
        """Return how many of a worker's slots are busy with jobs that should be over, at most
        all."""
        before = time.monotonic() - LATE_SECONDS
        oldest = islice(self._held(worker).values(), self._settings.concurrency)
        return sum(flight.sent_at <= before for flight in oldest)

    # -- reports ----------------------------------------------------------------------------------

    def reported(self, worker: int, reports: Sequence[Report]) -> list[Flight]:
        """Store reports of a worker. Return the flights that they belong to."""
        flights = self._flights.report_all(worker, reports)
        if len(flights) < len(reports):
            numbers = [report[0] for report in reports]
            if known := [number for number in numbers if self._flights.get(number) is None]:
                self.confirm(worker, known)
        if flights:
            of_turns = [
                flight.report
                for flight in flights
                if flight.delivery.turn is not None and flight.report is not None
            ]
            self.times.note(reports, of_turns)
        return flights

    @property
    def are_all_reported(self) -> bool:
        """Whether no job waits for a worker or is at one, so that no report is to come."""
        waiting = self._flights.waiting or self._flights.permitted
        return not (waiting or any(map(self._held, self.links)))

    def recorded(self, numbers: Iterable[int]) -> None:
        """Remove the flights that the monitor has recorded, and tell their workers."""
        by_worker: dict[int, list[int]] = {}
        for flight in self._flights.remove(*numbers):
            if flight.worker is not None:
                by_worker.setdefault(flight.worker, []).append(flight.number)
        for worker, done in by_worker.items():
            self.confirm(worker, done)

    def confirm(self, worker: int, numbers: Sequence[int]) -> None:
        """Tell a worker that it may drop these reports."""
        link = self.links.get(worker)
        if link is not None:
            link.queue(("recorded", list(numbers)))

    def skipped(self, worker: int, numbers: Iterable[int]) -> None:
        """Record that a worker has skipped recalled jobs."""
        self.links[worker].is_silent = False
        held = self._held(worker)
        for number in numbers:
            if number in held:
                self._flights.take_back(held[number])

    def mark_leaving(self, worker: int, running: Iterable[int]) -> None:
        """Mark a worker as leaving: it starts no more jobs, and exits when its running ones have
        ended."""
        self.links[worker].is_leaving = True
        still_running = set(running)
        for number, flight in list(self._held(worker).items()):
            if number not in still_running:
                self._flights.take_back(flight)

    def settle(self, death: Death) -> tuple[list[Flight], list[Flight]]:
        """Decide the outcome of a dead worker's jobs. Return the flights that got a report, and
        the flights to release because their attempt does not count."""
        running = {number: seconds for number, _, seconds, _ in death.running}
        finished = {ended.delivery for ended in self._board.finished().values()}
        judged, released = [], []
        for number, flight in list(self._held(death.worker).items()):
            outcome = None
            if number in running:
                outcome = _judge(death, number)
            elif number in finished:  # a task may kill its worker shortly after it has returned
                outcome = _crash(death) if death.why == "crash" else Crashed(LOST_REPORT)
            if outcome is not None:
                began = time.time() - running.get(number, 0.0)
                worker_id = self._plan.worker_id(death.worker, death.incarnation)
                self._report(flight, worker_id, began, outcome)
                judged.append(flight)
            elif number in running:
                self._flights.release(flight)
                released.append(flight)
            else:
                self._flights.take_back(flight)
        return judged, released

    def judge_finished(self, flights: Sequence[Flight]) -> list[Flight]:
        """Give these flights a report that says that their outcome was lost: their workers had
        finished them and died. Return the flights."""
        for flight in flights:
            self._report(flight, "", None, Crashed(LOST_REPORT))
            if flight.worker in self.links:
                self.links[flight.worker].queue(("unrecorded", [flight.number]))
        return list(flights)

    def _report(
        self, flight: Flight, worker_id: str, began: float | None, outcome: Outcome
    ) -> None:
        packed = pack_outcome(outcome)
        report = (flight.number, began, time.time(), worker_id, packed, "", None)
        assert flight.worker is not None
        self._flights.report(flight.worker, report)

    def note_unstarted(self, worker: int, count: int) -> None:
        """Record that a worker had not started ``count`` jobs when they were recalled. The caller
        has not taken them back yet."""
        started = len(self._held(worker)) - count
        if worker in self.links and started < self._settings.concurrency:
            self.links[worker].is_silent = True

    def is_unfair(self) -> bool:
        """Return whether a worker has a free slot while jobs wait inside another worker."""
        if self._flights.waiting or len(self.links) < 2:
            return False
        counts = [len(self._held(worker)) for worker in self._takers()]
        return bool(counts) and min(counts) < self._settings.concurrency < max(counts)

    def is_ahead(self) -> bool:
        """Return whether a worker has more jobs than slots."""
        return any(len(self._held(one)) > self._settings.concurrency for one in self.links)

    def information(self) -> list[dict[str, Any]]:
        """Return what each worker is doing, for display."""
        now_ns = time.monotonic_ns()
        pids = {worker: self._board.worker(worker, place.PID) for worker in sorted(self.links)}
        return [
            {
                "number": worker,
                "id": self._plan.worker_id(worker, self.links[worker].incarnation),
                "pid": pid,
                "resident_bytes": resident_bytes(pid) if pid else 0,
                "jobs_done": self._board.worker(worker, place.JOBS_DONE),
                "running": [
                    {"job": str(job.job_id), "seconds": round((now_ns - job.started_ns) / 1e9, 1)}
                    for job in self._board.occupied(worker)
                ],
                "handed_out": self._unstarted(worker),
                "leaving": self.links[worker].is_leaving,
            }
            for worker, pid in pids.items()
        ]

    def _unstarted(self, worker: int) -> list[str]:
        """Return the ids of the first jobs that a worker has not started."""
        last_started = self._board.worker(worker, place.LAST_STARTED)
        unstarted = (
            str(flight.delivery.job_id)
            for number, flight in self._held(worker).items()
            if number > last_started
        )
        return list(islice(unstarted, SHOWN_JOBS))

    def _held(self, worker: int) -> dict[int, Flight]:
        return self._flights.with_worker(worker)

    def _takers(self) -> list[int]:
        return [
            worker
            for worker, link in self.links.items()
            if link.has_said_hello
            and not link.is_leaving
            and not link.is_silent
            and link.outgoing_bytes < OUTGOING_LIMIT_BYTES
        ]


def _judge(death: Death, number: int) -> Outcome | None:
    """Return the outcome for a job that ran in a dead worker; None if the attempt does not
    count."""
    if death.why == "crash":
        return replace(_crash(death), has_begun=number not in death.unbegun)
    if death.why == "timeout" and number == death.blamed:
        return TimedOut("the task was killed: it continued after its time-out", _signal_of(death))
    if death.why == "cancel" and number == death.blamed:
        return Cancelled(death.detail, was_killed=True)
    return None


def _crash(death: Death) -> Crashed:
    exit_code = death.exit_code if death.exit_code >= 0 else None
    return Crashed(death.detail, exit_code, _signal_of(death))


def _signal_of(death: Death) -> int | None:
    return -death.exit_code if death.exit_code < 0 else None


UNFAIR_SECONDS = 0.02
"""How long a job may wait behind another job while some worker is idle."""


BEHIND_SECONDS = 0.25
"""How long a job may wait behind another job while no worker is idle."""


SETTLES_SECONDS = 0.002


class Recall:
    """Recalls jobs that workers have not started."""

    def __init__(self, roster: Roster, flights: Flights, board: Board) -> None:
        self._roster = roster
        self._flights = flights
        self._board = board
        self._since: dict[int, tuple[int, float]] = {}
        """Worker -> highest recalled number and time of the recall, until the recall has
        settled."""

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
        """Recall the unstarted jobs of a worker that holds jobs of a paused queue. Jobs of other
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
        """Take back the unstarted jobs of the recalls that have settled."""
        now = time.monotonic()
        for worker, (through, since) in list(self._since.items()):
            if now - since >= SETTLES_SECONDS:
                del self._since[worker]
                recalled = [one for one in self._unstarted(worker) if one.number <= through]
                if recalled:
                    self._roster.note_unstarted(worker, len(recalled))
                for flight in recalled:
                    self._flights.take_back(flight)

    def settle(self) -> None:
        """Wait until all recalls have settled, which takes a moment."""
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

    def taken_back(self, worker: int, numbers: Collection[int]) -> set[int]:
        """Return which of these jobs a worker will skip, because they were recalled before they
        began. Its slot may still show one for a moment, so call this again later. The list of
        finished jobs is long, so it is read once, and after the slots: a job is listed before its
        slot is vacated."""
        through = self._board.worker(worker, place.RECALLED_THROUGH)
        recalled = {number for number in numbers if number <= through}
        if not recalled:
            return recalled
        if not recalled.isdisjoint(self._in_slots(worker)):
            time.sleep(SETTLES_SECONDS)
        recalled -= self._in_slots(worker)
        return recalled - {one.delivery for one in self._board.finished().values()}

    def _in_slots(self, worker: int) -> set[int]:
        return {job.delivery for job in self._board.occupied(worker)}

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
