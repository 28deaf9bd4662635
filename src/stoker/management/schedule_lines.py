"""Schedules as lines of text, and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from stoker import schedules
from stoker.exceptions import InvalidSchedule, PackageError
from stoker.models import Schedule, Tick
from stoker.schedule_plan import as_moment
from stoker.wall_clock import zone_named

from .dead_words import as_plain, first_line
from .enqueue import written

MOMENT = "%a %Y-%m-%d %H:%M:%S %Z"


def state_of(row: Schedule) -> str:
    if row.is_paused:
        return "paused"
    return "over" if row.is_over else "ticking"


def rule_words(row: Schedule) -> str:
    try:
        return schedules.describe(row)
    except InvalidSchedule as error:
        return str(error)


def next_ticks_of(row: Schedule) -> list[datetime]:
    try:
        return schedules.next_ticks(row)
    except InvalidSchedule:
        return []


def next_words(row: Schedule) -> str:
    if row.is_paused:
        who = f" by {row.paused_by}" if row.paused_by else ""
        because = f": {first_line(row.paused_because, 200)}" if row.paused_because else ""
        return f"paused{who}{because}"
    moments = next_ticks_of(row)
    return moments[0].strftime(MOMENT) if moments else "over"


def schedule_as_plain(row: Schedule) -> dict[str, Any]:
    names = (
        "id", "name", "source", "task", "zone", "paused_by", "paused_because", "problem",
        "last_job_id", "fired_count", "missed_count", "repeats_left", "misfire", "overlap",
    )  # fmt: skip
    return {
        **{name: as_plain(getattr(row, name)) for name in names},
        "rule": rule_words(row),
        "state": state_of(row),
        "next_ticks": next_ticks_of(row),
        "last_moment": None if row.last_moment_us is None else as_moment(row.last_moment_us),
    }


def call_as_plain(row: Schedule, alias: str) -> dict[str, Any]:
    try:
        when = schedules.scheduled(row.name, backend=alias)
    except (PackageError, ValueError):
        return {"args": None, "kwargs": None}
    return {
        "args": [written(value) for value in when.args],
        "kwargs": {name: written(value) for name, value in when.kwargs.items()},
    }


def tick_as_plain(tick: Tick) -> dict[str, Any]:
    return {
        "moment": as_moment(tick.moment_us),
        "outcome": tick.outcome,
        "job_id": as_plain(tick.job_id),
        "fired_at": as_moment(tick.fired_us),
        "count": tick.count,
        "by": tick.by,
    }


def lines_of(row: Schedule, alias: str) -> Iterator[str]:
    call = call_as_plain(row, alias)
    yield f"schedule   {row.name} (of {'a ' if row.source == 'row' else ''}{row.source})"
    yield f"rule       {rule_words(row)}"
    yield f"task       {row.task}" + (f", queue {row.queue}" if row.queue else "")
    if call["args"] is None:
        yield "arguments  the package cannot be opened"
    else:
        named = [f"{name}={value}" for name, value in call["kwargs"].items()]
        yield f"arguments  {first_line(', '.join([*call['args'], *named]) or 'none', 300)}"
    yield f"next       {next_words(row)}"
    if row.problem:
        yield f"problem    {first_line(row.problem, 300)}"
    left = "" if row.repeats_left < 0 else f", {row.repeats_left} left"
    yield f"fired      {row.fired_count} times{left}; {row.missed_count} ticks were missed"
    yield ""


def tick_line(row: Schedule, tick: Tick) -> str:
    moment = as_moment(tick.moment_us).astimezone(_zone(row))
    late = f", {(tick.fired_us - tick.moment_us) / 1e6:.3f} s after its moment"
    job = f", job {tick.job_id}" if tick.job_id else ""
    count = f", {tick.count} ticks" if tick.count > 1 else ""
    by = f" by {tick.by}" if tick.by else ""
    is_fired = tick.outcome == Tick.Outcome.FIRED
    return f"{moment.strftime(MOMENT)}  {tick.outcome}{by}{count}{late if is_fired else ''}{job}"


def _zone(row: Schedule) -> Any:
    try:
        return zone_named(row.zone)
    except ValueError:
        return zone_named("UTC")
