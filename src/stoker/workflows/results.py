"""Workflows as users see them: inspect, wait, cancel and retry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import Count

from stoker.compat import TaskResultDoesNotExist
from stoker.conf import Settings, settings_for
from stoker.dead_letters.requeueing import Wish
from stoker.exceptions import (
    BrokerUnavailable,
    JobCancelled,
    JobFailed,
    ResultNotKept,
    ResultTimeout,
    WorkflowNotFound,
    as_seconds,
)
from stoker.jobs.received import Values
from stoker.jobs.results import (
    Result,
    WaitState,
    failure_of,
    fetch,
    fetch_many,
    pauses,
    refuse_endless_wait,
)
from stoker.models import Step, Workflow
from stoker.store.engines.sessions import explained
from stoker.values.ids import parse_job_id

from . import control

State = Step.State
AT_ONCE = 1000
NOT_BEGUN = (State.PENDING, State.HELD)


@dataclass(frozen=True, slots=True)
class WorkflowProgress:
    """Number of tasks by state. The states add up to ``total``."""

    total: int
    """Number of tasks, including those added while the workflow ran."""
    waiting: int
    """Tasks that have not started. In a workflow that has ended they will never start."""
    enqueued: int
    """Tasks with jobs that wait or run."""
    successful: int
    failed: int
    cancelled: int


def progress_of(workflow: Workflow, counts: Mapping[str, int]) -> WorkflowProgress:
    """Return the progress of a workflow.

    Args:
        counts: state -> number of tasks in it. Tasks that have not started may be left out.
    """
    begun = {state: count for state, count in counts.items() if state not in NOT_BEGUN}
    # A task that added steps is STARTED until these end, but its own job is done.
    done = sum(begun.get(one, 0) for one in (State.SUCCESSFUL, State.STARTED, State.UNDOING))
    return WorkflowProgress(
        total=workflow.tasks,
        waiting=max(0, workflow.tasks - sum(begun.values())),
        enqueued=begun.get(State.ENQUEUED, 0),
        successful=done,
        failed=begun.get(State.FAILED, 0),
        cancelled=begun.get(State.CANCELLED, 0),
    )


def count_tasks(settings: Settings, workflows: Sequence[Workflow]) -> dict[UUID, WorkflowProgress]:
    """Return the progress of each workflow, with one indexed query."""
    tasks = Step.objects.using(settings.database).filter(
        workflow_id__in=[one.pk for one in workflows], kind=Step.Kind.TASK
    )
    begun = [state for state in State.values if state not in NOT_BEGUN]
    grouped = tasks.filter(state__in=begun).order_by().values_list("workflow_id", "state")
    counts: dict[UUID, dict[str, int]] = {}
    with explained(settings.database):
        for workflow_id, state, number in grouped.annotate(Count("pk")):
            counts.setdefault(workflow_id, {})[state] = number
    return {one.pk: progress_of(one, counts.get(one.pk, {})) for one in workflows}


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """One step, as of the time it was read."""

    id: str
    parent_id: str | None
    """The chain, group or task that contains it; None for the outermost step."""
    position: int
    """Position within the parent, from 0."""
    kind: str
    """task, chain, group, chord or map."""
    role: str
    """"step", "undo" or "error". An undo or error step belongs to the step ``parent_id``."""
    state: str
    """HELD, PENDING, ENQUEUED, STARTED, UNDOING, SUCCESSFUL, FAILED or CANCELLED."""
    label: str
    """Dotted path of the task, or a name."""
    job_id: str | None
    """The newest job of a task."""
    backend: str

    @property
    def result(self) -> Result[Any]:
        """Result of the step's job. Raises TaskResultDoesNotExist if it is not kept or does not
        exist yet."""
        return fetch(settings_for(self.backend), self.job_id)


def read_steps(rows: Any, backend: str) -> Iterator[WorkflowStep]:
    """Yield steps in the order of their ids, reading a thousand at a time."""
    after: UUID | None = None
    while True:
        later = rows if after is None else rows.filter(pk__gt=after)
        part = list(later.defer("sealed", "value").order_by("pk")[:AT_ONCE])
        for row in part:
            yield WorkflowStep(
                id=str(row.pk),
                parent_id=None if row.parent_id is None else str(row.parent_id),
                position=row.position,
                kind=row.kind,
                role=row.role,
                state=row.state,
                label=row.label,
                job_id=None if row.job_id is None else str(row.job_id),
                backend=backend,
            )
        if len(part) < AT_ONCE:
            return
        after = part[-1].pk


class WorkflowResult:
    """A workflow, as returned by ``enqueue`` of a chain, group or chord.

    Its attributes are those of the last ``refresh()``.
    """

    def __init__(self, row: Workflow) -> None:
        self._row = row

    def __repr__(self) -> str:
        return f"<WorkflowResult {self.name or self.id} {self.status}>"

    @property
    def id(self) -> str:
        return str(self._row.pk)

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def backend(self) -> str:
        """Alias in ``TASKS``."""
        return self._row.backend

    @property
    def status(self) -> str:
        """RUNNING, SUCCESSFUL, FAILED or CANCELLED."""
        return str(self._row.state)

    @property
    def is_finished(self) -> bool:
        return self._row.state != Workflow.State.RUNNING

    @property
    def made_at(self) -> datetime:
        return self._row.made_at

    @property
    def finished_at(self) -> datetime | None:
        return self._row.finished_at

    @property
    def reason(self) -> str:
        """Why the workflow was cancelled."""
        return self._row.reason

    def refresh(self) -> None:
        """Read the workflow again. Raises WorkflowNotFound if it no longer exists."""
        self._row = _row_of(self._settings, self._row.pk)

    def progress(self) -> WorkflowProgress:
        """Count the tasks by state, with two short queries."""
        with explained(self._settings.database):
            total = self._workflows.filter(pk=self._row.pk).values_list("tasks", flat=True).first()
        self._row.tasks = total if total is not None else self._row.tasks
        return count_tasks(self._settings, [self._row])[self._row.pk]

    def steps(self) -> Iterator[WorkflowStep]:
        """Yield all steps in the order of their ids, reading a thousand at a time."""
        return read_steps(self._steps, self.backend)

    def failed_steps(self) -> Iterator[WorkflowStep]:
        """Yield the tasks that failed or were cancelled."""
        failed = self._steps.filter(kind=Step.Kind.TASK, state__in=(State.FAILED, State.CANCELLED))
        return read_steps(failed, self.backend)

    @property
    def value(self) -> Any:
        """The result of a workflow that succeeded. For a chain or chord it is the result of the
        last step, for a group or map the list of its members' results. The result of a member is
        None if it failed.

        Raises:
            ValueError: the workflow has not finished, or has failed.
            TaskResultDoesNotExist: a result is not kept (any more).
        """
        if self._row.state != Workflow.State.SUCCESSFUL:
            raise ValueError(f"Workflow {self.id} is {self.status}: there is no value.")
        try:
            return Values(self._settings, is_strict=True).of(self._root())
        except ResultNotKept as error:
            raise TaskResultDoesNotExist(str(error)) from error

    def results(self) -> Iterator[Any]:
        """Yield the results of the members or steps in order, reading a thousand at a time.

        The result is None for a step that has not ended, has failed, or whose value is not kept.
        """
        return Values(self._settings).of_members(self._root())

    def wait(self, timeout: float | timedelta | None = None, *, poll_seconds: float = 0.5) -> Any:
        """Wait for the end of the workflow, and return its value.

        Args:
            timeout: seconds or a timedelta; 0 or less = look once; None = no limit.
            poll_seconds: the longest pause between two queries.

        Raises:
            TypeError: ``timeout`` is neither a number nor a timedelta.
            ResultTimeout: the workflow had not ended by then. It continues.
            JobFailed, JobCancelled: the workflow failed or was cancelled.
            WorkflowNotFound: the workflow does not exist (any more).
            TaskResultDoesNotExist: it succeeded, but a result is not kept (any more).
            TransactionManagementError: the open transaction could never see the workflow end.
            BrokerUnavailable: as for ``Result.wait``.
        """
        waiting = WaitState(self._settings, timeout)
        for pause in pauses(timeout, poll_seconds):
            if self._is_seen_to_have_ended(waiting):
                return self._ending()
            time.sleep(pause)
        raise waiting.error or self._too_late(timeout)

    async def wait_async(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - as wait() has it
        *,
        poll_seconds: float = 0.5,
    ) -> Any:
        """Async version of ``wait``. ``await workflow`` waits without a limit."""
        waiting = WaitState(self._settings, timeout)
        has_ended = sync_to_async(self._is_seen_to_have_ended, thread_sensitive=True)
        for pause in pauses(timeout, poll_seconds):
            if await has_ended(waiting):
                return await sync_to_async(self._ending, thread_sensitive=True)()
            await asyncio.sleep(pause)
        raise waiting.error or self._too_late(timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.wait_async().__await__()

    def cancel(self, reason: str = "") -> bool:
        """Cancel the workflow: waiting jobs are cancelled, running ones are asked to stop.

        Neither undo steps nor ``on_error`` steps run. Returns False if the workflow has ended
        already. Within a transaction its jobs are cancelled when that commits. Until then, jobs
        that wait may start.

        Args:
            reason: stored with the workflow, at most 255 characters.
        """
        is_cancelled = control.cancel(self._settings, self._row.pk, reason)
        self.refresh()
        return is_cancelled

    def retry(self, by: str = "", because: str = "", *, step: Any = None) -> int:
        """Retry the steps that failed or were cancelled, and continue chains and groups that were
        stopped between two steps. Undone steps stay undone.

        Args:
            by, because: person and reason, stored with the requeues.
            step: the id of one failed or cancelled step, or of its job, to retry only that, also
                while other steps run; None = all.

        Returns:
            The number of steps that were retried or continued. Members of groups that start later,
            when others end, are not counted.

        Raises:
            WorkflowNotFound: the workflow does not exist (any more).
            ValueError: this step cannot be retried.
        """
        wish = Wish(by=by, because=because)
        if step is None:
            count = control.retry(self._settings, self._row.pk, wish)
        else:
            step_id = parse_job_id(str(step))
            if step_id is None:
                raise ValueError(f"{str(step)!r} is not the id of a step.")
            with explained(self._settings.database):
                count = control.retry_step(self._settings, self._row.pk, step_id, wish)
        self.refresh()
        return count

    @property
    def _settings(self) -> Settings:
        return settings_for(self._row.backend)

    @property
    def _workflows(self) -> Any:
        return Workflow.objects.using(self._settings.database)

    @property
    def _steps(self) -> Any:
        return Step.objects.using(self._settings.database).filter(workflow_id=self._row.pk)

    def _root(self) -> Step:
        root: Step | None = self._steps.defer("sealed").filter(pk=self._row.pk).first()
        if root is None:
            raise control.not_kept(self._row.pk)
        return root

    def _is_seen_to_have_ended(self, waiting: WaitState) -> bool:
        try:
            self.refresh()
            if not self.is_finished:
                waiting.warn_once_without_cluster(f"workflow {self.id}")
        except BrokerUnavailable as error:
            waiting.goes_on(error)
            return False
        waiting.is_over()
        if not self.is_finished:
            refuse_endless_wait(self._settings.database, self.id, None)
        return self.is_finished

    def _ending(self) -> Any:
        if self.status == Workflow.State.SUCCESSFUL:
            return self.value
        if self.status == Workflow.State.CANCELLED:
            raise JobCancelled(f"Workflow {self.id} was cancelled: {self.reason or 'no reason'}.")
        raise self._failure()

    def _failure(self) -> JobFailed:
        """Return the error of a failed workflow. It names the job that caused the failure."""
        cause = self._steps.filter(pk=self._row.pk).values_list("cause", flat=True).first()
        for job in fetch_many(self._settings, [cause]):
            failure = failure_of(job)
            sentence = f"Workflow {self.id} failed: {failure}"
            return JobFailed(sentence, errors=failure.errors)
        failed = self._steps.filter(job_id=cause).first() if cause is not None else None
        which = f": job {cause} of {failed.label}" if failed is not None else ""
        return JobFailed(f"Workflow {self.id} failed{which}.")

    def _too_late(self, timeout: float | timedelta | None) -> ResultTimeout:
        return ResultTimeout(
            f"Workflow {self.id} had not ended after {as_seconds(timeout or 0):g} s."
        )


def get_workflow(workflow_id: Any, *, backend: str = "default") -> WorkflowResult:
    """Return the workflow with that id.

    Raises:
        WorkflowNotFound: it does not exist (any more), or this is not an id.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    parsed = parse_job_id(str(workflow_id))
    if parsed is None:
        raise WorkflowNotFound(f"{str(workflow_id)!r} is not the id of a workflow.")
    return WorkflowResult(_row_of(settings_for(backend), parsed))


def _row_of(settings: Settings, workflow_id: UUID) -> Workflow:
    with explained(settings.database):
        row = Workflow.objects.using(settings.database).filter(pk=workflow_id).first()
    if row is None:
        raise WorkflowNotFound(
            f"There is no workflow {workflow_id}: it was never committed, or is not kept any more."
        )
    return row
