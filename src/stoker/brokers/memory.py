"""The memory broker for tests: packages wait in this process. It implements the contract and
nothing more, so a test that passes with it should pass with any broker."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.models.job import Message
from stoker.store.wake import Wake
from stoker.values.ids import new_lease_id

from .contract import Broker, BrokerJob, Capabilities, ClaimRequest, Delivery, Lease, Return


@dataclass(slots=True)
class _Job:
    message: Message
    package: bytes
    due_at: float
    attempts: int = 0
    crashes: int = 0
    lease_id: str = ""
    holder: UUID | None = None
    leased_until: float = 0.0

    @property
    def job_id(self) -> UUID:
        return self.message.job_id

    @property
    def queue(self) -> str:
        return self.message.queue

    @property
    def priority(self) -> int:
        return self.message.priority

    @property
    def place_in_line(self) -> tuple[int, UUID]:
        """Sort key of waiting jobs. Ids of newer jobs sort later, so that the oldest job comes
        first."""
        return (-self.priority, self.job_id)


class MemoryBroker(Broker):
    """Jobs in dictionaries of one process (``memory://``). Threads may share it.

    Args:
        settings: settings of the backend.
        clock: returns seconds since 1970. A test may pass a clock that it sets by hand.
    """

    capabilities = Capabilities(transactional=False, shared=False)

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        super().__init__(settings)
        self._clock = clock
        self._lock = threading.RLock()
        self._ready: dict[UUID, _Job] = {}
        self._deferred: dict[UUID, _Job] = {}
        self._claimed: dict[UUID, _Job] = {}
        self._wake_ups = 0

    def enqueue(self, messages: Sequence[Message]) -> None:
        jobs = [_job(message) for message in messages]
        with self._lock:
            for job, message in zip(jobs, messages, strict=True):
                if not self._is_here(job.job_id):
                    waiting = self._ready if message.run_after is None else self._deferred
                    waiting[job.job_id] = job

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        with self._lock:
            self._promote_due()
            served = [
                job
                for job in self._ready.values()
                if (not request.queues or job.queue in request.queues)
                and job.queue not in request.passed_over
            ]
            best = heapq.nsmallest(request.limit, served, key=lambda job: job.place_in_line)
            for job in best:
                job.attempts += 1
                self._claimed[job.job_id] = self._ready.pop(job.job_id)
            return self._lease(best, request)

    def extend(self, leases: Sequence[Lease], *, lease_seconds: float) -> set[Lease]:
        with self._lock:
            stale, until = self._stale(leases), self._clock() + lease_seconds
            for lease in set(leases) - stale:
                self._claimed[lease.job_id].leased_until = until
            return stale

    def settle(
        self,
        over: Sequence[Lease] = (),
        again: Sequence[Return] = (),
        *,
        failed: Collection[UUID] = (),
    ) -> set[Lease]:
        with self._lock:
            stale = self._stale([*over, *(back.lease for back in again)])
            for lease in set(over) - stale:
                del self._claimed[lease.job_id]
            for lease, back in {back.lease: back for back in again}.items():
                if lease not in stale:
                    self._let_wait(self._claimed.pop(lease.job_id), back)
            return stale

    def claim_expired(self, request: ClaimRequest) -> list[Delivery]:
        with self._lock:
            now = self._clock()
            over = [job for job in self._claimed.values() if job.leased_until < now]
            oldest = heapq.nsmallest(
                request.limit, over, key=lambda job: (job.leased_until, job.job_id)
            )
            return self._lease(oldest, request)

    def expire_holder(self, holder: UUID) -> int:
        with self._lock:
            held = [job for job in self._held_by(holder) if job.leased_until > 0]
            for job in held:
                job.leased_until = 0.0
            return len(held)

    def held_by(self, holder: UUID, *, packages: bool = True) -> list[Delivery]:
        with self._lock:
            return [_delivery(job) for job in self._held_by(holder)]

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        with self._lock:
            return {
                job_id
                for job_id in job_ids
                if self._ready.pop(job_id, None) or self._deferred.pop(job_id, None)
            }

    def states(self, job_ids: Sequence[UUID]) -> dict[UUID, str]:
        with self._lock:
            return {
                job_id: state
                for job_id in job_ids
                for state, jobs in self._places()
                if job_id in jobs
            }

    def jobs(self, job_ids: Sequence[UUID]) -> dict[UUID, BrokerJob]:
        with self._lock:
            return {
                job_id: BrokerJob(
                    jobs[job_id].package, jobs[job_id].due_at if state == "deferred" else None
                )
                for job_id in job_ids
                for state, jobs in self._places()
                if job_id in jobs
            }

    def sizes(self) -> dict[str, dict[str, int]]:
        sizes: dict[str, dict[str, int]] = {}
        with self._lock:
            for state, jobs in self._places():
                for job in jobs.values():
                    empty = {"ready": 0, "deferred": 0, "blocked": 0, "running": 0}
                    sizes.setdefault(job.queue, empty)[state] += 1
        return sizes

    def waiting_in(self, queue: str) -> Iterator[Sequence[UUID]]:
        job_ids = [message.job_id for message in self.waiting() if message.queue == queue]
        if job_ids:
            yield job_ids

    def info(self) -> dict[str, Any]:
        return {"broker": "memory://", "server": "this process"}

    def wake_up(self, queues: Iterable[str]) -> None:
        with self._lock:
            self._wake_ups += 1

    def open_wake(self) -> Wake:
        return _Counted(lambda: self._wake_ups)

    def next_due_seconds(self, *, rated: bool = True) -> float | None:
        with self._lock:
            first = min((job.due_at for job in self._deferred.values()), default=None)
            return None if first is None else max(0.0, first - self._clock())

    def waiting(self) -> list[Message]:
        """Return the messages of all waiting jobs in the order of their ids, oldest first."""
        with self._lock:
            jobs = [*self._ready.values(), *self._deferred.values()]
            return [job.message for job in sorted(jobs, key=lambda job: job.job_id)]

    def _is_here(self, job_id: UUID) -> bool:
        return any(job_id in jobs for _, jobs in self._places())

    def _places(self) -> Iterator[tuple[str, dict[UUID, _Job]]]:
        yield "ready", self._ready
        yield "deferred", self._deferred
        yield "running", self._claimed

    def _promote_due(self) -> None:
        now = self._clock()
        for job in [job for job in self._deferred.values() if job.due_at <= now]:
            self._ready[job.job_id] = self._deferred.pop(job.job_id)

    def _lease(self, jobs: Sequence[_Job], request: ClaimRequest) -> list[Delivery]:
        lease_id, until = str(new_lease_id()), self._clock() + request.lease_seconds
        for job in jobs:
            job.lease_id, job.holder, job.leased_until = lease_id, request.holder, until
        return [_delivery(job) for job in jobs]

    def _stale(self, leases: Sequence[Lease]) -> set[Lease]:
        return {
            lease
            for lease in leases
            if (job := self._claimed.get(lease.job_id)) is None or job.lease_id != lease.lease_id
        }

    def _let_wait(self, job: _Job, back: Return) -> None:
        job.attempts, job.crashes, job.holder = back.attempts, back.crashes, None
        job.due_at = self._clock() + back.delay_seconds
        waiting = self._deferred if back.delay_seconds > 0 else self._ready
        waiting[job.job_id] = job

    def _held_by(self, holder: UUID) -> list[_Job]:
        return [job for job in self._claimed.values() if job.holder == holder]


class _Counted(Wake):
    """A source of wake-ups that must be polled. It is due if the number of wake-ups has changed
    since the last call."""

    max_sleep_seconds = 0.005

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._seen = count()

    def is_due(self) -> bool:
        before, self._seen = self._seen, self._count()
        return self._seen != before


def _job(message: Message) -> _Job:
    return _Job(message, bytes(message.package), message.run_after or 0.0)


def _delivery(job: _Job) -> Delivery:
    return Delivery(
        job.job_id, job.lease_id, job.package, job.queue, job.priority, job.attempts, job.crashes
    )
