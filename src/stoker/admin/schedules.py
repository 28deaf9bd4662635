"""Schedules in the admin: a list, a page for each schedule, and a form to add and change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from stoker.exceptions import InvalidSchedule, PackageError, StokerError
from stoker.models import Schedule
from stoker.operations import schedules as operations
from stoker.operations.details import REVEAL, call_hidden, call_of
from stoker.operations.operation import Done
from stoker.operations.schedules import MOMENT, next_ticks_of, rule_of
from stoker.operations.wording import exactly, since
from stoker.schedules import service as schedules
from stoker.tasks.arguments import ShownCall
from stoker.tasks.schedules import Cron, Every, Once, Scheduled
from stoker.values.cron import UNITS, zone_named
from stoker.values.text import first_line_of
from stoker.values.ticks import as_moment

from .arguments import Edited, as_text
from .base import AdminContext, StoreAdmin

PAGE = 100
TERMS = ("misfire", "overlap", "queue_name", "priority", "repeats", "start", "end")


class ScheduleForm(forms.Form):
    """A form for one schedule. ``when`` is set after successful validation."""

    name = forms.CharField(max_length=255)
    task = forms.CharField(
        max_length=255, help_text="The dotted path, such as shop.tasks.send_report."
    )
    kind = forms.ChoiceField(choices=Schedule.Kind.choices, initial="cron")
    expression = forms.CharField(
        max_length=255,
        required=False,
        label="Cron rule",
        help_text="Such as 30 2 * * 1-5: minute, hour, day, month, weekday. Or @daily.",
    )
    count = forms.IntegerField(min_value=1, required=False, label="Every")
    unit = forms.ChoiceField(choices=[(one, one) for one in UNITS], required=False, initial="days")
    at = forms.DateTimeField(
        required=False,
        label="Once at",
        help_text="Such as 2030-01-31 06:00, in the schedule's time zone.",
    )
    tz = forms.CharField(
        max_length=64,
        required=False,
        label="Time zone",
        help_text="Such as Europe/Berlin. Empty: the setting TIME_ZONE.",
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
    start = forms.DateTimeField(
        required=False, help_text="No tick before this time, in the schedule's time zone."
    )
    end = forms.DateTimeField(
        required=False, help_text="No tick after this time, in the schedule's time zone."
    )
    repeats = forms.IntegerField(
        min_value=-1,
        initial=-1,
        required=False,
        help_text="Maximum number of jobs, or -1 for no limit.",
    )
    misfire = forms.ChoiceField(
        choices=Schedule.MisfirePolicy.choices,
        required=False,
        label="Missed ticks",
        help_text="once: one job for all of them; skip: no job; all: a job for each.",
    )
    overlap = forms.ChoiceField(
        choices=Schedule.Overlap.choices,
        required=False,
        label="If the previous job still runs",
        help_text="allow: another job; skip: no job; queue: one job when it has ended.",
    )

    when: Scheduled

    def __init__(
        self, *args: Any, before: Scheduled | None = None, has_secrets: bool = False, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._before = before
        """The schedule before the change: terms that the form does not show stay as they are."""
        self._has_secrets = has_secrets
        """Whether the form hides secrets among the arguments."""

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
        sealed = None
        if self._before is not None and self._has_secrets:
            # Another task might reveal the secrets.
            is_same = found["task"] == self.initial["task"]
            sealed = (self._before.args, self._before.kwargs) if is_same else ((), {})
        edited = Edited.read(found["task"], found["args"], found["kwargs"], moment_as, sealed)
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


def initial_of(row: Schedule, call: ShownCall | None) -> dict[str, Any]:
    """Return the initial values of the form for this schedule.

    Args:
        call: The schedule's arguments, in the form that the user may see.
    """
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
        "args": as_text([] if call is None else call.args),
        "kwargs": as_text({} if call is None else call.kwargs),
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
            raise InvalidSchedule("Write a cron rule, such as 30 2 * * 1-5.")
        return Cron(found["expression"], **terms)
    if found["kind"] == Schedule.Kind.INTERVAL:
        if not found["count"]:
            raise InvalidSchedule("Write the number of units between two ticks.")
        return Every(count=found["count"], unit=found["unit"], **terms)
    if found["at"] is None:
        raise InvalidSchedule("Write a date and a time.")
    return Once(found["at"], **terms)


def _naive(moment: datetime | None) -> datetime | None:
    """Return the local time that the user entered, as a naive datetime. It is meant in the
    schedule's time zone, not in the project's."""
    if moment is None or timezone.is_naive(moment):
        return moment
    return timezone.localtime(moment).replace(tzinfo=None)


@admin.register(Schedule)
class ScheduleAdmin(StoreAdmin):
    view_permission = "stoker.view_schedule"
    plural = "Schedules"
    operations = operations.OPERATIONS

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("stoker.add_schedule"))

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("add/", "add", self.add),
            ("preview/", "preview", self.preview),
            ("<path:object_id>/edit/", "edit", self.edit),
        )

    def all(self, visit: AdminContext) -> HttpResponseBase:
        after, text = visit.request.GET.get("after", ""), visit.request.GET.get("q", "").strip()
        rows, mark = operations.page_of(visit.settings, PAGE, after, text)
        context = {
            "rows": [_row(visit, row) for row in rows],
            "text": text,
            **visit.paging(mark),
            "add_url": visit.at("schedule_add") if visit.may("stoker.add_schedule") else "",
        }
        return self.show(visit, "schedules", context)

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        row = schedules.get(object_id, backend=visit.alias)
        buttons = [operations.RUN, operations.RESUME if row.is_paused else operations.PAUSE]
        buttons += [] if row.is_declared else [operations.DELETE]
        may_change = not row.is_declared and visit.may("stoker.change_schedule")
        context = {
            "title": row.name,
            **_row(visit, row),
            **(call_of(_call(visit, row)) if visit.may("stoker.view_job") else call_hidden()),
            "facts": operations.facts_of(row),
            "moments": _next(row),
            "ticks": [
                {
                    "moment": operations.when_of(tick.moment_us, row).strftime(MOMENT),
                    "text": operations.tick_text(tick),
                    "url": visit.at("job_change", tick.job_id) if tick.job_id else "",
                }
                for tick in schedules.ticks(row.name, backend=visit.alias)
            ],
            "buttons": self.buttons(visit, buttons, row.name),
            "edit_url": visit.at("schedule_edit", row.name) if may_change else "",
        }
        return self.show(visit, "schedule", context)

    # -- added and changed ------------------------------------------------------------------------

    def add(self, visit: AdminContext) -> HttpResponseBase:
        visit.require("stoker.add_schedule")
        form = ScheduleForm(visit.request.POST or None)
        if visit.request.method == "POST" and form.is_valid():
            name, task = form.cleaned_data["name"], form.cleaned_data["task"]
            if _saved(form, lambda: schedules.create(name, task, form.when, backend=visit.alias)):
                done = Done(f"The schedule {name} is added.")
                return self.done(visit, done, self._back(visit, name))
        return self._form(visit, form, "Add a schedule", visit.at("schedule_changelist"))

    def edit(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        visit.require("stoker.change_schedule")
        row = schedules.get(object_id, backend=visit.alias)
        back = self._back(visit, row.name)
        try:
            form = self._form_to_change(visit, row.name)
        except (PackageError, ValueError) as error:
            return self.done(visit, Done(first_line_of(error), is_good=False), back)
        if visit.request.method == "POST" and form.is_valid():
            terms = {"task": form.cleaned_data["task"], "when": form.when}
            if _saved(form, lambda: schedules.update(row.name, backend=visit.alias, **terms)):
                return self.done(visit, Done(f"The schedule {row.name} is changed."), back)
        return self._form(visit, form, f"Change {row.name}", back, row.name)

    def preview(self, visit: AdminContext) -> HttpResponseBase:
        """Describe the schedule in words while a user fills in the form."""
        if not visit.may("stoker.change_schedule"):
            visit.require("stoker.add_schedule")
        name = visit.request.GET.get("name", "")
        try:
            form = self._form_to_change(visit, name) if name else ScheduleForm(visit.request.POST)
        except (PackageError, ValueError) as error:
            return JsonResponse({"problems": [first_line_of(error)]})
        if not form.is_valid():
            problems = [
                text if name == "__all__" else f"{form.fields[name].label or name}: {text}"
                for name, texts in form.errors.items()
                for text in texts
            ]
            return JsonResponse({"problems": problems})
        preview = {"problems": [], "words": rule_of(form.when), "next": _next(form.when)}
        return JsonResponse(preview)

    def _form_to_change(self, visit: AdminContext, name: str) -> ScheduleForm:
        """Return the form that changes an existing schedule. Its name cannot be changed.

        Raises:
            PackageError, ValueError: Its arguments or its rule cannot be read.
        """
        row = schedules.get(name, backend=visit.alias)
        before = schedules.scheduled(row.name, backend=visit.alias)
        initial, has_secrets = initial_of(row, _call(visit, row)), not visit.may(REVEAL)
        posted = visit.request.POST or None
        form = ScheduleForm(posted, initial=initial, before=before, has_secrets=has_secrets)
        form.fields["name"].disabled = True
        return form

    def _form(
        self, visit: AdminContext, form: ScheduleForm, title: str, back: str, name: str = ""
    ) -> HttpResponseBase:
        preview_url = visit.at("schedule_preview", name=name)
        context = {"title": title, "form": form, "back": back, "preview_url": preview_url}
        return self.show(visit, "schedule_form", context)


def _call(visit: AdminContext, row: Schedule) -> ShownCall | None:
    return operations.call_of_schedule(visit.settings, row, reveal=visit.may(REVEAL))


def _saved(form: ScheduleForm, save: Callable[[], Any]) -> bool:
    """Save the form and return True. If saving fails, add the error to the form and return
    False."""
    try:
        save()
    except (StokerError, ValueError, TypeError) as error:
        form.add_error(None, first_line_of(error))
        return False
    return True


def _row(visit: AdminContext, row: Schedule) -> dict[str, Any]:
    moments = [] if row.is_paused else _next(row, 1)
    return {
        "row": row,
        "url": visit.at("schedule_change", row.name),
        "words": rule_of(row),
        "state": operations.state_of(row),
        "next": moments[0] if moments else "",
        "last": exactly(row.last_moment),
        "last_ago": since(row.last_moment),
    }


def _next(schedule: Schedule | Scheduled, count: int = 5) -> list[str]:
    return [moment.strftime(MOMENT) for moment in next_ticks_of(schedule, count)]
