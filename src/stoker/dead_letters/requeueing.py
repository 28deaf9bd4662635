"""Requeue a dead letter: enqueue a new job and record it, in one transaction.

The new job has the arguments and options of the failed job. The options are those that the task has
now if that is asked for, or if the old package cannot be opened. The package is signed again. Its
id sorts right after the old id, so the new job takes the old one's place in the queue, and in a
sequence that the old one halts. It gets the guards that the task has now.

Rows are locked in this order, so that long transactions of callers cause no deadlock: first the
unique key, then the keys of guards, last the dead letter. If the dead letter has changed since it
was read, its UPDATE changes nothing and the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, connections

from stoker.brokers.adapters import broker_for
from stoker.compat import task_backends, task_signals
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, UnknownTask, UnreadablePackage
from stoker.guards.keys import UniqueClaim
from stoker.guards.sequences import pass_on
from stoker.guards.sweep import look_after
from stoker.jobs.faults import reason_of
from stoker.jobs.intake import Newcomers
from stoker.jobs.package import Package, refuse_other_function, sealer_for
from stoker.jobs.results import Commitment, Result
from stoker.jobs.sealing import Newcomer, Sealing
from stoker.jobs.states import package_of, progress_of_one
from stoker.models import DeadLetter, Job, Note, Requeue, UniqueKey
from stoker.signals import tell
from stoker.store.engines.sessions import explained
from stoker.store.statements import delete_by_key, with_keys
from stoker.store.transactions import TRIES, after_commit, is_conflict, pause_before_retry
from stoker.tasks.edited_arguments import restored
from stoker.tasks.registry import find_task, task_of
from stoker.values.ids import LINKED, following_job_id
from stoker.values.text import stored_text
from stoker.workflows.follow import WorkflowCancelled, reopen, transaction_for

from .entries import key_of
from .policy import policy_of


class LetterFate(Enum):
    """Outcome of an operation on a dead letter."""

    REQUEUED = "requeued"
    """A new job was enqueued."""
    TAKEN_BACK = "taken_back"
    """The requeue was undone: its job was withdrawn and the dead letter is open again."""
    DISCARDED = "discarded"
    """The dead letter was closed."""
    NEWER = "newer"
    """A newer job with the same unique key exists, and takes precedence."""
    UNDER_WAY = "under_way"
    """The requeued job has not ended yet. When undoing a requeue: its job has already started."""
    NOT_REQUEUED = "not_requeued"
    """There is no requeue to undo."""
    CLOSED = "closed"
    """The dead letter is resolved or discarded."""
    GONE = "gone"
    """The dead letter does not exist."""
    REFUSED = "refused"
    """No job can be enqueued; ``because`` says why."""


@dataclass(frozen=True, slots=True)
class LetterAnswer:
    """The outcome for one dead letter."""

    dead_letter_id: UUID
    fate: LetterFate
    job_id: UUID | None = None
    """The new job, or the existing one."""
    because: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """The parameters of a requeue, with the person and the reason."""

    by: str = ""
    because: str = ""
    kind: str = Requeue.By.PERSON
    args: Sequence[Any] | None = None
    """New arguments; None = the arguments of the failed job."""
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    run_after: datetime | timedelta | float | None = None
    current_options: bool = False
    """Whether the new job gets the options that its task has now, such as ``max_attempts`` and
    ``timeout``, instead of those of the failed job."""


class LetterChanged(Exception):
    """A dead letter has changed since it was read."""


def requeue(settings: Settings, dead_letter_id: UUID, wish: Wish) -> LetterAnswer:
    """Requeue a dead letter. Concurrent calls never create two live jobs for it."""
    return requeue_together(settings, [dead_letter_id], wish)[0]


def requeue_together(
    settings: Settings, dead_letter_ids: Sequence[UUID], wish: Wish
) -> list[LetterAnswer]:
    """Requeue dead letters in one transaction. The number of statements does not depend on the
    number of dead letters, unless they have unique keys or halt sequences.

    Returns:
        The answers in the order of the ids.
    """
    return repeated(
        settings, dead_letter_ids, lambda: _Requeue(settings, dead_letter_ids, wish).run()
    )


def repeated(
    settings: Settings, dead_letter_ids: Sequence[UUID], attempt: Callable[[], list[LetterAnswer]]
) -> list[LetterAnswer]:
    """Perform an operation on dead letters. Repeat it if another transaction has changed one of
    them meanwhile.

    Args:
        attempt: makes one transaction, and raises LetterChanged to undo it.

    Raises:
        BrokerUnavailable: the store is unreachable, or the dead letters change too often.
    """
    is_ours = not connections[settings.database].in_atomic_block
    for tries_left in reversed(range(TRIES)):
        try:
            return attempt()
        except LetterChanged:
            if not tries_left:
                which = ", ".join(map(str, dead_letter_ids[:3]))
                raise BrokerUnavailable(
                    f"The dead letter {which} changes faster than it can be read, or the open "
                    "transaction does not see what others have committed: try again."
                ) from None
        except (BrokerUnavailable, OperationalError) as error:
            if not (tries_left and is_ours and is_conflict(error)):
                raise
        pause_before_retry()
    raise AssertionError("the loop returns or raises")


def requeue_due(settings: Settings, letter: DeadLetter) -> bool:
    """Requeue a dead letter whose cool-down has ended, if its policy still allows it.

    Whatever the result, it is not due again before its next failure.

    Returns:
        Whether a new job was enqueued.
    """
    policy = policy_of(settings, letter)
    answer = None
    if policy is not None and policy.allows(letter.requeued_count):
        number = f"{letter.requeued_count + 1} of {policy.max_requeues}"
        wish = Wish(because=f"requeue {number}", kind=Requeue.By.POLICY)
        try:
            answer = requeue(settings, letter.pk, wish)
        except WorkflowCancelled as refusal:
            answer = LetterAnswer(letter.pk, LetterFate.REFUSED, None, str(refusal))
    if answer is None or answer.fate is not LetterFate.REQUEUED:
        DeadLetter.objects.using(settings.database).put_off(letter)
        if answer is not None and answer.fate is LetterFate.REFUSED:
            tell("not_requeued", dead_letter_id=letter.pk, because=answer.because)
        return False
    return True


def answers_without_job(
    alias: str, ids: Sequence[UUID], seen: Mapping[UUID, DeadLetter]
) -> tuple[dict[UUID, LetterAnswer], set[UUID]]:
    """Return the answers about dead letters that do not exist or are closed, and the jobs that
    continue dead letters and have not ended."""
    answers = {}
    for one in ids:
        letter = seen.get(one)
        if letter is None:
            because = "there is no such dead letter"
            answers[one] = LetterAnswer(one, LetterFate.GONE, None, because)
        elif letter.state in (DeadLetter.State.RESOLVED, DeadLetter.State.DISCARDED):
            answers[one] = LetterAnswer(one, LetterFate.CLOSED, None, f"it is {letter.state}")
    successors = [one.successor_id for one in seen.values() if one.successor_id is not None]
    return answers, Job.objects.using(alias).unended(successors)


class _Requeue:
    """One attempt to requeue dead letters, in one transaction."""

    def __init__(self, settings: Settings, dead_letter_ids: Sequence[UUID], wish: Wish) -> None:
        self.broker = broker_for(settings)
        self.commitment = Commitment()
        self._settings = settings
        self._alias = settings.database
        self._ids = dead_letter_ids
        self._wish = wish
        self._letters = DeadLetter.objects.using(self._alias)
        self._neglected: set[UUID] = set()
        self._queues: set[str] = set()

    def run(self) -> list[LetterAnswer]:
        found = {one.pk: one for one in with_keys(self._letters, self._ids)}
        # In the order of the ids: the first one gets a unique key that several need.
        seen = {one: found[one] for one in self._ids if one in found}
        answers = self._known(seen)
        newcomers: list[tuple[DeadLetter, Newcomer]] = []
        for letter in seen.values():
            if letter.pk not in answers:
                try:
                    newcomers.append((letter, self._newcomer(letter)))
                except (DatabaseError, InterfaceError):
                    raise
                except Exception as error:  # noqa: BLE001 - the task's own callables may raise anything
                    because = reason_of(error)
                    answers[letter.pk] = LetterAnswer(letter.pk, LetterFate.REFUSED, None, because)
        results: Sequence[Result[Any]] = ()
        if newcomers:
            with transaction_for(self._alias, [letter.job_id for letter, _ in newcomers]):
                sent, results = self._send(newcomers)
                answers |= sent
                after_commit(self._alias, self._commit)
        sender = type(task_backends[self._settings.alias])
        for result in results:
            task_signals.task_enqueued.send_robust(sender, task_result=result)
        return [answers[one] for one in self._ids]

    def _known(self, seen: Mapping[UUID, DeadLetter]) -> dict[UUID, LetterAnswer]:
        """Return the answers about dead letters that need no new job."""
        answers, alive = answers_without_job(self._alias, self._ids, seen)
        for one, letter in seen.items():
            job_id = letter.successor_id
            if one not in answers and job_id in alive:
                because = f"job {job_id} continues it already"
                answers[one] = LetterAnswer(one, LetterFate.UNDER_WAY, job_id, because)
        return answers

    def _newcomer(self, seen: DeadLetter) -> Newcomer:
        old, is_readable = self._opened(seen)
        sealing = Sealing(self._settings, self._task(seen, old), self.commitment)
        args, kwargs = self._call(old)
        (fresh,) = sealing.seal([(args, kwargs)], old.options)
        is_same_call = self._wish.args is None and self._wish.kwargs is None
        claim = fresh.claim
        if claim is None and is_same_call:
            claim = _claim_of(seen.identity)
        options = old.options
        if self._wish.current_options or not is_readable:
            options = replace(fresh.package.options, about=options.about)
        job_id = following_job_id(seen.job_id)
        if options.hooks:  # the task may have got them since
            job_id = UUID(int=job_id.int | LINKED)
        package = replace(
            fresh.package,
            job_id=job_id,
            options=replace(
                options,
                identity=seen.identity,
                expires_at=fresh.package.options.expires_at,
            ),
            metadata=old.metadata,
        )
        message = replace(
            fresh.message,
            job_id=job_id,
            package=sealer_for(self._settings).seal(package),
            stays_in_store=True,  # a part of this transaction, whatever the broker is
        )
        result = replace(fresh.result, id=str(job_id))
        claim = claim and claim._replace(on_conflict="keep")
        return Newcomer(package, message, result, claim)

    def _opened(self, seen: DeadLetter) -> tuple[Package, bool]:
        """Open the package. If it is unreadable, new arguments replace it, and its options are
        unknown. Return whether it is readable, too."""
        try:
            return sealer_for(self._settings).open(bytes(seen.package)), True
        except UnreadablePackage as error:
            if self._wish.args is None and self._wish.kwargs is None:
                raise UnreadablePackage(f"{error} Give its arguments to requeue it.") from error
            return Package(seen.job_id, seen.task, (), {}, seen.queue, seen.priority, 0.0), False

    def _call(self, old: Package) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the new job. Hidden values that an operator did not see stay as
        they are.

        Raises:
            ValueError: there is no old value to put in the place of a hidden one, or the job would
                call another function.
        """
        args, kwargs = self._wish.args, self._wish.kwargs
        args = old.args if args is None else restored(tuple(args), old.args)
        kwargs = old.kwargs if kwargs is None else restored(dict(kwargs), old.kwargs)
        refuse_other_function(old, args)
        return args, kwargs

    def _task(self, seen: DeadLetter, old: Package) -> Any:
        task = task_of(old) if old.task else find_task(seen.task)
        changes: dict[str, Any] = {
            "queue_name": self._wish.queue or seen.queue,
            "priority": seen.priority,
            "backend": self._settings.alias,
        }
        if self._wish.run_after is not None:
            changes["run_after"] = self._wish.run_after
        return task.using(**changes)

    def _send(
        self, newcomers: Sequence[tuple[DeadLetter, Newcomer]]
    ) -> tuple[dict[UUID, LetterAnswer], list[Result[Any]]]:
        """Enqueue the jobs and record them. Return the answers, and the results of new jobs."""
        keyed = [(one.claim.key_id, seen.job_id) for seen, one in newcomers if one.claim]
        for key_id, job_id in sorted(keyed):
            UniqueKey.objects.using(self._alias).release(key_id, job_id)
        calls = [one for _, one in newcomers]
        stored, self._neglected = Newcomers(self._settings, self.commitment, calls).store()
        ends = [(letter, result) for (letter, _), result in zip(newcomers, stored, strict=True)]
        self._note(ends)
        answers, jobs = {}, {}
        for seen, result in ends:
            job_id = UUID(result.id)
            if result.was_duplicate:
                sentence = f"the newer job {job_id} has its key"
                answers[seen.pk] = LetterAnswer(seen.pk, LetterFate.NEWER, job_id, sentence)
            else:
                answers[seen.pk] = LetterAnswer(seen.pk, LetterFate.REQUEUED, job_id)
                jobs[seen.job_id] = job_id
        if jobs:
            Note.objects.using(self._alias).hand_on(jobs)
        self._queues = {one.message.queue for seen, one in newcomers if seen.job_id in jobs}
        self._queues |= pass_on(self._alias, jobs | self._newer(ends))
        if not jobs:
            return answers, []
        wish = self._wish
        requeued = [seen for seen, _ in newcomers if seen.job_id in jobs]
        if not self._letters.note_requeues(requeued, jobs, wish.by, wish.because):
            raise LetterChanged
        reopen(self._alias, jobs, revives=wish.kind != Requeue.By.POLICY)
        return answers, [result for result in stored if not result.was_duplicate]

    def _newer(self, ends: Sequence[tuple[DeadLetter, Result[Any]]]) -> dict[UUID, UUID]:
        """Return failed job -> the newer job that has its key, if that has not ended."""
        newer = {seen.job_id: UUID(one.id) for seen, one in ends if one.was_duplicate}
        alive = Job.objects.using(self._alias).unended(newer.values())
        return {failed: job_id for failed, job_id in newer.items() if job_id in alive}

    def _note(self, ends: Sequence[tuple[DeadLetter, Result[Any]]]) -> None:
        """Store a row for each requeue, or for the newer job that has the key of the dead
        letter."""
        requeues = Requeue.objects.using(self._alias)
        newer: list[Requeue] = []
        sent: list[Requeue] = []
        for seen, result in ends:
            note = Requeue(
                job_id=UUID(result.id),
                identity=seen.identity,
                from_job_id=seen.job_id,
                kind=Requeue.By.SUCCESSOR if result.was_duplicate else self._wish.kind,
                by=stored_text(self._wish.by, 150),
                because=stored_text(self._wish.because, 255),
            )
            (newer if result.was_duplicate else sent).append(note)
        requeues.bulk_create(newer, ignore_conflicts=True)
        delete_by_key(requeues, [one.pk for one in sent])  # successors, for the enqueue
        requeues.bulk_create(sent)

    def _commit(self) -> None:
        self.commitment.is_made = True
        if self._neglected:
            look_after(self._alias, self._neglected)
        if self._queues:
            self.broker.wake_up(self._queues)


def _claim_of(identity: str) -> UniqueClaim | None:
    """Return the unique key that ``using(unique=...)`` gave to the failed job, from the
    identity."""
    name = key_of(identity)
    if not name:
        return None
    key_id = UUID(identity.rpartition(" ")[2])
    return UniqueClaim(key_id, name, "finished", 0, "keep", 0, None, blocks_overlap=False)


@dataclass(frozen=True, slots=True)
class Again:
    """The outcome of running a job again."""

    result: Result[Any] | None
    """Result of the new job, or of the job with the same unique key; None = there is neither."""
    because: str = ""
    """Why no job was enqueued; "" = a job was enqueued."""


def run_again(settings: Settings, job_id: UUID) -> Again:
    """Enqueue the same call again, in the same queue with the same priority.

    A job with an open dead letter is refused: requeue the dead letter instead, otherwise the call
    would be made twice.

    Raises:
        TaskResultDoesNotExist: the job does not exist.
        StokerError: as ``enqueue``.
    """
    progress = progress_of_one(settings, job_id)
    job, package = progress.job, package_of(settings, progress.job)
    if job is None or package is None:
        return Again(None, "Its package cannot be opened here, so it cannot run again.")
    if job.status is None:
        return Again(None, "It has not ended.")
    with explained(settings.database):
        letters = DeadLetter.objects.using(settings.database).unclosed().filter(job_id=job_id)
        if letters.exists():
            return Again(None, "It has a dead letter: requeue that instead.")
    if package.options.receives or package.options.about:
        because = "Its arguments came from another step of its workflow: retry that step."
        return Again(None, because)
    if package.options.each:
        return Again(None, "It makes several calls of a map: enqueue the map again.")
    try:
        task = task_of(package) if package.options.via else find_task(job.task)
    except UnknownTask as error:
        return Again(None, str(error))
    task = task.using(queue_name=job.queue, priority=job.priority, backend=settings.alias)
    result = task.enqueue(*package.args, **package.kwargs)
    if result.was_duplicate:
        return Again(result, "A job with the same unique key exists already: this one.")
    return Again(result)
