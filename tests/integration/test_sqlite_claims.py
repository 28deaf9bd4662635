"""Claims on SQLite read before their transaction begins: changes in between must count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.models import Claimed, Job, Ready
from stoker.store.engines.sqlite import SQLite

from tests.app.tasks import add

pytestmark = [pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]

Between = Callable[[Callable[[], object]], None]


@pytest.fixture
def broker() -> Broker:
    return broker_for(settings_for("default"))


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Run a callable after the next claim's first read, before its transaction."""
    look = SQLite.lock_lines
    todo: list[Callable[[], object]] = []

    def looked(engine: SQLite, *args: Any, **options: Any) -> object:
        found = look(engine, *args, **options)
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr(SQLite, "lock_lines", looked)
    return todo.append


def claim(broker: Broker) -> list[Delivery]:
    return broker.claim(ClaimRequest(10, holder=uuid4(), lease_seconds=60, queues=["default"]))


def ids(deliveries: list[Delivery]) -> list[UUID]:
    return [delivery.job_id for delivery in deliveries]


def test_job_claimed_in_between_is_not_claimed_twice(broker: Broker, between: Between) -> None:
    add.enqueue(1, 2)
    quicker: list[Delivery] = []
    between(lambda: quicker.extend(claim(broker)))
    assert claim(broker) == []
    assert len(quicker) == 1
    held = Claimed.objects.get()
    assert (held.job_id, held.lease_id, held.attempts) == (*quicker[0].lease, 1)


def test_job_withdrawn_in_between_is_not_claimed(broker: Broker, between: Between) -> None:
    gone, left = [add.enqueue(number, 2).id for number in range(2)]
    between(lambda: broker.withdraw([UUID(gone)]))
    assert ids(claim(broker)) == [UUID(left)]
    assert not Ready.objects.exists()


def test_job_changed_in_between_is_claimed_with_its_new_values(
    broker: Broker, between: Between
) -> None:
    add.enqueue(1, 2)

    def replace() -> None:
        Ready.objects.update(attempts=4, crashes=2, rank=-7)
        Job.objects.update(package=b"another")

    between(replace)
    (delivery,) = claim(broker)
    assert (delivery.package, delivery.attempt, delivery.crashes) == (b"another", 5, 2)
    assert delivery.priority == 7
    assert Claimed.objects.get().attempts == 5


def test_job_guarded_in_between_is_not_claimed(broker: Broker, between: Between) -> None:
    add.enqueue(1, 2)
    between(lambda: Ready.objects.update(guards=1))
    assert claim(broker) == []
    assert Ready.objects.count() == 1
    assert not Claimed.objects.exists()
