"""All exceptions of Stoker.

::

    StokerError
    ├── ConfigurationError            (also ImproperlyConfigured)
    ├── InvalidTaskOption             (also TypeError)
    ├── PackageError
    │   ├── NotSerializable           (also TypeError)   at enqueue: names the argument
    │   ├── PackageTooLarge           (also ValueError)  at enqueue, or for a return value
    │   └── UnreadablePackage                            at execution: becomes a dead letter
    │       ├── BadSignature
    │       ├── NewerVersion
    │       └── UnreadableHere                           other settings or apps can read it
    ├── UnknownTask                                      the task does not exist (any more)
    ├── BrokerError
    │   └── BrokerUnavailable                            retried with back-off by the cluster
    │       ├── RowsLocked                               another transaction holds the rows
    │       └── PoolerRefused                            a pooler like PgBouncer refuses
    ├── NotMigrated                                      the tables are missing
    ├── DuplicateJob                                     the key is taken, with on_conflict="raise"
    ├── DeadLetterNotFound            (also LookupError)
    ├── WorkflowNotFound              (also LookupError)
    ├── ResultNotKept                 (also LookupError)  a step needs a result that is deleted
    ├── NotInWorkflow                 (also RuntimeError) the code does not run in a workflow
    ├── NotInJob                      (also RuntimeError) the code does not run in a job
    ├── LeaseLost                                        another cluster has the job
    ├── AlreadyBegun                                     an at-most-once job has started before
    ├── TransactionLeftOpen                              a task ended inside a transaction
    ├── BulkOperationNotFound         (also LookupError)
    ├── ClusterNotFound               (also LookupError)
    ├── GuardNotFound                 (also LookupError)
    ├── QueueNotFound                 (also LookupError)
    ├── InvalidSchedule               (also ValueError)  a schedule's rule or options are wrong
    ├── ScheduleExists
    ├── ScheduleNotFound              (also LookupError)
    ├── LockError
    │   ├── LockBusy                  (also TimeoutError) another holder has the lock
    │   ├── LockLost                                      the lock is no longer held
    │   └── LockMisused               (also RuntimeError) an error in the calling code
    ├── ResultTimeout                 (also TimeoutError) wait() timed out
    ├── JobFailed                                        wait(): the job failed
    │   └── JobCancelled                                 wait(): the job was cancelled
    └── TaskSignal                                       raised by a task on purpose
        ├── Retry                                        try this job again later
        ├── Snooze                                       later, without using an attempt
        └── Cancel                                       end this job without a result
    TaskTimeout                       (a TimeoutError)   raised inside a task after its time-out
    TaskCancelled                     (a BaseException)  raised inside a task that is cancelled
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured


class StokerError(Exception):
    """Base class of Stoker's exceptions."""


class ConfigurationError(StokerError, ImproperlyConfigured):
    """A setting in ``TASKS`` is invalid; the message says which one and what to write."""


class InvalidTaskOption(StokerError, TypeError):
    """An option of ``@task`` or ``using()`` is unknown or has a wrong value."""


class PackageError(StokerError):
    """A job could not be turned into bytes, or bytes into a job."""


class NotSerializable(PackageError, TypeError):
    """The serializer does not support the type of an argument or a return value."""


class PackageTooLarge(PackageError, ValueError):
    """A package is larger than ``MAX_PACKAGE_BYTES``, or a package, a return value or a checkpoint
    is larger than the database accepts (``max_allowed_packet`` of MariaDB and MySQL)."""


class UnreadablePackage(PackageError):
    """This cluster cannot or must not run the package."""


class BadSignature(UnreadablePackage):
    """The package was tampered with, or signed with another key or for another cluster."""


class NewerVersion(UnreadablePackage):
    """A newer version of Stoker wrote the package."""


class UnreadableHere(UnreadablePackage):
    """The package is intact, but this process lacks the ``SERIALIZER`` or the app to read it."""


class UnknownTask(StokerError):
    """The package names a task that cannot be imported here."""


class BrokerError(StokerError):
    """The broker refused a request or is unreachable."""


class BrokerUnavailable(BrokerError):
    """The broker is unreachable at the moment. Nothing was lost; try again."""


class RowsLocked(BrokerUnavailable):
    """Another transaction has locked the rows. Nothing was lost; try again."""


class PoolerRefused(BrokerUnavailable):
    """A pooler such as PgBouncer refuses the connection parameters of a cluster."""


class NotMigrated(StokerError):
    """Stoker's tables are missing: run ``manage.py migrate``."""


class DuplicateJob(StokerError):
    """The key of ``Unique(..., on_conflict="raise")`` is taken. Raised by ``enqueue``.

    Args:
        result: the result of the job that has the key; None if two calls of one ``enqueue_many``
            have the same key and no job exists.
    """

    def __init__(self, sentence: str, result: Any = None) -> None:
        super().__init__(sentence)
        self.result = result


class DeadLetterNotFound(StokerError, LookupError):
    """No dead letter has that id (any more)."""


class BulkOperationNotFound(StokerError, LookupError):
    """No bulk operation has that id (any more)."""


class ClusterNotFound(StokerError, LookupError):
    """No cluster has that id (any more)."""


class GuardNotFound(StokerError, LookupError):
    """No job uses a guard with that id (any more)."""


class QueueNotFound(StokerError, LookupError):
    """``QUEUES`` does not name this queue, and it contains no job."""


class InvalidSchedule(StokerError, ValueError):
    """The rule or an option of a schedule is invalid; the message says what to write."""


class ScheduleExists(StokerError):
    """A schedule of that name exists, or code or settings declare it."""


class ScheduleNotFound(StokerError, LookupError):
    """No schedule has that name (any more)."""


class WorkflowNotFound(StokerError, LookupError):
    """No workflow has that id (any more)."""


class ResultNotKept(StokerError, LookupError):
    """The result that a step of a workflow receives is not kept any more."""


class NotInWorkflow(StokerError, RuntimeError):
    """``current_workflow()`` was called outside of a workflow."""


class NotInJob(StokerError, RuntimeError):
    """A function of ``stoker.job`` was called outside of a job."""


class LeaseLost(StokerError):
    """The job's lease could not be extended and another cluster has the job. This attempt is not
    recorded."""


class AlreadyBegun(StokerError):
    """A job of a task with ``at_most_once=True`` would have started a second time."""


class TransactionLeftOpen(StokerError):
    """A task left a transaction open. It was rolled back, and the attempt counts as failed."""


class LockError(StokerError):
    """Base class of errors of named locks."""


class LockBusy(LockError, TimeoutError):
    """Another holder had the lock until the waiting time ended."""


class LockLost(LockError):
    """The lock is no longer held: its lease ended or it was stolen. Another holder may have it."""


class LockMisused(LockError, RuntimeError):
    """A lock object was used incorrectly; the message says what to do instead."""


class ResultTimeout(StokerError, TimeoutError):
    """The job had not finished when ``wait()`` timed out."""


class JobFailed(StokerError):
    """The job failed. Raised by ``wait()``.

    Args:
        errors: one TaskError for each failed attempt, in order.
    """

    def __init__(self, sentence: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(sentence)
        self.errors = list(errors)


class JobCancelled(JobFailed):
    """The job was cancelled. Raised by ``wait()``."""


class TaskSignal(StokerError):
    """Base class of the exceptions that a task raises to set the outcome of its job. Their fields
    have defaults for subclasses that do not call ``super().__init__()``."""

    reason: str = ""


class Retry(TaskSignal):
    """Raised inside a task: this attempt failed, try again.

    Args:
        delay: seconds or a timedelta until the next attempt; None = the delay that ``backoff``
            returns.
        reason: stored as the error message of the attempt.

    The last attempt cannot be retried: the job then fails as after any other error.
    """

    delay_seconds: float | None = None

    def __init__(
        self, delay: float | timedelta | None = None, reason: str = "retry requested"
    ) -> None:
        super().__init__(reason)
        self.delay_seconds = None if delay is None else as_seconds(delay)
        self.reason = reason


class Snooze(TaskSignal):
    """Raised inside a task: run this job again later, without counting this attempt.

    Args:
        delay: seconds or a timedelta.
    """

    delay_seconds: float = 60.0

    def __init__(self, delay: float | timedelta, reason: str = "snoozed") -> None:
        super().__init__(reason)
        self.delay_seconds = as_seconds(delay)
        self.reason = reason


class Cancel(TaskSignal):
    """Raised inside a task: end this job as cancelled, without retry or dead letter."""

    def __init__(self, reason: str = "cancelled by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class TaskTimeout(TimeoutError):
    """Raised inside a task that is still running at the end of its ``timeout``."""


class TaskCancelled(BaseException):
    """Raised inside a sync task whose job is cancelled. Clean up and re-raise it. It is not an
    Exception, so that ``except Exception`` does not swallow it."""


def as_seconds(delay: float | timedelta) -> float:
    """Return a delay in seconds, never negative."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    return max(0.0, seconds)
