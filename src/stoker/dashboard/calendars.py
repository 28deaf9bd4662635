"""Calendars that show the number of fired, skipped and missed ticks in each day or hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Sum
from django.db.models.functions import Mod
from django.utils import timezone

from stoker.models import Schedule, Tick
from stoker.schedules import service as schedules
from stoker.store.written import MICROSECONDS

DAYS = 7
DAYS_TO_COME = 2
HOURS = 24
MOST_TO_COME = 300
DAY_US, HOUR_US = 86400 * MICROSECONDS, 3600 * MICROSECONDS
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
    starts: list[int]
    """The start of each column, in microseconds since 1970."""
    titles: list[str]
    counted: dict[tuple[UUID, int], dict[str, int]]

    def cells(self, schedule_id: UUID) -> list[Cell]:
        """Return the cells of one schedule, in the order of the columns."""
        return [
            Cell(title, self.counted.get((schedule_id, start), {}))
            for title, start in zip(self.titles, self.starts, strict=True)
        ]


def days_of(alias: str, rows: Sequence[Schedule]) -> Calendar:
    """Count the ticks of the given schedules on each of the last days, with one query."""
    today = _midnight()
    days = [today - timedelta(days=number) for number in reversed(range(DAYS))]
    counted = _counted(alias, [row.pk for row in rows], days[0], DAY_US)
    heads = [f"{day:%a} {day.day}" for day in days]
    starts = [_start(day, DAY_US, days[0]) for day in days]
    return Calendar(heads, starts, [f"{day:%A, %d %B}" for day in days], counted)


def hours_of(alias: str, row: Schedule) -> list[dict[str, Any]]:
    """Count the ticks of one schedule in each hour of the last and next days, with one query."""
    today = _midnight()
    first = today - timedelta(days=DAYS - 1)
    counted = _counted(alias, [row.pk], first, HOUR_US)
    for at in _to_come(row, today + timedelta(days=DAYS_TO_COME)):
        cell = counted.setdefault((row.pk, _start(at, HOUR_US, first)), {})
        cell[TO_COME] = cell.get(TO_COME, 0) + 1
    days = [first + timedelta(days=number) for number in range(DAYS + DAYS_TO_COME - 1)]
    return [
        {
            "title": f"{day:%a} {day.day} {day:%b}",
            "is_today": day == today,
            "cells": [
                Cell(
                    f"{day:%A} {hour:02}:00",
                    counted.get((row.pk, _start(day + timedelta(hours=hour), HOUR_US, first)), {}),
                )
                for hour in range(HOURS)
            ],
        }
        for day in days
    ]


def _counted(
    alias: str, schedule_ids: Sequence[UUID], first: datetime, step_us: int
) -> dict[tuple[UUID, int], dict[str, int]]:
    """Return (schedule, start of the column) -> kind -> number of ticks."""
    begin_us = _us(first)
    ticks = Tick.objects.using(alias).filter(schedule_id__in=schedule_ids, moment_us__gte=begin_us)
    start = F("moment_us") - Mod(F("moment_us") - begin_us, step_us)
    grouped = ticks.order_by().values_list("schedule_id", start, "outcome").annotate(Sum("count"))
    counted: dict[tuple[UUID, int], dict[str, int]] = {}
    for schedule_id, at, outcome, number in grouped:
        cell = counted.setdefault((schedule_id, int(at)), {})
        kind = OUTCOMES[outcome]
        cell[kind] = cell.get(kind, 0) + number
    return counted


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
    now = timezone.localtime(now) if timezone.is_aware(now) else now
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _start(at: datetime, step_us: int, first: datetime) -> int:
    """Return the start of the column that contains a moment."""
    instant_us, begin_us = _us(at), _us(first)
    return instant_us - (instant_us - begin_us) % step_us


def _us(at: datetime) -> int:
    return int(at.timestamp() * MICROSECONDS)
