"""One node of the Disque stand-in: the states and timers of jobs, without sockets.

Written after the description of the protocol and of its state machine in Disque's README. A job is
`active` (known here, and not to be had), or `queued`. When it is acknowledged, it is gone at once:
acks that wait for nodes that are away are left out, and so are files.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

OTHERS_WAIT_SECONDS = 0.5
"""How much later than the node with the queued job other nodes queue their copy."""


@dataclass
class Job:
    """A job, or a copy of it."""

    id: bytes
    queue: bytes
    body: bytes
    retry: float
    ends: float
    due: float
    holders: set[int] = field(default_factory=set)
    """The ports of the nodes that may have a copy."""
    is_queued: bool = False
    nacks: int = 0
    deliveries: int = 0


class Node:
    """One node.

    Args:
        port: where it is, and by what the others know it.
        tell: sends a message to the nodes with these ports.
    """

    def __init__(self, port: int, tell: Callable[..., None]) -> None:
        self.port = port
        self.id = hashlib.sha1(str(port).encode(), usedforsecurity=False).hexdigest().encode()
        self.jobs: dict[bytes, Job] = {}
        self.queues: dict[bytes, deque[bytes]] = {}
        self._tell = tell
        self._timers: list[tuple[float, bytes]] = []
        self._lead = 0.0

    def now(self) -> float:
        """Return the seconds of a clock that can be advanced."""
        return time.monotonic() + self._lead

    def advance(self, seconds: float, prefix: bytes = b"") -> None:
        """Advance the clock, or only make the jobs of queues with this prefix that much older."""
        if not prefix:
            self._lead += seconds
            return
        for job in [one for one in self.jobs.values() if one.queue.startswith(prefix)]:
            job.due -= seconds
            job.ends -= seconds
            heapq.heappush(self._timers, (job.due, job.id))

    # -- jobs -------------------------------------------------------------------------------------

    def new_job(self, queue: bytes, body: bytes, *, retry: float, ttl: float, delay: float) -> Job:
        """Return a new job."""
        middle = b64encode(os.urandom(18))
        minutes = b"%04x" % min(int(ttl / 60) | 1, 0xFFFF)
        name = b"D-%s-%s-%s" % (self.id[:8], middle, minutes)
        now = self.now()
        return Job(name, queue, body, retry, now + ttl, now + delay, {self.port})

    def keep(self, job: Job) -> None:
        """Store a job, and queue it when it is due."""
        self.jobs[job.id] = job
        if job.due <= self.now() and job.is_queued:
            job.is_queued = False
            self.enqueue(job)
        else:
            heapq.heappush(self._timers, (job.due, job.id))

    def enqueue(self, job: Job, *, first: bool = False) -> None:
        """Queue a job here."""
        if job.is_queued:
            return
        job.is_queued = True
        line = self.queues.setdefault(job.queue, deque())
        line.appendleft(job.id) if first else line.append(job.id)
        self._postpone(job)
        self._tell(job.holders - {self.port}, b"QUEUED", job.id)

    def take(self, queue: bytes, count: int) -> Iterator[Job]:
        """Take jobs out of a queue."""
        line = self.queues.get(queue, deque())
        while line and count > 0:
            job = self.jobs.get(line.popleft())
            if job is None or not job.is_queued:
                continue
            job.is_queued = False
            count -= 1
            yield job

    def deliver(self, queue: bytes, count: int) -> Iterator[Job]:
        """Take jobs out of a queue for a client."""
        for job in self.take(queue, count):
            job.deliveries += 1
            self._postpone(job)
            self._tell(job.holders - {self.port}, b"QUEUED", job.id)
            yield job

    def forget(self, job_id: bytes) -> bool:
        """Delete an acknowledged job, and return whether it was here."""
        return self.jobs.pop(job_id, None) is not None

    def acknowledge(self, job_id: bytes, everybody: Collection[int]) -> bool:
        """Delete a job here and on all nodes with a copy."""
        job = self.jobs.pop(job_id, None)
        self._tell(job.holders - {self.port} if job else everybody, b"ACK", job_id)
        return job is not None

    def work_on(self, job: Job) -> int:
        """Postpone a job that a client works on. Return the seconds."""
        self._postpone(job)
        self._tell(job.holders - {self.port}, b"QUEUED", job.id)
        return int(job.retry)

    def put_off(self, job_id: bytes, port: int) -> None:
        """Postpone a job that the other node has queued or knows to be worked on. If two nodes have
        it queued, one keeps it."""
        job = self.jobs.get(job_id)
        if job is not None and not (job.is_queued and port < self.port):
            job.is_queued = False
            self._postpone(job, OTHERS_WAIT_SECONDS)

    def length(self, queue: bytes) -> int:
        """Return how many queued jobs are here."""
        line = self.queues.get(queue, ())
        return sum(job_id in self.jobs and self.jobs[job_id].is_queued for job_id in line)

    # -- time -------------------------------------------------------------------------------------

    def run_timers(self) -> float:
        """Do what is due. Return the seconds until something else is due."""
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            _, job_id = heapq.heappop(self._timers)
            job = self.jobs.get(job_id)
            if job is None or job.due > now:
                continue
            if job.ends <= now:
                del self.jobs[job_id]
            elif job.is_queued:
                self._postpone(job)
                self._tell(job.holders - {self.port}, b"QUEUED", job.id)
            else:
                self.enqueue(job)
        return self._timers[0][0] - now if self._timers else 1.0

    def _postpone(self, job: Job, extra: float = 0.0) -> None:
        job.due = self.now() + job.retry + extra
        heapq.heappush(self._timers, (job.due, job.id))
