"""Calendars that show the number of fired, skipped and missed ticks in each day or hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import F, Sum
from django.db.models.functions import Mod
from django.utils import timezone

from stoker.models import Schedule, Tick
from stoker.schedules import service as schedules
from stoker.store.written import MICROSECONDS
from stoker.values.ticks import as_moment, as_us

DAYS = 7
DAYS_TO_COME = 2
HOURS = 24
MOST_TO_COME = 300
QUARTER_US = 900 * MICROSECONDS
"""Step in which the database counts ticks. Clocks change at whole quarters of an hour, so each
quarter since a midnight is in one hour of the local time."""
OUTCOMES = {
    "fired": "fired",
    "manual": "fired",
    "missed": "missed",
    "skipped": "skipped",
    "held": "skipped",
}
"""Outcome of a tick -> kind in the calendar."""
TO_COME = "to-come"
WORDS = {
    "fired": "fired",
    "missed": "missed: no cluster fired them in time",
    "skipped": "skipped: the previous job had not ended",
    TO_COME: "to come",
}
Column = TypeVar("Column")


@dataclass(slots=True)
class Cell:
    """One day or hour of one schedule."""

    title: str
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the most important outcome in this cell."""
        found = [kind for kind in ("missed", "skipped", "fired", TO_COME) if kind in self.counts]
        return found[0] if found else ""

    @property
    def shown(self) -> str:
        """Return the number of past ticks as text."""
        past = sum(self.counts.values()) - self.counts.get(TO_COME, 0)
        return f"{past:,}" if past else ""

    @property
    def to_come(self) -> str:
        """Return the number of ticks to come as text."""
        return f"{self.counts[TO_COME]:,}" if TO_COME in self.counts else ""

    @property
    def fired(self) -> str:
        """Return the number of fired ticks as text."""
        return f"{self.counts['fired']:,}" if "fired" in self.counts else ""

    @property
    def numbers(self) -> str:
        """Return all numbers as text."""
        told = [f"{self.counts[kind]:,} {kind}" for kind in WORDS if kind in self.counts]
        return ", ".join(told) or "no tick"

    @property
    def sentence(self) -> str:
        """Describe all numbers in one sentence."""
        told = [
            f"{self.counts[kind]:,} {text}" for kind, text in WORDS.items() if kind in self.counts
        ]
        return f"{self.title}: {', '.join(told) if told else 'no tick'}"


@dataclass(frozen=True, slots=True)
class Calendar:
    """Cells by schedule and day."""

    heads: list[str]
    days: list[date]
    titles: list[str]
    counted: dict[tuple[UUID, date], dict[str, int]]

    def cells(self, schedule_id: UUID) -> list[Cell]:
        """Return the cells of one schedule, in the order of the columns."""
        return [
            Cell(title, self.counted.get((schedule_id, day), {}))
            for title, day in zip(self.titles, self.days, strict=True)
        ]


def days_of(alias: str, rows: Sequence[Schedule]) -> Calendar:
    """Count the ticks of the given schedules on each of the last days, with one query."""
    today = _midnight()
    days = [today - timedelta(days=number) for number in reversed(range(DAYS))]
    counted = _counted(alias, [row.pk for row in rows], days[0], lambda at: at.date())
    heads = [f"{day:%a} {day.day}" for day in days]
    titles = [f"{day:%A, %d %B}" for day in days]
    return Calendar(heads, [day.date() for day in days], titles, counted)


def hours_of(alias: str, row: Schedule) -> list[dict[str, Any]]:
    """Count the ticks of one schedule in each hour of the last and next days, with one query."""
    today = _midnight()
    first = today - timedelta(days=DAYS - 1)
    counted = _counted(alias, [row.pk], first, _hour)
    for at in _to_come(row, today + timedelta(days=DAYS_TO_COME)):
        cell = counted.setdefault((row.pk, _hour(timezone.localtime(at))), {})
        cell[TO_COME] = cell.get(TO_COME, 0) + 1
    days = [first + timedelta(days=number) for number in range(DAYS + DAYS_TO_COME - 1)]
    return [
        {
            "title": f"{day:%a} {day.day} {day:%b}",
            "is_today": day == today,
            "cells": [
                Cell(f"{day:%A} {hour:02}:00", counted.get((row.pk, (day.date(), hour)), {}))
                for hour in range(HOURS)
            ],
        }
        for day in days
    ]


def _counted(
    alias: str,
    schedule_ids: Sequence[UUID],
    first: datetime,
    column_of: Callable[[datetime], Column],
) -> dict[tuple[UUID, Column], dict[str, int]]:
    """Return (schedule, column) -> kind -> number of ticks.

    Args:
        first: local midnight of the first day.
        column_of: returns the column of a local moment.
    """
    begin_us = as_us(first)
    ticks = Tick.objects.using(alias).filter(schedule_id__in=schedule_ids, moment_us__gte=begin_us)
    start = F("moment_us") - Mod(F("moment_us") - begin_us, QUARTER_US)
    grouped = ticks.order_by().values_list("schedule_id", start, "outcome").annotate(Sum("count"))
    counted: dict[tuple[UUID, Column], dict[str, int]] = {}
    for schedule_id, start_us, outcome, number in grouped:
        column = column_of(timezone.localtime(as_moment(int(start_us))))
        cell = counted.setdefault((schedule_id, column), {})
        kind = OUTCOMES[outcome]
        cell[kind] = cell.get(kind, 0) + number
    return counted


def _hour(at: datetime) -> tuple[date, int]:
    """Return the hour of a local moment. The hour that the clocks repeat is one hour."""
    return at.date(), at.hour


def _to_come(row: Schedule, until: datetime) -> list[datetime]:
    if row.is_paused:
        return []
    try:
        coming = schedules.next_ticks(row, MOST_TO_COME, backend=row.backend)
    except ValueError:
        return []
    return [at for at in coming if at < until]


def _midnight() -> datetime:
    now = timezone.now()
    now = timezone.localtime(now) if timezone.is_aware(now) else timezone.make_aware(now)
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
