"""A job with several locks or limits that has waited for long keeps the places that it can get."""

from __future__ import annotations

import uuid

import pytest

from stoker.brokers.contract import Lease
from stoker.guards import admission, sweep
from stoker.guards.sweep import sweep_keys
from stoker.models import Need
from stoker.models.need import NewNeed
from stoker.values.ids import new_job_id

from tests.conformance.stands import Stand
from tests.conformance.test_guards import claim_ids, need, put

ROUNDS = 12

FIRST, SECOND = need("a"), need("b")


@pytest.fixture
def stand(guarding_stand: Stand) -> Stand:
    return guarding_stand


@pytest.fixture(autouse=True)
def is_patience_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each job have waited for long."""
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", -3600.0)


class Busy:
    """Keeps locks busy: whenever a job ends, another waits that needs only its lock."""

    def __init__(self, stand: Stand, *locks: NewNeed) -> None:
        self._stand = stand
        self._running: dict[uuid.UUID, Lease] = {}
        for lock in locks:
            put(stand, lock)
        self.claim()

    def claim(self) -> list[uuid.UUID]:
        """Claim until no job may start. Return the ids of the claimed jobs."""
        claimed: list[uuid.UUID] = []
        for _ in range(3):  # a claim may leave the next job of a line to the claim after it
            for delivery in self._stand.claim(100, "default", "mail"):
                claimed.append(delivery.job_id)
                for key_id in needed_by(delivery.job_id):
                    self._running[key_id] = delivery.lease
        return claimed

    def end(self, lock: NewNeed) -> list[uuid.UUID]:
        """Enqueue another job of the lock, end the job that runs under it, and claim."""
        put(self._stand, lock)
        lease = self._running[lock.key_id]
        for key_id in needed_by(lease.job_id):
            self._running.pop(key_id)
        self._stand.broker.settle([lease])
        return self.claim()

    def is_free(self, lock: NewNeed) -> bool:
        return lock.key_id not in self._running


def needed_by(job_id: uuid.UUID) -> list[uuid.UUID]:
    return list(Need.objects.filter(job_id=job_id).values_list("key_id", flat=True))


def kept_by(job_id: uuid.UUID) -> list[uuid.UUID]:
    return list(
        Need.objects.filter(job_id=job_id).exclude(holds=None).values_list("holds", flat=True)
    )


def test_job_with_two_busy_locks_starts(stand: Stand) -> None:
    busy = Busy(stand, FIRST, SECOND)
    (both,) = put(stand, FIRST, SECOND)
    assert busy.claim() == []
    assert busy.end(FIRST) == []
    assert kept_by(both) == [FIRST.key_id], "no other job gets it"
    assert busy.end(SECOND) == [both]


def test_job_that_has_not_waited_long_keeps_no_place(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 3600.0)
    busy = Busy(stand, FIRST, SECOND)
    (both,) = put(stand, FIRST, SECOND)
    for _ in range(ROUNDS):
        assert both not in busy.end(FIRST) + busy.end(SECOND)
        assert kept_by(both) == []


@pytest.mark.parametrize("queue", ["default", "mail"])
def test_jobs_with_the_same_locks_in_another_order_do_not_wait_for_each_other(
    queue: str, stand: Stand
) -> None:
    busy = Busy(stand, FIRST, SECOND)
    (one,) = put(stand, FIRST, SECOND)
    (other,) = put(stand, SECOND, FIRST, queue=queue)
    claimed = busy.claim()
    for _ in range(ROUNDS):
        for lock in (SECOND, FIRST):
            if not busy.is_free(lock):
                claimed += busy.end(lock)
    assert {one, other} <= {*claimed}
    assert claimed.index(one) < claimed.index(other)


def test_only_the_first_job_in_a_line_keeps_a_place(stand: Stand) -> None:
    put(stand, SECOND, count=2)
    assert len(claim_ids(stand)) == 1
    (both,) = put(stand, FIRST, SECOND)  # behind the job that waits for the second lock
    assert claim_ids(stand) == []
    assert kept_by(both) == []
    (alone,) = put(stand, FIRST)
    assert claim_ids(stand) == [alone]


def test_place_that_is_kept_for_too_long_goes_to_the_next_job(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(stand, SECOND)
    stand.claim()
    (both,) = put(stand, FIRST, SECOND)
    (alone,) = put(stand, FIRST)
    assert claim_ids(stand) == []
    assert sweep_keys("default", None, 10, only_lines=True) == (0, None)
    assert kept_by(both) == [FIRST.key_id]
    monkeypatch.setattr(sweep, "KEPT_SECONDS", -1.0)
    assert sweep_keys("default", None, 10, only_lines=True) == (0, None), "no place was lost"
    assert kept_by(both) == []
    assert claim_ids(stand) == [alone]


def test_job_that_is_overtaken_gives_up_its_place_until_the_next_time(stand: Stand) -> None:
    put(stand, SECOND)
    (running,) = stand.claim()
    (both,) = put(stand, FIRST, SECOND)
    assert claim_ids(stand) == []
    assert kept_by(both) == [FIRST.key_id]
    stand.broker.settle([running.lease])  # makes the job ready
    (urgent,) = put(stand, SECOND, priority=50)
    assert claim_ids(stand) == [urgent]
    assert kept_by(both) == []
    (alone,) = put(stand, FIRST)
    assert claim_ids(stand) == [alone]


def test_older_job_that_comes_later_does_not_stop_a_job_that_keeps_its_place(stand: Stand) -> None:
    older = new_job_id()
    put(stand, SECOND)
    (running,) = stand.claim()
    (both,) = put(stand, FIRST, SECOND)
    assert claim_ids(stand) == []
    put(stand, FIRST, job_id=older)
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    assert claim_ids(stand) == [both]


def test_withdrawn_job_leaves_its_place_to_the_next(stand: Stand) -> None:
    put(stand, SECOND)
    stand.claim()
    (both,) = put(stand, FIRST, SECOND)
    (alone,) = put(stand, FIRST)
    assert claim_ids(stand) == []
    assert stand.broker.withdraw([both]) == {both}
    assert claim_ids(stand) == [alone]


def test_place_of_a_limit_is_kept_beside_running_jobs(stand: Stand) -> None:
    lock, limit = need("c"), need("d", "limit", 2)
    put(stand, lock)
    (running,) = stand.claim()
    (both,) = put(stand, limit, lock)
    alone = put(stand, limit, count=3)
    assert claim_ids(stand) == alone[:1]
    stand.broker.settle([running.lease])
    assert claim_ids(stand) == [both]
    assert Need.objects.filter(holds=limit.key_id).count() == 2


def test_job_that_may_be_refused_keeps_no_place(stand: Stand) -> None:
    """Its other guard lets it end, or tries it again later."""
    put(stand, SECOND)
    stand.claim()
    for on_busy in ("skip", "retry"):
        (both,) = put(stand, FIRST, SECOND._replace(on_busy=on_busy, retry_us=1_000_000))
        stand.claim()
        assert on_busy == "skip" or kept_by(both) == []


def test_job_with_a_rate_keeps_no_place(stand: Stand) -> None:
    rate = need("r", "rate", 1, period_us=3_600_000_000)
    put(stand, rate)
    assert len(stand.claim(rated_limit=10)) == 1
    (both,) = put(stand, FIRST, rate)
    assert claim_ids(stand, rated_limit=10) == []
    assert kept_by(both) == []
