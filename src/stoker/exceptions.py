"""Everything that Stoker raises.

::

    StokerError
    ├── ConfigurationError            (also ImproperlyConfigured)
    ├── InvalidTaskOption             (also TypeError)
    ├── PackageError
    │   ├── NotSerializable           (also TypeError)   at enqueue: names the argument
    │   ├── PackageTooLarge           (also ValueError)  at enqueue, or for a return value
    │   └── UnreadablePackage                            at execution: becomes a dead letter
    │       ├── BadSignature
    │       └── NewerVersion
    ├── UnknownTask                                      the task is not (or no longer) there
    ├── BrokerError
    │   └── BrokerUnavailable                            retried with back-off by the cluster
    │       ├── RowsLocked                               another transaction holds what is needed
    │       └── PoolerRefused                            a pooler like PgBouncer is in the way
    ├── NotMigrated                                      the tables are not there yet
    ├── DuplicateJob                                     the key is taken, and "raise" was asked for
    ├── DeadLetterNotFound            (also LookupError) there is no such dead letter
    ├── WorkflowNotFound              (also LookupError) there is no such workflow
    ├── NotInWorkflow                 (also RuntimeError) what runs here is no step of one
    ├── NotInJob                      (also RuntimeError) no job runs here
    ├── LeaseLost                                        the job was given to somebody else
    ├── AlreadyBegun                                     a job that begins at most once has begun
    ├── TransactionLeftOpen                              a task ended inside a transaction
    ├── ClusterNotFound               (also LookupError) there is no such cluster
    ├── QueueNotFound                 (also LookupError) there is no such queue
    ├── InvalidSchedule               (also ValueError)  a schedule's rule or terms are wrong
    ├── ScheduleExists                                   there is one of that name
    ├── ScheduleNotFound              (also LookupError) there is no such schedule
    ├── LockError
    │   ├── LockBusy                  (also TimeoutError) another has the lock
    │   ├── LockLost                                      it is held no longer
    │   └── LockMisused               (also RuntimeError) the program is wrong, not the moment
    ├── ResultTimeout                 (also TimeoutError) wait() ran out of time
    ├── JobFailed                                        wait(): the job failed
    │   └── JobCancelled                                 wait(): the job was cancelled
    └── TaskSignal                                       raised by a task on purpose
        ├── Retry                                        try this job again later
        ├── Snooze                                       later, without using an attempt
        └── Cancel                                       end this job, no result
    TaskTimeout                       (a TimeoutError)   raised inside a task that ran too long
    TaskCancelled                     (a BaseException)  raised inside a task that is to end
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured


class StokerError(Exception):
    """The root of every error of Stoker's own."""


class ConfigurationError(StokerError, ImproperlyConfigured):
    """A setting under ``TASKS`` cannot be used; the message says which one and what to write."""


class InvalidTaskOption(StokerError, TypeError):
    """An option given to ``@task`` or ``using()`` is unknown or has a wrong value."""


class PackageError(StokerError):
    """A job could not be turned into bytes, or bytes into a job."""


class NotSerializable(PackageError, TypeError):
    """An argument or a return value has a type the serializer does not take."""


class PackageTooLarge(PackageError, ValueError):
    """The sealed package is larger than ``MAX_PACKAGE_BYTES``; or a return value or checkpoint is
    larger than the database takes (``max_allowed_packet`` of MariaDB and MySQL)."""


class UnreadablePackage(PackageError):
    """The bytes are not a package that this cluster may run."""


class BadSignature(UnreadablePackage):
    """The package was changed, or signed with another key or for another cluster."""


class NewerVersion(UnreadablePackage):
    """The package was written by a newer Stoker than this one."""


class UnknownTask(StokerError):
    """The package names a task that cannot be imported here."""


class BrokerError(StokerError):
    """The broker refused, or could not be reached."""


class BrokerUnavailable(BrokerError):
    """The broker cannot be reached now. Nothing was lost; try again."""


class RowsLocked(BrokerUnavailable):
    """Another transaction holds rows that are needed. Nothing was lost; try again."""


class PoolerRefused(BrokerUnavailable):
    """A pooler like PgBouncer refuses what a cluster asks for when it connects."""


class NotMigrated(StokerError):
    """Stoker's tables are missing: run ``manage.py migrate``."""


class DuplicateJob(StokerError):
    """What ``enqueue`` raises where the key of ``Unique(..., on_conflict="raise")`` is taken.

    Args:
        result: that of the job which has the key; None where two calls of one ``enqueue_many``
            have it, and there is no job.
    """

    def __init__(self, sentence: str, result: Any = None) -> None:
        super().__init__(sentence)
        self.result = result


class DeadLetterNotFound(StokerError, LookupError):
    """There is no dead letter of that id, or not any more."""


class ClusterNotFound(StokerError, LookupError):
    """There is no cluster of that id, or not any more."""


class QueueNotFound(StokerError, LookupError):
    """``QUEUES`` does not name this queue, and no job is in it."""


class InvalidSchedule(StokerError, ValueError):
    """The rule or the terms of a schedule cannot be used; the message says what to write."""


class ScheduleExists(StokerError):
    """There is a schedule of that name, or it is declared elsewhere."""


class ScheduleNotFound(StokerError, LookupError):
    """There is no schedule of that name, or not any more."""


class WorkflowNotFound(StokerError, LookupError):
    """There is no workflow of that id, or not any more."""


class NotInWorkflow(StokerError, RuntimeError):
    """``current_workflow()`` was called where no step of a workflow runs."""


class NotInJob(StokerError, RuntimeError):
    """Something of ``stoker.job`` was used where no job runs."""


class LeaseLost(StokerError):
    """The cluster could not extend the lease of the job that runs here, and somebody else has it by
    now: nothing more of this attempt is recorded."""


class AlreadyBegun(StokerError):
    """A job of a task with ``at_most_once=True`` was to be run a second time."""


class TransactionLeftOpen(StokerError):
    """A task ended inside a transaction that it had begun. The transaction was rolled back, so the
    attempt counts as failed."""


class LockError(StokerError):
    """Something about a named lock."""


class LockBusy(LockError, TimeoutError):
    """Another has the lock, and had it to the end of the time that was given for waiting."""


class LockLost(LockError):
    """The lock is held no longer: its lease ended, or it was taken away. Another may have it."""


class LockMisused(LockError, RuntimeError):
    """A lock object was used in a way that cannot work; the message says what to do instead."""


class ResultTimeout(StokerError, TimeoutError):
    """The job had not finished when the time given to ``wait()`` was over."""


class JobFailed(StokerError):
    """What ``wait()`` raises for a job that failed.

    Args:
        errors: one TaskError for each attempt that failed, in order.
    """

    def __init__(self, sentence: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(sentence)
        self.errors = list(errors)


class JobCancelled(JobFailed):
    """What ``wait()`` raises for a job that was cancelled."""


class TaskSignal(StokerError):
    """What a task raises on purpose to say what should become of its job."""


class Retry(TaskSignal):
    """Raised inside a task: this attempt failed, try again.

    Args:
        delay: seconds or a timedelta until the next attempt; None = as ``backoff`` says.
        reason: kept as the error message of the attempt.

    The last attempt cannot be retried: the job then fails as if this were any other error.
    """

    def __init__(
        self, delay: float | timedelta | None = None, reason: str = "retry requested"
    ) -> None:
        super().__init__(reason)
        self.delay_seconds = None if delay is None else as_seconds(delay)
        self.reason = reason


class Snooze(TaskSignal):
    """Raised inside a task: run this job again later; this attempt does not count.

    Args:
        delay: seconds or a timedelta.
    """

    def __init__(self, delay: float | timedelta, reason: str = "snoozed") -> None:
        super().__init__(reason)
        self.delay_seconds = as_seconds(delay)
        self.reason = reason


class Cancel(TaskSignal):
    """Raised inside a task: end this job as cancelled. It is neither retried nor dead-lettered."""

    def __init__(self, reason: str = "cancelled by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class TaskTimeout(TimeoutError):
    """Raised inside a task that is still running when its ``timeout`` is over."""


class TaskCancelled(BaseException):
    """Raised inside a sync task that is still running when its job is cancelled. Not an Exception,
    so that only who means it catches it: clean up, and let it go on."""


def as_seconds(delay: float | timedelta) -> float:
    """A delay in seconds, never negative."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    return max(0.0, seconds)
