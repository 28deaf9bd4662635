"""Record the outcomes of attempts, and end their leases. The outcome is recorded first, then the
lease is acked. If the lease is in the store, both happen in one transaction. An attempt with a
stale lease changes nothing.

::

    Succeeded                      ack      job: SUCCESSFUL
    Cancelled                      ack      job: CANCELLED             attempt
    Failed                         ack      job: FAILED, dead letter   attempt
    Retried                        release  after its delay            attempt
    Snoozed                        release  after its delay, attempt not counted
    Crashed, TimedOut              as Snoozed, Retried or Failed (see retries.py)

A job whose cancellation was requested is never released to run again: it ends as CANCELLED.
Then the workflows and hooks of the ended jobs continue (stoker.workflows.follow).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from stoker.brokers.contract import Lease, Leases, Return, Unrecorded
from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings
from stoker.dead_letters.entries import bury, resolve
from stoker.exceptions import BrokerUnavailable, LeaseLost, PackageError
from stoker.models import Attempt, Cancellation, DeadLetter, Job
from stoker.signals import post_execute
from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, delete_of_jobs, lock_by_key, with_keys
from stoker.workflows.follow import follow, transaction_for

from . import outcomes
from .cached_results import keep
from .failures import announce, as_attempt, as_ended
from .faults import plain_fault
from .once import has_not_begun
from .outcomes import Attempted, Batch, Failed, Outcome, Retried, Snoozed, Tallies, Verdict
from .package import Package, sealer_for
from .retries import decide_crashed, decide_killed, import_task, note_snoozes

CHECKED_SHARE = 0.25
"""Share of a lease. If less than this is left, the recorder asks the broker whether the lease is
still valid."""

Settle = Callable[[Leases, Sequence[Return], Collection[UUID]], object]
"""Function that acks the leases of its first argument and releases those of its second. The third
argument holds the ids of jobs that became dead letters."""


class WorkerCrashed(Exception):
    """Error class in the record of an attempt whose worker process died; never raised."""


class TaskKilled(Exception):
    """Error class in the record of an attempt killed at its hard time-out; never raised."""


class LeftOut(BrokerUnavailable):
    """A broker outside the store did not answer, so the outcomes that need it (``leases``) are not
    recorded. All others of the batch are, except those with ``stale`` leases."""

    def __init__(self, errors: Mapping[Lease, BrokerUnavailable], stale: set[Lease]) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.leases = frozenset(errors)
        self.stale = stale


def finish(
    settings: Settings,
    broker: Dispatch,
    attempted: Sequence[Attempted],
    *,
    is_again: bool = False,
    tallies: Tallies | None = None,
) -> set[Lease]:
    """Record finished attempts and end their leases.

    Args:
        settings: the backend's.
        broker: the broker that granted the leases.
        attempted: attempts with outcomes that workers reported.
        is_again: whether an earlier call raised an error. It may have recorded the attempts.
        tallies: counts the recorded outcomes; None = they are not counted.

    Returns:
        The stale leases. Other clusters have these jobs; nothing was recorded for them.

    Raises:
        LeftOut: a broker outside the store did not answer. It has the stale leases, too. All
            other outcomes are recorded.
    """
    recorder = Recorder(settings, broker, tallies)
    return recorder.record(Batch.of(attempted), is_again=is_again)


class Recorder:
    """Records batches.

    Args:
        settings: settings of the backend.
        broker: the broker that granted the leases.
        tallies: counts the recorded outcomes; None = they are not counted.
        settle: called with the leases of a broker outside the store after their outcomes are
            recorded; None = they are settled with the broker at once.
        clock_ns: the clock for the validity of leases.
    """

    def __init__(
        self,
        settings: Settings,
        broker: Dispatch,
        tallies: Tallies | None = None,
        settle: Settle | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._settings = settings
        self._alias = settings.database
        self._engine = engine_of(settings.database)
        self._broker = broker
        self._count: Callable[[Batch], object] = tallies.add if tallies else lambda _: None
        self._settle_outside = settle or self._settle
        self._clock_ns = clock_ns

    def record(self, batch: Batch, *, is_again: bool = False) -> set[Lease]:
        """Record a batch. Arguments, result and errors: as ``finish``."""
        self._decide(batch)
        recorded = self._recorded(batch) if is_again else set()
        is_inside = {one: self._broker.is_inside(one) for one in set(batch.lease_ids)}
        if all(is_inside.values()):
            return self._record_inside(batch, recorded) - recorded
        inside = batch.where(lambda place: is_inside[batch.lease_ids[place]])
        outside = batch.where(lambda place: not is_inside[batch.lease_ids[place]])
        stale = self._record_inside(inside, recorded) if len(inside) else set()
        gone, errors = self._record_outside(outside, recorded)
        stale = (stale | gone) - recorded
        if errors:
            raise LeftOut(errors, stale) from next(iter(errors.values()))
        return stale

    def record_in_task(self, attempted: Attempted) -> bool:
        """Record a success in the open transaction of its atomic task.

        Returns:
            Whether the lease has ended. A lease of a broker outside the store has not: if it were
            acked before the commit, the job could be lost. ``record`` acks it after the commit.

        Raises:
            LeaseLost: another cluster has the job, or has recorded it.
        """
        batch = Batch.of([attempted])
        batch.decide({})
        is_inside = self._broker.is_inside(attempted.delivery.lease_id)
        if is_inside:
            stale = self._record_inside(batch, ())
        else:
            self._describe(batch)
            doubtful = self._doubtful(batch)
            stale = self._check(doubtful) or set[Lease]().union(*self._record_rest(batch, ()))
        if stale:
            raise LeaseLost("The lease was lost before the job could be recorded as done.")
        return is_inside

    def _decide(self, batch: Batch) -> None:
        """Decide the outcome of each attempt that did not succeed."""
        decided = dict(batch.seen)
        for place, seen in batch.seen.items():
            if isinstance(seen, outcomes.Crashed | outcomes.TimedOut):
                decided[place] = self._decide_unseen(batch, place, seen)
            else:
                import_task(batch.tasks[place], seen)
        again = {at: one for at, one in decided.items() if isinstance(one, Retried | Snoozed)}
        if again:
            job_ids = dict(zip(again, batch.ids(again), strict=True))
            reasons = Cancellation.objects.using(self._alias).reasons_of(list(job_ids.values()))
            for place, outcome in again.items():
                if (reason := reasons.get(job_ids[place])) is not None:
                    decided[place] = outcomes.Cancelled(reason, instead_of=outcome)
        batch.decide(decided)

    def _decide_unseen(
        self, batch: Batch, place: int, seen: outcomes.Crashed | outcomes.TimedOut
    ) -> Outcome:
        """Decide the outcome of an attempt whose worker crashed or was killed."""
        package = self._package_of(batch, place)
        task = import_task(package.task if package else "", seen)
        options = self._settings if package is None else package.options
        attempt, crashes = batch.attempts[place], batch.crashes[place] + 1
        if isinstance(seen, outcomes.TimedOut):
            return decide_killed(plain_fault(TaskKilled, seen.detail), options, attempt, task)
        fault = plain_fault(WorkerCrashed, seen.detail)
        unbegun = partial(has_not_begun, self._settings, package)
        return decide_crashed(seen, fault, options, attempt, crashes, unbegun)

    def _recorded(self, batch: Batch) -> set[Lease]:
        """Return the leases whose attempts are already recorded as ended."""
        over = batch.over()
        places = {job_id: place for place, job_id in enumerate(over.ids())}
        ended = with_keys(Job.objects.using(self._alias).exclude(status=None), list(places))
        return {
            over.leases[place]
            for job_id, attempts, worker_id in ended.values_list("pk", "attempts", "worker_id")
            for place in [places[job_id]]
            if attempts == over.attempts[place] and worker_id == over.worker_ids[place]
        }

    # -- leases in the store ----------------------------------------------------------------------

    def _record_inside(self, batch: Batch, recorded: Collection[Lease]) -> set[Lease]:
        """Settle the leases in the store and record the outcomes, in one transaction."""
        rowless = self._rowless(batch)
        write = self._finishing(batch, rowless)
        with self._transaction(batch):
            stale = self._settle(*_leases_of(batch))
            if gone := stale.union(recorded):
                batch = batch.without(gone)
                write = self._finishing(batch, rowless)
            entries = self._carry_on(batch, rowless)
            write()
        self._tell(batch, entries)
        return stale

    def _settle(
        self, over: Leases, again: Sequence[Return], failed: Collection[UUID]
    ) -> set[Lease]:
        return self._broker.settle(over, again, failed=failed)

    def _finishing(self, batch: Batch, rowless: Collection[str]) -> Callable[[], object]:
        """Return a function that writes the results of the ended jobs whose rows are kept."""
        over = batch.over()
        if rowless:
            over = over.where(lambda place: over.job_ids[place] not in rowless)
        return self._engine.finish_jobs(over) if len(over) else lambda: None

    # -- leases of a broker outside the store -----------------------------------------------------

    def _record_outside(
        self, batch: Batch, recorded: Collection[Lease]
    ) -> tuple[set[Lease], dict[Lease, BrokerUnavailable]]:
        """Record the outcomes in the store, then settle the leases at the broker. Return the stale
        leases, and lease -> error for the outcomes that are left out."""
        stale: set[Lease] = set()
        errors: dict[Lease, BrokerUnavailable] = {}
        if self._broker.finishes:
            stale, errors, batch = self._finish_at_broker(self._at_once(batch), batch)
        gone, unchecked = self._check_reachable(self._doubtful(batch))
        stale |= gone
        errors |= unchecked
        batch = batch.without(gone | unchecked.keys())
        if len(batch):
            self._record_valid(batch, recorded)
        return stale, errors

    def _record_valid(self, batch: Batch, recorded: Collection[Lease]) -> None:
        """Record outcomes in the store, then settle their leases at the broker."""
        todo = batch.without(recorded)
        self._describe(todo)
        rowless = self._rowless(todo)
        rest = self._add(todo, rowless)
        if len(rest):
            ended, _ = self._record_rest(rest, rowless)
            again = {at: one for at, one in batch.decided.items() if batch.leases[at] not in ended}
            batch.decide(again)  # the leases of jobs that have ended are acked
            done = rest.succeeded()
            self._count(done.where(lambda at: done.leases[at] in ended))  # by atomic tasks
        self._settle_outside(*_leases_of(batch))

    def _finish_at_broker(
        self, plain: Batch, batch: Batch
    ) -> tuple[set[Lease], dict[Lease, BrokerUnavailable], Batch]:
        """Let the broker record what succeeded at once (``plain``). Return the stale leases, lease
        -> error for outcomes that are left out, and those left to be recorded in the store."""
        if not len(plain):
            return set(), {}, batch
        try:
            finished = self._broker.finish(plain, plain.leases)
        except BrokerUnavailable as error:
            finished = Unrecorded(set(), set(), plain.leases, error)
        errors = dict.fromkeys(finished.unanswered, finished.error) if finished.error else {}
        self._tell(plain.without(finished.stale | finished.returned | errors.keys()), ())
        job_ids = set(plain.without(finished.returned).job_ids)
        rest = batch.where(lambda place: batch.job_ids[place] not in job_ids)
        return finished.stale, errors, rest

    def _doubtful(self, batch: Batch) -> Batch:
        """Return the outcomes whose leases end soon."""
        soon_ns = self._clock_ns() + round(CHECKED_SHARE * self._settings.lease_seconds * 1e9)
        if min(batch.valid_until_ns, default=soon_ns) >= soon_ns:  # nearly always
            return batch.take([])
        return batch.where(lambda place: batch.valid_until_ns[place] < soon_ns)

    def _check(self, doubtful: Batch) -> set[Lease]:
        """Extend the leases that end soon, so that no other cluster takes over these jobs while
        they are recorded, unless this process is suspended. Return the stale leases."""
        if not len(doubtful):
            return set()
        seconds = self._settings.lease_seconds
        return self._broker.extend(doubtful.leases, lease_seconds=seconds)

    def _check_reachable(
        self, doubtful: Batch
    ) -> tuple[set[Lease], dict[Lease, BrokerUnavailable]]:
        """Extend the leases that end soon. Return the stale leases, and lease -> error for those
        whose server does not answer."""
        if not len(doubtful):
            return set(), {}
        seconds = self._settings.lease_seconds
        try:
            answer = self._broker.extend_unlocked(doubtful.leases, lease_seconds=seconds)
        except BrokerUnavailable as error:
            return set(), dict.fromkeys(doubtful.leases, error)
        failure = BrokerUnavailable("One of the broker's servers does not answer.")
        return answer.stale, dict.fromkeys(answer.locked, failure)

    def _describe(self, batch: Batch) -> None:
        """Fill in the tasks and enqueue times that the workers' reports do not contain."""
        if all(batch.tasks) and None not in batch.enqueued_at:  # nearly always
            return
        tasks, enqueued_at = list(batch.tasks), list(batch.enqueued_at)
        for place in range(len(batch)):
            if not tasks[place] or enqueued_at[place] is None:
                package = self._package_of(batch, place)
                tasks[place] = package.task if package else ""
                enqueued_at[place] = package.enqueued_at if package else 0.0
        batch.tasks, batch.enqueued_at = tasks, enqueued_at

    def _add(self, batch: Batch, rowless: Collection[str]) -> Batch:
        """Insert the jobs that have no row yet, together with their results. Plain successes need
        only this statement. Return the other jobs."""
        if not self._engine.inserts_ended:
            return batch
        rows = batch.where(lambda place: batch.job_ids[place] not in rowless) if rowless else batch
        own = nullcontext() if rows.is_plain else self._transaction(rows)
        with own:
            known: set[str] = set()
            if len(rows):
                known = self._engine.insert_ended(rows)
            new = rows.where(lambda place: rows.job_ids[place] not in known) if known else rows
            # No job that continues a dead letter was added.
            entries = self._carry_on(new, (), resolves=False)
        self._tell(new, entries)
        return batch.among(known.union(rowless))

    def _record_rest(self, batch: Batch, rowless: Collection[str]) -> tuple[set[Lease], set[Lease]]:
        """Record jobs that the store may have already: from an earlier attempt, or from a process
        that recorded this attempt and died before it acked the lease. Result: as ``_known``.

        The outcome of an attempt that is recorded as failed counts only if it ends the job and the
        broker confirms its lease. This happens if a rescued job may not run again, or if the broker
        has restored the job from a backup.
        """
        needed = {job_id for job_id in batch.job_ids if job_id not in rowless}
        needed.update(batch.job_ids[place] for place in batch.marked)
        confirmed: set[Lease] = set()
        refused: set[Lease] = set()
        while True:
            with self._transaction(batch):
                ended, failed = self._known(batch, batch.among(needed))
                failed -= confirmed
                over = set(batch.leases) - {batch.leases[place] for place in batch.again}
                unsure = (failed & over) - ended - refused
                if not unsure:
                    left = batch.without(ended | failed)
                    entries = self._carry_on(left, rowless)
                    self._finishing(left, rowless)()
                    break
            # Not in the transaction, because the broker may be slow.
            stale = self._check(batch.without(set(batch.leases) - unsure))
            confirmed |= unsure - stale
            refused |= stale
        self._tell(left, entries)
        return ended, failed

    def _known(self, batch: Batch, rows: Batch) -> tuple[set[Lease], set[Lease]]:
        """Return the leases of jobs that have ended, and of attempts that have failed, according to
        the store: a process recorded them and died before it acked the leases, or this one was
        suspended. Insert ``rows``, those of the jobs that need one. All rows stay locked until the
        batch is written, because a broker's lease does not protect them."""
        job_ids = batch.ids()
        if len(rows):
            self._engine.ensure_jobs(rows)
        jobs = lock_by_key(Job.objects.using(self._alias), job_ids, "id", "status")
        rows = rows.among({*rows.job_ids} - {job.id.hex for job in jobs})
        if len(rows):  # a cancellation deleted them before they were locked
            return self._known(batch, rows)
        ended = {job.id for job in jobs if job.status is not None}
        attempts = Attempt.objects.using(self._alias).filter(job_id__in=job_ids)
        lost = set(attempts.values_list("job_id", "number"))
        attempts_of = zip(batch.leases, zip(job_ids, batch.attempts, strict=True), strict=True)
        failed = {lease for lease, attempt in attempts_of if attempt in lost}
        return {lease for lease in batch.leases if lease.job_id in ended}, failed

    # -- all of them ------------------------------------------------------------------------------

    def _transaction(self, batch: Batch) -> AbstractContextManager[Any]:
        if not batch.marked:
            return transaction.atomic(using=self._alias)
        return transaction_for(self._alias, batch.ids(batch.marked))

    def _rowless(self, batch: Batch) -> set[str]:
        """Return the ids of the jobs whose rows are deleted, as results are not kept or are in a
        cache."""
        if not self._settings.keeps_successes:
            return set(batch.succeeded().job_ids)
        if self._settings.results_cache is None:
            return set()
        return {job_id.hex for job_id in keep(self._settings, self._at_once(batch).jobs())}

    def _at_once(self, batch: Batch) -> Batch:
        """Return the jobs that succeeded at their first attempt and have no consequences."""
        succeeded = batch.succeeded()
        marked = set(succeeded.marked)
        at_once = succeeded.where(
            lambda at: succeeded.packages[at] and succeeded.attempts[at] == 1 and at not in marked
        )
        self._describe(at_once)
        return at_once

    def _carry_on(
        self, batch: Batch, rowless: Collection[str], *, resolves: bool = True
    ) -> list[DeadLetter]:
        """Process the consequences of a batch in the open transaction. Return the new dead letters.

        Args:
            batch: the attempts that are being recorded.
            rowless: the jobs whose rows are deleted.
            resolves: whether a success may close a dead letter.
        """
        entries = self._record_troubles(batch) if batch.decided else []
        succeeded = batch.succeeded().job_ids if resolves else ()
        if succeeded and self._engine.find_by_key("requeue_identities", succeeded):
            resolve(self._alias, succeeded)
        again = batch.again
        if marked := [place for place in batch.marked if place not in again]:
            follow(self._settings, [as_ended(one) for one in batch.verdicts(marked)])
        if rowless and (gone := batch.over().among(rowless).ids()):
            delete_of_jobs(Attempt.objects.using(self._alias), gone)
            delete_by_key(Job.objects.using(self._alias), gone)
        return entries

    def _record_troubles(self, batch: Batch) -> list[DeadLetter]:
        """Record the failed attempts, dead letters and snoozes. Return the new dead letters."""
        verdicts = batch.verdicts(batch.decided)
        snoozed = [one for one in verdicts if isinstance(one.outcome, Snoozed)]
        attempts = [as_attempt(one) for one in verdicts if not isinstance(one.outcome, Snoozed)]
        if attempts:
            Attempt.objects.using(self._alias).record(attempts)
        note_snoozes(self._alias, snoozed)
        failed = [
            (one.attempted, one.outcome) for one in verdicts if isinstance(one.outcome, Failed)
        ]
        return bury(self._settings, failed)

    def _tell(self, batch: Batch, entries: Sequence[DeadLetter]) -> None:
        """Send signals and log events. They are not repeated if settling the leases fails."""
        if batch.decided or entries or post_execute.receivers:
            announce(self._settings, batch, entries)
        self._count(batch)

    def _package_of(self, batch: Batch, place: int) -> Package | None:
        """Return the job's package without its arguments; None if it cannot be opened."""
        data = batch.packages[place]
        if not data:
            (job_id,) = batch.ids([place])
            data = Job.objects.using(self._alias).packages([job_id]).get(job_id, b"")
        try:
            return sealer_for(self._settings).open_without_arguments(data)
        except PackageError:
            return None


def _leases_of(batch: Batch) -> tuple[Leases, list[Return], set[UUID]]:
    """Return the leases of ended jobs, the releases of all others, and the ids of jobs that became
    dead letters."""
    if not batch.decided:  # nearly always
        return batch.leases, [], set()
    failed = [place for place, one in batch.decided.items() if isinstance(one, Failed)]
    again = [_return(one) for one in batch.verdicts(sorted(batch.again))]
    return batch.over().leases, again, set(batch.ids(failed))


def _return(verdict: Verdict) -> Return:
    attempts = verdict.attempted.delivery.attempt
    outcome = verdict.outcome
    if isinstance(outcome, Snoozed):
        attempts -= 1
    assert isinstance(outcome, Snoozed | Retried)
    return Return(verdict.lease, outcome.delay_seconds, attempts, verdict.crashes)
