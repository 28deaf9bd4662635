"""``drain()``: run the waiting jobs in this process and on its connections, as a cluster would."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connections

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.exceptions import PackageError, TransactionLeftOpen
from stoker.jobs.aftercare import Aftercare
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Cancelled, Failed, Outcome, Retried, Snoozed, Succeeded
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.jobs.results import Result, fetch
from stoker.models import PausedQueue
from stoker.store.transactions import roll_back_blocks

from .calls import call
from .store import bring_forward, promote_due

logger = logging.getLogger("stoker")

WORKER_ID = "test"
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that was made."""

    id: str
    """The id of the job."""
    task: str
    """Dotted path."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    attempt: int
    """Number of the attempt, from 1."""
    outcome: Outcome
    """A class of stoker.jobs.outcomes. Retried holds the delay that production would have used."""
    backend: str = field(repr=False)

    @property
    def result(self) -> Result[Any]:
        """The job's current result. Raises TaskResultDoesNotExist if it is not kept."""
        return fetch(settings_for(self.backend), self.id)

    def __str__(self) -> str:
        shown = call(self.task, self.args, self.kwargs)
        return f"{shown}, attempt {self.attempt}: {self.outcome.kind}"


class Drained(list[Ran]):
    """The attempts that were made, in order. ``str()`` shows one per line."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "Nothing was due."

    @property
    def succeeded(self) -> list[Ran]:
        return [ran for ran in self if isinstance(ran.outcome, Succeeded)]

    @property
    def failed(self) -> list[Ran]:
        """Attempts that ended their job and wrote a dead letter."""
        return [ran for ran in self if isinstance(ran.outcome, Failed)]

    @property
    def retried(self) -> list[Ran]:
        """Attempts that failed and were followed by another one."""
        return [ran for ran in self if isinstance(ran.outcome, Retried)]

    @property
    def snoozed(self) -> list[Ran]:
        return [ran for ran in self if isinstance(ran.outcome, Snoozed)]

    @property
    def cancelled(self) -> list[Ran]:
        return [ran for ran in self if isinstance(ran.outcome, Cancelled)]

    def check(self) -> None:
        """Raise AssertionError with the tracebacks if a job failed for good."""
        if failed := self.failed:
            told = [f"{ran}\n{_story(ran.outcome)}" for ran in failed]
            raise AssertionError(
                f"{len(failed)} of {len(self)} attempts failed:\n\n" + "\n".join(told)
            )


def drain(
    backend: str = "default",
    *,
    queues: Sequence[str] | None = None,
    until_empty: bool = True,
    include_deferred: bool = False,
    most: int = MOST,
) -> Drained:
    """Run the due jobs in this process and on its connections, highest priority first.

    Failed jobs are retried at once, up to their ``max_attempts``. Snoozed jobs and jobs in paused
    queues keep waiting.

    Args:
        backend: an alias in ``TASKS``.
        queues: run only these queues; None = those that a cluster of this backend serves.
        until_empty: continue with newly enqueued jobs and next attempts until nothing is due.
            False: make one attempt of each job that is due now.
        include_deferred: run jobs that are deferred now, too. Jobs that are deferred or snoozed
            meanwhile still wait.
        most: maximum number of attempts.

    Raises:
        AssertionError: after ``most`` attempts jobs are still due.
    """
    runner = JobRunner(backend, queues)
    if include_deferred:
        bring_forward(runner.broker, runner.queues)
    return runner.run(most) if until_empty else runner.run_once(most)


class JobRunner:
    """A worker's loop in this process."""

    def __init__(self, backend: str, queues: Sequence[str] | None = None) -> None:
        self.settings = settings_for(backend)
        self.broker = broker_for(self.settings)
        self.queues = tuple(queues or self.settings.queues)
        self._holder = uuid.uuid4()
        self._aftercare = TestAftercare()
        self._executor = Executor(self.settings, worker_id=WORKER_ID, aftercare=self._aftercare)

    def run(self, most: int = MOST) -> Drained:
        """Run jobs one by one until none is due. As in a worker, a more urgent new job runs
        next."""
        self._prepare()
        ran = Drained()
        while deliveries := self._claim(1):
            if len(ran) == most:
                raise AssertionError(
                    f"{most} attempts were made, and jobs are still due. "
                    f"Does a task enqueue itself for ever? The last ones:\n{_lines(ran[-5:])}"
                )
            ran.append(self._try(deliveries[0]))
        return ran

    def run_once(self, most: int = MOST) -> Drained:
        """Make one attempt of each job that is due now."""
        self._prepare()
        return Drained(self._try(delivery) for delivery in self._claim(most))

    def _prepare(self) -> None:
        """Cancel jobs on request, as upkeep does, and move due jobs to the ready table. In a
        TestCase nothing is committed, so requests made in a transaction are not carried out
        before."""
        sweep_requests(self.settings)
        promote_due(self.broker)

    def _claim(self, limit: int) -> list[Delivery]:
        paused = PausedQueue.objects.using(self.settings.database).names()
        lease_seconds = self.settings.lease_seconds
        return self.broker.claim(
            ClaimRequest(limit, self._holder, lease_seconds, self.queues, paused)
        )

    def _try(self, delivery: Delivery) -> Ran:
        self._aftercare.before()
        with _between_savepoints():
            attempted = self._executor.run(delivery)
        if not attempted.is_recorded:
            with _between_savepoints():  # what follows may be done on commit
                finish(self.settings, self.broker, [_without_waiting(attempted)])
        return self._told(attempted)

    def _told(self, attempted: Attempted) -> Ran:
        delivery = attempted.delivery
        task, args, kwargs = "(a package that cannot be opened)", (), dict[str, Any]()
        try:
            package = sealer_for(self.settings).open(delivery.package)
            task, args, kwargs = package.task, package.args, package.kwargs
        except PackageError:
            pass  # the outcome says so
        return Ran(
            id=str(delivery.job_id),
            task=task,
            args=args,
            kwargs=kwargs,
            queue=delivery.queue,
            attempt=delivery.attempt,
            outcome=attempted.outcome,
            backend=self.settings.alias,
        )


class TestAftercare(Aftercare):
    """Rolls back what a task leaves open, as a worker does, and keeps the test's transaction."""

    __test__ = False  # for pytest

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, bool]] = {}

    def before(self) -> None:
        """Note the open transactions before a task begins."""
        self._before = {
            one.alias: (len(one.atomic_blocks), one.autocommit) for one in _connections()
        }

    def after_sync(self, besides: str | None) -> None:
        left_open = [
            one.alias for one in _connections() if one.alias != besides and self._left_open(one)
        ]
        if left_open:
            raise TransactionLeftOpen(
                "The task ended inside a transaction on the database "
                f"{' and '.join(map(repr, left_open))}. It was rolled back, and what the task "
                "wrote in it is lost. End each transaction that the task begins."
            )

    def _left_open(self, connection: Any) -> bool:
        of_settings = connection.settings_dict["AUTOCOMMIT"]
        depth, had_autocommit = self._before.get(connection.alias, (0, of_settings))
        has_blocks = roll_back_blocks(connection, depth, TransactionLeftOpen())
        if connection.in_atomic_block or connection.autocommit or not had_autocommit:
            return has_blocks
        connection.rollback()
        connection.set_autocommit(True)
        return True


@contextmanager
def _between_savepoints() -> Iterator[None]:
    """Let code in the block run as if no transaction were open, although a test's transaction is.

    A failed statement is rolled back to a savepoint, and functions registered with ``on_commit``
    run at once.
    """
    opened = [
        (connection, connection.savepoint(), len(connection.run_on_commit))
        for connection in _connections()
        if connection.in_atomic_block
    ]
    yield
    for connection, savepoint, known in opened:
        if connection.needs_rollback or not connection.is_usable():
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
            del connection.run_on_commit[known:]
        else:
            connection.savepoint_commit(savepoint)
            _run_hooks(connection, known)


def _connections() -> list[Any]:
    return list(connections.all(initialized_only=True))


def _run_hooks(connection: Any, known: int) -> None:
    """Run the functions that the job registered with ``on_commit``, as a commit would do."""
    while hooks := connection.run_on_commit[known:]:
        del connection.run_on_commit[known:]
        for _, hook, is_robust in hooks:
            try:
                hook()
            except Exception:
                if not is_robust:
                    raise
                logger.exception("An on_commit hook failed.")


def _without_waiting(attempted: Attempted) -> Attempted:
    outcome = attempted.outcome
    if isinstance(outcome, Retried):
        return replace(attempted, outcome=replace(outcome, delay_seconds=0.0))
    return attempted


def _story(outcome: Outcome) -> str:
    if not isinstance(outcome, Failed):
        return ""
    return outcome.fault.traceback or f"{outcome.fault.exception_class}: {outcome.fault.message}\n"


def _lines(some: Sequence[Ran]) -> str:
    return "\n".join(f"  {ran}" for ran in some)
