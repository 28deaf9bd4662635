"""The pusher's record of every lease of this cluster: where its job is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from stoker.brokers.contract import Delivery
from stoker.cluster.board import lease_clock
from stoker.cluster.wire import Report, is_over, outcome_bytes

from .estimates import PREFETCH_SECONDS, Permits

KEEP_SECONDS = 0.5
"""How long an unstarted job is kept while no worker here has room for it."""


class Flight:
    """One claimed job, from its claim until its outcome is recorded or it is released."""

    # Defaults are class attributes, because a flight is created for each job.
    permit_ns = 0
    """The latest time at which the job may start, see ``wire``."""
    asked_seconds = 0.0
    """Requested validity of its permit in seconds; 0 = unknown."""
    worker: int | None = None
    sent_at = 0.0
    expected_seconds = PREFETCH_SECONDS
    """Expected time in seconds in the worker's slot, as of the moment when the job was sent."""
    is_last_try = False
    """Whether the job would become a dead letter if its worker died."""
    is_noted = False
    """Whether the broker was told that a worker may start the job."""
    report: Report | None = None
    is_open = True
    """False once the flight is recorded, released or lost."""
    is_unfenced = False
    """Whether the fence leaves its lease out, because that is locked or about to end."""
    is_unanswered = is_revoked = False
    """Whether its lease may end because its lessor is away; whether its worker is to be killed."""
    cancelled_as = 0
    """The flight's number in the last request to cancel the job; 0 = there was none."""

    def __init__(self, number: int, delivery: Delivery, leased_at: float) -> None:
        self.number = number
        self.delivery = delivery
        self.leased_at = leased_at
        self.came_at = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Return whether its permit has run out."""
        return is_over(self.permit_ns)


class Flights:
    """All flights. A flight waits for a worker, is at a worker, or waits for the monitor to
    record its report. Its lease is extended all the time. A flight that does not start while its
    permit is valid is released."""

    def __init__(self, last_number: int) -> None:
        self.last_number = last_number
        self.waiting: deque[Flight] = deque()
        self.permitted: deque[Flight] = deque()
        """Waiting flights that have a permit."""
        self.orphans: dict[UUID, Flight] = {}
        """Leases of the previous pusher, until a worker reports that it has the job."""
        self._all: dict[int, Flight] = {}
        self._with_worker: dict[int, dict[int, Flight]] = {}
        self._load_seconds: dict[int, float] = {}
        """Worker -> expected run time of its jobs."""
        self.to_announce: set[str] = set()
        """Queues for which other clusters are woken after the release of jobs."""
        self._sent_through: dict[int, int] = {}
        """Worker -> number of the last flight sent to it."""
        self._to_release: list[Flight] = []
        self.unrecorded_bytes = 0
        """Total length of the packages and outcomes of jobs with an unrecorded report."""
        self.permits = Permits()
        self.paused: frozenset[str] = frozenset()
        """The paused queues."""
        self.turns = Turns()

    def __len__(self) -> int:
        return len(self._all) + len(self._to_release) + len(self.orphans)

    def __iter__(self) -> Iterator[Flight]:
        yield from self._all.values()
        yield from self._to_release
        yield from self.orphans.values()

    def get(self, number: int) -> Flight | None:
        return self._all.get(number)

    def with_worker(self, worker: int) -> dict[int, Flight]:
        """Return number -> flight of this worker's unreported jobs, oldest first."""
        return self._with_worker.setdefault(worker, {})

    def load_seconds(self, worker: int) -> float:
        """Return the expected run time of all jobs that this worker has."""
        return self._load_seconds.get(worker, 0.0) if self.with_worker(worker) else 0.0

    def add(self, deliveries: Iterable[Delivery], leased_at: float) -> None:
        """Add claimed jobs, which then wait for a worker."""
        flights = [Flight(0, delivery, leased_at) for delivery in deliveries]
        for flight in flights:
            if permit_seconds := flight.delivery.permit_seconds:
                flight.permit_ns = round((leased_at + permit_seconds) * 1e9)
                flight.asked_seconds = self.permits.seconds
        self._number(flights)
        self._line_up([flight for flight in flights if self.turns.begin(flight)])

    def adopt(
        self, number: int, delivery: Delivery, worker: int, leased_at: float, permit_ns: int = 0
    ) -> Flight:
        """Take over a job that the previous pusher had sent to a worker."""
        flight = Flight(number, delivery, leased_at)
        flight.permit_ns = permit_ns
        self._all[number] = flight
        self._join_worker(worker, [flight])
        self.last_number = max(self.last_number, number)
        return flight

    def send(self, worker: int, count: int) -> list[Flight]:
        """Hand up to ``count`` waiting flights without a permit to a worker."""
        return self._send(self.waiting, worker, count)

    def send_permitted(self, worker: int, count: int) -> list[Flight]:
        """Hand up to ``count`` waiting flights with a permit to a worker."""
        return self._send(self.permitted, worker, count)

    def _send(self, waiting: deque[Flight], worker: int, count: int) -> list[Flight]:
        """Send the first ``count`` of these flights to a worker. The numbers that it gets increase:
        if it has started one, it has started all lower ones. So flights that a flight with a permit
        has overtaken get new numbers."""
        chosen = [waiting.popleft() for _ in range(min(count, len(waiting)))]
        if chosen:
            if chosen[0].number < self._sent_through.get(worker, 0):
                for flight in chosen:
                    del self._all[flight.number]
                self._number(chosen)
            self._sent_through[worker] = chosen[-1].number
            self._join_worker(worker, chosen)
        return chosen

    def take_back(self, flight: Flight) -> None:
        """Return an unstarted flight from its worker to the waiting ones, under a new number. It is
        released instead if its permit ran out, if it was adopted without its package, if its queue
        is paused, or if its lease may end."""
        if flight.is_late:
            self._release_late(flight)
            return
        may_not_start = flight.delivery.queue in self.paused or flight.is_unanswered
        if not flight.delivery.package or may_not_start:
            self.release(flight)
            return
        self._leave_worker(flight)
        del self._all[flight.number]
        self._wait([flight])

    def report(self, worker: int, report: Report) -> Flight | None:
        """Store a worker's report in its flight. Return None if that worker does not have the
        flight."""
        return next(iter(self.report_all(worker, [report])), None)

    def report_all(self, worker: int, reports: Iterable[Report]) -> list[Flight]:
        """Store a worker's reports in its flights, and return these flights."""
        held, flights = self.with_worker(worker), []
        load_seconds = self._load_seconds.get(worker, 0.0)
        for report in reports:
            flight = held.pop(report[0], None)
            if flight is not None:
                flight.report = report
                self.unrecorded_bytes += len(flight.delivery.package) + outcome_bytes(report)
                load_seconds -= flight.expected_seconds
                if flight.asked_seconds and report[1] is not None:
                    started_seconds_ago = time.time() - report[1]
                    self._note_permit(flight, started_seconds_ago)
                flights.append(flight)
        self._load_seconds[worker] = load_seconds
        if self.turns:
            self._pass_turns(flights)
        return flights

    def _pass_turns(self, over: Iterable[Flight]) -> None:
        """Let the next flights wait for a worker, since the jobs before them have ended."""
        if following := list(filter(None, map(self.turns.end, over))):
            for flight in following:
                del self._all[flight.number]
            self._wait(following)

    def reported(self) -> list[Flight]:
        return [flight for flight in self._all.values() if flight.report is not None]

    def remove(self, *numbers: int) -> list[Flight]:
        """Remove the flights with these numbers, and return them. Skip unknown numbers."""
        removed = [self._all.pop(number) for number in numbers if number in self._all]
        for flight in removed:
            flight.is_open = False
            if flight.report is None:  # otherwise it was removed from its worker before
                self._leave_worker(flight)
            else:
                self.unrecorded_bytes -= len(flight.delivery.package)
                self.unrecorded_bytes -= outcome_bytes(flight.report)
            if flight.delivery.turn is not None:
                for follower in self.turns.leave(flight):
                    self.release(follower)
        return removed

    def release(self, flight: Flight) -> None:
        """Release a flight as soon as the broker is reachable. The attempt does not count."""
        self.remove(flight.number)
        self._hand_in([flight])

    def withdraw(self, flight: Flight) -> None:
        """Release a flight, wherever it is. Do nothing if it was released before."""
        for waiting in (self.waiting, self.permitted):
            if flight in waiting:
                waiting.remove(flight)
        if self._all.get(flight.number) is flight:
            self.release(flight)

    def release_waiting(self) -> None:
        """Release all flights that are not at a worker."""
        for flight in [*self.turns.followers(), *self.waiting, *self.permitted]:
            self.withdraw(flight)

    def release_paused(self) -> None:
        """Release the waiting flights whose queue is paused."""
        for flight in [*self.turns.followers(), *self.waiting, *self.permitted]:
            if flight.delivery.queue in self.paused:
                self.withdraw(flight)

    def release_late(self) -> None:
        """Release the flights whose permit ran out before a worker was free."""
        for flight in [flight for flight in self.permitted if flight.is_late]:
            self.permitted.remove(flight)
            self._release_late(flight)

    def release_unstarted(self) -> None:
        """Release flights that have waited too long: those without a worker, because another
        cluster may have a free one; and followers of a turn, which then wait for their key in the
        store."""
        before = time.monotonic() - KEEP_SECONDS
        for flight in self.turns.late():
            self.release(flight)
        for flight in [one for one in self.waiting if one.came_at <= before]:
            self.to_announce.add(flight.delivery.queue)
            self.withdraw(flight)

    def keep_until(self) -> float:
        """Return when to release the first waiting flight, in monotonic seconds. The oldest
        flight is the first in the queue, or the last one if it was taken back from a worker."""
        times = [self.turns.keep_until]
        if self.waiting:
            oldest = min(self.waiting[0].came_at, self.waiting[-1].came_at)
            times.append(oldest + KEEP_SECONDS)
        return min(times)

    def permits_end_at(self) -> float:
        """Return when the first permit of a waiting flight runs out, in monotonic seconds."""
        ends_ns = min((flight.permit_ns for flight in self.permitted), default=None)
        if ends_ns is None:
            return float("inf")
        return time.monotonic() + ends_ns / 1e9 - lease_clock()

    def to_release(self) -> list[Flight]:
        """Return the flights to release to the broker."""
        return list(self._to_release)

    def lose(self, flight: Flight) -> None:
        """Forget a flight whose lease another holder has taken over."""
        self.withdraw(flight)
        self.orphans.pop(flight.delivery.job_id, None)
        self.forget_released([flight])

    def forget_released(self, flights: Sequence[Flight]) -> None:
        done = {id(flight) for flight in flights}
        self._to_release = [flight for flight in self._to_release if id(flight) not in done]
        for flight in flights:
            flight.is_open = False

    def release_orphans(self) -> None:
        self._hand_in(self.orphans.values())
        self.orphans.clear()

    def unknown(self, held: Iterable[Delivery]) -> list[Delivery]:
        """Return the deliveries without a flight: the answers to their claims were lost."""
        known = {flight.delivery.lease for flight in self}
        return [one for one in held if one.lease not in known]

    def release_leases(self, deliveries: Iterable[Delivery], leased_at: float) -> None:
        """Release deliveries that have no flight."""
        self._hand_in(Flight(0, one, leased_at) for one in deliveries)

    def oldest_lease(self) -> float | None:
        """Return when the oldest lease was last extended, on the lease clock, without unfenced
        leases: each of those jobs is stopped separately."""
        return min((flight.leased_at for flight in self if not flight.is_unfenced), default=None)

    def _release_late(self, flight: Flight) -> None:
        if flight.asked_seconds:
            self._note_permit(flight)
        self.release(flight)

    def _note_permit(self, flight: Flight, seconds_ago: float = 0.0) -> None:
        left_seconds = flight.permit_ns / 1e9 - lease_clock() + seconds_ago
        self.permits.note(flight.asked_seconds, left_seconds)

    def _hand_in(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            flight.is_open = True
            self._to_release.append(flight)

    def _wait(self, flights: Sequence[Flight]) -> None:
        self._number(flights)
        self._line_up(flights)

    def _line_up(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            (self.permitted if flight.permit_ns else self.waiting).append(flight)

    def _number(self, flights: Iterable[Flight]) -> None:
        for number, flight in enumerate(flights, self.last_number + 1):
            flight.number = self.last_number = number
            self._all[number] = flight

    def _join_worker(self, worker: int, flights: Iterable[Flight]) -> None:
        load_seconds = self.load_seconds(worker)  # starts again at 0 if the worker has no jobs
        held, now = self.with_worker(worker), time.monotonic()
        for flight in flights:
            load_seconds += flight.expected_seconds
            flight.worker = worker
            flight.sent_at = now
            held[flight.number] = flight
        self._load_seconds[worker] = load_seconds

    def _leave_worker(self, flight: Flight) -> None:
        if flight.worker is not None:
            if self.with_worker(flight.worker).pop(flight.number, None) is not None:
                self._load_seconds[flight.worker] -= flight.expected_seconds
            flight.worker = None


FOLLOW_SECONDS = 0.25
"""How long after the start of a turn other jobs may be leased behind it."""
HELD_UP_SECONDS = 0.1
"""How long after their claim, and after the start of a turn, followers count as jobs that will soon
start. After that, the pusher claims jobs of other keys in their place."""
FOLLOWER_SECONDS = 2.0
"""How long a follower is kept, however many turns before it have ended meanwhile."""


class LineOfFlights:
    """The flights of jobs that hold one key."""

    def __init__(self) -> None:
        self.first: Flight | None = None
        """The flight that has the turn."""
        self.followers: deque[Flight] = deque()
        self.ended: set[Flight] = set()
        """Those whose job has ended, until the outcome is recorded."""

    @property
    def may_grow(self) -> bool:
        """Return whether others may be leased behind these."""
        since = time.monotonic() - FOLLOW_SECONDS
        return self.first is None or self.first.came_at >= since

    @property
    def held_up_at(self) -> float:
        """Return when the followers stop counting as jobs that will soon start. There must be at
        least one follower."""
        assert self.first is not None
        return min(self.first.came_at, self.followers[-1].came_at) + HELD_UP_SECONDS

    @property
    def keep_until(self) -> float:
        """Return when to release the first follower. There must be at least one."""
        assert self.first is not None
        has_waited_at = self.followers[0].came_at + FOLLOWER_SECONDS
        return min(self.first.came_at + KEEP_SECONDS, has_waited_at)

    def late(self) -> list[Flight]:
        """Return the followers that have waited too long, behind one job or behind several."""
        assert self.first is not None
        now = time.monotonic()
        if self.first.came_at + KEEP_SECONDS <= now:
            return list(self.followers)
        return [one for one in self.followers if one.came_at + FOLLOWER_SECONDS <= now]


class Turns:
    """The flights of jobs with a lock. This cluster may lease many jobs of one key, in one claim or
    in several. One of them at a time has the turn: it waits for a worker or is at one. The others
    follow it. All of them hold the key, so no other cluster can start a job under it.

    ``came_at`` of a flight is the time when its turn began, or its wait as a follower.
    """

    def __init__(self) -> None:
        self._lines: dict[UUID, LineOfFlights] = {}
        """Key -> its line."""
        self._followed: dict[UUID, LineOfFlights] = {}
        """Key -> its line, if it has followers."""
        self._line_of: dict[UUID, LineOfFlights] = {}
        """Job -> its line."""

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, job_id: object) -> bool:
        """Return whether others may be leased behind this job."""
        line = self._line_of.get(job_id) if isinstance(job_id, UUID) else None
        return line is not None and line.may_grow

    def begin(self, flight: Flight) -> bool:
        """Return whether the flight may wait for a worker. If not, it follows another."""
        key_id = flight.delivery.turn
        if key_id is None:
            return True
        line = self._lines.get(key_id)
        if line is None:
            line = self._lines[key_id] = LineOfFlights()
        self._line_of[flight.delivery.job_id] = line
        if line.first is None:
            line.first = flight
            return True
        line.followers.append(flight)
        self._followed[key_id] = line
        return False

    def end(self, flight: Flight) -> Flight | None:
        """End the turn of a flight whose job has ended. Return the flight whose turn begins."""
        key_id = flight.delivery.turn
        line = None if key_id is None else self._lines.get(key_id)
        if key_id is None or line is None or line.first is not flight:
            return None
        line.ended.add(flight)
        line.first = line.followers.popleft() if line.followers else None
        if line.first is not None:
            line.first.came_at = time.monotonic()
            if not line.followers:
                del self._followed[key_id]
        return line.first

    def leave(self, flight: Flight) -> list[Flight]:
        """Remove a flight. If it had the turn, remove its followers, too, and return them, because
        another cluster may now run its job under the same key."""
        key_id = flight.delivery.turn
        line = None if key_id is None else self._lines.get(key_id)
        if key_id is None or line is None:
            return []
        gone: list[Flight] = []
        if flight in line.ended:
            line.ended.remove(flight)
        elif line.first is flight:
            line.first = None
            gone += line.followers
            line.followers.clear()
        elif flight in line.followers:
            line.followers.remove(flight)
        for one in (flight, *gone):
            self._line_of.pop(one.delivery.job_id, None)
        if not line.followers:
            self._followed.pop(key_id, None)
        if line.first is None and not line.ended:
            del self._lines[key_id]
        return gone

    def followers(self) -> list[Flight]:
        """Return the flights without the turn."""
        return [flight for line in self._followed.values() for flight in line.followers]

    def late(self) -> list[Flight]:
        """Return the followers that have waited too long."""
        return [flight for line in self._followed.values() for flight in line.late()]

    @property
    def keep_until(self) -> float:
        """When to release the first follower, in monotonic seconds."""
        return min((line.keep_until for line in self._followed.values()), default=float("inf"))

    @property
    def moving(self) -> int:
        """The number of followers that are expected to start soon: the last of them was claimed,
        and the turn before them began, within HELD_UP_SECONDS."""
        now = time.monotonic()
        return sum(
            len(line.followers) for line in self._followed.values() if line.held_up_at >= now
        )

    @property
    def moving_until(self) -> float:
        """The time, in monotonic seconds, when ``moving`` decreases if no other turn begins."""
        now = time.monotonic()
        times = (line.held_up_at for line in self._followed.values())
        return min((one for one in times if one >= now), default=float("inf"))
