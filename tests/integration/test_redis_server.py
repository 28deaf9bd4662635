"""The adapter and its server: how it is reached, what it bears, what it says when it cannot."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from stoker.brokers.adapters import adapter_for, broker_for
from stoker.brokers.contract import Return
from stoker.brokers.redis import broker as redis_relay
from stoker.brokers.redis.broker import RedisBroker
from stoker.brokers.redis.connection import weaknesses, without_password
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError

from tests.conformance.stands import LEASE_SECONDS, RedisStand, message, redis_url
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


def at(url: str, **options: Any) -> RedisBroker:
    broker = adapter_for(Settings(broker=url, **options))
    assert isinstance(broker, RedisBroker)
    return broker


class TestReaching:
    def test_nobody_is_there(self) -> None:
        with socket.socket() as unused:  # which has the port, and answers nobody
            unused.bind(("127.0.0.1", 0))
            broker = at(f"redis://user:secret@127.0.0.1:{unused.getsockname()[1]}/0")
            with pytest.raises(BrokerUnavailable, match="did not carry this out") as raised:
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
    def test_a_url_that_cannot_be_used(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="redis://HOST:PORT/DATABASE"):
            at(url)

    def test_without_its_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = [name for name in sys.modules if name.startswith("stoker.brokers.redis")]
        for name in loaded:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "redis", None)
        with pytest.raises(ConfigurationError, match=r"pip install 'django-stoker\[redis\]'"):
            adapter_for(Settings(broker="redis://127.0.0.1"))

    def test_a_password(self) -> None:
        with private() as server:
            with Redis(port=server.port) as client:
                client.config_set("requirepass", "a b@c")
            with pytest.raises(BrokerUnavailable, match="redis://USER:PASSWORD@HOST"):
                at(server.url).ping()
            at(f"redis://:a%20b%40c@127.0.0.1:{server.port}/0").ping()

    def test_a_cluster(self) -> None:
        with private(in_cluster=True) as server:
            with Redis(port=server.port) as client:
                client.execute_command("CLUSTER ADDSLOTS", *range(16384))
                while client.cluster("info")["cluster_state"] != "ok":
                    pass
            _do_everything(at(f"redis+cluster://127.0.0.1:{server.port}"))

    def test_nobody_of_a_cluster_is_there_yet(self) -> None:
        """Who enqueues in a transaction can do without, and who listens tries again."""
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

    def test_sentinels(self) -> None:
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
                _do_everything(broker)
                with Redis(port=server.port, db=3) as client:
                    assert client.scard(f"{broker.prefix}:queues") == 1
            finally:
                sentinel.kill()
                sentinel.wait()

    def test_another_server_of_the_same_name_after_a_flush_of_scripts(
        self, stand: RedisStand
    ) -> None:
        stand.put()
        stand.broker.client.script_flush()  # type: ignore[attr-defined] # of this broker
        assert stand.broker.ack([stand.claim_one().lease]) == set()

    def test_names_without_passwords(self) -> None:
        assert without_password("redis+sentinel://a:b@h:1,i:2/m") == "redis+sentinel://h:1,i:2/m"
        assert without_password("redis://h/0") == "redis://h/0"
        secret = "redis+sentinel://a:b@h/m?sentinel_password=c&db=1"
        assert without_password(secret) == "redis+sentinel://h/m?sentinel_password=...&db=1"
        assert without_password("unix:///s?password=p@q") == "unix:///s?password=..."


class TestBearing:
    def test_odd_names_of_queues(self, stand: RedisStand) -> None:
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

    def test_large_packages(self, stand: RedisStand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_relay, "LOAD_BYTES", 5 << 20)
        packages = [bytes([place]) * (2 << 20) for place in range(8)]
        stand.broker.enqueue([message(package=package) for package in packages])
        assert [one.package for one in stand.claim(10)] == packages

    def test_a_claim_brings_as_much_as_one_answer_should_carry(self, stand: RedisStand) -> None:
        """500 packages of 1 MiB would be half a GiB at once. One comes, however large it is."""
        sizes = [6 << 20, 6 << 20, 6 << 20, 20 << 20, 1]
        put = [stand.put(package=b"x" * size)[0] for size in sizes]
        claims = [[one.job_id for one in stand.claim(500)] for _ in range(5)]
        assert claims == [put[:2], put[2:3], put[3:4], put[4:], []]
        stand.advance(LEASE_SECONDS + 1)
        assert [len(stand.rescue(500)) for _ in range(5)] == [2, 1, 1, 1, 0]

    def test_many_jobs(self, stand: RedisStand, monkeypatch: pytest.MonkeyPatch) -> None:
        """More than fit on Lua's stack, and than Redis takes at once."""
        monkeypatch.setattr(redis_relay, "LOAD_JOBS", 7_000)
        stand.put(20_000, package=b"")
        claimed = stand.claim(9_000)
        assert len(claimed) == 9_000
        leases = [one.lease for one in claimed]
        assert stand.broker.extend(leases, lease_seconds=LEASE_SECONDS) == set()
        assert len(stand.broker.held_by(stand.holder)) == 9_000
        assert stand.broker.release([Return(lease) for lease in leases[:8_500]]) == set()
        assert stand.broker.expire_holder(stand.holder) == 500
        assert len(stand.rescue(1_000)) == 500
        assert stand.broker.purge("default") == 19_500

    def test_a_full_memory_lets_what_is_there_be_worked_off(self) -> None:
        """Nothing is added, and nothing that was refused is there half."""
        with private() as server:
            broker, holder = at(server.url), uuid.uuid4()
            broker.enqueue([message(package=b"x" * 1000) for _ in range(100)])
            broker.enqueue([message(run_after=1.0), message(run_after=2.0)])
            wish: dict[str, Any] = {"holder": holder, "lease_seconds": LEASE_SECONDS}
            (first, *_) = broker.claim([], 2, **wish)
            with Redis(port=server.port) as client:
                client.config_set("maxmemory", "1mb")
            for put in (broker.enqueue, broker.relay):
                with pytest.raises(BrokerUnavailable, match="raise maxmemory"):
                    put([message(package=b"x" * 1000)])
            assert broker.extend([first.lease], lease_seconds=LEASE_SECONDS) == set()
            claimed = broker.claim([], 50, **wish)
            leases = [one.lease for one in claimed]
            assert broker.settle(leases[:40], [Return(one) for one in leases[40:]]) == set()
            assert broker.expire_holder(holder) == 2
            assert len(broker.claim_expired(10, **wish)) == 2
            assert sum(broker.sizes()["default"].values()) == 62
            broker.close()


class TestWeaknesses:
    def test_all_is_well(self) -> None:
        with private(appendonly="yes") as server:
            assert at(server.url).weaknesses() == []

    def test_it_forgets_and_evicts(self) -> None:
        options = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
        with private(**options) as server:
            evicts, forgets = broker_for(Settings(broker=server.url)).weaknesses()
        assert "Set it to noeviction" in evicts
        assert "Set appendonly yes" in forgets

    def test_it_is_too_old(self) -> None:
        class Old:
            def info(self, section: str) -> dict[str, Any]:
                return {"redis_version": "4.0.14", "aof_enabled": 1}

        assert weaknesses(Old()) == ["Redis 4.0.14 is too old: use 5.0 or later, or Valkey."]


def test_names_of_clusters_keep_jobs_apart(stand: RedisStand) -> None:
    other = RedisStand()
    stand.put(3)
    assert (other.claim(), other.broker.sizes(), other.broker.purge("default")) == ([], {}, 0)
    assert len(stand.claim()) == 3
    other.clear()


def test_an_enqueue_is_not_repeated_by_the_driver() -> None:
    """The answer may be lost when the job is there: a second one could come after its end."""
    retry = at(redis_url()).client.get_retry()
    assert retry.get_retries() == 0


class TestDamage:
    """Somebody deletes, writes or evicts what is Stoker's: the jobs run, and the others too."""

    @pytest.mark.parametrize("rest", [b"", b"\xc1", b"\x05", b"\x91\x01"])
    @pytest.mark.parametrize("place", ["ready", "deferred", "leases"])
    def test_a_record(self, stand: RedisStand, place: str, rest: bytes) -> None:
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
            found += stand.broker.claim_expired(10, **wish)
        assert {one.job_id: (one.package, one.attempt) for one in found} == dict.fromkeys(
            (damaged.job_id, job_id), (b"package", 1)
        )
        assert stand.broker.ack([one.lease for one in found]) == set()
        assert stand.broker.sizes() == {}

    def test_what_is_no_job(self, stand: RedisStand) -> None:
        (job_id,) = stand.put()
        for key in ("ready:default", "deferred", "leases"):
            stand.broker.client.zadd(f"{stand.broker.prefix}:{key}", {"junk": 0})
        assert [one.job_id for one in stand.claim()] == [job_id]
        wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
        assert stand.broker.claim_expired(10, **wish) == []

    def test_a_queue_with_a_damaged_job_is_purged(self, stand: RedisStand) -> None:
        stand.broker.client.zadd(f"{stand.broker.prefix}:ready:mail", {uuid.uuid4().hex: 0})
        stand.put(queue="mail")
        assert stand.broker.purge("mail") == 1


def test_nothing_is_left_of_queues_that_are_empty(stand: RedisStand) -> None:
    """Where each customer has one, say."""
    wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
    for number in range(20):
        stand.put(queue=f"customer-{number}")
    released, *rest = stand.broker.claim((), 20, **wish)
    assert stand.broker.claim((), 20, **wish) == []
    stand.broker.release([Return(released.lease, attempts=0, crashes=0)])
    (found,) = stand.broker.claim((), 20, **wish)
    assert found.job_id == released.job_id
    stand.broker.ack([one.lease for one in (found, *rest)])
    assert stand.broker.claim((), 20, **wish) == []
    assert list(stand.broker.client.scan_iter(f"{stand.broker.prefix}*")) == []


def test_a_queue_that_comes_while_they_are_counted(
    stand: RedisStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.put(queue="new", run_after=4e9)
    monkeypatch.setattr(stand.broker.client, "smembers", lambda key: set())
    assert stand.broker.sizes()["new"]["deferred"] == 1


class TestRelays:
    def test_one_that_is_repeated_after_the_end_adds_nothing(self, stand: RedisStand) -> None:
        job = message()
        stand.broker.relay([job], until=stand.broker.relay_until())
        stand.broker.ack([stand.claim_one().lease])
        stand.broker.relayed_for_good([job.job_id])
        stand.broker.relay([job], until=stand.broker.relay_until())
        assert stand.broker.sizes() == {}

    def test_what_the_outbox_has_no_more_is_soon_forgotten(self, stand: RedisStand) -> None:
        known, doubtful = message(), message()
        stand.broker.relay([known, doubtful])
        stand.broker.relayed_for_good([known.job_id, uuid.uuid4()])
        remembered = f"{stand.broker.prefix}:relayed"
        forget = dict(stand.broker.client.zrange(remembered, 0, -1, withscores=True))
        assert forget.keys() == {known.job_id.hex.encode(), doubtful.job_id.hex.encode()}
        wait_seconds = {one: due / 1e6 - stand.now() for one, due in forget.items()}
        assert wait_seconds[known.job_id.hex.encode()] == pytest.approx(600, abs=60)
        assert wait_seconds[doubtful.job_id.hex.encode()] == pytest.approx(24 * 3600, abs=60)

    def test_it_forgets(self, stand: RedisStand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_relay, "LATE_SECONDS", -1.0)
        old = message()
        stand.broker.relay([old])
        stand.broker.relayed_for_good([old.job_id])
        new = message()
        stand.broker.relay([new])
        remembered = stand.broker.client.zrange(f"{stand.broker.prefix}:relayed", 0, -1)
        assert remembered == [new.job_id.hex.encode()]

    def test_who_was_stopped_meanwhile_is_refused(self, stand: RedisStand) -> None:
        read_at = stand.broker.relay_until() - 2 * redis_relay.RELAY_SECONDS
        with pytest.raises(BrokerUnavailable, match="it will be read again"):
            stand.broker.relay([message()], until=read_at)
        assert stand.broker.sizes() == {}

    def test_a_server_whose_clock_was_set_is_asked_again(self, stand: RedisStand) -> None:
        """One moved to another server, say, after a fail-over."""
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


def _do_everything(broker: RedisBroker) -> None:
    wish: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}
    wake = broker.open_wake()
    jobs = [message(), message(), message(run_after=4e9), message()]
    broker.enqueue(jobs[:3])
    broker.relay(jobs[3:])
    while not wake.is_due():
        pass
    assert wake.fileno() is not None
    first, second, third = broker.claim([], 10, **wish)
    assert broker.extend([first.lease], lease_seconds=LEASE_SECONDS) == set()
    assert broker.settle([first.lease], [Return(second.lease)]) == set()
    assert [one.lease for one in broker.held_by(wish["holder"])] == [third.lease]
    assert broker.expire_holder(wish["holder"]) == 1
    assert len(broker.claim_expired(10, **wish)) == 1
    assert broker.sizes() == {"default": {"ready": 1, "deferred": 1, "blocked": 0, "running": 1}}
    assert set(broker.whereabouts([one.job_id for one in jobs]).values()) == (
        {"ready", "deferred", "running"}
    )
    assert (broker.next_due_seconds() or 0) > 1e9
    assert broker.purge("default") == 2
    assert broker.info()["server"].startswith(("Redis ", "Valkey "))
    assert all(isinstance(one, str) for one in broker.weaknesses())
    wake.close()
    broker.close()
