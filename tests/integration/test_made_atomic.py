"""Jobs that wait at a broker outside the database when their task gets ``atomic=True``."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from stoker.brokers.dispatch import Dispatch
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Crashed, Failed, Retried, Snoozed, Tallies
from stoker.jobs.record import finish
from stoker.models import Attempt, Job, Ready, Tally

from tests.app import atomic as atomic_tasks
from tests.app.models import Account
from tests.app.tasks import add
from tests.integration.fronted import fronted_broker, outside, rescue
from tests.integration.test_locked_rescue import Plan
from tests.integration.work import claim, work_off

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def broker() -> Iterator[Dispatch]:
    with fronted_broker() as made:
        yield made


@pytest.fixture
def unkept() -> Iterator[Dispatch]:
    """Do not keep results."""
    with fronted_broker(KEEP_RESULTS=False) as made:
        yield made


def enqueue_to_atomic_task(broker: Dispatch) -> tuple[Account, uuid.UUID]:
    """Enqueue a job as if its task had no ``atomic`` yet: it waits outside the store."""
    account = Account.objects.create()
    result = replace(atomic_tasks.add, atomic=False).enqueue(account.pk)
    assert (outside(broker), Ready.objects.count()) == (1, 0)
    return account, uuid.UUID(result.id)


def test_job_enqueued_before_its_task_became_atomic_is_acked_after_the_commit(
    broker: Dispatch,
) -> None:
    """If the worker dies before the ack, the job is neither lost nor repeated."""
    account, job_id = enqueue_to_atomic_task(broker)
    (delivery,) = claim()
    Executor(settings_for(), worker_id="w").run(delivery)
    assert Job.objects.get().status == "SUCCESSFUL"
    assert list(broker.states([job_id])) == [job_id], "its lease has not ended"
    assert rescue(broker, job_id) == []
    assert broker.states([job_id]) == {}
    account.refresh_from_db()
    assert account.total == 1


def test_lease_of_a_job_made_atomic_later_ends_with_the_second_record(
    broker: Dispatch,
) -> None:
    account, job_id = enqueue_to_atomic_task(broker)
    assert work_off() == 1
    assert broker.states([job_id]) == {}
    assert (Job.objects.get().status, Attempt.objects.count()) == ("SUCCESSFUL", 0)
    account.refresh_from_db()
    assert account.total == 1


def test_job_made_atomic_later_is_not_released_if_its_worker_dies_before_the_ack(
    broker: Dispatch,
) -> None:
    """The lease is still valid when the cluster records the crash."""
    account, job_id = enqueue_to_atomic_task(broker)
    (delivery,) = claim()
    attempted = Executor(settings_for(), worker_id="w").run(delivery)
    crashed = replace(attempted, outcome=Crashed("it was killed", signal=9))
    assert finish(settings_for(), broker, [crashed]) == set()
    assert broker.states([job_id]) == {}
    assert (Job.objects.get().status, Attempt.objects.count()) == ("SUCCESSFUL", 0)
    account.refresh_from_db()
    assert account.total == 1


def test_job_made_atomic_later_takes_effect_once_if_two_workers_run_it(
    broker: Dispatch,
) -> None:
    account, job_id = enqueue_to_atomic_task(broker)
    (first,) = claim()
    (second,) = rescue(broker, job_id)
    executor = Executor(settings_for(), worker_id="w")
    attempted = executor.run(second)
    executor.run(first)
    assert finish(settings_for(), broker, [attempted]) == set()
    assert broker.states([job_id]) == {}
    account.refresh_from_db()
    assert account.total == 1


def test_success_of_a_job_made_atomic_later_is_counted(broker: Dispatch) -> None:
    enqueue_to_atomic_task(broker)
    add.enqueue(1, 2)
    executor, tallies = Executor(settings_for(), worker_id="w"), Tallies(settings_for())
    attempted = [executor.run(one) for one in claim()]
    assert finish(settings_for(), broker, attempted, tallies=tallies) == set()
    tallies.write()
    counts = dict(Tally.objects.values_list("task", "successful"))
    assert counts == {atomic_tasks.add.module_path: 1, add.module_path: 1}


def test_job_made_atomic_later_is_snoozed_if_the_broker_does_not_answer(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says that its lease is valid, so it rolls back. The attempt does not count."""
    account, job_id = enqueue_to_atomic_task(broker)
    (delivery,) = claim()

    def extend(*_: object, **__: object) -> None:
        raise BrokerUnavailable("Redis does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(broker.broker, "extend", extend)
        attempted = Executor(settings_for(), worker_id="w").run(delivery)
    assert isinstance(attempted.outcome, Snoozed)
    account.refresh_from_db()
    assert account.total == 0
    assert finish(settings_for(), broker, [attempted]) == set()
    assert list(broker.states([job_id])) == [job_id]


def test_job_made_atomic_later_fails_if_it_closes_its_connection(broker: Dispatch) -> None:
    """A snooze would repeat it for ever."""
    account = Account.objects.create()
    replace(atomic_tasks.add_and_close_the_connection, atomic=False).enqueue(account.pk)
    (delivery,) = claim()
    attempted = Executor(settings_for(), worker_id="w").run(delivery)
    assert isinstance(attempted.outcome, Failed | Retried)


def test_row_of_a_job_made_atomic_later_is_not_pruned_before_its_lease_ends(
    unkept: Dispatch,
) -> None:
    """If the host dies before the ack, only the row says that the job must not run again."""
    settings = settings_for()
    account, job_id = enqueue_to_atomic_task(unkept)
    (delivery,) = claim()
    Executor(settings, worker_id="w").run(delivery)
    upkeep = Upkeep(Plan(), settings, unkept, lambda: None)
    assert upkeep.prune() == 0, "nothing has been rescued"
    assert upkeep.rescuing.rescue() == 0
    assert upkeep.prune() == 0, "its lease may still be valid"
    assert rescue(unkept, job_id) == []
    assert unkept.states([job_id]) == {}
    account.refresh_from_db()
    assert account.total == 1
    long_ago = timezone.now() - timedelta(seconds=3 * settings.lease_seconds)
    Job.objects.update(finished_at=long_ago)
    assert upkeep.prune() == Job.objects.count() + 1
