"""A requeue is taken back: the new job is withdrawn, and the dead letter is as it was before.

Only as long as no attempt of that job was begun. Whether it has begun is decided by its row: either
a claim has it, or we do. All is one transaction, and locks in the order of a requeue: where the job
waits, the keys of guards, the workflow, and the dead letter last.
"""

from __future__ import annotations

from uuid import UUID

from django.db import OperationalError, connections, transaction

from stoker.brokers import broker_for
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, PackageError, StokerError
from stoker.finding import task_of
from stoker.following.follow import record_taken_back, transaction_for
from stoker.guards.keys import unique_of
from stoker.models import Attempt, DeadLetter, Job, Requeue, UniqueKey
from stoker.models.conflicts import is_conflict
from stoker.models.halting import halt_again, halts_of
from stoker.models.stored_text import stored_text
from stoker.package import sealer_for

from .dead_letters import key_of
from .policies import cooldowns_us, policy_of
from .requeue import TRIES, Answer, Fate, is_alive


def take_back(settings: Settings, dead_letter_id: UUID, by: str, because: str) -> Answer:
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


def _take_back(settings: Settings, dead_letter_id: UUID, by: str, because: str) -> Answer | None:
    """None: it is not any more as it was seen."""
    alias = settings.database
    seen = DeadLetter.objects.using(alias).filter(pk=dead_letter_id).first()
    if seen is None:
        return Answer(dead_letter_id, Fate.GONE, None, "there is no such dead letter")
    if seen.state in (DeadLetter.State.RESOLVED, DeadLetter.State.DISCARDED):
        return Answer(seen.pk, Fate.CLOSED, None, f"it is {seen.state}")
    job_id = seen.successor_id
    if job_id is None or not is_alive(alias, job_id):
        return Answer(seen.pk, Fate.NOT_REQUEUED, None, "no job carries it on")
    told = f"sent again, and taken back{f' by {by}' if by else ''}"
    reason = stored_text(f"{told}: {because}" if because else told, 255)
    with transaction_for(alias, [job_id]):
        halts = halts_of(alias, job_id)
        was_waiting = broker_for(settings).withdraw([job_id])
        if not was_waiting or Attempt.objects.using(alias).filter(job_id=job_id).exists():
            transaction.set_rollback(True, using=alias)
            sentence = f"job {job_id} has begun: cancel that, or wait for its end"
            return Answer(seen.pk, Fate.UNDER_WAY, job_id, sentence)
        halt_again(alias, halts, seen.job_id)
        _hand_key_back(settings, seen, job_id)
        record_taken_back(settings, job_id, seen.job_id, reason)
        _note(alias, job_id, reason)
        if _reopen(settings, seen, job_id):
            return Answer(seen.pk, Fate.TAKEN_BACK, job_id)
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
