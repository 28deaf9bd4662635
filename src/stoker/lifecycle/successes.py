"""Successes: nearly all that a cluster records. Jobs that ended well and ask for nothing else are
recorded together, by columns; ``finish`` is for the others, and goes through them one by one."""

from __future__ import annotations

from uuid import UUID

from django.db import connections, transaction

from stoker.brokers.base import Broker
from stoker.conf import Settings
from stoker.ids import none_is_marked
from stoker.models import Job, Requeue
from stoker.models.ending import Successes
from stoker.models.statements import takes_lists
from stoker.signals import post_execute

from .dead_letters import resolve


def finish_together(settings: Settings, broker: Broker, successes: Successes) -> bool:
    """Record these attempts and free their leases, if nothing else is to be done about any.

    Returns:
        Whether that was done. If not, nothing was, and each is a matter of ``finish``: something
        follows from its end, its row does not stay, or somebody else has its job by now.
    """
    alias, job_ids = settings.database, successes.job_ids
    if not (_is_plain(settings) and none_is_marked(job_ids)):
        return False
    write = Job.objects.using(alias).succeeding(successes)
    with transaction.atomic(using=alias):
        if not broker.end_all(job_ids, successes.lease_ids):
            transaction.set_rollback(True, using=alias)
            return False
        if Requeue.objects.using(alias).have_any(job_ids):
            resolve(alias, [UUID(job_id) for job_id in job_ids])
        write()
    return True


def _is_plain(settings: Settings) -> bool:
    keeps_rows = settings.keep_results.keeps_successes and settings.results_cache is None
    return keeps_rows and takes_lists(connections[settings.database]) and not post_execute.receivers
