"""SQLite for several processes: the options of its connections and their effects."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.db.backends.signals import connection_created
from django.test import override_settings

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.models import Job, Outgoing
from stoker.models.outbox import has_outbox
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import Patience, files_of
from stoker.store.engines.sqlite import write_together
from stoker.store.statements import set_deadlines

from tests.app.models import Account
from tests.integration.work import another_database

pytestmark = pytest.mark.sqlite

BACKEND = "stoker.backend.StokerBackend"
PROCESSES, TRANSACTIONS = 4, 100
FULL = 2

Open = Callable[..., Any]


@pytest.fixture
def opened(django_db_blocker: Any, django_db_setup: None, tmp_path: Path) -> Iterator[Open]:
    """Open a database that is the store of the default backend."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())

        def open_store(*, tuning: bool = True, is_store: bool = True, **changes: Any) -> Any:
            entry = {"NAME": str(tmp_path / "store.sqlite3"), **changes}
            alias = stack.enter_context(another_database(**entry))
            options = {
                "SQLITE_TUNING": tuning,
                "BROKER": f"orm://{alias if is_store else 'default'}",
            }
            tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
            stack.enter_context(override_settings(TASKS=tasks))
            connections[alias].ensure_connection()
            return connections[alias]

        yield open_store


def pragma(connection: Any, name: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA {name}")
        return cursor.fetchone()[0]


def test_store_has_wal_immediate_transactions_and_a_busy_timeout(opened: Open) -> None:
    connection = opened()
    assert connection.transaction_mode == "IMMEDIATE"
    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "busy_timeout") == 20_000
    assert pragma(connection, "journal_size_limit") == 64 << 20


def test_commits_wait_for_the_disk(opened: Open) -> None:
    assert pragma(opened(), "synchronous") == FULL


def test_new_connection_is_tuned_again(opened: Open) -> None:
    connection = opened()
    connection.close()
    assert pragma(connection, "busy_timeout") == 20_000
    assert connection.transaction_mode == "IMMEDIATE"


def test_options_in_databases_take_precedence(opened: Open) -> None:
    said = {
        "transaction_mode": "EXCLUSIVE",
        "timeout": 3,
        "init_command": "PRAGMA journal_mode=truncate; PRAGMA synchronous=NORMAL;"
        "PRAGMA journal_size_limit=7",
    }
    connection = opened(OPTIONS=said)
    assert connection.transaction_mode == "EXCLUSIVE"
    assert pragma(connection, "busy_timeout") == 3_000
    assert pragma(connection, "journal_mode") == "truncate"
    assert pragma(connection, "synchronous") == 1
    assert pragma(connection, "journal_size_limit") == 7


def test_busy_timeout_of_init_command_takes_precedence(opened: Open) -> None:
    connection = opened(OPTIONS={"init_command": "PRAGMA busy_timeout=7"})
    assert pragma(connection, "busy_timeout") == 7


def test_tuning_can_be_switched_off(opened: Open) -> None:
    connection = opened(tuning=False)
    assert connection.transaction_mode is None
    assert pragma(connection, "journal_mode") == "delete"


def test_other_databases_are_not_tuned(opened: Open) -> None:
    connection = opened(is_store=False)
    assert connection.transaction_mode is None
    assert pragma(connection, "journal_mode") == "delete"


def test_database_with_an_outbox_is_tuned(opened: Open) -> None:
    connection = opened(is_store=False)
    call_command("migrate", "stoker", database=connection.alias, verbosity=0)
    connection.close()
    assert pragma(connection, "journal_mode") == "wal"
    assert connection.transaction_mode == "IMMEDIATE"


def test_read_only_alias_of_an_outbox_can_be_read_in_transactions(
    opened: Open, tmp_path: Path
) -> None:
    name = tmp_path / "store.sqlite3"
    call_command("migrate", "stoker", database=opened().alias, verbosity=0)
    connection = opened(is_store=False, NAME=f"file:{name}?mode=ro")
    with transaction.atomic(using=connection.alias):
        assert not Outgoing.objects.using(connection.alias).exists()
    assert not has_outbox(connection.alias, "default")


def test_database_in_memory_is_not_tuned(opened: Open) -> None:
    connection = opened(NAME=":memory:")
    assert connection.transaction_mode is None
    assert pragma(connection, "journal_mode") == "memory"


def test_read_only_file_can_be_read(opened: Open, tmp_path: Path) -> None:
    name = tmp_path / "read-only.sqlite3"
    subprocess.run([sys.executable, "-c", SMALL, str(name)], check=True)
    connection = opened(NAME=f"file:{name}?mode=ro", OPTIONS={"uri": True})
    assert pragma(connection, "journal_mode") == "delete"
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM small")
        assert cursor.fetchall() == [(1,)]


def test_writer_waits_for_another_writer(opened: Open) -> None:
    ours = opened(OPTIONS={"timeout": 60})
    name = ours.settings_dict["NAME"]
    with closing(sqlite3.connect(name, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        over = threading.Timer(0.05, other.execute, ["ROLLBACK"])
        over.start()
        with transaction.atomic(using=ours.alias):
            assert pragma(ours, "busy_timeout") == 60_000
        over.join()


def test_statement_outside_a_transaction_waits_in_short_steps(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = opened(OPTIONS={"timeout": 60})
    pauses: list[float] = []
    with closing(sqlite3.connect(ours.settings_dict["NAME"], isolation_level=None)) as other:
        with ours.cursor() as cursor:
            cursor.execute("CREATE TABLE small (number)")
        other.execute("BEGIN IMMEDIATE")

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                other.execute("ROLLBACK")

        monkeypatch.setattr(time, "sleep", sleep)
        with ours.cursor() as cursor:
            cursor.execute("INSERT INTO small VALUES (1)")
        assert len(pauses) == 3
        assert other.execute("SELECT number FROM small").fetchall() == [(1,)]
        assert pragma(ours, "busy_timeout") == 60_000


def test_writer_raises_after_its_timeout(opened: Open) -> None:
    first, second = opened(), opened(OPTIONS={"timeout": 0.05})
    with (
        transaction.atomic(using=first.alias),
        pytest.raises(OperationalError, match="database is locked"),
        transaction.atomic(using=second.alias),
    ):
        pytest.fail("two transactions write at the same time")
    with transaction.atomic(using=second.alias):
        assert pragma(second, "busy_timeout") == 50


SMALL = (
    "import sqlite3, sys;"
    "sqlite3.connect(sys.argv[1]).execute('CREATE TABLE small AS SELECT 1 number')"
)


def test_interrupted_wait_restores_the_busy_timeout(opened: Open) -> None:
    """The interrupt comes between two steps, while the busy timeout is 0."""

    class Interrupted(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *parameters)
            if sql == "PRAGMA busy_timeout = 0":
                raise KeyboardInterrupt
            return cursor

    connection = opened()
    usual = connection.connection
    name = connection.settings_dict["NAME"]
    with closing(sqlite3.connect(name, 3.0, factory=Interrupted, isolation_level=None)) as raw:
        connection.connection = raw
        with pytest.raises(KeyboardInterrupt):
            write_together(connection, [("CREATE TABLE never (number)", ())])
        connection.connection = usual
        assert raw.execute("PRAGMA busy_timeout").fetchone() == (3_000,)


@pytest.fixture
def store_of_cluster(opened: Open) -> Iterator[Any]:
    """The store's connection in a process of a cluster, with one row in a table."""
    connection = opened()
    receivers = connection_created.receivers.copy()
    set_deadlines(settings_for())
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE small AS SELECT 1 number")
    yield connection
    connection_created.receivers = receivers
    connection_created.sender_receivers_cache.clear()
    del files_of[connection.alias]


def numbers(connection: Any) -> list[tuple[int]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM small")
        found: list[tuple[int]] = cursor.fetchall()
        return found


def remove(connection: Any) -> Path:
    """Delete the files of a database that is open here, and return its own file."""
    file = Path(connection.settings_dict["NAME"])
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()
    return file


def test_cluster_reopens_a_file_that_was_replaced(
    store_of_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    patience = Patience(settings_for(), broker_for(settings_for()))
    assert patience.insist(partial(numbers, store_of_cluster), print) == [(1,)]
    file = remove(store_of_cluster)
    with closing(sqlite3.connect(file)) as restored:
        restored.execute("CREATE TABLE small AS SELECT 2 number")
    assert patience.insist(partial(numbers, store_of_cluster), print) == [(2,)]
    assert caplog.text.count("was deleted or replaced while it was open") == 1
    with closing(sqlite3.connect(file.rename(file.with_suffix(".old")))):
        with closing(sqlite3.connect(file)) as restored:
            restored.execute("CREATE TABLE small AS SELECT 3 number")
        engine_of(store_of_cluster.alias).check_connection()
        assert numbers(store_of_cluster) == [(3,)]


def test_cluster_does_not_create_a_file_that_was_deleted(store_of_cluster: Any) -> None:
    patience = Patience(settings_for(), broker_for(settings_for()))
    file = remove(store_of_cluster)
    for _ in range(2):
        patience.try_at = 0.0
        assert patience.call(partial(numbers, store_of_cluster)) is None
        assert "is gone" in str(patience.last_error)
    with pytest.raises(BrokerUnavailable, match="is gone"):
        engine_of(store_of_cluster.alias).check_connection()
    assert not file.exists()


def test_cluster_waits_if_the_file_cannot_be_looked_up(store_of_cluster: Any) -> None:
    patience = Patience(settings_for(), broker_for(settings_for()))
    file = remove(store_of_cluster)
    folder = file.parent.rename(file.parent.with_name("moved"))
    file.parent.touch()  # stat() of the file raises NotADirectoryError
    assert patience.call(partial(numbers, store_of_cluster)) is None
    assert "is gone" in str(patience.last_error)
    file.parent.unlink()
    folder.rename(file.parent)


@override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"SQLITE_TUNING": "maybe"}}})
def test_invalid_setting_does_not_break_connections(
    django_db_blocker: Any, django_db_setup: None, tmp_path: Path
) -> None:
    with django_db_blocker.unblock(), another_database(NAME=str(tmp_path / "x.sqlite3")) as alias:
        assert pragma(connections[alias], "journal_mode") == "delete"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_concurrent_read_then_write_transactions_meet_no_locked_database() -> None:
    account = Account.objects.create()
    module = "tests.integration.read_then_write"
    command = [sys.executable, "-m", module, str(account.pk), str(TRANSACTIONS)]
    programs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(PROCESSES)
    ]
    said = [program.communicate(timeout=120)[0] for program in programs]
    assert [int(errors) for errors in said] == [0] * PROCESSES
    account.refresh_from_db()
    assert account.total == Job.objects.count() == PROCESSES * TRANSACTIONS
