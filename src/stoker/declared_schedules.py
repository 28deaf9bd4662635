"""Schedules as the option of a task, and as a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .exceptions import InvalidSchedule
from .schedule_options import LONGEST_NAME, Scheduled, is_name

declared_tasks: dict[str, Any] = {}
"""Path -> task, of those that were given a schedule."""


def declare(task: Any) -> None:
    """Let clusters know of it, if it was given a schedule."""
    if task.schedule:
        declared_tasks.setdefault(task.module_path, task)


def schedules_of(name: str, value: Any) -> tuple[Scheduled, ...]:
    """The option of a task: one or several."""
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(one, Scheduled) for one in listed):
        raise InvalidSchedule(
            f'{name}={value!r}: write Cron("0 3 * * *"), every(minutes=5), or a list of them.'
        )
    return listed


def schedules_by_name(value: Any) -> tuple[tuple[str, str, Scheduled], ...]:
    """The setting: name, dotted path of the task, and schedule. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a dict of names and schedules")
    found = []
    for name, one in value.items():
        is_whole = isinstance(one, Mapping) and set(one) == {"task", "schedule"}
        if not is_whole or not isinstance(one["schedule"], Scheduled):
            raise ValueError(
                f'must have for {name!r} a dict such as {{"task": "shop.tasks.report", "schedule": '
                'Cron("0 3 * * *")}'
            )
        if not is_name(name):
            raise ValueError(f"must have names of up to {LONGEST_NAME} characters")
        found.append((name, str(one["task"]), one["schedule"]))
    return tuple(found)
