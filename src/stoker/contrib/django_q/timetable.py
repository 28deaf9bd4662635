"""``schedule()``: a row of ``Schedule``, made by a call."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from . import conf
from .functions import path_of
from .models import Schedule
from .models.schedule import now

COLUMNS = ("hook", "minutes", "cron", "cluster", "intended_date_kwarg")


def schedule(func: Any, *args: Any, **kwargs: Any) -> Schedule:
    """Let a function run at certain times.

    Args:
        func: a function of a module, or its dotted path.
        args, kwargs: the function's: plain values. In kwargs also: ``name``, ``hook``,
            ``schedule_type``, ``minutes``, ``repeats``, ``next_run``, ``cron``, ``cluster``,
            ``intended_date_kwarg``; and ``q_options``, a dict of options of ``async_task``.

    Raises:
        IntegrityError: there is one of that name.
        InvalidSchedule: with a sentence for what is wrong.
    """
    name = kwargs.pop("name", None)
    options = kwargs.get("q_options") or {}
    columns = {key: kwargs.pop(key, None) for key in COLUMNS}
    if columns["hook"] is None:
        columns["hook"] = options.get("hook")
    if columns["cluster"] is None:
        columns["cluster"] = options.get("cluster")
    if columns["hook"] is not None:
        columns["hook"] = path_of(columns["hook"])
    next_run: datetime = kwargs.pop("next_run", None) or now()
    row = Schedule(
        name=name,
        func=path_of(func),
        schedule_type=kwargs.pop("schedule_type", Schedule.ONCE),
        repeats=kwargs.pop("repeats", -1),
        next_run=next_run,
        **columns,
    )
    row.args = repr(tuple(args)) if args else None
    row.kwargs = repr(kwargs) if kwargs else None
    row.full_clean(exclude=["args", "kwargs"], validate_unique=False)
    with transaction.atomic(using=conf.database()):
        if name and Schedule.objects.filter(name=name).exists():
            raise IntegrityError(f"There is a schedule {name!r} already.")
        row.save()
    return row
