"""Rates at the claim: how many jobs start, how long their permits last, and which is next."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from django.db import transaction

from stoker.brokers.contract import Delivery, Return
from stoker.guards.sweep import call_due, look_after, sweep_keys
from stoker.models import GuardKey
from stoker.models.guard_key import GuardKeyQuerySet
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.store import waiting
from stoker.store.written import MICROSECONDS, microseconds

from tests.conformance.stands import Stand

PERIOD_SECONDS = 600.0
MARGIN_SECONDS = 1.0


@pytest.fixture
def stand(guarding_stand: Stand) -> Stand:
    return guarding_stand


def rate(starts: int, **options: Any) -> NewNeed:
    """Return a rate of this many starts in ten minutes."""
    key_id = uuid.uuid5(uuid.NAMESPACE_OID, "rate")
    period_us = microseconds(PERIOD_SECONDS)
    return NewNeed(key_id, "rate", "rate", starts, period_us=period_us, **options)


def put(stand: Stand, need: NewNeed, count: int = 1, **options: Any) -> list[uuid.UUID]:
    return stand.put(count, needs=[need], **options)


def claim(stand: Stand, rated_limit: int = 100, **options: Any) -> list[Delivery]:
    return stand.claim(100, rated_limit=rated_limit, **options)


def ids(deliveries: list[Delivery]) -> list[uuid.UUID]:
    return [delivery.job_id for delivery in deliveries]


def let_pass(seconds: float) -> None:
    """Make all times stored with the keys that much older."""
    past_us = microseconds(seconds)
    for key in GuardKey.objects.all():
        key.starts = [[until_us - past_us, weight] for until_us, weight in key.starts]
        key.due_us = None if key.due_us is None else key.due_us - past_us
        key.save()


def test_rate_limits_starts_per_period_and_keeps_the_order(stand: Stand) -> None:
    jobs = put(stand, rate(3), 8)
    assert ids(claim(stand)) == jobs[:3]
    assert claim(stand) == []
    assert stand.where(jobs[3]) == "blocked"
    let_pass(PERIOD_SECONDS / 2)
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS / 2 + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == jobs[3:6]
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == jobs[6:]


@pytest.mark.parametrize("burst", [0, 3])
def test_starts_of_ended_jobs_count_after_upkeep_until_the_period_ends(
    burst: int, stand: Stand
) -> None:
    need = rate(3, burst=burst)
    put(stand, need, 3)
    stand.broker.settle([delivery.lease for delivery in claim(stand)])
    sweep_keys("default", None, 10, only_lines=False)
    (late,) = put(stand, need)
    assert claim(stand) == []
    stand.broker.withdraw([late])
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    call_due("default", 10)
    sweep_keys("default", None, 10, only_lines=False)
    assert not GuardKey.objects.exists()


def test_no_more_rated_jobs_start_than_rated_limit(stand: Stand) -> None:
    jobs = put(stand, rate(10), 5)
    free = stand.put(2)
    assert ids(claim(stand, rated_limit=0)) == free
    assert ids(claim(stand, rated_limit=2)) == jobs[:2]
    assert claim(stand, rated_limit=0) == []
    assert ids(claim(stand, rated_limit=2)) == jobs[2:4]
    assert ids(claim(stand, rated_limit=2)) == jobs[4:]


def test_permit_lasts_one_percent_of_the_period_or_permit_seconds(
    stand: Stand,
) -> None:
    put(stand, rate(1))
    (delivery,) = claim(stand)
    assert MARGIN_SECONDS <= delivery.permit_seconds < MARGIN_SECONDS + 30
    stand.broker.settle([delivery.lease])
    let_pass(PERIOD_SECONDS * 2)
    put(stand, rate(1)._replace(period_us=MICROSECONDS))
    (delivery,) = claim(stand, permit_seconds=0.3)
    assert 0.3 <= delivery.permit_seconds < 30
    ((until_us, _),) = GuardKey.objects.get().starts
    assert until_us >= stand.now() * MICROSECONDS - microseconds(30) + microseconds(0.3)


def test_permit_counts_from_the_end_of_the_wait_for_the_key(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim reads the clock only after it has locked the key."""
    lock = GuardKeyQuerySet.lock_or_make

    def wait(*arguments: Any) -> Any:
        time.sleep(0.1)
        return lock(*arguments)

    monkeypatch.setattr(GuardKeyQuerySet, "lock_or_make", wait)
    put(stand, rate(1))
    (delivery,) = claim(stand)
    assert delivery.permit_seconds >= MARGIN_SECONDS + 0.1


def test_jobs_without_a_rate_have_no_permit(stand: Stand) -> None:
    stand.put(1)
    (delivery,) = claim(stand, permit_seconds=0.5)
    assert delivery.permit_seconds == 0.0


def test_job_that_waits_for_its_weight_is_not_overtaken_and_causes_no_early_poll(
    stand: Stand,
) -> None:
    light, heavy, behind = (
        job_id for weight in (3, 5, 1) for job_id in put(stand, rate(7, weight=weight))
    )
    assert ids(claim(stand)) == [light]
    assert claim(stand) == []
    seconds = stand.broker.next_due_seconds()
    assert seconds is not None
    assert seconds > PERIOD_SECONDS - 60
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == [heavy, behind]


def test_heavy_job_that_joins_the_line_does_not_delay_the_light_job_at_its_head(
    stand: Stand,
) -> None:
    put(stand, rate(10, weight=5))
    assert len(claim(stand)) == 1
    let_pass(PERIOD_SECONDS / 2)
    put(stand, rate(10, weight=5))
    assert len(claim(stand)) == 1
    (light,) = put(stand, rate(10, weight=1))
    assert claim(stand) == []
    put(stand, rate(10, weight=10))
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS / 2 + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == [light]


def test_heavy_job_of_a_queue_delays_no_lighter_job_of_another_queue(stand: Stand) -> None:
    put(stand, rate(10, weight=5))
    assert len(claim(stand)) == 1
    let_pass(PERIOD_SECONDS / 2)
    put(stand, rate(10, weight=5))
    assert len(claim(stand)) == 1
    (light,) = put(stand, rate(10, weight=1), queue="light")
    assert claim_from(stand, "light") == []
    put(stand, rate(10, weight=10), queue="heavy")
    assert claim_from(stand, "heavy") == []
    (next_light,) = put(stand, rate(10, weight=1), queue="light")
    assert claim_from(stand, "light") == []
    let_pass(PERIOD_SECONDS / 2 + 2 * MARGIN_SECONDS)
    assert claim_from(stand, "light") == [light, next_light]


def test_line_of_a_rate_goes_on_at_once_behind_a_job_that_lacks_another_guard(
    stand: Stand,
) -> None:
    lock = NewNeed(uuid.uuid5(uuid.NAMESPACE_OID, "lock"), "lock", "lock", 1)
    put(stand, lock)
    assert len(claim(stand)) == 1
    put(stand, rate(1))
    assert len(claim(stand)) == 1
    stand.put(3, needs=[rate(1), lock])
    (last,) = put(stand, rate(1))
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    found = [ids(claim(stand)) for _ in range(8)]
    assert [one for one in found if one] == [[last]]


@pytest.mark.parametrize("leaves", ["withdrawn", "rescheduled"])
def test_job_behind_one_that_waits_for_its_weight_starts_when_that_one_leaves(
    leaves: str, stand: Stand
) -> None:
    started, heavy, light = (
        job_id for weight in (5, 10, 1) for job_id in put(stand, rate(10, weight=weight))
    )
    assert ids(claim(stand)) == [started]
    if leaves == "withdrawn":
        stand.broker.withdraw([heavy])
    else:
        reschedule(heavy, rate(10, weight=10))
    assert ids(claim(stand)) == [light]


def reschedule(job_id: uuid.UUID, need: NewNeed) -> None:
    """Defer a blocked job for an hour, as ``stoker jobs change`` does."""
    message = Message(job_id, "task", "default", 0, b"", time.time() + 3600, needs=[need])
    with transaction.atomic():
        held = waiting.hold("default", {job_id: "blocked"}, alone=True)
        neglected = waiting.replace("default", [(held[job_id], message)])
    look_after("default", neglected)


def test_refused_job_does_not_count_as_a_start(stand: Stand) -> None:
    light = put(stand, rate(7))
    assert ids(claim(stand)) == light
    let_pass(PERIOD_SECONDS / 2)
    heavy = put(stand, rate(7, weight=7))
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS / 2 + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == heavy


def test_next_due_seconds_ignores_rates_if_not_rated(stand: Stand) -> None:
    put(stand, rate(1), 2)
    claim(stand)
    assert stand.broker.next_due_seconds() is not None
    assert stand.broker.next_due_seconds(rated=False) is None


def test_job_released_unstarted_gets_another_permit_and_its_attempt_back(stand: Stand) -> None:
    first, second = put(stand, rate(1), 2)
    (delivery,) = claim(stand)
    stand.broker.settle(again=[Return(delivery.lease)])
    assert claim(stand) == [], "the broker cannot know that it was not started"
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    (again,) = claim(stand)
    assert (again.job_id, again.attempt) == (first, 1)
    assert stand.where(second) == "blocked"


def test_rate_set_to_zero_starts_nothing(stand: Stand) -> None:
    put(stand, rate(5), 3)
    assert len(claim(stand, rated_limit=1)) == 1
    GuardKey.objects.update(places_set=0)
    assert claim(stand) == []
    GuardKey.objects.update(places_set=None)
    let_pass(PERIOD_SECONDS)
    assert len(claim(stand)) == 2


def test_burst_starts_at_once_and_then_one_by_one(stand: Stand) -> None:
    jobs = put(stand, rate(10, burst=3), 5)
    assert ids(claim(stand)) == jobs[:3]
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS / 10 + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == jobs[3:4]


def test_jobs_without_a_rate_do_not_wait_behind_rated_jobs(stand: Stand) -> None:
    """Even with many rated jobs and small claims."""
    put(stand, rate(1), 50)
    (free,) = stand.put(1)
    assert len(stand.claim(2)) == 1
    claimed: list[Delivery] = []
    for _ in range(50):
        if not claimed:
            claimed = stand.claim(2)
    assert ids(claimed) == [free]


def test_claim_is_due_at_once_while_jobs_may_wait_behind_rated_ones(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.brokers.orm.broker.LOOK_BEHIND_SECONDS", 0.0001)
    put(stand, rate(1), 5)
    assert len(stand.claim(2)) == 1
    assert stand.claim(2) == []
    assert stand.broker.next_due_seconds() == 0.0
    while stand.claim(2) or stand.broker.next_due_seconds() == 0.0:
        pass
    assert stand.broker.sizes()["default"]["blocked"] == 4


def test_rated_job_does_not_wait_until_the_others_are_done(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.brokers.orm.claim.PROMOTE_SECONDS", 600.0)
    first, second = put(stand, rate(1), 2)
    assert ids(claim(stand)) == [first]
    stand.put(10)
    assert len(stand.claim(2)) == 2
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    assert second in ids(stand.claim(2))


def test_rate_without_blocked_jobs_has_no_due_time(stand: Stand) -> None:
    put(stand, rate(2), 2)
    assert len(claim(stand)) == 2
    assert GuardKey.objects.get().due_us is None


def test_sweep_makes_a_rate_without_a_due_time_due(stand: Stand) -> None:
    _, second = put(stand, rate(1), 2)
    assert len(claim(stand)) == 1
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    GuardKey.objects.update(due_us=None)  # by hand
    assert claim(stand) == []
    sweep_keys("default", None, 10, only_lines=True)
    assert ids(claim(stand)) == [second]


@pytest.mark.parametrize("seconds", [None, 600.0], ids=["none", "later"])
def test_rate_is_checked_again_after_it_is_locked(
    seconds: float | None, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster may have called the next jobs while we waited for the lock."""
    _, second = put(stand, rate(1), 2)
    assert len(claim(stand)) == 1
    assert claim(stand) == []
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    due_us = None if seconds is None else microseconds(stand.now() + seconds)
    lock = GuardKeyQuerySet.lock

    def lock_late(keys: GuardKeyQuerySet, *arguments: Any, **options: Any) -> Any:
        GuardKey.objects.update(due_us=due_us)
        return lock(keys, *arguments, **options)

    monkeypatch.setattr(GuardKeyQuerySet, "lock", lock_late)
    assert call_due("default", 10) == 1
    assert stand.where(second) == "blocked"
    assert GuardKey.objects.get().due_us == due_us


@pytest.mark.parametrize("burst", [0, 1])
def test_rate_goes_on_within_a_period_after_the_clock_was_set_back(
    burst: int, stand: Stand
) -> None:
    first, second = put(stand, rate(1, burst=burst), 2)
    assert ids(claim(stand)) == [first]
    assert claim(stand) == []
    let_pass(-24 * 3600)
    sweep_keys("default", None, 10, only_lines=True)
    assert claim(stand) == []
    seconds = stand.broker.next_due_seconds()
    assert seconds is not None
    assert 0 < seconds < PERIOD_SECONDS + 2 * MARGIN_SECONDS
    let_pass(PERIOD_SECONDS + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == [second]


def test_new_jobs_do_not_delay_a_rate_after_the_clock_was_set_back(stand: Stand) -> None:
    first, second = put(stand, rate(1), 2)
    assert ids(claim(stand)) == [first]
    assert claim(stand) == []
    let_pass(-24 * 3600)
    for _ in range(2):
        put(stand, rate(1))
        assert claim(stand) == []
        let_pass(PERIOD_SECONDS / 2 + 2 * MARGIN_SECONDS)
    assert ids(claim(stand)) == [second]


def test_job_that_waits_for_its_weight_is_not_overtaken_from_other_queues(stand: Stand) -> None:
    heavy = heavy_job_of_another_queue(stand)
    for _ in range(5):
        put(stand, rate(7), queue="b")
        assert claim_from(stand, "a", "b") == []
        let_pass(PERIOD_SECONDS / 5 + MARGIN_SECONDS)
    assert claim_from(stand, "a", "b")[0] == heavy


@pytest.mark.parametrize(
    ("queues", "options"),
    [("b", {}), ("ab", {"passed_over": ("a",)})],
    ids=["not served", "paused"],
)
def test_job_of_a_queue_that_the_claim_does_not_serve_delays_no_other(
    queues: str, options: dict[str, Any], stand: Stand
) -> None:
    heavy_job_of_another_queue(stand)
    (light,) = put(stand, rate(7), queue="b")
    assert claim_from(stand, *queues, **options) == [light]


def heavy_job_of_another_queue(stand: Stand) -> uuid.UUID:
    """Start a job of the queue b, so that a job of the queue a has to wait for its weight."""
    (first,) = put(stand, rate(7, weight=3), queue="b")
    (heavy,) = put(stand, rate(7, weight=5), queue="a")
    assert claim_from(stand, "a", "b") == [first]
    return heavy


def claim_from(stand: Stand, *queues: str, **options: Any) -> list[uuid.UUID]:
    return ids(stand.claim(100, *queues, rated_limit=100, **options))
