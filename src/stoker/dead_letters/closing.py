"""Discard and purge dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.guards.sequences import resume_after
from stoker.models import Attempt, DeadLetter, Job, Requeue
from stoker.models.dead_letter import CLOSED, DeadLetterQuerySet
from stoker.setting_values import checked_limit
from stoker.store.engines.sessions import explained
from stoker.store.statements import delete_by_key, delete_of_jobs, lock_by_key, with_keys
from stoker.store.transactions import after_commit
from stoker.values.progress import come_so_far

from .requeueing import LetterAnswer, LetterFate
from .search import Filter, Search

TRIES = 10
SEEN = ("id", "job_id", "identity", "state", "closed_at", "failed_at")
"""Fields that are read and later compared: a dead letter whose fields differ has changed."""
SEEN_OF = attrgetter(*SEEN)


def discard(settings: Settings, dead_letter_id: UUID, by: str, because: str) -> bool:
    """Close a dead letter without requeueing it. If the dead letter halts a sequence, the sequence
    continues.

    Returns:
        False if it is closed or missing, or if its requeued job has not ended yet: cancel it first.
    """
    alias = settings.database
    letters, jobs = DeadLetter.objects.using(alias), Job.objects.using(alias)
    for _ in range(TRIES):
        seen = letters.unclosed().filter(pk=dead_letter_id).first()
        if seen is None:
            return False
        if seen.successor_id and jobs.unended([seen.successor_id]):
            return False
        with transaction.atomic(using=alias):
            queues = resume_after(alias, [seen.job_id])
            if letters.close(seen, DeadLetter.State.DISCARDED, by, because):
                _call(settings, queues)
                return True
            transaction.set_rollback(True, using=alias)
    return False


def past(settings: Settings, state: str, before: datetime) -> DeadLetterQuerySet:
    """Return the dead letters that may be purged: closed before that moment, or open and last
    failed before it."""
    letters = DeadLetter.objects.using(settings.database).filter(state=state)
    if state in CLOSED:
        return letters.filter(closed_at__lt=before)
    if state == DeadLetter.State.OPEN:
        return letters.filter(failed_at__lt=before)
    return letters.none()  # a job continues it


def purge(settings: Settings, state: str, before: datetime, ids: Sequence[UUID]) -> int:
    """Delete the given dead letters that may be purged, with their history. Return their number."""
    alias = settings.database
    with transaction.atomic(using=alias):
        rows = with_keys(past(settings, state, before), ids)
        seen = set(rows.values_list(*SEEN))
        job_ids = [job_id for _, job_id, *_ in seen]
        queues = resume_after(alias, job_ids)
        letters = DeadLetter.objects.using(alias)
        locked = lock_by_key(letters, ids, *SEEN)
        gone = {row.id: row.identity for row in locked if SEEN_OF(row) in seen}
        delete_by_key(letters, list(gone))
        _forget_history(alias, list(gone.values()), job_ids)
        _call(settings, queues)
    return len(gone)


def _forget_history(alias: str, identities: Sequence[str], job_ids: Sequence[UUID]) -> None:
    """Delete the requeues of the given logical jobs, and the attempts of jobs that no longer
    exist."""
    requeues = Requeue.objects.using(alias)
    from_jobs = dict(requeues.filter(identity__in=identities).values_list("pk", "from_job_id"))
    delete_by_key(requeues, list(from_jobs))
    tried = {*job_ids, *from_jobs.values()}
    kept = set(with_keys(Job.objects.using(alias), tried).values_list("pk", flat=True))
    delete_of_jobs(Attempt.objects.using(alias), tried - kept)


def _call(settings: Settings, queues: set[str]) -> None:
    if queues:
        broker = broker_for(settings)
        after_commit(settings.database, lambda: broker.wake_up(queues))


AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Bulk:
    """The outcome of a bulk operation."""

    matched: int
    """Number of dead letters that the filters matched, up to the limit."""
    done: int
    """Number of dead letters that were requeued, discarded or purged; 0 with ``dry_run``."""
    others: Sequence[LetterAnswer] = ()
    """Answers for the dead letters that were not changed, with the reasons."""


def each(
    settings: Settings,
    wanted: Filter,
    act: Callable[[UUID], LetterAnswer],
    *,
    limit: int,
    pause_seconds: float,
    dry_run: bool,
) -> Bulk:
    """Apply an action to each open dead letter, oldest first. Each is processed once.

    Raises:
        ValueError: the filters ask for closed dead letters, or the limit is not a number above 0.
    """
    checked_limit(limit)
    if wanted.state not in (DeadLetter.State.OPEN, "unclosed"):
        raise ValueError(
            f"state={wanted.state!r}: only open dead letters can be requeued or discarded. Leave "
            "state out."
        )
    with explained(settings.database):
        rows = Search(settings, replace(wanted, state=DeadLetter.State.OPEN)).rows()
        ids = list(rows.order_by("failed_at", "pk").values_list("pk", flat=True)[:limit])
        if dry_run:
            return Bulk(len(ids), 0)
        answers = []
        for number, one in enumerate(ids):
            if number and pause_seconds:
                time.sleep(pause_seconds)
            answers.append(act(one))
            come_so_far(len(answers), len(ids))
    others = [one for one in answers if one.fate not in (LetterFate.REQUEUED, LetterFate.DISCARDED)]
    return Bulk(len(ids), len(answers) - len(others), others)


def purge_past(
    settings: Settings,
    state: str,
    before: datetime,
    among: Q | None = None,
    *,
    limit: int,
    dry_run: bool = False,
) -> Bulk:
    """Delete dead letters closed before that moment, or open and last failed before it.

    Args:
        state: a ``DeadLetter.State``, "closed", or "all" (closed and open).
        among: condition; None = all.
    """
    checked_limit(limit)
    matched = done = 0
    for one in _states(state):
        rows = past(settings, one, before).filter(among or Q())
        ids = list(rows.order_by("failed_at").values_list("pk", flat=True)[: limit - matched])
        matched += len(ids)
        come_so_far(done, matched)
        for start in range(0, 0 if dry_run else len(ids), AT_ONCE):
            done += purge(settings, one, before, ids[start : start + AT_ONCE])
            come_so_far(done, matched)
    return Bulk(matched, done)


def _states(state: str) -> Sequence[str]:
    groups: dict[str, Sequence[str]] = {"closed": CLOSED, "all": (*CLOSED, DeadLetter.State.OPEN)}
    return groups.get(state) or (DeadLetter.State(state),)
