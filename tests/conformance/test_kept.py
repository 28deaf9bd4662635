"""Prepared statements on PostgreSQL, and what happens if none can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from stoker.brokers.contract import Delivery, Return
from stoker.exceptions import BrokerUnavailable
from stoker.models import Ready
from stoker.store import prepared as kept
from stoker.store.statements import set_deadlines

from tests.conformance.stands import OrmStand, message

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[OrmStand]:
    """Yield the ORM broker with a connection like that of a pusher or a monitor."""
    made = OrmStand()
    before = connection.settings_dict
    connection.settings_dict = deepcopy(before)
    set_deadlines(made.settings, keeps_statements=True)
    yield made
    connection.close()
    connection.settings_dict = before


def test_prepared_statements_give_the_same_results(stand: OrmStand) -> None:
    kept_ones = [through_all(stand), through_all(stand)]
    assert names_kept(), "no statement was prepared"
    with connection.execute_wrapper(as_it_is):
        others = [through_all(stand), through_all(stand)]
    assert kept_ones == others


def test_prepared_statements_follow_a_rollback(stand: OrmStand) -> None:
    stand.broker.enqueue([message(), message()])
    with transaction.atomic():
        stand.broker.settle([one.lease for one in stand.claim(1)])
        transaction.set_rollback(True)
    assert Ready.objects.count() == 2
    with transaction.atomic():
        stand.broker.settle([one.lease for one in stand.claim(1)])
    assert Ready.objects.count() == 1


def test_lost_prepared_statements_turn_preparing_off(
    stand: OrmStand,
) -> None:
    stand.broker.enqueue([message()])
    assert not stand.claim(0)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    with pytest.raises(BrokerUnavailable):
        stand.claim(1)
    assert len(stand.claim(1)) == 1
    assert not names_kept()


def test_lost_connection_raises_and_the_next_prepares_again(
    stand: OrmStand,
) -> None:
    stand.broker.enqueue([message()])
    assert not stand.claim(0)
    with connection.cursor() as cursor, pytest.raises(OperationalError):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(BrokerUnavailable):
        stand.claim(1)
    connection.close()
    assert len(stand.claim(1)) == 1
    assert names_kept()


def test_session_ended_by_the_server_raises_operational_error(stand: OrmStand) -> None:
    """The server may have been killed while it ran our statement."""
    sql = "SELECT pg_terminate_backend(pg_backend_pid()), %(number)s::int"
    assert kept.are_kept(connection)
    with pytest.raises(OperationalError):
        kept.fetch_kept(connection, sql, {"number": 1})


def test_text_with_a_nul_is_refused_and_not_truncated(stand: OrmStand) -> None:
    assert kept.are_kept(connection)
    with pytest.raises(DataError):
        kept.fetch_kept(connection, "SELECT %(text)s::text", {"text": "be\0hind"})


def test_custom_cursor_turns_preparing_off(
    stand: OrmStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Multi-tenant libraries set the search path in their own cursor."""
    asked: list[Any] = []

    def own_cursor(wrapper: Any, name: str | None = None) -> Any:
        asked.append(wrapper)
        return BaseDatabaseWrapper._cursor(wrapper, name)  # type: ignore[attr-defined] # not in the stubs

    assert kept.are_kept(connection)
    monkeypatch.setattr(type(connections["default"]), "_cursor", own_cursor, raising=False)
    assert not kept.are_kept(connection)
    stand.broker.enqueue([message()])
    asked.clear()
    assert len(stand.claim(1)) == 1
    assert asked


def through_all(stand: OrmStand) -> list[Any]:
    """Run jobs through all their states; return what is the same each time."""
    stand.broker.enqueue([message(package=f"{number}".encode()) for number in range(3)])
    claimed = stand.claim(3)
    stale = stand.broker.extend([one.lease for one in claimed], lease_seconds=60)
    back = [Return(claimed[0].lease, attempts=7, crashes=2)]
    stale |= stand.broker.settle([one.lease for one in claimed[1:]], back)
    stale |= stand.broker.settle([claimed[1].lease])
    again = stand.claim(3)
    stand.broker.settle([one.lease for one in again])
    return [len(stale), [as_told(one) for one in [*claimed, *again]]]


def as_told(one: Delivery) -> tuple[Any, ...]:
    return (type(one.job_id), type(one.lease_id), one.package, *one[3:])


def as_it_is(execute: Any, *arguments: Any) -> Any:
    return execute(*arguments)


def names_kept() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return [row[0] for row in cursor.fetchall()]
