"""The pusher's record of every lease of this cluster: where its job is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from stoker.brokers.contract import Delivery
from stoker.cluster.board import lease_clock
from stoker.cluster.wire import Report, is_over

from .run_times import PREFETCH_SECONDS
from .turns import KEEP_SECONDS, Turns


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
    """How long it was expected to occupy its worker's slot when it was sent."""
    is_last_try = False
    """Whether it would become a dead letter if its worker died."""
    is_noted = False
    """Whether the broker was told that a worker may start it."""
    report: Report | None = None
    is_open = True
    """False once it is recorded, released or lost."""
    is_locked = False
    """Whether another transaction had locked its lease at the last extension."""
    cancelled_as = 0
    """Its number at the time when its worker was told to end it."""

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
        """Total length of the packages of jobs with an unrecorded report."""
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
        """Send the first ``count`` of these flights to a worker. The numbers that a worker gets
        always rise, so if it has started a number, it has started all lower ones. Flights with a
        permit overtake others, which then get new numbers."""
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
        released instead if its permit ran out, if it was adopted without its package, or if its
        queue is paused."""
        if flight.is_late:
            self._release_late(flight)
            return
        if not flight.delivery.package or flight.delivery.queue in self.paused:
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
        load_seconds, length = self._load_seconds.get(worker, 0.0), 0
        for report in reports:
            flight = held.pop(report[0], None)
            if flight is not None:
                flight.report = report
                length += len(flight.delivery.package)
                load_seconds -= flight.expected_seconds
                if flight.asked_seconds and report[1] is not None:
                    started_seconds_ago = time.time() - report[1]
                    self._note_permit(flight, started_seconds_ago)
                flights.append(flight)
        self._load_seconds[worker] = load_seconds
        self.unrecorded_bytes += length
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
            if flight.delivery.turn is not None:
                for follower in self.turns.leave(flight):
                    self.release(follower)
        return removed

    def release(self, flight: Flight) -> None:
        """Release a flight as soon as the broker is reachable. The attempt does not count."""
        self.remove(flight.number)
        self._hand_in([flight])

    def release_waiting(self) -> None:
        """Release all flights that are not at a worker."""
        for flight in self.turns.followers():
            self.release(flight)
        for waiting in (self.waiting, self.permitted):
            while waiting:
                self.release(waiting.popleft())

    def release_paused(self) -> None:
        """Release the waiting flights whose queue is paused."""
        for flight in self.turns.followers():
            if flight.delivery.queue in self.paused:
                self.release(flight)
        for waiting in (self.waiting, self.permitted):
            for flight in [one for one in waiting if one.delivery.queue in self.paused]:
                waiting.remove(flight)
                self.release(flight)

    def release_late(self) -> None:
        """Release the flights whose permit ran out before a worker was free."""
        for flight in [flight for flight in self.permitted if flight.is_late]:
            self.permitted.remove(flight)
            self._release_late(flight)

    def release_unstarted(self) -> None:
        """Release flights that have waited too long. Those without a worker may find one in another
        cluster. Followers of a turn then wait in the line of their key."""
        before = time.monotonic() - KEEP_SECONDS
        for flight in self.turns.late():
            self.release(flight)
        for flight in [one for one in self.waiting if one.came_at <= before]:
            self.waiting.remove(flight)
            self.to_announce.add(flight.delivery.queue)
            self.release(flight)

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
        for waiting in (self.waiting, self.permitted):
            if flight in waiting:
                waiting.remove(flight)
        self.remove(flight.number)
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
        """Return when the oldest lease was last extended, on the lease clock. Leases locked by
        another transaction are left out, because each of those jobs is stopped separately."""
        return min((flight.leased_at for flight in self if not flight.is_locked), default=None)

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


SHORTEST_PERMIT_SECONDS = 0.02
"""The shortest validity of a permit that a broker supports."""
LONGEST_PERMIT_SECONDS = 1.0
REMEMBERED = 64
PERIOD_SECONDS = 1.0
"""The period of a short rate limit. With a longer one, the time lost on a permit hardly matters."""


class Permits:
    """Chooses how long permits of rate limits are valid, from how the last ones were used. On a
    busy host or database all permits would otherwise run out, and no such job would start."""

    def __init__(self) -> None:
        self._used: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """Return how long the next permits must last, chosen so that the least capacity is lost."""
        if not self._used:
            return SHORTEST_PERMIT_SECONDS
        late_seconds = PERIOD_SECONDS / len(self._used)
        used = enumerate(sorted(self._used, reverse=True))
        _, seconds = min((seconds + late * late_seconds, seconds) for late, seconds in used)
        return min(max(1.1 * seconds, SHORTEST_PERMIT_SECONDS), LONGEST_PERMIT_SECONDS)

    def note(self, asked_seconds: float, left_seconds: float) -> None:
        """Note how much time was left when a job with a permit started; negative = it was late.
        Very late jobs count less, because they had to wait for a long job."""
        self._used.append(min(asked_seconds - left_seconds, 2 * asked_seconds))
