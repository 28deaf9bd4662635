"""Process the targets of a bulk operation, batch by batch. For each batch, one transaction moves
the cursor, changes the targets and writes one row for each target. It is rolled back if another
process has moved the cursor. So a killed process leaves no half-processed batch, and no batch is
processed twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError
from django.db.models import F, QuerySet
from django.utils import timezone

from stoker.compat import InvalidTask
from stoker.conf import Settings
from stoker.dead_letters.requeueing import Wish, requeue_together
from stoker.dead_letters.search import Filter, Search
from stoker.exceptions import BrokerUnavailable, StokerError, UnknownTask
from stoker.inspect.jobs import JobSearch
from stoker.jobs.change import change
from stoker.jobs.package import sealer_for
from stoker.models import BulkItem, BulkOperation, DeadLetter, Job, Step, Workflow
from stoker.store.counting import Number
from stoker.store.engines.sessions import explained, lock_seconds
from stoker.store.statements import INSERT_BYTES, INSERTED_AT_ONCE, deciding, with_keys
from stoker.store.transactions import is_locked_out, repeat_if_aborted
from stoker.store.written import MomentNow, parts_of
from stoker.tasks.arguments import HIDDEN, changed_call, names_hidden, shown_arguments
from stoker.tasks.registry import find_task, task_of
from stoker.values.marks import project_moment
from stoker.values.text import first_line_of, stored_text
from stoker.workflows import control

from . import dead_letters, jobs, steps, waiting_jobs
from .details import opened_call
from .operation import NOT_FOUND, Done, Operation, Operator

State = BulkOperation.State
ON_JOBS = (*waiting_jobs.OPERATIONS, jobs.CANCEL)
ON_LETTERS = (dead_letters.REQUEUE, dead_letters.DISCARD)
BY_NAME: Mapping[str, Operation] = {one.name: one for one in (*ON_JOBS, *ON_LETTERS, steps.RETRY)}
SOME_IDS = 1_000
COUNTED = 10_000
COUNTED_READS = 2
"""Maximum number of reads to count the targets, if the database cannot count them itself."""
LOCKED = "another transaction holds its rows"
"""Refusal of a target that is processed when its rows are free."""
KEPT = timedelta(days=90)
FORGOTTEN_AT_ONCE = 1_000


class Target(NamedTuple):
    """A job, dead letter or step."""

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
    """Return the backend's operations, without unknown ones from newer versions."""
    rows = BulkOperation.objects.using(settings.database)
    return rows.filter(backend=settings.alias, operation__in=BY_NAME)


def count(settings: Settings, row: BulkOperation) -> tuple[int, bool]:
    """Return the number of targets, and whether that is the number of all targets."""
    counted = _counted(settings, row)
    if counted is not None:
        return counted.number, counted.is_exact
    number, cursor = 0, ""
    for _ in range(COUNTED_READS):
        found, rest = _next(settings, row, cursor)
        number += len(found)
        if rest is None:
            return number, True
        cursor = rest
    return number, False


def _counted(settings: Settings, row: BulkOperation) -> Number | None:
    """Return the number of targets as the database counts it, or None if they have to be read."""
    if row.undoes is not None or "ids" in row.filters or BY_NAME[row.operation] is steps.RETRY:
        return None
    if BY_NAME[row.operation] in ON_JOBS:
        return JobSearch(settings, jobs.filter_of(row.filters)).count(COUNTED, before=row.pk)
    return _letters(settings, row).count(COUNTED)


class PreviewRow(NamedTuple):
    """A target of the preview."""

    id: UUID
    task: str
    before: str
    """The target's arguments on one line."""
    after: str = ""
    """The target's arguments after the change, or the reason why they cannot be changed; "" = this
    operation does not change arguments."""


def samples_of(
    settings: Settings, row: BulkOperation, limit: int, *, reveal: bool
) -> list[PreviewRow]:
    """Return the first targets with their arguments."""
    found, _ = _next(settings, row, "")
    ids = [one.id for one in found[:limit]]
    if BY_NAME[row.operation] is steps.RETRY:
        of_steps = Step.objects.using(settings.database).filter(pk__in=ids)
        ids = [one for one in of_steps.order_by("pk").values_list("job_id", flat=True) if one]
    rows = _table_of(settings, row).in_bulk(ids)
    samples, changes = [], row.options.get("arguments")
    for one in (rows[pk] for pk in ids if pk in rows):
        call = opened_call(settings, bytes(one.package), reveal=reveal)
        line = "" if call is None else call.label or call.line
        after = _after(settings, one, changes) if changes else ""
        samples.append(PreviewRow(one.pk, one.task, line, after))
    return samples


def _after(settings: Settings, row: DeadLetter | Job, changes: Mapping[str, Any]) -> str:
    try:
        changed = _changed(settings, row, changes)
        task = find_task(row.task)
    except (StokerError, ValueError, TypeError) as error:
        return first_line_of(error)
    return shown_arguments(task, **changed, secrets=settings.redact).line


def hidden_names(
    settings: Settings, row: BulkOperation, ids: Sequence[UUID] | None = None
) -> list[str]:
    """Return the new arguments in the operation's options that ``REDACT`` or the tasks of targets
    hide.

    Args:
        ids: the targets; None = the first ones of the operation.
    """
    arguments = row.options.get("arguments") or {}
    hidden = set(names_hidden(None, arguments, settings.redact))
    if not arguments or hidden:
        return sorted(hidden)
    if ids is None:
        ids = [one.id for one in _next(settings, row, "")[0]]
    targets = with_keys(_table_of(settings, row), ids)
    for path in targets.order_by().values_list("task", flat=True).distinct():
        with suppress(UnknownTask):
            hidden.update(names_hidden(find_task(path), arguments, settings.redact))
    return sorted(hidden)


def _table_of(settings: Settings, row: BulkOperation) -> QuerySet[Any]:
    """Return the dead letters, or else the jobs, of an operation."""
    table: Any = DeadLetter if BY_NAME[row.operation].target == "letter" else Job
    rows: QuerySet[Any] = table.objects.using(settings.database)
    return rows


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
        try:
            batches += _walk(settings, row, until, beat)
            while row.state == State.RUNNING and time.monotonic() < until:
                batches += _walk(settings, row, until, beat)
        except (BrokerUnavailable, OperationalError) as error:
            if not is_locked_out(error):
                raise  # else the next call continues it
    return batches


def _walk(settings: Settings, row: BulkOperation, until: float, beat: Callable[[], None]) -> int:
    """Process the targets of one bulk operation. Return the number of batches.

    Raises:
        RowsLocked: another transaction holds rows of a target. It was passed over, and is processed
            after all others.
    """
    found, rest = _next(settings, row, row.cursor)
    locked = _items(settings, row).filter(refusal=LOCKED).order_by("pk")
    if not found and rest is None:
        passed_over = locked.values_list("target", flat=True)[:SOME_IDS]
        found = [Target(one, row.cursor) for one in passed_over]
    if hidden := hidden_names(settings, row, [one.id for one in found]):  # keep them no longer
        row.options["arguments"] |= dict.fromkeys(hidden, HIDDEN)
        rows = BulkOperation.objects.using(settings.database).filter(pk=row.pk)
        rows.update(options=row.options)
    size = _batch_size(row)
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
    elif locked.exists():
        return batches
    else:
        moved = _rows(settings, row).update(state=State.DONE, ended_at=MomentNow())
        row.state = State.DONE
        if moved:
            operator = Operator(settings, row.by, row.because)
            done = Done("The bulk operation is done.")
            BY_NAME[row.operation].log(operator, f"bulk {row.pk}", done)
    if not moved:
        row.state = State.PAUSED
    return batches


def _batch_size(row: BulkOperation) -> int:
    """Return how many targets are changed in one transaction."""
    operation = BY_NAME[row.operation]
    if operation in waiting_jobs.OPERATIONS:
        return waiting_jobs.AT_A_TIME
    if operation is steps.RETRY:
        return control.AT_A_TIME
    is_one_wish = operation is dead_letters.REQUEUE and not row.options.get("arguments")
    return dead_letters.AT_A_TIME if is_one_wish else 1


def _rows(settings: Settings, row: BulkOperation) -> Any:
    """Return a query for the row, which finds nothing if the operation was paused or its cursor
    was moved."""
    rows = BulkOperation.objects.using(settings.database)
    return rows.filter(pk=row.pk, state=State.RUNNING, cursor=row.cursor)


def _items(settings: Settings, row: BulkOperation) -> QuerySet[BulkItem]:
    return BulkItem.objects.using(settings.database).filter(bulk_id=row.pk)


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
    if BY_NAME[row.operation] is steps.RETRY:
        alias, workflow_id = settings.database, UUID(row.filters["workflow"])
        steps_found, edge = control.steps_to_retry(alias, workflow_id, cursor, row.started_at)
        return [Target(*one) for one in steps_found], edge
    if BY_NAME[row.operation] in ON_JOBS:
        search = JobSearch(settings, jobs.filter_of(row.filters))
        found, edge = search.onward(cursor, before=row.pk)
        return [Target(*one) for one in found], edge
    found, edge = _letters(settings, row).onward(cursor)
    return [Target(*one) for one in found], edge


def _letters(settings: Settings, row: BulkOperation) -> Search:
    wanted = Filter(**{**dead_letters.filters_of(row.filters), "state": DeadLetter.State.OPEN})
    # A job that failed again after its requeue is not requeued a second time.
    before = min(wanted.failed_before or row.started_at, row.started_at)
    return Search(settings, replace(wanted, failed_before=before))


def _process(settings: Settings, row: BulkOperation, batch: Sequence[Target]) -> bool:
    """Process a batch exactly once. Return False if the operation was paused or another process
    has moved its cursor."""
    act = partial(_act, settings, row)
    try:
        return repeat_if_aborted(settings.database, partial(_commit, settings, row, batch, act))
    except Exception as error:  # one bad target must not hold up the others
        is_locked = is_locked_out(error)
        if isinstance(error, BrokerUnavailable | OperationalError) and not is_locked:
            raise
        if len(batch) > 1:
            return all(_process(settings, row, [one]) for one in batch)
        because = LOCKED if is_locked else f"{type(error).__name__}: {first_line_of(error)}"
        is_ours = _commit(settings, row, batch, partial(_refuse_all, TargetOutcome(because)))
        if is_locked:
            raise  # there may be many: wait for one at a time
        return is_ours


def _commit(
    settings: Settings,
    row: BulkOperation,
    batch: Sequence[Target],
    act: Callable[[Sequence[Target]], Sequence[TargetOutcome]],
) -> bool:
    alias, cursor = settings.database, batch[-1].cursor
    with explained(alias), deciding(alias, lock_seconds(settings)):
        if not _rows(settings, row).update(cursor=cursor):
            return False
        items = _items(settings, row).filter(target__in=[one.id for one in batch])
        known = dict(items.values_list("target", "refusal"))
        passed_over = [one for one, refusal in known.items() if refusal == LOCKED]
        if passed_over:
            items.filter(target__in=passed_over).delete()
        batch = [one for one in batch if known.get(one.id, LOCKED) == LOCKED]
        outcomes = act(batch) if batch else []
        done = [
            BulkItem(
                bulk_id=row.pk,
                target=one.id,
                refusal=stored_text(outcome.refusal, 255),
                before=outcome.before,
            )
            for one, outcome in zip(batch, outcomes, strict=True)
        ]
        for part in parts_of(done, INSERTED_AT_ONCE, INSERT_BYTES, _kept_bytes):
            BulkItem.objects.using(alias).bulk_create(part)
        refused = sum(bool(one.refusal) for one in outcomes)
        BulkOperation.objects.using(alias).filter(pk=row.pk).update(
            done=F("done") + len(batch) - refused,
            refused=F("refused") + refused - len(passed_over),
        )
    row.cursor = cursor
    return True


def _kept_bytes(item: BulkItem) -> int:
    return len(item.before.get("package", ""))


def _refuse_all(refusal: TargetOutcome, batch: Sequence[Any]) -> list[TargetOutcome]:
    return [refusal for _ in batch]


def _act(settings: Settings, row: BulkOperation, batch: Sequence[Target]) -> list[TargetOutcome]:
    operation = BY_NAME[row.operation]
    operator = Operator(settings, row.by, row.because)
    ids = [one.id for one in batch]
    if row.undoes is not None:
        return _undo(operator, operation, row.undoes, ids)
    if operation is steps.RETRY:
        return _retry(settings, row, ids)
    if operation in waiting_jobs.OPERATIONS:
        wanted = waiting_jobs.change_of(operation, row.options)
        return [
            TargetOutcome(one.refusal, waiting_jobs.before_of(operation, one))
            for one in change(settings, ids, wanted)
        ]
    if operation is dead_letters.REQUEUE and not row.options.get("arguments"):
        return _requeue(operator, ids)
    return [_perform(operator, operation, one, row.options) for one in ids]


def _requeue(operator: Operator, ids: Sequence[UUID]) -> list[TargetOutcome]:
    answers = requeue_together(operator.settings, ids, Wish(operator.by, operator.because))
    return [_outcome_of(dead_letters.answered(one)) for one in answers]


def _retry(settings: Settings, row: BulkOperation, ids: Sequence[UUID]) -> list[TargetOutcome]:
    alias, workflow_id = settings.database, UUID(row.filters["workflow"])
    state = Workflow.State.CANCELLED
    is_cancelled = Workflow.objects.using(alias).filter(pk=workflow_id, state=state).exists()
    begun = BulkOperation.objects.using(alias).filter(pk=row.pk, done__gt=0)
    if is_cancelled and begun.exists():  # it was running again since the first batch
        return _refuse_all(TargetOutcome("its workflow was cancelled meanwhile"), ids)
    wish = Wish(row.by, row.because)
    outcomes, _ = control.retry_together(settings, workflow_id, ids, wish)
    return [
        TargetOutcome(one.refusal, {"job": str(one.job_id)} if one.job_id else {})
        for one in outcomes
    ]


def _perform(
    operator: Operator, operation: Operation, target: UUID, options: Mapping[str, Any]
) -> TargetOutcome:
    given: Mapping[str, Any] = {}
    try:
        if options.get("arguments"):
            letter = DeadLetter.objects.using(operator.settings.database).get(pk=target)
            given = _changed(operator.settings, letter, options["arguments"])
        done = operation.act(operator, str(target), **given)
    except BrokerUnavailable:
        raise
    except (*NOT_FOUND, StokerError, InvalidTask, ValueError, TypeError) as error:
        return TargetOutcome(first_line_of(error))
    return _outcome_of(done)


def _outcome_of(done: Done) -> TargetOutcome:
    new_job = getattr(done.value, "job_id", None)
    return TargetOutcome(
        "" if done.is_good else done.sentence, {"job": str(new_job)} if new_job else {}
    )


def _changed(
    settings: Settings, row: DeadLetter | Job, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a dead letter or job after the replacements.

    Raises:
        ValueError, PackageError, UnknownTask: the arguments cannot be replaced.
    """
    package = sealer_for(settings).open(bytes(row.package))
    if package.options.receives or package.options.each:
        raise ValueError("Its arguments come from the previous step, or are the calls of a map.")
    task = task_of(package)
    args, kwargs = changed_call(task, package.args, package.kwargs, changes, settings.redact)
    return {"args": args, "kwargs": kwargs}


def _undo(
    operator: Operator, operation: Operation, bulk_id: UUID, ids: Sequence[UUID]
) -> list[TargetOutcome]:
    items = BulkItem.objects.using(operator.settings.database).filter(bulk_id=bulk_id)
    before = dict(items.filter(target__in=ids).values_list("target", "before"))
    jobs = {pk: UUID(one["job"]) for pk, one in before.items() if "job" in one}
    if operation is dead_letters.REQUEUE:
        refusals = dead_letters.undo_together(operator, jobs)
    elif operation is steps.RETRY:
        refusals = steps.undo_together(operator, jobs)
    else:
        refusals = waiting_jobs.put_back(operator.settings, before)
    no_letter = "it had no dead letter: cancel its job instead"
    return [TargetOutcome(refusals.get(one, no_letter)) for one in ids]


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
