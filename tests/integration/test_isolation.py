"""PostgreSQL's databases and roles whose default isolation level is stricter than Django's."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Lease
from stoker.conf import settings_for
from stoker.models import Claimed
from stoker.store.engines import engine_of
from stoker.store.engines.postgresql import PostgreSQL
from stoker.store.statements import deciding
from stoker.testing.store import promote_due

from tests.app.tasks import add
from tests.cluster.clusters import wait_for
from tests.integration.test_deadlines import cluster_of_a_project
from tests.integration.work import claim

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

CLAIMING = ("deferred_promote", "claim", "claimed_extend", "claimed_claim_expired")
"""Statements that skip locked rows, without a transaction around them."""
WAITING = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"
)
"""How many sessions wait for the open transaction."""


@pytest.fixture(params=["repeatable read", "serializable"], autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make this the default of the database's new sessions."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    ask(f"ALTER DATABASE {name} SET default_transaction_isolation = '{request.param}'")
    connection.close()
    wrappers = connection.execute_wrappers.copy()
    yield request.param
    connection.execute_wrappers[:] = wrappers  # without that of a pooler's client
    connection.close()
    ask(f"ALTER DATABASE {name} RESET default_transaction_isolation")
    connection.close()


@pytest.mark.parametrize("is_cluster", [True, False])
def test_processes_of_a_cluster_and_commands_read_committed(*, is_cluster: bool) -> None:
    with cluster_of_a_project(is_cluster=is_cluster):
        assert ask("SHOW transaction_isolation") == "read committed"
        with deciding("default"):
            assert ask("SHOW transaction_isolation") == "read committed"


def test_cluster_reads_committed_though_options_of_the_project_do_not(level: str) -> None:
    chosen = level.replace(" ", r"\ ")
    options = {"options": f"-c default_transaction_isolation={chosen} -c work_mem=7MB"}
    with cluster_of_a_project(OPTIONS=options):
        assert ask("SHOW transaction_isolation") == "read committed"
        assert ask("SHOW work_mem") == "7MB"


@pytest.mark.parametrize("is_pooled", [True, False])
def test_cluster_behind_a_pooler_reads_committed_in_its_transactions(*, is_pooled: bool) -> None:
    with cluster_of_a_project(DISABLE_SERVER_SIDE_CURSORS=is_pooled):
        assert ask("SHOW transaction_isolation") == "read committed"
        with transaction.atomic():
            assert ask("SHOW transaction_isolation") == "read committed"


@pytest.mark.parametrize("autocommit", [True, False])
def test_deciding_transaction_of_another_process_reads_committed(
    level: str, monkeypatch: pytest.MonkeyPatch, *, autocommit: bool
) -> None:
    with monkeypatch.context() as patch:  # it ends before the default of the database is reset
        patch.setitem(connection.settings_dict, "AUTOCOMMIT", autocommit)
        connection.close()
        with deciding("default"):
            assert ask("SHOW transaction_isolation") == "read committed"
        if not autocommit:
            connection.rollback()
        assert ask("SHOW transaction_isolation") == level
        connection.close()


def test_deciding_block_in_an_open_transaction_keeps_its_level(level: str) -> None:
    with transaction.atomic():
        ask("SELECT 1")
        with deciding("default"):
            assert ask("SHOW transaction_isolation") == level


def test_claims_outside_a_cluster_read_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: dict[str, str] = {}
    fetch = PostgreSQL.fetch

    def fetch_and_look(self: Any, name: str, *given: Any, **words: str) -> Any:
        rows = fetch(self, name, *given, **words)
        levels[name] = ask("SHOW transaction_isolation")
        return rows

    monkeypatch.setattr(PostgreSQL, "fetch", fetch_and_look)
    broker = broker_for(settings_for())
    add.using(run_after=0.01).enqueue(1, 2)
    time.sleep(0.02)
    promote_due(broker)
    (delivery,) = claim()
    broker.extend([delivery.lease], lease_seconds=60)
    Claimed.objects.update(leased_until_us=0)
    assert broker.claim_expired(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
    assert {levels[name] for name in CLAIMING} == {"read committed"}


def test_claim_in_an_open_transaction_keeps_its_level(level: str) -> None:
    add.enqueue(1, 2)
    with transaction.atomic():
        ask("SELECT 1")
        assert len(claim()) == 1
        assert ask("SHOW transaction_isolation") == level


def test_lease_that_another_transaction_changes_meanwhile_is_extended() -> None:
    add.enqueue(1, 2)
    (delivery,) = claim()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Claimed.objects.update(leased_until_us=F("leased_until_us") + 1)
            extending = pool.submit(extend_and_close, delivery.lease)
            wait_for(lambda: ask(WAITING) == "1")
        assert extending.result() == set()


def test_each_session_is_asked_for_its_default_once() -> None:
    engine = engine_of("default")
    assert not engine.sees_later_commits(connection)
    ask("SET default_transaction_isolation = 'read committed'")
    assert not engine.sees_later_commits(connection)
    connection.close()
    assert not engine.sees_later_commits(connection)


def test_wait_in_a_transaction_raises() -> None:
    result = add.enqueue(1, 2)
    with transaction.atomic(), pytest.raises(TransactionManagementError, match="never sees"):
        result.wait(120)


def extend_and_close(lease: Lease) -> set[Lease]:
    """Extend a lease in another thread. Return the stale leases."""
    try:
        return broker_for(settings_for()).extend([lease], lease_seconds=60)
    finally:
        connection.close()


def ask(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return str(cursor.fetchone()[0]) if cursor.description else ""
