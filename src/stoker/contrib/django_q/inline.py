"""``sync=True``: the call is made here and now, as a job: sealed, claimed, executed and recorded as
any other, once."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from django.db import transaction

from stoker.brokers import broker_for
from stoker.brokers.base import Delivery
from stoker.exceptions import ConfigurationError
from stoker.ids import new_lease_id
from stoker.lifecycle.execute import Executor
from stoker.lifecycle.finish import finish
from stoker.models import Claimed, Job, Ready
from stoker.models.clock import database_now_us

from . import conf

WORKER_ID = "sync"
LEASE_SECONDS = 86_400
"""Nobody extends it. Where the process dies, the job becomes a dead letter by then."""


def run_here(task: Any, *args: Any) -> str:
    """Run one job of this task. Returns its id."""
    settings = conf.settings()
    broker = broker_for(settings)
    if not broker.capabilities.transactional:
        raise ConfigurationError("sync=True needs a backend whose BROKER is the database.")
    with transaction.atomic(using=settings.database):
        # Nobody else sees it before it is ours.
        job_id = UUID(task.using(max_attempts=1, backend=settings.alias).enqueue(*args).id)
        delivery = _claimed(settings.database, job_id)
    attempted = Executor(settings, worker_id=WORKER_ID).run(delivery)
    if not attempted.is_recorded:
        finish(settings, broker, [attempted])
    return job_id.hex


def _claimed(alias: str, job_id: UUID) -> Delivery:
    """The job, moved from where it waits to where it runs, in the open transaction."""
    Ready.objects.using(alias).withdraw([job_id])
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
