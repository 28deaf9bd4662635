"""Enqueue: all messages or none, each id once, packages unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.values.ids import new_job_id

from tests.conformance.stands import Stand, message


def test_enqueued_job_is_claimed_unchanged(stand: Stand) -> None:
    job_id = new_job_id()
    stand.broker.enqueue([message(job_id=job_id, queue="mail", priority=7, package=b"whatever")])
    (delivery,) = stand.claim(10, "mail")
    assert (delivery.job_id, delivery.queue, delivery.priority) == (job_id, "mail", 7)
    assert (delivery.package, delivery.attempt, delivery.crashes) == (b"whatever", 1, 0)


def test_many_jobs_in_one_call_are_claimed_in_order(stand: Stand) -> None:
    put = stand.put(stand.many(2_500))
    claimed = [delivery.job_id for _ in range(3) for delivery in stand.claim(1_000)]
    assert claimed == put


def test_failed_enqueue_adds_no_job(stand: Stand) -> None:
    unfit: Any = None
    messages = [message(), message(run_after=stand.now() - 1), message(package=unfit)]
    with pytest.raises(Exception, match=r"(?i)null|bytes|none"):
        stand.broker.enqueue(messages)
    assert stand.broker.states([one.job_id for one in messages]) == {}
    assert stand.claim() == []


@pytest.mark.parametrize("run_after", [None, 0.0], ids=["ready", "deferred"])
def test_waiting_id_is_not_added_again(stand: Stand, run_after: float | None) -> None:
    first = message(package=b"first", run_after=run_after)
    again = message(job_id=first.job_id, package=b"again", priority=5)
    other = message(package=b"other")
    stand.broker.enqueue([first])
    stand.broker.enqueue([again, other])
    claimed = sorted(stand.claim(), key=lambda delivery: delivery.package == b"other")
    assert [delivery.job_id for delivery in claimed] == [first.job_id, other.job_id]
    assert claimed[0].package == b"first" or not stand.capabilities.look_up


def test_leased_id_is_not_added_again(stand: Stand) -> None:
    job = message()
    stand.broker.enqueue([job])
    delivery = stand.claim_one()
    stand.broker.enqueue([job])
    assert stand.claim() == []
    assert stand.where(job.job_id) == "running"
    assert stand.broker.settle([delivery.lease]) == set()


@pytest.mark.parametrize("run_after", [None, 0.0], ids=["ready", "deferred"])
def test_id_twice_in_one_call_is_added_once(stand: Stand, run_after: float | None) -> None:
    first = message(package=b"first", run_after=run_after)
    stand.broker.enqueue([first, message(), message(job_id=first.job_id, package=b"again")])
    assert sorted(delivery.package for delivery in stand.claim()) == [b"first", b"package"]


@pytest.mark.parametrize(
    "package",
    [b"", b"\x00", b"a\x00b\\x00'\";%s --", bytes(range(256)), bytes(range(256)) * 4096],
    ids=["empty", "nul", "quotes", "every byte", "1 MiB"],
)
def test_packages_are_opaque_bytes(stand: Stand, package: bytes) -> None:
    most = stand.broker.capabilities.max_payload_bytes
    if most is not None and len(package) > most:
        pytest.skip(f"the broker takes at most {most} bytes")
    stand.broker.enqueue([message(package=package)])
    delivery = stand.claim_one()
    assert delivery.package == package
    assert type(delivery.package) is bytes


def test_empty_arguments_and_an_empty_broker_are_accepted(stand: Stand) -> None:
    broker = stand.broker
    broker.enqueue([])
    assert stand.claim(0) == []
    assert stand.claim(10) == []
    assert stand.rescue(0) == []
    assert stand.rescue(10) == []
    assert broker.extend([], lease_seconds=10) == set()
    assert broker.settle([]) == set()
    assert broker.settle(again=[]) == set()
    assert broker.withdraw([]) == set()
    assert broker.states([]) == {}
    assert broker.sizes() == {}
    assert broker.purge("default") == 0
    assert broker.held_by(stand.holder) == []
    assert broker.expire_holder(stand.holder) == 0
    assert broker.next_due_seconds() is None
    broker.wake_up([])


def test_limit_zero_claims_nothing(stand: Stand) -> None:
    (job_id,) = stand.put()
    assert stand.claim(0) == []
    assert stand.where(job_id) == "ready"
