"""Arguments that a job receives from other jobs.

The worker reads them from the store when it opens the job, so they are not sent through the pusher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any
from uuid import UUID

from django.db.models import F, Window
from django.db.models.functions import RowNumber

from stoker.compat import TaskError, TaskResultStatus
from stoker.conf import Settings
from stoker.exceptions import PackageError, ResultNotKept, TaskTimeout, WorkflowNotFound
from stoker.models import Attempt, Job, Step
from stoker.models.step import GROUPS, StepQuerySet
from stoker.workflows.hooks import About, about_of

from .package import Package, sealer_for
from .results import Result, fetch_many
from .running import Running
from .states import JobState, Progress, task_of

AT_ONCE = 1000
COLUMNS = ("sealed",)
WITH_VALUE = (Step.State.SUCCESSFUL, Step.State.UNDOING, Step.State.STARTED)


def with_received(settings: Settings, package: Package) -> Package:
    """Return the package with the received value as its first argument."""
    options = package.options
    if options.receives == "value":
        received = Values(settings, is_strict=True).before(package.job_id)
    elif options.about:
        received = result_about(settings, about_of(options.about))
    else:
        received = _result_of_cause(settings, package.job_id)
    return replace(package, args=(received, *package.args), options=replace(options, receives=""))


def package_as_sealed(settings: Settings, running: Running) -> Package:
    """Return the package of a running job with the arguments that it was enqueued with.

    The task may have changed lists and dicts of ``running.package``. If the package cannot be
    opened again, because unpickling runs the project's code, that package is returned.

    The value that a step receives is not in the package. It is returned as it is now.

    Raises:
        TaskTimeout: the attempt's time ended meanwhile.
    """
    try:
        package = sealer_for(settings).open(running.delivery.package)
    except PackageError as error:
        if isinstance(error.__cause__, TaskTimeout):
            raise error.__cause__ from None
        return running.package
    options = package.options
    if not options.receives:
        return package
    args = (running.package.args[0], *package.args)
    return replace(package, args=args, options=replace(options, receives=""))


def each_of(function: Callable[..., Any], each: str) -> Callable[..., Any]:
    """Return a function that takes a list of calls and makes these calls one after another."""

    def calls(items: Iterable[Any]) -> Iterator[Sequence[Any]]:
        return ((item,) if each == "map" else item for item in items)

    def run(items: Iterable[Any]) -> list[Any]:
        return [function(*args) for args in calls(items)]

    async def run_async(items: Iterable[Any]) -> list[Any]:
        return [await function(*args) for args in calls(items)]

    return run_async if iscoroutinefunction(function) else run


class Values:
    """Reads the results of steps. A thousand members of a group take two queries, and one more for
    each level of chains in them. Each group in a group is read separately.

    Results that no other step receives, or that were deleted from their steps because the workflow
    has succeeded, are read from the rows of their jobs.

    Args:
        is_strict: raise an error if a result is not kept any more. Otherwise it is None.
    """

    def __init__(self, settings: Settings, *, is_strict: bool = False) -> None:
        self._sealer = sealer_for(settings)
        self._steps = Step.objects.using(settings.database).defer(*COLUMNS)
        self._jobs = Job.objects.using(settings.database)
        self._is_strict = is_strict

    def before(self, job_id: UUID) -> Any:
        """Return the result of the step before this job's step."""
        step, has_added_it = self.step_before(job_id)
        if step is None:
            return None
        return self._own(step) if has_added_it else self.of(step)

    def step_before(self, job_id: UUID) -> tuple[Step | None, bool]:
        """Return the step whose result this job receives, and whether that step has added this
        one."""
        node = step_of(self._steps, job_id)
        while node.parent_id is not None:
            parent = parent_of(self._steps, node)
            if node.role == Step.Role.UNDO:
                return parent, False
            if parent.kind not in GROUPS:
                earlier = self._below(parent).filter(position__lt=node.position)
                step = earlier.order_by("-position").first()
                if step is not None or parent.kind == Step.Kind.TASK:
                    return step or parent, step is None
            node = parent
        return None, False

    def of(self, step: Step) -> Any:
        """Return the step's value, or None if it failed and was optional."""
        (value,) = self._of_each([step])
        return value

    def of_members(self, group: Step) -> Iterator[Any]:
        """Yield the values of a group's members in order, read a thousand at a time."""
        after = -1
        while True:
            later = self._below(group).filter(position__gt=after).order_by("position")
            members = list(later[:AT_ONCE])
            yield from self._of_each(members)
            if len(members) < AT_ONCE:
                return
            after = members[-1].position

    def _of_each(self, steps: Sequence[Step]) -> Iterator[Any]:
        """Yield the values of the steps in their order."""
        for step in self._filled(self._with_their_values(steps)):
            if step.state not in WITH_VALUE:
                yield None
            elif step.kind in GROUPS:
                results = self.of_members(step)
                is_map = step.kind == Step.Kind.MAP
                yield [one for part in results for one in part or ()] if is_map else list(results)
            else:
                yield self._own(step)

    def _with_their_values(self, steps: Sequence[Step]) -> list[Step]:
        """Return the steps that hold the values of these steps. Most steps hold their own value. A
        chain's value is that of its last step, at any depth. Run one query for each level."""
        found, places = list(steps), list(range(len(steps)))
        while places := [at for at in places if _has_value_of_last(found[at])]:
            below = self._steps.below([found[at].pk for at in places])
            order = F("position").desc()
            number = Window(RowNumber(), partition_by=F("parent_id"), order_by=order)
            children = below.exclude(state=Step.State.HELD).annotate(number=number)
            last = {one.parent_id: one for one in children.filter(number=1)}
            places = [at for at in places if found[at].pk in last]
            for at in places:
                found[at] = last[found[at].pk]
        return found

    def _filled(self, members: list[Step]) -> list[Step]:
        """Return the members with their values."""
        missing = {
            one.job_id: one
            for one in members
            if one.value is None and one.job_id is not None and one.state in WITH_VALUE
        }
        if missing:
            rows = self._jobs.filter(pk__in=missing).values_list("pk", "value")
            for job_id, value in rows:
                missing[job_id].value = value
        return members

    def _below(self, step: Step) -> Any:
        return self._steps.below([step.pk]).exclude(state=Step.State.HELD)

    def _own(self, step: Step) -> Any:
        if step.value is None:
            self._filled([step])
        if step.value is None and self._is_strict:
            raise ResultNotKept(
                f"The result of {step.label} (job {step.job_id}) is not kept (any more). Enqueue "
                "the workflow again, with a KEEP_RESULTS that is longer than it takes."
            )
        return None if step.value is None else self._sealer.open_value(bytes(step.value))


def _has_value_of_last(step: Step) -> bool:
    """Return whether the value of this step is that of its last step, if it has any."""
    if step.state not in WITH_VALUE or step.kind in GROUPS:
        return False
    return step.kind != Step.Kind.TASK or step.has_added


def step_of(steps: StepQuerySet, job_id: UUID) -> Step:
    """Return the step of a job. Raises WorkflowNotFound if it is not kept any more."""
    step = steps.of_jobs([job_id]).first()
    if step is None:
        raise WorkflowNotFound(
            f"The workflow of job {job_id} is not kept any more, so the job cannot receive its "
            "argument. Enqueue the workflow again."
        )
    return step


def parent_of(steps: StepQuerySet, step: Step) -> Step:
    """Return the parent of a step. Raises WorkflowNotFound if it is not kept any more."""
    parent = steps.filter(pk__in=[step.parent_id]).first()
    if parent is None:
        raise WorkflowNotFound(
            f"Workflow {step.workflow_id} is not kept any more, so its job {step.job_id} cannot "
            "receive its argument. Enqueue the workflow again."
        )
    return parent


def result_about(settings: Settings, about: About) -> Result[Any]:
    """Return the result of the job that a hook belongs to. If the job is not stored, build it
    without arguments from the data that was sent with the hook."""
    found = fetch_many(settings, [about.job_id])
    if found and found[0].is_finished:
        result = found[0]
        job = result._progress.job if result._progress is not None else None
        if job is not None and job.value is None and about.value is not None:
            job.value = about.value
        return result
    job = Job(
        pk=about.job_id,
        task=about.task,
        status=about.status,
        attempts=about.attempt,
        value=about.value,
        reason=about.message[:255],
    )
    attempt = Attempt(exception_class=about.exception_class, message=about.message)
    errors = (
        [TaskError(exception_class_path=about.exception_class, traceback="")]
        if about.exception_class
        else []
    )
    result = Result(
        task=task_of(settings, job),
        id=str(about.job_id),
        status=TaskResultStatus(JobState(about.status).for_django),
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=[],
        kwargs={},
        backend=settings.alias,
        errors=errors,
        worker_ids=[""] * about.attempt,
    )
    failures = (attempt,) if about.exception_class else ()
    object.__setattr__(result, "_progress", Progress(job, JobState(about.status), failures))
    return result


def _result_of_cause(settings: Settings, job_id: UUID) -> Result[Any]:
    """Return the Result of the job that caused a failure, for ``on_error``."""
    steps = Step.objects.using(settings.database)
    node = step_of(steps, job_id)
    while node.role != Step.Role.ERROR:
        node = parent_of(steps, node)
    failed = parent_of(steps, node)
    cause = node.cause or failed.cause or failed.job_id or failed.pk
    leaf = steps.of_jobs([cause]).first()
    cancelled = Job.Status.CANCELLED.value
    status = cancelled if leaf and leaf.state == Step.State.CANCELLED else Job.Status.FAILED.value
    label = leaf.label if leaf is not None else ""
    return result_about(settings, About(cause, label, status, None, "", "", 0))
