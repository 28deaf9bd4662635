"""``sync=True``: run the call at once in this process, as a job.

It is sealed, claimed, executed and recorded like any other job, with one attempt. An exception of
the function is raised to the caller after the failure was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from django.db import DatabaseError, transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Delivery
from stoker.exceptions import ConfigurationError, JobFailed
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Succeeded
from stoker.jobs.record import finish
from stoker.jobs.results import Commitment
from stoker.jobs.sealing import Sealing
from stoker.models import Claimed, Job, Ready
from stoker.store.statements import delete_returning_guards
from stoker.store.written import database_now_us
from stoker.values.ids import new_lease_id

from . import conf

WORKER_ID = "sync"
LEASE_SECONDS = 86_400
"""Duration of the lease, which is not extended. If the process dies, the job becomes a dead letter
when the lease ends."""


@dataclass(slots=True)
class Inline:
    """A job that runs in its caller's process."""

    error: BaseException | None = None
    """The exception that the function raised."""
    announcements: list[Callable[[], object]] = field(default_factory=list)
    """Callbacks to run after the outcome was recorded, even if the caller's transaction is still
    open, because the caller reads the result next."""


inline: ContextVar[Inline | None] = ContextVar("stoker.django_q.inline", default=None)


def run_here(task: Any, *args: Any) -> str:
    """Run one job of this task. Return its id.

    Raises:
        Exception: any exception of the function. If it broke a transaction of the caller, the job
            is rolled back with it.
        JobFailed: the job failed before its function was called.
    """
    run = Inline()
    token = inline.set(run)
    try:
        job_id, has_succeeded = _run(task, *args)
    except DatabaseError:
        if run.error is None:
            raise
        # The function's error broke the caller's transaction, so its job could not be recorded.
        raise run.error from None
    finally:
        inline.reset(token)
    for announce in run.announcements:
        announce()
    if run.error is not None:
        raise run.error
    if not has_succeeded:
        raise JobFailed(f"Task {job_id} failed before its function was called.")
    return job_id


def _run(task: Any, *args: Any) -> tuple[str, bool]:
    """Return the id of the job, and whether it succeeded."""
    settings = conf.settings()
    broker = broker_for(settings)
    once = task.using(max_attempts=1, backend=settings.alias)
    (newcomer,) = Sealing(settings, once, Commitment()).seal([(args, {})])
    message = replace(newcomer.message, stays_in_store=True)  # whatever the broker is
    if not broker.joins(message):
        raise ConfigurationError(
            f"sync=True needs the database, and BROKER is {settings.shown_broker!r}."
        )
    with transaction.atomic(using=settings.database):
        # No other process sees the job before this transaction has claimed it.
        broker.enqueue([message])
        delivery = _claimed(settings.database, message.job_id)
    attempted = Executor(settings, worker_id=WORKER_ID).run(delivery)
    if not attempted.is_recorded:
        finish(settings, broker, [attempted])
    return message.job_id.hex, isinstance(attempted.outcome, Succeeded)


def _claimed(alias: str, job_id: UUID) -> Delivery:
    """Claim the job in the open transaction."""
    delete_returning_guards(Ready.objects.using(alias), [job_id])
    job = Job.objects.using(alias).get(pk=job_id)
    lease_id = new_lease_id()
    Claimed.objects.using(alias).create(
        job_id=job_id,
        lease_id=lease_id,
        holder=uuid4(),
        leased_until_us=database_now_us(alias) + LEASE_SECONDS * 1_000_000,
        queue=job.queue,
        rank=-job.priority,
        attempts=1,
    )
    return Delivery(job_id, lease_id, bytes(job.package), job.queue, job.priority, 1)
