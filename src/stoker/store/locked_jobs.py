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
from stoker.models.job import Job
from stoker.models.need import Need
from stoker.models.requeue import Requeue
from stoker.models.step import Step
from stoker.models.workflow import Workflow

from .engines import engine_of
from .statements import deciding, lock_by_key, with_keys


def locked_jobs(alias: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Find jobs whose row, lease, guard keys, workflow or dead letter is locked by another
    transaction. Neither wait for locks nor keep any.

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
        found = _locked(Claimed, alias, job_ids) | _with_locked_letters(alias, job_ids)
        locked_keys = _locked(GuardKey, alias, {key for _, key in keyed})
        found |= {job_id for job_id, key in keyed if key in locked_keys}
        found |= _locked(Job, alias, job_ids) | _in_locked_workflows(alias, job_ids)
        transaction.set_rollback(True, using=alias)
    return found


def locked_waiting_jobs(alias: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Find waiting jobs whose row or workflow is locked by another transaction. See
    ``locked_jobs``."""
    if engine_of(alias).has_one_writer:
        return set()
    with deciding(alias):
        found = _locked(Job, alias, job_ids) | _in_locked_workflows(alias, job_ids)
        transaction.set_rollback(True, using=alias)
    return found


def locked_letters(alias: str, letters: Collection[DeadLetter]) -> set[UUID]:
    """Find dead letters whose row or workflow is locked by another transaction. See
    ``locked_jobs``."""
    if engine_of(alias).has_one_writer:
        return set()
    with deciding(alias):
        found = _locked(DeadLetter, alias, {one.pk for one in letters})
        stopped = _in_locked_workflows(alias, {one.job_id for one in letters})
        transaction.set_rollback(True, using=alias)
    return found | {one.pk for one in letters if one.job_id in stopped}


def _in_locked_workflows(alias: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Return the jobs whose workflow another transaction has locked."""
    steps = Step.objects.using(alias).of_jobs(job_ids)
    workflow_ids = dict(steps.values_list("job_id", "workflow_id"))
    locked = _locked(Workflow, alias, set(workflow_ids.values()))
    return {one for one, workflow_id in workflow_ids.items() if one and workflow_id in locked}


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
