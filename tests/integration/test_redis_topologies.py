"""Several Redis servers: a sentinel with a replica, a cluster of three masters; and TLS."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from redis import Redis

from stoker.brokers.contract import ClaimRequest, Return
from stoker.brokers.redis.broker import RedisBroker
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable

from tests.cluster.clusters import wait_for
from tests.conformance.stands import message
from tests.servers.private import NotInstalledError, free_port
from tests.servers.redis import PrivateRedis

pytestmark = [pytest.mark.redis, pytest.mark.sqlite]

SLOTS = 16_384
PATIENT_MILLISECONDS = 600_000


@contextmanager
def private(**options: Any) -> Iterator[PrivateRedis]:
    try:
        with PrivateRedis(**options) as server:
            yield server
    except NotInstalledError as missing:
        pytest.skip(f"private redis: {missing}")


def test_broker_follows_sentinel_fail_over() -> None:
    """The broker's URL stays the same. The replica has the jobs and their leases."""
    with ExitStack() as stack:
        master = stack.enter_context(private())
        replica = stack.enter_context(private(replicaof=f"127.0.0.1 {master.port}"))
        port = stack.enter_context(_sentinel(master))
        broker = RedisBroker(Settings(broker=f"redis+sentinel://127.0.0.1:{port}/main"))
        stack.callback(broker.close)
        with Redis(port=port) as watch:
            wait_for(lambda: watch.sentinel_slaves("main"), lambda: "it does not know the replica")
        holder, jobs = uuid.uuid4(), [message() for _ in range(3)]
        wait_for(lambda: _does(lambda: broker.enqueue(jobs)))
        (leased,) = broker.claim(ClaimRequest(1, holder=holder, lease_seconds=60))
        with Redis(port=master.port) as client:
            assert client.wait(1, 10_000) == 1
        _let_sentinel_believe_in_death(port, 300)
        master.kill()
        wait_for(lambda: _does(broker.ping), lambda: "nobody took over")
        _let_sentinel_believe_in_death(port, PATIENT_MILLISECONDS)
        with Redis(port=replica.port) as client:
            assert client.role()[0] == b"master"
        assert broker.held_by(holder) == [leased]
        assert broker.settle([leased.lease]) == set()
        rest = broker.claim(ClaimRequest(10, holder=holder, lease_seconds=60))
        assert [one.job_id for one in rest] == [one.job_id for one in jobs[1:]]


def test_cluster_of_three_masters_stores_each_queue_cluster_on_one() -> None:
    """All keys of one Stoker cluster are in one slot. Any master can be asked."""
    with ExitStack() as stack:
        masters = [stack.enter_context(private(in_cluster=True)) for _ in range(3)]
        _join(masters)
        used = set()
        for number in range(12):
            url = f"redis+cluster://127.0.0.1:{masters[number % 3].port}"
            broker = RedisBroker(Settings(broker=url, cluster=f"shop-{number}"))
            broker.relay([message(), message(run_after=1.0)])
            found = broker.claim(ClaimRequest(5, holder=uuid.uuid4(), lease_seconds=60))
            assert len(found) == 2
            assert broker.settle([found[0].lease], [Return(found[1].lease, attempts=1)]) == set()
            assert broker.sizes()["default"]["ready"] == 1
            used.add(broker.client.get_node_from_key(f"{broker.prefix}:job").port)
            broker.close()
        assert len(used) > 1


def test_tls_connection_needs_a_trusted_certificate() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(private())
        key, certificate = (server.folder / name for name in ("key.pem", "certificate.pem"))
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        places = ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*make, *names, *places], check=True, capture_output=True)
        key.chmod(0o644)
        port = free_port()
        with Redis(port=server.port) as client:
            if server.version:
                pytest.skip(f"{server.version} is built without TLS")
            client.config_set("tls-cert-file", str(certificate))
            client.config_set("tls-key-file", str(key))
            client.config_set("tls-auth-clients", "no")
            client.config_set("tls-port", port)
        url = f"rediss://127.0.0.1:{port}/0"
        trusting = RedisBroker(Settings(broker=f"{url}?ssl_ca_certs={certificate}"))
        trusting.enqueue([message()])
        assert len(trusting.claim(ClaimRequest(5, holder=uuid.uuid4(), lease_seconds=60))) == 1
        trusting.close()
        with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
            RedisBroker(Settings(broker=url)).ping()


@contextmanager
def _sentinel(master: PrivateRedis) -> Iterator[int]:
    port, script = free_port(), master.folder / "sentinel.conf"
    lines = (
        f"port {port}",
        f"dir {master.folder}",
        f"sentinel monitor main 127.0.0.1 {master.port} 1",
        f"sentinel down-after-milliseconds main {PATIENT_MILLISECONDS}",
        "sentinel failover-timeout main 3000",
    )
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o666)
    master.folder.chmod(0o777)
    process = master._spawn([master.command()[0], str(script), "--sentinel"])
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def _let_sentinel_believe_in_death(port: int, after_milliseconds: int) -> None:
    """Set how long a server may be silent. The usual value is long, for slow machines."""
    with Redis(port=port) as watch:
        watch.sentinel_set("main", "down-after-milliseconds", after_milliseconds)


def _join(masters: list[PrivateRedis]) -> None:
    for number, master in enumerate(masters):
        slots = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
        with Redis(port=master.port) as client:
            client.execute_command("CLUSTER ADDSLOTS", *slots)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number:
                first = masters[0]
                client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, first.bus_port)

    def is_whole() -> bool:
        states = []
        for master in masters:
            with Redis(port=master.port) as client:
                states.append(client.cluster("info"))
        return all(
            one["cluster_state"] == "ok" and one["cluster_known_nodes"] == "3" for one in states
        )

    wait_for(is_whole, lambda: "the masters do not meet")


def _does(act: Any) -> bool:
    try:
        act()
    except BrokerUnavailable:
        return False
    return True
