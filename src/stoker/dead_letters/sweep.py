"""The part of upkeep for dead letters: automatic requeues, reopening, and purging old ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from django.db import InterfaceError, OperationalError
from django.db.models import Q
from django.utils import timezone

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError
from stoker.jobs.backends import able_backends, retentions
from stoker.jobs.faults import reason_of
from stoker.models import DeadLetter, Job
from stoker.models.dead_letter import CLOSED
from stoker.setting_values import LetterRetention
from stoker.signals import tell
from stoker.store.locked_jobs import locked_letters
from stoker.store.prepared import any_of
from stoker.store.transactions import is_locked_out, skipping_locked

from .closing import purge_past
from .policy import policy_of
from .requeueing import requeue_due

AT_ONCE = 100
MOST = 1000
"""Maximum number of requeues or deletions per run, so that other upkeep is not delayed."""
REOPEN_SECONDS = POSTPONED_SECONDS = 60.0


class DeadLetterSweep:
    """The dead letters of one store. Several backends may have dead letters there: each is treated
    as its own backend says.

    Args:
        settings: the backend of the cluster that does upkeep.
        beat: called often, as a heartbeat.
    """

    def __init__(self, settings: Settings, beat: Callable[[], None]) -> None:
        self._settings = settings
        self._alias = settings.database
        self._beat = beat
        self._letters = DeadLetter.objects.using(self._alias)
        self._any_due = any_of(self._letters.due())
        self._reopen_at = 0.0

    def sweep(self) -> int:
        """Requeue due dead letters, and once a minute reopen those without a job. Return the number
        of requeues."""
        requeued = self._requeue() if self._any_due.fetch() else 0
        now = time.monotonic()
        if now >= self._reopen_at:
            self._reopen()
            self._reopen_at = now + REOPEN_SECONDS
        return requeued

    def purge(self) -> int:
        """Delete dead letters whose retention has ended. Return their number."""
        kept = retentions(self._settings, lambda one: one.keep_dead_letters)
        purged = sum(self._purge(rows, keep) for rows, keep in kept)
        if purged:
            tell("dead_letters_purged", count=purged)
        return purged

    def _purge(self, rows: Q, keep: LetterRetention) -> int:
        """Delete the dead letters among these rows whose retention has ended. Return their
        number."""
        limits = (*((state, keep.closed_seconds) for state in CLOSED), ("open", keep.open_seconds))
        purged = 0
        for state, seconds in limits:
            if seconds is not None:
                before = timezone.now() - timedelta(seconds=seconds)
                purged += purge_past(self._settings, state, before, rows, limit=MOST).done
                self._beat()
        return purged

    def _requeue(self) -> int:
        """Process each due dead letter once. Those that are not requeued are not due any more,
        unless another transaction holds a row that the requeue needs."""
        requeued = 0
        locked: set[UUID] = set()
        for _ in range(MOST // AT_ONCE):
            due = list(self._letters.due().exclude(pk__in=locked)[:AT_ONCE])
            for letter in due:
                try:
                    requeued += self._requeue_one(letter)
                except (BrokerUnavailable, OperationalError) as error:
                    if not is_locked_out(error):
                        raise
                    locked |= {letter.pk} | locked_letters(self._alias, due)
                    break  # wait for one lock in each page at most
                self._beat()
            if not due:
                break
        if requeued:
            tell("dead_letters_requeued", count=requeued)
        return requeued

    def _requeue_one(self, letter: DeadLetter) -> bool:
        """Requeue a dead letter. An error that is not the store's concerns only this one.

        If the driver of its broker is not installed here, as ``check`` reports, it is due again
        soon: a cluster that has the driver may do upkeep then.
        """
        try:
            return requeue_due(self._settings_of(letter), letter)
        except ConfigurationError:
            self._letters.postpone(letter, POSTPONED_SECONDS)
            return False
        except (BrokerUnavailable, InterfaceError, OperationalError):
            raise
        except Exception as error:  # noqa: BLE001 - otherwise the next run would end here, too
            self._letters.put_off(letter)
            tell("not_requeued", dead_letter_id=letter.pk, because=reason_of(error))
            return False

    def _settings_of(self, letter: DeadLetter) -> Settings:
        """Return the settings of the backend of a dead letter. If it may belong to several, return
        those of one with a policy for it: such a policy has set its due time."""
        able = able_backends(self._settings, letter.queue, bytes(letter.package))
        return next((one for one in able if policy_of(one, letter) is not None), self._settings)

    def _reopen(self) -> None:
        """Reopen requeued dead letters whose job was cancelled or removed."""
        last: UUID | None = None
        while True:
            later = self._letters.filter(state=DeadLetter.State.REQUEUED).order_by("pk")
            page = list((later.filter(pk__gt=last) if last else later)[:AT_ONCE])
            successors = [one.successor_id for one in page if one.successor_id]
            alive = Job.objects.using(self._alias).unended(successors)
            for letter in page:
                if letter.successor_id not in alive:
                    with skipping_locked():
                        self._letters.reopen(letter)
            self._beat()
            if len(page) < AT_ONCE:
                return
            last = page[-1].pk
