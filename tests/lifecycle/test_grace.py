"""The grace period of jobs that another cluster may be able to run."""

import time
from uuid import uuid4

import pytest
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.exceptions import BadSignature, StokerError, UnknownTask
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Failed, Snoozed
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.jobs.retries import OTHER_KEY_WAIT, UNKNOWN_TASK_WAIT, unopened
from stoker.models import Cluster, Deferred, Ready, Wait
from stoker.store.written import DatabaseNow, microseconds

from tests.app import tasks

pytestmark = pytest.mark.django_db

WEEK_SECONDS = 7 * 86_400.0


def claim() -> Delivery:
    settings = settings_for()
    Deferred.objects.update(due_us=0)
    request = ClaimRequest(1, holder=uuid4(), lease_seconds=60)
    (delivery,) = broker_for(settings).claim(request)
    return delivery


def run() -> Snoozed | Failed:
    """Run the job in a worker that knows its task, if it has the key."""
    settings = settings_for()
    attempted = Executor(settings, worker_id="me").run(claim())
    finish(settings, broker_for(settings), [attempted])
    assert isinstance(attempted.outcome, Snoozed | Failed)
    return attempted.outcome


def meet_unknown(error: StokerError | None = None) -> Snoozed | Failed:
    """Claim the job in a cluster that does not know its task."""
    settings, delivery = settings_for(), claim()
    outcome = unopened(settings, error or UnknownTask("there is no such task"), delivery)
    now = time.time()
    finish(settings, broker_for(settings), [Attempted(delivery, outcome, "me", now, now)])
    assert isinstance(outcome, Snoozed | Failed)
    return outcome


def pass_a_week() -> None:
    Wait.objects.update(began_us=F("began_us") - microseconds(WEEK_SECONDS))


def test_job_unknown_for_longer_than_the_grace_period_becomes_dead_letter() -> None:
    tasks.nothing.enqueue()
    assert meet_unknown() == Snoozed(2.0, "there is no such task", UNKNOWN_TASK_WAIT)
    pass_a_week()
    outcome = meet_unknown()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "unknown_task"


def test_first_job_of_an_unknown_task_is_logged_as_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes back every few seconds, so thousands of them would fill the log."""
    monkeypatch.setattr("stoker.jobs.failures._reasons_told", set())
    caplog.set_level("INFO", "stoker")
    tasks.nothing.enqueue()
    tasks.nothing.enqueue()
    for _ in range(4):
        meet_unknown(UnknownTask("There is no task 'shop.tasks.pay'."))
    (warning,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "cannot run here, and is released for 2.0 s (warned once): There" in warning.getMessage()
    released = [one for one in caplog.records if " is released for " in one.getMessage()]
    assert len(released) == 4


def test_grace_period_begins_anew_after_a_worker_has_found_the_task() -> None:
    """A job that polls snoozes for months, before one and the same attempt."""
    result = tasks.snooze_until.enqueue(time.time() + 2 * WEEK_SECONDS)
    assert isinstance(meet_unknown(), Snoozed)
    pass_a_week()
    assert isinstance(run(), Snoozed)
    pass_a_week()
    assert meet_unknown() == Snoozed(2.0, "there is no such task", UNKNOWN_TASK_WAIT)
    waits = Wait.objects.filter(job_id=result.id)
    assert set(waits.values_list("name", "attempts")) == {("", 0), (UNKNOWN_TASK_WAIT, 0)}


def test_waits_for_another_cluster_are_counted_after_a_worker_has_found_the_task() -> None:
    result = tasks.snooze_until.enqueue(time.time() + WEEK_SECONDS)
    waits = Wait.objects.filter(job_id=result.id)
    for _ in range(2):
        assert isinstance(meet_unknown(), Snoozed)
    began_us = waits.get().began_us
    assert isinstance(run(), Snoozed)
    wait = waits.get()
    assert (wait.name, wait.times, wait.began_us) == ("", 3, began_us)


def test_waits_for_other_clusters_are_added_to_waits_without_a_name() -> None:
    result = tasks.snooze_until.enqueue(time.time() + WEEK_SECONDS)
    waits = Wait.objects.filter(job_id=result.id)
    add_cluster("another key")
    errors = (UnknownTask("there is no such task"), BadSignature("another key"))
    for begin in (meet_unknown, run):  # without and with a wait without a name
        begin()
        for error in errors * 2:
            assert isinstance(meet_unknown(error), Snoozed)
        before = list(waits.all())
        waits.filter(name=OTHER_KEY_WAIT).update(began_us=1)
        assert isinstance(run(), Snoozed)
        wait = waits.get()
        assert (wait.name, wait.began_us) == ("", 1)
        assert wait.times == sum(one.times for one in before) + 1
        assert wait.total_us > sum(one.total_us for one in before)


def test_release_by_another_cluster_does_not_begin_the_grace_period_anew() -> None:
    tasks.nothing.enqueue()
    assert isinstance(meet_unknown(), Snoozed)
    pass_a_week()
    settings, delivery, now = settings_for(), claim(), time.time()
    rescued = Attempted(delivery, Snoozed(0.0, "its cluster is gone"), "", None, now)
    finish(settings, broker_for(settings), [rescued])
    assert isinstance(meet_unknown(), Failed)


def add_cluster(key_id: str, silent_seconds: float = 0.0, **changes: str) -> None:
    values = {"name": "stoker", "host": "elsewhere", **changes}
    Cluster.objects.create(
        id=uuid4(), pid=1, started_at=timezone.now(), info={"alias": "default", "key": key_id},
        heartbeat_us=DatabaseNow() - microseconds(silent_seconds), **values,
    )  # fmt: skip


def enqueue_with_new_key() -> str:
    """Enqueue a job in a process that has the new key already. Return the key's id."""
    with override_settings(SECRET_KEY="new"):
        tasks.nothing.enqueue()
        return sealer_for(settings_for()).key_ids[0]


def test_job_waits_for_a_live_cluster_with_another_key() -> None:
    add_cluster(enqueue_with_new_key())
    outcome = run()
    assert isinstance(outcome, Snoozed)
    assert (outcome.delay_seconds, outcome.wait) == (2.0, OTHER_KEY_WAIT)
    assert not Ready.objects.exists()
    pass_a_week()
    outcome = run()
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.fault.exception_class) == (
        "unreadable",
        f"{BadSignature.__module__}.{BadSignature.__qualname__}",
    )


@pytest.mark.parametrize("others", ["none", "same key", "silent", "other name"])
def test_wrong_signature_is_a_dead_letter_at_once_if_no_cluster_has_another_key(
    others: str,
) -> None:
    """An attacker with write access to the store can forge packages."""
    key_id = enqueue_with_new_key()
    if others == "same key":
        add_cluster(sealer_for(settings_for()).key_ids[0])
    elif others == "silent":
        add_cluster(key_id, silent_seconds=3600)
    elif others == "other name":
        add_cluster(key_id, name="another")
    outcome = run()
    assert isinstance(outcome, Failed)
    assert outcome.reason == "unreadable"


def test_package_of_another_job_is_a_dead_letter_at_once() -> None:
    """Its signature is right, so no other cluster could run it."""
    add_cluster(enqueue_with_new_key())
    Ready.objects.all().delete()
    tasks.nothing.enqueue()
    settings = settings_for()
    first = claim()
    tasks.nothing.enqueue()
    swapped = claim()
    forged = Executor(settings, worker_id="me").run(
        Delivery(swapped.job_id, swapped.lease_id, first.package, "default", 0, 1, 0)
    )
    assert isinstance(forged.outcome, Failed)
    assert forged.outcome.reason == "unreadable"
