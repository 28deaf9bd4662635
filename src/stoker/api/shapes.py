"""Shapes of answers that are not dataclasses of ``stoker.inspect``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from ninja import Schema
from pydantic import AfterValidator, BeforeValidator, ConfigDict

from stoker.inspect.guards import Crowded
from stoker.inspect.stats import ClusterState, DeadLetterCounts, FinishedCounts
from stoker.inspect.waits import WaitCause
from stoker.queues import QueueDepth
from stoker.values.text import plain
from stoker.why import Kind

PlainText = Annotated[str, AfterValidator(lambda text: str(plain(text)))]
"""Text of an error, without characters that JSON cannot represent."""


class Shape(Schema):
    """An answer. The docstrings of its fields are their descriptions."""

    model_config = ConfigDict(use_attribute_docstrings=True, from_attributes=True)


class StatusShape(Shape):
    """The status of everything, as in `manage.py stoker info --json`."""

    backend: str
    cluster: str
    broker: str
    server: str
    taken_at: datetime
    queues: list[QueueDepth]
    clusters: list[ClusterState]
    finished: FinishedCounts
    dead_letters: DeadLetterCounts
    guards: Crowded


class AttemptShape(Shape):
    """One attempt that did not succeed."""

    job_id: UUID
    number: int
    kind: str
    """failed, timed_out, crashed or cancelled."""
    worker_id: str
    started_at: datetime | None
    finished_at: datetime
    exception_class: str
    message: PlainText
    traceback: PlainText
    exit_code: int | None
    signal: int | None


class ProgressShape(Shape):
    """The progress that a job last reported."""

    done: float
    total: float | None
    """The total in the unit of `done`; null = not reported."""
    message: str


class WhyShape(Shape):
    """Why a job is not running, where it runs, or how it ended."""

    kind: Kind
    """The reason why it waits, or its state."""
    sentence: str
    advice: str
    """What an operator can do about it; "" = nothing."""
    needs_somebody: bool
    """Whether the job will not run without an action of an operator."""
    task: str
    queue: str
    facts: dict[str, Any]
    """Details that depend on the kind: see the guide `why-not-running`."""


class WaitShape(Shape):
    """Time that a job waited for one cause, before all its attempts."""

    cause: WaitCause
    """The cause of the wait. `queue` and `broker` include the time with a busy worker."""
    name: str
    """Name of the guard; empty = the cause is no guard."""
    seconds: float
    times: int
    """Number of waits for this cause."""


class WaitsShape(Shape):
    """What a job waited for. The times of all causes add up to the time in which it did not run."""

    seconds: float
    is_complete: bool
    """Whether the start of every attempt is known. If not, the wait before that attempt is
    missing."""
    causes: list[WaitShape]
    """The longest first."""


class JobShape(Shape):
    """One job in its current state. The answer to an operation leaves out arguments, label, errors,
    reason, progress, waits and return value for users without the permission `stoker.view_job`."""

    id: UUID
    task: str
    queue: str
    priority: int
    state: str
    """DEFERRED, BLOCKED, READY, CLAIMED, RUNNING, SUCCESSFUL, FAILED or CANCELLED."""
    attempts: int
    """Number of attempts that began."""
    enqueued_at: datetime | None
    run_after: datetime | None
    started_at: datetime | None
    """Start of the first attempt; null = unknown."""
    finished_at: datetime | None
    label: str
    """The label from the task's option `describe`; empty = none."""
    args: list[Any] | None
    """Positional arguments; null = the package cannot be opened here. Secrets are `[withheld]`
    without the permission `stoker.reveal_job`."""
    kwargs: dict[str, Any] | None
    return_value: Any
    """The return value; null = none yet. Values that JSON cannot represent are text."""
    reason: str
    """Reason of the failure or cancellation, in one line."""
    errors: list[AttemptShape]
    """The attempts that did not succeed, in order."""
    progress: ProgressShape | None
    """The last reported progress; null = none was reported."""
    waits: WaitsShape | None
    """The waits by cause; null = unknown, because its broker cannot look up jobs."""


class JobRowShape(Shape):
    """One job in a list."""

    id: UUID
    task: str
    queue: str
    priority: int
    state: str
    """DEFERRED, BLOCKED, READY, RUNNING, SUCCESSFUL, FAILED or CANCELLED."""
    attempts: int
    enqueued_at: datetime
    run_after: datetime | None
    started_at: datetime | None
    """Start of the last attempt; null = unknown."""
    finished_at: datetime | None
    worker_id: str
    reason: str
    """Reason of the failure or cancellation, in one line."""
    label: str
    """The label from the task's option `describe`; empty = none."""
    args: list[Any] | None
    """Positional arguments; null = the package is large, or cannot be opened here."""
    kwargs: dict[str, Any] | None


class LogLineShape(Shape):
    """A line that a job logged or printed, without control characters."""

    at: datetime
    attempt: int
    level: str
    """DEBUG, INFO, WARNING, ERROR or CRITICAL; empty = the line was printed."""
    source: str
    """Name of the logger; `stdout` or `stderr` if the line was printed."""
    text: str


class LogPageShape(Shape):
    """A page of a job's log lines, oldest first."""

    lines: list[LogLineShape]
    next: str | None
    """Pass it as `after` to get later lines, which may be added while the job runs; null = there
    are no lines at all."""
    has_more: bool
    """Whether there are more lines now."""
    is_over: bool
    """Whether the job has ended. Its last lines may come a second later."""


class JobPageShape(Shape):
    """A page of jobs. The order depends on the state; without a state, the newest jobs come
    first."""

    jobs: list[JobRowShape]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""
    is_cut: bool
    """Whether only a part of the jobs was searched. The next page searches older ones."""


class LetterShape(Shape):
    """One dead letter: one logical job that failed for good."""

    id: UUID
    state: str
    """open, requeued, resolved or discarded."""
    task: str
    queue: str
    priority: int
    key: str
    """The name of its unique key; empty = none."""
    reason: str
    """error, timeout, crash, expired, unreadable or unknown_task."""
    exception_class: str
    message: PlainText
    fingerprint: str
    """Identifies the fault."""
    failure_count: int
    first_failed_at: datetime
    failed_at: datetime
    enqueued_at: datetime | None
    job_id: UUID
    """The job that failed last."""
    attempts: int
    worker_id: str
    requeued_count: int
    last_requeued_at: datetime | None
    last_requeued_by: str
    last_requeued_because: str
    successor_id: UUID | None
    """The job that was enqueued by the requeue."""
    closed_at: datetime | None
    closed_by: str
    closed_because: str


class LetterRowShape(LetterShape):
    """One dead letter in a list."""

    label: str
    """The label from the task's option `describe`; empty = none."""
    args: list[Any] | None
    """Positional arguments; null = the package is large, or cannot be opened here."""
    kwargs: dict[str, Any] | None


class RequeueShape(Shape):
    """One requeue of a dead letter."""

    job_id: UUID
    from_job_id: UUID
    kind: str
    """person, policy, or successor (a newer job with the same unique key was enqueued)."""
    by: str
    because: str
    requeued_at: datetime


class StoryShape(Shape):
    """A dead letter with its newest attempts and requeues."""

    letter: LetterShape
    traceback: str
    attempts: list[AttemptShape]
    requeues: list[RequeueShape]
    has_more: bool
    """Whether there are older attempts or requeues."""
    args: list[Any] | None
    """Positional arguments; null = the package cannot be opened here."""
    kwargs: dict[str, Any] | None


class LetterPageShape(Shape):
    """A page of dead letters, the newest first."""

    letters: list[LetterRowShape]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""
    is_cut: bool
    """Whether only a part of the dead letters was searched. The next page searches older ones."""


class AnswerShape(Shape):
    """The answer to an operation on one dead letter."""

    dead_letter_id: UUID
    fate: Annotated[str, BeforeValidator(lambda fate: fate.value)]
    """requeued, discarded, taken_back; newer, under_way, not_requeued, closed, gone, refused."""
    job_id: UUID | None
    """The new job, or the existing one."""
    because: str


class BulkOperationShape(Shape):
    """A bulk operation and its progress."""

    id: UUID
    operation: str
    state: str
    """running, paused, stopped or done."""
    filters: dict[str, Any]
    matched: int
    """Number of targets that were found at the start."""
    is_counted: bool
    """Whether `matched` is the number of all targets; false = there may be more."""
    done: int
    refused: int
    """Number of targets that were not changed."""
    by: str
    because: str
    started_at: datetime
    ended_at: datetime | None
    undoes: UUID | None
    """The bulk operation that this one undoes."""


class BulkOperationPageShape(Shape):
    """A page of bulk operations, the newest first."""

    operations: list[BulkOperationShape]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""
    is_cut: bool
    """Whether only a part of the operations was searched. The next page searches older ones."""


class BulkShape(Shape):
    """The answer to an operation on many dead letters."""

    matched: int
    """Number of dead letters that the filters found, up to the limit."""
    done: int
    others: list[AnswerShape]
    """The dead letters that were not changed, with the reasons."""
    dry_run: bool


class ExposedTask(Shape):
    """A task that may be enqueued."""

    name: str
    queue: str
    priority: int
    parameters: Mapping[str, str]
    """Parameter name -> its Python source, in order."""
    description: str


class TaskList(Shape):
    """The tasks that may be enqueued, by name."""

    tasks: list[ExposedTask]


class ClusterList(Shape):
    """Clusters, the longest running first."""

    clusters: list[ClusterState]


class QueueList(Shape):
    """Queues, by name."""

    queues: list[QueueDepth]
