"""Bulk operations on many jobs or dead letters, which continue in the background until they are
done. A bulk operation is a row with a cursor. ``bulk_walk`` processes it, first for a moment in the
request that starts it, then in upkeep.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from stoker.conf import Settings
from stoker.exceptions import BulkOperationNotFound
from stoker.inspect.jobs import JobFilter
from stoker.inspect.scan import ScannedPage, scan
from stoker.models import BulkItem, BulkOperation
from stoker.store.counting import Number
from stoker.store.engines.sessions import explained
from stoker.store.written import MomentNow, database_moment
from stoker.values.ids import new_job_id, parse_job_id
from stoker.values.text import first_line_of, plural
from stoker.workflows.control import why_not

from . import dead_letters, jobs, steps, waiting_jobs
from .arguments import template_of
from .bulk_walk import BY_NAME, ON_JOBS, State, count, go_on, hidden_names, rows_of_bulk
from .operation import Done, Operation, Operator

COMMON_FILTERS = ("state", "q", "task", "queue", "node", "since", "until")
FILTERS: Mapping[str, Sequence[str]] = {
    "job": COMMON_FILTERS,
    "letter": (*COMMON_FILTERS, "key", "fingerprint", "reason"),
    "step": ("workflow",),
}
"""Kind of target -> the filters that its list and its bulk operations take. Others are refused: a
filter without an effect would widen the operation to all targets."""
FILTER_NAMES = tuple(dict.fromkeys(name for names in FILTERS.values() for name in names))
OPEN_STATES = ("", "open", "unclosed")
"""Filters for states of dead letters that include open ones, on which bulk operations act."""
VIEW_TARGETS: Mapping[str, str] = {
    "job": "stoker.view_job",
    "letter": "stoker.view_deadletter",
    "step": "stoker.view_job",
}
TEXTS = ("q", "text", "key")
"""Filters that look into arguments, errors and unique keys."""
UNDOABLE = (*waiting_jobs.OPERATIONS, dead_letters.REQUEUE, steps.RETRY)
MOST_IDS = 1_000
SCANNED = 10_000
"""Maximum number of operations that a page of bulk operations reads."""
AT_ONCE_SECONDS = 0.5
"""Time in seconds that the request that starts a bulk operation spends on processing it."""
LONG_SECONDS = 3600.0
PAUSE_SECONDS = 0.5
"""Pause of a process that waits until another one has processed a bulk operation."""

UNDONE = {
    dead_letters.REQUEUE.name: "requeues undone",
    steps.RETRY.name: "retries undone",
}
"""Operation -> the words for an undone one."""

# -- start, find ----------------------------------------------------------------------------------


def given_filters(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the filters in a form, a query string or options that are not blank."""
    texts = {name: str(values.get(name) or "").strip() for name in FILTER_NAMES}
    return {name: text for name, text in texts.items() if text}


def permissions_to_search(target: str, filters: Mapping[str, Any]) -> list[str]:
    """Return the permissions that a selection by these filters needs, besides that for the
    operation.

    The number of targets says whether a text is in arguments, errors or unique keys, so the user
    has to be allowed to see them.

    Args:
        target: the kind of the targets, such as ``job``.
    """
    return [VIEW_TARGETS[target]] if any(filters.get(name) for name in TEXTS) else []


def start(
    operator: Operator,
    operation: Operation,
    filters: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> BulkOperation:
    """Store a bulk operation on all matching targets. ``go_on`` processes it.

    Args:
        filters: as in the query string of the list, or ``{"ids": [...]}``.
        options: options of the operation; for a requeue also ``arguments``, see ``changed_call``.

    Raises:
        ValueError: a filter or option is missing or wrong.
    """
    row = preview(operator, operation, filters, options)
    _store(operator, operation, row)
    return row


def _store(operator: Operator, operation: Operation, row: BulkOperation) -> None:
    with explained(operator.settings.database):
        row.save(using=operator.settings.database, force_insert=True)
    operation.log(operator, f"{plural(row.matched, 'target')} in bulk {row.pk}", Done("Started."))


def preview(
    operator: Operator,
    operation: Operation,
    filters: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> BulkOperation:
    """Return the unsaved row of the bulk operation that ``start`` would store, with the number
    of its targets."""
    row = _new(operator, operation, filters, options or {})
    with explained(operator.settings.database):
        row.matched, row.is_counted = count(operator.settings, row)
    return row


def number_in_words(number: Number, one: str) -> str:
    """Return the number of targets with their noun: ``3 jobs``, ``more than 3 jobs``, or ``an
    unknown number of jobs`` if the count ended before it found one."""
    if number.is_exact:
        return plural(number.number, one)
    if not number.number:
        return f"an unknown number of {one}s"
    return f"more than {plural(number.number, one)}"


def broker_notice(settings: Settings, row: BulkOperation) -> str:
    """Say that the bulk operation leaves out jobs that wait at a broker outside the database, and
    how to cancel those; "" = there are none."""
    if row.undoes is not None or "ids" in row.filters or BY_NAME[row.operation] not in ON_JOBS:
        return ""
    wanted = jobs.filter_of(row.filters)
    number = jobs.number_at_broker(settings, JobFilter(state=wanted.state, queue=wanted.queue))
    if number is not None and not number.waiting:
        return ""
    waiting = (
        "Jobs may wait" if number is None else plural(number.waiting, "job waits", "jobs wait")
    )
    backend = settings.backend_option
    return (
        f"{waiting} at the broker. Of these, only jobs whose first attempt has ended are included. "
        f"`manage.py stoker clear QUEUE{backend}` cancels all that wait in a queue, and "
        f"`manage.py stoker jobs cancel ID{backend}` single ones."
    )


def _new(
    operator: Operator, operation: Operation, filters: Mapping[str, Any], options: Mapping[str, Any]
) -> BulkOperation:
    if operation.name not in BY_NAME:
        raise ValueError(f"{operation.name} cannot be used as a bulk operation.")
    ids = filters.get("ids")
    if operation is steps.RETRY or "workflow" in filters:
        given = _of_workflow(operator, operation, filters)
    elif ids is not None:
        chosen = [one for one in map(parse_job_id, ids) if one is not None]
        if not 0 < len(ids) == len(chosen) <= MOST_IDS:
            raise ValueError(f"Choose between 1 and {MOST_IDS:,} targets.")
        if operation.target == "letter":
            chosen = dead_letters.letter_ids(operator.settings, chosen)
        given = {"ids": [str(one) for one in dict.fromkeys(chosen)]}
    else:
        given = _checked(operation, {name: str(value) for name, value in filters.items() if value})
    arguments = template_of(options.get("arguments"))
    options = {**options, "arguments": arguments}
    if operation in waiting_jobs.OPERATIONS:
        change = waiting_jobs.change_of(operation, options)
        change.check(operator.settings)
        if operation is waiting_jobs.RESCHEDULE and isinstance(change.run_after, datetime):
            # Each batch reads it again, perhaps much later or in another time zone.
            options["run_after"] = change.run_after.isoformat()
    row = BulkOperation(
        pk=new_job_id(),
        backend=operator.alias,
        operation=operation.name,
        filters=given,
        options={name: value for name, value in options.items() if value},
        by=operator.by,
        because=operator.because,
        started_at=database_moment(operator.settings.database),
    )
    if hidden := hidden_names(operator.settings, row):  # they would be stored and shown
        raise ValueError(
            f"The argument {hidden[0]} has hidden values: it cannot be changed in bulk."
        )
    return row


def _of_workflow(
    operator: Operator, operation: Operation, filters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the filter for the steps to retry in a workflow."""
    workflow_id = parse_job_id(str(filters.get("workflow", "")))
    if operation is not steps.RETRY or workflow_id is None or len(filters) > 1:
        raise ValueError(
            f"{steps.RETRY.name} needs the filter workflow, which cannot be combined with other "
            "operations or filters."
        )
    with explained(operator.settings.database):
        refusal = why_not(operator.settings.database, workflow_id)
    if refusal:
        raise ValueError(refusal)
    return {"workflow": str(workflow_id)}


def _checked(operation: Operation, filters: dict[str, str]) -> dict[str, str]:
    """Return the filters with durations replaced by moments.

    Raises:
        ValueError: the operation does not take one of them.
    """
    takes = FILTERS[operation.target]
    if wrong := [name for name in filters if name not in takes]:
        raise ValueError(
            f"{operation.name} does not support the filter {wrong[0]!r}. Supported filters: "
            f"{', '.join(takes)}."
        )
    if operation.target == "letter" and filters.get("state", "") not in OPEN_STATES:
        raise ValueError(
            f"{operation.name} acts on open dead letters only: leave the filter state out."
        )
    wanted = jobs.filter_of(filters)
    bounds = {"since": wanted.since, "until": wanted.until}
    return filters | {name: at.isoformat() for name, at in bounds.items() if at is not None}


def find(settings: Settings, limit: int, after: str = "") -> ScannedPage:
    """Return a page of bulk operations, newest first.

    Raises:
        InvalidMark: ``after`` is not the mark of a page.
    """
    # The table also has each operation on one target, and the operations of other backends.
    is_bulk = Q(backend=settings.alias, operation__in=BY_NAME, filters__target__isnull=True)
    rows = BulkOperation.objects.using(settings.database)
    return scan(rows, is_bulk, limit, after, most=SCANNED, newest_first=True)


def get(settings: Settings, bulk_id: UUID | str) -> BulkOperation:
    """Return a bulk operation, or an operation on one target that keeps what its undo needs.

    Raises:
        BulkOperationNotFound: no bulk operation has this id, or it was deleted.
    """
    wanted = parse_job_id(str(bulk_id))
    row = rows_of_bulk(settings).filter(pk=wanted).first() if wanted is not None else None
    if row is None or ("target" in row.filters and not _items_of(settings, row).exists()):
        raise BulkOperationNotFound(f"There is no bulk operation {str(bulk_id)!r} (any more).")
    return row


def refusals_of(settings: Settings, row: BulkOperation, limit: int) -> list[BulkItem]:
    """Return the first targets that were not changed."""
    return list(_items_of(settings, row).exclude(refusal="").order_by("pk")[:limit])


def _items_of(settings: Settings, row: BulkOperation) -> QuerySet[BulkItem]:
    return BulkItem.objects.using(settings.database).filter(bulk_id=row.pk)


def can_undo(settings: Settings, row: BulkOperation) -> bool:
    """Return whether the operation can be undone and has not been undone."""
    is_over = row.state in (State.DONE, State.STOPPED)
    is_undoable = BY_NAME.get(row.operation) in UNDOABLE
    if not (is_over and is_undoable and row.undoes is None and row.done > 0):
        return False
    return not BulkOperation.objects.using(settings.database).filter(undoes=row.pk).exists()


def sum_up(settings: Settings, row: BulkOperation) -> Done:
    """Return the progress of a bulk operation as one sentence."""
    operation = BY_NAME[row.operation]
    if row.undoes is not None and row.state == State.DONE and (row.done, row.refused) == (0, 1):
        (only,) = refusals_of(settings, row, 1)
        return Done(f"Nothing was undone: {only.refusal.rstrip('.')}.", is_good=False, value=row)
    done = f"{operation.things} {operation.done}"
    if row.undoes is not None:
        done = UNDONE.get(operation.name, "jobs put back")
    if row.state == State.DONE:
        sentence = f"{row.done:,} of {row.done + row.refused:,} {done}."
    else:
        more = "" if row.is_counted else " or more"
        most = max(row.matched, row.done + row.refused)
        sentence = f"{row.done:,} of {most:,}{more} {done} so far."
    if row.state == State.RUNNING:
        sentence += " A cluster continues it."
    if row.refused:
        first = refusals_of(settings, row, 1)
        because = f"; the first: {first[0].refusal.rstrip('.')}" if first else ""
        sentence += f" {row.refused:,} not{because}."
    return Done(sentence, is_good=not row.refused, value=row)


def perform(
    operator: Operator,
    operation: Operation,
    filters: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    least: int = 0,
) -> Done:
    """Store a bulk operation, and process it for a moment. A small one is done then.

    Args:
        least: refuse it if it has fewer targets.

    Returns:
        The progress of the bulk operation, with its row as ``value`` and the arguments of its undo.
    """
    try:
        row = preview(operator, operation, filters, options)
    except ValueError as error:
        return Done(first_line_of(error), is_good=False)
    if row.is_counted and row.matched < least:
        return Done(f"There are no such {operation.things}.", is_good=False)
    _store(operator, operation, row)
    return _first_part(operator, row)


def finish(operator: Operator, row: BulkOperation) -> BulkOperation:
    """Process a bulk operation until it is done or paused. Return its row."""
    while row.state == State.RUNNING:
        batches = go_on(operator.settings, LONG_SECONDS, only=row.pk)
        row = get(operator.settings, row.pk)
        if not batches and row.state == State.RUNNING:  # a cluster processes it at the same time
            time.sleep(PAUSE_SECONDS)
    return row


def undo_at_once(operator: Operator, bulk_id: str) -> Done:
    """Undo a bulk operation, and process the undo for a moment."""
    done = UNDO.attempt(operator, bulk_id)
    return _first_part(operator, done.value) if done.is_good else done


def _first_part(operator: Operator, row: BulkOperation) -> Done:
    settings = operator.settings
    # The last batch goes over the time, and one of new jobs takes a fraction of a second.
    is_slow = row.operation in (steps.RETRY.name, dead_letters.REQUEUE.name)
    seconds = AT_ONCE_SECONDS / (2 if is_slow else 1)
    go_on(settings, seconds, only=row.pk)
    row = get(settings, row.pk)
    if row.state == State.RUNNING and row.is_counted and row.done + row.refused >= row.matched:
        go_on(settings, 0.0, only=row.pk)  # no time was left to see that there are no more
        row = get(settings, row.pk)
    return replace(
        sum_up(settings, row), undo={"bulk": str(row.pk)} if can_undo(settings, row) else {}
    )


# -- operations -----------------------------------------------------------------------------------


def _set_state(
    operator: Operator, bulk_id: str, states: Sequence[str], state: str, sentence: str
) -> Done:
    row = get(operator.settings, bulk_id)
    rows = BulkOperation.objects.using(operator.settings.database).filter(pk=row.pk)
    ended = MomentNow() if state == State.STOPPED else None
    if not rows.filter(state__in=states).update(state=state, ended_at=ended):
        return Done(f"The bulk operation is {row.state}.", is_good=False)
    return Done(sentence)


def _pause(operator: Operator, bulk_id: str) -> Done:
    sentence = "The bulk operation is paused. Changes that are already made remain."
    done = _set_state(operator, bulk_id, [State.RUNNING], State.PAUSED, sentence)
    return replace(done, undo={"bulk": bulk_id}) if done.is_good else done


def _resume(operator: Operator, bulk_id: str) -> Done:
    sentence = "The bulk operation continues."
    return _set_state(operator, bulk_id, [State.PAUSED], State.RUNNING, sentence)


def _stop(operator: Operator, bulk_id: str) -> Done:
    sentence = "The bulk operation is stopped. Changes that are already made remain."
    return _set_state(operator, bulk_id, [State.RUNNING, State.PAUSED], State.STOPPED, sentence)


def _undo(operator: Operator, bulk_id: str) -> Done:
    settings, alias = operator.settings, operator.settings.database
    row = get(settings, bulk_id)
    if not can_undo(settings, row):
        return Done("This bulk operation cannot be undone, or was undone already.", is_good=False)
    undo = BulkOperation(
        pk=new_job_id(),
        backend=row.backend,
        operation=row.operation,
        by=operator.by,
        because=operator.because,
        matched=row.done,
        started_at=timezone.now(),
        undoes=row.pk,
    )
    try:
        with explained(alias), transaction.atomic(using=alias):
            undo.save(using=alias, force_insert=True)
    except IntegrityError:
        return Done("This bulk operation was undone already.", is_good=False)
    return Done("The bulk operation is being undone.", value=undo, count=0)  # its row records it


VIEW = "stoker.view_bulkoperation"
"""The permission to see bulk operations. To pause, resume, stop or undo one, the user also needs
the permission of its operation."""
PAUSE = Operation("pause", "bulk", VIEW, _pause, undo="resume")
RESUME = Operation("resume", "bulk", VIEW, _resume)
STOP = Operation(
    "stop", "bulk", VIEW, _stop, is_grave=True,
    question="Stop this bulk operation? Changes that are already made remain. "
    "The other targets are not changed.",
)  # fmt: skip
UNDO = Operation(
    "undo", "bulk", VIEW, _undo,
    question="Undo this bulk operation? Jobs that have started meanwhile are not changed.",
)  # fmt: skip
OPERATIONS = (PAUSE, RESUME, STOP, UNDO)
