"""Schedules: seen, made, changed, run now, paused, resumed, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase

from stoker import schedules
from stoker.exceptions import InvalidSchedule, PackageError, StokerError
from stoker.models import Schedule, Tick
from stoker.schedule_options import Scheduled
from stoker.schedule_plan import as_moment
from stoker.wall_clock import zone_named

from .schedule_form import ScheduleForm, initial_of
from .store_admin import Outcome, StoreAdmin, Verb, first_sentence
from .visit import Visit
from .words import ago, shown, shown_moment

PAGE = 100
NEXT_TICKS = 5
MOMENT = "%a %Y-%m-%d %H:%M:%S %Z"


def run_now(visit: Visit, name: str, because: str) -> Outcome:
    result = schedules.run_now(name, by=visit.by, backend=visit.alias)
    return Outcome(f"The schedule {name} has made the job {result.id}.")


def pause(visit: Visit, name: str, because: str) -> Outcome:
    schedules.pause(name, by=visit.by, because=because, backend=visit.alias)
    return Outcome(f"The schedule {name} is paused: it fires no tick until somebody resumes it.")


def resume(visit: Visit, name: str, because: str) -> Outcome:
    schedules.resume(name, backend=visit.alias)
    return Outcome(f"The schedule {name} goes on, from its next moment on.")


def delete(visit: Visit, name: str, because: str) -> Outcome:
    schedules.delete(name, backend=visit.alias)
    return Outcome(f"The schedule {name} is deleted.", to=visit.at("schedule_changelist"))


@admin.register(Schedule)
class ScheduleAdmin(StoreAdmin):
    view_permission = "stoker.view_schedule"
    plural = "Schedules"
    verbs = (
        Verb("run", "Run now", "stoker.run_schedule", run_now),
        Verb(
            "pause",
            "Pause",
            "stoker.pause_schedule",
            pause,
            asks="Pause the schedule {name}? What falls due in between is left out.",
        ),
        Verb("resume", "Resume", "stoker.pause_schedule", resume),
        Verb(
            "delete",
            "Delete",
            "stoker.delete_schedule",
            delete,
            asks="Delete the schedule {name} and its history? The jobs that it has made stay.",
            is_grave=True,
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("stoker.add_schedule"))

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("add/", "add", self.add),
            ("preview/", "preview", self.preview),
            ("<path:object_id>/edit/", "edit", self.edit),
        )

    def all(self, visit: Visit) -> HttpResponseBase:
        after, text = visit.request.GET.get("after", ""), visit.request.GET.get("q", "").strip()
        found = schedules.find(backend=visit.alias).defer("package").order_by("name")
        if after:
            found = found.filter(name__gt=after)
        if text:
            found = found.filter(name__contains=text)
        rows = list(found[: PAGE + 1])
        context = {
            "rows": [_row(visit, row) for row in rows[:PAGE]],
            "text": text,
            "next": visit.here(after=rows[PAGE - 1].name) if len(rows) > PAGE else "",
            "add_url": visit.at("schedule_add") if visit.may("stoker.add_schedule") else "",
        }
        return self.show(visit, "schedules", context)

    def one(self, visit: Visit, object_id: str) -> HttpResponseBase:
        row = schedules.get(object_id, backend=visit.alias)
        names = ["run", "resume" if row.is_paused else "pause"]
        may_change = not row.is_declared and visit.may("stoker.change_schedule")
        context = {
            "title": row.name,
            **_row(visit, row),
            "call": _call(visit, row),
            "moments": _next(row),
            "ticks": [_tick(visit, row, one) for one in _ticks(visit, row)],
            "buttons": self.buttons(
                visit, names if row.is_declared else [*names, "delete"], row.name
            ),
            "edit_url": visit.at("schedule_edit", row.name) if may_change else "",
        }
        return self.show(visit, "schedule", context)

    # -- made and changed -------------------------------------------------------------------------

    def add(self, visit: Visit) -> HttpResponseBase:
        visit.require("stoker.add_schedule")
        form = ScheduleForm(visit.request.POST or None)
        if visit.request.method == "POST" and form.is_valid():
            found = form.cleaned_data
            if _told(
                form,
                lambda: schedules.create(
                    found["name"], found["task"], form.when, backend=visit.alias
                ),
            ):
                outcome = Outcome(f"The schedule {found['name']} is made.")
                return self.done(visit, outcome, self._back(visit, found["name"]))
        return self._form(visit, form, "Add a schedule", visit.at("schedule_changelist"))

    def edit(self, visit: Visit, object_id: str) -> HttpResponseBase:
        visit.require("stoker.change_schedule")
        row = schedules.get(object_id, backend=visit.alias)
        back = self._back(visit, row.name)
        try:
            before = schedules.scheduled(row.name, backend=visit.alias)
        except (PackageError, ValueError) as error:
            return self.done(visit, Outcome(first_sentence(error), is_good=False), back)
        form = ScheduleForm(
            visit.request.POST or None, initial=initial_of(row, before), before=before
        )
        form.fields["name"].disabled = True
        if visit.request.method == "POST" and form.is_valid():
            task = form.cleaned_data["task"]
            if _told(
                form,
                lambda: schedules.update(row.name, task=task, when=form.when, backend=visit.alias),
            ):
                return self.done(visit, Outcome(f"The schedule {row.name} is changed."), back)
        return self._form(visit, form, f"Change {row.name}", back)

    def preview(self, visit: Visit) -> HttpResponseBase:
        """What a form says, in words, while it is being filled in."""
        if not (visit.may("stoker.add_schedule") or visit.may("stoker.change_schedule")):
            visit.require("stoker.add_schedule")
        form = ScheduleForm(visit.request.POST)
        if not form.is_valid():
            problems = [
                text if name == "__all__" else f"{form.fields[name].label or name}: {text}"
                for name, texts in form.errors.items()
                for text in texts
            ]
            return JsonResponse({"problems": problems})
        return JsonResponse({"problems": [], "words": _words(form.when), "next": _next(form.when)})

    def _form(self, visit: Visit, form: ScheduleForm, title: str, back: str) -> HttpResponseBase:
        context = {
            "title": title,
            "form": form,
            "back": back,
            "preview_url": visit.at("schedule_preview"),
        }
        return self.show(visit, "schedule_form", context)


def _told(form: ScheduleForm, save: Callable[[], Any]) -> bool:
    """Whether it was saved; what was wrong stands in the form."""
    try:
        save()
    except (StokerError, ValueError, TypeError) as error:
        form.add_error(None, first_sentence(error))
        return False
    return True


def _row(visit: Visit, row: Schedule) -> dict[str, Any]:
    moments = _next(row, 1)
    state = "paused" if row.is_paused else "over" if row.is_over else "ticking"
    return {
        "row": row,
        "url": visit.at("schedule_change", row.name),
        "words": _words(row),
        "state": state,
        "next": moments[0] if moments and not row.is_paused else "",
        "last": shown_moment(row.last_moment),
        "last_ago": ago(row.last_moment),
        "job_url": visit.at("job_change", row.last_job_id) if row.last_job_id else "",
    }


def _words(schedule: Schedule | Scheduled) -> str:
    try:
        return schedules.describe(schedule)
    except (InvalidSchedule, ValueError) as error:
        return str(error)


def _next(schedule: Schedule | Scheduled, count: int = NEXT_TICKS) -> list[str]:
    try:
        moments: Iterable[datetime] = schedules.next_ticks(schedule, count)
    except (InvalidSchedule, ValueError):
        return []
    return [moment.strftime(MOMENT) for moment in moments]


def _call(visit: Visit, row: Schedule) -> dict[str, Any]:
    try:
        when = schedules.scheduled(row.name, backend=visit.alias)
    except (PackageError, ValueError):
        return {}
    kwargs = {name: shown(value) for name, value in when.kwargs.items()}
    return {"args": [shown(value) for value in when.args], "kwargs": kwargs}


def _ticks(visit: Visit, row: Schedule) -> list[Tick]:
    return schedules.ticks(row.name, backend=visit.alias)


def _tick(visit: Visit, row: Schedule, tick: Tick) -> dict[str, Any]:
    moment = as_moment(tick.moment_us).astimezone(zone_named(row.zone))
    return {
        "tick": tick,
        "moment": moment.strftime(MOMENT),
        "fired": shown_moment(as_moment(tick.fired_us)),
        "url": visit.at("job_change", tick.job_id) if tick.job_id else "",
    }
