"""Two backends with one database, but different brokers: a cluster of one does not know the jobs at
the broker of the other."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from django.conf import settings
from django.test import override_settings
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.dispatch import Dispatch
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.upkeep import Upkeep
from stoker.conf import Retention, settings_for
from stoker.jobs.cancel import sweep_requests
from stoker.models import Cancellation, Job

from tests.app.tasks import add
from tests.integration.fronted import BACKEND, fronted_broker, holder_of

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def redis() -> Iterator[Dispatch]:
    """Add a backend in the database to one at Redis; return the dispatch of the latter."""
    with fronted_broker() as made:
        options = {"BROKER": "orm://default", "CLUSTER": made.settings.cluster}
        other = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}
        with override_settings(TASKS={**settings.TASKS, "database": other}):
            yield made


def upkeep_of(alias: str) -> Upkeep:
    plan = Plan(alias=alias)
    return Upkeep(plan, plan.settings, broker_for(plan.settings), lambda: None)


def test_jobs_are_rescued_from_a_broker_that_the_holder_of_the_upkeep_lease_does_not_know(
    redis: Dispatch,
) -> None:
    result = add.enqueue(1, 2)
    (lost,) = redis.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    redis.expire_holder(holder_of(redis, lost.job_id))
    first, second, third = upkeep_of("database"), upkeep_of("default"), upkeep_of("default")
    first.run()
    assert redis.states([lost.job_id])[lost.job_id] == "running"
    second.run()
    assert redis.states([lost.job_id])[lost.job_id] == "deferred", "it is retried"
    assert not third._take_lease_of_broker(), "one cluster does so"
    second.leave()
    assert third._take_lease_of_broker()
    result.refresh()
    assert result.attempts == 1


def test_request_to_cancel_a_job_at_the_other_broker_is_kept(redis: Dispatch) -> None:
    job_ids = {UUID(add.enqueue(1, 2).id) for _ in range(2)}
    (claimed,) = redis.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    job_id, (waiting,) = claimed.job_id, job_ids - {claimed.job_id}
    Cancellation.objects.ask_all([job_id, waiting, gone := uuid.uuid4()], "no longer needed")
    sweep_requests(settings_for("database"))
    assert set(Cancellation.objects.reasons_of([job_id, waiting, gone])) == {job_id, waiting}


def test_results_are_kept_while_the_other_broker_may_lease_their_jobs(redis: Dispatch) -> None:
    """The row says that the job must not run again after its lease has ended."""
    job_ids = [
        UUID(one.id) for one in add.using(backend="database").enqueue_many([((1, 2), {})] * 2)
    ]
    broker_for(settings_for("database")).withdraw(job_ids)
    for job_id, days in zip(job_ids, (2, 8), strict=True):
        ended = {"status": "SUCCESSFUL", "finished_at": timezone.now() - timedelta(days=days)}
        Job.objects.filter(pk=job_id).update(**ended)
    plan = Plan(alias="database", overrides=(("keep_results", Retention(60.0, 0, 60.0, 0)),))
    assert Upkeep(plan, plan.settings, broker_for(plan.settings), lambda: None).prune() == 1
    assert set(Job.objects.values_list("pk", flat=True)) == {job_ids[0]}
