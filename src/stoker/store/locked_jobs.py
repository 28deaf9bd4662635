"""Find jobs that cannot end now because other transactions have locked rows that their end changes.

User code holds such rows until its transaction ends, for example after it has cancelled a workflow
or requeued the dead letter that halts a sequence. The outcomes of other jobs must not wait for
that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db import models, transaction

from stoker.models.claimed import Claimed
from stoker.models.dead_letter import DeadLetter
from stoker.models.guard_key import GuardKey
from stoker.models.need import Need
from stoker.models.requeue import Requeue
from stoker.models.step import Step
from stoker.models.workflow import Workflow

from .engines import engine_of
from .statements import deciding, lock_by_key, with_keys


def locked_jobs(alias: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Find jobs whose lease, guard keys, workflow or dead letter is locked by another transaction.
    Neither wait for locks nor keep any.

    Returns:
        Ids of the jobs found. Empty on a database that cannot skip locked rows.
    """
    if engine_of(alias).has_one_writer:
        return set()
    with deciding(alias):
        claims = _rows(Claimed, alias, job_ids)
        guards = dict(claims.filter(guards__gt=0).values_list("job_id", "guards"))
        needs = Need.objects.using(alias).of_jobs(guards)
        keyed = [(need.job_id, need.key_id) for needed in needs.values() for need in needed]
        steps = Step.objects.using(alias).of_jobs(job_ids)
        in_workflows = list(steps.values_list("job_id", "workflow_id"))
        found = _locked(Claimed, alias, job_ids) | _with_locked_letters(alias, job_ids)
        for model, pairs in ((GuardKey, keyed), (Workflow, in_workflows)):
            locked = _locked(model, alias, {key for _, key in pairs})
            found |= {job_id for job_id, key in pairs if key in locked}
        transaction.set_rollback(True, using=alias)
    return found


def _locked(model: type[models.Model], alias: str, keys: Collection[Any]) -> set[Any]:
    """Return the keys of rows that other transactions have locked."""
    if not keys:
        return set()
    name = model._meta.pk.attname
    free = lock_by_key(_rows(model, alias), keys, name, waits=False)
    there = _rows(model, alias, keys).values_list("pk", flat=True)
    return set(there) - {getattr(row, name) for row in free}


def _with_locked_letters(alias: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Return the jobs that continue a dead letter which another transaction has locked."""
    identities = Requeue.objects.using(alias).identities([job_id.hex for job_id in job_ids])
    if not identities:
        return set()
    letters = DeadLetter.objects.using(alias).filter(identity__in=set(identities.values()))
    there = set(letters.values_list("identity", flat=True))
    free = letters.select_for_update(skip_locked=True).values_list("identity", flat=True)
    locked = there - set(free)
    return {job_id for job_id, identity in identities.items() if identity in locked}


def _rows(
    model: type[models.Model], alias: str, keys: Collection[Any] | None = None
) -> models.QuerySet[Any]:
    rows = model._default_manager.using(alias)
    return rows.all() if keys is None else with_keys(rows.all(), keys)
