"""Conversion of schedules to rows: checks, sealed calls, and state after a change.

A row's package holds the task and its arguments, signed with the project's key, so that write
access to the database does not suffice to run another task.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.conf import settings as django_settings
from django.db import IntegrityError, transaction

from stoker.brokers.adapters import broker_for
from stoker.compat import InvalidTask, is_task, task_backends
from stoker.conf import Settings
from stoker.exceptions import InvalidSchedule, StokerError, UnreadablePackage
from stoker.jobs.envelope import WRONG_KEY
from stoker.jobs.package import JOB, WAS_PICKLED, JobOptions, Package, sealer_for
from stoker.jobs.sealing import refuse_wrong_arguments
from stoker.models import Schedule
from stoker.store.written import database_now_us, microseconds
from stoker.tasks.registry import named_task
from stoker.tasks.schedules import LONGEST_NAME, Cron, Every, Once, Scheduled, as_sentence, is_name
from stoker.values import codec
from stoker.values.cron import zone_named
from stoker.values.ids import new_job_id
from stoker.values.ticks import LONGEST_JITTER_TICKS, as_moment, as_us, longest_jitter_seconds

ITSELF = "stoker"
"""Name in ``paused_by`` if Stoker paused a schedule that could not be fired."""
ENDED: dict[str, Any] = {"moment_us": None, "due_us": None}
"""State columns of a schedule that has no next moment."""
TIMING = (
    "kind", "expression", "count", "unit", "anchor", "zone", "start_us", "end_us", "jitter_us",
)  # fmt: skip


def values_of(
    settings: Settings,
    schedule_id: UUID,
    name: Any,
    task: Any,
    when: Any,
    before: Schedule | None = None,
) -> dict[str, Any]:
    """Check a schedule and return the columns that define it.

    Args:
        before: the row to change. Its jitter may be too long if its timing stays.

    Raises:
        InvalidSchedule: a value is wrong; the message names the first one.
        UnknownTask: the task does not exist here.
        NotSerializable, PackageTooLarge: the arguments cannot be stored.
    """
    if not is_name(name):
        raise InvalidSchedule(
            f"{name!r} is not a name: write up to {LONGEST_NAME} characters, no NUL."
        )
    if not isinstance(when, Scheduled):
        raise InvalidSchedule(
            f"{when!r} is not a schedule: write Cron(...), every(...) or once(...)."
        )
    found = named_task(task) if isinstance(task, str) else task
    if not is_task(found):
        raise InvalidSchedule(f"{task!r} is not a task: put @task on the function.")
    _check_call(settings, found, when)
    values = _timing_of(when) | {
        "task": found.module_path,
        "queue": when.queue_name,
        "priority": when.priority,
        "repeats": when.repeats,
        "misfire": when.misfire,
        "misfire_cap": when.misfire_cap,
        "grace_us": microseconds(float(when.grace)),  # type: ignore[arg-type] # seconds by now
        "overlap": when.overlap,
        "moment_as": when.moment_as,
    }
    values["timing"] = _digest([values[key] for key in TIMING])
    if before is None or before.timing != values["timing"]:
        _refuse_long_jitter(when)
    values["definition"] = _digest([name, *values.values(), _written(when)])
    values["package"] = _sealed(settings, schedule_id, found, when)
    return values


def insert(
    settings: Settings, name: str, source: str, task: Any, when: Scheduled
) -> Schedule | None:
    """Store a new schedule. Return None if there is one of that name. Raises as ``values_of``."""
    schedule_id = new_job_id()
    row = Schedule(
        id=schedule_id,
        cluster=settings.cluster,
        backend=settings.alias,
        name=name,
        source=source,
        **values_of(settings, schedule_id, name, task, when),
    )
    row.repeats_left = when.repeats
    now_us = database_now_us(settings.database)
    state = fresh_state(row, now_us)
    if row.is_declared and is_long_past(state["moment_us"], row.grace_us, now_us):
        state = ENDED
    for column, value in state.items():
        setattr(row, column, value)
    try:
        with transaction.atomic(using=settings.database):
            row.save(using=settings.database, force_insert=True)
    except IntegrityError:
        return None
    return row


def fresh_state(row: Schedule, now_us: int) -> dict[str, Any]:
    """Return the state columns of a schedule that starts now. Without remaining repeats, it has no
    next moment."""
    if row.repeats_left == 0:
        return ENDED
    moment_us = row.course.first(now_us)
    due_us = None if moment_us is None else row.course.due(moment_us)
    return {"moment_us": moment_us, "due_us": due_us}


def is_long_past(moment_us: int | None, grace_us: int, now_us: int) -> bool:
    """Return whether a one-time schedule is past by more than ``grace``.

    A declaration then does not let it fire: it may have fired from another row, which was removed
    with an earlier declaration, or from another database.
    """
    return moment_us is not None and moment_us < now_us - grace_us


def later_state(row: Schedule, now_us: int) -> dict[str, Any]:
    """Return the state columns of a schedule that continues now. A one-time schedule that has no
    next moment has had its tick."""
    if row.kind == Schedule.Kind.ONCE and (row.moment_us is None or _was_due_in_pause(row, now_us)):
        return ENDED
    return fresh_state(row, now_us)


def _was_due_in_pause(row: Schedule, now_us: int) -> bool:
    if row.paused_us is None or row.moment_us is None:
        return False
    return row.paused_us <= row.course.due(row.moment_us) <= now_us


def resumed_state(row: Schedule, now_us: int) -> dict[str, Any]:
    """Return the state columns of a paused schedule that is resumed now. Raises ValueError if its
    rule cannot be read."""
    state = {"is_paused": False, "paused_us": None, "paused_by": "", "paused_because": ""}
    return state | {"problem": ""} | later_state(row, now_us)


def was_paused_unopened(row: Schedule) -> bool:
    """Return whether Stoker paused the schedule because a cluster had not the right key or
    serializer to open its package."""
    because = (WRONG_KEY.format(name=JOB.name), WAS_PICKLED.format(name=JOB.name))
    return row.is_paused and row.paused_by == ITSELF and row.paused_because.startswith(because)


def changed_state(row: Schedule, values: dict[str, Any], now_us: int) -> dict[str, Any]:
    """Return the state columns of a changed schedule.

    It keeps its position unless its timing or repeats changed or a pause by Stoker ends, and its
    remaining repeats unless their number changed. A user's pause stays. A tick that has come and
    has not fired yet stays, too, if the new timing has it.
    """
    state: dict[str, Any] = {"problem": ""}
    after = Schedule(pk=row.pk, **values)
    was_stopped_by_itself = row.is_paused and row.paused_by == ITSELF
    if was_stopped_by_itself:
        state |= {"is_paused": False, "paused_us": None, "paused_by": "", "paused_because": ""}
    if values["repeats"] != row.repeats:
        state["repeats_left"] = values["repeats"]
    is_same_timing = values["timing"] == row.timing
    if is_same_timing and "repeats_left" not in state and not was_stopped_by_itself:
        return state
    after.moment_us = row.moment_us
    after.repeats_left = state.get("repeats_left", row.repeats_left)
    if (due_us := _due_moment(row, after, now_us)) is not None:
        now_us = due_us - 1
    state |= later_state(after, now_us) if is_same_timing else fresh_state(after, now_us)
    if row.is_paused and not was_stopped_by_itself:
        state["due_us"] = None
    return state


def _due_moment(row: Schedule, after: Schedule, now_us: int) -> int | None:
    """Return the moment of a tick that has come and has not fired yet, for example because of its
    jitter, if the changed schedule has this tick, too."""
    moment_us = row.moment_us
    if row.is_paused or moment_us is None or moment_us > now_us:
        return None
    return moment_us if after.course.first(moment_us - 1) == moment_us else None


def opened(settings: Settings, row: Schedule) -> Package:
    """Return the package of a schedule.

    Raises:
        PackageError: the package was tampered with or cannot be read here.
    """
    package = sealer_for(settings).open(bytes(row.package))
    if package.job_id != row.pk:
        raise UnreadablePackage(f"The package is signed for another schedule, {package.job_id}.")
    return package


def scheduled_of(settings: Settings, row: Schedule) -> Scheduled:
    """Return the schedule as ``Cron``, ``Every`` or ``Once``. Raises as ``opened``, or
    ValueError."""
    package = opened(settings, row)
    terms: dict[str, Any] = {
        "tz": row.zone,
        "args": package.args,
        "kwargs": package.kwargs,
        "start": None if row.start_us is None else as_moment(row.start_us),
        "end": None if row.end_us is None else as_moment(row.end_us),
        "repeats": row.repeats,
        "jitter": row.jitter_us / 1e6,
        "misfire": row.misfire,
        "misfire_cap": row.misfire_cap,
        "grace": row.grace_us / 1e6,
        "overlap": row.overlap,
        "moment_as": row.moment_as,
        "queue_name": row.queue,
        "priority": row.priority,
    }
    if row.kind == Schedule.Kind.CRON:
        return Cron(row.expression, **terms)
    anchor = datetime.fromisoformat(row.anchor)
    if row.kind == Schedule.Kind.INTERVAL:
        return Every(count=row.count, unit=row.unit, anchor=anchor, **terms)
    return Once(anchor, **terms)


def variant(settings: Settings, task: Any, queue: str, priority: int | None) -> Any:
    """Return the task with the queue, priority and backend of a schedule."""
    changes: dict[str, Any] = {}
    if queue:
        changes["queue_name"] = queue
    if priority is not None:
        changes["priority"] = priority
    if task.backend != settings.alias:
        changes["backend"] = settings.alias
    return task.using(**changes) if changes else task


def reseal(settings: Settings, row: Schedule) -> bytes | None:
    """Return the package signed with the current SECRET_KEY, or None if that key has signed it
    already."""
    old = bytes(row.package)
    new = sealer_for(settings).seal(opened(settings, row))
    return None if new == old else new


def _check_call(settings: Settings, task: Any, when: Scheduled) -> None:
    kwargs = dict(when.kwargs)
    if when.moment_as:
        if when.moment_as in kwargs:
            raise InvalidSchedule(
                f"moment_as={when.moment_as!r} is in the kwargs already: remove it there."
            )
        kwargs[when.moment_as] = None
    if when.overlap != "allow" and broker_for(settings).store is None:
        raise InvalidSchedule(
            f"overlap={when.overlap!r}: {settings.broker} cannot tell whether a job has ended. "
            'Write overlap="allow", and give the task a lock, or set BROKER to a database.'
        )
    try:
        task_backends[settings.alias].validate_task(
            variant(settings, task, when.queue_name, when.priority)
        )
        refuse_wrong_arguments(task, tuple(when.args), kwargs)
    except StokerError:
        raise
    except (InvalidTask, TypeError) as error:
        raise InvalidSchedule(str(error)) from None


def _refuse_long_jitter(when: Scheduled) -> None:
    """Raise InvalidSchedule if ticks would be lost, see ``longest_jitter_seconds``."""
    jitter: Any = when.jitter  # seconds by now
    longest = longest_jitter_seconds(when.rule(str(django_settings.TIME_ZONE)))
    if jitter > longest:
        raise InvalidSchedule(
            f"jitter={jitter:g}: write at most {longest:g} seconds, the time of "
            f"{LONGEST_JITTER_TICKS:,} ticks."
        )


def _timing_of(when: Scheduled) -> dict[str, Any]:
    default = str(django_settings.TIME_ZONE)
    try:
        zone_named(when.zone(default))
    except ValueError as error:
        raise InvalidSchedule(as_sentence(error)) from None
    values: dict[str, Any] = {
        "kind": when.kind,
        "expression": "",
        "count": 0,
        "unit": "",
        "anchor": "",
        "zone": when.zone(default),
        "start_us": None if when.start is None else as_us(when.instant(when.start, default)),
        "end_us": None if when.end is None else as_us(when.instant(when.end, default)),
        "jitter_us": microseconds(float(when.jitter)),  # type: ignore[arg-type] # seconds by now
    }
    rule: Any = when.rule(default)
    if isinstance(when, Cron):
        values["expression"] = when.expression.strip()
    elif isinstance(when, Every):
        values |= {"count": rule.count, "unit": rule.unit, "anchor": rule.anchor.isoformat()}
    else:
        values["anchor"] = rule.at.astimezone(UTC).isoformat()
    return values


def _sealed(settings: Settings, schedule_id: UUID, task: Any, when: Scheduled) -> bytes:
    package = Package(
        schedule_id,
        task.module_path,
        tuple(when.args),
        dict(when.kwargs),
        "",
        0,
        0.0,
        JobOptions(via=getattr(task, "via", "")),
    )
    return sealer_for(settings).seal(package)


def _written(when: Scheduled) -> str:
    """Return the arguments as a text for the digest."""
    call = [list(when.args), dict(when.kwargs)]
    try:
        return codec.write(codec.encode(call)).decode()
    except (codec.NotEncodable, ValueError):
        return pickle.dumps(call, 5).hex()


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
