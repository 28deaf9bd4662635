"""Jobs: enqueue, show, explain, cancel; and check the arguments of calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Header, Query, Status
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from stoker.api.access import Routes, example_of_body, may_reveal, operator_of, perform
from stoker.api.filters import (
    LONGEST_DELAY_SECONDS,
    NO_REASON,
    Body,
    JobQuery,
    ReasonBody,
    moment_of,
)
from stoker.api.problems import CallRefused
from stoker.api.shapes import (
    AttemptShape,
    ExposedTask,
    JobPageShape,
    JobRowShape,
    JobShape,
    ProgressShape,
    Shape,
    TaskList,
    WaitsShape,
    WhyShape,
)
from stoker.api.values import (
    Backend,
    Moment,
    Name,
    Strict,
    call_fields,
    cursor_of,
    mark_of,
    settings_of,
    unnamed_backend,
)
from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.inspect.jobs import JobSearch
from stoker.inspect.timeline import row_of
from stoker.inspect.waits import waits_of
from stoker.inspect.why.answer import answer_as_plain
from stoker.jobs.change import AT_ONCE
from stoker.jobs.results import Result, result_of
from stoker.jobs.states import full_progress_of_one, not_there, package_of
from stoker.operations.jobs import CANCEL, COLUMNS, JobRow, rows_of
from stoker.operations.operation import Operation
from stoker.operations.waiting_jobs import EDIT, HOLD, MOVE, PRIORITISE, RESCHEDULE, RUN_NOW
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import mismatch_of, shown_call
from stoker.tasks.guards import Unique, signature_of_call
from stoker.tasks.registry import exposed_task, exposed_tasks
from stoker.values.text import first_line_of, plain
from stoker.why import Kind, why


def checked_call(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments, converted to the types of their annotations: for example a text to a
    datetime.

    Raises:
        CallRefused: The task does not accept the arguments; all errors are listed.
    """
    signature = signature_of(task)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        why_not = mismatch_of(error, signature, kwargs)
        detail = (
            f"{task.func.__name__}{signature} cannot be called with these arguments: {why_not}."
        )
        raise CallRefused(422, detail) from None
    problems: list[dict[str, Any]] = []
    adapters = adapters_of(task.func, task.takes_context)
    by_place = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    rest = {one.kind: one.name for one in signature.parameters.values()}
    checked_args = []
    for place, value in enumerate(args):
        is_named = place < len(by_place)
        name = by_place[place].name if is_named else rest[Parameter.VAR_POSITIONAL]
        checked_args.append(_checked(adapters.get(name), value, ["args", place], problems))
    checked_kwargs = {}
    for name, value in kwargs.items():
        known = name if name in signature.parameters else rest[Parameter.VAR_KEYWORD]
        checked_kwargs[name] = _checked(adapters.get(known), value, ["kwargs", name], problems)
    if problems:
        first = problems[0]
        where = ".".join(str(part) for part in first["where"])
        raise CallRefused(422, f"{where}: {first['problem']}", errors=problems)
    return checked_args, checked_kwargs


def signature_of(task: Any) -> Signature:
    """Return the signature of the task's ``enqueue``."""
    signature = signature_of_call(task.func, task.takes_context)
    if signature is None:  # not known: any arguments
        return Signature(
            [
                Parameter("args", Parameter.VAR_POSITIONAL),
                Parameter("kwargs", Parameter.VAR_KEYWORD),
            ]
        )
    return signature


NOT_IMPORTED = (NameError, TypeError, AttributeError)
"""Errors of an annotation with a name that is imported for type checkers only."""


@lru_cache(maxsize=1024)
def adapters_of(function: Any, takes_context: bool) -> Mapping[str, TypeAdapter[Any]]:
    """Return parameter -> adapter that checks its values, for annotations that pydantic
    supports."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NOT_IMPORTED:
        return {}
    hints.pop("return", None)
    found = {}
    for name, hint in hints.items():
        with suppress(PydanticUserError, *NOT_IMPORTED):
            found[name] = TypeAdapter(hint)
    return found


def _checked(
    adapter: TypeAdapter[Any] | None, value: Any, where: list[Any], problems: list[dict[str, Any]]
) -> Any:
    if adapter is None:
        return value
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except PydanticUserError:  # a part of its type is imported for type checkers only
        return value
    except ValidationError as error:
        problems += [
            {"where": ["body", *where, *map(str, one["loc"])], "problem": one["msg"]}
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        return value


HIDDEN_FIELDS: dict[str, Any] = {
    "label": "", "args": None, "kwargs": None, "return_value": None, "reason": "", "errors": [],
    "progress": None, "waits": None,
}  # fmt: skip
"""Values that replace these fields in the answer to an operation, for users without the permission
``stoker.view_job``."""

routes = Routes(tags=["jobs"])

IDEMPOTENCE_SECONDS = 86400.0


class JobRequest(Body):
    """A call of a task to enqueue."""

    task: Name
    """The exposed name: see `tasks`."""
    args: Annotated[list[Any], Field(max_length=1000)] = []
    kwargs: dict[str, Any] = {}
    queue: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Default: the task's."""
    priority: Annotated[int, Strict, Field(ge=-100, le=100)] | None = None
    """Higher runs first. Default: the task's."""
    run_after: Moment | None = None
    """Earliest start."""
    run_after_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_DELAY_SECONDS)] | None = None
    """Earliest start in seconds from now, instead of `run_after`."""


class Rescheduling(ReasonBody):
    """The new start time of a job; without a time, it starts at once."""

    run_after: Moment | None = None
    run_after_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_DELAY_SECONDS)] | None = None


class Prioritising(ReasonBody):
    """The body of a request that changes a job's priority."""

    priority: Annotated[int, Strict, Field(ge=-100, le=100)]
    """Higher runs first."""


class Moving(ReasonBody):
    """The new queue of a job."""

    queue: Annotated[str, Field(min_length=1, max_length=100)]


class Editing(ReasonBody):
    """The new arguments of a job."""

    args: Annotated[list[Any], Field(max_length=1000)] | None = None
    """Default: unchanged."""
    kwargs: dict[str, Any] | None = None
    """Default: unchanged."""


class EnqueuedJob(Shape):
    """The enqueued job."""

    id: UUID
    task: str
    state: str
    was_duplicate: bool
    """Whether no new job was enqueued, because this job has the same unique key or
    Idempotency-Key."""


@routes.show("/tasks", "stoker.add_job", TaskList)
def list_tasks(request: HttpRequest) -> Any:
    """List the tasks that may be enqueued, with their parameters."""
    shown = [
        ExposedTask(
            name=name,
            queue=task.queue_name,
            priority=task.priority,
            parameters={
                parameter.name: str(parameter)
                for parameter in signature_of(task).parameters.values()
            },
            description=(task.func.__doc__ or "").strip().partition("\n")[0],
        )
        for name, task in exposed_tasks().items()
    ]
    return {"tasks": shown}


@routes.route(
    "POST",
    "/jobs",
    permissions=("stoker.add_job",),
    answers={201: EnqueuedJob, 200: EnqueuedJob, 409: ...},
    extra=example_of_body({"task": "shop.tasks.welcome", "args": [7], "run_after_seconds": 60}),
)
def enqueue_job(
    request: HttpRequest,
    response: HttpResponse,
    body: JobRequest,
    backend: Backend = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=100,
            pattern="^[ -~]+$",
            description="The same user's second request with the same key within a day makes no "
            "second job. For tasks without a unique key of their own.",
        ),
    ] = None,
) -> Any:
    """Enqueue a call of an exposed task. The status is 200 instead of 201 if the job exists
    already."""
    task = varied(exposed_task(body.task), body, backend)
    if idempotency_key is not None:
        task = at_most_once(task, body.task, f"{request.auth.pk}:{idempotency_key}")  # type: ignore[attr-defined] # ninja sets it
    settings_of(task.backend)
    args, kwargs = checked_call(task, body.args, body.kwargs)
    result = task.enqueue(*args, **kwargs)
    response.headers["Location"] = address_of(request, result)
    shape = EnqueuedJob(
        id=UUID(result.id), task=body.task, state=result.state, was_duplicate=result.was_duplicate
    )
    return Status(200 if result.was_duplicate else 201, shape)


@routes.show("/jobs", "stoker.view_job", JobPageShape)
def list_jobs(request: HttpRequest, wanted: Query[JobQuery], backend: Backend = None) -> Any:
    """List and search jobs. If a filter has no index, a page searches 10,000 jobs, or 4,000 for
    a text. Jobs that wait in a broker outside the database are not listed."""
    settings, after = settings_of(backend), mark_of(wanted.after)
    with explained(settings.database):
        page = JobSearch(settings, wanted.wanted()).page(wanted.limit, after)
        others = [job for job in page.jobs if job not in page.by_id]
        rows = rows_of(settings, [*page.by_id, *others], reveal=may_reveal(request))
    return JobPageShape(
        jobs=[_row_shape(row) for row in rows], next=cursor_of(page.next), is_cut=page.is_cut
    )


@routes.show("/jobs/{job_id}", "stoker.view_job", JobShape)
def get_job(request: HttpRequest, job_id: UUID, backend: Backend = None) -> Any:
    """Show a job: its state, attempts, errors and return value."""
    return shape_of(settings_of(backend), job_id, reveal=may_reveal(request))


@routes.show("/jobs/{job_id}/why", "stoker.view_job", WhyShape)
def why_job(request: HttpRequest, job_id: UUID, backend: Backend = None) -> Any:
    """Show why a job is not running and what to do, where it runs, or how it ended."""
    answer = why(settings_of(backend), job_id)
    if answer.kind == Kind.UNKNOWN:
        raise not_there(job_id)
    return answer_as_plain(answer)


@routes.change(
    "/jobs/{job_id}/cancel",
    CANCEL,
    JobShape,
    may_conflict=True,
    example={"because": "ordered twice"},
)
def cancel_job(
    request: HttpRequest, job_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Cancel a waiting job, or ask a running one to end, which takes a moment. 409: it has
    ended."""
    return _changed(request, CANCEL, job_id, body, backend)


@routes.change("/jobs/{job_id}/run", RUN_NOW, JobShape, may_conflict=True)
def run_job_now(
    request: HttpRequest, job_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Let a deferred or held job start as soon as a worker is free. 409: the job is not waiting."""
    return _changed(request, RUN_NOW, job_id, body, backend)


@routes.change("/jobs/{job_id}/hold", HOLD, JobShape, may_conflict=True)
def hold_job(
    request: HttpRequest, job_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Hold a waiting job until it is run now or rescheduled. 409: the job is not waiting."""
    return _changed(request, HOLD, job_id, body, backend)


@routes.change(
    "/jobs/{job_id}/reschedule",
    RESCHEDULE,
    JobShape,
    may_conflict=True,
    example={"run_after_seconds": 3600},
)
def reschedule_job(
    request: HttpRequest, job_id: UUID, body: Rescheduling, backend: Backend = None
) -> Any:
    """Change the earliest start of a waiting job. 409: the job is not waiting."""
    start = moment_of(body.run_after, body.run_after_seconds)
    text = AT_ONCE if start is None else start.isoformat() if body.run_after else str(start)
    return _changed(request, RESCHEDULE, job_id, body, backend, run_after=text)


@routes.change(
    "/jobs/{job_id}/prioritise", PRIORITISE, JobShape, may_conflict=True, example={"priority": 50}
)
def prioritise_job(
    request: HttpRequest, job_id: UUID, body: Prioritising, backend: Backend = None
) -> Any:
    """Change the priority of a waiting job. 409: the job is not waiting."""
    return _changed(request, PRIORITISE, job_id, body, backend, priority=str(body.priority))


@routes.change("/jobs/{job_id}/move", MOVE, JobShape, may_conflict=True, example={"queue": "slow"})
def move_job(request: HttpRequest, job_id: UUID, body: Moving, backend: Backend = None) -> Any:
    """Move a waiting job to another queue. 409: the job is not waiting, or the queue does not
    exist."""
    return _changed(request, MOVE, job_id, body, backend, queue=body.queue)


@routes.change("/jobs/{job_id}/edit", EDIT, JobShape, may_conflict=True, example={"args": [7]})
def edit_job(request: HttpRequest, job_id: UUID, body: Editing, backend: Backend = None) -> Any:
    """Replace the arguments of a waiting job. 409: the job is not waiting, or its task does not
    accept the arguments."""
    return _changed(request, EDIT, job_id, body, backend, args=body.args, kwargs=body.kwargs)


def _changed(
    request: HttpRequest,
    operation: Operation,
    job_id: UUID,
    body: ReasonBody,
    backend: str | None,
    **options: Any,
) -> JobShape:
    operator = operator_of(request, backend, body.because)
    try:
        perform(operation, operator, str(job_id), **options)
    except ValueError as error:
        raise CallRefused(409, first_line_of(error)) from error
    shape = shape_of(operator.settings, job_id, reveal=may_reveal(request))
    may_see = request.auth.has_perm("stoker.view_job")  # type: ignore[attr-defined] # ninja sets it
    return shape if may_see else shape.model_copy(update=HIDDEN_FIELDS)


def address_of(request: HttpRequest, result: Result[Any]) -> str:
    """Return the URL of the enqueued job."""
    address = f"{request.path.rstrip('/')}/{result.id}"
    if result.backend == unnamed_backend():
        return address
    return f"{address}?{urlencode({'backend': result.backend})}"


def varied(task: Any, body: JobRequest, backend: str | None) -> Any:
    """Return the task with the options of the request."""
    changes = {
        "backend": None if backend is None else settings_of(backend).alias,
        "queue_name": body.queue,
        "priority": body.priority,
        "run_after": moment_of(body.run_after, body.run_after_seconds),
    }
    return task.using(**{name: value for name, value in changes.items() if value is not None})


def at_most_once(task: Any, name: str, key: str) -> Any:
    """Return the task with a unique key that holds for a day."""
    if task.unique is not None:
        raise CallRefused(
            422, f"{name} has a unique key of its own, so it accepts no Idempotency-Key."
        )
    unique = Unique(lambda: f"idempotency key {key}", within=IDEMPOTENCE_SECONDS)
    return task.using(unique=unique)


def shape_of(settings: Settings, job_id: UUID, *, reveal: bool) -> JobShape:
    """Return the current state of a job.

    Args:
        reveal: Whether to show hidden arguments, too.

    Raises:
        TaskResultDoesNotExist: No job has this id (any more).
    """
    progress = full_progress_of_one(settings, job_id)
    job, package = progress.job, package_of(settings, progress.job)
    call = None if package is None else shown_call(package, settings.redact, reveal=reveal)
    result = result_of(settings, job_id, progress)
    report = result.progress
    with explained(settings.database):
        waits = waits_of(settings, progress, row_of(settings, job_id, progress))
    return JobShape(
        id=job_id,
        task=job.task if job else "",
        queue=job.queue if job else "",
        priority=job.priority if job else 0,
        state=progress.state.value,
        attempts=progress.attempts,
        enqueued_at=job.enqueued_at if job else None,
        run_after=job.run_after if job else None,
        started_at=progress.started_at,
        finished_at=job.finished_at if job else None,
        **call_fields(call),
        return_value=_value_of(result),
        reason=job.reason if job else "",
        errors=[AttemptShape.model_validate(one) for one in progress.failures],
        progress=report and ProgressShape(**report._asdict()),
        waits=None if waits is None else WaitsShape(**waits.as_facts()),
    )


def _row_shape(row: JobRow) -> JobRowShape:
    shown = {name: getattr(row.job, name) for name in COLUMNS}
    return JobRowShape(**shown, state=row.state, **call_fields(row.call))


def _value_of(result: Result[Any]) -> Any:
    try:
        return plain(result.return_value)
    except (ValueError, PackageError):
        return None
