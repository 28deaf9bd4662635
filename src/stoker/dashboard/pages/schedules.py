"""Schedules: their next and last ticks, and a calendar of both."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.dashboard.calendars import Calendar, days_of, hours_of
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, page
from stoker.exceptions import ScheduleNotFound
from stoker.models import Schedule, Tick
from stoker.operations.details import REVEAL, call_hidden, call_of
from stoker.operations.schedules import (
    call_of_schedule,
    facts_of,
    next_ticks_of,
    page_of,
    rule_of,
    tick_text,
)
from stoker.schedules import service as schedules
from stoker.store.engines.sessions import explained
from stoker.store.written import MICROSECONDS, moment

ON_A_PAGE = 100
TICKS = 30


@page("stoker.view_schedule")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of schedules by name, with the number of ticks on each of the last days."""
    rows, after = page_of(visit.settings, ON_A_PAGE, visit.request.GET.get("after", "")[:255])
    with explained(visit.database):
        days = days_of(visit.database, rows)
    context = {
        "rows": [_shown(row, days) for row in rows],
        "days": days.heads,
        **visit.paging(after),
    }
    return PageContent("schedules", context)


@page("stoker.view_schedule")
def show_one(visit: DashboardContext, schedule_id: UUID) -> PageContent:
    """Return one schedule: its rule, its next ticks, and its last ticks hour by hour."""
    with explained(visit.database):
        row = schedules.find(backend=visit.alias).filter(pk=schedule_id).first()
        if row is None:
            raise ScheduleNotFound(f"There is no schedule {schedule_id} (any more).")
        ticks = Tick.objects.using(visit.database).filter(schedule_id=row.pk)
        newest = list(ticks.order_by("-moment_us")[:TICKS])
        hours = hours_of(visit.database, row)
    context = {
        "row": row,
        "words": rule_of(row),
        "facts": facts_of(row)[1:],
        "coming": next_ticks_of(row),
        "hours": hours,
        "ticks": [
            {"is": tick, "text": tick_text(tick), "at": moment(tick.moment_us / MICROSECONDS)}
            for tick in newest
        ],
        **_call_of(visit, row),
    }
    return PageContent("schedule", context)


def _call_of(visit: DashboardContext, row: Schedule) -> dict[str, Any]:
    if not visit.may("stoker.view_job"):
        return call_hidden()
    return call_of(call_of_schedule(visit.settings, row, reveal=visit.may(REVEAL)))


def _shown(row: Schedule, days: Calendar) -> dict[str, Any]:
    return {"is": row, "words": rule_of(row), "cells": days.cells(row.pk)}
