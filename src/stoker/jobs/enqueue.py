"""Enqueue jobs: check and seal calls, and hand them to the store, the broker or the outbox.

If no guard or signal needs single jobs, the packages of a large ``enqueue_many`` differ in their
ids and arguments only, so their common part is written once. The bytes are the same as those of
``Sealer.seal``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload
from uuid import UUID

from django.db import DatabaseError, connections, transaction

from stoker.brokers.adapters import broker_for
from stoker.compat import InvalidTask, task_backends, task_signals
from stoker.conf import Settings
from stoker.guards.sweep import look_after
from stoker.guards.unique import KeyInMotion
from stoker.models.job import Message
from stoker.models.outbox import has_outbox, may_have_outbox
from stoker.signals import pre_enqueue
from stoker.store.copy import InCommon, copy_jobs
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained
from stoker.store.transactions import (
    after_commit,
    commits_by_hand,
    is_conflict,
    repeat_if_aborted,
)
from stoker.tasks.options import is_guarded
from stoker.values import codec
from stoker.values.codec import copied
from stoker.values.ids import LINKED, id_of, new_job_numbers

from . import relay as outbox
from .intake import Newcomers
from .package import Package, Sealer, head_of, sealer_for, version_of
from .results import Commitment, Result
from .running import is_heard
from .sealing import Call, Newcomer, Sealing, check_backend, refuse_wrong_arguments

ID_ENDS = len('["') + 32
"""Position at which the id ends in a package head that is written as JSON."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def snapshot(args: Any, kwargs: Mapping[str, Any]) -> tuple[Arguments, bool]:
    """Return a private copy of the arguments, and whether it is plain JSON.

    Writing plain JSON calls no code of the project, so it may be done inside a COPY.
    """
    positional, named = tuple(args), dict(kwargs)
    if codec.ATOMS.issuperset(map(type, positional)) and (not named or codec.is_plain(named)):
        return (positional, copied(named) if named else named), True
    is_plain = codec.is_plain(list(positional)) and codec.is_plain(named)
    return (copied(positional), copied(named)), is_plain


class Alike:
    """Seals the packages of one call of ``enqueue_many`` as JSON.

    Args:
        sealer: sealer of the backend.
        like: a package with the common fields. Its id and arguments are not used.
    """

    def __init__(self, sealer: Sealer, like: Package) -> None:
        self._sealer = sealer
        self._like = like
        head = codec.write(head_of(like))
        self._before, self._after = head[: ID_ENDS - 32], head[ID_ENDS:-1] + b","
        self._version = version_of(like)
        self._metadata = b"," + codec.write(codec.encode(dict(like.metadata))) + b"]"

    def seal(self, number: int, arguments: Arguments, *, is_plain: bool) -> bytes:
        """Return the package with this id and these arguments.

        Args:
            number: the id as a number.
            is_plain: whether the arguments are plain JSON.

        Raises: see ``Sealer.seal``.
        """
        args, kwargs = arguments
        if is_plain:
            with suppress(ValueError):  # ``Sealer.seal`` below names the argument in its error
                written = codec.write(args) + b"," + (codec.write(kwargs) if kwargs else b"{}")
                body = b"%b%032x%b%b%b" % (
                    self._before, number, self._after, written, self._metadata,
                )  # fmt: skip
                return self._sealer.close(self._like.task, body, self._version)
        own = replace(self._like, job_id=UUID(int=number), args=args, kwargs=kwargs)
        return self._sealer.seal(own)


class Results(Sequence[Result[Any]]):
    """Results of many jobs. Each result is created on access, because most are never used."""

    def __init__(self, make: Callable[[int], Result[Any]], count: int) -> None:
        self._make = make
        self._count = count
        self._made: dict[int, Result[Any]] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Result[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result[Any]]: ...
    def __getitem__(self, index: int | slice) -> Result[Any] | list[Result[Any]]:
        places = range(self._count)[index]
        if isinstance(places, range):
            return [self._get(place) for place in places]
        return self._get(places)

    def __iter__(self) -> Iterator[Result[Any]]:
        return map(self._get, range(self._count))

    def __add__(self, others: Sequence[Result[Any]]) -> list[Result[Any]]:
        return [*self, *others]

    def __radd__(self, others: Sequence[Result[Any]]) -> list[Result[Any]]:
        return [*others, *self]

    def __repr__(self) -> str:
        return f"<the results of {self._count} jobs>"

    def _get(self, place: int) -> Result[Any]:
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]


class Sealed(NamedTuple):
    """Jobs to store."""

    messages: Sequence[Message]
    results: Sequence[Result[Any]]
    """The results for the caller. A duplicate gets the result of the existing job instead."""
    newcomers: Sequence[Newcomer] = ()
    """The calls. Empty if they were sealed by ``AlikeCalls``."""

    @classmethod
    def of(cls, newcomers: Sequence[Newcomer]) -> Sealed:
        messages = [one.message for one in newcomers]
        return cls(messages, [one.result for one in newcomers], newcomers)


class AlikeCalls:
    """The calls of one ``enqueue_many`` whose packages differ in ids and arguments only, see
    ``are_alike``.

    Args:
        calls: all calls; they are checked and copied here.

    Raises: as ``Sealing.seal``; ``copy`` and ``sealed`` may raise PackageTooLarge.
    """

    def __init__(
        self, settings: Settings, task: Any, sealing: Sealing, calls: Sequence[Call]
    ) -> None:
        self._alias = settings.database
        self._sealing = sealing
        self._like, self._run_after = sealing.in_common()
        self._alike = Alike(sealer_for(settings), self._like)
        self._numbers = new_job_numbers(len(calls), LINKED if sealing.has_hooks else 0)
        self._arguments: list[Arguments] = []
        self._packages: dict[int, bytes] = {}
        """Packages whose sealing may run code of the project. They are sealed before the connection
        is busy."""
        self.results = Results(self._result, len(calls))
        for number, (args, kwargs) in zip(self._numbers, calls, strict=True):
            arguments, is_plain = snapshot(args, kwargs)
            refuse_wrong_arguments(task, *arguments)
            self._arguments.append(arguments)
            if not is_plain:
                self._packages[number] = self._alike.seal(number, arguments, is_plain=False)

    def copy(self) -> Results:
        """Insert the jobs by COPY in the open transaction."""
        like = self._like
        common = InCommon(like.task, like.queue, like.priority, like.enqueued_at, self._run_after)
        copy_jobs(self._alias, self._rows(), common)
        return self.results

    def sealed(self) -> Sealed:
        """Seal all packages, to store the jobs in another way."""
        like, stays_in_store = self._like, self._sealing.stays_in_store
        messages = [
            Message(
                id_of(number),
                like.task,
                like.queue,
                like.priority,
                package,
                self._run_after,
                like.enqueued_at,
                is_fresh=True,
                stays_in_store=stays_in_store,
            )
            for number, package in self._rows()
        ]
        return Sealed(messages, self.results)

    def _rows(self) -> Iterable[tuple[int, bytes]]:
        seal, sealed = self._alike.seal, self._packages
        for number, arguments in zip(self._numbers, self._arguments, strict=True):
            yield number, sealed.get(number) or seal(number, arguments, is_plain=True)

    def _result(self, place: int) -> Result[Any]:
        args, kwargs = self._arguments[place]
        job_id = id_of(self._numbers[place])
        package = replace(self._like, job_id=job_id, args=args, kwargs=kwargs)
        return self._sealing.result(package, self._run_after)


def are_alike(settings: Settings, task: Any) -> bool:
    """Return whether the packages of this task's jobs differ in ids and arguments only: no guard or
    signal needs single jobs, and serialising plain arguments runs no code of the project."""
    return not (is_guarded(task) or pre_enqueue.receivers or settings.serializer == "pickle")


AT_ONCE = 1000
"""Jobs per round trip."""
MANY = 50
"""Fewer calls are sealed one by one, and inserted by one statement: COPY needs several round
trips."""

AnyResults = TypeVar("AnyResults", bound=Sequence[Result[Any]])
Transaction = Callable[[], AbstractContextManager[Any]]


def enqueue(
    settings: Settings, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> Result[Any]:
    """Enqueue one job.

    Raises: see ``Task.enqueue``.
    """
    intake = _Intake(settings, task)
    sealed = Sealed.of(intake.sealing.seal([(args, kwargs)]))
    with explained(settings.database):
        (result,) = intake.send(sealed, nullcontext)
    return result


class Prepared:
    """A call that is checked and sealed, to be enqueued together with calls of other tasks.

    Raises: see ``Task.enqueue``.
    """

    def __init__(
        self, settings: Settings, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.intake = _Intake(settings, task)
        self.sealed = Sealed.of(self.intake.sealing.seal([(args, kwargs)]))


def enqueue_prepared(settings: Settings, calls: Sequence[Prepared]) -> list[Result[Any]]:
    """Enqueue calls in the store's open transaction. Calls that need nothing but an insert share
    one statement. Return the results in the same order.

    Raises: see ``Task.enqueue``.
    """
    results: list[Result[Any]] = []
    with explained(settings.database):
        simple = {id(one) for one in calls if one.intake.is_simple(one.sealed)}
        messages = [one.sealed.messages[0] for one in calls if id(one) in simple]
        if messages:
            broker_for(settings).enqueue(messages)
        for one in calls:
            if id(one) in simple:
                results += one.intake.note_stored(one.sealed)
            else:
                results += one.intake.send(one.sealed, nullcontext)
    return results


def enqueue_many(settings: Settings, task: Any, calls: Iterable[Call]) -> Sequence[Result[Any]]:
    """Enqueue a job for each call, in batches of a thousand: all or none, except that a broker
    outside the database may have some of them if it fails outside a transaction.

    Raises: see ``Task.enqueue``.
    """
    intake, calls = _Intake(settings, task), list(calls)
    own = partial(transaction.atomic, using=settings.database)
    if len(calls) >= MANY and are_alike(settings, task):
        alike = AlikeCalls(settings, task, intake.sealing, calls)
        if intake.may_copy:
            with explained(settings.database):
                return intake.store(alike.copy, own)
        sealed = alike.sealed()
    else:
        sealed = Sealed.of(intake.sealing.seal(calls))
    with explained(settings.database):
        return intake.send(sealed, own)


class _Intake:
    """Enqueues jobs of one task with the same options."""

    def __init__(self, settings: Settings, task: Any) -> None:
        self.task = task
        self.commitment = Commitment()
        self.sealing = Sealing(settings, task, self.commitment)
        self.broker = broker_for(settings)
        self._settings = settings
        self._alias = settings.database
        self._connection = connections[self._alias]
        self._is_unique = getattr(task, "unique", None) is not None
        self._neglected: set[UUID] = set()
        self._open_transaction = open_transaction(self._alias)
        self._is_inside = self.broker.capabilities.transactional
        """Whether all jobs are inserted into the store, within its transaction."""
        check_backend(task, self.broker)
        self._refuse_late_uniqueness()

    @property
    def may_copy(self) -> bool:
        """Return whether many jobs may be stored by COPY within the store's transaction."""
        return (
            self._open_transaction in (None, self._alias)
            and self.broker.capabilities.transactional
            and engine_of(self._alias).takes_copies
        )

    def is_simple(self, sealed: Sealed) -> bool:
        """Return whether these jobs only have to be inserted into the store, in its open
        transaction."""
        is_inside = self._open_transaction == self._alias
        return is_inside and all(map(self.broker.joins, sealed.messages)) and not self._is_unique

    def note_stored(self, sealed: Sealed) -> Sequence[Result[Any]]:
        """Announce jobs that were inserted in the open transaction."""
        self._after_commit()
        self._announce(sealed.results)
        return sealed.results

    def send(self, sealed: Sealed, own: Transaction) -> Sequence[Result[Any]]:
        """Store the jobs, and announce them once they are visible. Return the caller's results.

        Args:
            own: opens a transaction for all of them.
        """
        joining = set(map(self.broker.joins, sealed.messages))
        self._is_inside = joining <= {True}
        opened = self._open_transaction
        if opened is not None and not (opened == self._alias and self._is_inside):
            return self._put_off(opened, sealed, own)
        # some in the store, others in the broker: one commit decides about all
        if len(joining) > 1:
            with transaction.atomic(using=self._alias):
                return self._put_off(self._alias, sealed, own)
        return self.store(partial(self._write, sealed), own if self._is_inside else nullcontext)

    def _put_off(self, alias: str, sealed: Sealed, own: Transaction) -> Sequence[Result[Any]]:
        """Write the jobs to the outbox of a database with an open transaction. They are relayed
        when it commits."""
        with explained(alias):
            if is_certain := has_outbox(alias, self._alias):
                claims = [one.claim for one in sealed.newcomers]
                outbox.put(self._settings, alias, sealed.messages, claims)
        if is_certain:
            after_commit(alias, partial(self._relay, alias, sealed))
        else:  # if the process dies between the commit and this call, the jobs are lost
            transaction.on_commit(partial(self._store_late, sealed, own), using=alias)
        if not self._is_unique:
            self._announce(sealed.results)
        return sealed.results

    def _relay(self, alias: str, sealed: Sealed) -> None:
        """Relay the jobs after the commit, and update the results that the caller holds."""
        job_ids = [message.job_id for message in sealed.messages]
        told = outbox.relay_these(self._settings, alias, job_ids)
        self.commitment.is_made = True
        if told:  # results are made when they are read
            for job_id, given in zip(job_ids, sealed.results, strict=True):
                if job_id in told:
                    _become(given, told[job_id])
        if self._is_unique:
            self._announce(sealed.results)

    def _store_late(self, sealed: Sealed, own: Transaction) -> None:
        results = self._store(partial(self._write, sealed), own)
        if self._is_unique:
            for given, result in zip(sealed.results, results, strict=True):
                _become(given, result)
            self._announce(sealed.results)

    def store(self, write: Callable[[], AnyResults], own: Transaction) -> AnyResults:
        """Store the jobs in one transaction, and announce them. See ``send``."""
        results = self._store(write, own)
        self._announce(results)
        return results

    def _store(self, write: Callable[[], AnyResults], own: Transaction) -> AnyResults:
        """Store the jobs. Retry if the database aborted the transaction because of a conflict, and
        the transaction is ours."""

        def store() -> AnyResults:
            with own():
                return write()

        results = repeat_if_aborted(self._alias, store, _may_succeed)
        self._after_commit()
        return results

    def _write(self, sealed: Sealed) -> Sequence[Result[Any]]:
        """Write the jobs in batches. Return the results. A duplicate gets the result of the
        existing job."""
        results: list[Result[Any]] = []
        for start in range(0, len(sealed.messages), AT_ONCE):
            batch = slice(start, start + AT_ONCE)
            if self._is_unique:
                calls = Newcomers(self._settings, self.commitment, sealed.newcomers[batch])
                some, neglected = calls.store()
                results += some
                self._neglected |= neglected
            else:
                self.broker.enqueue(sealed.messages[batch])
        return results if self._is_unique else sealed.results

    def _after_commit(self) -> None:
        if not self._is_inside:
            self._commit()
        elif self._connection.in_atomic_block:
            after_commit(self._alias, self._commit)
        elif self._connection.get_autocommit():
            self._commit()
        # Otherwise the caller commits by hand, which cannot be observed: polling finds the jobs.

    def _commit(self) -> None:
        self.commitment.is_made = True
        if self._neglected:
            with suppress(DatabaseError):  # upkeep checks these keys, too
                look_after(self._alias, self._neglected)
        self.broker.wake_up({self.task.queue_name}, inside=self._is_inside)

    def _announce(self, results: Iterable[Result[Any]]) -> None:
        """Send Django's signal. Errors of receivers are logged and have no other effect."""
        if not is_heard(task_signals.task_enqueued, logging.DEBUG):
            return
        sender = type(task_backends[self._settings.alias])
        for result in results:
            if not result.was_duplicate:
                task_signals.task_enqueued.send_robust(sender, task_result=result)

    def _refuse_late_uniqueness(self) -> None:
        is_put_off = self._open_transaction not in (None, self._alias)
        if self._is_unique and is_put_off and self.task.unique.on_conflict == "raise":
            raise InvalidTask(
                f"{self.task.module_path} cannot be enqueued inside a transaction of "
                f"{self._open_transaction!r}: its jobs are stored when that is committed, too late "
                'for Unique(on_conflict="raise") to raise. Enqueue it outside, or in a transaction '
                f"of {self._alias!r}."
            )


def _become(given: Result[Any], result: Result[Any]) -> None:
    for name in (*(one.name for one in fields(result)), "_progress"):
        object.__setattr__(given, name, getattr(result, name))


def open_transaction(store: str) -> str | None:
    """Return the alias of the open transaction that decides whether the job will exist, or None.
    The store's own transaction has precedence, then one of a database with an outbox.

    On another database than the store's, only a transaction that Django commits counts. If the
    caller commits by hand, it may only read and never commit, and the job would be lost.
    """
    own: Any = connections[store]
    if own.in_atomic_block or commits_by_hand(own):
        return store
    opened = [
        one.alias
        for one in connections.all(initialized_only=True)
        if one.in_atomic_block and one.commit_on_exit
    ]
    if len(opened) < 2:
        return opened[0] if opened else None
    return next(filter(may_have_outbox, opened), opened[0])


def _may_succeed(error: Exception) -> bool:
    """Return whether the enqueue may succeed if its transaction is repeated."""
    return is_conflict(error) or isinstance(error, KeyInMotion)
