"""Access to waiting jobs that only tests need. Works with the ORM broker.

The memory broker is refused: in a test's transaction its jobs wait in the outbox for a commit that
never comes, and outside of one they are still there in the next test.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Q

from stoker.brokers.dispatch import Dispatch
from stoker.brokers.memory import MemoryBroker
from stoker.brokers.orm.broker import OrmBroker
from stoker.exceptions import ConfigurationError
from stoker.models import Blocked, Deferred, Job, Ready
from stoker.models.job import Message
from stoker.tasks.options import as_timestamp

AT_ONCE = 500


def bring_forward(broker: Dispatch, queues: Sequence[str]) -> None:
    """Make the deferred jobs of the given queues due. If none is given, do so for all queues."""
    if (store := _only_store(broker)) is not None:
        deferred = Deferred.objects.using(store.alias)
        served = deferred.filter(queue__in=queues) if queues else deferred.all()
        served.update(due_us=0)
    else:
        raise _cannot(broker)


def promote_due(broker: Dispatch) -> None:
    """Move all due jobs to the ready table, so that their priority decides, and make the next claim
    find all of them. The ORM broker does both only at intervals."""
    if (store := _only_store(broker)) is not None:
        while store.promote(AT_ONCE):
            pass
        store.search_from_start()
    elif isinstance(broker.broker, MemoryBroker):
        raise _cannot(broker)


def waiting(broker: Dispatch) -> list[Message]:
    """Return all waiting jobs in the order of their enqueues."""
    if (store := _only_store(broker)) is not None:
        which = Q()
        for table in (Ready, Deferred, Blocked):
            which |= Q(pk__in=table.objects.using(store.alias).values("pk"))
        return _messages(store.alias, which)
    raise _cannot(broker)


def still_known(broker: Dispatch, job_ids: Sequence[UUID]) -> list[Message]:
    """Return the given jobs that exist, in the order of their enqueues. Jobs that were rolled back
    do not exist."""
    found = {message.job_id: message for message in waiting(broker)}
    for message in _messages(broker.settings.database, Q(pk__in=job_ids)):
        found.setdefault(message.job_id, message)
    return [found[job_id] for job_id in sorted(job_ids) if job_id in found]


def _only_store(broker: Dispatch) -> OrmBroker | None:
    """Return the store, or None if some jobs wait in another broker."""
    return broker.store if broker.broker is None else None


def _messages(alias: str, which: Q) -> list[Message]:
    return [
        Message(
            job_id=job.pk,
            task=job.task,
            queue=job.queue,
            priority=job.priority,
            package=bytes(job.package),
            run_after=None if job.run_after is None else as_timestamp(job.run_after),
            enqueued_at=as_timestamp(job.enqueued_at),
        )
        for job in Job.objects.using(alias).filter(which).order_by("pk")
    ]


def _cannot(broker: Dispatch) -> ConfigurationError:
    return ConfigurationError(
        f"Tests cannot look into {broker.settings.shown_broker!r}: in the settings of your tests, "
        'set BROKER to "orm://default".'
    )
