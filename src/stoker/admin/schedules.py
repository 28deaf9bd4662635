"""Schedules: seen, made, changed, run now, paused, resumed, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from stoker.exceptions import InvalidSchedule, PackageError, StokerError
from stoker.models import Schedule, Tick
from stoker.schedules import service as schedules
from stoker.tasks.schedules import Cron, Every, Once, Scheduled
from stoker.values.cron import UNITS, zone_named
from stoker.values.ticks import as_moment

from .arguments import Edited, as_text
from .base import Outcome, StoreAdmin, Verb, Visit, ago, first_sentence, shown, shown_moment

TERMS = ("misfire", "overlap", "queue_name", "priority", "repeats", "start", "end")


class ScheduleForm(forms.Form):
    """Fields of one schedule. ``when`` is made of them once they are valid."""

    name = forms.CharField(max_length=255)
    task = forms.CharField(max_length=255, help_text="The dotted path, as shop.tasks.send_report.")
    kind = forms.ChoiceField(choices=Schedule.Kind.choices, initial="cron")
    expression = forms.CharField(
        max_length=255,
        required=False,
        label="Cron rule",
        help_text="As 30 2 * * 1-5: minute, hour, day, month, weekday. Or @daily.",
    )
    count = forms.IntegerField(min_value=1, required=False, label="Every")
    unit = forms.ChoiceField(choices=[(one, one) for one in UNITS], required=False, initial="days")
    at = forms.DateTimeField(
        required=False, label="Once at", help_text="Of the time zone: 2030-01-31 06:00."
    )
    tz = forms.CharField(
        max_length=64,
        required=False,
        label="Time zone",
        help_text="As Europe/Berlin. Empty: TIME_ZONE of the settings.",
    )
    args = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2}), required=False, label="Arguments (JSON list)"
    )
    kwargs = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 2}),
        required=False,
        label="Arguments by name (JSON object)",
    )
    queue_name = forms.CharField(
        max_length=100, required=False, label="Queue", help_text="Empty: the task's."
    )
    priority = forms.IntegerField(
        min_value=-100, max_value=100, required=False, help_text="Empty: the task's."
    )
    start = forms.DateTimeField(required=False, help_text="No tick before, of the time zone.")
    end = forms.DateTimeField(required=False, help_text="No tick after, of the time zone.")
    repeats = forms.IntegerField(
        min_value=-1, initial=-1, required=False, help_text="Over after so many jobs; -1: never."
    )
    misfire = forms.ChoiceField(
        choices=Schedule.MisfirePolicy.choices,
        required=False,
        label="Ticks that were missed",
        help_text="once: one job for all; skip: none; all: a job for each.",
    )
    overlap = forms.ChoiceField(
        choices=Schedule.Overlap.choices,
        required=False,
        label="While the job before runs",
        help_text="allow: another; skip: none; queue: one, when it has ended.",
    )

    when: Scheduled

    def __init__(self, *args: Any, before: Scheduled | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._before = before
        """What the form does not ask for stays as it is there."""

    def clean_start(self) -> datetime | None:
        return _naive(self.cleaned_data["start"])

    def clean_end(self) -> datetime | None:
        return _naive(self.cleaned_data["end"])

    def clean_at(self) -> datetime | None:
        return _naive(self.cleaned_data["at"])

    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        if self.errors:
            return found
        moment_as = self._before.moment_as if self._before else ""
        edited = Edited.read(found["task"], found["args"], found["kwargs"], moment_as)
        for problem in edited.problems:
            self.add_error(None, problem)
        if self.errors:
            return found
        terms = {name: found[name] for name in TERMS if found[name] not in (None, "")}
        kept = {name: getattr(self._before, name) for name in KEPT} if self._before else {}
        common = {**kept, **terms, "tz": found["tz"] or None}
        if isinstance(self._before, Every) and found["kind"] == self._before.kind:
            common["anchor"] = self._before.anchor
        try:
            self.when = _made(found, **common, args=list(edited.args), kwargs=dict(edited.kwargs))
        except (StokerError, ValueError, TypeError) as error:
            self.add_error(None, str(error))
        return found


KEPT = ("jitter", "misfire_cap", "grace", "moment_as")


def initial_of(row: Schedule, when: Scheduled) -> dict[str, Any]:
    """What the form of this schedule begins with."""
    naive = {
        name: None if us is None else as_moment(us).astimezone(zone_named(row.zone))
        for name, us in (("start", row.start_us), ("end", row.end_us))
    }
    anchor = datetime.fromisoformat(row.anchor) if row.anchor else None
    at = anchor.astimezone(zone_named(row.zone)) if anchor and row.kind == "once" else None
    return {
        "name": row.name,
        "task": row.task,
        "kind": row.kind,
        "expression": row.expression,
        "count": row.count or None,
        "unit": row.unit,
        "at": at and at.replace(tzinfo=None),
        "tz": row.zone,
        "args": as_text(list(when.args)),
        "kwargs": as_text(dict(when.kwargs)),
        "queue_name": row.queue,
        "priority": row.priority,
        "repeats": row.repeats,
        "misfire": row.misfire,
        "overlap": row.overlap,
        **{name: one and one.replace(tzinfo=None) for name, one in naive.items()},
    }


def _made(found: dict[str, Any], **terms: Any) -> Scheduled:
    if found["kind"] == Schedule.Kind.CRON:
        if not found["expression"]:
            raise InvalidSchedule("Write a cron rule, as 30 2 * * 1-5.")
        return Cron(found["expression"], **terms)
    if found["kind"] == Schedule.Kind.INTERVAL:
        if not found["count"]:
            raise InvalidSchedule("Write every how many.")
        return Every(count=found["count"], unit=found["unit"], **terms)
    if found["at"] is None:
        raise InvalidSchedule("Write when: a date and a time.")
    return Once(found["at"], **terms)


def _naive(moment: datetime | None) -> datetime | None:
    """As it was written: a wall time of the schedule's zone, not of the project's."""
    if moment is None or timezone.is_naive(moment):
        return moment
    return timezone.localtime(moment).replace(tzinfo=None)


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
