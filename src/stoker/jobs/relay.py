"""The outbox: enqueue in a transaction that the broker cannot join.

::

    BEGIN
        the project's own writes
        put              a row in the outbox of this database
    COMMIT               from here on the job is certain
    relay                the row is locked, the broker gets the job, the row is deleted

If a process dies after the broker has accepted the job, another one relays it again. The broker
recognises the job by its id, even if it has ended since: see ``Broker.relay``. The enqueuing
process relays at once. Every scheduler relays the remaining rows, once a second.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, DataError, InterfaceError, OperationalError, connections

from stoker.brokers.adapters import broker_for
from stoker.compat import InvalidTask
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    NotMigrated,
    PackageError,
    StokerError,
    UnknownTask,
)
from stoker.guards.keys import UniqueClaim
from stoker.guards.sweep import look_after
from stoker.guards.unique import CHANGES, identity_of
from stoker.models.job import Message
from stoker.models.outbox import Outgoing, Relayed, has_outbox
from stoker.store.engines.sessions import explained
from stoker.store.prepared import Compiled, any_of
from stoker.store.statements import deciding, insert_with_packages
from stoker.store.transactions import after_commit, commits_by_hand
from stoker.store.written import moment
from stoker.tasks.decorator import absent_task
from stoker.tasks.registry import task_of

from .faults import reason_of
from .intake import Newcomers
from .package import JobOptions, Package, sealer_for
from .results import Commitment, Result, result_of
from .sealing import Newcomer
from .states import JobState, Progress

MANY_REFUSALS = 20
"""After this number of refusals in a row, the broker may refuse all jobs of a queue."""
STORE_FAILURES = (NotMigrated, OperationalError, InterfaceError)
"""Errors of the store or of the database with the outbox, which say nothing about a job."""


def put(
    settings: Settings,
    alias: str,
    messages: Iterable[Message],
    claims: Iterable[UniqueClaim | None],
) -> None:
    """Insert jobs into the outbox of the database whose transaction is open.

    Args:
        claims: the unique keys of the jobs; empty = none has one.
    """
    rows = [
        Outgoing.of_message(settings.alias, message, claim)
        for message, claim in zip_longest(messages, claims)
    ]
    insert_with_packages(Outgoing.objects.using(alias), rows)


def relay_these(settings: Settings, alias: str, job_ids: Sequence[UUID]) -> dict[UUID, Result[Any]]:
    """Relay jobs that were just committed, unless the broker is unreachable or others are faster.

    Returns:
        Job id -> result, for jobs with a unique key.
    """
    broker, asked_at = broker_for(settings), time.monotonic()
    if not broker.relay_pause.is_over or commits_by_hand(connections[settings.database]):
        return {}
    relay, at_once = Relay(settings, alias), broker.relay_batch
    told: dict[UUID, Result[Any]] = {}
    try:
        for start in range(0, len(job_ids), at_once):
            these = job_ids[start : start + at_once]
            with suppress(PackageError):  # a scheduler relays the others, and logs this one
                told |= relay.relay(partial(Outgoing.objects.using(alias).lock_these, these)).told
    except (StokerError, DatabaseError, InterfaceError) as error:
        broker.relay_pause.begin(error, asked_at)
    return told


class RelayRefused(BrokerUnavailable):
    """The broker and the databases answered, but some jobs of an outbox could not be relayed. All
    others were."""


def relay_from(settings: Settings, alias: str, beat: Callable[[], None]) -> int:
    """Relay the jobs that other processes have left in the outbox of this database. Return their
    number.

    Args:
        settings: the backend's.
        alias: of the database; it need not have an outbox.
        beat: called often, as a heartbeat.

    Raises:
        RelayRefused: some jobs were refused; the others were relayed.
        BrokerUnavailable: the broker or the store is unreachable, or the broker refused many jobs
            and accepted none.
    """
    if not has_outbox(alias, settings.database):
        return 0
    sweep = _Sweep(settings, alias, beat)
    count = sweep.relay()
    if sweep.refusal is not None:
        if not count and sweep.refusals >= MANY_REFUSALS:  # a broker whose memory is full, say
            raise sweep.refusal
        raise RelayRefused(reason_of(sweep.refusal)) from sweep.refusal
    return count


class _Sweep:
    """Relays all rows of one outbox, oldest first. Rows that cannot be relayed, for example because
    their queue is missing at the broker, or because their package is too large for the store, are
    skipped, so that they do not block later ones."""

    def __init__(self, settings: Settings, alias: str, beat: Callable[[], None]) -> None:
        self._backend = settings.alias
        self._broker = broker_for(settings)
        self._outgoing = Outgoing.objects.using(alias)
        self._relay = Relay(settings, alias, is_late=True)
        self._beat = beat
        self._after: UUID | None = None
        self._page: Sequence[Outgoing] = ()
        self.refusal: Exception | None = None
        self.refusals = 0
        """Number of rows that the broker refused one by one, not because of their values."""
        self._refused: Counter[str] = Counter()
        """Queue -> number of refused rows since one was accepted."""

    def relay(self) -> int:
        """Relay all rows and return the number of jobs that the broker has accepted."""
        count = 0
        while True:
            try:
                relayed = self._relay.relay(self._lock).jobs
            except STORE_FAILURES:
                raise
            except Exception as error:  # the values of a job may raise anything
                if not self._page:
                    raise
                relayed = self._one_by_one(error)
            if not self._page:
                return count
            count += relayed
            self._page = ()
            self._beat()

    def _lock(self) -> Sequence[Outgoing]:
        at_once = self._broker.relay_batch
        self._page = self._outgoing.lock_first(self._backend, at_once, self._after)
        return self._page

    def _one_by_one(self, error: Exception) -> int:
        """Relay the rows of a page separately. Of a queue of which many rows in a row were refused,
        try only one. Begin with another row in each sweep: good rows may be behind many bad ones,
        which stay."""
        count, tried = 0, set[str]()
        start = random.randrange(len(self._page))  # noqa: S311 - no secret
        rows = [*self._page[start:], *self._page[:start]]
        for row in rows if len(rows) > 1 else ():
            if self._refused[row.queue] >= MANY_REFUSALS and row.queue in tried:
                continue
            tried.add(row.queue)
            self._broker.ping()  # raises if the broker is unreachable for all jobs
            try:
                count += self._relay.relay(partial(self._outgoing.lock_these, [row.pk])).jobs
                self._refused[row.queue] = 0
            except STORE_FAILURES:
                raise
            except Exception as refused:  # noqa: BLE001 - the values of a job may raise anything
                error = refused
                if isinstance(refused, BrokerUnavailable | DatabaseError) and not isinstance(
                    refused, DataError
                ):  # other jobs may be refused, too
                    self.refusals += 1
                    self._refused[row.queue] += 1
            self._beat()
        self._broker.ping()  # also for a single row
        self.refusal = self.refusal or error
        self._after = self._page[-1].pk
        return count


class Round(NamedTuple):
    """The result of relaying one set of rows."""

    jobs: int
    """Number of jobs that have left the outbox."""
    told: dict[UUID, Result[Any]]
    """Job id -> result, for jobs with a unique key."""


@cache
def _first_row(alias: str) -> Compiled:
    return any_of(Outgoing.objects.using(alias))


class Relay:
    """Relays rows from the outbox of one database.

    Args:
        is_late: whether the rows may have been committed long ago. A call then does not change a
            waiting job whose arguments come from a later call. A call that is relayed at its commit
            does, because the clocks of two hosts may differ.
    """

    def __init__(self, settings: Settings, alias: str, *, is_late: bool = False) -> None:
        self._settings = settings
        self._alias = alias
        self._is_late = is_late
        self._broker = broker_for(settings)

    def relay(self, lock: Callable[[], Sequence[Outgoing]]) -> Round:
        """Relay the rows that ``lock`` returns.

        Raises:
            BrokerUnavailable: the rows stay in the outbox. If the broker has accepted the jobs,
            relaying them again has no effect there.
        """
        connection = connections[self._alias]
        if not connection.in_atomic_block and not _first_row(self._alias).fetch():
            # without a transaction, because SQLite allows only one writer at a time
            return Round(0, {})
        told: dict[UUID, Result[Any]] = {}

        def hand_over(rows: Sequence[Outgoing], until: float) -> None:
            told.update(self._hand_over(rows, until))

        rows = self._broker.move_outbox(self._alias, lock, hand_over)
        for inside in (True, False):
            queues = {row.queue for row in rows if self._broker.joins(row.as_message()) is inside}
            if queues:
                self._broker.wake_up(queues, inside=inside)
        return Round(len(rows), told)

    def _hand_over(self, rows: Sequence[Outgoing], until: float) -> dict[UUID, Result[Any]]:
        inside, outside = [], []
        for row in rows:
            message = row.as_message()
            if self._broker.joins(message):
                inside.append(row)
            else:
                outside.append(message)
        if outside:
            self._broker.relay(outside, until=until)
        return self._store(inside) if inside else {}

    def _store(self, rows: Sequence[Outgoing]) -> dict[UUID, Result[Any]]:
        store = self._settings.database
        with explained(store), deciding(store):
            fresh = Relayed.objects.using(store).note([row.pk for row in rows])
            new = [row for row in rows if row.pk in fresh]
            self._broker.enqueue([row.as_message() for row in new if row.claim is None])
            claiming = [(row, row.claim) for row in new if row.claim is not None]
            told, neglected = self._decide(claiming)
            if neglected:
                after_commit(store, lambda: self._look_after(neglected))
        return told

    def _decide(
        self, rows: Sequence[tuple[Outgoing, list[Any]]]
    ) -> tuple[dict[UUID, Result[Any]], set[UUID]]:
        """Store jobs with unique keys in order. Any of these jobs may have become a duplicate since
        it was written to the outbox.

        Returns:
            Job id -> result, and the guard keys to check after the commit.
        """
        told: dict[UUID, Result[Any]] = {}
        neglected: set[UUID] = set()
        for row, claim in rows:
            newcomer = self._newcomer(row, claim)
            if newcomer is None:  # the worker will report the error
                self._broker.enqueue([row.as_message()])
                continue
            calls = Newcomers(
                self._settings, Commitment(is_made=True), [newcomer], is_late=self._is_late
            )
            (told[row.pk],), key_ids = calls.store()
            neglected |= key_ids
        return told, neglected

    def _look_after(self, key_ids: Collection[UUID]) -> None:
        """Make blocked jobs ready if these guard keys have room."""
        queues = look_after(self._settings.database, key_ids)
        if queues:
            self._broker.wake_up(queues)

    def _newcomer(self, row: Outgoing, claim: list[Any]) -> Newcomer | None:
        """Return the call in this row of the outbox. This process need not know its task. Return
        None if the package cannot be read, and the job may have to replace a waiting job."""
        message = row.as_message()
        key_id, *rest = claim
        unique = UniqueClaim(UUID(key_id), *rest)
        try:
            package = sealer_for(self._settings).open(message.package)
        except PackageError:
            if unique.on_conflict in CHANGES:
                return None
            package = Package(
                row.pk,
                row.task,
                args=(),
                kwargs={},
                queue=row.queue,
                priority=row.priority,
                enqueued_at=message.enqueued_at,
                options=JobOptions(identity=identity_of(unique)),
            )
        state = JobState.READY if row.run_after is None else JobState.DEFERRED
        result = result_of(self._settings, row.pk, Progress(None, state))._with(
            task=self._task(package),
            args=list(package.args),
            kwargs=package.kwargs,
            enqueued_at=moment(package.enqueued_at),
        )
        return Newcomer(package, message, result, unique)

    def _task(self, package: Package) -> Any:
        alias = self._settings.alias
        try:
            return task_of(package).using(backend=alias)
        except (UnknownTask, InvalidTask):
            return absent_task(package.task, alias)
