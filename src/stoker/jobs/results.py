"""Results of jobs: fetch them, wait for them, cancel the jobs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import InitVar, dataclass, fields, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.transaction import TransactionManagementError

from stoker.compat import DjangoTaskResult, TaskResultDoesNotExist, TaskResultStatus
from stoker.conf import Settings, settings_for
from stoker.exceptions import BrokerUnavailable, JobCancelled, JobFailed, ResultTimeout, as_seconds
from stoker.models import Cluster, Job, Note
from stoker.models.note import ProgressReport
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained
from stoker.store.written import moment
from stoker.values.codec import copied
from stoker.values.ids import parse_job_id

from .cancel import cancel
from .package import sealer_for
from .states import (
    JobState,
    Progress,
    full_progress_of,
    full_progress_of_one,
    not_there,
    package_of,
    progress_of_one,
    task_of,
)

logger = logging.getLogger("stoker")
R = TypeVar("R")

AT_ONCE = 500


class _Seen(DjangoTaskResult):  # type: ignore[type-arg] # generic in the stubs and the backport only
    """Attributes that are not dataclass fields, so that ``dataclasses.asdict`` shows only the
    fields of Django's results."""

    __slots__ = ("_commitment", "_progress", "_running_attempt")

    _progress: Progress | None
    _commitment: Commitment | None
    """None if the job was read from the store, because then it is committed or was written by the
    open transaction."""
    _running_attempt: int
    """The attempt that this result was made for and that runs here; 0 = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(_Seen, Generic[R]):  # type: ignore[misc] # frozen at run time
    """A TaskResult of ``django.tasks`` that can also be waited for and cancelled.

    It shows the job as it was when it was enqueued, fetched or last refreshed.
    """

    was_duplicate: bool = False
    """True if ``enqueue`` created no job, because this job with the same unique key exists."""
    _first_progress: InitVar[Progress | None] = None
    _first_commitment: InitVar[Commitment | None] = None
    _own_attempt: InitVar[int] = 0

    def __post_init__(
        self,
        _first_progress: Progress | None,
        _first_commitment: Commitment | None,
        _own_attempt: int,
    ) -> None:
        """Copy the arguments as the task receives them, with dates and tuples, unlike Django's JSON
        values."""
        object.__setattr__(self, "args", copied(list(self.args)))
        object.__setattr__(self, "kwargs", copied(dict(self.kwargs)))
        object.__setattr__(self, "_progress", _first_progress)
        object.__setattr__(self, "_commitment", _first_commitment)
        object.__setattr__(self, "_running_attempt", _own_attempt)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy and pickle it. Up to Python 3.11.2, `dataclass` replaces a
        `__getstate__`."""
        names = [*(one.name for one in fields(self)), *_Seen.__slots__]
        return _restored, (type(self), {name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return f"<Result {self.id} of {self.task.module_path} {self.state.value}>"

    @property
    def state(self) -> JobState:
        """Stoker's own state. ``status`` has only Django's four values."""
        if self._progress is not None and self._progress.state.for_django == self.status:
            return self._progress.state
        return JobState(self.status.value)

    @property
    def attempts(self) -> int:
        """Number of attempts that were begun."""
        known = self._progress.attempts if self._progress is not None else 0
        return max(known, len(self.worker_ids))

    @property
    def return_value(self) -> R:
        """The task's return value.

        Raises:
            ValueError: the job has not finished, or has failed.
            UnreadablePackage: the value was stored in a format that this process does not read.
        """
        value = DjangoTaskResult.return_value.fget(self)  # type: ignore[attr-defined] # a property
        job = self._progress.job if self._progress is not None else None
        if value is None and job is not None and job.value is not None:
            value = sealer_for(settings_for(self.backend)).open_value(bytes(job.value))
            object.__setattr__(self, "_return_value", value)
        return cast(R, value)

    @property
    def progress(self) -> ProgressReport | None:
        """The job's last report by ``stoker.job.progress``, or None. Each access reads it from the
        store, which keeps it for at least ten minutes.
        """
        alias = settings_for(self.backend).database
        with explained(alias):
            return Note.objects.using(alias).report_of(UUID(self.id))

    @property
    def job(self) -> Job:
        """The row of the job. The row is unsaved if the job waits or runs in Redis or MongoDB.

        Raises:
            TaskResultDoesNotExist: there is no row yet, or it has been deleted.
        """
        if self._progress is None or self._progress.job is None:
            self._take(full_progress_of_one(settings_for(self.backend), UUID(self.id)))
        if self._progress is None or self._progress.job is None:
            raise not_there(self.id)
        return self._progress.job

    def refresh(self) -> None:
        """Read the job's state again.

        Raises:
            TaskResultDoesNotExist: the job does not exist (any more).
        """
        self._take(progress_of_one(settings_for(self.backend), UUID(self.id)))

    async def arefresh(self) -> None:
        """Do the same as ``refresh`` without blocking the event loop."""
        await sync_to_async(self.refresh, thread_sensitive=True)()

    def wait(self, timeout: float | timedelta | None = None, *, poll_seconds: float = 0.5) -> R:
        """Wait for the end of the job, and return the task's return value.

        Args:
            timeout: seconds or a timedelta; 0 or less = look once; None = no limit.
            poll_seconds: the longest pause between two queries; the first pauses are a few ms.

        Raises:
            TypeError: ``timeout`` is neither a number nor a timedelta.
            ResultTimeout: the job had not ended by then. It continues.
            JobFailed, JobCancelled: the job failed or was cancelled.
            TaskResultDoesNotExist: the job does not exist (any more).
            TransactionManagementError: the open transaction could never see the job end.
            BrokerUnavailable: the store is unreachable at the end of the time-out. Without a
                time-out: the store has been unreachable for five minutes. In a transaction: the
                store became unreachable, since the transaction is lost.
        """
        waiting = WaitState(settings_for(self.backend), timeout)
        for pause in pauses(timeout, poll_seconds):
            if self._is_seen_to_have_ended(waiting):
                return self._ending()
            time.sleep(pause)
        return self._late_ending(waiting, timeout)

    async def wait_async(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - as wait() has it
        *,
        poll_seconds: float = 0.5,
    ) -> R:
        """Async version of ``wait``. ``await result`` waits without a limit."""
        waiting = WaitState(settings_for(self.backend), timeout)
        has_ended = sync_to_async(self._is_seen_to_have_ended, thread_sensitive=True)
        for pause in pauses(timeout, poll_seconds):
            if await has_ended(waiting):
                return self._ending()
            await asyncio.sleep(pause)
        return await sync_to_async(self._late_ending, thread_sensitive=True)(waiting, timeout)

    def __await__(self) -> Generator[Any, None, R]:
        return self.wait_async().__await__()

    def cancel(self, reason: str = "") -> bool:
        """Withdraw the job if it waits, even for a retry, or request its end if it runs.

        A running async task gets CancelledError, a sync task TaskCancelled, within about a second.
        A task that goes on for ``TIMEOUT_GRACE_SECONDS`` after that is killed. Raises
        TransactionManagementError if autocommit is off and the job is in another database's outbox.

        Args:
            reason: stored with the job, at most 255 characters.

        Returns:
            True: the job is CANCELLED, or its end was requested while it is RUNNING (see
                ``state``); it may still succeed. False: it has ended or does not exist.
        """
        unstored = Job(
            pk=UUID(self.id),
            task=self.task.module_path,
            queue=self.task.queue_name,
            priority=self.task.priority,
            package=b"",
            enqueued_at=self.enqueued_at or moment(time.time()),
        )
        is_cancelled = cancel(settings_for(self.backend), unstored, reason)
        if is_cancelled:
            with suppress(TaskResultDoesNotExist):  # it has just ended, and its row was deleted
                self.refresh()
        return is_cancelled

    async def acancel(self, reason: str = "") -> bool:
        """Async version of ``cancel``."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(reason)

    def _with(self, **changes: Any) -> Result[R]:
        """Return a copy with these attributes changed."""
        changed = replace(self)
        unchanged = {name: getattr(self, name) for name in _Seen.__slots__}
        for name, value in {**unchanged, **changes}.items():
            object.__setattr__(changed, name, value)
        return changed

    def _take(self, progress: Progress) -> None:
        job = progress.job
        is_own = (
            progress.state == JobState.CLAIMED and progress.attempts == self._running_attempt - 1
        )
        if is_own:  # its cluster has not sent a heartbeat since it started
            progress = replace(progress, state=JobState.RUNNING)
        seen: dict[str, Any] = {
            "_progress": progress,
            "status": progress.state.for_django,
            "started_at": progress.started_at,
            "last_attempted_at": progress.last_attempted_at,
            "finished_at": job.finished_at if job is not None else None,
            "errors": progress.errors,
            "worker_ids": progress.worker_ids,
            "_return_value": None,
        }
        if job is not None:
            seen["enqueued_at"] = job.enqueued_at
        if is_own:
            for name in ("started_at", "last_attempted_at", "worker_ids"):
                del seen[name]
        for name, value in seen.items():
            object.__setattr__(self, name, value)

    def _is_seen_to_have_ended(self, waiting: WaitState) -> bool:
        """Look once and return whether the job has ended. While the store is unreachable, return
        False."""
        try:
            has_ended = self._has_ended()
            if not has_ended:
                waiting.warn_once_without_cluster(f"job {self.id}")
        except BrokerUnavailable as error:
            waiting.goes_on(error)
            return False
        waiting.is_over()
        if not has_ended:
            refuse_endless_wait(settings_for(self.backend).database, self.id, self._commitment)
        return has_ended

    def _has_ended(self) -> bool:
        """Query only the status, and refresh everything if it has changed."""
        if self.is_finished:
            return True
        settings = settings_for(self.backend)
        with explained(settings.database):
            rows = Job.objects.using(settings.database).filter(pk=self.id)
            status = list(rows.values_list("status", flat=True))
        if status != [None]:
            self.refresh()
        return self.is_finished

    def _ending(self) -> R:
        if self.status == TaskResultStatus.SUCCESSFUL:
            return self.return_value
        raise failure_of(self)

    def _late_ending(self, waiting: WaitState, timeout: float | timedelta | None) -> R:
        """Refresh once more, and return the value or raise an error with the current state."""
        if waiting.error is None:
            with suppress(BrokerUnavailable, TaskResultDoesNotExist):
                self.refresh()
        if self.is_finished:
            return self._ending()
        name = f"Job {self.id} of {self.task.module_path}"
        raise waiting.error or too_late(name, self.state.value, timeout)


def _restored(cls: type[Result[R]], state: dict[str, Any]) -> Result[R]:
    """Return the result that was copied or pickled."""
    result = object.__new__(cls)
    _set_state(result, state)
    return result


def _set_state(result: Result[R], state: dict[str, Any] | list[Any]) -> None:
    """Set the attributes of a result. Results that were pickled before ``__reduce__`` existed have
    the same dict, or with Python 3.11.0 to 3.11.2 only the values of the fields."""
    if not isinstance(state, dict):
        names = (one.name for one in fields(result))
        unknown = {"_progress": None, "_commitment": None, "_running_attempt": 0}
        state = unknown | dict(zip(names, state, strict=True))
    for name, value in state.items():
        object.__setattr__(result, name, value)


# Set here, because `dataclass` of these versions of Python replaces a method of the class.
Result.__setstate__ = _set_state  # type: ignore[attr-defined] # see above


def fetch(settings: Settings, job_id: Any) -> Result[Any]:
    """Return the result of one job.

    Raises:
        TaskResultDoesNotExist: no job has this id (any more), or it is not a valid id.
    """
    wanted = parse_job_id(str(job_id))
    if wanted is None:
        raise not_there(job_id)
    return result_of(settings, wanted, full_progress_of_one(settings, wanted))


def fetch_many(settings: Settings, job_ids: Iterable[Any]) -> list[Result[Any]]:
    """Return the results of the jobs that exist, in the order of ``job_ids``."""
    wanted = [job_id for text in job_ids if (job_id := parse_job_id(str(text))) is not None]
    results = []
    for start in range(0, len(wanted), AT_ONCE):
        part = wanted[start : start + AT_ONCE]
        found = full_progress_of(settings, part)
        results += [result_of(settings, one, found[one]) for one in part if one in found]
    return results


def result_of(settings: Settings, job_id: UUID, progress: Progress) -> Result[Any]:
    """Return the result of a job with this progress."""
    row = progress.job
    package = package_of(settings, row)
    result: Result[Any] = Result(
        task=task_of(settings, row),
        id=str(job_id),
        status=progress.state.for_django,
        enqueued_at=row.enqueued_at if row is not None else None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(package.args) if package is not None else [],
        kwargs=package.kwargs if package is not None else {},
        backend=settings.alias,
        errors=[],
        worker_ids=[],
    )
    result._take(progress)
    return result


def failure_of(result: Result[Any]) -> JobFailed:
    """Return the error that ``wait()`` raises for a job that failed or was cancelled."""
    progress = result._progress
    kind = JobCancelled if result.state == JobState.CANCELLED else JobFailed
    reason = progress.job.reason if progress and progress.job else ""
    how = "was cancelled" if kind is JobCancelled else f"failed (attempt {result.attempts})"
    sentence = f"Job {result.id} of {result.task.module_path} {how}"
    return kind(f"{sentence}: {reason}" if reason else f"{sentence}.", errors=result.errors)


FIRST_PAUSE_SECONDS = 0.005
GROWTH = 1.5
WARN_AFTER_SECONDS = 10.0
OUTAGE_SECONDS = 300.0
"""How long a wait without a time-out tolerates an unreachable store: longer than a restart or a
fail-over takes."""


@dataclass(slots=True, eq=False)
class Commitment:
    """Whether the transaction that a job was enqueued in has been committed."""

    is_made: bool = False


def pauses(timeout: float | timedelta | None, longest_seconds: float) -> Iterator[float]:
    """Yield growing pauses until the time is over, then one last pause of zero."""
    deadline = float("inf") if timeout is None else time.monotonic() + _limit_of(timeout)
    pause = min(FIRST_PAUSE_SECONDS, longest_seconds)
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, longest_seconds)
    yield 0.0


def _limit_of(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float | timedelta | Decimal):
        raise TypeError(f"timeout={timeout!r}: write seconds or a timedelta, or None = no limit.")
    return as_seconds(cast("float | timedelta", timeout))


def too_late(job: str, state: str, timeout: float | timedelta | None) -> ResultTimeout:
    """Return the error of a wait that has timed out, with the job's state."""
    return ResultTimeout(
        f"{job} had not ended after {as_seconds(timeout or 0):g} s: it is {state}. "
        "`manage.py stoker why` with its id says what it waits for."
    )


class WaitState:
    """The state of a wait: whether the store answers, and whether a cluster is alive. Most outages
    are short, so the wait goes on.

    Args:
        settings: the backend's.
        timeout: time-out of the wait. If there is one, only it ends the wait.
    """

    __slots__ = ("_alias", "_is_limited", "_settings", "_until", "_warns_at", "error")

    def __init__(self, settings: Settings, timeout: float | timedelta | None) -> None:
        self._settings = settings
        self._alias = settings.database
        self._warns_at = time.monotonic() + WARN_AFTER_SECONDS
        self._is_limited = timeout is not None
        self._until = 0.0
        self.error: BrokerUnavailable | None = None
        """The last error; None if the last query succeeded."""

    def goes_on(self, error: BrokerUnavailable) -> None:
        """Store the error. Raise it if the wait must end: in a transaction, or after OUTAGE_SECONDS
        in a wait without a time-out."""
        connection = connections[self._alias]
        if connection.in_atomic_block:  # the transaction was lost with the connection
            raise error
        now = time.monotonic()
        if self.error is None:
            self._until = now + OUTAGE_SECONDS
        elif now >= self._until and not self._is_limited:
            raise error
        self.error = error
        # A connection that works is kept, because the caller may rely on its session.
        if connection.connection is not None and not connection.is_usable():
            connection.close()

    def is_over(self) -> None:
        self.error = None

    def warn_once_without_cluster(self, waited_for: str) -> None:
        """After WARN_AFTER_SECONDS log a warning if no cluster is alive."""
        if time.monotonic() < self._warns_at:
            return
        self._warns_at = math.inf
        with explained(self._alias):
            clusters = Cluster.objects.using(self._alias)
            is_any_alive = clusters.alive_within(self._settings.lease_seconds).exists()
        if not is_any_alive:
            logger.warning(
                "No cluster is alive, so the wait for %s goes on until one is started: "
                "manage.py stoker run%s",
                waited_for,
                self._settings.backend_option,
            )


def refuse_endless_wait(alias: str, job_id: str, commitment: Commitment | None) -> None:
    """Raise TransactionManagementError if the open transaction can never see the job end."""
    connection = connections[alias]
    open_anywhere = any(one.in_atomic_block for one in connections.all(initialized_only=True))
    if commitment is not None and not commitment.is_made and open_anywhere:  # also in an outbox
        raise TransactionManagementError(
            f"Job {job_id} was enqueued in a transaction that is still open, so it cannot start "
            "before that is committed: wait for it outside of transaction.atomic(); "
            "in a test, let stoker.testing.drain() run it."
        )
    if connection.in_atomic_block and not engine_of(alias).sees_later_commits(connection):
        raise TransactionManagementError(
            "The open transaction never sees what is committed after it began, so it would wait "
            f"for job {job_id} for ever: wait for it outside of transaction.atomic(); "
            "in a test, let stoker.testing.drain() run it."
        )
