"""Bulk operations on many jobs or dead letters, which continue in the background until they are
done. A bulk operation is a row with a cursor. ``bulk_walk`` processes it, first for a moment in the
request that starts it, then in upkeep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from stoker.conf import Settings
from stoker.exceptions import BulkOperationNotFound
from stoker.models import BulkItem, BulkOperation
from stoker.store.engines.sessions import explained
from stoker.values.ids import new_job_id, parse_job_id
from stoker.values.text import first_line_of

from . import dead_letters, jobs, waiting_jobs
from .bulk_walk import BY_NAME, State, count, go_on, rows_of_bulk
from .operation import Done, Operation, Operator
from .wording import plural

UNDOABLE = (*waiting_jobs.IN_BULK, dead_letters.REQUEUE)
MOST_IDS = 1_000
AT_ONCE_SECONDS = 0.5
"""For how long the request that starts a bulk operation processes it."""

# -- start, find ----------------------------------------------------------------------------------


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
    row = _new(operator, operation, filters, options or {})
    with explained(operator.settings.database):
        row.matched, row.is_counted = count(operator.settings, row)
        row.save(using=operator.settings.database, force_insert=True)
    operation.log(operator, f"{plural(row.matched, 'target')} in bulk {row.pk}", Done("Started."))
    return row


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


def _new(
    operator: Operator, operation: Operation, filters: Mapping[str, Any], options: Mapping[str, Any]
) -> BulkOperation:
    if operation.name not in BY_NAME:
        raise ValueError(f"{operation.name} is no operation on many.")
    ids = filters.get("ids")
    if ids is not None:
        if not 0 < len(ids) <= MOST_IDS or not all(parse_job_id(one) for one in ids):
            raise ValueError(f"Choose between 1 and {MOST_IDS:,} of them.")
        given: dict[str, Any] = {"ids": [str(parse_job_id(one)) for one in ids]}
    else:
        given = _absolute({name: str(value) for name, value in filters.items() if value})
    if operation in waiting_jobs.IN_BULK:
        waiting_jobs.change_of(operation, options).check(operator.settings)
    if not isinstance(options.get("arguments") or {}, Mapping):
        raise ValueError("Write the new arguments as a JSON object.")
    return BulkOperation(
        pk=new_job_id(),
        backend=operator.alias,
        operation=operation.name,
        filters=given,
        options={name: value for name, value in options.items() if value},
        by=operator.by,
        because=operator.because,
        started_at=timezone.now(),
    )


def _absolute(filters: dict[str, str]) -> dict[str, str]:
    """Return the filters with durations replaced by moments."""
    wanted = jobs.filter_of(filters)
    bounds = {"since": wanted.since, "until": wanted.until}
    return filters | {name: at.isoformat() for name, at in bounds.items() if at is not None}


def find(settings: Settings, limit: int, after: str = "") -> tuple[list[BulkOperation], str | None]:
    """Return a page of bulk operations, newest first, and the mark of the next page.

    Raises:
        ValueError: ``after`` is not the mark of a page.
    """
    rows = rows_of_bulk(settings)
    if after:
        last = parse_job_id(after)
        if last is None:
            raise ValueError(f"{after[:50]!r} is not where a page of this list begins")
        rows = rows.filter(pk__lt=last)
    found = list(rows.order_by("-pk")[: limit + 1])
    return found[:limit], str(found[limit - 1].pk) if len(found) > limit else None


def get(settings: Settings, bulk_id: UUID | str) -> BulkOperation:
    """Return one bulk operation.

    Raises:
        BulkOperationNotFound: no bulk operation has this id, or it was deleted.
    """
    wanted = parse_job_id(str(bulk_id))
    row = rows_of_bulk(settings).filter(pk=wanted).first() if wanted is not None else None
    if row is None:
        raise BulkOperationNotFound(f"There is no bulk operation {str(bulk_id)!r} (any more).")
    return row


def refusals_of(settings: Settings, row: BulkOperation, limit: int) -> list[BulkItem]:
    """Return the first targets that were not changed."""
    items = BulkItem.objects.using(settings.database).filter(bulk_id=row.pk)
    return list(items.exclude(refusal="").order_by("pk")[:limit])


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
    done = f"{operation.things} {operation.done}"
    if row.undoes is not None:
        done = "requeues undone" if operation is dead_letters.REQUEUE else "jobs put back"
    if row.state == State.DONE:
        sentence = f"{row.done:,} of {row.done + row.refused:,} {done}."
    else:
        more = "" if row.is_counted else " or more"
        sentence = f"{row.done:,} of {row.matched:,}{more} {done} so far."
    if row.state == State.RUNNING:
        sentence += " Clusters go on with it."
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
) -> Done:
    """Store a bulk operation, and process it for a moment. A small one is done then.

    Returns:
        The progress of the bulk operation, with its row as ``value`` and the arguments of its undo.
    """
    try:
        row = start(operator, operation, filters, options)
    except ValueError as error:
        return Done(first_line_of(error), is_good=False)
    return _first_part(operator, row)


def undo_at_once(operator: Operator, bulk_id: str) -> Done:
    """Undo a bulk operation, and process the undo for a moment."""
    done = UNDO.attempt(operator, bulk_id)
    return _first_part(operator, done.value) if done.is_good else done


def _first_part(operator: Operator, row: BulkOperation) -> Done:
    settings = operator.settings
    go_on(settings, AT_ONCE_SECONDS, only=row.pk)
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
    ended = Now() if state == State.STOPPED else None
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
        return Done("This bulk operation cannot be undone, or was undone.", is_good=False)
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
        return Done("This bulk operation was undone before.", is_good=False)
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
