"""Several Redis servers: a sentinel with a replica, a cluster of three masters; and TLS."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from redis import Redis
from redis.cluster import ClusterNode, RedisCluster

from stoker.brokers.contract import ClaimRequest, Lease, PartlyUnavailable, Return
from stoker.brokers.redis.broker import RedisBroker
from stoker.brokers.redis.connection import connect
from stoker.brokers.redis.slots import SlottedRedisBroker
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError

from tests.cluster.clusters import wait_for
from tests.conformance.stands import message
from tests.integration.redis_brokers import does, private
from tests.servers.private import free_port
from tests.servers.proxy import Proxy
from tests.servers.redis import PrivateRedis

pytestmark = [pytest.mark.redis, pytest.mark.sqlite]

SLOTS = 16_384
PATIENT_MILLISECONDS = 600_000


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
        wait_for(lambda: does(lambda: broker.enqueue(jobs)))
        (leased,) = broker.claim(ClaimRequest(1, holder=holder, lease_seconds=60))
        with Redis(port=master.port) as client:
            assert client.wait(1, 10_000) == 1
        _let_sentinel_believe_in_death(port, 300)
        master.kill()
        wait_for(lambda: does(broker.ping), lambda: "nobody took over")
        _let_sentinel_believe_in_death(port, PATIENT_MILLISECONDS)
        with Redis(port=replica.port) as client:
            assert client.role()[0] == b"master"
        assert broker.held_by(holder) == [leased]
        assert broker.settle([leased.lease]) == set()
        rest = broker.claim(ClaimRequest(10, holder=holder, lease_seconds=60))
        assert [one.job_id for one in rest] == [one.job_id for one in jobs[1:]]


@pytest.fixture(scope="module")
def masters() -> Iterator[list[PrivateRedis]]:
    """A Redis cluster of three masters."""
    with ExitStack() as stack:
        made = [stack.enter_context(private(in_cluster=True)) for _ in range(3)]
        _join(made)
        yield made


def test_cluster_of_three_masters_stores_each_stoker_cluster_on_one(
    masters: list[PrivateRedis],
) -> None:
    """All keys of one Stoker cluster are in one slot. Any master can be asked."""
    used = set()
    for number in range(12):
        url = f"redis+cluster://127.0.0.1:{masters[number % 3].port}"
        broker = SlottedRedisBroker(Settings(broker=url, cluster=f"shop-{number}"))
        broker.relay([message(), message(run_after=1.0)])
        found = broker.claim(ClaimRequest(5, holder=uuid.uuid4(), lease_seconds=60))
        assert len(found) == 2
        assert broker.settle([found[0].lease], [Return(found[1].lease, attempts=1)]) == set()
        assert broker.sizes()["default"]["ready"] == 1
        used.add(_port_of(broker.first))
        broker.close()
    assert len(used) > 1


QUEUES = [f"queue-{number}" for number in range(24)]


def test_slots_spread_the_queues_of_a_stoker_cluster(masters: list[PrivateRedis]) -> None:
    broker = _slotted(masters, "spread", 8)
    put = [message(queue=queue, priority=rank) for queue in QUEUES for rank in (0, 1)]
    broker.enqueue(put)
    with_jobs = [slot for slot in broker.slots if slot.sizes()]
    assert len({_port_of(slot) for slot in with_jobs}) == 3
    assert set(broker.sizes()) == set(QUEUES)
    request = ClaimRequest(7, holder=uuid.uuid4(), lease_seconds=60)
    claimed = []
    while some := broker.claim(request):
        assert [one.priority for one in some] == sorted(
            (one.priority for one in some), reverse=True
        )
        claimed += some
    assert sorted(one.job_id for one in claimed) == sorted(one.job_id for one in put)
    leases = [one.lease for one in claimed]
    unknown = Lease(uuid.uuid4(), "1.3")
    assert broker.extend([*leases, unknown], lease_seconds=60) == {unknown}
    assert len(broker.held_by(request.holder)) == len(put)
    half = len(leases) // 2
    stale = broker.settle(leases[:half], [Return(lease, attempts=1) for lease in leases[half:]])
    assert stale == set()
    assert broker.settle(leases) == set(leases)
    assert sum(size["ready"] for size in broker.sizes().values()) == len(put) - half
    assert sum(broker.purge(queue) for queue in QUEUES) == len(put) - half
    broker.close()


@pytest.mark.parametrize("counts", [(2, 8), (8, 2)])
def test_jobs_are_found_and_relayed_once_after_the_number_of_slots_changes(
    masters: list[PrivateRedis], counts: tuple[int, int]
) -> None:
    name = f"changed-{counts[0]}-{counts[1]}"
    before, after = (_slotted(masters, name, count) for count in counts)
    put = [message(queue=queue) for queue in QUEUES]
    before.relay(put)
    after.relay(put)
    assert set(after.states([one.job_id for one in put]).values()) == {"ready"}
    assert sum(size["ready"] for size in after.sizes().values()) == len(put)
    request = ClaimRequest(2 * len(put), holder=uuid.uuid4(), lease_seconds=60)
    claimed = after.claim(request)
    assert len(claimed) == len(put)
    assert after.settle([one.lease for one in claimed]) == set()
    after.relay(put, until=after.relay_until())
    assert after.sizes() == {}, "they are remembered though they have ended"
    after.relay([message(queue=queue) for queue in QUEUES], until=after.relay_until())
    assert sum(size["ready"] for size in after.sizes().values()) == len(QUEUES)
    before.close()
    after.close()


def test_relay_is_repeated_without_a_copy_by_a_process_that_knows_fewer_slots(
    masters: list[PrivateRedis],
) -> None:
    """It has read the number of slots just before another process raised it."""
    old = _slotted(masters, "repeated", 1)
    assert len(old.slots) == 1
    new = _slotted(masters, "repeated", 8)
    put = [message(queue=queue) for queue in QUEUES]
    new.relay(put, until=new.relay_until())
    old.relay(put, until=old.relay_until())
    assert sum(size["ready"] for size in new.sizes().values()) == len(put)
    old.close()
    new.close()


def test_running_process_serves_slots_that_another_process_adds(
    masters: list[PrivateRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _slotted(masters, "grown", 2)
    assert len(old.slots) == 2
    new = _slotted(masters, "grown", 8)
    new.enqueue([message(queue=queue) for queue in QUEUES])
    monkeypatch.setattr("stoker.brokers.redis.slots.LAYOUT_SECONDS", 0.0)
    monkeypatch.setattr(old, "_known_until", 0.0)
    request = ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60)
    assert len(old.claim(request)) == len(QUEUES)
    old.close()
    new.close()


def test_slots_of_other_nodes_are_served_while_one_node_is_down(
    masters: list[PrivateRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = _slotted(masters, "partly", 8)
    broker.enqueue([message(queue=queue) for queue in QUEUES])
    down = next(slot for slot in broker.slots if slot.sizes())
    lost = sum(size["ready"] for size in down.sizes().values())

    def fail(*_: Any) -> None:
        raise BrokerUnavailable("it is down")

    monkeypatch.setattr(down, "_run", fail)
    request = ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60)
    assert len(broker.claim(request)) == len(QUEUES) - lost
    assert broker.claim(request) == []
    with pytest.raises(BrokerUnavailable, match="it is down"):
        broker.claim_expired(request)
    for slot in broker.slots:
        monkeypatch.setattr(slot, "_run", fail)
    with pytest.raises(BrokerUnavailable, match="it is down"):
        broker.claim(request)
    broker.close()


def test_slots_of_other_nodes_are_served_while_the_first_slots_node_is_stopped(
    events: list[tuple[str, dict[str, Any]]],
) -> None:
    """The node of slot 0 also has the numbers of slots that were ever used."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(private(in_cluster=True)) for _ in range(3)]
        _join(nodes, **{"cluster-require-full-coverage": "no"})
        before = _slotted(nodes, "halted", 8)
        queues = {_port_of(before.slots[before._slot_of(queue)]): queue for queue in QUEUES}
        down = next(one for one in nodes if one.port == _port_of(before.first))
        gone, *here = (queues.pop(down.port), *queues.values())
        before.enqueue([message(queue=queue) for queue in (gone, *here)])
        leasing: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": 60}
        claimed = {one.queue: one for one in before.claim(ClaimRequest(9, **leasing))}
        held = [claimed[queue].lease for queue in here]
        others = [one for one in nodes if one is not down]
        fresh = _slotted(others, "halted", 8)
        down.kill()
        assert _slotted(others, "halted", 8).first.client, "a new process can connect"
        for broker in (before, fresh):
            stale, left = broker.extend_unlocked([*held, claimed[gone].lease], lease_seconds=60)
            assert (stale, left) == (set(), {claimed[gone].lease})
            assert {one.lease for one in broker.held_by(leasing["holder"])} == set(held)
            broker.enqueue([message(queue=here[0])])
            broker.ping()
            assert broker.kept(held) == {lease.job_id for lease in held}
            with pytest.raises(BrokerUnavailable):
                broker.kept([claimed[gone].lease])
            assert broker.answers_for(held)
            assert not broker.answers_for([claimed[gone].lease])
            (found,) = broker.claim(ClaimRequest(9, **leasing))
            assert broker.is_partial
            assert broker.settle([found.lease]) == set()
            with pytest.raises(BrokerUnavailable):
                broker.enqueue([message(queue=gone)])
        relayed = [message(queue=queue) for queue in (gone, *here)]
        with pytest.raises(BrokerUnavailable):
            before.relay(relayed)
        assert len(before.claim(ClaimRequest(9, **leasing))) == 2, "the others are relayed"
        with pytest.raises(BrokerUnavailable):
            fresh.relay(relayed)
        with pytest.raises(PartlyUnavailable) as partly:
            before.settle([claimed[gone].lease, *held])
        assert partly.value.leases == [claimed[gone].lease]
        assert not {one.lease for one in before.held_by(leasing["holder"])} & set(held)
        assert "slots_unreachable" in [name for name, _ in events]
        before.close()
        fresh.close()


def test_new_client_asks_two_masters_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both are away, it fails. After each failure the driver searches the nodes again, which
    may take as long as a whole call if they hang."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(private(in_cluster=True)) for _ in range(3)]
        _join(nodes)
        up = nodes[-1]
        for node in nodes[:-1]:
            node.kill()
        asked = []
        execute = RedisCluster._execute_command

        def ask(client: RedisCluster, node: ClusterNode, *args: Any, **options: Any) -> Any:
            asked.append(node.port)
            return execute(client, node, *args, **options)

        def choose(nodes: list[ClusterNode]) -> ClusterNode:
            return next((one for one in nodes if one.port != up.port), nodes[0])

        monkeypatch.setattr(RedisCluster, "_execute_command", ask)
        monkeypatch.setattr("redis.cluster.random.choice", choose)
        with pytest.raises(BrokerUnavailable):
            connect(Settings(broker=f"redis+cluster://127.0.0.1:{up.port}"))
        assert sorted(asked) == sorted(node.port for node in nodes[:-1])


def test_cluster_whose_nodes_all_have_new_addresses_is_found_again() -> None:
    """The host in the URL leads to one of the new nodes."""
    with ExitStack() as stack:
        before, after = (stack.enter_context(private(in_cluster=True)) for _ in range(2))
        for node in (before, after):
            with Redis(port=node.port) as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
                wait_for(lambda client=client: client.cluster("info")["cluster_state"] == "ok")
        line = stack.enter_context(Proxy("127.0.0.1", before.port))
        broker = SlottedRedisBroker(
            Settings(broker=f"redis+cluster://127.0.0.1:{line.port}?slots=4")
        )
        stack.callback(broker.close)
        broker.relay([message(queue=queue) for queue in QUEUES], until=broker.relay_until())
        before.kill()
        line.lead_to("127.0.0.1", after.port)
        wait_for(lambda: does(broker.ping), lambda: "it still asks the old node", 15)
        broker.enqueue([message(queue=queue) for queue in QUEUES])
        assert set(broker.sizes()) == set(QUEUES)


def test_jobs_survive_the_migration_of_their_slot(masters: list[PrivateRedis]) -> None:
    """Only keys that exist already can be used meanwhile. So the line of an empty queue cannot."""
    broker = _slotted(masters, "migrated", 1).first
    kept = [message(queue="other"), message(queue="other", run_after=4e9)]
    broker.relay(kept)
    leasing: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": 60}
    broker.enqueue([message(queue="mail"), message(queue="mail", priority=-1)])
    first, second = broker.claim(ClaimRequest(2, **leasing, queues=("mail",)))
    slot, source = broker.client.keyslot(f"{broker.prefix}:job"), _port_of(broker)
    target = next(one for one in masters if one.port != source)
    with Redis(port=source) as old, Redis(port=target.port) as new:
        names = [one.execute_command("CLUSTER MYID").decode() for one in (old, new)]
        new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[0])
        old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[1])
        late = message(queue="mail")
        for _ in range(2):
            with pytest.raises(BrokerUnavailable):
                broker.relay([late])
        assert broker.settle(again=[Return(first.lease)]) == set()
        assert broker.claim(ClaimRequest(9, **leasing, queues=("mail",))) == []
        for one in (old, new):
            one.execute_command("CLUSTER SETSLOT", slot, "STABLE")
        assert broker.states([late.job_id, first.job_id]) == {first.job_id: "deferred"}
        old.zadd(f"{broker.prefix}:deferred", {first.job_id.hex: 1})
    broker.relay([late])
    found = broker.claim(ClaimRequest(9, **leasing, queues=("mail",)))
    assert {one.job_id for one in found} == {late.job_id, first.job_id}
    assert broker.settle([second.lease, *(one.lease for one in found)]) == set()
    broker.close()


def test_wrong_number_of_slots_is_refused() -> None:
    for wrong in ("0", "65", "many", "-1"):
        settings = Settings(broker=f"redis+cluster://127.0.0.1:1?slots={wrong}")
        with pytest.raises(ConfigurationError, match="must be a number from 1 to 64"):
            SlottedRedisBroker(settings)


def _slotted(masters: list[PrivateRedis], name: str, slots: int) -> SlottedRedisBroker:
    url = f"redis+cluster://127.0.0.1:{masters[0].port}?slots={slots}"
    return SlottedRedisBroker(Settings(broker=url, cluster=name))


def _port_of(slot: RedisBroker) -> int:
    return int(slot.client.get_node_from_key(f"{slot.prefix}:job").port)


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


def _join(masters: list[PrivateRedis], **options: str) -> None:
    for number, master in enumerate(masters):
        slots = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
        with Redis(port=master.port) as client:
            for name, value in options.items():
                client.config_set(name, value)
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
