"""Schedules: list, run now, pause, resume."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Path, Status
from pydantic import Field

from stoker.api.access import Routes, operator_of
from stoker.api.filters import NO_REASON, PageLimit, ReasonBody
from stoker.api.problems import CallRefused
from stoker.api.shapes import Shape
from stoker.api.values import Backend, cursor_of, mark_of, settings_of
from stoker.exceptions import InvalidSchedule, StokerError
from stoker.models import Schedule
from stoker.operations.schedules import PAUSE, RESUME, RUN, page_of
from stoker.schedules import service as schedules
from stoker.values.text import first_line_of
from stoker.values.ticks import as_moment

routes = Routes(tags=["schedules"])

ScheduleName = Annotated[str, Path(..., min_length=1, max_length=255)]


class ScheduleShape(Shape):
    """One schedule, with its next and last tick."""

    name: str
    source: str
    """Place of its declaration: code, settings, or row (the database)."""
    task: str
    queue: str
    """Queue of the jobs; empty = the task's queue."""
    priority: int | None
    kind: str
    """cron, interval or once."""
    rule: str
    """Description of the rule; empty if the rule cannot be parsed."""
    expression: str
    """The cron rule."""
    zone: str
    misfire: str
    overlap: str
    is_paused: bool
    paused_at: datetime | None
    paused_by: str
    paused_because: str
    problem: str
    """Reason why its last tick could not be fired."""
    next_moment: datetime | None
    """Moment of the next tick; null = there is none, or the schedule is paused."""
    last_moment: datetime | None
    last_job_id: UUID | None
    fired_count: int
    missed_count: int


class SchedulePage(Shape):
    """A page of schedules, by name."""

    schedules: list[ScheduleShape]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class ScheduledJob(Shape):
    """The enqueued job."""

    job_id: UUID


@routes.show("/schedules", "stoker.view_schedule", SchedulePage)
def list_schedules(
    request: HttpRequest,
    limit: PageLimit = 50,
    after: Annotated[str, Field(max_length=2000)] | None = None,
    backend: Backend = None,
) -> Any:
    """List a page of schedules, by name."""
    rows, mark = page_of(settings_of(backend), limit, mark_of(after) or "")
    return SchedulePage(schedules=[shape_of(row) for row in rows], next=cursor_of(mark))


@routes.route(
    "POST",
    "/schedules/{path:schedule}/run",
    permissions=("stoker.run_schedule",),
    answers={201: ScheduledJob, 409: ...},
)
def run_schedule(request: HttpRequest, schedule: ScheduleName, backend: Backend = None) -> Any:
    """Enqueue the schedule's job now, even if the schedule is paused. The next tick is not
    affected. 409: its task does not accept the call any more."""
    try:
        done = RUN.perform(operator_of(request, backend), schedule)
    except StokerError:
        raise
    except (TypeError, ValueError) as error:
        raise CallRefused(409, first_line_of(error)) from error
    return Status(201, ScheduledJob(job_id=UUID(done.job_id)))


@routes.change(
    "/schedules/{path:schedule}/pause",
    PAUSE,
    ScheduleShape,
    example={"because": "the printer is broken"},
)
def pause_schedule(
    request: HttpRequest,
    schedule: ScheduleName,
    body: ReasonBody = NO_REASON,
    backend: Backend = None,
) -> ScheduleShape:
    """Pause a schedule: it fires no ticks until it is resumed. Ticks in between are skipped."""
    return shape_of(PAUSE.perform(operator_of(request, backend, body.because), schedule).value)


@routes.change("/schedules/{path:schedule}/resume", RESUME, ScheduleShape, may_conflict=True)
def resume_schedule(
    request: HttpRequest, schedule: ScheduleName, backend: Backend = None
) -> ScheduleShape:
    """Resume a schedule from its next tick on. 409: its rule cannot be read."""
    try:
        return shape_of(RESUME.perform(operator_of(request, backend), schedule).value)
    except InvalidSchedule as error:
        raise CallRefused(409, first_line_of(error)) from error


# This route is last, because a name may contain slashes and end like the URLs above.
@routes.show("/schedules/{stoker_name:schedule}", "stoker.view_schedule", ScheduleShape)
def get_schedule(
    request: HttpRequest, schedule: ScheduleName, backend: Backend = None
) -> ScheduleShape:
    """Show one schedule."""
    return shape_of(schedules.get(schedule, backend=settings_of(backend).alias))


def shape_of(row: Schedule) -> ScheduleShape:
    """Return the answer that shows a schedule, even if its rule cannot be parsed."""
    try:
        rule = row.words
    except ValueError:
        rule = ""
    same = {
        name: getattr(row, name)
        for name in ScheduleShape.model_fields
        if name not in ("rule", "paused_at", "next_moment", "last_moment")
    }
    return ScheduleShape(
        **same,
        rule=rule,
        paused_at=_moment(row.paused_us),
        next_moment=None if row.is_paused else _moment(row.moment_us),
        last_moment=_moment(row.last_moment_us),
    )


def _moment(instant_us: int | None) -> datetime | None:
    return None if instant_us is None else as_moment(instant_us)
