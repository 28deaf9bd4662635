"""The contract of a server that only transports messages (SQS, Disque, IronMQ).

Such a server hands out a message again when its time-out is over, and lets any client delete it. It
does not record which cluster runs a job, or that a job has ended. So its messages are moved into
the store, which does (see ``arrivals``).

A message's body is one line of JSON with the fields that the broker needs, followed by the package.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from stoker.models.job import Message
from stoker.setting_values import is_queue_name
from stoker.values.ids import derived_job_id
from stoker.values.marks import FIRST_YEAR, LAST_YEAR

from .contract import Capabilities

if TYPE_CHECKING:
    from stoker.conf import Settings


HEAD_BYTES = 2000
"""Upper limit for the line of JSON before the package, in bytes."""
LONGEST_TASK = 255
"""Limits of the store's columns, in characters."""
FIRST_SECOND = datetime(FIRST_YEAR - 1, 12, 31, tzinfo=UTC).timestamp()
LAST_SECOND = datetime(LAST_YEAR + 1, 1, 2, tzinfo=UTC).timestamp()
"""The start times that an enqueue accepts, in every time zone."""


class Parcel(NamedTuple):
    """A received message. The server hands it out again unless it is dropped."""

    message: Message
    receipt: Any
    """Identifies the message for its transport."""


class Transport(ABC):
    """A connection to a server that transports messages.

    Every method may raise BrokerUnavailable; the caller may then try again.
    """

    capabilities: Capabilities = Capabilities()
    """Largest package, longest delay, and whether priorities are supported."""
    wait_seconds: float = 2.0
    """How long one request waits for messages. It is short, because the request does not wait for
    queues that are created after its start."""
    refused: Collection[str] = ()
    """Queues from which the server refuses to deliver messages, while it serves others."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.parcel_seconds = max(1.0, settings.lease_seconds)
        """How long a received message stays hidden from other receivers."""

    def another(self) -> Self:
        """Return a transport with connections of its own, for use in another thread."""
        return type(self)(self.settings)

    def takes(self, message: Message) -> bool:
        """Return whether the server supports everything that this job asks for."""
        return self.capabilities.allow(message)

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Send each message once. If this raises, some messages may have been sent."""

    @abstractmethod
    def receive(
        self, queues: Sequence[str], limit: int, *, wait_seconds: float = 0.0
    ) -> list[Parcel]:
        """Receive up to ``limit`` due messages of the given queues. If no queue is given, receive
        from all queues. Wait up to ``wait_seconds`` for the first message."""

    @abstractmethod
    def extend(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Hide the messages for another ``parcel_seconds``. Return them with their new receipts,
        without messages that another receiver has got meanwhile, as far as the server knows."""

    @abstractmethod
    def drop(self, parcels: Sequence[Parcel]) -> None:
        """Delete the messages, because the store has their jobs."""

    @abstractmethod
    def release(self, parcels: Sequence[Parcel]) -> None:
        """Make the messages visible to other receivers at once. Best effort: must not raise."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the approximate number of messages by queue. Messages that are not due may be left
        out."""

    def count(self, queue: str) -> int:
        """Return the approximate number of messages of one queue."""
        return self.counts().get(queue, 0)

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Delete every message of a queue. Return their approximate number."""

    @abstractmethod
    def ping(self) -> None:
        """Raise BrokerUnavailable if the server does not answer."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return the broker's address and the server's version for screens: ``{"broker": ...,
        "server": ...}``."""

    def weaknesses(self) -> list[str]:
        """Return a sentence for each setting of the server that may lose jobs."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Close the connections. The next call opens new ones."""


def as_body(message: Message) -> bytes:
    """Return the bytes of a message's body."""
    head = [
        message.job_id.hex,
        message.task,
        message.queue,
        message.priority,
        message.enqueued_at,
        message.run_after,
    ]
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + message.package


def as_message(body: bytes, queue: str) -> Message:
    """Parse the body of a message.

    If it cannot be parsed, return a job whose package is the whole body. It becomes a dead letter
    that says so. The job's id is derived from the body, so that the same body gives the same job
    each time.

    Args:
        queue: the queue where the message was found.
    """
    head, _, package = body.partition(b"\n")
    try:
        job_id, task, own_queue, priority, enqueued_at, run_after = json.loads(head)
        message = Message(
            job_id=UUID(hex=job_id),
            task=task,
            queue=own_queue,
            priority=priority,
            package=package,
            run_after=run_after,
            enqueued_at=enqueued_at,
        )
        if _can_be_stored(message):
            return message
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    bits = int.from_bytes(hashlib.sha256(body).digest()[:8], "big")
    return Message(derived_job_id(0.0, bits), "", queue, 0, body, enqueued_at=time.time())


def _can_be_stored(message: Message) -> bool:
    """Return whether the store's columns can hold the message. A message that the store refused
    would be received again and again, and would block others.

    Raises:
        ValueError: a name contains unpaired surrogates, which no database stores.
    """
    (message.queue + message.task).encode()
    enqueued_at, run_after = message.enqueued_at, message.run_after
    moments = [enqueued_at] if run_after is None else [enqueued_at, run_after]
    return (
        is_queue_name(message.queue)
        and len(message.task) <= LONGEST_TASK
        and "\0" not in message.task
        and type(message.priority) is int
        and -(2**15) < message.priority < 2**15
        and all(type(one) in (int, float) for one in moments)
        and enqueued_at >= 0
        and all(FIRST_SECOND <= one < LAST_SECOND for one in moments)
    )


BANDS = ("high", "usual", "low")


class Line(NamedTuple):
    """A queue on the server: it holds the jobs of one Stoker queue with the priorities of one
    band."""

    band: str
    queue: str


def band_of(priority: int) -> str:
    if not priority:
        return BANDS[1]
    return BANDS[0] if priority > 0 else BANDS[2]


def lines_of(queues: Iterable[str]) -> list[Line]:
    """Return the lines of the given queues: one per queue and priority band."""
    return [Line(band, queue) for queue in dict.fromkeys(queues) for band in BANDS]


def warnings_of_name(cluster: str, separator: str) -> list[str]:
    """Return a warning if the lines of this cluster look like lines of a cluster with a shorter
    name.

    Args:
        cluster: the option ``CLUSTER``.
        separator: what stands between cluster, band and queue in the name of a line.
    """
    parts = cluster.split(separator)
    for place, part in enumerate(parts):
        if place and part in BANDS:
            shorter = separator.join(parts[:place])
            sentence = (
                f"A cluster with the CLUSTER {shorter!r} at the same server takes the jobs of "
                f"{cluster!r} if it serves every queue. Choose a CLUSTER without "
                f"'{separator}{part}'."
            )
            return [sentence]
    return []


def in_turn(lines: Collection[Line], turn: int) -> Iterator[Line]:
    """Yield the lines, most urgent band first. Rotate the lines within a band by ``turn``."""
    urgent_first = sorted(lines, key=lambda line: (BANDS.index(line.band), line.queue))
    for _, some in itertools.groupby(urgent_first, key=lambda line: line.band):
        alike = list(some)
        start = turn % len(alike)
        yield from alike[start:] + alike[:start]
