"""Guards: which jobs may start, which wait, and which is next when a place is free."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from stoker.brokers.contract import Delivery, Return
from stoker.guards.admission import ALREADY_RUNNING
from stoker.guards.sweep import forget_needs, sweep_keys
from stoker.models import Blocked, Claimed, DeadLetter, GuardKey, Job, Need, Ready
from stoker.models.need import NewNeed
from stoker.values.ids import derived_job_id

from tests.conformance.stands import Stand


@pytest.fixture
def stand(guarding_stand: Stand) -> Stand:
    return guarding_stand


def need(name: str, kind: str = "lock", places: int = 1, **options: Any) -> NewNeed:
    """Return the need for a place under the key of that name."""
    key_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {name}")
    return NewNeed(key_id, kind, f"{kind} {name}", places, **options)


def put(stand: Stand, *needs: NewNeed, count: int = 1, **options: Any) -> list[uuid.UUID]:
    return stand.put(count, needs=needs, **options)


def ids(deliveries: list[Delivery]) -> list[uuid.UUID]:
    return [delivery.job_id for delivery in deliveries]


def claim_ids(stand: Stand, limit: int = 100, **options: Any) -> list[uuid.UUID]:
    return ids(stand.claim(limit, **options))


def test_lock_runs_one_job_at_a_time_in_order_of_enqueue(stand: Stand) -> None:
    jobs = put(stand, need("smtp"), count=5)
    order = []
    while claimed := stand.claim():
        assert len(claimed) == 1
        order += ids(claimed)
        assert claim_ids(stand) == []
        assert stand.broker.settle([claimed[0].lease]) == set()
    assert order == jobs
    assert not Need.objects.exists()
    assert not Blocked.objects.exists()


def test_later_job_does_not_overtake_waiting_jobs(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    (running,) = stand.claim()
    (third,) = put(stand, need("smtp"))
    stand.broker.settle([running.lease])
    order = [running.job_id]
    while claimed := stand.claim():
        order += ids(claimed)
        stand.broker.settle([one.lease for one in claimed])
    assert order == [first, second, third]


def test_waiting_job_with_the_highest_priority_goes_first(stand: Stand) -> None:
    running, waiting = put(stand, need("smtp"), count=2)
    (delivery,) = stand.claim()
    (urgent,) = put(stand, need("smtp"), priority=50)
    assert claim_ids(stand) == []
    stand.broker.settle([delivery.lease])
    assert claim_ids(stand) == [urgent]
    assert delivery.job_id == running
    assert stand.broker.states([waiting]) == {waiting: "blocked"}


def test_jobs_without_guards_pass_blocked_jobs(stand: Stand) -> None:
    blocked = put(stand, need("smtp"), count=3)
    free = stand.put(3)
    assert set(claim_ids(stand)) == {blocked[0], *free}
    assert stand.broker.sizes()["default"]["blocked"] == 2


@pytest.mark.parametrize("places", [1, 2, 5])
def test_limit_admits_as_many_jobs_as_it_has_places(places: int, stand: Stand) -> None:
    jobs = put(stand, need("tenant", "limit", places), count=8)
    running = stand.claim()
    assert ids(running) == jobs[:places]
    stand.broker.settle([running[0].lease])
    assert claim_ids(stand) == [jobs[places]]


def test_job_starts_when_all_its_guards_are_free(stand: Stand) -> None:
    (first,) = put(stand, need("a"))
    (second,) = put(stand, need("b"))
    (both,) = put(stand, need("a"), need("b"))
    running = {one.job_id: one for one in stand.claim()}
    assert set(running) == {first, second}
    stand.broker.settle([running[first].lease])
    assert claim_ids(stand) == []
    stand.broker.settle([running[second].lease])
    assert claim_ids(stand) == [both]


def test_turn_of_a_job_that_is_skipped_goes_to_the_next(stand: Stand) -> None:
    """It had waited for one key, and leaves because another is busy."""
    put(stand, need("a"))
    (holder_of_a,) = stand.claim()
    (both,) = put(stand, need("a"), need("b", on_busy="skip"))
    (last,) = put(stand, need("a"))
    assert claim_ids(stand) == []
    put(stand, need("b"))
    stand.claim()
    stand.broker.settle([holder_of_a.lease])
    claimed = {one.job_id: one.refused for one in stand.claim() + stand.claim()}
    assert claimed == {both: ALREADY_RUNNING, last: ""}


def test_turn_of_a_job_that_lacks_another_guard_goes_to_the_next(stand: Stand) -> None:
    """The first job in the line of one key lacks another key, so the next job runs."""
    holder_of_a, holder_of_b = put(stand, need("a")) + put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    (both,) = put(stand, need("a"), need("b"))
    (only_a,) = put(stand, need("a"))
    assert claim_ids(stand) == []
    stand.broker.settle([running[holder_of_a].lease])
    assert claim_ids(stand) + claim_ids(stand) == [only_a]
    stand.broker.settle([running[holder_of_b].lease])
    assert claim_ids(stand) == []
    stand.broker.settle([stand_lease(only_a)])
    assert claim_ids(stand) == [both]


def test_turn_goes_to_the_next_if_the_missing_guard_is_declared_first(stand: Stand) -> None:
    (holder_of_b,) = put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    (both,) = put(stand, need("a"), need("b"))
    (only_b,) = put(stand, need("b"))
    assert claim_ids(stand) == []
    (holder_of_a,) = put(stand, need("a"))
    assert claim_ids(stand) == [holder_of_a]
    stand.broker.settle([running[holder_of_b].lease])
    assert claim_ids(stand) + claim_ids(stand) == [only_b]
    stand.broker.settle([stand_lease(holder_of_a), stand_lease(only_b)])
    assert claim_ids(stand) == [both]


def test_new_job_gets_the_place_that_a_job_with_a_second_guard_cannot_take(stand: Stand) -> None:
    """Two jobs lose their turns under a because b is taken. A newcomer is behind the line of a at
    first, and then gets one of these turns."""
    holders = [one for _ in range(2) for one in put(stand, need("a", "limit", 2))]
    (holder_of_b,) = put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    assert set(running) == {*holders, holder_of_b}
    both = put(stand, need("a", "limit", 2), need("b"), count=2)
    (waiting,) = put(stand, need("a", "limit", 2))
    assert claim_ids(stand) == []
    stand.broker.settle([running[job_id].lease for job_id in holders])
    (newcomer,) = put(stand, need("a", "limit", 2))
    assert claim_ids(stand) + claim_ids(stand) == [waiting, newcomer]
    assert set(stand.broker.states(both).values()) == {"blocked"}


@pytest.mark.parametrize("others", [(), (need("b"),)], ids=["one guard", "two guards"])
def test_older_job_with_another_limit_does_not_change_the_limit(
    others: tuple[NewNeed, ...], stand: Stand
) -> None:
    """Its task had the wrong limit for a moment. The jobs before and after it have the right
    one."""
    put(stand, need("a", "limit", 2))
    assert len(stand.claim()) == 1
    put(stand, need("a", "limit", 10), run_after=stand.now() + 1)
    put(stand, need("a", "limit", 2), *others)
    assert len(stand.claim()) == 1
    stand.advance(2)
    assert stand.claim() == []


@pytest.mark.parametrize("others", [(), (need("b"),)], ids=["one guard", "two guards"])
def test_job_of_a_host_whose_clock_is_ahead_does_not_keep_the_limit(
    others: tuple[NewNeed, ...], stand: Stand
) -> None:
    in_an_hour = derived_job_id(time.time() + 3600, 0)
    put(stand, need("a", "limit", 1))
    put(stand, need("a", "limit", 1), *others, job_id=in_an_hour)
    for _ in range(2):
        (claimed,) = stand.claim()
        stand.broker.settle([claimed.lease])
    put(stand, need("a", "limit", 3), count=3)
    assert len(stand.claim()) == 3


def stand_lease(job_id: uuid.UUID) -> Any:
    from stoker.brokers.contract import Lease

    return Lease(job_id, Claimed.objects.get(pk=job_id).lease_id)


def test_fencing_number_rises_with_each_claim(stand: Stand) -> None:
    put(stand, need("smtp"), count=3)
    fences = []
    while claimed := stand.claim():
        fences.append(claimed[0].fence)
        stand.broker.settle([claimed[0].lease])
    assert fences == sorted(set(fences))
    assert fences[0] > 0
    put(stand, need("smtp"), need("other"))
    (both,) = stand.claim()
    assert both.fence > fences[-1]


def test_jobs_that_one_claim_admits_have_growing_fencing_numbers(stand: Stand) -> None:
    put(stand, need("tenant", "limit", 3), count=3)
    fences = [one.fence for one in stand.claim()]
    assert len(fences) == 3
    assert fences == sorted(set(fences))


def test_busy_guard_with_on_busy_skip_refuses_the_job(stand: Stand) -> None:
    put(stand, need("feed"))
    stand.claim()
    (late,) = put(stand, need("feed", on_busy="skip"))
    (delivery,) = stand.claim()
    assert (delivery.job_id, delivery.refused) == (late, "already running")
    stand.broker.settle([delivery.lease])
    assert claim_ids(stand) == []


def test_busy_guard_with_on_busy_retry_defers_the_job(stand: Stand) -> None:
    (first,) = put(stand, need("feed"))
    (running,) = stand.claim()
    (late,) = put(stand, need("feed", on_busy="retry", retry_us=10_000_000))
    assert claim_ids(stand) == []
    assert stand.broker.states([late]) == {late: "deferred"}
    stand.advance(11)
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    stand.advance(11)
    (again,) = stand.claim()
    assert (again.job_id, again.attempt) == (late, 1)
    assert first == running.job_id


def test_job_that_found_its_lock_busy_is_not_claimed_before_its_delay_ends(stand: Stand) -> None:
    put(stand, need("feed"))
    (running,) = stand.claim()
    (late,) = put(stand, need("feed", on_busy="retry", retry_us=600_000_000))
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    stand.advance(300)
    assert claim_ids(stand) == []
    stand.advance(301)
    assert claim_ids(stand) == [late]


def test_released_job_frees_its_place_until_it_is_due(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    (running,) = stand.claim()
    stand.broker.settle(again=[Return(running.lease, delay_seconds=60, attempts=1)])
    assert claim_ids(stand) == [second]
    stand.advance(61)
    assert claim_ids(stand) == []
    assert stand.broker.states([first]) == {first: "blocked"}
    stand.broker.settle([stand_lease(second)])
    (again,) = stand.claim()
    assert (again.job_id, again.attempt) == (first, 2)


def test_sequence_waits_for_the_retry(stand: Stand) -> None:
    first, second = put(stand, need("account", "sequence"), count=2)
    (running,) = stand.claim()
    stand.broker.settle(again=[Return(running.lease, delay_seconds=60, attempts=1)])
    assert claim_ids(stand) == []
    stand.advance(61)
    assert claim_ids(stand) == [first]
    stand.broker.settle([stand_lease(first)])
    assert claim_ids(stand) == [second]


def test_sequence_keeps_its_order_whatever_the_priority(stand: Stand) -> None:
    (first,) = put(stand, need("account", "sequence"), priority=-10)
    (second,) = put(stand, need("account", "sequence"), priority=10, queue="other")
    queues = ("default", "other")
    order = []
    while claimed := stand.claim(10, *queues):
        order += ids(claimed)
        stand.broker.settle([one.lease for one in claimed])
    assert order == [first, second]


@pytest.mark.parametrize("halts", [True, False])
def test_sequence_halts_after_a_failure_only_if_asked_to(halts: bool, stand: Stand) -> None:
    first, second = put(stand, need("account", "sequence", halts=halts), count=2)
    (running,) = stand.claim()
    stand.broker.settle([running.lease], failed={first})
    assert claim_ids(stand) == ([] if halts else [second])


def test_rescued_job_keeps_its_place_until_it_is_released(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    stand.claim(lease_seconds=5)
    stand.advance(6)
    assert claim_ids(stand) == []
    (rescued,) = stand.rescue()
    assert (rescued.job_id, claim_ids(stand)) == (first, [])
    stand.broker.settle(again=[Return(rescued.lease, attempts=1, crashes=1)])
    assert len(claimed := claim_ids(stand)) == 1
    assert set(claimed) <= {first, second}


def test_withdrawn_job_leaves_the_line(stand: Stand) -> None:
    first, second, third = put(stand, need("smtp"), count=3)
    (running,) = stand.claim()
    assert stand.broker.withdraw([second]) == {second}
    stand.broker.settle([running.lease])
    assert claim_ids(stand) == [third]
    assert running.job_id == first


def test_job_withdrawn_in_its_turn_passes_the_turn_on(stand: Stand) -> None:
    first, second, third = put(stand, need("smtp"), count=3)
    (running,) = stand.claim()
    stand.broker.settle([running.lease])
    assert stand.broker.states([second]) == {second: "ready"}
    assert stand.broker.withdraw([second]) == {second}
    assert claim_ids(stand) == [third]
    assert running.job_id == first


def test_turn_of_a_job_in_an_unserved_queue_goes_to_another(stand: Stand) -> None:
    put(stand, need("smtp"))
    (running,) = stand.claim()
    (elsewhere,) = put(stand, need("smtp"), queue="night")
    (here,) = put(stand, need("smtp"))
    assert claim_ids(stand, 10) == []
    stand.claim(10, "night")
    stand.broker.settle([running.lease])
    assert claim_ids(stand) == [here]
    assert stand.broker.states([elsewhere]) == {elsewhere: "ready"}


def test_limit_has_the_places_of_the_newest_job(stand: Stand) -> None:
    put(stand, need("tenant", "limit", 1), count=3)
    assert len(stand.claim()) == 1
    put(stand, need("tenant", "limit", 3))
    assert len(stand.claim() + stand.claim()) == 2


def test_purge_deletes_the_needs_of_its_jobs(stand: Stand) -> None:
    put(stand, need("smtp"), count=3, queue="mail")
    (running,) = stand.claim(1, "mail")
    assert stand.broker.purge("mail") == 2
    stand.broker.settle([running.lease])
    assert not Need.objects.exists()


def test_job_refused_by_one_lock_frees_no_place_under_another_full_lock(stand: Stand) -> None:
    put(stand, need("a"), need("b"))
    assert len(stand.claim()) == 1
    (only_b,) = put(stand, need("b"))
    assert claim_ids(stand) == []
    (both,) = put(stand, need("a"), need("b"))
    assert claim_ids(stand) == []
    assert stand.broker.states([only_b, both]) == {only_b: "blocked", both: "blocked"}


def test_sweep_goes_through_all_keys_in_pages(stand: Stand) -> None:
    alias = _alias(stand)
    assert sweep_keys(alias, None, 2, only_lines=True) == (0, None)
    for number in range(4):
        put(stand, need(f"{number}"), count=2)
    assert len(stand.claim()) == 4
    assert claim_ids(stand) == []
    Claimed.objects.all().delete()
    keys = list(GuardKey.objects.order_by("pk").values_list("pk", flat=True))
    pages = [sweep_keys(alias, after, 2, only_lines=True) for after in (None, keys[1], keys[3])]
    assert pages == [(2, keys[1]), (2, keys[3]), (0, None)]


def test_needs_of_past_jobs_are_deleted_in_pages(stand: Stand) -> None:
    alias = _alias(stand)
    jobs = [put(stand, need(f"{number}"))[0] for number in range(4)]
    (alive,) = put(stand, need("alive"))
    Job.objects.filter(pk__in=jobs).update(status="FAILED")
    needs = list(Need.objects.order_by("pk").values_list("pk", flat=True))
    assert forget_needs(alias, None, 2) == (2, needs[1])
    assert forget_needs(alias, needs[1], 2) == (2, needs[3])
    assert forget_needs(alias, needs[3], 2) == (0, None)
    assert Need.objects.get().job_id == alive


def test_sweep_frees_places_of_deleted_claims(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    stand.claim()
    claim_ids(stand)
    Claimed.objects.filter(pk=first).delete()  # as if deleted by hand
    assert claim_ids(stand) == []
    assert _sweep(stand) == 1
    assert claim_ids(stand) == [second]


def test_sweep_keeps_a_sequence_that_a_failed_job_halts(stand: Stand) -> None:
    first, _ = put(stand, need("account", "sequence", halts=True), count=2)
    (running,) = stand.claim()
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease], failed={first})
    Job.objects.filter(pk=first).update(status="FAILED")
    DeadLetter.objects.create(id=first, job_id=first, failed_at=timezone.now())
    assert _sweep(stand) == 0
    assert claim_ids(stand) == []


def test_sweep_keeps_a_sequence_whose_first_job_waits_for_its_retry(stand: Stand) -> None:
    first, second = put(stand, need("account", "sequence"), count=2)
    (running,) = stand.claim()
    assert claim_ids(stand) == []
    stand.broker.settle(again=[Return(running.lease, delay_seconds=600, attempts=1)])
    assert _sweep(stand) == 0
    assert claim_ids(stand) == []
    Job.objects.filter(pk=first).update(status="FAILED")  # by hand
    assert _sweep(stand) == 1
    assert claim_ids(stand) == [second]


def test_job_whose_need_was_deleted_by_hand_runs_without_the_guard(stand: Stand) -> None:
    gone, *others = put(stand, need("smtp"), count=3)
    Need.objects.filter(job_id=gone).delete()
    assert claim_ids(stand) == [gone, others[0]]


def test_sweep_leaves_running_jobs_alone(stand: Stand) -> None:
    put(stand, need("smtp"), need("account", "sequence"), count=3)
    (running,) = stand.claim()
    assert _sweep(stand) == 0
    assert claim_ids(stand) == []
    stand.broker.settle([running.lease])
    assert len(claim_ids(stand)) == 1


def test_sweep_deletes_unused_keys_and_needs(stand: Stand) -> None:
    put(stand, need("smtp"))
    (running,) = stand.claim()
    Claimed.objects.all().delete()
    Job.objects.filter(pk=running.job_id).delete()
    alias = _alias(stand)
    assert forget_needs(alias, None, 10) == (1, None)
    _sweep(stand, only_lines=False)
    assert not GuardKey.objects.exists()
    put(stand, need("smtp"))
    (again,) = stand.claim()
    assert again.fence > running.fence


def test_rolled_back_enqueue_leaves_no_needs(stand: Stand) -> None:
    with suppress(ZeroDivisionError), stand.atomic():
        put(stand, need("smtp"))
        raise ZeroDivisionError
    assert not Need.objects.exists()
    assert not Ready.objects.exists()


def test_job_enqueued_twice_has_its_needs_once(stand: Stand) -> None:
    from tests.conformance.stands import message

    one = message(needs=(need("smtp"), need("feed")))
    stand.broker.enqueue([one])
    stand.broker.enqueue([one, one])
    assert Need.objects.count() == 2
    (delivery,) = stand.claim()
    stand.broker.settle([delivery.lease])
    assert not Need.objects.exists()


def _alias(stand: Stand) -> str:
    return str(getattr(stand.broker, "alias", "default"))


def _sweep(stand: Stand, *, only_lines: bool = True) -> int:
    freed, after = sweep_keys(_alias(stand), None, 100, only_lines=only_lines)
    assert after is None
    assert connections[_alias(stand)]
    return freed
