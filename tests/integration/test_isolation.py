"""PostgreSQL's databases and roles whose default isolation level is stricter than Django's."""

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from stoker.store.engines import engine_of
from stoker.store.statements import deciding

from tests.app.tasks import add
from tests.integration.test_deadlines import cluster_of_a_project

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


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
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", autocommit)
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


def ask(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return str(cursor.fetchone()[0]) if cursor.description else ""
