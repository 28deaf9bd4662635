"""Enqueue: a call becomes a job, in the caller's transaction.

The task is checked against the backend as it is now, the arguments against the function, and the
package is sealed, all before the database is touched: what is refused leaves no trace, and an open
transaction usable.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from django.db import connections, transaction

from stoker.brokers import broker_for
from stoker.brokers.base import Message
from stoker.compat import InvalidTask, TaskResultStatus, task_backends, task_signals
from stoker.conf import Settings
from stoker.exceptions import InvalidTaskOption
from stoker.ids import new_job_id
from stoker.models.job import moment
from stoker.options import as_timestamp, expires_at, options_of
from stoker.package import JobOptions, Package, sealer_for
from stoker.progress import JobState, Progress, explained
from stoker.results import Result
from stoker.signals import pre_enqueue
from stoker.waiting import Commitment

AT_ONCE = 1000
"""Jobs per round trip."""

Call = tuple[Iterable[Any], Mapping[str, Any]]


def enqueue(
    settings: Settings, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> Result[Any]:
    """Make one job.

    Raises: see ``Task.enqueue``.
    """
    line = _Line(settings, task)
    batch = line.prepare([(args, kwargs)])
    with explained(settings.database):
        line.send(batch)
    line.announce(batch)
    return batch[0][1]


def enqueue_many(settings: Settings, task: Any, calls: Iterable[Call]) -> list[Result[Any]]:
    """Make a job of each call, all or none, a thousand at a time.

    Raises: see ``Task.enqueue``.
    """
    line = _Line(settings, task)
    rest = iter(calls)
    batches: list[list[_Job]] = []
    with explained(settings.database), line.all_or_none():
        while part := list(islice(rest, AT_ONCE)):
            batch = line.prepare(part)
            line.send(batch)
            batches.append(batch)
    for batch in batches:
        line.announce(batch)
    return [result for batch in batches for _, result in batch]


_Job = tuple[Message, Result[Any]]


class _Line:
    """What is the same for all jobs of one task that are enqueued together."""

    def __init__(self, settings: Settings, task: Any) -> None:
        backend = task_backends[settings.alias]
        backend.validate_task(task)
        _refuse_script(task)
        self.settings = settings
        self.task = task
        self.sender = type(backend)
        self.broker = broker_for(settings)
        self.sealer = sealer_for(settings)
        self.options = options_of(task, settings)
        self.commitment = Commitment()
        self.open_transaction = _open_transaction(settings.database)
        self.joins_transaction = self.broker.capabilities.transactional and (
            self.open_transaction in (None, settings.database)
        )

    def prepare(self, calls: Sequence[Call]) -> list[_Job]:
        """Check and seal. Nothing is stored yet."""
        now = time.time()
        run_after = self._run_after(now)
        expires = expires_at(self.task, now)
        if expires is not None and run_after is not None and expires <= run_after:
            raise InvalidTaskOption(
                f"A job of {self.task.module_path} would expire before it may start: "
                "let expires be later than run_after."
            )
        options = JobOptions(
            max_attempts=self.options.max_attempts,
            max_crashes=self.options.max_crashes,
            timeout_seconds=self.options.timeout_seconds,
            expires_at=expires,
        )
        return [self._job(args, kwargs, now, run_after, options) for args, kwargs in calls]

    def send(self, batch: Sequence[_Job]) -> None:
        """Store the jobs; say so when they can be seen."""
        messages = [message for message, _ in batch]
        if self.joins_transaction:
            self.broker.enqueue(messages)
            self._after_commit(self._commit)
        elif self.open_transaction is not None:
            # The one place where an outbox belongs: a process that dies between that commit and
            # this loses the jobs.
            transaction.on_commit(lambda: self._relay(messages), using=self.open_transaction)
        else:
            self._relay(messages)

    def announce(self, batch: Sequence[_Job]) -> None:
        """Send Django's signal. A receiver that raises is logged, and harms nothing."""
        for _, result in batch:
            task_signals.task_enqueued.send_robust(self.sender, task_result=result)

    def all_or_none(self) -> Any:
        return transaction.atomic(using=self.settings.database)

    def _job(
        self,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        now: float,
        run_after: float | None,
        options: JobOptions,
    ) -> _Job:
        task, positional, named = self.task, tuple(args), dict(kwargs)
        _refuse_wrong_arguments(task, positional, named)
        package = Package(
            job_id=new_job_id(),
            task=task.module_path,
            args=positional,
            kwargs=named,
            queue=task.queue_name,
            priority=int(task.priority),
            enqueued_at=now,
            options=options,
            metadata=self._metadata(positional, named),
        )
        message = Message(
            job_id=package.job_id,
            task=package.task,
            queue=package.queue,
            priority=package.priority,
            package=self.sealer.seal(package),
            run_after=run_after,
            enqueued_at=now,
        )
        return message, self._result(package, run_after)

    def _metadata(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
        metadata: dict[Any, Any] = {}
        pre_enqueue.send_robust(
            self.sender, task=self.task, args=args, kwargs=kwargs, metadata=metadata
        )
        return {str(key): str(value) for key, value in metadata.items()}

    def _result(self, package: Package, run_after: float | None) -> Result[Any]:
        state = JobState.READY if run_after is None else JobState.DEFERRED
        return Result(
            task=self.task,
            id=str(package.job_id),
            status=TaskResultStatus.READY,
            enqueued_at=moment(package.enqueued_at),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(package.args),
            kwargs=package.kwargs,
            backend=self.settings.alias,
            errors=[],
            worker_ids=[],
            _progress=Progress(None, state),
            _commitment=self.commitment,
        )

    def _run_after(self, now: float) -> float | None:
        """When the jobs may start, in seconds since 1970."""
        delay = getattr(self.task, "run_after_seconds", None)
        if delay is not None:
            return now + float(delay)
        return None if self.task.run_after is None else as_timestamp(self.task.run_after)

    def _after_commit(self, then: Callable[[], None]) -> None:
        connection = connections[self.settings.database]
        if connection.in_atomic_block:
            transaction.on_commit(then, using=self.settings.database, robust=True)
        elif connection.get_autocommit():
            then()
        # Else the caller commits by hand, and nobody can be told when: polling finds the jobs.

    def _commit(self) -> None:
        self.commitment.is_made = True
        self.broker.wake_up({self.task.queue_name})

    def _relay(self, messages: Sequence[Message]) -> None:
        self.broker.enqueue(messages)
        self._commit()


def _open_transaction(store: str) -> str | None:
    """The database whose open transaction decides whether the job shall exist: the store's own
    before any other."""
    opened = [one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block]
    return store if store in opened else next(iter(opened), None)


def _refuse_script(task: Any) -> None:
    if task.module_path.startswith("__main__."):
        raise InvalidTask(
            f"No worker finds {task.module_path}: it is of the program that runs now. "
            "Move the function into a module of an app."
        )


def _refuse_wrong_arguments(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError here, where the mistake is, and not in a worker."""
    signature = _signature(task.func)
    if signature is None:
        return
    context = (None,) if task.takes_context else ()
    try:
        signature.bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"{task.module_path}{signature} does not take these arguments: {error}."
        ) from None


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
