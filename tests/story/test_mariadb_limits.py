"""MariaDB reaches a limit, stalls, or is replaced by its replica."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest
from django.db import Error, connection

from stoker.exceptions import BrokerUnavailable
from stoker.models import Attempt, Job

from tests.app.chaos import return_much_after, run_until
from tests.app.tasks import echo, nothing, write_ledger
from tests.cluster.clusters import running_cluster, wait_for
from tests.servers.mariadb import PrivateMariadb
from tests.servers.private import NotInstalledError
from tests.servers.proxy import Proxy
from tests.servers.versions import chosen_version
from tests.story.ledgers import assert_all_recorded_once, assert_no_overlap
from tests.story.servers import (
    NAME,
    environment_for,
    fill,
    has_said,
    is_over,
    on_server,
    refreshed,
    small_disk,
)

DISK_MIB = 64
LARGE_BYTES = 200_000
CONNECTIONS = 60
SEMI_SYNCHRONOUS = {
    "log_bin": "binlog",
    "rpl_semi_sync_master_enabled": "ON",
    "rpl_semi_sync_slave_enabled": "ON",
    "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
    "rpl_semi_sync_master_timeout": "600000",
}
"""No COMMIT is answered before the replica has it."""

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]


@contextmanager
def started(
    server: PrivateMariadb, monkeypatch: pytest.MonkeyPatch | None = None
) -> Iterator[PrivateMariadb]:
    """Start a server. Make it this test's default database, if there is a patch for that."""
    if chosen_version("mariadb"):
        pytest.skip("the options are those of MariaDB")
    with ExitStack() as stack:
        try:
            stack.enter_context(server)
        except NotInstalledError as missing:
            pytest.skip(str(missing))
        if monkeypatch is not None:
            for name, value in stack.enter_context(on_server(server)).items():
                monkeypatch.setitem(os.environ, name, value)
        yield server
        connection.close()


def test_outcomes_are_recorded_when_a_full_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends itself when a table cannot grow, and is started again."""
    with ExitStack() as stack:
        server = stack.enter_context(started(PrivateMariadb(character_set_server="utf8mb4")))
        disk = stack.enter_context(small_disk(server.folder / "data" / NAME, DISK_MIB))
        for name, value in stack.enter_context(on_server(server)).items():
            monkeypatch.setitem(os.environ, name, value)
        over = tmp_path / "over"
        with running_cluster(tmp_path, DATABASE_SECONDS=3) as cluster:
            large = return_much_after.using(max_attempts=1)
            results = [large.enqueue(str(over), LARGE_BYTES) for _ in range(2)]
            for result in results:
                wait_for(lambda one=result: str(refreshed(one).state) == "RUNNING", cluster.tail)  # type: ignore[misc]
            filler = fill(disk)
            with pytest.raises((BrokerUnavailable, Error)):
                echo.enqueue_many([((secrets.token_hex(LARGE_BYTES),), {})] * 20)
            over.touch()
            wait_for(lambda: has_said(cluster.text(), "monitor", "Trying again"), cluster.tail)
            filler.unlink()
            server.kill()
            server.start()
            wait_for(is_over, cluster.tail)
            assert cluster.stop() == 0
            assert "Traceback" not in cluster.text()
        for result in results:
            assert len(refreshed(result).return_value) == LARGE_BYTES
            assert result.attempts == 1
        assert not Attempt.objects.exists()


def take_connections(server: PrivateMariadb, stack: ExitStack) -> int:
    """Open connections until the server accepts no more. Return how many."""
    import MySQLdb

    for count in itertools.count():
        try:
            one = MySQLdb.connect(host="127.0.0.1", port=server.port, user="root")
        except MySQLdb.OperationalError:
            return count
        stack.callback(one.close)
    raise AssertionError


def test_cluster_continues_when_the_server_has_free_connections_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = tmp_path / "over"
    with (
        started(PrivateMariadb(max_connections=str(CONNECTIONS)), monkeypatch) as server,
        running_cluster(tmp_path, DATABASE_SECONDS=3) as cluster,
        ExitStack() as stack,
    ):
        cluster.wait_for_crew()
        long = run_until.using(max_attempts=1).enqueue(str(over))
        wait_for(lambda: str(refreshed(long).state) == "RUNNING", cluster.tail)
        taken = take_connections(server, stack)
        cluster.sentinel.suspend()
        for role in ("pusher", "monitor"):
            cluster.crew()[role][0].kill()
        wait_for(lambda: take_connections(server, stack) > 0, cluster.tail)
        cluster.sentinel.resume()

        def is_full() -> bool:
            take_connections(server, stack)
            return cluster.text().count("Too many connections") > 2

        wait_for(is_full, cluster.tail)
        assert taken
        stack.close()
        results = nothing.enqueue_many([((), {})] * 20)
        over.touch()
        wait_for(is_over, cluster.tail)
        for result in [*results, long]:
            assert str(refreshed(result).state) == "SUCCESSFUL"
        assert cluster.stop() == 0


def test_stalled_server_costs_no_running_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused for longer than any deadline, as with a disk that does not answer, but not for
    as long as the lease."""
    over = tmp_path / "over"
    with (
        started(PrivateMariadb(), monkeypatch) as server,
        running_cluster(tmp_path, DATABASE_SECONDS=1, LEASE_SECONDS=60) as cluster,
    ):
        crew = cluster.wait_for_crew()
        long = run_until.using(max_attempts=1).enqueue(str(over))
        results = nothing.enqueue_many([((), {})] * 200)
        wait_for(lambda: str(refreshed(long).state) == "RUNNING", cluster.tail)
        process = psutil.Process(int((server.folder / "server.pid").read_text()))
        process.suspend()
        try:
            for role in ("pusher", "scheduler"):
                wait_for(
                    lambda role=role: has_said(cluster.text(), role, "Trying again"),  # type: ignore[misc]
                    cluster.tail,
                )
        finally:
            process.resume()
        over.touch()
        wait_for(is_over, cluster.tail)
        for result in [*results, long]:
            assert str(refreshed(result).state) == "SUCCESSFUL"
        assert cluster.crew()["worker"] == crew["worker"], cluster.text()
        assert cluster.stop() == 0


class Console:
    """A connection to a server as its administrator.

    Args:
        server: the server.
    """

    def __init__(self, server: PrivateMariadb) -> None:
        import MySQLdb
        from MySQLdb.cursors import DictCursor

        self._connection = MySQLdb.connect(
            host="127.0.0.1", port=server.port, user="root", cursorclass=DictCursor
        )

    def run(self, *statements: str) -> list[dict[str, Any]]:
        """Run the statements, and return the rows of the last one."""
        rows: list[dict[str, Any]] = []
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows


def follow(replica: PrivateMariadb, master: PrivateMariadb) -> Console:
    """Let a new server follow another one."""
    console = Console(replica)
    console.run(
        f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={master.port},"
        " MASTER_USER='root', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
        "START SLAVE",
    )
    wait_for(lambda: console.run("SHOW SLAVE STATUS")[0]["Slave_IO_Running"] == "Yes")
    return console


def promote(console: Console) -> None:
    """End following, once all that was received is applied."""
    received = console.run("STOP SLAVE IO_THREAD", "SHOW SLAVE STATUS")[0]["Gtid_IO_Pos"]
    console.run(
        f"SELECT MASTER_GTID_WAIT('{received}')",
        "STOP SLAVE",
        "RESET SLAVE ALL",
        "SET GLOBAL rpl_semi_sync_master_enabled = OFF",
    )


def test_every_job_is_recorded_once_though_a_replica_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica has all commits that were answered. Clients connect through a proxy."""
    with ExitStack() as stack:
        master = stack.enter_context(started(PrivateMariadb(server_id="1", **SEMI_SYNCHRONOUS)))
        replica = stack.enter_context(started(PrivateMariadb(server_id="2", **SEMI_SYNCHRONOUS)))
        console = follow(replica, master)
        proxy = stack.enter_context(Proxy("127.0.0.1", master.port))
        stack.enter_context(on_server(master))
        connection.settings_dict["PORT"] = str(proxy.port)
        connection.close()
        parts = urlsplit(master.url)
        url = urlunsplit(parts._replace(netloc=f"root@127.0.0.1:{proxy.port}"))
        for name, value in environment_for(url).items():
            monkeypatch.setitem(os.environ, name, value)
        calls: list[Any] = [((), {"seconds": 0.02}) for _ in range(300)]
        job_ids = [
            result.id
            for result in write_ledger.using(max_attempts=100, max_crashes=100).enqueue_many(calls)
        ]
        with running_cluster(tmp_path, DATABASE_SECONDS=3) as cluster:
            wait_for(lambda: Job.objects.exclude(status=None).count() > 50, cluster.tail)
            connection.close()
            master.kill()
            promote(console)
            proxy.lead_to("127.0.0.1", replica.port)
            wait_for(is_over, cluster.tail)
            assert cluster.stop() == 0
        assert_all_recorded_once(job_ids)
        assert_no_overlap()
        connection.close()
