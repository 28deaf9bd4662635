"""The database server reaches a limit, stalls, or is replaced by its replica."""

from __future__ import annotations

import itertools
import os
import secrets
from contextlib import ExitStack, suppress
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
from tests.servers.postgres import PrivatePostgres
from tests.servers.private import NotInstalledError
from tests.servers.proxy import Proxy
from tests.story.ledgers import assert_all_recorded_once, assert_no_overlap
from tests.story.servers import (
    environment_for,
    fill,
    has_said,
    is_over,
    on_server,
    private_database,
    refreshed,
    small_disk,
)

DISK_MIB = 96
LARGE_BYTES = 200_000

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
]

__all__ = ["private_database"]


def test_outcomes_are_recorded_when_a_full_disk_has_room_again(
    private_postgres: PrivatePostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(private_postgres.folder / "disk", DISK_MIB) as disk, ExitStack() as stack:
        (disk / "space").mkdir(mode=0o777)
        os.chown(disk / "space", *_owner(private_postgres))
        private_postgres.run(
            _psql(private_postgres, f"CREATE TABLESPACE small LOCATION '{disk / 'space'}'")
        )
        private_postgres.run(_psql(private_postgres, "ALTER SYSTEM SET default_tablespace = small"))
        private_postgres.run(_psql(private_postgres, "SELECT pg_reload_conf()"))
        for name, value in stack.enter_context(on_server(private_postgres)).items():
            monkeypatch.setitem(os.environ, name, value)
        over = tmp_path / "over"
        with running_cluster(tmp_path, DATABASE_SECONDS=3) as cluster:
            large = return_much_after.using(max_attempts=1)
            results = [large.enqueue(str(over), LARGE_BYTES) for _ in range(2)]
            for result in results:
                wait_for(lambda one=result: str(refreshed(one).state) == "RUNNING", cluster.tail)  # type: ignore[misc]
            filler = fill(disk)
            with pytest.raises((BrokerUnavailable, Error), match="No space left"):
                echo.enqueue_many([((secrets.token_hex(LARGE_BYTES),), {})] * 20)
            over.touch()
            wait_for(lambda: has_said(cluster.text(), "monitor", "No space left"), cluster.tail)
            filler.unlink()
            wait_for(is_over, cluster.tail)
            assert cluster.stop() == 0
            assert "Traceback" not in cluster.text()
        for result in results:
            assert len(refreshed(result).return_value) == LARGE_BYTES
            assert result.attempts == 1
        assert not Attempt.objects.exists()
        connection.close()


def take_connections(server: PrivatePostgres, stack: ExitStack) -> int:
    """Open connections until the server accepts no more. Return how many."""
    import psycopg

    for count in itertools.count():
        try:
            stack.enter_context(psycopg.connect(server.url))
        except psycopg.OperationalError:
            return count
    raise AssertionError


def test_cluster_continues_when_the_server_has_free_connections_again(
    private_database: PrivatePostgres, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    with running_cluster(tmp_path, DATABASE_SECONDS=3) as cluster, ExitStack() as stack:
        cluster.wait_for_crew()
        long = run_until.using(max_attempts=1).enqueue(str(over))
        wait_for(lambda: str(refreshed(long).state) == "RUNNING", cluster.tail)
        taken = take_connections(private_database, stack)
        cluster.sentinel.suspend()
        for role in ("pusher", "monitor"):
            cluster.crew()[role][0].kill()

        def is_full() -> bool:
            nonlocal taken
            taken += take_connections(private_database, stack)
            return taken > before

        before = taken + 1  # the pusher had two connections
        wait_for(is_full, cluster.tail)
        cluster.sentinel.resume()
        wait_for(lambda: is_full() and cluster.text().count("too many clients") > 2, cluster.tail)
        stack.close()
        results = nothing.enqueue_many([((), {})] * 20)
        over.touch()
        wait_for(is_over, cluster.tail)
        for result in [*results, long]:
            assert str(refreshed(result).state) == "SUCCESSFUL"
        assert cluster.stop() == 0


def test_stalled_server_costs_no_running_job(
    private_database: PrivatePostgres, tmp_path: Path
) -> None:
    """All its processes are paused for longer than any deadline, as with a disk that does not
    answer, but not for as long as the lease."""
    over = tmp_path / "over"
    with running_cluster(tmp_path, DATABASE_SECONDS=1, LEASE_SECONDS=60) as cluster:
        crew = cluster.wait_for_crew()
        long = run_until.using(max_attempts=1).enqueue(str(over))
        results = nothing.enqueue_many([((), {})] * 200)
        wait_for(lambda: str(refreshed(long).state) == "RUNNING", cluster.tail)
        eldest = psutil.Process(int((private_database.folder / "server.pid").read_text()))
        frozen = [eldest, *eldest.children(recursive=True)]
        for process in frozen:
            process.suspend()
        try:
            for role in ("pusher", "scheduler"):
                wait_for(
                    lambda role=role: has_said(cluster.text(), role, "not answer"), cluster.tail
                )  # type: ignore[misc]
        finally:
            for process in frozen:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        over.touch()
        wait_for(is_over, cluster.tail)
        for result in [*results, long]:
            assert str(refreshed(result).state) == "SUCCESSFUL"
        assert cluster.crew()["worker"] == crew["worker"], cluster.text()
        assert cluster.stop() == 0


def test_every_job_is_recorded_once_though_a_replica_takes_over(
    private_postgres: PrivatePostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica is synchronous, so it has all commits. Clients connect through a proxy."""
    replica = PrivatePostgres()
    replica.be_replica_of(private_postgres)
    with ExitStack() as stack:
        try:
            stack.enter_context(replica)
        except NotInstalledError as missing:
            pytest.skip(str(missing))
        for statement in (
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
        ):
            private_postgres.run(_psql(private_postgres, statement))
        proxy = stack.enter_context(Proxy("127.0.0.1", private_postgres.port))
        stack.enter_context(on_server(private_postgres))
        connection.settings_dict["PORT"] = str(proxy.port)
        connection.close()
        parts = urlsplit(private_postgres.url)
        url = urlunsplit(parts._replace(netloc=f"postgres@127.0.0.1:{proxy.port}"))
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
            private_postgres.kill()
            replica.promote()
            proxy.lead_to("127.0.0.1", replica.port)
            wait_for(is_over, cluster.tail)
            assert cluster.stop() == 0
        assert_all_recorded_once(job_ids)
        assert_no_overlap()
        connection.close()


def _owner(server: PrivatePostgres) -> tuple[int, int]:
    status = server.folder.stat()
    return status.st_uid, status.st_gid


def _psql(server: PrivatePostgres, statement: str) -> list[str]:
    return [server.program("psql"), "-X", "-q", server.url, "-c", statement]
