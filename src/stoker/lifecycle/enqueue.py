"""Enqueue: a call becomes a job, in the caller's transaction.

Sealing (see there) comes first, and refuses what can't be a job before the database is touched.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, OperationalError, connections, transaction

from stoker.brokers import broker_for
from stoker.compat import InvalidTask, task_backends, task_signals
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.models.commits import after_commit
from stoker.models.conflicts import is_conflict
from stoker.models.guard_upkeep import look_after
from stoker.models.outbox import has_outbox
from stoker.models.statements import takes_copies
from stoker.options import is_guarded
from stoker.progress import explained
from stoker.results import Result
from stoker.waiting import Commitment

from . import outbox
from .copies import Copies, may_be_copied
from .newcomers import Newcomer, Newcomers
from .running import is_heard
from .sealing import Call, Sealing
from .uniqueness import KeyInMotion

AT_ONCE = 1000
"""Jobs per round trip."""
WORTH_COPYING = 50
"""Fewer jobs are quicker in one statement: copying takes some round trips."""
TRIES = 10
RETRY_SECONDS = 0.05

AnyResults = TypeVar("AnyResults", bound=Sequence[Result[Any]])
Transaction = Callable[[], AbstractContextManager[Any]]


def enqueue(
    settings: Settings, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> Result[Any]:
    """Make one job.

    Raises: see ``Task.enqueue``.
    """
    line = _Line(settings, task)
    batch = line.sealing.seal([(args, kwargs)])
    with explained(settings.database):
        (result,) = line.send([batch], nullcontext)
    return result


def enqueue_many(settings: Settings, task: Any, calls: Iterable[Call]) -> Sequence[Result[Any]]:
    """Make a job of each call, all or none, a thousand at a time.

    Raises: see ``Task.enqueue``.
    """
    line = _Line(settings, task)
    if line.copies:
        calls = list(calls)
        if len(calls) >= WORTH_COPYING:
            copies = Copies(settings, task, line.sealing, calls)
            with explained(settings.database):
                return line.store_copies(copies)
    rest = iter(calls)
    batches = []
    while part := list(islice(rest, AT_ONCE)):
        batches.append(line.sealing.seal(part))
    with explained(settings.database):
        return line.send(batches, partial(transaction.atomic, using=settings.database))


class _Line:
    """What is the same for all jobs of one task that are enqueued together."""

    def __init__(self, settings: Settings, task: Any) -> None:
        self.task = task
        self.commitment = Commitment()
        self.sealing = Sealing(settings, task, self.commitment)
        self.again = self.sealing.again
        self.broker = broker_for(settings)
        self._settings = settings
        self._alias = settings.database
        self._connection = connections[self._alias]
        self._sender = type(task_backends[settings.alias])
        self._is_unique = getattr(task, "unique", None) is not None
        self._neglected: set[UUID] = set()
        self._open_transaction = _open_transaction(self._alias)
        self._is_inside = self.broker.capabilities.transactional
        """Whether all of it becomes rows in the store, in its transaction."""
        self._refuse_guards()
        self._refuse_atomic()

    @property
    def copies(self) -> bool:
        """Whether many jobs may be copied into the store, in its transaction."""
        return (
            self._open_transaction in (None, self._alias)
            and may_be_copied(self._settings, self.task)
            and self.broker.capabilities.transactional
            and takes_copies(self._connection)
        )

    def store_copies(self, copies: Copies) -> Sequence[Result[Any]]:
        """As ``send``."""
        results = self._store(copies.store, partial(transaction.atomic, using=self._alias))
        self._announce(results)
        return results

    def send(self, batches: Sequence[Sequence[Newcomer]], own: Transaction) -> list[Result[Any]]:
        """Store the jobs; tell of them when they can be seen.

        Args:
            own: a transaction for all of them.
        """
        joining = {self.broker.joins(one.message) for batch in batches for one in batch}
        self._is_inside = joining <= {True}
        opened = self._open_transaction
        if opened is not None and not (opened == self._alias and self._is_inside):
            return self._put_off(opened, batches, own)
        if len(joining) > 1:  # some here, some there: together they are certain at one commit
            with transaction.atomic(using=self._alias):
                return self._put_off(self._alias, batches, own)
        results = self._store(self._writing(batches), own if self._is_inside else nullcontext)
        self._announce(results)
        return results

    def _put_off(
        self, alias: str, batches: Sequence[Sequence[Newcomer]], own: Transaction
    ) -> list[Result[Any]]:
        """Until the transaction that is open there is committed."""
        results = _own_results(batches)
        if has_outbox(alias):
            for batch in batches:
                outbox.put(self._settings, alias, batch)
            after_commit(alias, partial(self._relay, alias, results))
        else:  # a process that dies between that commit and this loses the jobs
            transaction.on_commit(partial(self._store_late, batches, own), using=alias)
        if not self._is_unique:
            self._announce(results)
        return results

    def _relay(self, alias: str, results: Sequence[Result[Any]]) -> None:
        """What the caller was given tells from now on what has become of it."""
        told = outbox.relay_these(self._settings, alias, [UUID(result.id) for result in results])
        self.commitment.is_made = True
        for given in results:
            if UUID(given.id) in told:
                _become(given, told[UUID(given.id)])
        if self._is_unique:
            self._announce(results)

    def _store_late(self, batches: Sequence[Sequence[Newcomer]], own: Transaction) -> None:
        results = self._store(self._writing(batches), own)
        for given, result in zip(_own_results(batches), results, strict=True):
            _become(given, result)
        if self._is_unique:
            self._announce(results)

    def _store(self, write: Callable[[], AnyResults], own: Transaction) -> AnyResults:
        """Once more, where the database has ended a transaction of our own for another's sake."""
        is_ours = not self._connection.in_atomic_block
        for tries_left in reversed(range(TRIES)):
            try:
                with own():
                    results = write()
            except (BrokerUnavailable, OperationalError) as error:
                may_succeed = is_conflict(error) or isinstance(error, KeyInMotion)
                if not (tries_left and is_ours and may_succeed):
                    raise
                time.sleep(RETRY_SECONDS * random.random())  # noqa: S311 - to get out of step
            else:
                break
        self._after_commit()
        return results

    def _writing(self, batches: Sequence[Sequence[Newcomer]]) -> Callable[[], list[Result[Any]]]:
        return lambda: [one for batch in batches for one in self._store_batch(batch)]

    def _store_batch(self, batch: Sequence[Newcomer]) -> Sequence[Result[Any]]:
        if not self._is_unique:
            self.broker.enqueue([newcomer.message for newcomer in batch])
            return [newcomer.result for newcomer in batch]
        results, neglected = Newcomers(self, batch).store()
        self._neglected |= neglected
        return results

    def _after_commit(self) -> None:
        if not self._is_inside:
            self._commit()
        elif self._connection.in_atomic_block:
            after_commit(self._alias, self._commit)
        elif self._connection.get_autocommit():
            self._commit()
        # Else the caller commits by hand, and nobody can be told when: polling finds the jobs.

    def _commit(self) -> None:
        self.commitment.is_made = True
        if self._neglected:
            with suppress(DatabaseError):  # upkeep looks after them, too
                look_after(self._alias, self._neglected)
        self.broker.wake_up({self.task.queue_name}, inside=self._is_inside)

    def _announce(self, results: Iterable[Result[Any]]) -> None:
        """Send Django's signal. A receiver that raises is logged, and harms nothing."""
        if not is_heard(task_signals.task_enqueued, logging.DEBUG):
            return
        for result in results:
            if not result.was_duplicate:
                task_signals.task_enqueued.send_robust(self._sender, task_result=result)

    def _refuse_atomic(self) -> None:
        if getattr(self.task, "atomic", False) and not self.broker.capabilities.atomic:
            raise InvalidTask(
                f"{self.task.module_path} has atomic=True, and the jobs of "
                f"{self.broker.info()['broker']} have no transaction to be part of: let BROKER be "
                "the database."
            )

    def _refuse_guards(self) -> None:
        if is_guarded(self.task) and not self.broker.capabilities.guards:
            raise InvalidTask(
                f"{self.task.module_path} has a guard (unique, lock, limit, rate or sequence), and "
                f"{self.broker.info()['broker']} keeps none: let BROKER be the database."
            )
        is_put_off = self._open_transaction not in (None, self._alias)
        if self._is_unique and is_put_off and self.task.unique.on_conflict == "raise":
            raise InvalidTask(
                f"{self.task.module_path} cannot be enqueued inside a transaction of "
                f"{self._open_transaction!r}: its jobs are stored when that is committed, too late "
                'for Unique(on_conflict="raise") to be raised. Enqueue it outside, or in a '
                f"transaction of {self._alias!r}."
            )


def _become(given: Result[Any], result: Result[Any]) -> None:
    for one in fields(result):
        object.__setattr__(given, one.name, getattr(result, one.name))


def _own_results(batches: Iterable[Iterable[Newcomer]]) -> list[Result[Any]]:
    return [newcomer.result for batch in batches for newcomer in batch]


def _open_transaction(store: str) -> str | None:
    """The database whose open transaction decides whether the job shall exist: the store's own
    before any other."""
    opened = [one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block]
    return store if store in opened else next(iter(opened), None)
