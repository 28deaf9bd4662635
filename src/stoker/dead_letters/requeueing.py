"""Requeue: a job that carries on a dead letter, in one transaction with the note of it.

The new job has the arguments and options of the one that failed, sealed again, and an id that sorts
right after its: it takes that job's place in line, also at the head of a sequence that was halted.
Its guards are those that the task has by now.

Nothing is locked that a caller's long transaction may hold while others wait for it: first the
unique key, then the keys of guards, and the dead letter last, by an UPDATE that changes nothing if
it is not any more as it was seen. Then all of it is taken back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from django.db import OperationalError, connections, transaction

from stoker.brokers.adapters import broker_for
from stoker.compat import InvalidTask, task_backends, task_signals
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    PackageError,
    StokerError,
    UnknownTask,
    UnreadablePackage,
)
from stoker.guards.keys import UniqueClaim, unique_of
from stoker.guards.sequences import halt_again, halts_of, pass_on
from stoker.guards.sweep import look_after
from stoker.jobs.intake import Newcomer, Newcomers
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.results import Commitment, Result
from stoker.jobs.sealing import Sealing
from stoker.jobs.states import explained, package_of, progress_of_one
from stoker.models import Attempt, DeadLetter, Job, Note, Requeue, UniqueKey
from stoker.signals import tell
from stoker.store.transactions import after_commit, is_conflict
from stoker.tasks.registry import find_task, task_of
from stoker.values.ids import following_job_id
from stoker.values.text import stored_text
from stoker.workflows.follow import record_taken_back, reopen, transaction_for

from .entries import key_of
from .policy import cooldowns_us, policy_of

TRIES = 10
RETRY_SECONDS = 0.05


class LetterFate(Enum):
    """What became of what was to be done about a dead letter."""

    REQUEUED = "requeued"
    """There is a new job."""
    TAKEN_BACK = "taken_back"
    """Its requeue was undone: the job is withdrawn, and it is open again."""
    DISCARDED = "discarded"
    """It is closed."""
    NEWER = "newer"
    """There is a newer job of the same unique key already: that one wins."""
    UNDER_WAY = "under_way"
    """It was sent again before, and that job has not ended; or has begun, so that this cannot be
    undone."""
    NOT_REQUEUED = "not_requeued"
    """There is nothing to undo: no job carries it on."""
    CLOSED = "closed"
    """It is resolved or discarded."""
    GONE = "gone"
    """There is no such dead letter."""
    REFUSED = "refused"
    """No job can be made of it; ``because`` says why."""


@dataclass(frozen=True, slots=True)
class LetterAnswer:
    """What became of one dead letter."""

    dead_letter_id: UUID
    fate: LetterFate
    job_id: UUID | None = None
    """The new job; or the one that is there already."""
    because: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """How a dead letter is to be sent again, who says so, and why."""

    by: str = ""
    because: str = ""
    kind: str = Requeue.By.PERSON
    args: Sequence[Any] | None = None
    """None = those of the job that failed."""
    kwargs: Mapping[str, Any] | None = None
    queue: str | None = None
    run_after: datetime | timedelta | float | None = None


class _Changed(Exception):
    """The dead letter is not any more as it was seen."""


def requeue(settings: Settings, dead_letter_id: UUID, wish: Wish) -> LetterAnswer:
    """Send a dead letter again. Never makes two jobs that are alive of one, whoever else tries."""
    alias = settings.database
    is_ours = not connections[alias].in_atomic_block
    for tries_left in reversed(range(TRIES)):
        try:
            return _Requeue(settings, dead_letter_id, wish).run()
        except _Changed:
            if not tries_left:
                raise BrokerUnavailable(
                    f"The dead letter {dead_letter_id} changes faster than it can be looked at, or "
                    "the open transaction does not see what others have committed: try again."
                ) from None
        except (BrokerUnavailable, OperationalError) as error:
            if not (tries_left and is_ours and is_conflict(error)):
                raise
        time.sleep(RETRY_SECONDS * random.random())  # noqa: S311 - to get out of step
    raise AssertionError("the loop returns or raises")


def requeue_due(settings: Settings, letter: DeadLetter) -> bool:
    """Send this dead letter again, whose cool-down is over, if its policy still says so. Whatever
    comes of it, it does not fall due again before it has failed again.

    Returns:
        Whether there is a new job.
    """
    policy = policy_of(settings, letter)
    answer = None
    if policy is not None and policy.allows(letter.requeued_count):
        number = f"{letter.requeued_count + 1} of {policy.max_requeues}"
        wish = Wish(because=f"requeue {number}", kind=Requeue.By.POLICY)
        answer = requeue(settings, letter.pk, wish)
    if answer is None or answer.fate is not LetterFate.REQUEUED:
        DeadLetter.objects.using(settings.database).put_off(letter)
        if answer is not None and answer.fate is LetterFate.REFUSED:
            tell("not_requeued", dead_letter_id=letter.pk, because=answer.because)
        return False
    return True


class _Requeue:
    """One try. Also the line that its newcomer is in."""

    def __init__(self, settings: Settings, dead_letter_id: UUID, wish: Wish) -> None:
        self.broker = broker_for(settings)
        self.commitment = Commitment()
        self._settings = settings
        self._alias = settings.database
        self._id = dead_letter_id
        self._wish = wish
        self._letters = DeadLetter.objects.using(self._alias)
        self._sealing: Sealing | None = None
        self._neglected: set[UUID] = set()
        self._queues: set[str] = set()

    def run(self) -> LetterAnswer:
        seen = self._letters.filter(pk=self._id).first()
        if seen is None:
            return LetterAnswer(self._id, LetterFate.GONE, None, "there is no such dead letter")
        known = self._known(seen)
        if known is not None:
            return known
        try:
            newcomer = self._newcomer(seen)
        except (StokerError, InvalidTask, TypeError, ValueError) as error:
            return LetterAnswer(self._id, LetterFate.REFUSED, None, _sentence(error))
        with transaction_for(self._alias, [seen.job_id]):
            answer, result = self._send(seen, newcomer)
            after_commit(self._alias, self._commit)
        if answer.fate is LetterFate.REQUEUED:
            sender = type(task_backends[self._settings.alias])
            task_signals.task_enqueued.send_robust(sender, task_result=result)
        return answer

    def again(self, newcomer: Newcomer, job_id: UUID, run_after: float | None) -> Newcomer:
        """See ``Line``."""
        assert self._sealing is not None
        return self._sealing.again(newcomer, job_id, run_after)

    def _known(self, seen: DeadLetter) -> LetterAnswer | None:
        """The answer, where none is to be made."""
        if seen.state in (DeadLetter.State.RESOLVED, DeadLetter.State.DISCARDED):
            return LetterAnswer(self._id, LetterFate.CLOSED, None, f"it is {seen.state}")
        if seen.successor_id is not None and is_alive(self._alias, seen.successor_id):
            sentence = f"job {seen.successor_id} carries it on already"
            return LetterAnswer(self._id, LetterFate.UNDER_WAY, seen.successor_id, sentence)
        return None

    def _newcomer(self, seen: DeadLetter) -> Newcomer:
        old = self._opened(seen)
        task = self._task(seen, old)
        self._sealing = Sealing(self._settings, task, self.commitment)
        args = old.args if self._wish.args is None else tuple(self._wish.args)
        kwargs = old.kwargs if self._wish.kwargs is None else dict(self._wish.kwargs)
        (fresh,) = self._sealing.seal([(args, kwargs)], old.options)
        is_same_call = self._wish.args is None and self._wish.kwargs is None
        claim = fresh.claim
        if claim is None and is_same_call:
            claim = _claim_of(seen.identity)
        job_id = following_job_id(seen.job_id)
        package = replace(
            fresh.package,
            job_id=job_id,
            options=replace(
                old.options,
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
        return Newcomer(package, message, result, claim and claim._replace(on_conflict="keep"))

    def _opened(self, seen: DeadLetter) -> Package:
        """What is said anew need not be read."""
        try:
            return sealer_for(self._settings).open(bytes(seen.package))
        except UnreadablePackage as error:
            if self._wish.args is None and self._wish.kwargs is None:
                raise UnreadablePackage(f"{error} Say its arguments to send it again.") from error
            return Package(seen.job_id, seen.task, (), {}, seen.queue, seen.priority, 0.0)

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

    def _send(self, seen: DeadLetter, newcomer: Newcomer) -> tuple[LetterAnswer, Result[Any]]:
        if newcomer.claim is not None:
            UniqueKey.objects.using(self._alias).let_go(newcomer.claim.key_id, seen.job_id)
        (result,), self._neglected = Newcomers(self, [newcomer]).store()
        job_id = UUID(result.id)
        requeues = Requeue.objects.using(self._alias)
        note = Requeue(
            job_id=job_id,
            identity=seen.identity,
            from_job_id=seen.job_id,
            kind=Requeue.By.SUCCESSOR if result.was_duplicate else self._wish.kind,
            by=stored_text(self._wish.by, 150),
            because=stored_text(self._wish.because, 255),
        )
        if result.was_duplicate:
            requeues.bulk_create([note], ignore_conflicts=True)
            sentence = f"the newer job {job_id} has its key"
            return LetterAnswer(self._id, LetterFate.NEWER, job_id, sentence), result
        requeues.filter(pk=job_id).delete()  # it was noted as any newer job of the key is
        requeues.bulk_create([note])
        Note.objects.using(self._alias).hand_on(seen.job_id, job_id)
        self._queues = {newcomer.message.queue} | pass_on(self._alias, seen.job_id, job_id)
        wish = self._wish
        if not self._letters.note_requeue(seen, job_id, wish.by, wish.because):
            raise _Changed
        reopen(self._alias, seen.job_id, job_id)
        return LetterAnswer(self._id, LetterFate.REQUEUED, job_id), result

    def _commit(self) -> None:
        self.commitment.is_made = True
        if self._neglected:
            look_after(self._alias, self._neglected)
        if self._queues:
            self.broker.wake_up(self._queues)


def is_alive(alias: str, job_id: UUID) -> bool:
    """Whether that job has not ended."""
    return Job.objects.using(alias).filter(pk=job_id, status=None).exists()


def _claim_of(identity: str) -> UniqueClaim | None:
    """The key that the failed job was given by ``using(unique=...)``, which the task does not know
    of."""
    name = key_of(identity)
    if not name:
        return None
    key_id = UUID(identity.rpartition(" ")[2])
    return UniqueClaim(key_id, name, "finished", 0, "keep", 0, None, blocks_overlap=False)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def take_back(settings: Settings, dead_letter_id: UUID, by: str, because: str) -> LetterAnswer:
    """Withdraw the job that carries this dead letter on, if it has not begun.

    Raises:
        BrokerUnavailable: the store cannot be reached, or the letter changes faster than it can be
            looked at.
    """
    is_ours = not connections[settings.database].in_atomic_block
    for tries_left in reversed(range(TRIES)):
        try:
            answer = _take_back(settings, dead_letter_id, by, because)
        except (BrokerUnavailable, OperationalError) as error:
            if not (tries_left and is_ours and is_conflict(error)):
                raise
        else:
            if answer is not None:
                return answer
    raise BrokerUnavailable(
        f"The dead letter {dead_letter_id} changes faster than it can be looked at: try again."
    )


def _take_back(
    settings: Settings, dead_letter_id: UUID, by: str, because: str
) -> LetterAnswer | None:
    """None: it is not any more as it was seen."""
    alias = settings.database
    seen = DeadLetter.objects.using(alias).filter(pk=dead_letter_id).first()
    if seen is None:
        return LetterAnswer(dead_letter_id, LetterFate.GONE, None, "there is no such dead letter")
    if seen.state in (DeadLetter.State.RESOLVED, DeadLetter.State.DISCARDED):
        return LetterAnswer(seen.pk, LetterFate.CLOSED, None, f"it is {seen.state}")
    job_id = seen.successor_id
    if job_id is None or not is_alive(alias, job_id):
        return LetterAnswer(seen.pk, LetterFate.NOT_REQUEUED, None, "no job carries it on")
    told = f"sent again, and taken back{f' by {by}' if by else ''}"
    reason = stored_text(f"{told}: {because}" if because else told, 255)
    with transaction_for(alias, [job_id]):
        halts = halts_of(alias, job_id)
        was_waiting = broker_for(settings).withdraw([job_id])
        if not was_waiting or Attempt.objects.using(alias).filter(job_id=job_id).exists():
            transaction.set_rollback(True, using=alias)
            sentence = f"job {job_id} has begun: cancel that, or wait for its end"
            return LetterAnswer(seen.pk, LetterFate.UNDER_WAY, job_id, sentence)
        halt_again(alias, halts, seen.job_id)
        _hand_key_back(settings, seen, job_id)
        record_taken_back(settings, job_id, seen.job_id, reason)
        _note(alias, job_id, reason)
        if _reopen(settings, seen, job_id):
            return LetterAnswer(seen.pk, LetterFate.TAKEN_BACK, job_id)
        transaction.set_rollback(True, using=alias)
    return None


def _hand_key_back(settings: Settings, seen: DeadLetter, job_id: UUID) -> None:
    """Its unique key belongs to the job that failed, as before."""
    key_ids = {UUID(seen.identity.rpartition(" ")[2])} if key_of(seen.identity) else set()
    row = Job.objects.using(settings.database).filter(pk=job_id).first()
    if row is not None:
        try:
            package = sealer_for(settings).open(bytes(row.package))
            claim = unique_of(task_of(package), package.args, package.kwargs)
            key_ids |= {claim.key_id} if claim is not None else set()
        except (PackageError, StokerError):  # then it has no key of other arguments
            pass
    keys = UniqueKey.objects.using(settings.database)
    for key_id in sorted(key_ids):
        keys.hand_back(key_id, job_id, seen.job_id)


def _note(alias: str, job_id: UUID, reason: str) -> None:
    """The history says both: that it was sent again, and that this was taken back."""
    rows = Requeue.objects.using(alias).filter(pk=job_id)
    for because in rows.values_list("because", flat=True):
        told = f"{because} ({reason})" if because else reason
        rows.update(because=stored_text(told, 255))


def _reopen(settings: Settings, seen: DeadLetter, job_id: UUID) -> bool:
    """With the count that it had; also the next requeue by itself is due again, counted from now.
    False: it is not any more as it was seen."""
    alias = settings.database
    history = Requeue.objects.using(alias).filter(identity=seen.identity).exclude(pk=job_id)
    sent = history.exclude(kind=Requeue.By.SUCCESSOR).order_by("-requeued_at", "-pk").first()
    policy = policy_of(settings, seen)
    cooldown_us = None
    if policy is not None and policy.allows(seen.requeued_count - 1):
        cooldown_us = cooldowns_us(settings, [seen]).get(seen.identity)
    return DeadLetter.objects.using(alias).take_back(seen, sent, cooldown_us)


@dataclass(frozen=True, slots=True)
class Again:
    """What became of a wish to run a job again."""

    result: Result[Any] | None
    """Of the new job, or of the one that has its unique key; None = there is none."""
    because: str = ""
    """Why no job was made; "" = there is a new one."""


def run_again(settings: Settings, job_id: UUID) -> Again:
    """Enqueue the same call once more, in the same queue with the same priority. Not where a dead
    letter is there to be sent again: that would not know of it, and the call be made twice.

    Raises:
        TaskResultDoesNotExist: there is no such job.
        StokerError: as ``enqueue``.
    """
    progress = progress_of_one(settings, job_id)
    job, package = progress.job, package_of(settings, progress.job)
    if job is None or package is None:
        return Again(None, "Its package cannot be opened here, so it cannot be run again.")
    if job.status is None:
        return Again(None, "It has not ended.")
    with explained(settings.database):
        letters = DeadLetter.objects.using(settings.database).unclosed().filter(job_id=job_id)
        if letters.exists():
            return Again(None, "It has a dead letter: requeue that instead.")
    if package.options.receives or package.options.about:
        because = "What it was given came from another step of its workflow: retry that."
        return Again(None, because)
    try:
        task = task_of(package) if package.options.via else find_task(job.task)
    except UnknownTask as error:
        return Again(None, str(error))
    task = task.using(queue_name=job.queue, priority=job.priority, backend=settings.alias)
    result = task.enqueue(*package.args, **package.kwargs)
    if result.was_duplicate:
        return Again(result, "There is a job of the same unique key already: this one.")
    return Again(result)
