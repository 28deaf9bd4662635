"""Amazon SQS: standard and FIFO queues, ten messages per request.

A message is deleted when the store has its job (see ``arrivals``). SQS has no look-up and no
fencing, sometimes delivers a message twice, and drops a message after 14 days or after the number
of deliveries that the queue's redrive policy allows. So SQS only carries jobs to the store; running
jobs are never kept in it.
"""

from __future__ import annotations

import math
import threading
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, Self
from uuid import NAMESPACE_URL, uuid5

from stoker.brokers.contract import Capabilities
from stoker.brokers.transport import HEAD_BYTES, Parcel, Transport, as_body, as_message
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models.job import Message
from stoker.models.need import Need, NewNeed
from stoker.signals import tell

from .queues import AT_ONCE, CONNECTIONS, FIFO, LONGEST_WAIT_SECONDS, QueueRefused, Queues

LONGEST_DELAY_SECONDS = 900
BATCH_BYTES = 1 << 18
"""Bytes of all messages in one request, unless a single message may be larger than that."""
LONGEST_HIDDEN_SECONDS = 43_200
LONGEST_GROUP = 128
PURGE_SECONDS = 60.0
NAMES_SECONDS = 10.0
"""How long a list of queue names is used when all queues are served."""


Load = list[dict[str, Any]]
"""The entries of one request that sends messages."""


class Receipt(NamedTuple):
    """Identifies a received message, to hide, show or delete it."""

    name: str
    """SQS name of the queue."""
    handle: str


class SqsTransport(Transport):
    """Send and receive messages through the SQS queues of one prefix.

    Raises:
        ConfigurationError: the URL cannot be used.
    """

    wait_seconds = float(LONGEST_WAIT_SECONDS)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._queues = Queues(settings)
        self.address = self._queues.address
        most = (self.address.max_message_bytes * 3) // 4 - HEAD_BYTES
        self.capabilities = Capabilities(
            priority=False,
            look_up=False,
            max_payload_bytes=most,
            max_delay_seconds=LONGEST_DELAY_SECONDS,
        )
        self.parcel_seconds = min(self.parcel_seconds, LONGEST_HIDDEN_SECONDS)
        self._turn = 0
        self._shown = {self.address.name_of(queue): queue for queue in settings.queues}
        """SQS name -> Stoker queue, for the queues that the settings name."""
        self._names: list[str] = []
        self._names_until = 0.0
        self._polls = Polls(self._receive, self.release, AT_ONCE)
        self.refused: set[str] = set()

    def another(self) -> Self:
        """Return a transport for another thread. Together they report a refused queue once."""
        other = super().another()
        other.refused = self.refused
        return other

    def takes(self, message: Message) -> bool:
        """Refuse jobs with a priority: they wait in the store and need no queues of their own.
        Refuse a delay in a FIFO queue, because SQS cannot delay a single message there."""
        has_no_delays = self.address.is_fifo(message.queue)
        if message.priority or (has_no_delays and message.run_after is not None):
            return False
        return super().takes(message)

    # -- in ---------------------------------------------------------------------------------------

    def send(self, messages: Sequence[Message]) -> None:
        """Send the loads of messages in parallel, but those of a FIFO queue one after another."""
        apart: list[tuple[str, list[Load]]] = []
        in_order: dict[str, list[Load]] = {}
        for name, load in self._loads(messages):
            if name.endswith(FIFO) and self.address.groups != "job":
                in_order.setdefault(name, []).append(load)
            else:
                apart.append((name, [load]))
        self._queues.together(self._send_in_order, [*apart, *in_order.items()])

    def _send_in_order(self, name: str, loads: Sequence[Load]) -> None:
        """Send the loads to a queue, and stop at the first failure: later jobs of a FIFO queue must
        not come before those that were not sent."""
        for load in loads:
            self._queues.send(name, load)

    def _loads(self, messages: Sequence[Message]) -> Iterator[tuple[str, Load]]:
        """Yield the messages of each request, with the name of their queue."""
        most_bytes = max(BATCH_BYTES, self.address.max_message_bytes)
        open_loads: dict[str, tuple[Load, int]] = {}
        for message in messages:
            name, entry = self.address.name_of(message.queue), self._entry(message)
            size = len(entry["MessageBody"])
            load, load_bytes = open_loads.get(name, ([], 0))
            if load and (len(load) == AT_ONCE or load_bytes + size > most_bytes):
                yield name, load
                load, load_bytes = [], 0
            load.append({"Id": str(len(load)), **entry})
            open_loads[name] = (load, load_bytes + size)
        for name, (load, _) in open_loads.items():
            yield name, load

    def _entry(self, message: Message) -> dict[str, Any]:
        entry: dict[str, Any] = {"MessageBody": b64encode(as_body(message)).decode()}
        if self.address.is_fifo(message.queue):
            groups = {"queue": "queue", "task": _group(message.task), "job": message.job_id.hex}
            entry["MessageGroupId"] = groups[self.address.groups]
            entry["MessageDeduplicationId"] = message.job_id.hex
        elif message.run_after is not None:
            delay_seconds = math.ceil(message.run_after - time.time())
            entry["DelaySeconds"] = min(max(0, delay_seconds), LONGEST_DELAY_SECONDS)
        return entry

    # -- out --------------------------------------------------------------------------------------

    def receive(
        self, queues: Sequence[str], limit: int, *, wait_seconds: float = 0.0
    ) -> list[Parcel]:
        """Receive with several requests in parallel, and double their number in each round. If the
        requests for some queues fail, return the messages of the others.

        Raises:
            BrokerUnavailable: no queue has messages, and SQS refuses all of them or does not answer
                some requests.
        """
        left = self._served(queues)
        names = tuple(left)
        if left:  # begin with another queue each time, because only some are asked at once
            self._turn = (self._turn + 1) % len(left)
            left = left[self._turn :] + left[: self._turn]
        if wait_seconds:
            # Polls under way go on after a wait that ends to list new queues.
            seconds = wait_seconds if queues else min(wait_seconds, NAMES_SECONDS)
            if limit <= 0:
                return []
            return self._checked(names, *self._polls.wait(left, seconds, wait_seconds))
        parcels: list[Parcel] = []
        failures: dict[str, BaseException] = {}
        width = 1
        until = time.monotonic() + self.settings.database_seconds
        while left and (wanted := limit - len(parcels)) > 0 and time.monotonic() < until:
            askers = min(max(width, len(left)), math.ceil(wanted / AT_ONCE), CONNECTIONS)
            calls = [
                (left[place % len(left)], min(AT_ONCE, math.ceil(wanted / askers)))
                for place in range(askers)
            ]
            answers = self._queues.ended(self._receive, calls)
            for (name, _), answer in zip(calls, answers, strict=True):
                if error := answer.exception():
                    failures[name] = error
                found = [] if error else answer.result()
                parcels += found
                if not found and name in left:
                    left.remove(name)
            width *= 2
        return self._checked(names, parcels, failures)

    def _checked(
        self, names: Sequence[str], parcels: list[Parcel], failures: Mapping[str, BaseException]
    ) -> list[Parcel]:
        """Return the messages. If SQS refuses only some of the queues, report each refused queue
        once, until it is served again. Raise any other failure if there are no messages."""
        refusals = {name: one for name, one in failures.items() if isinstance(one, QueueRefused)}
        serves_some = len(refusals) == len(failures) < len(names)
        if failures and not parcels and not serves_some:
            raise min(failures.values(), key=lambda one: isinstance(one, QueueRefused))
        self.refused.intersection_update(names)
        for name, refusal in refusals.items():
            if name not in self.refused:
                self.refused.add(name)
                tell("queue_refused", error=str(refusal))
        return parcels

    def _receive(self, name: str, count: int, wait_seconds: float = 0.0) -> list[Parcel]:
        queue = self._queue_of(name)
        found = self._queues.receive(
            name, count, hidden_seconds=round(self.parcel_seconds), wait_seconds=round(wait_seconds)
        )
        self.refused.discard(name)
        return [
            Parcel(self._opened(one, name, queue), Receipt(name, one["ReceiptHandle"]))
            for one in found
        ]

    def _opened(self, received: dict[str, Any], name: str, queue: str) -> Message:
        body: str = received["Body"]
        try:
            message = as_message(b64decode(body, validate=True), queue)
        # the package cannot be opened later, and becomes a dead letter that says so
        except (Base64Error, ValueError):
            message = as_message(body.encode(errors="replace"), queue)
        group = received.get("Attributes", {}).get("MessageGroupId")
        if group is None or self.address.groups == "job":
            return message
        return replace(message, needs=(_turn_in(f"{name}/{group}"),))

    def extend(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        return list(self._hidden_for(parcels, round(self.parcel_seconds)))

    def release(self, parcels: Sequence[Parcel]) -> None:
        with suppress(BrokerUnavailable):
            list(self._hidden_for(parcels, 0))

    def _hidden_for(self, parcels: Sequence[Parcel], seconds: int) -> Iterator[Parcel]:
        """Hide the messages for ``seconds`` from now. Yield the hidden ones."""
        for name, some in _by_queue(parcels):
            handles = [parcel.receipt.handle for parcel in some]
            failed = self._queues.hide(name, handles, seconds)
            yield from (parcel for place, parcel in enumerate(some) if place not in failed)

    def drop(self, parcels: Sequence[Parcel]) -> None:
        calls = [
            (name, [parcel.receipt.handle for parcel in some]) for name, some in _by_queue(parcels)
        ]
        self._queues.together(self._queues.delete, calls)

    def _served(self, queues: Sequence[str]) -> list[str]:
        """Return the SQS names of the queues that a claim serves."""
        if queues:
            return list(dict.fromkeys(map(self.address.name_of, queues)))
        if time.monotonic() >= self._names_until:
            self._names = self._queues.names()
            self._names_until = time.monotonic() + NAMES_SECONDS
        return list(self._names)

    # -- looking ----------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return SQS's approximate counts. Messages that a cluster has received but not deleted are
        included. Leave out queues that SQS refuses to describe, unless it refuses all of them."""
        counts: dict[str, int] = {}
        refusal: QueueRefused | None = None
        for name in self._queues.names():
            try:
                counts[self._queue_of(name)] = self._queues.count(name, "", "NotVisible")
            except QueueRefused as error:
                refusal = error
        if refusal is not None and not counts:
            raise refusal
        return counts

    def count(self, queue: str) -> int:
        name = self.address.name_of(queue)
        if name not in self._queues.names():
            return 0
        return self._queues.count(name, "", "NotVisible")

    def purge(self, queue: str) -> int:
        """Receive and delete messages until SQS has no more, for at most ``PURGE_SECONDS``. Delayed
        ones stay. PurgeQueue would delete them, but also jobs that are sent a minute later."""
        name = self.address.name_of(queue)
        until = time.monotonic() + PURGE_SECONDS
        count = 0
        while time.monotonic() < until:
            parcels = self.receive([queue], AT_ONCE * CONNECTIONS)
            # Only a request that waits asks all servers of SQS.
            parcels = parcels or self._receive(name, AT_ONCE, 1.0)
            if not parcels:
                break
            self.drop(parcels)
            count += len(parcels)
        return count

    def _queue_of(self, name: str) -> str:
        return self._shown.get(name) or self.address.queue_of(name)

    def ping(self) -> None:
        self._queues.ping()

    def info(self) -> dict[str, Any]:
        return {"broker": self._queues.shown, "server": "Amazon SQS"}

    def weaknesses(self) -> list[str]:
        found: list[str] = []
        for name in self._queues.names():
            try:
                found += self._queues.weaknesses(name)
            except QueueRefused as error:
                found.append(str(error))
        return found

    def close(self) -> None:
        self._queues.close()


def _by_queue(parcels: Iterable[Parcel]) -> Iterator[tuple[str, list[Parcel]]]:
    """Group the parcels by queue and yield them in batches of one request each."""
    loads: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        load = loads.setdefault(parcel.receipt.name, [])
        load.append(parcel)
        if len(load) == AT_ONCE:
            yield parcel.receipt.name, loads.pop(parcel.receipt.name)
    yield from loads.items()


def _group(task: str) -> str:
    """Return a message group id for the task. SQS limits its length and characters, so other names
    are hashed."""
    is_fit = task.isascii() and task.isprintable() and 0 < len(task) <= LONGEST_GROUP
    return task if is_fit else sha256(task.encode()).hexdigest()


def _turn_in(group: str) -> NewNeed:
    """Return a sequence (a guard in the store) that keeps the order of a FIFO group."""
    key_id = uuid5(NAMESPACE_URL, f"sqs:{group}")
    return NewNeed(key_id, Need.Kind.SEQUENCE.value, f"FIFO group {group}"[:255])


class Polls:
    """Long polls with one thread per queue.

    The first poll that receives messages ends the wait. The other polls go on and serve the next
    wait. Messages that arrive while no claim waits are released to the queue.

    Args:
        receive: receives up to a number of messages from one queue, waiting up to a number of
            seconds.
        release: makes received messages visible to other receivers again.
    """

    def __init__(
        self,
        receive: Callable[[str, int, float], list[Parcel]],
        release: Callable[[Sequence[Parcel]], None],
        at_once: int,
    ) -> None:
        self._receive = receive
        self._release = release
        self._at_once = at_once
        self._turn = threading.Condition()
        self._under_way: set[str] = set()
        self._brought: list[Parcel] = []
        self._failures: dict[str, Exception] = {}
        """Errors by queue. A queue that failed is not polled again during the same wait."""
        self._is_waiting = False

    def wait(
        self, names: Sequence[str], seconds: float, poll_seconds: float
    ) -> tuple[list[Parcel], dict[str, Exception]]:
        """Wait until a poll receives messages or all polls have failed, but not longer than
        ``seconds``. Return the messages, and the errors by queue.

        Args:
            names: SQS names of the queues.
            seconds: the longest wait.
            poll_seconds: how long a poll waits that this starts.
        """
        until = time.monotonic() + seconds
        with self._turn:
            self._is_waiting = True
            self._failures = {}
            try:
                while not self._brought and time.monotonic() < until:
                    working = set(names) - self._failures.keys()
                    if names and not working:
                        break
                    for name in working - self._under_way:
                        arguments = (name, poll_seconds)
                        threading.Thread(target=self._poll, args=arguments, daemon=True).start()
                        self._under_way.add(name)
                    self._turn.wait(max(0.0, until - time.monotonic()))
            finally:
                self._is_waiting = False
            brought, self._brought = self._brought, []
            return brought, self._failures

    def _poll(self, name: str, seconds: float) -> None:
        parcels: list[Parcel] = []
        failures: dict[str, Exception] = {}
        try:
            parcels = self._receive(name, self._at_once, seconds)
        except Exception as error:  # noqa: BLE001 - returned by wait()
            failures[name] = error
        with self._turn:
            self._under_way.discard(name)
            if self._is_waiting:
                self._failures |= failures
                self._brought += parcels
                parcels = []
                self._turn.notify()
        if parcels:
            self._release(parcels)
