"""The contract of a server that brings messages, and no more than that.

Such a server hands a message out again when its time is over, to whoever asks, and takes anybody's
word for it that a message is done with. Nothing in it says who has a job, or that it has ended
before. So its messages are carried into the store (see ``carried``), which does.

A message travels as one line of JSON, which says what the broker must know, and the package.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from stoker.values.ids import derived_job_id

from .contract import Capabilities, Message

if TYPE_CHECKING:
    from stoker.conf import Settings


HEAD_BYTES = 2000
"""What the line before the package takes at most."""
LONGEST_QUEUE, LONGEST_TASK = 100, 255
"""As the store keeps them."""
LAST_SECOND = 253_402_300_799.0
"""Of the year 9999."""


class Parcel(NamedTuple):
    """A message that was received. It comes again, unless it is dropped."""

    message: Message
    receipt: Any
    """By which its transport knows it."""


class Transport(ABC):
    """One server that brings messages. Methods may raise BrokerUnavailable: try again then."""

    capabilities: Capabilities = Capabilities()
    """Its largest package and its longest delay, and whether it keeps priorities apart."""
    wait_seconds: float = 2.0
    """How long one request of a cluster that sleeps waits: a queue may have come into being
    meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.parcel_seconds = max(1.0, settings.lease_seconds)
        """How long after it was received a message comes again."""

    def another(self) -> Self:
        """One with connections of its own, for another thread."""
        return type(self)(self.settings)

    def takes(self, message: Message) -> bool:
        """Whether it does everything for this job that is asked for."""
        return self.capabilities.allow(message)

    @abstractmethod
    def send(self, messages: Sequence[Message]) -> None:
        """Send each once. Raises after some of them were sent, too."""

    @abstractmethod
    def receive(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        passed_over: Collection[str] = (),
        wait_seconds: float = 0.0,
    ) -> list[Parcel]:
        """Receive up to so many that are due, of these queues or of all, but of none of
        ``passed_over``. Waits up to so long for the first."""

    @abstractmethod
    def hold(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Let these come again later than they would. Returns those that were not given to others
        meanwhile, as far as the server knows that, with the receipts that count from now on."""

    @abstractmethod
    def drop(self, parcels: Sequence[Parcel]) -> None:
        """Let these not come again: the store has their jobs."""

    @abstractmethod
    def give_back(self, parcels: Sequence[Parcel]) -> None:
        """Let these come again at once. Best effort: must not raise."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Queue -> about how many messages it has; those that are not due may be left out."""

    @abstractmethod
    def purge(self, queue: str) -> int:
        """Drop every message of a queue. Returns about how many."""

    @abstractmethod
    def ping(self) -> None:
        """Raises BrokerUnavailable when the server does not answer."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """What it is, for screens: ``{"broker": ..., "server": ...}``."""

    def weaknesses(self) -> list[str]:
        """As that of a broker."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Give connections back; the next call opens new ones."""


def as_body(message: Message) -> bytes:
    """The bytes by which a message travels."""
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
    """The message that travelled as these bytes. What nobody can read becomes a job with the bytes
    as its package, which will be a dead letter that says so; the same one each time it comes.

    Args:
        queue: where it was found.
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
    """One that the store refuses would be received again and again, and others with it. Raises
    ValueError for names with halves of characters, which no database takes."""
    (message.queue + message.task).encode()
    moments = [message.enqueued_at]
    if message.run_after is not None:
        moments.append(message.run_after)
    return (
        0 < len(message.queue) <= LONGEST_QUEUE
        and len(message.task) <= LONGEST_TASK
        and "\0" not in message.queue + message.task
        and type(message.priority) is int
        and -(2**15) < message.priority < 2**15
        and all(type(one) in (int, float) and 0 <= one < LAST_SECOND for one in moments)
    )


BANDS = ("high", "usual", "low")


class Line(NamedTuple):
    """One line."""

    band: str
    queue: str


def band_of(priority: int) -> str:
    if not priority:
        return BANDS[1]
    return BANDS[0] if priority > 0 else BANDS[2]


def lines_of(queues: Iterable[str]) -> list[Line]:
    """Every line that these queues may have."""
    return [Line(band, queue) for queue in dict.fromkeys(queues) for band in BANDS]


def in_turn(lines: Collection[Line], turn: int) -> Iterator[Line]:
    """Urgent ones first; of equally urgent ones another one first each time."""
    urgent_first = sorted(lines, key=lambda line: (BANDS.index(line.band), line.queue))
    for _, some in itertools.groupby(urgent_first, key=lambda line: line.band):
        alike = list(some)
        start = turn % len(alike)
        yield from alike[start:] + alike[:start]
