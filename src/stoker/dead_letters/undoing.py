"""Undo requeues: withdraw their jobs and open the dead letters again, in one transaction.

Jobs are withdrawn first, because nothing may be withdrawn while a workflow is locked. Then rows are
locked in the order of ``requeueing``: unique keys, keys of guards, dead letters, workflows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.guards.keys import unique_of
from stoker.guards.sequences import halt_again, halts_of
from stoker.jobs.package import sealer_for
from stoker.models import Attempt, DeadLetter, Job, Requeue, UniqueKey
from stoker.store.statements import with_keys
from stoker.tasks.registry import task_of
from stoker.values.text import stored_text
from stoker.workflows.follow import record_taken_back, transaction_for

from .entries import key_of
from .policy import cooldowns_us, policy_of
from .requeueing import LetterAnswer, LetterChanged, LetterFate, answers_without_job, repeated

UNDONE = "requeued, and undone"
"""The beginning of the reason of a job that was withdrawn because its requeue was undone."""


def take_back(settings: Settings, dead_letter_id: UUID, by: str, because: str) -> LetterAnswer:
    """Undo a requeue by withdrawing its job, if that has not started.

    Raises:
        BrokerUnavailable: the store is unreachable, or the dead letter changes too often.
    """
    return take_back_together(settings, [dead_letter_id], by, because)[0]


def take_back_together(
    settings: Settings, dead_letter_ids: Sequence[UUID], by: str, because: str
) -> list[LetterAnswer]:
    """Undo requeues in one transaction. The number of statements does not depend on the number of
    dead letters, unless they have unique keys or their steps are in chains.

    Returns:
        The answers in the order of the ids.
    """
    told = f"{UNDONE}{f' by {by}' if by else ''}"
    reason = stored_text(f"{told}: {because}" if because else told, 255)
    return repeated(
        settings, dead_letter_ids, lambda: _Undo(settings, dead_letter_ids, reason).run()
    )


class _Undo:
    """One attempt to undo requeues, in one transaction."""

    def __init__(self, settings: Settings, dead_letter_ids: Sequence[UUID], reason: str) -> None:
        self._settings = settings
        self._alias = settings.database
        self._ids = dead_letter_ids
        self._reason = reason
        self._letters = DeadLetter.objects.using(self._alias)

    def run(self) -> list[LetterAnswer]:
        found = {one.pk: one for one in with_keys(self._letters, self._ids)}
        answers = self._known(found)
        letters = {
            one.successor_id: one
            for pk, one in found.items()
            if pk not in answers and one.successor_id is not None
        }
        if letters:
            with transaction_for(self._alias, letters):
                answers |= self._withdraw(letters)
        return [answers[one] for one in self._ids]

    def _known(self, found: Mapping[UUID, DeadLetter]) -> dict[UUID, LetterAnswer]:
        """Return the answers for which no job needs to be withdrawn."""
        answers, alive = answers_without_job(self._alias, self._ids, found)
        for one, letter in found.items():
            job_id = letter.successor_id
            if one not in answers and job_id not in alive:
                because = "it is not requeued"
                if job_id is not None:
                    because = f"job {job_id}, which continued it, has ended"
                answers[one] = LetterAnswer(one, LetterFate.NOT_REQUEUED, None, because)
        return answers

    def _withdraw(self, letters: Mapping[UUID, DeadLetter]) -> dict[UUID, LetterAnswer]:
        """Withdraw the jobs that have not begun, and open their dead letters again.

        Args:
            letters: job -> the dead letter that it continues.
        """
        tried = self._tried(letters)
        untried = [job_id for job_id in letters if job_id not in tried]
        halts = halts_of(self._alias, untried)
        # The new jobs wait in the store on every broker. Others cannot undo a withdrawal.
        broker = broker_for(self._settings)
        gone = (broker.store or broker).withdraw(untried)
        if self._tried(gone):  # they were run and released since the first look
            raise LetterChanged
        back = {job_id: letter for job_id, letter in letters.items() if job_id in gone}
        if back:
            failed = {job_id: letter.job_id for job_id, letter in back.items()}
            self._hand_keys_back(back)
            halt_again(self._alias, [one for one in halts if one.job_id in failed], failed)
            self._note(gone)
            if not self._reopen(back):
                raise LetterChanged
            record_taken_back(self._settings, failed, self._reason)
        answers = {}
        for job_id, letter in letters.items():
            fate, because = LetterFate.TAKEN_BACK, ""
            if job_id not in back:
                fate = LetterFate.UNDER_WAY
                because = f"job {job_id} has begun: cancel that, or wait for its end"
            answers[letter.pk] = LetterAnswer(letter.pk, fate, job_id, because)
        return answers

    def _tried(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Return the jobs that have had an attempt."""
        attempts = Attempt.objects.using(self._alias).filter(job_id__in=job_ids)
        return set(attempts.values_list("job_id", flat=True)) if job_ids else set()

    def _hand_keys_back(self, letters: Mapping[UUID, DeadLetter]) -> None:
        """Give the unique keys back to the failed jobs."""
        packages = Job.objects.using(self._alias).packages(list(letters))
        wanted: set[tuple[UUID, UUID]] = set()
        for job_id, letter in letters.items():
            if key_of(letter.identity):
                wanted.add((UUID(letter.identity.rpartition(" ")[2]), job_id))
            try:
                package = sealer_for(self._settings).open(packages[job_id])
                claim = unique_of(task_of(package), package.args, package.kwargs)
            except (DatabaseError, InterfaceError):
                raise
            except Exception:  # noqa: BLE001, S112 - no other key can be computed
                continue
            if claim is not None:
                wanted.add((claim.key_id, job_id))
        keys = UniqueKey.objects.using(self._alias)
        for key_id, job_id in sorted(wanted):
            keys.return_to(key_id, job_id, letters[job_id].job_id)

    def _note(self, job_ids: Collection[UUID]) -> None:
        """Record in the history of the dead letters that these requeues were undone."""
        requeues = Requeue.objects.using(self._alias)
        rows = list(with_keys(requeues, job_ids))
        for row in rows:
            told = f"{row.because} ({self._reason})" if row.because else self._reason
            row.because = stored_text(told, 255)
        requeues.bulk_update(rows, ["because"])

    def _reopen(self, back: Mapping[UUID, DeadLetter]) -> bool:
        """Reopen the dead letters with their earlier counts, and start new cool-downs.

        Returns False if one of them has changed since it was read.
        """
        letters = list(back.values())
        again = [one.identity for one in letters if one.requeued_count > 1]
        history = Requeue.objects.using(self._alias).filter(identity__in=again)
        others = history.exclude(kind=Requeue.By.SUCCESSOR).exclude(pk__in=list(back))
        sent = {one.identity: one for one in others.order_by("requeued_at", "pk")} if again else {}
        allowed = []
        for letter in letters:
            policy = policy_of(self._settings, letter)
            if policy is not None and policy.allows(letter.requeued_count - 1):
                allowed.append(letter)
        return self._letters.take_back(letters, sent, cooldowns_us(self._settings, allowed))
