"""Operations on waiting jobs: run now, reschedule, hold, change priority, move, edit arguments."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from stoker.conf import Settings
from stoker.jobs.change import (
    AS_IT_IS,
    AT_ONCE,
    HELD_UNTIL,
    Change,
    Changed,
    can_change,
    change,
)
from stoker.jobs.package import sealer_for
from stoker.values.marks import moment_from

from .arguments import template_of
from .details import LARGEST_IN_LISTS_BYTES
from .jobs import job_id_of
from .operation import Done, Operation, Operator
from .wording import exactly

AT_A_TIME = 100
"""Maximum number of jobs to change in one transaction."""
PERMISSION = "stoker.change_job"


def changes_in(settings: Settings) -> tuple[Operation, ...]:
    """Return the operations that the waiting jobs of this backend allow."""
    return OPERATIONS if can_change(settings) else ()


def moment_of(text: str) -> datetime | str:
    """Parse a moment, as ``moment_from`` does, or ``AT_ONCE``.

    Raises:
        ValueError: the text is blank, or is no moment.
    """
    text = text.strip()
    if not text:
        raise ValueError(
            "Write the new start time, such as 2h. Run now (run-job) starts jobs at once."
        )
    if text == AT_ONCE:
        return AT_ONCE
    moment = moment_from(text)
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def change_of(operation: Operation, options: Mapping[str, Any]) -> Change:
    """Return the change that an operation makes.

    Raises:
        ValueError: an option is missing or wrong.
    """
    if operation is RUN_NOW:
        return Change(run_after=AT_ONCE)
    if operation is HOLD:
        return Change(run_after=HELD_UNTIL)
    if operation is RESCHEDULE:
        return Change(run_after=moment_of(str(options.get("run_after", ""))))
    if operation is MOVE:
        return Change(queue=str(options.get("queue", "")).strip())
    if operation is EDIT:
        return _edit_of(**{name: options.get(name) for name in ("args", "kwargs", "arguments")})
    try:
        return Change(priority=int(options.get("priority", "")))
    except ValueError:
        raise ValueError("Write a priority between -100 and 100.") from None


def _edit_of(args: Any, kwargs: Any, arguments: Any) -> Change:
    changes = template_of(arguments)
    if args is None and kwargs is None and changes is None:
        raise ValueError("No new arguments are given.")
    return Change(args=args, kwargs=kwargs, arguments=changes)


def before_of(operation: Operation, outcome: Changed) -> dict[str, Any]:
    """Return the previous value of a job and its state after the change for ``back_of``; empty =
    the previous arguments are too large to keep."""
    state = {"after": outcome.after, "attempts": outcome.attempts}
    if operation is EDIT:
        is_kept = 0 < len(outcome.package) <= LARGEST_IN_LISTS_BYTES
        return {"package": b64encode(outcome.package).decode(), **state} if is_kept else {}
    if operation is MOVE:
        return {"queue": outcome.queue, **state}
    if operation is PRIORITISE:
        return {"priority": outcome.priority, **state}
    return {"run_after": outcome.due.isoformat() if outcome.due else AT_ONCE, **state}


def back_of(settings: Settings, before: Mapping[str, Any]) -> Change:
    """Return the change that undoes an operation on one job, unless the job has started or has been
    changed again since.

    Raises:
        ValueError: the previous values were not kept.
        PackageError: the previous package cannot be opened.
    """
    only: Any = {"only_over": before.get("after"), "only_attempts": before.get("attempts")}
    if "package" in before:
        package = sealer_for(settings).open(b64decode(before["package"]))
        return Change(args=package.args, kwargs=package.kwargs, **only)
    if not before:
        raise ValueError("its previous arguments were too large to keep")
    due = before.get("run_after", AS_IT_IS)
    return Change(
        queue=before.get("queue"),
        priority=before.get("priority"),
        run_after=due if due in (AT_ONCE, AS_IT_IS) else datetime.fromisoformat(due),
        **only,
    )


def put_back(settings: Settings, before: Mapping[UUID, Mapping[str, Any]]) -> dict[UUID, str]:
    """Undo operations on jobs.

    Args:
        before: job -> its previous values, as ``before_of`` returned them.

    Returns:
        Job -> why it was not changed; "" = it was.
    """
    alike: dict[str, list[UUID]] = {}
    for pk, one in before.items():
        alike.setdefault(json.dumps(one, sort_keys=True), []).append(pk)
    return {
        outcome.job_id: outcome.refusal
        for some in alike.values()
        for outcome in change(settings, some, back_of(settings, before[some[0]]))
    }


def _act(
    operation: Operation, operator: Operator, job_id: str, sentence: str, **options: Any
) -> Done:
    wanted = change_of(operation, options)
    (outcome,) = change(operator.settings, [job_id_of(job_id)], wanted)
    if outcome.refusal:
        because = outcome.refusal.rstrip(".")
        return Done(f"The job was not changed: {because}.", is_good=False)
    is_unchanged = operation is RUN_NOW and outcome.due is None
    return Done(sentence, before={} if is_unchanged else before_of(operation, outcome))


def _run_now(operator: Operator, job_id: str) -> Done:
    return _act(RUN_NOW, operator, job_id, "The job starts as soon as a worker is free.")


def _hold(operator: Operator, job_id: str) -> Done:
    sentence = "The job is held: it does not start until it is run or rescheduled."
    return _act(HOLD, operator, job_id, sentence)


def _reschedule(operator: Operator, job_id: str, *, run_after: str = "") -> Done:
    moment = moment_of(run_after)
    when = (
        f"at {exactly(moment)}" if isinstance(moment, datetime) else "as soon as a worker is free"
    )
    return _act(RESCHEDULE, operator, job_id, f"The job starts {when}.", run_after=run_after)


def _prioritise(operator: Operator, job_id: str, *, priority: str = "") -> Done:
    sentence = f"The job has the priority {priority}."
    return _act(PRIORITISE, operator, job_id, sentence, priority=priority)


def _move(operator: Operator, job_id: str, *, queue: str = "") -> Done:
    return _act(MOVE, operator, job_id, f"The job is in the queue {queue}.", queue=queue)


def _edit(
    operator: Operator, job_id: str, *, args: Any = None, kwargs: Any = None, arguments: Any = None
) -> Done:
    """Replace the arguments of a waiting job; None = keep the positional or keyword arguments.
    ``arguments`` are new values by name instead."""
    given = {"args": args, "kwargs": kwargs, "arguments": arguments}
    return _act(EDIT, operator, job_id, "The job has the new arguments.", **given)


RUN_NOW = Operation(
    "run", "job", PERMISSION, _run_now, label="Run now", undo="run", things="jobs", done="due now"
)  # fmt: skip
RESCHEDULE = Operation(
    "reschedule", "job", PERMISSION, _reschedule, undo="reschedule", things="jobs",
    done="rescheduled", takes=("run_after",),
)  # fmt: skip
HOLD = Operation(
    "hold", "job", PERMISSION, _hold, undo="hold", things="jobs", done="held"
)  # fmt: skip
PRIORITISE = Operation(
    "prioritise", "job", PERMISSION, _prioritise, label="Set priority", undo="prioritise",
    things="jobs", done="given another priority", takes=("priority",),
)  # fmt: skip
MOVE = Operation(
    "move", "job", PERMISSION, _move, undo="move", things="jobs", done="moved", takes=("queue",)
)  # fmt: skip
EDIT = Operation(
    "edit", "job", PERMISSION, _edit, label="Edit arguments", undo="edit", things="jobs",
    done="given other arguments", takes=("arguments",),
)  # fmt: skip
OPERATIONS = (RUN_NOW, RESCHEDULE, HOLD, PRIORITISE, MOVE, EDIT)
"""All of them can be performed on many jobs, too, and be undone."""
