"""The form for one schedule, which the dashboard and the admin show."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.utils import timezone

from stoker.exceptions import InvalidSchedule, StokerError
from stoker.models import Schedule
from stoker.schedules import service as schedules
from stoker.tasks.arguments import ShownCall
from stoker.tasks.schedules import Cron, Every, Once, Scheduled
from stoker.values.cron import UNITS, zone_named
from stoker.values.pickles import nothing_unpickled
from stoker.values.text import shown_text
from stoker.values.ticks import as_moment

from .arguments import Edited, Runner, as_text
from .details import REVEAL
from .operation import Done
from .request_context import RequestContext
from .schedules import ADD, CHANGE, call_of_schedule

MOMENTS = ("at", "start", "end")
TERMS = ("misfire", "overlap", "queue_name", "priority", "repeats", "start", "end")
SCHEDULES_ZONE = timezone.get_fixed_timezone(0)
"""Stands for the schedule's time zone while Django parses a moment. It has no change of the clocks,
so Django refuses no moment."""


class LocalDateTimeField(forms.DateTimeField):
    """A moment in the schedule's time zone, not in the project's: a naive datetime. Text with an
    offset from UTC gives an aware one."""

    def to_python(self, value: Any) -> datetime | None:
        with timezone.override(SCHEDULES_ZONE):
            moment: datetime | None = super().to_python(value)
        if moment is not None and moment.tzinfo is SCHEDULES_ZONE:
            return moment.replace(tzinfo=None)
        return moment


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
    at = LocalDateTimeField(
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
        widget=forms.Textarea(attrs={"rows": 4}), required=False, label="Arguments (JSON list)"
    )
    kwargs = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 4}),
        required=False,
        label="Arguments by name (JSON object)",
    )
    queue_name = forms.CharField(
        max_length=100, required=False, label="Queue", help_text="Empty: the task's."
    )
    priority = forms.IntegerField(
        min_value=-100, max_value=100, required=False, help_text="Empty: the task's."
    )
    start = LocalDateTimeField(
        required=False, help_text="No tick before this time, in the schedule's time zone."
    )
    end = LocalDateTimeField(
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
        """The schedule before the change. Its options that the form does not show are kept."""
        self._has_secrets = has_secrets
        """Whether the form hides secrets among the arguments."""

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
        runner = Runner(found["task"])
        edited = Edited.read(runner, found["args"], found["kwargs"], moment_as, sealed)
        for problem in edited.problems:
            self.add_error(None, problem)
        if self.errors:
            return found
        if self._before is not None and found["tz"] == self.initial["tz"]:
            # The form shows neither fractions of a second nor which of two equal hours it is.
            unchanged = [name for name in MOMENTS if found[name] == self[name].initial]
            found |= {name: getattr(self._before, name, None) for name in unchanged}
        terms = {name: found[name] for name in TERMS if found[name] not in (None, "")}
        kept = {name: getattr(self._before, name) for name in KEPT} if self._before else {}
        common = {**kept, **terms, "tz": found["tz"] or settings.TIME_ZONE}
        if isinstance(self._before, Every) and found["kind"] == self._before.kind:
            common["anchor"] = self._before.anchor
        try:
            self.when = _made(found, **common, args=list(edited.args), kwargs=dict(edited.kwargs))
        except (StokerError, ValueError, TypeError, OverflowError) as error:
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
        "name": shown_text(row.name),  # its field is disabled
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


def form_to_add(visit: RequestContext) -> ScheduleForm:
    """Return the form for a new schedule."""
    return ScheduleForm(visit.request.POST or None)


def form_to_change(visit: RequestContext, name: str) -> ScheduleForm:
    """Return the form that changes an existing schedule. Its name cannot be changed.

    Raises:
        PackageError, ValueError: its arguments or its rule cannot be read.
        ScheduleNotFound: there is no such schedule.
    """
    row = schedules.get(name, backend=visit.alias)
    posted = visit.request.POST or None
    with nothing_unpickled() if posted is None else nullcontext():
        before = schedules.scheduled(row.name, backend=visit.alias)
        call = call_of_schedule(visit.settings, row, reveal=visit.may(REVEAL))
    initial, has_secrets = initial_of(row, call), not visit.may(REVEAL)
    form = ScheduleForm(posted, initial=initial, before=before, has_secrets=has_secrets)
    form.fields["name"].disabled = True
    return form


def saved(visit: RequestContext, form: ScheduleForm, name: str = "") -> Done | None:
    """Add the schedule, or change the one of this name. If the form is not valid or the change is
    refused, return None; the form then contains the errors."""
    if visit.request.method != "POST" or not form.is_valid():
        return None
    operation, target = (CHANGE, name) if name else (ADD, form.cleaned_data["name"])
    terms = {"task": form.cleaned_data["task"], "when": form.when}
    done = operation.attempt(visit.operator, target, **terms)
    if done.is_good:
        return done
    form.add_error(None, done.sentence)
    return None
