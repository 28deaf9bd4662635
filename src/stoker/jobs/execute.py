"""Open a package, find its task, run it, and return the outcome. Tasks are called only here."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from contextvars import Token, copy_context
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NoReturn, TypeVar

from asgiref.sync import async_to_sync, sync_to_async

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Delivery
from stoker.brokers.dispatch import Dispatch
from stoker.compat import InvalidTask, TaskContext
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    PackageError,
    Snooze,
    TaskTimeout,
    TransactionLeftOpen,
    UnknownTask,
    UnreadablePackage,
)
from stoker.jobs.failures import tell_failure
from stoker.store.engines import LARGE_BYTES, engine_of
from stoker.store.transactions import after_commit, autocommit, inner_blocks_closed
from stoker.store.written import moment
from stoker.tasks.options import options_of
from stoker.tasks.registry import task_of

from . import outcomes
from .aftercare import Aftercare, raise_own_cancellation
from .attempt_signals import (
    AttemptSignals,
    are_signals_heard,
    has_project_receivers,
    running_result,
    set_end,
)
from .faults import fault_of
from .once import is_once, note_begin
from .outcomes import Attempted, Outcome
from .package import Package, sealer_for
from .received import each_of, package_as_sealed, with_received
from .record import Recorder
from .results import Result
from .retries import UNREACHABLE_DELAY_SECONDS, decide, expired, unopened, unprepared
from .running import FoundTask, Running, current, is_ctrl_c, message, time_limit

logger = logging.getLogger("stoker")

T = TypeVar("T")
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Coroutine function that calls a function in another thread, and returns its value."""


async def in_django_thread(call: Callable[[], Any]) -> Any:
    """Call a function in the thread that async code uses for the ORM."""
    return await sync_to_async(call)()


def run_and_record(
    settings: Settings, run: Callable[[], T], attempted_of: Callable[[T], Attempted]
) -> tuple[T, bool]:
    """Run a task and record its success in one transaction on the store's database.

    Args:
        run: runs the task, with its time limit. The limit must be over before recording.
        attempted_of: returns the attempt, given the result of ``run``.

    Returns:
        The result of ``run``, and whether the lease has ended. It has not ended if the job waits
        at a broker outside the store, because it was enqueued before its task got ``atomic=True``.
        The success is recorded then, too, and the caller has to record it again to end the lease.

    Raises:
        LeaseLost: the lease was lost. Nothing is written, and the caller must not record anything.
        TransactionLeftOpen: the task has not left a block of ``transaction.atomic()``.
        Exception: the error of the task or of the COMMIT. The caller records it, unless the lease
            is stale.
    """
    alias, broker = settings.database, broker_for(settings)
    if not broker.capabilities.atomic:
        raise InvalidTask(
            "A task with atomic=True needs a queue in the database, but the broker is "
            f"{broker.info()['broker']}."
        )
    is_committed: list[bool] = []
    try:
        with autocommit(alias), engine_of(alias).atomic_task():
            # Registered before the task's own callbacks, which may raise after the commit.
            after_commit(alias, lambda: is_committed.append(True))
            with inner_blocks_closed(alias):
                ran = run()
            has_ended = _record(settings, broker, attempted_of(ran))
    except Exception:
        if not is_committed:
            raise
        logger.exception("An on_commit hook failed; its job is done and recorded nevertheless.")
    return ran, has_ended


def _record(settings: Settings, broker: Dispatch, attempted: Attempted) -> bool:
    """Record a success in the open transaction. Return whether its lease has ended."""
    try:
        return Recorder(settings, broker).record_in_task(attempted)
    except BrokerUnavailable as error:
        if broker.is_inside(attempted.delivery.lease_id):
            raise
        # Only the broker outside the store knows whether the lease is still valid.
        raise Snooze(UNREACHABLE_DELAY_SECONDS, str(error)) from error


class _NeedsThread(Exception):
    """Opening this delivery may block, so it must not be done on an event loop."""


def _leave_to_thread(*_: object) -> NoReturn:
    raise _NeedsThread


MOST_FOUND = 10_000
"""Limit of cached tasks, because plain functions that are called by path may be many."""


class Executor:
    """Runs deliveries, one after another or concurrently. Caches nothing but tasks.

    Args:
        settings: settings of the backend.
        worker_id: id of the worker as results show it.
        limit: returns the soft time-out for a sync task.
        aftercare: called as soon as a task's function has ended.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        worker_id: str,
        limit: Callable[[float | None], AbstractContextManager[None]] = time_limit,
        aftercare: Aftercare | None = None,
    ) -> None:
        self.settings = settings
        self.worker_id = worker_id
        self._limit = limit
        self._aftercare = aftercare or Aftercare()
        self._sealer = sealer_for(settings)
        self._signals = AttemptSignals(settings)
        self._found: dict[str, FoundTask] = {}
        """Name, and the path of the task that runs it if it is a plain function -> task."""
        self._importing = threading.Lock()

    def run(self, delivery: Delivery) -> Attempted:
        """Run one attempt in this thread: open the package, run the task, return the outcome.
        Raises only KeyboardInterrupt, and only outside of a cluster's worker."""
        running = self.open(delivery)
        return self.run_opened(running) if isinstance(running, Running) else running

    def run_opened(self, running: Running) -> Attempted:
        """Run a job in a context of its own. What its task sets there, such as the language or the
        time zone, has no effect on later jobs."""
        return copy_context().run(self._run_in_context, running)

    def _run_in_context(self, running: Running) -> Attempted:
        if running.found.is_once and (refused := self._refused(running)):
            return refused
        token, is_recorded = self._announce(running), False
        try:
            if running.result is not None:
                self._signals.send_start(running.result)
            if running.found.is_atomic:
                (value, outcome), is_recorded = self._complete(running)
            else:
                value, outcome = self._try(running)
        except BaseException as error:  # an error of the task is its outcome, whatever its class
            if is_ctrl_c(error):
                raise
            return self._reported(running, self._raised(running, error))
        else:
            attempted = self._reported(running, self._concluded(running, outcome, value))
            return replace(attempted, is_recorded=True) if is_recorded else attempted
        finally:
            current.reset(token)

    async def run_opened_async(
        self, running: Running, in_thread: InThread = in_django_thread
    ) -> Attempted:
        """Async version of ``run_opened``, for an ``async def`` task on the running event loop.

        Args:
            running: the job.
            in_thread: calls the project's receivers, ``backoff`` and what reads or writes in the
                store in another thread, because they may block.
        """
        if running.found.is_once:
            refused: Attempted | None = await in_thread(partial(self._refused, running))
            if refused is not None:
                return refused
        token = self._announce(running)
        result = running.result
        is_told = result is not None and has_project_receivers()
        try:
            if result is not None:
                send_start = partial(self._signals.send_start, result)
                await in_thread(send_start) if is_told else send_start()
            value, sealed = await self._await_and_seal(running)
            if len(sealed) >= LARGE_BYTES:
                await in_thread(partial(self._refuse_too_large, sealed))
            outcome: Outcome = outcomes.Succeeded(sealed)
        except BaseException as error:  # an error of the task is its outcome, whatever its class
            if is_ctrl_c(error):
                raise
            attempted = await in_thread(partial(self._raised_in_thread, running, error))
            return self._reported(running, attempted)
        else:
            conclude = partial(self._concluded, running, outcome, value)
            attempted = await in_thread(conclude) if is_told else conclude()
            return self._reported(running, attempted)
        finally:
            current.reset(token)

    def open(self, delivery: Delivery) -> Running | Attempted:
        """Open a delivery. Return the job ready to run, or a finished attempt if it cannot be
        run."""
        return self._open(delivery, self._find, self._not_run)

    def open_without_blocking(self, delivery: Delivery) -> Running | None:
        """Open a delivery on an event loop. Return None if ``open`` has to do it in a thread: to
        import the task's module, or to tell receivers that the job cannot be run."""
        try:
            opened = self._open(delivery, _leave_to_thread, _leave_to_thread)
        except _NeedsThread:
            return None
        assert isinstance(opened, Running)
        return opened

    def _open(
        self,
        delivery: Delivery,
        find: Callable[[Package], FoundTask],
        not_run: Callable[..., Attempted],
    ) -> Running | Attempted:
        started_at = time.time()
        if delivery.refused:
            return not_run(delivery, started_at, outcomes.Cancelled(delivery.refused))
        package = None
        try:
            package = self._sealer.open(delivery.package)
            if package.job_id.int != delivery.job_id.int:
                raise UnreadablePackage(
                    f"The package is signed for job {package.job_id}, not for {delivery.job_id}."
                )
            options = package.options
            expires_at = options.expires_at
            if expires_at is not None and started_at >= expires_at:
                outcome = expired(started_at - expires_at)
                return not_run(delivery, started_at, outcome, package)
            found = self._found.get(
                f"{package.task} {options.via}" if options.via else package.task
            ) or find(package)
        except (PackageError, UnknownTask) as error:
            if not_run is _leave_to_thread:  # the grace period is read from the store
                raise _NeedsThread from error
            outcome = unopened(self.settings, error, delivery)
            return not_run(delivery, started_at, outcome, package)
        try:
            if options.receives:
                package = with_received(self.settings, package)
            function = found.task.func
            if options.each:
                function = each_of(function, options.each)
            seconds = options.timeout_seconds
            if found.is_atomic:
                seconds = self._atomic_limit(seconds)
            running = Running(
                delivery, package, found, self.settings.alias, started_at, function, seconds
            )
            if delivery.attempt > 1 or found.task.takes_context or are_signals_heard():
                running.result = self._show(running, package)
            return running
        except Exception as error:  # noqa: BLE001 - recorded like any failed attempt
            outcome = unprepared(error, package, delivery)
            return not_run(delivery, started_at, outcome, package)

    def _find(self, package: Package) -> FoundTask:
        with self._importing:  # of two modules that import each other, a thread could get a part
            task = task_of(package)
        is_atomic = getattr(task, "atomic", False)
        is_async = iscoroutinefunction(task.func)
        via = package.options.via
        if len(self._found) >= MOST_FOUND:
            self._found.clear()
        found = FoundTask(task, is_async, is_atomic, is_once(task))
        self._found[f"{package.task} {via}" if via else package.task] = found
        return found

    def _atomic_limit(self, seconds: float | None) -> float | None:
        """Return the time limit of a task. It is reduced for an atomic task on SQLite, which blocks
        all other writers, including the pusher that extends leases."""
        if engine_of(self.settings.database).has_one_writer:
            longest = self.settings.lease_seconds / 2
            return longest if seconds is None else min(seconds, longest)
        return seconds

    def _result(self, running: Running) -> Result[Any]:
        """Return the result object of the attempt for signals and the task's context."""
        if running.result is None:
            running.result = self._show(running, package_as_sealed(self.settings, running))
        return running.result

    def _show(self, running: Running, package: Package) -> Result[Any]:
        return running_result(self.settings, running, package, self.worker_id)

    def _complete(self, running: Running) -> tuple[tuple[Any, outcomes.Succeeded], bool]:
        """Run an atomic task and record its success, in one transaction. Return the task's result
        with its outcome, and whether the job's lease has ended."""

        def attempted(ran: tuple[Any, outcomes.Succeeded]) -> Attempted:
            running.on_completing()
            started_at = running.started_at
            return Attempted(running.delivery, ran[1], self.worker_id, started_at, time.time())

        return run_and_record(self.settings, lambda: self._try(running), attempted)

    def _try(self, running: Running) -> tuple[Any, outcomes.Succeeded]:
        if running.timeout_seconds is None:
            value, sealed = self._call_and_seal(running)
        else:
            with running.hard_limit:
                value, sealed = self._call_and_seal(running)
        if len(sealed) >= LARGE_BYTES:
            self._refuse_too_large(sealed)
        return value, outcomes.Succeeded(sealed)

    def _refuse_too_large(self, sealed: bytes) -> None:
        """Raise an error if the sealed return value is larger than the database accepts."""
        if self.settings.results_cache is None:
            engine_of(self.settings.database).refuse_too_large(sealed)

    def _call_and_seal(self, running: Running) -> tuple[Any, bytes]:
        besides = self.settings.database if running.found.is_atomic else None
        try:
            value = self._call(running)
        except BaseException:
            with suppress(TransactionLeftOpen):  # the task's own error takes precedence
                self._aftercare.after_sync(besides)
            raise
        self._aftercare.after_sync(besides)
        return value, self._seal(running, value)

    def _seal(self, running: Running, value: Any) -> bytes:
        """Serialise the return value. Called within the hard time-out, because that may call code
        of the project."""
        running.has_returned = True
        return self._sealer.seal_value(value)

    def _call(self, running: Running) -> Any:
        if running.found.is_async:
            return async_to_sync(self._await)(running)
        with running.interruption:
            running.interruption.check()
            if running.timeout_seconds is None:
                return running.function(*self._arguments(running), **running.package.kwargs)
            with self._limit(running.timeout_seconds):
                return running.function(*self._arguments(running), **running.package.kwargs)

    async def _await_and_seal(self, running: Running) -> tuple[Any, bytes]:
        before = self._aftercare.before_async()
        try:
            with running.hard_limit:
                try:
                    value = await self._await(running)
                except BaseException:
                    if running.has_timed_out or running.interruption.reason is not None:
                        await self._aftercare.wait_for_calls(running)
                    raise
                sealed = self._seal(running, value)
        except BaseException:
            # Not within the hard time-out: a kill would replace the task's own error.
            await self._aftercare.wait_for_calls(running)
            with suppress(TransactionLeftOpen):  # as in _call_and_seal
                await self._aftercare.after_async(before)
            raise
        await self._aftercare.after_async(before)
        return value, sealed

    async def _await(self, running: Running) -> Any:
        positional = self._arguments(running)
        seconds = running.timeout_seconds
        try:
            with running.interruption.of_coroutine():
                async with asyncio.timeout(seconds) as running.soft_limit:
                    try:
                        return await running.function(*positional, **running.package.kwargs)
                    finally:
                        self._aftercare.leave_forked_child()
                        await raise_own_cancellation()
        except TimeoutError as error:
            if running.has_timed_out and seconds is not None and not isinstance(error, TaskTimeout):
                raise TaskTimeout(message(seconds)) from error
            raise

    def _arguments(self, running: Running) -> tuple[Any, ...]:
        if running.found.task.takes_context:
            return (TaskContext(task_result=self._result(running)), *running.package.args)
        return running.package.args

    def _refused(self, running: Running) -> Attempted | None:
        """Record the start of a job that must not start twice. If it has started before, return the
        finished attempt."""
        try:
            note_begin(self.settings, running.package, self.worker_id)
        except Exception as error:  # noqa: BLE001 - recorded like any failed attempt
            outcome = unprepared(error, running.package, running.delivery)
            return self._not_run(running.delivery, running.started_at, outcome, running.package)
        return None

    def _announce(self, running: Running) -> Token[Running | None]:
        """Make this attempt the current job, log it and tell the reporters. Return the token that
        resets it."""
        token = current.set(running)
        running.log_start()
        if running.result is not None:
            self._signals.report_start(running.result)
        return token

    def _reported(self, running: Running, attempted: Attempted) -> Attempted:
        """Tell the reporters that the attempt has ended, and return it."""
        if running.result is not None:
            self._signals.report_end(running.result, attempted.outcome)
        return attempted

    def _raised_in_thread(self, running: Running, error: BaseException) -> Attempted:
        """``_raised`` in another thread than the task's, where the error is not being handled."""
        trace = error.__traceback__
        try:
            raise error  # noqa: TRY301 - raised only to be handled
        except BaseException:  # noqa: BLE001 - it is whatever the task raised
            return self._raised(running, error.with_traceback(trace))

    def _raised(self, running: Running, error: BaseException) -> Attempted:
        """Return the finished attempt for an error. Called inside the except block, because
        receivers of task_finished may use sys.exc_info()."""
        outcome: Outcome
        if running.interruption.is_behind(error):
            outcome = outcomes.Cancelled(running.interruption.reason or "")
        elif isinstance(error, PackageError) and running.has_returned:
            outcome = outcomes.Failed(fault_of(error))
        else:
            # max_attempts may be set per job by using(), and is part of its package.
            max_attempts = running.package.options.max_attempts
            options = replace(
                options_of(running.found.task, self.settings), max_attempts=max_attempts
            )
            outcome = decide(error, options, running.delivery.attempt, self._result(running))
            if running.found.is_once and isinstance(outcome, outcomes.Snoozed | outcomes.Retried):
                outcome = outcomes.Failed(fault_of(error))
        return self._concluded(running, outcome)

    def _concluded(self, running: Running, outcome: Outcome, value: Any = None) -> Attempted:
        finished_at = time.time()
        package = running.package
        attempted = Attempted(
            running.delivery,
            outcome,
            self.worker_id,
            running.started_at,
            finished_at,
            task=package.task,
            enqueued_at=package.enqueued_at,
        )
        if running.is_logged:
            running.log_end(outcome, finished_at - running.started_at)
        if running.result is None and isinstance(outcome, outcomes.Succeeded):
            return attempted
        if isinstance(outcome, outcomes.Failed | outcomes.Retried):
            as_sealed = partial(package_as_sealed, self.settings, running)
            tell_failure(self.settings, attempted, package, as_sealed=as_sealed)
        result = self._result(running)
        set_end(result, outcome, value, moment(finished_at))
        self._signals.send_end(result, outcome)
        return attempted

    def _not_run(
        self, delivery: Delivery, at: float, outcome: Outcome, package: Package | None = None
    ) -> Attempted:
        task = "" if package is None else package.task
        attempted = Attempted(delivery, outcome, self.worker_id, at, time.time(), task=task)
        tell_failure(self.settings, attempted, package)
        return attempted
