"""The pusher: claims jobs, sends them to workers, extends their leases, and passes reports on to
the monitor. It never blocks: every socket is non-blocking, every call to the broker has a
deadline."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.cluster import board as place
from stoker.cluster.board import Board, is_fenced, lease_clock
from stoker.cluster.channel import Closed, Stream, set_interest, take_stream, watch_instead
from stoker.cluster.crew import PIDS, Death
from stoker.cluster.loops import loop_ages
from stoker.cluster.plan import Plan
from stoker.cluster.process import Child, resident_bytes
from stoker.cluster.wire import Reported, is_recorded, pack_for_monitor
from stoker.jobs.package import sealer_for
from stoker.logs.lines import Chunk
from stoker.models import Cluster
from stoker.signals import tell
from stoker.store.engines.sessions import Patience
from stoker.store.statements import set_deadlines
from stoker.store.written import DatabaseNow

from .claims import Claims, Drain
from .flights import Flight, Flights
from .leases import Adoption
from .requests import ClusterRequests, Requests
from .roster import Recall, Roster

UNRECORDED_BYTES = 32 << 20
"""No more jobs are claimed while the packages of unrecorded jobs have this total length or more."""

MOST_LOGS_BYTES = 4 << 20
"""Log lines of jobs are dropped while more bytes than this wait for the monitor."""


def main(child: Child) -> None:
    pusher = Pusher(child)
    pusher.run()
    pusher.broker.close()


class Pusher:
    """The loop of a cluster's pusher, and its connections to the other processes."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.plan = child.plan
        self.settings = child.plan.settings
        self.board = child.board
        set_deadlines(self.settings, keeps_statements=True)
        self.broker = broker_for(self.settings)
        make_patience = partial(Patience, self.settings, self.broker, self._note_alive)
        self.patience = make_patience()
        """Makes the calls to the broker, and through it to the store."""
        has_two = self.broker.broker is not None and self.broker.store is not None
        self.of_store = make_patience() if has_two else self.patience
        """Makes calls to the store alone. They go on while a broker outside it is away."""
        self.flights = Flights(self.board[place.LAST_DELIVERY])
        self.roster = Roster(self.plan, self.flights, self.board)
        self.recall = Recall(self.roster, self.flights, self.board)
        self.selector = selectors.DefaultSelector()
        self.monitor = MonitorLine(self.selector, self.roster, self.settings.lease_seconds)
        self.requests = Requests(
            self.plan, self.flights, self.recall, self._say, self.monitor.pass_on
        )
        self.of_cluster = self.requests.of_cluster
        self.claims = Claims(
            self.plan, self.broker, self.patience, self.flights, self.board, self.requests
        )
        self.claims.of_store = self.of_store
        self.drain = Drain(self.plan, self.claims, self.board)
        self.roster.note_handed_out = self.claims.note_handed_out
        self.adoption = Adoption(self.flights, self.roster, self.recall, self.board)
        self.heartbeat = Heartbeat(
            self.plan, self.board, self.flights, self.roster, self.of_cluster
        )
        self.wake = self.broker.open_wake()
        self.is_stopping = self.is_over = False
        self._has_said_stopped = False
        self._wake_descriptor: int | None = None
        self._unsettled: dict[tuple[int, int], list[Flight]] = {}
        """Worker and incarnation of dead workers -> flights that their death ended and that are
        not recorded yet."""

    def run(self) -> None:
        self.selector.register(self.child.control, selectors.EVENT_READ, self._read_control)
        self._find_orphans()
        while not self.is_over:
            self._note_alive()
            for key, events in self._sleep():
                key.data(events)
            self._work()
        self._leave()

    def _work(self) -> None:
        """Do everything that may be due, most important first. A failing call delays those after
        it."""
        if self.wake.is_due():
            self._hurry()
            if not len(self.flights):  # no claimed job needs attention first
                self._claim()
        self._extend()
        self.flights.release_late()
        self.claims.release()
        if self.heartbeat.beat_if_due(self.of_store, is_stopping=self.is_stopping):
            self.claims.doubt()
        self.claims.clear_up_doubts()
        self._claim()
        self.requests.look_if_due(self.of_store)
        self.claims.look_ahead()
        self._say_where_we_are()
        self.child.control.flush()

    def _claim(self) -> None:
        """Claim jobs if a claim is due, and send them to workers."""
        if self._may_claim():
            room = self._room()
            self.claims.claim(
                room,
                is_hungry=self.roster.is_hungry() and room >= self.flights.turns.moving,
                prompt_room=self.roster.prompt_room,
                turns=self.roster.turns(),
            )
        self.recall.recall_late()
        if self._may_claim() and not is_fenced(self.board, self.settings):
            self.roster.hand_out()
            self.claims.note_numbers()
        if time.monotonic() >= self.flights.keep_until():
            self.flights.release_unstarted()
        for worker, link in list(self.roster.links.items()):
            if link.has_outgoing:
                self._expect_writing(worker, link)

    def _hurry(self) -> None:
        """Claim soon after a wake-up. While this cluster holds jobs, poll closely, because further
        wake-ups may be merged into this one."""
        self.claims.tempo.hurry(closely=bool(len(self.flights)) or not self.wake.tells_all)

    def _may_claim(self) -> bool:
        return not self.is_stopping and not self.of_cluster.is_quiet

    def _room(self) -> int:
        if self.flights.unrecorded_bytes > UNRECORDED_BYTES:
            return 0
        here = len(self.flights.waiting) + len(self.flights.permitted)
        return self.roster.room() - here - self.flights.turns.moving

    def _extend(self) -> None:
        of_store = None if self.of_store is self.patience else self.of_store
        lost = [
            flight
            for flight in self.claims.leases.extend_due(self.patience, of_store)
            if flight.worker is None or not self.board.is_completing(flight.worker, flight.number)
        ]
        for worker in {flight.worker for flight in lost}:
            if worker is not None:
                self.recall.recall(worker)
        self.recall.settle()
        for flight in lost:
            if flight.worker is not None:
                if not flight.is_revoked:
                    tell("lease_lost", job_id=flight.delivery.job_id)
                flight.is_revoked = True
                if self.recall.has_started(flight.worker, flight.number):
                    self._say("revoked", flight.worker, flight.number)
            if not flight.is_unanswered:
                self.flights.lose(flight)
            elif flight.worker is None:  # otherwise its worker's death, or its report, ends it
                self.flights.withdraw(flight)
        self.claims.leases.move_fence()

    def _find_orphans(self) -> None:
        """Load the leases of the previous pusher, and keep them until the workers have reported
        which jobs they have."""
        if self.child.incarnation > 1:
            held = self.claims.insist_on_held(self._note_alive)
            self.adoption.take(held, lease_clock() - self.settings.lease_seconds / 2)

    def _note_alive(self) -> None:
        self.board[place.PUSHER_BEAT_NS] = time.monotonic_ns()

    # -- the sentinel -----------------------------------------------------------------------------

    def _read_control(self, _events: int) -> None:
        for message, descriptor in self.child.control.receive(block=False):
            match message:
                case ("worker", number, incarnation):
                    self._welcome(number, incarnation, descriptor)
                case ("monitor", _, _):
                    self.monitor.meet(take_stream(descriptor), self.flights.reported())
                case ("expect", workers):
                    self.adoption.expect(workers)
                case ("died", *death):
                    self._settle(Death(*death))
                case ("stop",):
                    self.is_stopping = True
                    self.recall.recall_all()
                case ("exit",):
                    self.is_over = True

    def _settle(self, death: Death) -> None:
        """Handle a worker's death. Its reports count. The outcome of its other jobs depends on
        how it died."""
        link = self.roster.links.get(death.worker)
        if link is not None and link.incarnation == death.incarnation:
            self._read_worker(death.worker)
            self._drop_worker(death.worker)
        self.adoption.settle(death)
        judged, released = self.roster.settle(death)
        self.monitor.pass_on(judged)
        if death.running:
            self._unsettled[death.worker, death.incarnation] = judged + released

    def _say(self, *message: Any) -> None:
        self.child.control.send(*message)

    def _say_where_we_are(self) -> None:
        if not self._may_claim():
            self.recall.take_back()
            self.flights.release_waiting()
        self.monitor.pass_on(self.adoption.close_when_complete())
        for dead, flights in list(self._unsettled.items()):
            if not any(flight.is_open for flight in flights):
                del self._unsettled[dead]
                self._say("settled", *dead)
        is_empty = not len(self.flights) and not self.adoption.is_open
        if self.is_stopping and is_empty and not self._has_said_stopped:
            self._has_said_stopped = True
            self._say("stopped")
        if is_empty and self.drain.check():
            self.requests.look_if_due(self.of_store)
            self.requests.pauses.log_left()
            self._say("drained")

    # -- workers ----------------------------------------------------------------------------------

    def _welcome(self, worker: int, incarnation: int, descriptor: int | None) -> None:
        self._drop_worker(worker)
        stream = self.roster.welcome(worker, incarnation, take_stream(descriptor))
        self.selector.register(stream, selectors.EVENT_READ, partial(self._serve_worker, worker))

    def _serve_worker(self, worker: int, events: int) -> None:
        link = self.roster.links.get(worker)
        if link is not None and events & selectors.EVENT_WRITE:
            self._expect_writing(worker, link)
        if events & selectors.EVENT_READ:
            self._read_worker(worker)

    def _read_worker(self, worker: int) -> None:
        link = self.roster.links.get(worker)
        if link is None:
            return
        try:
            while frames := link.receive(block=False):
                for frame in frames:
                    self._hear_worker(worker, frame)
        except Closed:
            self._drop_worker(worker)

    def _hear_worker(self, worker: int, frame: tuple[Any, ...]) -> None:
        match frame:
            case ("reports", reports):
                self.monitor.pass_on(self.roster.reported(worker, reports))
            case ("logs", chunks):
                self.monitor.pass_on_logs(chunks)
            case ("skipped", numbers):
                self.roster.skipped(worker, numbers)
            case ("hello", jobs):
                reported, stray = self.adoption.hello(worker, jobs)
                self.monitor.pass_on(reported)
                for number in stray:
                    self._say("revoked", worker, number)
                if not self._may_claim():
                    self.recall.recall(worker)
            case ("leaving", running):
                self.roster.mark_leaving(worker, running)

    def _drop_worker(self, worker: int) -> None:
        """Close a worker's socket. Its jobs are settled when the sentinel reports how it died."""
        link = self.roster.links.pop(worker, None)
        if link is not None:
            self.selector.unregister(link)
            link.close()

    def _expect_writing(self, worker: int, link: Stream) -> None:
        try:
            link.flush()
        except Closed:
            self._drop_worker(worker)
            return
        set_interest(self.selector, link)

    # -- sleeping and leaving ---------------------------------------------------------------------

    def _sleep(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Sleep until something arrives or is due. A wake-up source that must be polled is polled
        meanwhile."""
        until = self._awake_at()
        while True:
            wake, longest = self.wake.fileno(), self.wake.max_sleep_seconds
            self._wake_descriptor = watch_instead(self.selector, self._wake_descriptor, wake)
            seconds = max(0.0, until - time.monotonic())
            ready = self.selector.select(seconds if longest is None else min(seconds, longest))
            if ready or longest is None or not seconds:
                return ready
            if self.wake.is_due():
                self._hurry()
                return []

    def _awake_at(self) -> float:
        """Return when the next action is due, in monotonic seconds."""
        of_store = [
            self.claims.leases.next_check,
            self.heartbeat.next_beat,
            self.requests.next_look(),
        ]
        until = [self.flights.permits_end_at(), self.flights.keep_until()]
        if self._may_claim():
            until.append(self.flights.turns.moving_until)  # there may be more room then
        if self.patience.is_waiting:
            until = [self.patience.try_at]
        if self.of_store.is_waiting:
            of_store = [self.of_store.try_at]
        if self._may_claim() and self._room() > 0:
            until.append(self.claims.next_claim)
        until += [self.recall.next_look(time.monotonic()), self.adoption.closes_at]
        return min(*until, *of_store, self.claims.next_release)

    def _leave(self) -> None:
        self.wake.close()
        if self.broker.arrivals is not None:
            self.broker.arrivals.release()
        self.of_store.call(self.heartbeat.sign_off)


class MonitorLine:
    """The pusher's connection to the monitor. It keeps reports until they are recorded, and
    resends them to a new monitor."""

    def __init__(
        self, selector: selectors.BaseSelector, roster: Roster, lease_seconds: float
    ) -> None:
        self._selector = selector
        self._roster = roster
        self._lease_seconds = lease_seconds
        self._stream: Stream | None = None

    def meet(self, stream: Stream, reported: Iterable[Flight]) -> None:
        """Connect to a new monitor, and send it the reports of the given flights."""
        self._drop()
        self._stream = stream
        self._selector.register(stream, selectors.EVENT_READ, self._serve)
        self.pass_on(reported)

    def pass_on(self, flights: Iterable[Flight]) -> None:
        """Send the reports of the given flights to the monitor, if one is connected. ``meet`` sends
        the reports that could not be sent. Outcomes that a worker has recorded itself are sent only
        to be counted."""
        reports: list[Reported] = []
        counted: list[Reported] = []
        for flight in flights:
            report = flight.report
            if report is not None:
                some = counted if is_recorded(report) else reports
                valid_until_ns = int((flight.leased_at + self._lease_seconds) * 1e9)
                job = pack_for_monitor(flight.number, flight.delivery, valid_until_ns)
                some.append((report, job))
        if self._stream is not None and (reports or counted):
            word = "last_reports" if self._roster.are_all_reported else "reports"
            for frame in ((word, reports), ("counted", counted)):
                if frame[1]:
                    self._stream.queue(frame)
            self._serve(selectors.EVENT_WRITE)
        self._roster.recorded(report[0] for report, _ in counted)

    def pass_on_logs(self, chunks: Sequence[Chunk]) -> None:
        """Send the log lines of jobs. Drop them if no monitor is connected or if it is too slow."""
        if self._stream is not None and self._stream.outgoing_bytes < MOST_LOGS_BYTES:
            self._stream.queue(("logs", chunks))
            self._serve(selectors.EVENT_WRITE)

    def _serve(self, events: int) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            if events & selectors.EVENT_READ:
                while frames := stream.receive(block=False):
                    for _, numbers in frames:
                        self._roster.recorded(numbers)
            stream.flush()
        except Closed:
            self._drop()
            return
        set_interest(self._selector, stream)

    def _drop(self) -> None:
        if self._stream is not None:
            self._selector.unregister(self._stream)
            self._stream.close()
            self._stream = None


class Heartbeat:
    """Keeps the row of this cluster in the table of clusters up to date."""

    def __init__(
        self,
        plan: Plan,
        board: Board,
        flights: Flights,
        roster: Roster,
        requests: ClusterRequests,
    ) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._board = board
        self._flights = flights
        self._roster = roster
        self._requests = requests
        self._state = ""
        """The state last written."""
        self.next_beat = 0.0
        """Time of the next heartbeat, in monotonic seconds."""

    def beat_if_due(self, patience: Patience, *, is_stopping: bool) -> bool:
        """Write a heartbeat when one is due or the state has changed. Return whether one was
        written."""
        now = time.monotonic()
        state = Cluster.State.QUIET if self._requests.is_quiet else Cluster.State.RUNNING
        if is_stopping:
            state = Cluster.State.STOPPING
        if now < self.next_beat and state == self._state:
            return False
        if patience.call(lambda: self._write(state)) is None:
            return False
        self.next_beat = now + self._settings.heartbeat_seconds
        self._state = state
        return True

    def sign_off(self) -> None:
        """Delete the row when the cluster has stopped in good order."""
        Cluster.objects.using(self._settings.database).filter(pk=self._plan.cluster_id).delete()

    def _write(self, state: str) -> None:
        clusters = Cluster.objects.using(self._settings.database)
        information = self._information()
        if clusters.beat(self._plan.cluster_id, state, information):
            return
        clusters.create(
            id=self._plan.cluster_id,
            name=self._settings.cluster,
            host=self._plan.host,
            pid=self._plan.pid,
            state=state,
            request=self._requests.standing,
            workers=self._requests.workers,
            heartbeat_us=DatabaseNow(),
            started_at=timezone.now(),
            info=information,
        )

    def _information(self) -> dict[str, Any]:
        return {
            "alias": self._settings.alias,
            "key": sealer_for(self._settings).key_ids[0],
            "queues": list(self._plan.served_queues),
            "board": str(self._board.path),
            "leases": len(self._flights),
            "lease_seconds": self._settings.lease_seconds,
            "loops": loop_ages(self._board),
            "processes": self._processes(),
            "single": self._plan.single,
            "most_workers": self._board[place.WORKERS],
            "workers": self._roster.information(),
        }

    def _processes(self) -> list[dict[str, Any]]:
        """Return the processes of the cluster other than its workers, with their memory."""
        pids = {"sentinel": self._plan.pid}
        if self._plan.single:
            pids["core"] = os.getpid()
        else:
            pids["pusher"] = os.getpid()
            pids |= {role: self._board[index] for role, index in PIDS.items()}
        return [
            {"role": role, "pid": pid, "resident_bytes": resident_bytes(pid)}
            for role, pid in pids.items()
            if pid
        ]
