"""Changing a limit while jobs run under it."""

import uuid
from collections.abc import Collection
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from stoker import Limit, set_limit, task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.exceptions import ConfigurationError
from stoker.inspect import guards
from stoker.models import GuardKey
from stoker.models.guard_key import GuardKeyQuerySet

from tests.guards.sessions import PATIENCE_SECONDS, session, wait_until_waiting

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["stoker"])


@task(limit=Limit(2, "tenant:{tenant_id}"))
def send(tenant_id: int) -> None:
    """Do nothing."""


def claim() -> list[Delivery]:
    return broker_for(settings_for()).claim(
        ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60)
    )


def ack(deliveries: list[Delivery]) -> None:
    assert not broker_for(settings_for()).settle([delivery.lease for delivery in deliveries])


def test_raised_limit_admits_more_jobs_at_once() -> None:
    send.enqueue_many([((7,), {})] * 6)
    assert len(claim()) == 2
    set_limit("tenant:7", 5)
    assert len(claim()) == 3


def test_raised_limit_makes_only_as_many_jobs_ready_as_fit() -> None:
    send.enqueue_many([((7,), {})] * 6)
    assert len(claim()) == 2
    assert claim() == []
    set_limit("tenant:7", 3)
    assert broker_for(settings_for()).sizes()["default"]["ready"] == 1


def test_lowered_limit_lets_running_jobs_finish() -> None:
    send.enqueue_many([((7,), {})] * 6)
    running = claim()
    set_limit("tenant:7", 1)
    ack(running[:1])
    assert claim() == []
    ack(running[1:])
    assert len(claim()) == 1


def test_limit_of_zero_admits_no_job_until_it_is_reset() -> None:
    set_limit("tenant:7", 0)
    send.enqueue_many([((7,), {})] * 3 + [((8,), {})])
    assert len(claim()) == 1
    set_limit("tenant:7", None)
    assert len(claim()) == 2


@task(limit=Limit(2))
def tidy_up() -> None:
    """Do nothing."""


def test_changed_limit_wakes_clusters_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    send.enqueue_many([((7,), {})] * 3)
    assert len(claim()) == 2
    woken: list[Collection[str]] = []
    monkeypatch.setattr(broker_for(settings_for()), "wake_up", woken.append)
    with transaction.atomic():
        set_limit("tenant:7", 3)
        assert not woken
    assert [list(queues) for queues in woken] == [["default"]]


def test_limit_is_set_though_upkeep_deletes_its_key_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = GuardKeyQuerySet.lock
    deletions = [True]

    def lock_late(keys: GuardKeyQuerySet, *args: Any, **options: Any) -> Any:
        if deletions and deletions.pop():
            keys.all().delete()
        return lock(keys, *args, **options)

    monkeypatch.setattr(GuardKeyQuerySet, "lock", lock_late)
    set_limit("tenant:7", 1)
    assert GuardKey.objects.get().places_set == 1


def test_limit_without_a_key_is_set_by_task() -> None:
    tidy_up.enqueue_many([((), {})] * 4)
    assert len(claim()) == 2
    set_limit(tidy_up, 3)
    assert len(claim()) == 1


@task
def unlimited() -> None:
    """Do nothing."""


def test_task_without_such_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unlimited has no limit: declare it with @task\(limit="):
        set_limit(unlimited, 2)
    with pytest.raises(ValueError, match=r"The limit of .*test_limits\.send has a key"):
        set_limit(send, 2)
    set_limit(unlimited.using(limit=Limit(1)), 2)
    set_limit(unlimited, None)  # its limit may have been removed from the code


@pytest.mark.parametrize("n", [1, 2, 5])
def test_key_says_that_no_job_has_used_it_until_the_first_one(n: int) -> None:
    set_limit("tenant:7", n)
    settings = settings_for()
    (one,) = guards.keys(settings, 10).keys
    assert (one.name, one.is_unused) == ("limit tenant:7", True)
    send.enqueue(7)
    deliveries = claim()
    assert not guards.key(settings, one.id).is_unused
    ack(deliveries)
    assert not guards.key(settings, one.id).is_unused


@pytest.mark.parametrize("n", [1, 3])
def test_key_of_a_limit_of_one_is_used_after_the_first_job(n: int) -> None:
    set_limit("narrow", n)
    unlimited.using(limit=Limit(1, "narrow")).enqueue()
    ack(claim())
    (one,) = guards.keys(settings_for(), 10).keys
    assert not one.is_unused


def test_broker_without_guards_refuses_set_limit(settings: Any) -> None:
    entry = {**settings.TASKS["default"], "OPTIONS": {"BROKER": "memory://"}}
    settings.TASKS = {**settings.TASKS, "memory": entry}
    with pytest.raises(ConfigurationError, match="does not support guards"):
        set_limit("tenant:7", 1, backend="memory")


@pytest.mark.parametrize(
    ("key", "n", "sentence"),
    [
        (7, 1, "this is of type int"),
        ("", 1, "the value of the"),
        ("tenant:{tenant_id}", 1, "the value of the"),
        ("k", -1, "whole number"),
        ("k", True, "whole"),
        ("k", 3_000_000_000, "write a whole number from 0 to 1,000,000,000, or None"),
    ],
)
def test_bad_arguments_are_refused(key: object, n: object, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        set_limit(key, n)  # type: ignore[arg-type] # on purpose


@pytest.mark.postgres
@pytest.mark.mariadb
def test_limit_of_a_busy_key_is_set_under_repeatable_read() -> None:
    """A claim changes the key while ``set_limit`` waits for it."""
    set_limit("tenant:7", 1)
    with session() as other:
        other.read_repeatably()
        with transaction.atomic():
            GuardKey.objects.update(fence=F("fence") + 1)
            answer = other.start(lambda: set_limit("tenant:7", 5))
            wait_until_waiting()
        answer.result(PATIENCE_SECONDS)
    assert GuardKey.objects.get().places_set == 5
