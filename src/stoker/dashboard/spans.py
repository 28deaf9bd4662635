"""The period that a page shows: the last hour, day or week."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from .context import DashboardContext

HOUR, DAY = 3600, 86400
CHOICES = {"hour": (HOUR, 60), "day": (DAY, 1800), "week": (7 * DAY, 3 * HOUR)}
"""Name -> length and step in seconds."""


@dataclass(frozen=True, slots=True)
class Span:
    """A period that ends now."""

    name: str
    since: datetime
    until: datetime
    step_seconds: int
    choices: list[dict[str, Any]]

    @property
    def words(self) -> str:
        """Describe the period, such as "in the last hour"."""
        return f"in the last {self.name}"

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()


def span_of(visit: DashboardContext, default: str = "hour") -> Span:
    """Return the period that the request asks for."""
    name = visit.request.GET.get("last", default)
    name = name if name in CHOICES else default
    length, step = CHOICES[name]
    until = timezone.now()
    more = {"name": visit.request.GET.get("name")}
    choices = [
        {
            "title": one.capitalize(),
            "address": visit.at(visit.page, last=one, **more),
            "is_current": one == name,
        }
        for one in CHOICES
    ]
    return Span(name, until - timedelta(seconds=length), until, step, choices)
