"""A schedule as a form: read, checked, and turned into what ``stoker.schedules`` takes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone

from stoker.cron import UNITS
from stoker.exceptions import InvalidSchedule, StokerError
from stoker.models import Schedule
from stoker.schedule_options import Cron, Every, Once, Scheduled
from stoker.schedule_plan import as_moment
from stoker.wall_clock import zone_named

from .arguments import Edited, as_text

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
