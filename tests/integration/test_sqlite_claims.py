"""Claims on SQLite look before their transaction begins: what others do in between must count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, Delivery
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
    """Does something after the first look of the next claim, before its transaction."""
    look = SQLite.lock_line
    todo: list[Callable[[], object]] = []

    def looked(engine: SQLite, *args: Any, **options: Any) -> object:
        found = look(engine, *args, **options)
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr(SQLite, "lock_line", looked)
    return todo.append


def claim(broker: Broker) -> list[Delivery]:
    return broker.claim(["default"], 10, holder=uuid4(), lease_seconds=60)


def ids(deliveries: list[Delivery]) -> list[UUID]:
    return [delivery.job_id for delivery in deliveries]


def test_who_is_quicker_has_the_job(broker: Broker, between: Between) -> None:
    add.enqueue(1, 2)
    quicker: list[Delivery] = []
    between(lambda: quicker.extend(claim(broker)))
    assert claim(broker) == []
    assert len(quicker) == 1
    held = Claimed.objects.get()
    assert (held.job_id, held.lease_id, held.attempts) == (*quicker[0].lease, 1)


def test_what_is_left_is_claimed(broker: Broker, between: Between) -> None:
    gone, left = [add.enqueue(number, 2).id for number in range(2)]
    between(lambda: broker.withdraw([UUID(gone)]))
    assert ids(claim(broker)) == [UUID(left)]
    assert not Ready.objects.exists()


def test_a_job_that_was_replaced_is_claimed_as_it_is_now(broker: Broker, between: Between) -> None:
    add.enqueue(1, 2)

    def replace() -> None:
        Ready.objects.update(attempts=4, crashes=2, rank=-7)
        Job.objects.update(package=b"another")

    between(replace)
    (delivery,) = claim(broker)
    assert (delivery.package, delivery.attempt, delivery.crashes) == (b"another", 5, 2)
    assert delivery.priority == 7
    assert Claimed.objects.get().attempts == 5


def test_a_job_that_got_guards_is_left_to_them(broker: Broker, between: Between) -> None:
    add.enqueue(1, 2)
    between(lambda: Ready.objects.update(guards=1))
    assert claim(broker) == []
    assert Ready.objects.count() == 1
    assert not Claimed.objects.exists()
