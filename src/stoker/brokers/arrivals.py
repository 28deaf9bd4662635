"""Move jobs from a message server (``transport``) into the store.

::

    receive             the server delivers these messages again unless they are dropped
    BEGIN
        note            record their ids; ids that are recorded already are left out
        enqueue         in the store
    COMMIT              from now on the jobs are the store's
    drop                if this fails, the messages are delivered again and recognised
    claim               from the store

So the store grants every lease, and the server's receipts need not protect running jobs: see
decision 0026.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from traceback import format_exception
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, DataError, IntegrityError, transaction

from stoker.brokers.orm.broker import OrmBroker
from stoker.exceptions import BrokerUnavailable, PackageTooLarge, RowsLocked, StokerError
from stoker.models import Job, Relayed
from stoker.models.job import Message
from stoker.models.outbox import RELAYED_SECONDS
from stoker.setting_values import LONGEST_QUEUE
from stoker.signals import tell
from stoker.store.engines.sessions import explained
from stoker.store.statements import deciding, with_keys
from stoker.store.transactions import is_text_refused
from stoker.store.wake import PipeWake, Wake
from stoker.values.ids import seconds_of

from .contract import ClaimRequest, Delivery
from .transport import LONGEST_TASK, Parcel, Transport

MOST_AT_ONCE = 100
"""Maximum number of messages that are moved to the store at once, unless a claim asks for more."""
RELAY_SECONDS = 1.0
"""Longest time between two requests to the server while the store has enough jobs. Otherwise long
jobs in the store would delay the jobs on the server, because the store empties slowly."""
TRIES = 3


class Arrivals:
    """Move jobs from a message server into the store when a claim needs them.

    Args:
        transport: the message server.
        store: where the jobs are moved to.
    """

    relay_batch = 100  # the transport may need several requests for them, and each may fail

    def __init__(self, transport: Transport, store: OrmBroker) -> None:
        self.transport = transport
        self.capabilities = replace(transport.capabilities, look_up=False)
        self._store = store
        self._alias = store.alias
        self._claimed_since_relay = 0
        """Number of jobs claimed from the store since the last request to the server."""
        self._relay_at = time.monotonic() + RELAY_SECONDS
        self.is_server_empty = False
        """Whether the server had no messages when the last claim looked. False if it did not
        answer, or refuses a queue."""
        self._poller: Poller | None = None
        self._received: list[Parcel] = []
        """Messages that were received but are not stored yet."""
        self._receive_lock = threading.Lock()
        """Protects ``_received``: several threads may claim."""
        self._extend_at = 0.0

    # -- enqueue ----------------------------------------------------------------------------------

    def takes(self, message: Message) -> bool:
        """Return whether the server supports everything that this job needs."""
        return self.transport.takes(message)

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Send the messages. Sending one twice is safe: its job is stored once."""
        self.transport.send(messages)

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Claim jobs from the store. If it has too few, move messages from the server to the store
        and claim again. Also move messages after every ``MOST_AT_ONCE`` claimed jobs and after
        ``RELAY_SECONDS``, so that a backlog in the store does not delay messages. Messages of
        paused queues are moved, too: the server would drop them after some days."""
        with self._receive_lock:
            self._extend_receipts()
        found = self._store.claim(request)
        limit = request.limit
        self._claimed_since_relay += len(found)
        has_room = len(found) < limit
        has_taken_many = self._claimed_since_relay >= MOST_AT_ONCE
        is_due = has_taken_many or time.monotonic() >= self._relay_at
        if limit <= 0 or not (has_room or is_due):
            return found
        self._claimed_since_relay = 0
        self._relay_at = time.monotonic() + RELAY_SECONDS
        wanted = PollRequest(tuple(request.queues), max(MOST_AT_ONCE, limit))
        self.is_server_empty = False
        try:
            with self._receive_lock:
                has_more = self._relay(wanted)
        except BrokerUnavailable:
            if not found:
                raise
            return found  # an error would lose the leases of these jobs
        if has_more and has_room:
            found += self._store.claim(request._replace(limit=limit - len(found)))
        return found

    def _relay(self, wanted: PollRequest) -> bool:
        """Move messages from the server to the store. Return whether there were any."""
        if not (self._received or self._receive(wanted)):
            return False
        parcels = self._received
        try:
            self._store_jobs([parcel.message for parcel in parcels])
        except (StokerError, DatabaseError) as error:
            if not _concerns_single_jobs(error):
                raise  # keep the messages: other clusters cannot store them either
            parcels = self._store_one_by_one()
        except BaseException:
            self._release()
            raise
        self._received = self._received[len(parcels) :]
        try:
            self.transport.drop(parcels)
        except BrokerUnavailable as error:  # the server delivers them again; the ids are known
            tell("parcels_not_dropped", error=error)
        return True

    def _store_one_by_one(self) -> list[Parcel]:
        """Move received messages to the store one by one, and stop at the first one that cannot be
        stored. Its job may be locked by a user's open transaction that cancelled it, or the
        database may refuse it: drop that message from memory, so that the server delivers it again
        later. The rest waits for the next claim.

        Returns:
            The messages that were moved, which were the first in ``_received``.
        """
        for place, parcel in enumerate(self._received):
            try:
                self._store_job(parcel.message)
            except (StokerError, DatabaseError) as error:
                if not _concerns_single_jobs(error):
                    raise
                if isinstance(error, RowsLocked):
                    tell("rows_locked", error=str(error), seconds=self.transport.parcel_seconds)
                else:
                    tell("parcel_refused", job_id=parcel.message.job_id, error=error)
                received = self._received[:place]
                del self._received[place]
                return received
        return list(self._received)

    def _store_job(self, message: Message) -> None:
        """Store one job. If the character set of the tables lacks a character of its task or queue,
        store that name with escapes: the package names the task, too, so the job can run."""
        refusal: Exception | None = None
        for form in (message, _in_ascii(message, "task"), _in_ascii(message, "task", "queue")):
            try:
                self._store_jobs([form])
            except (StokerError, DatabaseError) as error:
                if not is_text_refused(error):
                    raise
                refusal = error
            else:
                if refusal is not None:
                    tell("job_name_escaped", job_id=message.job_id, error=refusal)
                return
        assert refusal is not None
        raise refusal

    def _receive(self, wanted: PollRequest) -> bool:
        """Fill ``_received`` from the poller or the server. Return whether there are messages."""
        poller = self._poller
        if poller is None:
            self._received = self.transport.receive(wanted.queues, wanted.limit)
        elif not (received := poller.take()) and not poller.waits_for(wanted):
            self._received = self._ask(poller, wanted)
        else:
            self._received = received
        self._extend_at = time.monotonic() + self.transport.parcel_seconds / 3
        is_empty = not self._received and not self.transport.refused
        self.is_server_empty = is_empty and (poller is None or poller.is_idle)
        return bool(self._received)

    def _ask(self, poller: Poller, wanted: PollRequest) -> list[Parcel]:
        """Ask the server. If it has no message, or does not answer, let the poller ask from now on.
        So a silent server delays one claim, and not all of them."""
        received: list[Parcel] = []
        asked_at = time.monotonic()
        try:
            received = self.transport.receive(wanted.queues, wanted.limit)
        except BrokerUnavailable as error:
            poller.note_failure(error, asked_at)
        if not received:
            poller.start(wanted)
        return received

    def _extend_receipts(self) -> None:
        """Keep messages that could not be stored yet hidden from other receivers."""
        if self._received and time.monotonic() >= self._extend_at:
            self._extend_at = time.monotonic() + self.transport.parcel_seconds / 3
            try:
                self._received = self.transport.extend(self._received)
            except BrokerUnavailable:  # the server delivers them again
                self._received = []

    def _release(self) -> None:
        parcels, self._received = self._received, []
        if parcels:
            self.transport.release(parcels)

    def _store_jobs(self, messages: Sequence[Message]) -> None:
        """Store the jobs of the given messages, each exactly once."""
        for tries_left in reversed(range(TRIES)):
            try:
                with explained(self._alias), deciding(self._alias):
                    fresh = self._note([one.job_id for one in messages])
                    self._store.enqueue([one for one in messages if one.job_id in fresh])
            except IntegrityError as error:  # another cluster is storing one of them now
                if not tries_left:
                    raise BrokerUnavailable(
                        f"The same jobs came to several clusters at once: {error}"
                    ) from error
            else:
                return

    def _note(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Record these job ids and return the new ones. Keep the ids that were recorded before for
        longer, because the server may deliver their messages once more."""
        relayed = Relayed.objects.using(self._alias)
        fresh = relayed.note(job_ids)
        if again := set(job_ids) - fresh:
            relayed.note_again(again)
        return fresh

    # -- look-ups ---------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Record the ids of jobs that have not arrived, so that they are skipped on arrival. Return
        these ids."""
        if absent := self.not_arrived(job_ids):
            own = transaction.atomic(using=self._alias)
            # An IntegrityError means that one of the jobs has just arrived.
            with suppress(IntegrityError), explained(self._alias), own:
                return Relayed.objects.using(self._alias).note(sorted(absent))
        return set()

    def not_arrived(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the ids that have not arrived. Leave out ids so old that the record of their
        arrival may have been deleted."""
        oldest = time.time() - RELAYED_SECONDS
        young = [job_id for job_id in job_ids if seconds_of(job_id) > oldest]
        if not young:
            return set()
        with explained(self._alias):
            known: set[UUID] = set()
            # The id of a finished job stays in Relayed when the job's row is deleted.
            for model in (Relayed, Job):
                rows = with_keys(model.objects.using(self._alias).all(), young)
                known |= set(rows.values_list("pk", flat=True))
        return set(young) - known

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return the number of messages on the server, by queue and state."""
        none = {"ready": 0, "deferred": 0, "blocked": 0, "running": 0}
        coming = self.transport.counts()
        return {queue: {**none, "ready": count} for queue, count in coming.items() if count}

    def size(self, queue: str) -> int:
        """Return the number of messages on the server for one queue."""
        return self.transport.count(queue)

    def purge(self, queue: str) -> int:
        return self.transport.purge(queue)

    def ping(self) -> None:
        self.transport.ping()

    def info(self) -> dict[str, Any]:
        return self.transport.info()

    def weaknesses(self) -> list[str]:
        return self.transport.weaknesses()

    def open_wake(self) -> Wake:
        """Return the wake-up source for new messages. From now on a thread waits for messages
        after each claim that found none."""
        if self._poller is not None:
            self._poller.close()
        self._poller = Poller(self.transport.another())
        return self._poller

    def release(self) -> None:
        """Make the messages that could not be stored visible to other receivers. A cluster calls
        this at its end only: while the store fails, others cannot store them either."""
        with self._receive_lock:
            self._release()

    def close(self) -> None:
        self.transport.close()


def _concerns_single_jobs(error: Exception) -> bool:
    """Return whether the error says something about some of the jobs, and not about the database:
    other jobs can be stored."""
    refusals = RowsLocked | DataError | PackageTooLarge
    return isinstance(error, refusals) or is_text_refused(error)


def _in_ascii(message: Message, *fields: str) -> Message:
    """Return the message with all characters of these fields that are not ASCII escaped."""
    most = {"task": LONGEST_TASK, "queue": LONGEST_QUEUE}
    texts = {
        name: getattr(message, name).encode("ascii", "backslashreplace").decode()[: most[name]]
        for name in fields
    }
    return replace(message, **texts)


BUFFER_SECONDS = 1.0
"""How long the poller keeps received messages for the next claim."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 10.0
"""First and longest time between a request of the poller that failed and the next one. It doubles
with each failure."""
SHORTEST_PAUSE_SECONDS = 0.1
"""Pause after a request that took longer than that time."""


class PollRequest(NamedTuple):
    """The parameters of ``Transport.receive``."""

    queues: Sequence[str]
    limit: int


class Poller(PipeWake):
    """Wait for messages in a thread, and wake the pusher when one arrives.

    A claim that finds nothing starts the wait. The next claim takes the messages. While the server
    does not answer, the poller asks again after growing pauses, and claims do not ask.

    Args:
        transport: must not be used by any other thread.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._request: PollRequest | None = None
        self._buffer: list[Parcel] = []
        self._pause_seconds = 0.0
        self._try_at = 0.0
        self._down_since: float | None = None

    # -- called by claims -------------------------------------------------------------------------

    def start(self, wanted: PollRequest) -> None:
        """Wait for such messages until the first ones arrive."""
        with self._changed:
            if self._is_closed:
                return
            self._request = wanted
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="poller", daemon=True)
                self._thread.start()
            self._changed.notify()

    def waits_for(self, wanted: PollRequest) -> bool:
        """Return whether the thread is waiting for exactly these queues."""
        with self._changed:
            return self._request is not None and self._request._replace(limit=0) == wanted._replace(
                limit=0
            )

    def take(self) -> list[Parcel]:
        """Return the received messages, and empty the buffer."""
        with self._changed:
            received, self._buffer = self._buffer, []
            self._changed.notify()
        return received

    @property
    def is_idle(self) -> bool:
        """Whether the server answers, and no message is in the buffer."""
        with self._changed:
            return self._down_since is None and not self._buffer

    def note_failure(self, error: Exception, asked_at: float) -> None:
        """Report that a request failed, and choose the time of the next one. The time that the
        request took is a part of the pause: after a request that waited for the messages of some
        queues and failed for others, the former queues must not be without a request for long.

        Args:
            asked_at: when the request began, in monotonic seconds.
        """
        is_expected = isinstance(error, BrokerUnavailable)
        with self._changed:
            now = time.monotonic()
            self._down_since = self._down_since or now
            longer = max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds)
            self._pause_seconds = min(LONGEST_PAUSE_SECONDS, longer)
            seconds = max(SHORTEST_PAUSE_SECONDS, asked_at + self._pause_seconds - now)
            self._try_at = now + seconds
        tell(
            "broker_unreachable",
            error=str(error) if is_expected else f"{type(error).__name__}: {error}.",
            seconds=seconds,
            traceback="" if is_expected else "".join(format_exception(error)),
        )

    # -- called by the pusher ---------------------------------------------------------------------

    def close(self) -> None:
        """Stop the thread and release its messages. A request that is still waiting is
        abandoned."""
        with self._changed:
            if self._is_closed:
                return
            super().close()
            self._request = None
            self._changed.notify()
        if self._thread is None:
            self._transport.close()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while wanted := self._next_request():
                asked_at = time.monotonic()
                try:
                    self._poll(wanted)
                except Exception as error:  # noqa: BLE001 - without the thread no message arrives
                    self.note_failure(error, asked_at)
        finally:
            self._transport.close()

    def _next_request(self) -> PollRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._request is not None or self._is_closed)
            pause_seconds = self._try_at - time.monotonic()
            self._changed.wait_for(lambda: self._is_closed, max(0.0, pause_seconds))
            return self._request

    def _poll(self, wanted: PollRequest) -> None:
        parcels = self._transport.receive(
            wanted.queues, wanted.limit, wait_seconds=self._transport.wait_seconds
        )
        self._note_answer()
        if parcels:
            self._offer(parcels)

    def _note_answer(self) -> None:
        with self._changed:
            down_since, self._down_since = self._down_since, None
            self._pause_seconds = 0.0
        if down_since is not None:
            tell("broker_back", seconds=time.monotonic() - down_since)

    def _offer(self, parcels: list[Parcel]) -> None:
        """Buffer the messages for the next claim. If no claim takes them in time, release them."""
        with self._changed:
            self._request = None
            if not self._is_closed:
                self._buffer = parcels
                self.wake()
                self._changed.wait_for(lambda: not self._buffer or self._is_closed, BUFFER_SECONDS)
                parcels, self._buffer = self._buffer, []
        if parcels:
            self._transport.release(parcels)
