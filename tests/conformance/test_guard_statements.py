"""Guards cost a fixed number of statements per batch, however many jobs and keys it has."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from stoker.brokers.orm.broker import OrmBroker
from stoker.models.need import NewNeed
from stoker.store.engines import engine_of
from stoker.store.written import statement

from tests.conformance.stands import OrmStand, message

pytestmark = pytest.mark.django_db(transaction=True)

JOBS = 60
TABLES = re.compile(r"stoker_(need|key|blocked)\b")
OF_GUARDS = {
    ("postgresql", "lock", JOBS): (1, 1),
    ("postgresql", "lock", 10): (5, 3),
    ("postgresql", "sequence", 10): (5, 5),
    ("sqlite", "lock", JOBS): (4, 3),
    ("sqlite", "lock", 10): (6, 8),
    ("sqlite", "sequence", 10): (6, 7),
    ("mysql", "lock", JOBS): (4, 3),
    ("mysql", "lock", 10): (6, 8),
    ("mysql", "sequence", 10): (6, 7),
}
"""Database, kind of guard, keys -> statements on tables of guards of a claim, and of the ends of
its jobs. PostgreSQL leases jobs with new keys by one of them, and others by the last."""


@pytest.fixture
def stand() -> OrmStand:
    return OrmStand()


@pytest.mark.parametrize(("kind", "keys"), [("lock", JOBS), ("lock", 10), ("sequence", 10)])
def test_guarded_batch_takes_a_fixed_number_of_statements(
    stand: OrmStand, kind: str, keys: int
) -> None:
    broker: OrmBroker = stand.broker
    needs = [NewNeed(uuid.uuid5(uuid.NAMESPACE_OID, str(n)), kind, f"{n}") for n in range(keys)]
    broker.enqueue([message(needs=(needs[number % keys],)) for number in range(JOBS)])

    with statements() as of_claim:
        claimed = stand.claim(JOBS)
    with statements() as of_end:
        broker.settle([one.lease for one in claimed])

    assert len(claimed) == keys
    told = "\n".join([*of_claim, "--", *of_end])
    allowed = OF_GUARDS[connection.vendor, kind, keys]
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
        allowed = (allowed[0] + 1, allowed[1])  # an INSERT returns nothing
    assert (len(of_claim), len(of_end)) == allowed, told


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the statements on tables of guards."""
    found: list[str] = []

    def note(execute: Callable[..., object], sql: object, *arguments: object) -> object:
        text = str(sql)
        if TABLES.search(text) and text != statement(
            "what_is_due", now=engine_of("default").now_sql
        ):
            found.append(text.strip()[:300])
        return execute(sql, *arguments)

    with connection.execute_wrapper(note):
        yield found
