"""Move jobs from a message server (``transport``) into the store.

::

    receive             the server delivers these messages again unless they are dropped
    BEGIN
        note            record their ids; ids that are recorded already are left out
        enqueue         in the store
    COMMIT              from now on the jobs are the store's
    drop                if this fails, the messages are delivered again and recognised
    claim               from the store

So every lease is the store's, whatever the server's receipts guarantee: see decision 0026.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, transaction

from stoker.brokers.orm.broker import OrmBroker
from stoker.exceptions import BrokerUnavailable, RowsLocked
from stoker.models import Job, Relayed
from stoker.models.job import Message
from stoker.models.outbox import RELAYED_SECONDS
from stoker.signals import tell
from stoker.store.engines.sessions import explained
from stoker.store.statements import deciding, with_keys
from stoker.store.wake import Wake
from stoker.values.ids import seconds_of

from .contract import ClaimRequest, Delivery
from .transport import Parcel, Transport

AHEAD = 100
"""How many messages are moved to the store at once: more than one claim usually asks for."""
TRIES = 3
REST_SECONDS = 1.0
"""How long a server that did not answer is left alone: the store's jobs go on meanwhile."""


class Arrivals:
    """The jobs that a server holds, until they are moved into the store.

    Args:
        transport: where packages wait until a cluster has room for them.
        store: where they are moved to.
    """

    relays_at_once = 100  # in several requests, any of which may fail

    def __init__(self, transport: Transport, store: OrmBroker) -> None:
        self.transport = transport
        self.capabilities = replace(transport.capabilities, look_up=False)
        self._store = store
        self._alias = store.alias
        self._taken = 0
        """How many the store has given since something was brought there."""
        self._ask_at = 0.0
        self._lookout: Lookout | None = None
        self._in_hand: list[Parcel] = []
        """Messages that were received but are not in the store yet."""
        self._hand = threading.Lock()
        """Held by the thread that has something in hand: what another brings goes there, too."""
        self._hold_at = 0.0

    # -- in ---------------------------------------------------------------------------------------

    def takes(self, message: Message) -> bool:
        """Return whether the server does everything that this job asks for."""
        return self.transport.takes(message)

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Send the messages. Each one may be sent again, as it is recognised when it arrives."""
        self.transport.send(messages)

    # -- out --------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[Delivery]:
        """Claim jobs from the store, after moving messages from the server if the store has too
        few. Every other claim looks at the server first, so that a full store does not block its
        messages."""
        with self._hand:
            self._hold()
        found = self._store.claim(request)
        limit = request.limit
        self._taken += len(found)
        has_room = len(found) < limit
        if limit <= 0 or not (has_room or self._taken >= AHEAD):
            return found
        self._taken = 0
        errand = Errand(tuple(request.queues), max(AHEAD, limit), frozenset(request.passed_over))
        try:
            with self._hand:
                has_more = self._carry(errand)
        except BrokerUnavailable:
            if not found:
                raise
            return found  # nothing may be raised once something is leased
        if has_more and has_room:
            found += self._store.claim(request._replace(limit=limit - len(found)))
        return found

    def _carry(self, errand: Errand) -> bool:
        """Bring jobs into the store. Whether there were any."""
        if not (self._in_hand or self._receive(errand)):
            return False
        parcels = self._in_hand
        try:
            self._bring_in([parcel.message for parcel in parcels])
        except RowsLocked:
            parcels = self._bring_in_until_locked()
        except BrokerUnavailable:  # to give them back now would have all clusters play ball with it
            raise
        except BaseException:
            self._let_go()
            raise
        self._in_hand = self._in_hand[len(parcels) :]
        try:
            self.transport.drop(parcels)
        except BrokerUnavailable as error:  # they come again, and are known
            tell("parcels_not_dropped", error=error)
        return True

    def _bring_in_until_locked(self) -> list[Parcel]:
        """Move received messages to the store one by one, and stop at the first locked job. The
        lock may belong to a user's open transaction that cancelled the job: drop that message from
        memory, so that the server delivers it again later. The rest waits for the next claim.

        Returns:
            The messages that were moved, which were the first in ``_in_hand``.
        """
        for place, parcel in enumerate(self._in_hand):
            try:
                self._bring_in([parcel.message])
            except RowsLocked as error:
                tell("rows_locked", error=str(error), seconds=self.transport.parcel_seconds)
                brought = self._in_hand[:place]
                del self._in_hand[place]
                return brought
        return list(self._in_hand)

    def _receive(self, errand: Errand) -> bool:
        """Whether something has come."""
        if time.monotonic() < self._ask_at:
            return False
        lookout = self._lookout
        if lookout is not None and (brought := lookout.take()):
            self._in_hand = brought
        elif lookout is None or not lookout.is_out(errand):
            try:
                self._in_hand = self.transport.receive(
                    errand.queues, errand.limit, passed_over=errand.passed_over
                )
            except BrokerUnavailable:
                self._ask_at = time.monotonic() + REST_SECONDS
                raise
            if lookout is not None and not self._in_hand:
                lookout.send_out(errand)
        self._hold_at = time.monotonic() + self.transport.parcel_seconds / 3
        return bool(self._in_hand)

    def _hold(self) -> None:
        """Extend the receipts of messages that the store could not take yet."""
        if self._in_hand and time.monotonic() >= self._hold_at:
            self._hold_at = time.monotonic() + self.transport.parcel_seconds / 3
            try:
                self._in_hand = self.transport.hold(self._in_hand)
            except BrokerUnavailable:  # they come again
                self._in_hand = []

    def _let_go(self) -> None:
        parcels, self._in_hand = self._in_hand, []
        if parcels:
            self.transport.give_back(parcels)

    def _bring_in(self, messages: Sequence[Message]) -> None:
        """Store the jobs of these messages, each exactly once."""
        for tries_left in reversed(range(TRIES)):
            try:
                with explained(self._alias), deciding(self._alias):
                    fresh = self._note([one.job_id for one in messages])
                    self._store.enqueue([one for one in messages if one.job_id in fresh])
            except IntegrityError as error:  # somebody brings one of them in at this moment
                if not tries_left:
                    raise BrokerUnavailable(
                        f"The same jobs came to several clusters at once: {error}"
                    ) from error
            else:
                return

    def _note(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Record these job ids and return the new ones. An id that is seen again is remembered for
        longer."""
        relayed = Relayed.objects.using(self._alias)
        fresh = relayed.note(job_ids)
        if again := set(job_ids) - fresh:
            relayed.note_again(again)
        return fresh

    # -- looking ----------------------------------------------------------------------------------

    def withdraw(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Record the ids of jobs that have not arrived, so that they are skipped on arrival. Return
        these ids."""
        if absent := self.not_come(job_ids):
            own = transaction.atomic(using=self._alias)
            with suppress(IntegrityError), explained(self._alias), own:  # else it came just now
                return Relayed.objects.using(self._alias).note(sorted(absent))
        return set()

    def not_come(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the ids that have not arrived, of those recent enough to be remembered if they
        had."""
        oldest = time.time() - RELAYED_SECONDS
        young = [job_id for job_id in job_ids if seconds_of(job_id) > oldest]
        if not young:
            return set()
        with explained(self._alias):
            known: set[UUID] = set()
            for model in (Relayed, Job):  # a job stays noted when it ends, and its row is deleted
                rows = with_keys(model.objects.using(self._alias).all(), young)
                known |= set(rows.values_list("pk", flat=True))
        return set(young) - known

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return the number of messages on the server, by queue and state."""
        none = {"ready": 0, "deferred": 0, "blocked": 0, "running": 0}
        coming = self.transport.counts()
        return {queue: {**none, "ready": count} for queue, count in coming.items() if count}

    def purge(self, queue: str) -> int:
        return self.transport.purge(queue)

    def ping(self) -> None:
        self.transport.ping()

    def info(self) -> dict[str, Any]:
        return self.transport.info()

    def weaknesses(self) -> list[str]:
        return self.transport.weaknesses()

    def open_wake(self) -> Wake:
        """Return the wake-up source of arrivals. From now on a thread waits for them."""
        if self._lookout is not None:
            self._lookout.close()
        self._lookout = Lookout(self.transport.another())
        return self._lookout

    def close(self) -> None:
        with self._hand:
            self._let_go()
        self.transport.close()


KEEP_SECONDS = 1.0
"""How long messages that were moved to the store may wait for a claim."""
AWAY_SECONDS = 2.0


class Errand(NamedTuple):
    """What to wait for."""

    queues: Sequence[str]
    limit: int
    passed_over: Collection[str]


class Lookout(Wake):
    """A thread that waits for messages each time it is asked to.

    Args:
        transport: must not be used by any other thread.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        self._errand: Errand | None = None
        self._brought: list[Parcel] = []
        self._is_over = False

    # -- for claims -------------------------------------------------------------------------------

    def send_out(self, errand: Errand) -> None:
        """Wait for this from now on, until some of it has come."""
        with self._turn:
            if self._is_over:
                return
            self._errand = errand
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
                self._thread.start()
            self._turn.notify()

    def is_out(self, errand: Errand) -> bool:
        """Whether it waits for just this."""
        with self._turn:
            return self._errand is not None and self._errand._replace(limit=0) == errand._replace(
                limit=0
            )

    def take(self) -> list[Parcel]:
        """Return the messages that the thread has received."""
        with self._turn:
            brought, self._brought = self._brought, []
            self._turn.notify()
        return brought

    # -- for sleepers -----------------------------------------------------------------------------

    def fileno(self) -> int | None:
        return None if self._is_over else self._read

    def is_due(self) -> bool:
        with suppress(BlockingIOError):
            return not self._is_over and bool(os.read(self._read, 4096))
        return False

    def close(self) -> None:
        """Stop the thread and release its messages. A request that is still waiting is
        abandoned."""
        with self._turn:
            if self._is_over:
                return
            self._is_over = True
            self._errand = None
            os.close(self._read)
            os.close(self._write)
            self._turn.notify()
        if self._thread is None:
            self._transport.close()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while errand := self._next_errand():
                self._look_out(errand)
        finally:
            self._transport.close()

    def _next_errand(self) -> Errand | None:
        with self._turn:
            self._turn.wait_for(lambda: self._errand is not None or self._is_over)
            return self._errand

    def _look_out(self, errand: Errand) -> None:
        try:
            parcels = self._transport.receive(
                errand.queues,
                errand.limit,
                passed_over=errand.passed_over,
                wait_seconds=self._transport.wait_seconds,
            )
        except BrokerUnavailable:  # the next claim will find that out, too
            self._forget(errand)
            time.sleep(AWAY_SECONDS)
            return
        if parcels:
            self._bring(parcels)

    def _forget(self, errand: Errand) -> None:
        with self._turn:
            if self._errand == errand:
                self._errand = None

    def _bring(self, parcels: list[Parcel]) -> None:
        with self._turn:
            self._errand = None
            if not self._is_over:
                self._brought = parcels
                with suppress(BlockingIOError):
                    os.write(self._write, b"!")
                self._turn.wait_for(lambda: not self._brought or self._is_over, KEEP_SECONDS)
                parcels, self._brought = self._brought, []
        if parcels:
            self._transport.give_back(parcels)
