"""Cancel jobs.

A waiting job is withdrawn and recorded as cancelled in one transaction. For a running job a request
is stored, which its cluster finds within a second.

A job that a broker outside the database has withdrawn is gone even if that transaction is rolled
back. So a request, and a row with the job's package, are committed first. If this process dies,
upkeep finds the request and finishes the work.

A job in the outbox of another database is cancelled in two transactions. That of the store commits
first, so it must not be part of one that may be rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from uuid import UUID

from django.db import OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from stoker.brokers.adapters import broker_for, brokers_beside
from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError, RowsLocked
from stoker.models import Cancellation, Job, Outgoing, Relayed, Step
from stoker.store.engines.sessions import explained
from stoker.store.locked_jobs import locked_waiting_jobs
from stoker.store.statements import delete_by_key, insert_with_packages, lock_by_key
from stoker.store.transactions import (
    after_commit,
    commits_by_hand,
    is_in_transaction,
    is_locked_out,
    repeat_if_aborted,
)
from stoker.values.text import stored_text
from stoker.workflows.follow import end_waiting, record_cancelled, transaction_for

from .backends import backend_of, backends_with
from .states import row_in_outbox, rows_at_broker

LONGEST_REASON = 255
REQUESTED = "its cancellation was requested"
"""Reason in a row that was inserted with a request. The job's end overwrites it."""
LOOKS = 5
"""How many times to look for a job. A single look may miss a job that moves between tables."""


def cancel(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a waiting job, or request the cancellation of a running one.

    Returns False if the job has ended or does not exist. For the arguments see ``cancel_waiting``.

    A job at a broker outside the database is withdrawn after the request was committed; within a
    transaction, when that commits. A job in the outbox of another database than the store's is
    cancelled when the transaction on the store's commits.

    Raises:
        TransactionManagementError: the job is in the outbox of another database, and autocommit is
            off on the store's. Nothing is changed.
        BrokerUnavailable: the store or the broker does not answer, and the job is in no outbox; or
            a database in whose outbox it may be does not answer.
    """
    reason = stored_text(reason, LONGEST_REASON)
    try:
        return _finish_request(settings, unstored.pk) or _cancel_anywhere(
            settings, unstored, reason
        )
    except RowsLocked:
        raise  # the store has answered
    except BrokerUnavailable:
        # If it was relayed from the outbox nevertheless, upkeep withdraws it at the broker.
        if _cancel_outgoing(settings, unstored, reason, keeps_request=True):
            return True
        raise


def _cancel_anywhere(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job in the store, at the broker or in an outbox, see ``cancel``."""
    alias, broker = settings.database, broker_for(settings)
    has_asked_outboxes = has_requested = False
    for _ in range(LOOKS):
        if not _is_stored(settings, unstored):
            unstored = _full_rows(settings, [unstored])[0]
        has_requested = _request(settings, unstored, reason)
        if has_requested and is_in_transaction(alias):
            return True
        may_withdraw = has_requested or not _forgets_withdrawn(broker)
        if may_withdraw and cancel_waiting(settings, unstored, reason):
            return True
        with explained(alias):
            place = broker.states([unstored.pk]).get(unstored.pk)
            if place is None and has_requested:  # another call has withdrawn it, or it has ended
                _sweep(settings, {unstored.pk: reason})
                return _is_cancelled(alias, unstored.pk)
            if place == "running":
                _forget_request_rows(settings, [unstored.pk])
                Cancellation.objects.using(alias).ask(unstored.pk, reason)
                # Its cluster may have released it just before it could see the request.
                after_commit(alias, partial(_cancel_released, settings, unstored, reason))
                return True
            if place is None and (has_asked_outboxes or _is_stored(settings, unstored)):
                return False
        if place is None:
            if broker.results([unstored.pk]):  # its row may still be in an outbox
                return False
            if not _was_relayed(alias, unstored.pk) and _cancel_outgoing(
                settings, unstored, reason
            ):
                return True
            has_asked_outboxes = True  # it may have been relayed just now
    return has_requested  # upkeep carries the request out


def _finish_request(settings: Settings, job_id: UUID) -> bool:
    """Finish the request of an earlier call that could not record the end of the job. Return
    whether the job is cancelled now."""
    alias = settings.database
    if not _forgets_withdrawn(broker_for(settings)) or is_in_transaction(alias):
        return False
    rows = Job.objects.using(alias).filter(pk=job_id)
    with explained(alias):
        if not rows.filter(status=None, reason=REQUESTED).exists():
            return False
        _sweep(settings, Cancellation.objects.using(alias).reasons_of([job_id]))
        return _is_cancelled(alias, job_id)


def _is_cancelled(alias: str, job_id: UUID) -> bool:
    return Job.objects.using(alias).filter(pk=job_id, status=Job.Status.CANCELLED).exists()


def _is_stored(settings: Settings, job: Job) -> bool:
    """Return whether the store has the job. If it has, the outboxes of other databases need not be
    searched."""
    return Job.objects.using(settings.database).filter(pk=job.pk).exists()


def _was_relayed(alias: str, job_id: UUID) -> bool:
    """Return whether the store has, or had, a job from an outbox. If the process that relayed it
    lost the outbox's database, the row is still there."""
    with explained(alias):
        return Relayed.objects.using(alias).filter(pk=job_id).exists()


def _forgets_withdrawn(broker: Dispatch) -> bool:
    """Return whether a withdrawn job is gone even if the transaction that records its end is rolled
    back."""
    can = broker.capabilities
    return can.look_up and not can.transactional


def _full_rows(settings: Settings, jobs: Sequence[Job]) -> list[Job]:
    """Return these unsaved rows with the packages and start times that the broker outside the
    database has, if the jobs are there."""
    found = rows_at_broker(settings, [job.pk for job in jobs])
    for job in jobs:
        if row := found.get(job.pk):
            job.package, job.run_after = row.package, row.run_after
            if row.task:  # the package could be opened
                job.task, job.queue, job.priority = row.task, row.queue, row.priority
                job.enqueued_at = row.enqueued_at
    return list(jobs)


def _request(settings: Settings, unstored: Job, reason: str) -> bool:
    """Store the request before a waiting job is withdrawn, so that upkeep can finish the work if
    this process dies. Within a transaction, withdraw the job after its commit. Return whether a
    request was stored."""
    alias, broker = settings.database, broker_for(settings)
    if not _forgets_withdrawn(broker):
        return False
    with explained(alias):
        if broker.states([unstored.pk]).get(unstored.pk, "running") == "running":
            return False
        _ask_with_rows(alias, [unstored], reason)
        if is_in_transaction(alias):
            after_commit(alias, partial(cancel_waiting, settings, unstored, reason))
    return True


def _cancel_released(settings: Settings, unstored: Job, reason: str) -> None:
    """Cancel a job that waits again. The request is stored first, see ``_request``."""
    if _request(settings, unstored, reason) or not _forgets_withdrawn(broker_for(settings)):
        cancel_waiting(settings, unstored, reason)


def _ask_with_rows(alias: str, unstored: Sequence[Job], reason: str) -> None:
    """Store requests for waiting jobs, together with their rows."""
    for job in unstored:
        job.reason = REQUESTED
    with transaction.atomic(using=alias):
        Cancellation.objects.using(alias).ask_all([job.pk for job in unstored], reason)
        insert_with_packages(Job.objects.using(alias), unstored, ignore_conflicts=True)


def _forget_request_rows(settings: Settings, job_ids: Collection[UUID]) -> None:
    """Delete the rows that were inserted with the requests, because these jobs have begun."""
    if _forgets_withdrawn(broker_for(settings)):
        rows = Job.objects.using(settings.database)
        with transaction.atomic(using=settings.database):
            locked = lock_by_key(rows, job_ids, "id", "status", "reason")
            own = [row.id for row in locked if (row.status, row.reason) == (None, REQUESTED)]
            delete_by_key(rows, own)


def sweep_requests(settings: Settings, beat: Callable[[], None] = lambda: None) -> int:
    """Finish the requests: cancel their jobs that wait, for example for a retry, and record as
    cancelled those that were withdrawn but not recorded. Return the number of deleted requests.

    Several backends may have jobs in the store: each job ends as its own backend says. If the
    broker of another backend does not answer, or its driver is not installed here, its clusters
    finish the requests.

    Args:
        beat: called often, as a heartbeat.
    """
    requests = Cancellation.objects.using(settings.database)
    count, page = 0, requests.page(None)
    while page:
        for one, reasons in _by_backend(settings, page):
            try:
                count += _sweep_unlocked(one, reasons, beat)
            except (BrokerUnavailable, ConfigurationError):
                if one == settings:
                    raise
            beat()
        page = requests.page([*page][-1])
    return count


def _by_backend(
    settings: Settings, reasons: Mapping[UUID, str]
) -> list[tuple[Settings, dict[UUID, str]]]:
    """Return the requests of each backend with this database. Those for jobs without a row count as
    requests of this backend, see ``_at_other_brokers``."""
    owners: dict[UUID, Settings] = {}
    if len(backends_with(settings)) > 1:
        unended = Job.objects.using(settings.database).filter(pk__in=reasons, status=None)
        for job_id, queue, package in unended.values_list("pk", "queue", "package"):
            owners[job_id] = backend_of(settings, queue, bytes(package))
    found: dict[Settings, dict[UUID, str]] = {}
    for job_id, reason in reasons.items():
        found.setdefault(owners.get(job_id, settings), {})[job_id] = reason
    return list(found.items())


def _sweep_unlocked(
    settings: Settings, reasons: Mapping[UUID, str], beat: Callable[[], None]
) -> int:
    """Finish these requests, except those for jobs that another transaction has locked. They are
    finished later. See ``sweep_requests``."""
    try:
        return _sweep(settings, reasons)
    except (BrokerUnavailable, OperationalError) as error:
        if not is_locked_out(error):
            raise
    beat()
    locked = locked_waiting_jobs(settings.database, reasons)
    free = {one: reason for one, reason in reasons.items() if one not in locked}
    if len(free) < len(reasons):
        return _sweep_unlocked(settings, free, beat) if free else 0
    if len(free) == 1:
        return 0
    first = dict(islice(free.items(), len(free) // 2))  # another row is locked: find its job
    rest = {one: reason for one, reason in free.items() if one not in first}
    return _sweep_unlocked(settings, first, beat) + _sweep_unlocked(settings, rest, beat)


def _sweep(settings: Settings, reasons: Mapping[UUID, str]) -> int:
    """Finish these requests, see ``sweep_requests``."""
    alias, broker = settings.database, broker_for(settings)
    outgoing: set[UUID] = set()
    if _forgets_withdrawn(broker):
        outgoing = {row.pk for row in broker.outgoing(list(reasons))}
    places = broker.states(list(reasons))
    others = _at_other_brokers(settings, reasons.keys() - places.keys())
    reasons = {job_id: reason for job_id, reason in reasons.items() if job_id not in others}
    waiting = [job_id for job_id in reasons if places.get(job_id, "running") != "running"]
    steps = _full_rows(settings, _steps(alias, waiting))
    jobs = [*Job.objects.using(alias).filter(pk__in=waiting), *steps]
    withdrawn = {job.pk for job in jobs if cancel_waiting(settings, job, reasons[job.pk])}
    absent = set(reasons) - set(places) - outgoing
    if _forgets_withdrawn(broker):
        succeeded = broker.results(list(absent))  # before their clusters saw the request
        _forget_request_rows(settings, succeeded)
        unrecorded = sorted(absent - succeeded.keys())
        _record_withdrawn(settings, {job_id: reasons[job_id] for job_id in unrecorded})
    settled = Job.objects.using(alias).filter(pk__in=reasons).exclude(status=None)
    ended = set(settled.values_list("pk", flat=True))
    # These were cancelled in an outbox, although the broker already had them.
    withdrawn |= broker.withdraw([one for one in waiting if one in ended and one not in withdrawn])
    # A cluster may have claimed the others meanwhile, and not have seen the request.
    at_rest = {job_id for job_id in ended if job_id not in places or job_id in withdrawn}
    gone = absent | (at_rest - outgoing)
    delete_by_key(Cancellation.objects.using(alias), gone)
    return len(gone)


def _at_other_brokers(settings: Settings, job_ids: Collection[UUID]) -> Collection[UUID]:
    """Return the jobs that another broker has, or that wait in an outbox for it, if its results are
    in the same database. Clusters of that broker finish the requests. If it does not answer, return
    all jobs."""
    found: set[UUID] = set()
    for other in brokers_beside(settings) if job_ids else ():
        try:
            assert other.broker is not None
            found |= other.broker.states(list(job_ids)).keys()
            found |= {row.pk for row in other.outgoing(job_ids)}
        except BrokerUnavailable:
            return job_ids
    return found


def _record_withdrawn(settings: Settings, reasons: Mapping[UUID, str]) -> None:
    """Record as cancelled the jobs that another process withdrew but could not record."""
    alias = settings.database
    steps = {job.pk: job for job in _steps(alias, reasons)}
    for job_id, reason in reasons.items():
        with explained(alias), transaction_for(alias, [job_id]):
            if job_id in steps:
                Job.objects.using(alias).bulk_create([steps[job_id]], ignore_conflicts=True)
            if _is_unended(alias, job_id):
                record_cancelled(settings, [job_id], reason)


def _steps(alias: str, job_ids: Iterable[UUID]) -> list[Job]:
    """Return unsaved rows for jobs of workflow steps that have no row."""
    steps = Step.objects.using(alias).filter(job_id__in=list(job_ids), state=Step.State.ENQUEUED)
    labels = {job_id: label for job_id, label in steps.values_list("job_id", "label") if job_id}
    stored = set(Job.objects.using(alias).filter(pk__in=labels).values_list("pk", flat=True))
    return [unstored_step(*one) for one in labels.items() if one[0] not in stored]


def unstored_step(job_id: UUID, label: str) -> Job:
    """Return an unsaved row for the job of a step that never began."""
    return Job(pk=job_id, task=label, queue="default", package=b"", enqueued_at=timezone.now())


def _is_unended(alias: str, job_id: UUID) -> bool:
    """Lock a job's row. Return whether it exists and the job has not ended."""
    rows = lock_by_key(Job.objects.using(alias), [job_id], "id", "status")
    return any(job.status is None for job in rows)


class _NotWaitingError(Exception):
    """Raised if the job does not wait. The transaction is rolled back."""


def cancel_waiting(settings: Settings, unstored: Job, reason: str) -> bool:
    """Cancel a job that waits in the store or the broker. Return False if it is running, has ended
    or does not exist; nothing is changed then.

    Args:
        settings: settings of the backend.
        unstored: the job as an unsaved row, for brokers that store no row at enqueue.
        reason: at most 255 characters are kept.
    """
    alias, cancel_once = settings.database, partial(_cancel_waiting, settings, unstored, reason)
    with suppress(_NotWaitingError), explained(alias):
        if _forgets_withdrawn(broker_for(settings)):  # a second try would not find the job
            cancel_once()
        else:
            repeat_if_aborted(alias, cancel_once)
        return True
    return False


def _cancel_waiting(settings: Settings, unstored: Job, reason: str) -> None:
    """See ``cancel_waiting``.

    Raises:
        _NotWaitingError: the job does not wait.
    """
    alias, broker = settings.database, broker_for(settings)
    with transaction_for(alias, [unstored.pk]):
        if _forgets_withdrawn(broker):  # upkeep waits for the lock on this row
            Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
            if not _is_unended(alias, unstored.pk):
                raise _NotWaitingError
        if not broker.withdraw([unstored.pk]):
            raise _NotWaitingError
        if not broker.capabilities.transactional:
            Job.objects.using(alias).bulk_create([unstored], ignore_conflicts=True)
            Cancellation.objects.using(alias).filter(pk=unstored.pk).delete()
        record_cancelled(settings, [unstored.pk], reason)


def cancel_those_outgoing(settings: Settings, job_ids: Sequence[UUID], reason: str) -> int:
    """Cancel the given jobs that are still in an outbox. Return their number."""
    reason = stored_text(reason, LONGEST_REASON)
    jobs = [row_in_outbox(row) for row in broker_for(settings).outgoing(job_ids)]
    # A process that has relayed a job and then lost the outbox has left its row there.
    return sum(_cancel_outgoing(settings, job, reason, keeps_request=True) for job in jobs)


def _cancel_outgoing(
    settings: Settings, unstored: Job, reason: str, *, keeps_request: bool = False
) -> bool:
    """Cancel a job that is still in an outbox; if the outbox is in another database than the
    store, after the commit of a transaction on the store's. Its outbox row stays locked until the
    end is recorded.

    Args:
        keeps_request: whether to store a request, too, because the broker may have the job.
    """
    alias = settings.database
    for row in broker_for(settings).outgoing([unstored.pk]):
        outbox = row._state.db
        if outbox != alias and is_in_transaction(alias):
            _refuse_commit_by_hand(alias, outbox, unstored.pk)
            after_commit(alias, partial(_cancel_committed, settings, unstored, reason))
            return True
        with transaction.atomic(using=outbox):
            if not Outgoing.objects.using(outbox).filter(pk=unstored.pk).delete()[0]:
                continue
            with explained(alias), transaction_for(alias, [unstored.pk]):
                full = row_in_outbox(row)
                Job.objects.using(alias).bulk_create([full], ignore_conflicts=True)
                record_cancelled(settings, [unstored.pk], reason)
                if keeps_request:
                    Cancellation.objects.using(alias).ask(unstored.pk, reason)
        return True
    return False


def _refuse_commit_by_hand(alias: str, outbox: str | None, job_id: UUID) -> None:
    """Raise TransactionManagementError if the caller commits by hand, which cannot be observed."""
    if commits_by_hand(connections[alias]):
        raise TransactionManagementError(
            f"Job {job_id} is in the outbox of the database {outbox!r}, and cannot be cancelled "
            f"while autocommit is off on the database {alias!r}: a rollback would lose the job. "
            "Commit, and turn autocommit on first, or cancel the job when a cluster has relayed it."
        )


def _cancel_committed(settings: Settings, unstored: Job, reason: str) -> None:
    """Cancel a job after the commit. Do nothing if a test calls this before the commit."""
    if not is_in_transaction(settings.database):
        cancel(settings, unstored, reason)


def cancel_those_waiting(settings: Settings, job_ids: Sequence[UUID], reason: str) -> int:
    """Cancel the given jobs that wait in the store. Return their number."""
    with explained(settings.database):
        return len(end_waiting(settings, job_ids, stored_text(reason, LONGEST_REASON)))


def cancel_those_outside(
    settings: Settings, queue: str, job_ids: Sequence[UUID], reason: str
) -> int:
    """Cancel the given jobs of a queue that wait in a broker outside the database. Return their
    number.

    Within a transaction, they are withdrawn when that commits, and all of them are counted.
    """
    alias, reason = settings.database, stored_text(reason, LONGEST_REASON)
    jobs = []
    for row in rows_at_broker(settings, job_ids).values():
        if not row.task:  # the package cannot be opened
            row.queue, row.enqueued_at = queue, timezone.now()
        jobs.append(row)
    if _forgets_withdrawn(broker_for(settings)):
        with explained(alias):
            _ask_with_rows(alias, jobs, reason)
    if not is_in_transaction(alias):
        return _cancel_asked(settings, jobs, reason)
    after_commit(alias, partial(_cancel_asked, settings, jobs, reason))
    return len(jobs)


def _cancel_asked(settings: Settings, jobs: Sequence[Job], reason: str) -> int:
    """Withdraw jobs and record that, in one transaction. Their requests end with it, also those
    for jobs that have started, which continue. Return the number of cancelled jobs."""
    alias, broker = settings.database, broker_for(settings)
    job_ids = [job.pk for job in jobs]
    requests = Cancellation.objects.using(alias)
    with explained(alias), transaction_for(alias, job_ids):
        if not _forgets_withdrawn(broker):
            insert_with_packages(Job.objects.using(alias), jobs, ignore_conflicts=True)
        rows = lock_by_key(Job.objects.using(alias), job_ids, "id", "status", "reason")
        gone = broker.withdraw([row.id for row in rows if row.status is None])
        record_cancelled(settings, gone, reason)
        asked = lock_by_key(requests, job_ids, "job_id", "reason")
        done = [row.job_id for row in asked if row.reason == reason or row.job_id in gone]
        delete_by_key(requests, done)
        _forget_request_rows(settings, set(job_ids) - gone)
    # Upkeep may have found some of the requests first.
    ended = [row for row in rows if (row.status, row.reason) == (Job.Status.CANCELLED, reason)]
    return len(gone) + len(ended)
