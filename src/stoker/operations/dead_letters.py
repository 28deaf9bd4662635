"""Rows and details of dead letters for all interfaces, and the operations requeue, undo and
discard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.closing import Bulk
from stoker.dead_letters.search import DeadLetterPage, Faults, Filter, Search
from stoker.dead_letters.service import Answer, Fate
from stoker.dead_letters.undoing import take_back_together
from stoker.models import Attempt, DeadLetter, Requeue
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import ShownCall
from stoker.values.marks import bounds_of
from stoker.values.text import plural

from .details import LARGEST_IN_LISTS_BYTES, Fact, given, opened_call
from .operation import Done, Operation, Operator
from .wording import duration, exactly, first_line

LETTER = (
    "id", "state", "task", "queue", "priority", "key", "reason", "exception_class", "message",
    "fingerprint", "failure_count", "first_failed_at", "failed_at", "enqueued_at", "job_id",
    "attempts", "worker_id", "requeued_count", "last_requeued_at", "last_requeued_by",
    "last_requeued_because", "successor_id", "closed_at", "closed_by", "closed_because",
)  # fmt: skip
"""The columns of a dead letter in JSON."""
ATTEMPT = (
    "job_id", "number", "kind", "worker_id", "started_at", "finished_at", "message",
    "exception_class", "traceback", "exit_code", "signal",
)  # fmt: skip
REQUEUED = ("job_id", "from_job_id", "kind", "by", "because", "requeued_at")
AT_A_TIME = 100
"""Maximum number of dead letters to requeue, or of requeues to undo, in one transaction."""
SUCCESSES = (Fate.REQUEUED, Fate.TAKEN_BACK, Fate.DISCARDED)


def filters_of(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the filters in a query string or form.

    Raises:
        ValueError: ``since`` or ``until`` is not a valid date and time.
    """
    names = ("task", "queue", "reason", "fingerprint", "key", "node", "state")
    filters: dict[str, Any] = {name: query.get(name, "")[:255] for name in names}
    filters["text"] = query.get("q", "").strip()
    filters["failed_after"], filters["failed_before"] = bounds_of(query)
    return {name: value for name, value in filters.items() if value}


def page_of(
    settings: Settings, filters: Mapping[str, Any], limit: int, after: str | None
) -> DeadLetterPage:
    """Return a page of dead letters, the newest first.

    Raises:
        ValueError: A filter has an impossible value, or ``after`` is not the mark of a page.
    """
    wanted: dict[str, Any] = {name: value for name, value in filters.items() if value}
    return dead_letters.find(limit=limit, after=after, backend=settings.alias, **wanted)


def faults_of(settings: Settings, filters: Mapping[str, Any], limit: int) -> Faults:
    """Return the most frequent faults among the newest dead letters."""
    with explained(settings.database):
        return Search(settings, Filter(**filters)).faults(limit)


def kind_of(letter: Any) -> str:
    """Return the exception class of a dead letter or fault without its module, or the reason."""
    return letter.exception_class.rpartition(".")[2] or str(letter.reason)


def call_in_list(
    settings: Settings, letter: DeadLetter, *, reveal: bool = False
) -> ShownCall | None:
    """Return the arguments of a dead letter; None = they cannot be read or are too large."""
    package = bytes(letter.package)
    if len(package) > LARGEST_IN_LISTS_BYTES:
        return None
    return opened_call(settings, package, reveal=reveal)


def facts_of(letter: DeadLetter) -> list[Fact]:
    """Return the details of a dead letter."""
    by = f" by {letter.closed_by}" if letter.closed_by else ""
    closed = f"{exactly(letter.closed_at)}{by}: {letter.closed_because}".rstrip(": ")
    return given(
        Fact("Task", letter.task or "unknown task", "task" if letter.task else ""),
        Fact("Queue", letter.queue, "queue"),
        Fact("Reason", letter.reason),
        Fact("Unique key", letter.key),
        Fact("Failed", letter.failed_at),
        Fact("Failed first", letter.first_failed_at if letter.failure_count > 1 else None),
        Fact("Failures", letter.failure_count, hint="How many of its jobs have failed for good"),
        Fact("Requeued", plural(letter.requeued_count, "time")),
        Fact("Job", letter.job_id, "job", "The job that failed last"),
        Fact("Attempts", letter.attempts, hint="Of the job that failed last"),
        Fact(
            "Fault",
            letter.fingerprint,
            "dead-letters",
            "The same for all failures with the same error at the same place",
        ),
        Fact("Closed", closed if letter.closed_at else None),
    )


def columns(row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the named columns of a row as values for JSON."""
    return {name: getattr(row, name) for name in names}


def requeue_text(requeue: Requeue) -> str:
    """Describe a requeue: time, person, new job and reason."""
    who = {
        Requeue.By.PERSON: f"by {requeue.by}" if requeue.by else "by hand",
        Requeue.By.POLICY: "by its policy",
        Requeue.By.SUCCESSOR: "by a newer job with its key",
    }[Requeue.By(requeue.kind)]
    because = f": {requeue.because}" if requeue.because else ""
    return f"{exactly(requeue.requeued_at)}, {who}, as job {requeue.job_id}{because}"


def attempt_text(attempt: Attempt) -> str:
    """Describe an attempt: end, outcome and error."""
    what = first_line(f"{attempt.exception_class}: {attempt.message}", 200)
    return (
        f"{exactly(attempt.finished_at)}  job {attempt.job_id}, attempt {attempt.number}, "
        f"{attempt.kind}: {what}"
    )


# -- operations -----------------------------------------------------------------------------------


def _requeue(operator: Operator, letter_id: str | UUID, **options: Any) -> Done:
    """Requeue a dead letter. The options are those of ``dead_letters.requeue``."""
    return answered(dead_letters.requeue(letter_id, **operator.signed, **options))


def _undo(operator: Operator, letter_id: str | UUID) -> Done:
    return answered(dead_letters.undo_requeue(letter_id, **operator.signed))


def _discard(operator: Operator, letter_id: str | UUID) -> Done:
    letter = dead_letters.letter_of(operator.settings, letter_id)
    if dead_letters.discard(letter.pk, **operator.signed):
        return answered(Answer(letter.pk, Fate.DISCARDED))
    letter = dead_letters.letter_of(operator.settings, letter.pk)
    if letter.state == DeadLetter.State.REQUEUED:
        because = f"job {letter.successor_id} continues it: cancel that job first"
        return answered(Answer(letter.pk, Fate.UNDER_WAY, letter.successor_id, because))
    return answered(Answer(letter.pk, Fate.CLOSED, None, f"it is {letter.state}"))


def letter_ids(settings: Settings, ids: Sequence[UUID]) -> list[UUID]:
    """Replace the ids of jobs that failed last by those of their dead letters. The API takes both.
    Leave other ids as they are."""
    with explained(settings.database):
        letters = DeadLetter.objects.using(settings.database).filter(job_id__in=ids)
        letter_of = dict(letters.values_list("job_id", "pk"))
    return [letter_of.get(one, one) for one in ids]


def undo_together(operator: Operator, jobs: Mapping[UUID, UUID]) -> dict[UUID, str]:
    """Undo requeues in one transaction, except those whose jobs have begun.

    Args:
        jobs: dead letter -> the job that it was requeued as.

    Returns:
        Dead letter -> why its requeue was not undone; "" = it was.
    """
    rows = DeadLetter.objects.using(operator.settings.database).filter(pk__in=list(jobs))
    successors = dict(rows.values_list("pk", "successor_id"))
    refusals = dict.fromkeys(jobs, "its job has ended, or it was requeued again")
    letter_ids = [pk for pk, job_id in jobs.items() if successors.get(pk) == job_id]
    if letter_ids:
        signed = (operator.by, operator.because)
        for answer in take_back_together(operator.settings, letter_ids, *signed):
            done = answered(answer)
            refusals[answer.dead_letter_id] = "" if done.is_good else done.sentence
    return refusals


def _purge(
    operator: Operator, _found: str, *, older_than: timedelta, state: str, limit: int
) -> Done:
    bulk = dead_letters.purge(older_than, state=state, limit=limit, backend=operator.alias)
    return Done(f"{plural(bulk.done, 'dead letter')} purged.", count=bulk.done, value=bulk)


def purge(
    operator: Operator, older_than: timedelta, *, state: str, limit: int, dry_run: bool
) -> Bulk:
    """Delete old dead letters for good, and record how many. The arguments are those of
    ``dead_letters.purge``."""
    terms: Any = {"older_than": older_than, "state": state, "limit": limit}
    if dry_run:
        return dead_letters.purge(**terms, dry_run=True, backend=operator.alias)
    found = f"state={state}, older than {duration(older_than.total_seconds())}"
    bulk: Bulk = PURGE.perform(operator, found, **terms).value
    return bulk


def answered(answer: Answer) -> Done:
    """Return the answer to an operation on one dead letter."""
    letter_id = str(answer.dead_letter_id)
    if answer.fate is Fate.REQUEUED:
        sentence = f"Requeued as job {answer.job_id}. This can be undone until that job begins."
        return Done(sentence, undo={"letter": letter_id}, value=answer)
    if answer.fate is Fate.TAKEN_BACK:
        return Done("The requeue is undone: the dead letter is open again.", value=answer)
    if answer.fate is Fate.DISCARDED:
        return Done("The dead letter is discarded.", value=answer)
    facts = {
        "fate": answer.fate.value,
        "job_id": answer.job_id,
        "dead_letter_id": answer.dead_letter_id,
    }
    because = (answer.because or answer.fate.value).rstrip(".")
    return Done(f"Nothing was done: {because}.", is_good=False, facts=facts, value=answer)


REQUEUE = Operation(
    "requeue",
    "letter",
    "stoker.requeue_deadletter",
    _requeue,
    undo="undo",
    things="dead letters",
    done="requeued",
)
UNDO = Operation(
    "undo",
    "letter",
    "stoker.requeue_deadletter",
    _undo,
    label="Undo the requeue",
    things="requeues",
    done="undone",
)
DISCARD = Operation(
    "discard",
    "letter",
    "stoker.discard_deadletter",
    _discard,
    question="Discard? The dead letter is closed and kept. Its job does not run again.",
    is_grave=True,
    things="dead letters",
    done="discarded",
)
PURGE = Operation(
    "purge",
    "letter",
    "stoker.purge_deadletter",
    _purge,
    has_batches=True,
    things="dead letters",
    done="purged",
)
OPERATIONS = (REQUEUE, UNDO, DISCARD, PURGE)


def bulk_of(answers: Sequence[Answer]) -> Bulk:
    """Combine the answers to operations on single dead letters into one."""
    others = [one for one in answers if one.fate not in SUCCESSES]
    return Bulk(len(answers), len(answers) - len(others), others)


def new_jobs_of(answers: Sequence[Answer]) -> list[tuple[UUID, UUID | None]]:
    """Return the requeued dead letters, each with its new job."""
    return [(one.dead_letter_id, one.job_id) for one in answers if one.fate is Fate.REQUEUED]


def perform_many(
    operation: Operation,
    operator: Operator,
    filters: Mapping[str, Any],
    many: Callable[..., Bulk],
    **options: Any,
) -> Bulk:
    """Requeue or discard the dead letters that match filters, and record how many.

    Args:
        many: ``dead_letters.requeue_many`` or ``discard_many``.
        options: its other arguments. They take precedence over filters.
    """
    wanted = {**filters, **options, **operator.signed}
    if options["dry_run"]:
        return many(**wanted)
    found = ", ".join(f"{name}={value}" for name, value in filters.items()) or "all"
    with operation.recorded_if_interrupted(operator, found):
        bulk = many(**wanted)
    if bulk.done:
        done = Done(f"{bulk.done:,} {operation.things} {operation.done}.", count=bulk.done)
        operation.record(operator, found, done)
    return bulk
