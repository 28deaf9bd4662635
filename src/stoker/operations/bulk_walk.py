"""Process the targets of a bulk operation, batch by batch. For each batch, one transaction moves
the cursor, changes the targets and writes one row for each target. It is rolled back if another
process has moved the cursor. So a killed process leaves no half-processed batch, and no batch is
processed twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError
from django.db.models import F, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from stoker.compat import InvalidTask
from stoker.conf import Settings
from stoker.dead_letters.search import Filter, Search
from stoker.exceptions import BrokerUnavailable, StokerError
from stoker.inspect.jobs import JobSearch
from stoker.jobs.change import AT_ONCE, Change, change
from stoker.jobs.package import sealer_for
from stoker.models import BulkItem, BulkOperation, DeadLetter, Job
from stoker.store.engines.sessions import explained
from stoker.store.statements import deciding
from stoker.store.transactions import is_conflict
from stoker.tasks.arguments import changed_call, shown_arguments
from stoker.tasks.registry import find_task, task_of
from stoker.values.marks import project_moment
from stoker.values.text import first_line_of, stored_text

from . import dead_letters, jobs, waiting_jobs
from .details import opened_call
from .operation import NOT_FOUND, Done, Operation, Operator

State = BulkOperation.State
ON_JOBS = (*waiting_jobs.IN_BULK, jobs.CANCEL)
ON_LETTERS = (dead_letters.REQUEUE, dead_letters.DISCARD)
BY_NAME: Mapping[str, Operation] = {one.name: one for one in (*ON_JOBS, *ON_LETTERS)}
SOME_IDS = 1_000
COUNTED = 10_000
COUNT_SECONDS = 0.3
TRIES = 10
RETRY_SECONDS = 0.05
KEPT = timedelta(days=90)
FORGOTTEN_AT_ONCE = 1_000


class Target(NamedTuple):
    """A job or dead letter."""

    id: UUID
    cursor: str
    """The operation's cursor after this target was processed."""


class TargetOutcome(NamedTuple):
    """The outcome for one target."""

    refusal: str = ""
    """Why the target was not changed; "" = it was changed."""
    before: Mapping[str, Any] = {}
    """The values that the undo writes back."""


def rows_of_bulk(settings: Settings) -> QuerySet[BulkOperation]:
    """Return the backend's bulk operations, without unknown ones from newer versions."""
    rows = BulkOperation.objects.using(settings.database).filter(filters__target__isnull=True)
    return rows.filter(backend=settings.alias, operation__in=BY_NAME)


def count(settings: Settings, row: BulkOperation) -> tuple[int, bool]:
    """Return the number of targets, and whether that is the number of all targets."""
    until, number, cursor = time.monotonic() + COUNT_SECONDS, 0, ""
    while True:
        found, rest = _next(settings, row, cursor)
        number += len(found)
        if rest is None:
            return number, True
        if number >= COUNTED or time.monotonic() >= until:
            return number, False
        cursor = rest


class PreviewRow(NamedTuple):
    """A target of the preview."""

    id: UUID
    task: str
    before: str
    """Its arguments on one line."""
    after: str = ""
    """Its arguments after the change, or the reason why they cannot be changed; "" = this operation
    does not change arguments."""


def samples_of(
    settings: Settings, row: BulkOperation, options: Mapping[str, Any], limit: int, *, reveal: bool
) -> list[PreviewRow]:
    """Return the first targets with their arguments."""
    found, _ = _next(settings, row, "")
    ids = [one.id for one in found[:limit]]
    is_letter = BY_NAME[row.operation].target == "letter"
    table: Any = DeadLetter if is_letter else Job
    rows = table.objects.using(settings.database).in_bulk(ids)
    samples = []
    for one in (rows[pk] for pk in ids if pk in rows):
        call = opened_call(settings, bytes(one.package), reveal=reveal)
        line = "" if call is None else call.label or call.line
        after = _after(settings, one, options["arguments"]) if options.get("arguments") else ""
        samples.append(PreviewRow(one.pk, one.task, line, after))
    return samples


def _after(settings: Settings, letter: DeadLetter, changes: Mapping[str, Any]) -> str:
    try:
        changed = _changed(settings, letter, changes)
        task = find_task(letter.task)
    except (StokerError, ValueError, TypeError) as error:
        return first_line_of(error)
    return shown_arguments(task, **changed, secrets=settings.redact).line


# -- go on ----------------------------------------------------------------------------------------


def go_on(
    settings: Settings,
    seconds: float,
    *,
    only: UUID | None = None,
    beat: Callable[[], None] = lambda: None,
) -> int:
    """Process the running bulk operations for about ``seconds``, and at least one batch of each.

    Args:
        only: process only this bulk operation.
        beat: called after each batch.

    Returns:
        The number of batches.
    """
    rows = rows_of_bulk(settings).filter(state=State.RUNNING).order_by("pk")
    rows = rows if only is None else rows.filter(pk=only)
    until, batches = time.monotonic() + seconds, 0
    for row in rows:
        batches += _walk(settings, row, until, beat)
        while row.state == State.RUNNING and time.monotonic() < until:
            batches += _walk(settings, row, until, beat)
    return batches


def _walk(settings: Settings, row: BulkOperation, until: float, beat: Callable[[], None]) -> int:
    """Process the targets of one bulk operation. Return the number of batches."""
    found, rest = _next(settings, row, row.cursor)
    size = waiting_jobs.AT_A_TIME if BY_NAME[row.operation] in waiting_jobs.IN_BULK else 1
    batches = 0
    for first in range(0, len(found), size):
        if batches and time.monotonic() >= until:
            return batches
        if not _process(settings, row, found[first : first + size]):
            row.state = State.PAUSED  # or processed by another process: check again later
            return batches
        batches += 1
        beat()
    if rest is not None:
        moved = _rows(settings, row).update(cursor=rest)
        row.cursor = rest
    else:
        moved = _rows(settings, row).update(state=State.DONE, ended_at=Now())
        row.state = State.DONE
        if moved:
            operator = Operator(settings, row.by, row.because)
            done = Done("The bulk operation is done.")
            BY_NAME[row.operation].log(operator, f"bulk {row.pk}", done)
    if not moved:
        row.state = State.PAUSED
    return batches


def _rows(settings: Settings, row: BulkOperation) -> Any:
    """Return a query for the row, which finds nothing if the operation was paused or its cursor
    was moved."""
    rows = BulkOperation.objects.using(settings.database)
    return rows.filter(pk=row.pk, state=State.RUNNING, cursor=row.cursor)


def _next(settings: Settings, row: BulkOperation, cursor: str) -> tuple[list[Target], str | None]:
    """Return the next targets, and the cursor after the last row that was read; None = there are no
    more."""
    if row.undoes is not None:
        items = BulkItem.objects.using(settings.database).filter(bulk_id=row.undoes, refusal="")
        later = items.filter(pk__gt=int(cursor or 0)).order_by("pk")
        some = list(later.values_list("target", "pk")[:SOME_IDS])
        last = str(some[-1][1]) if len(some) == SOME_IDS else None
        return [Target(target, str(pk)) for target, pk in some], last
    if "ids" in row.filters:
        ids, first = row.filters["ids"], int(cursor or 0)
        rest = enumerate(ids[first:], first + 1)
        return [Target(UUID(one), str(place)) for place, one in rest], None
    if BY_NAME[row.operation] in ON_JOBS:
        search = JobSearch(settings, jobs.filter_of(row.filters))
        found, edge = search.onward(cursor, before=row.pk)
        return [Target(*one) for one in found], edge
    wanted = Filter(**{**dead_letters.filters_of(row.filters), "state": DeadLetter.State.OPEN})
    # A job that failed again after its requeue is not requeued a second time.
    before = min(wanted.failed_before or row.started_at, row.started_at)
    found, edge = Search(settings, replace(wanted, failed_before=before)).onward(cursor)
    return [Target(*one) for one in found], edge


def _process(settings: Settings, row: BulkOperation, batch: Sequence[Target]) -> bool:
    """Process a batch exactly once. Return False if the operation was paused or another process
    has moved its cursor."""
    for tries_left in reversed(range(TRIES)):
        try:
            return _commit(settings, row, batch, partial(_act, settings, row))
        except (BrokerUnavailable, OperationalError) as error:
            if not (tries_left and is_conflict(error)):
                raise
            time.sleep(RETRY_SECONDS * random.random())  # noqa: S311 - to get out of step
        except Exception as error:  # noqa: BLE001 - one bad target must not hold up the others
            if len(batch) > 1:
                return all(_process(settings, row, [one]) for one in batch)
            refusal = TargetOutcome(f"{type(error).__name__}: {first_line_of(error)}")
            return _commit(settings, row, batch, partial(_refuse, refusal))
    raise AssertionError("the loop returns or raises")


def _commit(
    settings: Settings,
    row: BulkOperation,
    batch: Sequence[Target],
    act: Callable[[Sequence[Target]], Sequence[TargetOutcome]],
) -> bool:
    alias, cursor = settings.database, batch[-1].cursor
    with explained(alias), deciding(alias):
        if not _rows(settings, row).update(cursor=cursor):
            return False
        items = BulkItem.objects.using(alias).filter(bulk_id=row.pk)
        known = set(
            items.filter(target__in=[one.id for one in batch]).values_list("target", flat=True)
        )
        batch = [one for one in batch if one.id not in known]
        outcomes = act(batch) if batch else []
        BulkItem.objects.using(alias).bulk_create(
            BulkItem(
                bulk_id=row.pk,
                target=one.id,
                refusal=stored_text(outcome.refusal, 255),
                before=outcome.before,
            )
            for one, outcome in zip(batch, outcomes, strict=True)
        )
        refused = sum(bool(one.refusal) for one in outcomes)
        BulkOperation.objects.using(alias).filter(pk=row.pk).update(
            done=F("done") + len(batch) - refused, refused=F("refused") + refused
        )
    row.cursor = cursor
    return True


def _refuse(refusal: TargetOutcome, batch: Sequence[Target]) -> list[TargetOutcome]:
    return [refusal for _ in batch]


def _act(settings: Settings, row: BulkOperation, batch: Sequence[Target]) -> list[TargetOutcome]:
    operation = BY_NAME[row.operation]
    operator = Operator(settings, row.by, row.because)
    ids = [one.id for one in batch]
    if row.undoes is not None:
        return _undo(operator, operation, row.undoes, ids)
    if operation in waiting_jobs.IN_BULK:
        wanted = waiting_jobs.change_of(operation, row.options)
        return [
            TargetOutcome(
                one.refusal,
                {
                    "run_after": one.due.isoformat() if one.due else AT_ONCE,
                    "queue": one.queue,
                    "priority": one.priority,
                },
            )
            for one in change(settings, ids, wanted)
        ]
    return [_perform(operator, operation, one, row.options) for one in ids]


def _perform(
    operator: Operator, operation: Operation, target: UUID, options: Mapping[str, Any]
) -> TargetOutcome:
    try:
        given: dict[str, Any] = {}
        if options.get("arguments"):
            letter = DeadLetter.objects.using(operator.settings.database).get(pk=target)
            given = _changed(operator.settings, letter, options["arguments"])
        done = operation.act(operator, str(target), **given)
    except BrokerUnavailable:
        raise
    except (*NOT_FOUND, StokerError, InvalidTask, ValueError, TypeError) as error:
        return TargetOutcome(first_line_of(error))
    new_job = getattr(done.value, "job_id", None)
    return TargetOutcome(
        "" if done.is_good else done.sentence, {"job": str(new_job)} if new_job else {}
    )


def _changed(settings: Settings, letter: DeadLetter, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a dead letter after the replacements.

    Raises:
        ValueError, PackageError, UnknownTask: the arguments cannot be replaced.
    """
    package = sealer_for(settings).open(bytes(letter.package))
    task = task_of(package)
    args, kwargs = changed_call(task, package.args, package.kwargs, changes, settings.redact)
    return {"args": args, "kwargs": kwargs}


def _undo(
    operator: Operator, operation: Operation, bulk_id: UUID, ids: Sequence[UUID]
) -> list[TargetOutcome]:
    items = BulkItem.objects.using(operator.settings.database).filter(bulk_id=bulk_id)
    before = dict(items.filter(target__in=ids).values_list("target", "before"))
    if operation is dead_letters.REQUEUE:
        return [_undo_requeue(operator, one, before[one]) for one in ids]
    alike: dict[Change, list[UUID]] = {}
    for one in ids:
        alike.setdefault(_back(operation, before[one]), []).append(one)
    changed = {
        outcome.job_id: TargetOutcome(outcome.refusal)
        for wanted, some in alike.items()
        for outcome in change(operator.settings, some, wanted)
    }
    return [changed[one] for one in ids]


def _undo_requeue(operator: Operator, letter_id: UUID, before: Mapping[str, Any]) -> TargetOutcome:
    letters = DeadLetter.objects.using(operator.settings.database).filter(pk=letter_id)
    if not letters.filter(successor_id=UUID(before["job"])).exists():
        return TargetOutcome("its job has ended, or it was requeued again")
    return _perform(operator, dead_letters.UNDO, letter_id, {})


def _back(operation: Operation, before: Mapping[str, Any]) -> Change:
    """Return the change that undoes the operation on one job."""
    if operation is waiting_jobs.MOVE:
        return Change(queue=before["queue"])
    if operation is waiting_jobs.PRIORITISE:
        return Change(priority=before["priority"])
    due = before["run_after"]
    return Change(run_after=due if due == AT_ONCE else datetime.fromisoformat(due))


def forget_old(settings: Settings) -> int:
    """Delete bulk operations whose retention has ended, with their targets."""
    alias = settings.database
    limit = project_moment(timezone.now() - KEPT)
    rows = BulkOperation.objects.using(alias).filter(
        state__in=(State.DONE, State.STOPPED), ended_at__lt=limit
    )
    forgotten = 0
    for pk in list(rows.order_by("pk").values_list("pk", flat=True)[:FORGOTTEN_AT_ONCE]):
        items = BulkItem.objects.using(alias).filter(bulk_id=pk)
        some = list(items.values_list("pk", flat=True)[:FORGOTTEN_AT_ONCE])
        forgotten += BulkItem.objects.using(alias).filter(pk__in=some).delete()[0]
        if len(some) == FORGOTTEN_AT_ONCE:
            return forgotten
        forgotten += rows.filter(pk=pk).delete()[0]
    return forgotten
