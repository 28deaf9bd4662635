"""A schedule as Sentry describes one to its cron monitors."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from stoker.cron import NAMES
from stoker.models import Schedule

LONGEST_SLUG = 50
CRON_FIELDS = 5
UNITS = {
    "minutes": ("minute", 1),
    "hours": ("hour", 1),
    "days": ("day", 1),
    "weeks": ("week", 1),
    "months": ("month", 1),
    "quarters": ("month", 3),
    "years": ("year", 1),
}
"""Stoker's unit -> Sentry's, and how many of them it is."""
SECONDS_PER_MINUTE = 60


def monitor_config(schedule: Schedule) -> dict[str, Any] | None:
    """What Sentry needs to notice a tick that did not come; None where it knows no such rule: one
    moment only, or fractions of a minute."""
    rule = _rule(schedule)
    return None if rule is None else {"schedule": rule, "timezone": schedule.zone}


def slug_of(name: str) -> str:
    """The monitor's name: at most 50 of a-z, 0-9, _ and -; a long one is made short with a digest
    of it, so that no two are the same."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if len(slug) <= LONGEST_SLUG and slug:
        return slug
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{slug[: LONGEST_SLUG - 9]}-{digest}".strip("-")


def _rule(schedule: Schedule) -> dict[str, Any] | None:
    if schedule.kind == Schedule.Kind.CRON:
        expression = NAMES.get(schedule.expression.lower(), schedule.expression)
        if len(expression.split()) != CRON_FIELDS:
            return None
        return {"type": "crontab", "value": expression}
    if schedule.kind == Schedule.Kind.INTERVAL:
        count, unit = schedule.count, schedule.unit
        if unit == "seconds" and count % SECONDS_PER_MINUTE == 0:
            count, unit = count // SECONDS_PER_MINUTE, "minutes"
        if unit in UNITS:
            name, factor = UNITS[unit]
            return {"type": "interval", "value": count * factor, "unit": name}
    return None
