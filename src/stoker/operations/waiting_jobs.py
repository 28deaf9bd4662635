"""Operations on waiting jobs: run now, reschedule, hold, change priority, move, edit arguments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone

from stoker.jobs.change import AT_ONCE, HELD_UNTIL, Change, Changed, change
from stoker.values.marks import moment_from

from .jobs import job_id_of
from .operation import Done, Operation, Operator
from .wording import exactly

AT_A_TIME = 100
"""Maximum number of jobs to change in one transaction."""
PERMISSION = "stoker.change_job"


def moment_of(text: str) -> datetime | str:
    """Parse a moment; "" = at once. See ``moment_from``."""
    if not text.strip():
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
        return Change(args=options.get("args"), kwargs=options.get("kwargs"))
    try:
        return Change(priority=int(options.get("priority", "")))
    except ValueError:
        raise ValueError("Write a priority between -100 and 100.") from None


def _act(operation: Operation, operator: Operator, job_id: str, options: Any) -> Changed | Done:
    wanted = change_of(operation, options)
    (outcome,) = change(operator.settings, [job_id_of(job_id)], wanted)
    if outcome.refusal:
        because = outcome.refusal.rstrip(".")
        return Done(f"The job was not changed: {because}.", is_good=False)
    return outcome


def _undo(job_id: str, outcome: Changed) -> dict[str, str]:
    """Return the form data that restore the job's previous time."""
    return {"job": job_id, "run_after": outcome.due.isoformat() if outcome.due else ""}


def _run_now(operator: Operator, job_id: str) -> Done:
    outcome = _act(RUN_NOW, operator, job_id, {})
    if isinstance(outcome, Done):
        return outcome
    undo = _undo(job_id, outcome) if outcome.due else {}
    return Done("The job starts as soon as a worker is free.", undo=undo)


def _hold(operator: Operator, job_id: str) -> Done:
    outcome = _act(HOLD, operator, job_id, {})
    if isinstance(outcome, Done):
        return outcome
    sentence = "The job is held: it does not start until it is run or rescheduled."
    return Done(sentence, undo=_undo(job_id, outcome))


def _reschedule(operator: Operator, job_id: str, *, run_after: str = "") -> Done:
    outcome = _act(RESCHEDULE, operator, job_id, {"run_after": run_after})
    if isinstance(outcome, Done):
        return outcome
    moment = moment_of(run_after)
    when = exactly(moment) if isinstance(moment, datetime) else "as soon as a worker is free"
    return Done(f"The job starts at {when}." if moment != AT_ONCE else f"The job starts {when}.")


def _prioritise(operator: Operator, job_id: str, *, priority: str = "") -> Done:
    outcome = _act(PRIORITISE, operator, job_id, {"priority": priority})
    return outcome if isinstance(outcome, Done) else Done(f"The job has the priority {priority}.")


def _move(operator: Operator, job_id: str, *, queue: str = "") -> Done:
    outcome = _act(MOVE, operator, job_id, {"queue": queue})
    return outcome if isinstance(outcome, Done) else Done(f"The job is in the queue {queue}.")


def _edit(operator: Operator, job_id: str, *, args: Any = None, kwargs: Any = None) -> Done:
    """Replace the arguments of a waiting job; None = keep the positional or keyword arguments."""
    outcome = _act(EDIT, operator, job_id, {"args": args, "kwargs": kwargs})
    return outcome if isinstance(outcome, Done) else Done("The job has the new arguments.")


RUN_NOW = Operation(
    "run", "job", PERMISSION, _run_now, label="Run now", undo="reschedule", things="jobs",
    done="due now",
)  # fmt: skip
RESCHEDULE = Operation(
    "reschedule", "job", PERMISSION, _reschedule, undo="reschedule", things="jobs",
    done="rescheduled", takes=("run_after",),
)  # fmt: skip
HOLD = Operation(
    "hold", "job", PERMISSION, _hold, undo="reschedule", things="jobs", done="held"
)  # fmt: skip
PRIORITISE = Operation(
    "prioritise", "job", PERMISSION, _prioritise, label="Set priority", undo="prioritise",
    things="jobs", done="given another priority", takes=("priority",),
)  # fmt: skip
MOVE = Operation(
    "move", "job", PERMISSION, _move, undo="move", things="jobs", done="moved", takes=("queue",)
)  # fmt: skip
EDIT = Operation(
    "edit", "job", PERMISSION, _edit, label="Edit arguments", things="jobs", done="edited",
    takes=("args", "kwargs"),
)  # fmt: skip
IN_BULK = (RUN_NOW, RESCHEDULE, HOLD, PRIORITISE, MOVE)
OPERATIONS = (*IN_BULK, EDIT)
