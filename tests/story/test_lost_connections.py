"""A process of a cluster loses its connection inside a transaction without the database noticing,
as after a power failure or a cut cable. The session keeps its row locks. Only the jobs of these
rows may wait."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import pytest
from django.db import OperationalError, connection

from stoker import Lock
from stoker.models import Job

from tests.app.chaos import run_until, succeed_at_second
from tests.app.tasks import nothing
from tests.cluster.clusters import (
    ProcessCluster,
    running_cluster,
    wait_for,
    wait_while_it_goes_on,
)
from tests.servers.proxy import Proxy

LEASE_SECONDS = 18.0
OPTIONS: dict[str, Any] = {"LEASE_SECONDS": LEASE_SECONDS, "DATABASE_SECONDS": 3}
STALL_SECONDS = 60.0
"""If no plain job is recorded for this long, the test fails. The server keeps the lost session for
much longer."""
SILENT_SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND state = 'idle in transaction'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx"
    " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
    " WHERE db = database() AND command = 'Sleep'",
}
CANNOT_CONVERT = 3854

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    given = connection.settings_dict
    port = int(given["PORT"] or {"postgresql": 5432, "mysql": 3306}[connection.vendor])
    with Proxy(given["HOST"], port) as made:
        yield made


def start(folder: Path, proxy: Proxy, stack: ExitStack) -> ProcessCluster:
    """Start a cluster whose database connections go through this proxy."""
    name = {"postgresql": "STOKER_TEST_POSTGRES_URL", "mysql": "STOKER_TEST_MARIADB_URL"}
    usual = {
        "postgresql": "postgresql://postgres@127.0.0.1:5432/postgres",
        "mysql": "mysql://root@127.0.0.1:3306/mysql",
    }
    variable = name[connection.vendor]
    parts = urlsplit(os.environ.get(variable, usual[connection.vendor]))
    who = parts.netloc.rpartition("@")[0]
    url = urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{proxy.port}"))
    cluster = stack.enter_context(running_cluster(folder, environment={variable: url}, **OPTIONS))
    cluster.wait_for_crew()
    return cluster


def lose_in_transaction(cluster: ProcessCluster, role: str, proxy: Proxy) -> None:
    """Make the proxy lose each connection of this process at its next COMMIT."""
    for port in client_ports(cluster.crew()[role][0], proxy):
        proxy.lose_client(port, before=b"COMMIT")


def client_ports(process: psutil.Process, proxy: Proxy) -> list[int]:
    """Return the ports from which this process is connected to the proxy."""
    connections = process.net_connections(kind="tcp4")
    return [one.laddr.port for one in connections if one.raddr and one.raddr.port == proxy.port]


def silent_sessions() -> int:
    while True:
        with connection.cursor() as cursor:
            try:
                cursor.execute(SILENT_SESSIONS[connection.vendor])
            except OperationalError as error:
                # MySQL cannot list a transaction while it sends the bytes of a package.
                if error.args[0] != CANNOT_CONVERT:
                    raise
            else:
                return int(cursor.fetchone()[0])


def assert_plain_jobs_are_recorded(until: float, *clusters: ProcessCluster) -> None:
    """Enqueue one job after another until then, and wait for each."""
    while time.monotonic() < until:
        result = nothing.enqueue()
        wait_for(
            lambda job_id=result.id: ended([job_id]) == 1,
            lambda: "\n---\n".join(cluster.tail() for cluster in clusters),
            STALL_SECONDS,
        )
        time.sleep(0.02)


def ended(job_ids: list[str]) -> int:
    return Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL").count()


def test_lost_monitor_connection_delays_no_other_job(proxy: Proxy, tmp_path: Path) -> None:
    """A running job whose lease has to be extended meanwhile is not killed."""
    over = tmp_path / "over"
    with ExitStack() as stack:
        cluster = start(tmp_path, proxy, stack)
        long = run_until.using(max_attempts=1).enqueue(str(over))
        assert_plain_jobs_are_recorded(time.monotonic() + 1, cluster)
        lose_in_transaction(cluster, "monitor", proxy)
        # MySQL keeps the lost session, and its locks, for longer than a lease.
        tries = 1 if getattr(connection, "mysql_is_mariadb", True) else 2
        some = nothing.using(max_attempts=tries).enqueue_many([((), {})] * 20)
        caught = [result.id for result in some]
        wait_for(proxy.abandoned.is_set, cluster.tail)
        assert silent_sessions()
        assert_plain_jobs_are_recorded(time.monotonic() + 1.5 * LEASE_SECONDS, cluster)
        over.touch()
        wait_for(lambda: ended([*caught, long.id]) == 21, cluster.tail, STALL_SECONDS)
        assert "was killed" not in cluster.text()


def test_lost_pusher_connection_delays_no_job_without_guards(proxy: Proxy, tmp_path: Path) -> None:
    """It loses its connection while it decides about guards, and another cluster needs the key."""
    with ExitStack() as stack:
        first = start(tmp_path, proxy, stack)
        second = stack.enter_context(running_cluster(tmp_path, **OPTIONS))
        second.wait_for_crew()
        assert_plain_jobs_are_recorded(time.monotonic() + 1, first, second)
        guarded = nothing.using(lock=Lock("door"), max_attempts=2)
        job_ids: list[str] = []
        lose_in_transaction(first, "pusher", proxy)
        while not proxy.abandoned.is_set():
            job_ids += [result.id for result in guarded.enqueue_many([((), {})] * 5)]
            time.sleep(0.05)
        assert silent_sessions()
        job_ids += [result.id for result in guarded.enqueue_many([((), {})] * 600)]
        assert_plain_jobs_are_recorded(time.monotonic() + 1.5 * LEASE_SECONDS, first, second)
        wait_while_it_goes_on(
            lambda: len(job_ids) - ended(job_ids),
            lambda: f"{ended(job_ids)} of {len(job_ids)}\n{first.tail()}\n---\n{second.tail()}",
        )


def test_connections_behind_a_silent_peer_are_reopened(proxy: Proxy, tmp_path: Path) -> None:
    """A pooler or load balancer acknowledges packets but forwards nothing. Each process notices
    this, so the sentinel replaces none and no running job is stopped."""
    roles = ("pusher", "monitor", "scheduler")
    over = tmp_path / "over"
    with ExitStack() as stack:
        cluster = start(tmp_path, proxy, stack)
        long = run_until.using(max_attempts=1).enqueue(str(over))
        assert_plain_jobs_are_recorded(time.monotonic() + 1, cluster)
        before = {role: cluster.crew()[role] for role in roles}
        for role in roles:
            for port in client_ports(before[role][0], proxy):
                proxy.silence(port)
        assert_plain_jobs_are_recorded(time.monotonic() + 1.5 * LEASE_SECONDS, cluster)
        over.touch()
        wait_for(lambda: ended([long.id]) == 1, cluster.tail, STALL_SECONDS)
        assert {role: cluster.crew()[role] for role in roles} == before, cluster.text()
        assert "was killed" not in cluster.text()


def test_transaction_ended_by_the_server_is_retried(tmp_path: Path) -> None:
    """The monitor pauses in a transaction for longer than the server allows. That must not cost the
    job an attempt whose outcome it was recording."""
    environment = {"STOKER_TEST_MISCHIEF": "doze:5"}
    with running_cluster(tmp_path, environment=environment, **OPTIONS) as cluster:
        cluster.wait_for_crew()
        result = succeed_at_second.enqueue()
        wait_for(lambda: Job.objects.exclude(status=None).exists(), cluster.tail, STALL_SECONDS)
        result.refresh()
        assert str(result.state) == "SUCCESSFUL", result.errors
