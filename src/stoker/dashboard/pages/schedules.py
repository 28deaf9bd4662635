"""Schedules: what comes next, what came and what was missed; run now, paused, resumed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.dashboard.calendars import Calendar, days_of, hours_of
from stoker.dashboard.request_context import Visit
from stoker.dashboard.views import Done, Page, Refusal, action, page
from stoker.exceptions import PackageError, ScheduleNotFound, StokerError
from stoker.jobs.states import explained
from stoker.models import Schedule, Tick
from stoker.models.job import moment
from stoker.schedules import service as schedules
from stoker.store.clock import MICROSECONDS

from .job import shown

ON_A_PAGE = 100
TICKS = 30
NEXT = 5


@page("stoker.view_schedule")
def show(visit: Visit) -> Page:
    """All of them by name, with the days of this week."""
    after = visit.request.GET.get("after", "")[:255]
    with explained(visit.database):
        rows = schedules.find(backend=visit.alias).defer("package").filter(name__gt=after)
        found = list(rows.order_by("name")[: ON_A_PAGE + 1])
        shown_rows = found[:ON_A_PAGE]
        days = days_of(visit.database, shown_rows)
    context = {
        "rows": [_shown(row, days) for row in shown_rows],
        "days": days.heads,
        "next": len(found) > ON_A_PAGE and visit.at("schedules", after=shown_rows[-1].name),
        "first": after and visit.at("schedules"),
    }
    return Page("schedules", context)


@page("stoker.view_schedule")
def show_one(visit: Visit, schedule_id: UUID) -> Page:
    """One: its rule, what comes next, and hour by hour what came."""
    row = _row(visit, schedule_id)
    with explained(visit.database):
        ticks = Tick.objects.using(visit.database).filter(schedule_id=row.pk)
        newest = list(ticks.order_by("-moment_us")[:TICKS])
        hours = hours_of(visit.database, row)
    try:
        coming = schedules.next_ticks(row, NEXT, backend=visit.alias)
    except ValueError:
        coming = []
    context = {
        "row": row,
        "words": _words(row),
        "coming": coming,
        "hours": hours,
        "ticks": [{"is": tick, "at": moment(tick.moment_us / MICROSECONDS)} for tick in newest],
        **_arguments(visit, row),
    }
    return Page("schedule", context)


@action("stoker.run_schedule")
def run_now(visit: Visit) -> Done:
    """Enqueue its job now."""
    row = _named(visit)
    try:
        result = schedules.run_now(row.name, by=visit.by, backend=visit.alias)
    except (PackageError, StokerError) as error:
        return Done(f"Not run: {error}", is_bad=True)
    return Done(f"{row.name} runs now: this is its job.", to=visit.at("job", result.id))


@action("stoker.pause_schedule")
def pause(visit: Visit) -> Done:
    """No tick is fired until it is resumed."""
    row, because = _named(visit), visit.request.POST.get("because", "").strip()
    schedules.pause(row.name, by=visit.by, because=because, backend=visit.alias)
    fields = (("schedule", str(row.pk)),)
    return Done(f"{row.name} is paused.", undo="resume-schedule", fields=fields)


@action("stoker.pause_schedule")
def resume(visit: Visit) -> Done:
    """It goes on from the next moment on."""
    row = _named(visit)
    try:
        schedules.resume(row.name, backend=visit.alias)
    except ValueError as error:
        return Done(f"Not resumed: {error}", is_bad=True)
    return Done(f"{row.name} goes on.")


def _row(visit: Visit, schedule_id: UUID) -> Schedule:
    with explained(visit.database):
        row = schedules.find(backend=visit.alias).filter(pk=schedule_id).first()
    if row is None:
        raise ScheduleNotFound(f"There is no schedule {schedule_id} (any more).")
    return row


def _named(visit: Visit) -> Schedule:
    try:
        return _row(visit, UUID(visit.request.POST.get("schedule", "")))
    except ValueError:
        raise Refusal(400, "No schedule was named.") from None


def _shown(row: Schedule, days: Calendar) -> dict[str, Any]:
    return {"is": row, "words": _words(row), "cells": days.cells(row.pk)}


def _words(row: Schedule) -> str:
    """The rule in words; where it cannot be read, why."""
    try:
        return row.words
    except ValueError as error:
        return f"cannot be read: {error}"


def _arguments(visit: Visit, row: Schedule) -> dict[str, Any]:
    try:
        when = schedules.scheduled(row.name, backend=visit.alias)
    except (PackageError, ValueError):
        return {"is_readable": False}
    return {
        "is_readable": True,
        "args": [shown(value) for value in when.args],
        "kwargs": [(name, shown(value)) for name, value in when.kwargs.items()],
    }
