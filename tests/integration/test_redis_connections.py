"""Redis: how the server is reached, its settings, and error messages."""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from stoker.brokers.adapters import adapter_for, broker_for
from stoker.brokers.contract import ClaimRequest, Return
from stoker.brokers.redis.broker import RedisBroker
from stoker.brokers.redis.connection import weaknesses
from stoker.brokers.redis.slots import SlottedRedisBroker
from stoker.cluster.worker.clean_up import WorkerAftercare
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError, TaskTimeout
from stoker.jobs.outcomes import Attempted, Batch, Succeeded

from tests.conformance.server_stands import RedisStand, redis_url
from tests.conformance.stands import LEASE_SECONDS, message
from tests.integration.redis_brokers import at, does, private
from tests.servers.old_redis import OldServer
from tests.servers.private import free_port
from tests.servers.proxy import Proxy
from tests.servers.silent import SilentServer

pytestmark = [pytest.mark.redis, pytest.mark.sqlite]


@pytest.fixture
def stand() -> Iterator[RedisStand]:
    made = RedisStand()
    yield made
    made.clear()


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

    @pytest.mark.parametrize(
        ("url", "option"),
        [
            ("redis+sentinel://127.0.0.1:1/main?ssl=true", "no option but 'sentinel_password'"),
            ("redis+cluster://127.0.0.1:1?slots=2&ssl=true", "no option but 'slots'"),
        ],
    )
    def test_option_without_effect_raises_configuration_error(self, url: str, option: str) -> None:
        """Without TLS, a password would be sent in plain text."""
        with pytest.raises(ConfigurationError, match=option):
            at(url)

    def test_answer_of_an_interrupted_call_is_not_read_by_the_next_call(
        self, stand: RedisStand
    ) -> None:
        (job_id,) = stand.put()
        _leave_an_answer(stand.broker.client)
        assert stand.broker.states([job_id]) == {job_id: "ready"}

    def test_connections_are_closed_after_an_interrupted_task(self) -> None:
        """The answer to the interrupted call may come later than the next call begins."""
        dispatch = broker_for(Settings(broker=redis_url()))
        broker: Any = dispatch.broker
        broker.ping()
        pool = broker.client.connection_pool
        assert [one for one in pool._available_connections if one._sock]
        with pytest.raises(TaskTimeout), closing(_Aftercare()):
            raise TaskTimeout
        assert not [one for one in pool._available_connections if one._sock]
        broker.ping()

    def test_server_that_has_become_a_replica_is_left(self) -> None:
        """A host name may lead to the new master, and the old one keeps its connections open."""
        with private() as old, private() as new, Proxy("127.0.0.1", old.port) as line:
            broker = at(f"redis://127.0.0.1:{line.port}/0")
            broker.ping()
            with Redis(port=old.port) as client:
                client.replicaof("127.0.0.1", new.port)
            line.lead_to("127.0.0.1", new.port, is_cut=False)
            with pytest.raises(BrokerUnavailable, match="read only replica"):
                broker.enqueue([message()])
            broker.enqueue([message()])
            broker.close()

    def test_server_that_refuses_writes_counts_as_unreachable(self) -> None:
        """What cannot be recorded there waits until it is back."""
        with private() as server, Redis(port=server.port) as client:
            broker = at(server.url)
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(BrokerUnavailable, match="replicas"):
                broker.ping()
            client.config_set("min-replicas-to-write", 0)
            client.config_set("maxmemory", 1)
            broker.ping()
            broker.close()

    def test_silent_sentinels_share_the_deadline(self) -> None:
        with ExitStack() as stack:
            silent = [stack.enter_context(SilentServer()) for _ in range(3)]
            hosts = ",".join(f"127.0.0.1:{one.port}" for one in silent)
            broker = at(f"redis+sentinel://{hosts}/main", database_seconds=2)
            with pytest.raises(BrokerUnavailable, match="No master found"):
                broker.ping()
            assert [one.accepted for one in silent] == [1, 1, 1]
            pool = broker.client.connection_pool
            waits = [
                one.connection_pool.connection_kwargs["socket_timeout"]
                for one in pool.sentinel_manager.sentinels
            ]
            assert waits == [0.5, 0.5, 0.5]
            assert pool.connection_kwargs["socket_timeout"] == 2

    def test_nodes_of_a_redis_cluster_share_the_deadline(self) -> None:
        with private(in_cluster=True) as server:
            _make_cluster(server.port)
            broker = at(f"redis+cluster://127.0.0.1:{server.port}", database_seconds=20)
            options = broker.first.client.nodes_manager.connection_kwargs
            assert (options["socket_timeout"], options["socket_connect_timeout"]) == (5, 2)
            broker.close()

    def test_server_without_protocol_3_is_used(self) -> None:
        """Redis 5 is such a server."""
        with OldServer() as server:
            broker = at(f"redis://127.0.0.1:{server.port}/0")
            broker.ping()
            broker.close()

    @pytest.mark.parametrize("in_cluster", [False, True])
    def test_user_with_the_permissions_of_the_guide_uses_everything(
        self, *, in_cluster: bool
    ) -> None:
        page = (Path(__file__).parents[2] / "docs/howto/use-redis.md").read_text("utf-8")
        rights = re.findall(r"^ACL SETUSER (.*)$", page, re.MULTILINE)
        url, end = "redis", "/0"
        if in_cluster:
            rights += re.findall(r"In a Redis cluster it also needs `(.*)`", page)
            url, end = "redis+cluster", "?slots=4"
        with private(in_cluster=in_cluster) as server:
            if in_cluster:
                _make_cluster(server.port)
            with Redis(port=server.port) as client:
                words = " ".join(rights).replace("NAME", "shop").split()
                client.execute_command("ACL SETUSER", *words)
            url = f"{url}://stoker:PASSWORD@127.0.0.1:{server.port}{end}"
            broker = at(url, cluster="shop", results="redis")
            broker.ping()
            _use_everything(broker)
            _finish_one(broker)

    def test_enqueue_of_a_user_who_may_not_publish_adds_the_job(self) -> None:
        """If it raised an error, the caller would enqueue the job a second time."""
        with private() as server:
            rights = ["on", ">word", "~*", "resetchannels", "+@all", "-info", "-config"]
            with Redis(port=server.port) as client:
                client.execute_command("ACL SETUSER", "shop", *rights)
            broker = at(f"redis://shop:word@127.0.0.1:{server.port}/0")
            broker.enqueue([message()])
            broker.ping()
            assert (broker.weaknesses(), broker.info()["server"]) == ([], "Redis")
            assert broker.sizes()["default"]["ready"] == 1
            broker.close()

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
            _make_cluster(server.port)
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
                while not does(broker.ping):
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


class TestWeaknesses:
    def test_durable_server_reports_no_weaknesses(self) -> None:
        with private(is_durable=True) as server:
            assert at(server.url).weaknesses() == []

    def test_eviction_and_missing_persistence_are_reported(self) -> None:
        options = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
        with private(**options) as server:
            evicts, forgets = broker_for(Settings(broker=server.url)).weaknesses()
        assert "Set it to noeviction" in evicts
        assert "Set appendonly yes" in forgets

    def test_log_that_is_not_synced_at_each_write_is_reported(self) -> None:
        with private(appendonly="yes", appendfsync="everysec") as server:
            (weakness,) = at(server.url).weaknesses()
        assert "appendfsync is everysec. Set appendfsync always" in weakness

    def test_old_version_is_reported(self) -> None:
        class Old:
            def info(self, section: str) -> dict[str, Any]:
                return {"redis_version": "4.0.14", "aof_enabled": 1}

            def config_get(self, name: str) -> dict[str, str]:
                return {name: "always"}

        assert weaknesses(Old()) == ["Redis 4.0.14 is too old: use 5.0 or later, or Valkey."]


def test_driver_does_not_repeat_an_enqueue() -> None:
    """After a lost answer, a repeated enqueue could add the job again after its end."""
    retry = at(redis_url()).client.get_retry()
    assert retry.get_retries() == 0


def test_driver_does_not_repeat_an_enqueue_in_a_redis_cluster() -> None:
    with private(in_cluster=True) as server, Proxy("127.0.0.1", server.port) as line:
        _make_cluster(server.port)
        with Redis(port=server.port) as client:
            client.config_set("cluster-announce-port", line.port)
            if client.info("server")["redis_version"].startswith("6."):
                pytest.skip("Redis 6 does not tell clients of another port before it restarts")
        broker = at(f"redis+cluster://127.0.0.1:{line.port}")
        broker.enqueue([message()])
        with Redis(port=server.port) as client:
            client.config_resetstat()
            line.lose_answer_to(b"EVALSHA")
            with pytest.raises(BrokerUnavailable):
                broker.enqueue([message()])
            assert line.lost.is_set()
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        broker.close()


class _Aftercare(WorkerAftercare):
    def close(self) -> None:
        self.after_sync(None)


def _leave_an_answer(client: Redis) -> None:
    """Do as a call that is interrupted before it reads its answer."""
    connection = client.connection_pool.get_connection()
    connection.send_command("ECHO", "junk")
    while not connection.can_read(timeout=1):
        pass
    client.connection_pool.release(connection)


def _make_cluster(port: int) -> None:
    with Redis(port=port) as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(16384))
        while client.cluster("info")["cluster_state"] != "ok":
            pass


def _finish_one(broker: RedisBroker | SlottedRedisBroker) -> None:
    """Let Redis keep a result."""
    broker.enqueue([message()])
    (found,) = broker.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=LEASE_SECONDS))
    batch = Batch.of([Attempted(found, Succeeded(b"1"), "worker", 1.0, 2.0)])
    batch.decide({})
    batch.tasks, batch.enqueued_at = ["task"], [0.0]
    assert broker.finish(batch, batch.leases)[:2] == (set(), set())
    assert set(broker.results([found.job_id])) == {found.job_id}
    broker.close()


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
