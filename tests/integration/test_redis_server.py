"""Redis: unusual loads, several jobs in one script, and relays."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from stoker.brokers.contract import ClaimRequest, Return
from stoker.brokers.redis import broker as redis_relay
from stoker.exceptions import BrokerUnavailable

from tests.conformance.server_stands import RedisStand
from tests.conformance.stands import LEASE_SECONDS, message
from tests.integration.redis_brokers import at, private

pytestmark = [pytest.mark.redis, pytest.mark.sqlite]


@pytest.fixture
def stand() -> Iterator[RedisStand]:
    made = RedisStand()
    yield made
    made.clear()


class TestManyQueues:
    def test_priority_and_age_decide_among_all_queues(self, stand: RedisStand, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(5):
            names = [f"queue-{number}" for number in range(chance.randint(1, 30))]
            shares = [chance.random() ** 6 for _ in names]
            messages = [
                message(queue=queue, priority=chance.choice([0, 0, 0, -1, 2]))
                for queue in chance.choices(names, shares, k=chance.randint(1, 300))
            ]
            stand.broker.enqueue(messages)
            expected = sorted(messages, key=lambda one: (-one.priority, one.job_id))
            while expected:
                limit = chance.choice([1, 7, 20, 100])
                claimed = stand.claim(limit, *chance.sample(names, len(names)))
                some, expected = expected[:limit], expected[limit:]
                assert [one.job_id for one in claimed] == [one.job_id for one in some]
                assert [one.queue for one in claimed] == [one.queue for one in some]
            assert stand.claim(1, *names) == []

    @pytest.mark.parametrize("is_one_far_ahead", [False, True])
    def test_claim_reads_few_more_jobs_than_it_returns(
        self, stand: RedisStand, is_one_far_ahead: bool
    ) -> None:
        queues, limit = 40, 100
        names = [f"queue-{number}" for number in range(queues)]
        first = names[:1] * limit if is_one_far_ahead else names
        stand.broker.enqueue([message(queue=queue) for queue in first + names * limit])
        end = f"ECHO {stand.broker.prefix}"
        read = 0
        with Redis.from_url(stand.broker.settings.broker).monitor() as monitor:
            assert len(stand.claim(limit, *names)) == limit
            stand.broker.client.echo(stand.broker.prefix)
            while (command := monitor.next_command()["command"]) != end:
                if command.startswith(f"ZRANGE {stand.broker.prefix}:ready:"):
                    start, stop = command.split(" ")[2:4]
                    read += int(stop) - int(start) + 1
        assert limit <= read <= 4 * limit + queues


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


def test_cluster_names_separate_jobs(stand: RedisStand) -> None:
    other = RedisStand()
    stand.put(3)
    assert (other.claim(), other.broker.sizes(), other.broker.purge("default")) == ([], {}, 0)
    assert len(stand.claim()) == 3
    other.clear()


def test_jobs_of_a_claim_change_independently(stand: RedisStand) -> None:
    """The scripts handle jobs with equal records together."""
    stand.put(3)
    acked, released, rest = stand.claim()
    assert (acked.attempt, released.attempt, rest.attempt) == (1, 1, 1)
    stand.broker.note_handed_out([rest.lease])
    assert stand.broker.kept([acked.lease, released.lease, rest.lease]) == {
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
