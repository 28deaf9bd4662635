"""Rows and details of schedules for all interfaces, and the operations run now, pause, resume
and delete."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q

from stoker.conf import Settings
from stoker.exceptions import PackageError, ScheduleNotFound, UnknownTask
from stoker.models import Schedule, Tick
from stoker.schedules import service as schedules
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import ShownCall, shown_arguments
from stoker.tasks.registry import find_task
from stoker.tasks.schedules import Scheduled
from stoker.values.text import plural
from stoker.values.ticks import as_moment

from .details import REVEAL, Fact, call_hidden, call_of, given
from .operation import Done, Operation, Operator
from .request_context import RequestContext
from .wording import exactly, since

MOMENT = "%a %Y-%m-%d %H:%M:%S %Z"


def page_of(
    settings: Settings, limit: int, after: str = "", text: str = ""
) -> tuple[list[Schedule], str | None]:
    """Return a page of schedules by name, and the mark of the next page; None = this is the last
    page.

    Args:
        after: The last name of the previous page.
        text: A part of the name or of the task.
    """
    with explained(settings.database):
        rows = schedules.find(backend=settings.alias).defer("package").filter(name__gt=after)
        if text:
            rows = rows.filter(Q(name__icontains=text) | Q(task__icontains=text))
        found = list(rows.order_by("name")[: limit + 1])
    return found[:limit], found[limit - 1].name if len(found) > limit else None


def state_of(row: Schedule) -> str:
    """Return "paused", "over" or "ticking"."""
    if row.is_paused:
        return "paused"
    return "over" if row.is_over else "ticking"


def rule_of(schedule: Schedule | Scheduled) -> str:
    """Return the rule in words, or why it cannot be read."""
    try:
        return schedules.describe(schedule)
    except ValueError as error:
        return str(error)


def next_ticks_of(schedule: Schedule | Scheduled, count: int = 5) -> list[datetime]:
    """Return the next moments in the schedule's time zone; none if the rule cannot be read."""
    try:
        return schedules.next_ticks(schedule, count)
    except (ValueError, OverflowError):
        return []


def call_of_schedule(
    settings: Settings, row: Schedule, *, reveal: bool = False
) -> ShownCall | None:
    """Return the arguments of the schedule's jobs; None = they cannot be read."""
    try:
        when = schedules.scheduled(row.name, backend=settings.alias)
    except (PackageError, ValueError):
        return None
    try:
        task = find_task(row.task)
    except UnknownTask:
        task = None
    return shown_arguments(task, when.args, when.kwargs, settings.redact, reveal=reveal)


def call_for(visit: RequestContext, row: Schedule) -> dict[str, Any]:
    """Return the arguments for a page, as far as the user may see them."""
    if not visit.may("stoker.view_job"):
        return call_hidden()
    return call_of(call_of_schedule(visit.settings, row, reveal=visit.may(REVEAL)))


def facts_of(row: Schedule) -> list[Fact]:
    """Return the details of a schedule."""
    left = "" if row.repeats_left < 0 else f", {row.repeats_left} left"
    declared = "as a row" if row.source == Schedule.Source.ROW else f"in the {row.source}"
    return given(
        Fact("Rule", rule_of(row)),
        Fact("Task", row.task, "task"),
        Fact("Queue", row.queue or "that of the task"),
        Fact("Declared", declared),
        Fact("Time zone", row.zone),
        Fact("Cron rule", row.expression),
        Fact("If missed", row.misfire, hint="Ticks that no cluster fired in time"),
        Fact("If still running", row.overlap, hint="The job of the previous tick"),
        Fact("Fired", f"{plural(row.fired_count, 'time')}{left}; {row.missed_count:,} missed"),
        Fact("Problem", row.problem, hint="Why its last tick could not be fired"),
    )


def pause_of(row: Schedule) -> str:
    """Return who paused the schedule, when and why, or "" if it is not paused."""
    if not row.is_paused:
        return ""
    paused_at = None if row.paused_us is None else as_moment(row.paused_us)
    when = f", {exactly(paused_at)}, {since(paused_at)}" if paused_at else ""
    because = f": {row.paused_because}" if row.paused_because else ""
    return f"by {row.paused_by or 'Stoker'}{when}{because}"


def tick_text(tick: Tick) -> str:
    """Describe a tick: its outcome, who fired it, and how many ticks it represents."""
    by = f" by {tick.by}" if tick.by else ""
    count = f", {tick.count:,} ticks" if tick.count > 1 else ""
    return f"{tick.outcome}{by}{count}"


# -- operations -----------------------------------------------------------------------------------


def _run(operator: Operator, name: str) -> Done:
    result = schedules.run_now(name, by=operator.by, backend=operator.alias)
    sentence = f"The schedule {name} enqueued the job {result.id}."
    return Done(sentence, job_id=result.id, value=result)


def _pause(operator: Operator, name: str) -> Done:
    same = schedules.find(backend=operator.alias).filter(name=name)
    is_paused_now = bool(same.pause(operator.by, operator.because))
    row = schedules.get(name, backend=operator.alias)
    if not is_paused_now:  # an undo would end the pause of someone else
        return Done(f"The schedule {name} was paused already, {pause_of(row)}.", value=row, count=0)
    sentence = f"The schedule {name} is paused: no tick is fired until it is resumed."
    return Done(sentence, undo={"schedule": name}, value=row)


def _resume(operator: Operator, name: str) -> Done:
    row = schedules.resume(name, backend=operator.alias)
    return Done(f"The schedule {name} is resumed, from its next tick on.", value=row)


def _delete(operator: Operator, name: str) -> Done:
    if not schedules.delete(name, backend=operator.alias):
        raise ScheduleNotFound(f"There is no schedule {name!r} (any more).")
    return Done(f"The schedule {name} is deleted.")


def _add(operator: Operator, name: str, *, task: str, when: Scheduled) -> Done:
    row = schedules.create(name, task, when, backend=operator.alias)
    return Done(f"The schedule {name} is added.", value=row)


def _change(operator: Operator, name: str, *, task: str, when: Scheduled) -> Done:
    row = schedules.update(name, task=task, when=when, backend=operator.alias)
    return Done(f"The schedule {name} is changed.", value=row)


RUN = Operation("run", "schedule", "stoker.run_schedule", _run, label="Run now")
PAUSE = Operation(
    "pause",
    "schedule",
    "stoker.pause_schedule",
    _pause,
    question="Pause the schedule {name}? Ticks that become due before it is resumed are skipped.",
    undo="resume",
)
RESUME = Operation("resume", "schedule", "stoker.pause_schedule", _resume)
DELETE = Operation(
    "delete",
    "schedule",
    "stoker.delete_schedule",
    _delete,
    question="Delete the schedule {name} and its history? The jobs that it enqueued stay.",
    is_grave=True,
)
ADD = Operation("add", "schedule", "stoker.add_schedule", _add)
CHANGE = Operation("change", "schedule", "stoker.change_schedule", _change, label="Edit")
OPERATIONS = (RUN, PAUSE, RESUME, DELETE, ADD, CHANGE)
