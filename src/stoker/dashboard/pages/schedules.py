"""Schedules: their next and last ticks, and a calendar of both."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse

from stoker.dashboard.calendars import days_of, hours_of
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import (
    PageContent,
    PageRefused,
    answered,
    enclosed,
    page,
    rendered,
    require,
)
from stoker.exceptions import PackageError, ScheduleNotFound
from stoker.models import Schedule, Tick
from stoker.operations.schedule_form import ScheduleForm, form_to_add, form_to_change, saved
from stoker.operations.schedules import (
    ADD,
    CHANGE,
    call_for,
    facts_of,
    next_ticks_of,
    page_of,
    pause_of,
    rule_of,
    tick_text,
)
from stoker.schedules import service as schedules
from stoker.store.engines.sessions import explained
from stoker.store.written import MICROSECONDS, moment
from stoker.values.text import first_line_of

ON_A_PAGE = 20
TICKS = 30
METHODS = ("GET", "HEAD", "POST")
KINDS = {"expression": "cron", "count": "interval", "unit": "interval", "at": "once"}
"""Field of the form -> the kind of schedule that has it."""


@page("stoker.view_schedule")
def show(visit: DashboardContext) -> PageContent:
    """Return a page of schedules by name, with the number of ticks on each of the last days."""
    given = visit.request.GET
    text = given.get("q", "").strip()[:255]
    rows, after = page_of(visit.settings, ON_A_PAGE, given.get("after", "")[:255], text)
    with explained(visit.database):
        days = days_of(visit.database, rows)
    context = {
        "rows": [{"is": row, "words": rule_of(row), "cells": days.cells(row.pk)} for row in rows],
        "days": days.heads,
        "text": text,
        "add_address": visit.at("add-schedule") if visit.may(ADD.permission) else "",
        **visit.paging(after),
    }
    return PageContent("schedules", context)


@page("stoker.view_schedule")
def show_one(visit: DashboardContext, schedule_id: UUID) -> PageContent:
    """Return one schedule: its rule, its next ticks, and its last ticks hour by hour."""
    row = _row(visit, schedule_id)
    with explained(visit.database):
        ticks = Tick.objects.using(visit.database).filter(schedule_id=row.pk)
        newest = list(ticks.order_by("-moment_us")[:TICKS])
        hours = hours_of(visit.database, row)
    context = {
        "row": row,
        "edit_address": ""
        if row.is_declared or not (visit.may(CHANGE.permission) and visit.may("stoker.view_job"))
        else visit.at("change-schedule", row.pk),
        "words": rule_of(row),
        "pause": pause_of(row),
        "facts": facts_of(row)[1:],
        "coming": next_ticks_of(row),
        "hours": hours,
        "ticks": [
            {"is": tick, "text": tick_text(tick), "at": moment(tick.moment_us / MICROSECONDS)}
            for tick in newest
        ],
        **call_for(visit, row),
    }
    return PageContent("schedule", context)


def _add(visit: DashboardContext) -> HttpResponse:
    """Add a schedule."""
    return _answer(visit, form_to_add(visit), None)


def _change(visit: DashboardContext, schedule_id: UUID) -> HttpResponse:
    """Change a schedule. Refuse schedules that code or settings declare."""
    require(visit, "stoker.view_job")  # the form shows the arguments
    row = _row(visit, schedule_id)
    if row.is_declared:
        raise PageRefused(400, f"The schedule is declared in the {row.source}: change it there.")
    try:
        form = form_to_change(visit, row.name)
    except (PackageError, ValueError) as error:
        raise PageRefused(400, first_line_of(error)) from None
    return _answer(visit, form, row)


add: Any = enclosed(_add, METHODS, ADD.permission)
change: Any = enclosed(_change, METHODS, CHANGE.permission)


def _answer(visit: DashboardContext, form: ScheduleForm, row: Schedule | None) -> HttpResponse:
    """Show the form, with the next ticks once it is filled in, or save it."""
    is_preview, name = "preview" in visit.request.POST, row.name if row else ""
    if not is_preview and (done := saved(visit, form, name)):
        return answered(visit, CHANGE if row else ADD, done, visit.at("schedule", done.value.pk))
    is_filled = form.is_bound and form.is_valid()
    context = {
        "row": row,
        "form": form,
        "fields": [{"is": form[name], "kind": KINDS.get(name, "")} for name in form.fields],
        "words": rule_of(form.when) if is_filled else "",
        "coming": next_ticks_of(form.when) if is_filled else (),
        "back": visit.at("schedule", row.pk) if row else visit.at("schedules"),
        "because": visit.request.POST.get("because", ""),
    }
    return rendered(visit, "stoker/dashboard/schedule_form.html", context)


def _row(visit: DashboardContext, schedule_id: UUID) -> Schedule:
    with explained(visit.database):
        row = schedules.find(backend=visit.alias).filter(pk=schedule_id).first()
    if row is None:
        raise ScheduleNotFound(f"There is no schedule {schedule_id} (any more).")
    return row
