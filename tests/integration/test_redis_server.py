"""Redis: how the server is reached, unusual loads, damage, and error messages."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from stoker.brokers.adapters import adapter_for, broker_for
from stoker.brokers.contract import ClaimRequest, Return
from stoker.brokers.redis import broker as redis_relay
from stoker.brokers.redis.broker import RedisBroker
from stoker.brokers.redis.connection import weaknesses
from stoker.brokers.redis.slots import SlottedRedisBroker
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError

from tests.conformance.server_stands import RedisStand, redis_url
from tests.conformance.stands import LEASE_SECONDS, message
from tests.servers.private import NotInstalledError, free_port
from tests.servers.redis import PrivateRedis

pytestmark = [pytest.mark.redis, pytest.mark.sqlite]


@pytest.fixture
def stand() -> Iterator[RedisStand]:
    made = RedisStand()
    yield made
    made.clear()


@contextmanager
def private(**options: Any) -> Iterator[PrivateRedis]:
    try:
        with PrivateRedis(is_durable=False, **options) as server:
            yield server
    except NotInstalledError as missing:
        pytest.skip(f"private redis: {missing}")


def at(url: str, **options: Any) -> Any:
    """Return the broker at this URL: a RedisBroker, or a SlottedRedisBroker of a Redis cluster."""
    broker = adapter_for(Settings(broker=url, **options))
    assert isinstance(broker, RedisBroker | SlottedRedisBroker)
    return broker


class TestConnections:
    def test_unreachable_server_raises_without_showing_the_password(self) -> None:
        with socket.socket() as unused:  # bound, but without a listener
            unused.bind(("127.0.0.1", 0))
            broker = at(f"redis://user:secret@127.0.0.1:{unused.getsockname()[1]}/0")
            with pytest.raises(BrokerUnavailable, match="cannot be reached") as raised:
                broker.enqueue([message()])
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize(
        "url",
        [
            "redis://host:port/0",
            "redis://h/shop",
            "redis+sentinel://one:x/main",
            "redis+cluster://one:x",
        ],
    )
    def test_invalid_url_raises_configuration_error(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="redis://HOST:PORT/DATABASE"):
            at(url)

    def test_missing_driver_raises_with_install_command(
        self, not_installed: Callable[[str, str], None]
    ) -> None:
        not_installed("redis", "stoker.brokers.redis")
        with pytest.raises(ConfigurationError, match=r"pip install 'django-stoker\[redis\]'"):
            adapter_for(Settings(broker="redis://127.0.0.1"))

    def test_password_in_url_is_used(self) -> None:
        with private() as server:
            with Redis(port=server.port) as client:
                client.config_set("requirepass", "a b@c")
            with pytest.raises(BrokerUnavailable, match="redis://USER:PASSWORD@HOST"):
                at(server.url).ping()
            at(f"redis://:a%20b%40c@127.0.0.1:{server.port}/0").ping()

    def test_redis_cluster_is_used(self) -> None:
        with private(in_cluster=True) as server:
            with Redis(port=server.port) as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(16384))
                while client.cluster("info")["cluster_state"] != "ok":
                    pass
            _use_everything(at(f"redis+cluster://127.0.0.1:{server.port}"))

    def test_unreachable_redis_cluster_raises_on_enqueue_and_not_on_wake_up(self) -> None:
        """An enqueue in a transaction does not need the server, and a listener tries again."""
        with private(in_cluster=True) as server:
            port = server.port
        broker = at(f"redis+cluster://127.0.0.1:{port}")
        with pytest.raises(BrokerUnavailable):
            broker.enqueue([message()])
        broker.wake_up(())
        wake = broker.open_wake()
        assert (wake.fileno(), wake.is_due()) == (None, False)
        wake.close()
        broker.close()

    def test_sentinels_find_the_master(self) -> None:
        with private() as server:
            script, port = server.folder / "sentinel.conf", free_port()
            watch = f"sentinel monitor main 127.0.0.1 {server.port} 1"
            script.write_text(f"port {port}\n{watch}\ndir {server.folder}\n")
            script.chmod(0o666)
            server.folder.chmod(0o777)
            sentinel = server._spawn([server.command()[0], str(script), "--sentinel"])
            try:
                broker = at(f"redis+sentinel://127.0.0.1:{port}/main/3")
                while not _answers(broker):
                    assert sentinel.poll() is None
                _use_everything(broker)
                with Redis(port=server.port, db=3) as client:
                    assert client.scard(f"{broker.prefix}:queues") == 1
            finally:
                sentinel.kill()
                sentinel.wait()

    def test_claim_works_after_script_flush(self, stand: RedisStand) -> None:
        stand.put()
        stand.broker.client.script_flush()  # type: ignore[attr-defined] # of this broker
        assert stand.broker.settle([stand.claim_one().lease]) == set()

    @pytest.mark.parametrize("loss", ["before", "after", "scripts"])
    def test_settlement_without_a_reply_is_repeated(self, stand: RedisStand, loss: str) -> None:
        """The connection is closed before or after the reply came, or the server has lost the
        scripts."""
        client: Redis = stand.broker.client  # type: ignore[attr-defined] # of this broker
        stand.put(2)
        first, second = stand.claim(2)
        if loss == "scripts":
            client.script_flush()
        end = stand.broker.begin_settle([first.lease])
        if loss == "after":
            while stand.broker.states([first.job_id]):
                pass
        if loss != "scripts":
            client.connection_pool.disconnect()
        end()
        assert set(stand.broker.states([first.job_id, second.job_id])) == {second.job_id}
        assert not client.connection_pool._in_use_connections

    def test_settlement_can_be_ended_after_the_server_is_back(self) -> None:
        with private() as server:
            broker = at(server.url, database_seconds=1)
            broker.enqueue([message()])
            wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
            (found,) = broker.claim(ClaimRequest(1, **wish))
            with Redis(port=server.port) as client:
                client.client_pause(60_000, all=False)  # a paused client cannot end all pauses
                end = broker.begin_settle([found.lease])
                broker.close()
                with pytest.raises(BrokerUnavailable):
                    end()
                client.client_unpause()
            end()
            assert broker.states([found.job_id]) == {}
            broker.close()


class TestLoads:
    def test_unusual_queue_names_are_kept(self, stand: RedisStand) -> None:
        names = ["\0", "a\0b", "q:{x}", "ü" * 100, "\N{GRINNING FACE}", " ", "%s", "'"]
        for name in names:
            stand.put(queue=name)
        assert {name: size["ready"] for name, size in stand.broker.sizes().items()} == (
            dict.fromkeys(names, 1)
        )
        claimed = [stand.claim(10, name) for name in names]
        assert [(one.queue, len(some)) for some in claimed for one in some] == [
            (name, 1) for name in names
        ]

    def test_large_packages_are_stored_in_several_requests(
        self, stand: RedisStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_relay, "LOAD_BYTES", 5 << 20)
        packages = [bytes([place]) * (2 << 20) for place in range(8)]
        stand.broker.enqueue([message(package=package) for package in packages])
        assert [one.package for one in stand.claim(10)] == packages

    def test_claim_is_limited_in_bytes(self, stand: RedisStand) -> None:
        """500 packages of 1 MiB would be half a GiB in one answer. One job comes, however large."""
        sizes = [6 << 20, 6 << 20, 6 << 20, 20 << 20, 1]
        put = [stand.put(package=b"x" * size)[0] for size in sizes]
        claims = [[one.job_id for one in stand.claim(500)] for _ in range(5)]
        assert claims == [put[:2], put[2:3], put[3:4], put[4:], []]
        stand.advance(LEASE_SECONDS + 1)
        assert [len(stand.rescue(500)) for _ in range(5)] == [2, 1, 1, 1, 0]

    def test_thousands_of_jobs_are_handled_at_once(
        self, stand: RedisStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More than fit on Lua's stack, or in one Redis command."""
        monkeypatch.setattr(redis_relay, "LOAD_JOBS", 7_000)
        stand.put(20_000, package=b"")
        claimed = stand.claim(9_000)
        assert len(claimed) == 9_000
        leases = [one.lease for one in claimed]
        assert stand.broker.extend(leases, lease_seconds=LEASE_SECONDS) == set()
        assert len(stand.broker.held_by(stand.holder)) == 9_000
        assert stand.broker.settle(again=[Return(lease) for lease in leases[:8_500]]) == set()
        assert stand.broker.expire_holder(stand.holder) == 500
        assert len(stand.rescue(1_000)) == 500
        assert stand.broker.purge("default") == 19_500

    def test_full_memory_refuses_new_jobs_and_runs_stored_ones(self) -> None:
        """A refused job leaves nothing behind."""
        with private() as server:
            broker, holder = at(server.url), uuid.uuid4()
            broker.enqueue([message(package=b"x" * 1000) for _ in range(100)])
            broker.enqueue([message(run_after=1.0), message(run_after=2.0)])
            wish: dict[str, Any] = {"holder": holder, "lease_seconds": LEASE_SECONDS}
            (first, *_) = broker.claim(ClaimRequest(2, **wish))
            with Redis(port=server.port) as client:
                client.config_set("maxmemory", "1mb")
            for put in (broker.enqueue, broker.relay):
                with pytest.raises(BrokerUnavailable, match="raise maxmemory"):
                    put([message(package=b"x" * 1000)])
            assert broker.extend([first.lease], lease_seconds=LEASE_SECONDS) == set()
            claimed = broker.claim(ClaimRequest(50, **wish))
            leases = [one.lease for one in claimed]
            assert broker.settle(leases[:40], [Return(one) for one in leases[40:]]) == set()
            assert broker.expire_holder(holder) == 2
            assert len(broker.claim_expired(ClaimRequest(10, **wish))) == 2
            assert sum(broker.sizes()["default"].values()) == 62
            broker.close()


class TestWeaknesses:
    def test_durable_server_reports_no_weaknesses(self) -> None:
        with private(appendonly="yes") as server:
            assert at(server.url).weaknesses() == []

    def test_eviction_and_missing_persistence_are_reported(self) -> None:
        options = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
        with private(**options) as server:
            evicts, forgets = broker_for(Settings(broker=server.url)).weaknesses()
        assert "Set it to noeviction" in evicts
        assert "Set appendonly yes" in forgets

    def test_old_version_is_reported(self) -> None:
        class Old:
            def info(self, section: str) -> dict[str, Any]:
                return {"redis_version": "4.0.14", "aof_enabled": 1}

        assert weaknesses(Old()) == ["Redis 4.0.14 is too old: use 5.0 or later, or Valkey."]


def test_cluster_names_separate_jobs(stand: RedisStand) -> None:
    other = RedisStand()
    stand.put(3)
    assert (other.claim(), other.broker.sizes(), other.broker.purge("default")) == ([], {}, 0)
    assert len(stand.claim()) == 3
    other.clear()


def test_driver_does_not_repeat_an_enqueue() -> None:
    """After a lost answer, a repeated enqueue could add the job again after its end."""
    retry = at(redis_url()).client.get_retry()
    assert retry.get_retries() == 0


def test_jobs_of_a_claim_change_independently(stand: RedisStand) -> None:
    """The scripts handle jobs with equal records together."""
    stand.put(3)
    acked, released, rest = stand.claim()
    assert (acked.attempt, released.attempt, rest.attempt) == (1, 1, 1)
    stand.broker.note_handed_out([rest.lease])
    assert stand.broker.kept([acked.job_id, released.job_id, rest.job_id]) == {
        acked.job_id,
        released.job_id,
    }
    again = Return(released.lease, attempts=4, crashes=2)
    assert stand.broker.settle([acked.lease], [again]) == set()
    assert stand.broker.states([acked.job_id, released.job_id, rest.job_id]) == {
        released.job_id: "ready",
        rest.job_id: "running",
    }
    found = stand.claim_one()
    assert (found.job_id, found.attempt, found.crashes) == (released.job_id, 5, 2)


class TestDamage:
    """A user deletes or changes Stoker's keys: these jobs and all others run."""

    @pytest.mark.parametrize("rest", [b"", b"\xc1", b"\x05", b"\x91\x01"])
    @pytest.mark.parametrize("place", ["ready", "deferred", "leases"])
    def test_job_with_damaged_record_runs(self, stand: RedisStand, place: str, rest: bytes) -> None:
        run_after = 1.0 if place == "deferred" else None
        damaged = message(run_after=run_after)
        stand.broker.enqueue([damaged])
        if place == "leases":
            stand.claim_one()
        records = f"{stand.broker.prefix}:job"
        if rest:
            stand.broker.client.hset(records, damaged.job_id.hex, rest)
        else:
            stand.broker.client.delete(records)
        (job_id,) = stand.put()
        found = stand.claim()
        if place == "leases":
            stand.broker.client.zadd(f"{stand.broker.prefix}:leases", {damaged.job_id.hex: 0})
            wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
            found += stand.broker.claim_expired(ClaimRequest(10, **wish))
        assert {one.job_id: (one.package, one.attempt) for one in found} == dict.fromkeys(
            (damaged.job_id, job_id), (b"package", 1)
        )
        assert stand.broker.settle([one.lease for one in found]) == set()
        assert stand.broker.sizes() == {}

    def test_claimed_job_with_damaged_record_is_not_added_again(self, stand: RedisStand) -> None:
        claimed = message()
        stand.broker.relay([claimed])
        stand.claim_one()
        stand.broker.client.hset(f"{stand.broker.prefix}:job", claimed.job_id.hex, b"\xc1")
        stand.broker.enqueue([claimed])
        assert stand.claim() == []

    def test_foreign_members_are_ignored(self, stand: RedisStand) -> None:
        (job_id,) = stand.put()
        for key in ("ready:default", "deferred", "leases"):
            stand.broker.client.zadd(f"{stand.broker.prefix}:{key}", {"junk": 0})
        assert [one.job_id for one in stand.claim()] == [job_id]
        wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
        assert stand.broker.claim_expired(ClaimRequest(10, **wish)) == []

    def test_queue_with_damaged_job_is_purged(self, stand: RedisStand) -> None:
        stand.broker.client.zadd(f"{stand.broker.prefix}:ready:mail", {uuid.uuid4().hex: 0})
        stand.put(queue="mail")
        assert stand.broker.purge("mail") == 1


def test_empty_queues_leave_no_keys(stand: RedisStand) -> None:
    """For projects with one queue per customer."""
    wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
    for number in range(20):
        stand.put(queue=f"customer-{number}")
    released, *rest = stand.broker.claim(ClaimRequest(20, **wish))
    assert stand.broker.claim(ClaimRequest(20, **wish)) == []
    stand.broker.settle(again=[Return(released.lease, attempts=0, crashes=0)])
    (found,) = stand.broker.claim(ClaimRequest(20, **wish))
    assert found.job_id == released.job_id
    stand.broker.settle([one.lease for one in (found, *rest)])
    assert stand.broker.claim(ClaimRequest(20, **wish)) == []
    assert list(stand.broker.client.scan_iter(f"{stand.broker.prefix}*")) == []


def test_queue_added_while_sizes_are_read_is_counted(
    stand: RedisStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.put(queue="new", run_after=4e9)
    monkeypatch.setattr(stand.broker.client, "smembers", lambda key: set())
    assert stand.broker.sizes()["new"]["deferred"] == 1


class TestRelays:
    def test_relay_repeated_after_the_end_adds_nothing(self, stand: RedisStand) -> None:
        job = message()
        stand.broker.relay([job], until=stand.broker.relay_until())
        stand.broker.settle([stand.claim_one().lease])
        stand.broker.relayed_for_good([job.job_id])
        stand.broker.relay([job], until=stand.broker.relay_until())
        assert stand.broker.sizes() == {}

    def test_confirmed_relays_are_remembered_for_a_shorter_time(self, stand: RedisStand) -> None:
        known, doubtful = message(), message()
        stand.broker.relay([known, doubtful])
        stand.broker.relayed_for_good([known.job_id, uuid.uuid4()])
        remembered = f"{stand.broker.prefix}:relayed"
        forget = dict(stand.broker.client.zrange(remembered, 0, -1, withscores=True))
        assert forget.keys() == {known.job_id.hex.encode(), doubtful.job_id.hex.encode()}
        wait_seconds = {one: due / 1e6 - stand.now() for one, due in forget.items()}
        assert wait_seconds[known.job_id.hex.encode()] == pytest.approx(600, abs=60)
        assert wait_seconds[doubtful.job_id.hex.encode()] == pytest.approx(24 * 3600, abs=60)

    def test_old_relays_are_forgotten(
        self, stand: RedisStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_relay, "LATE_SECONDS", -1.0)
        old = message()
        stand.broker.relay([old])
        stand.broker.relayed_for_good([old.job_id])
        new = message()
        stand.broker.relay([new])
        remembered = stand.broker.client.zrange(f"{stand.broker.prefix}:relayed", 0, -1)
        assert remembered == [new.job_id.hex.encode()]

    def test_relay_that_comes_too_late_is_refused(self, stand: RedisStand) -> None:
        read_at = stand.broker.relay_until() - 2 * redis_relay.RELAY_SECONDS
        with pytest.raises(BrokerUnavailable, match="they will be read again"):
            stand.broker.relay([message()], until=read_at)
        assert stand.broker.sizes() == {}

    def test_relay_after_a_change_of_the_servers_clock_succeeds_the_second_time(
        self, stand: RedisStand
    ) -> None:
        """The clock changes after a fail-over to another server, for example."""
        stand.broker._clock._lead = 0.0
        with pytest.raises(BrokerUnavailable):
            stand.broker.relay([message()], until=stand.broker.relay_until())
        stand.broker.relay([message()], until=stand.broker.relay_until())
        assert stand.broker.sizes()["default"]["ready"] == 1


def _answers(broker: RedisBroker) -> bool:
    try:
        broker.ping()
    except BrokerUnavailable:
        return False
    return True


def _use_everything(broker: RedisBroker | SlottedRedisBroker) -> None:
    wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
    wake = broker.open_wake()
    jobs = [message(), message(), message(run_after=4e9), message()]
    broker.enqueue(jobs[:3])
    broker.relay(jobs[3:])
    while not wake.is_due():
        pass
    assert wake.fileno() is not None
    first, second, third = broker.claim(ClaimRequest(10, **wish))
    assert broker.extend([first.lease], lease_seconds=LEASE_SECONDS) == set()
    assert broker.settle([first.lease], [Return(second.lease)]) == set()
    assert [one.lease for one in broker.held_by(wish["holder"])] == [third.lease]
    assert broker.expire_holder(wish["holder"]) == 1
    assert len(broker.claim_expired(ClaimRequest(10, **wish))) == 1
    assert broker.sizes() == {"default": {"ready": 1, "deferred": 1, "blocked": 0, "running": 1}}
    assert set(broker.states([one.job_id for one in jobs]).values()) == (
        {"ready", "deferred", "running"}
    )
    assert (broker.next_due_seconds() or 0) > 1e9
    assert broker.purge("default") == 2
    assert broker.info()["server"].startswith(("Redis ", "Valkey "))
    assert all(isinstance(one, str) for one in broker.weaknesses())
    wake.close()
    broker.close()
