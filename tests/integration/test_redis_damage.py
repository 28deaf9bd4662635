"""Redis: keys that another program deletes or changes, and scripts that fail half-way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.brokers.contract import ClaimRequest, Return
from stoker.exceptions import BrokerUnavailable

from tests.conformance.server_stands import RedisStand
from tests.conformance.stands import LEASE_SECONDS, message

pytestmark = [pytest.mark.redis, pytest.mark.sqlite]

LEASING: dict[str, Any] = {"holder": uuid.uuid4(), "lease_seconds": LEASE_SECONDS}


@pytest.fixture
def stand() -> Iterator[RedisStand]:
    made = RedisStand()
    yield made
    made.clear()


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

    def test_jobs_are_added_after_a_line_of_another_type_is_deleted(
        self, stand: RedisStand
    ) -> None:
        """A script that fails half-way is not rolled back: it must leave no job that counts as
        added and is in no line."""
        line, jobs = f"{stand.broker.prefix}:ready:default", [message(), message(queue="mail")]
        stand.broker.client.set(line, "junk")
        for add in (stand.broker.relay, stand.broker.enqueue):
            with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
                add(jobs)
        assert stand.broker.states([one.job_id for one in jobs]) == {}
        stand.broker.client.delete(line)
        stand.broker.relay(jobs)
        found = stand.broker.claim(ClaimRequest(10, **LEASING))
        assert [one.job_id for one in found] == [one.job_id for one in jobs]

    def test_line_of_another_type_keeps_no_other_queue_from_being_claimed(
        self, stand: RedisStand, events: list[tuple[str, dict[str, Any]]]
    ) -> None:
        line = f"{stand.broker.prefix}:ready:bad"
        (released,) = stand.put(queue="bad")
        lease = stand.claim(1, "bad")[0].lease
        (deferred,) = stand.put(queue="bad", run_after=1.0)
        stand.broker.client.set(line, "junk")
        stand.broker.client.sadd(f"{stand.broker.prefix}:queues", "bad")
        (job_id,) = stand.put()
        assert stand.broker.settle(again=[Return(lease)]) == set()
        claims = [stand.broker.claim(ClaimRequest(10, **LEASING)) for _ in range(3)]
        assert [[one.job_id for one in some] for some in claims] == [[job_id], [], []]
        assert [facts["queue"] for name, facts in events if name == "queue_unreadable"] == ["bad"]
        assert stand.broker.sizes()["bad"]["deferred"] == 2
        assert stand.broker.withdraw([deferred]) == {deferred}
        stand.broker.client.delete(line)
        stand.broker.client.zadd(f"{stand.broker.prefix}:deferred", {released.hex: 1})
        assert [one.job_id for one in stand.claim(10, "bad")] == [released]

    def test_results_of_another_type_keep_the_lease(self, stand: RedisStand) -> None:
        stand.put()
        found = stand.claim_one()
        for name in ("results", "result_expiries"):
            stand.broker.client.set(f"{stand.broker.prefix}:{name}", "junk")
        arguments = [f"{found.lease_id}:{found.job_id.hex};", 10**9, 10, b"result"]
        with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
            stand.broker._run("finish", arguments)
        assert [one.lease for one in stand.broker.held_by(stand.holder)] == [found.lease]
        assert stand.broker.states([found.job_id]) == {found.job_id: "running"}
