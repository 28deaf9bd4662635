"""Guards: who may start, who waits, and who comes next when a place is free."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections

from stoker.brokers.contract import Delivery, Return
from stoker.guards.sweep import forget_needs, sweep_keys
from stoker.models import Blocked, Claimed, GuardKey, Need, Ready
from stoker.models.need import NewNeed

from tests.conformance.stands import Stand


@pytest.fixture
def stand(guarding_stand: Stand) -> Stand:
    return guarding_stand


def need(name: str, kind: str = "lock", places: int = 1, **options: Any) -> NewNeed:
    """The need of a place under the key of that name."""
    key_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {name}")
    return NewNeed(key_id, kind, f"{kind} {name}", places, **options)


def put(stand: Stand, *needs: NewNeed, count: int = 1, **options: Any) -> list[uuid.UUID]:
    return stand.put(count, needs=needs, **options)


def ids(deliveries: list[Delivery]) -> list[uuid.UUID]:
    return [delivery.job_id for delivery in deliveries]


def claim_ids(stand: Stand, limit: int = 100, **options: Any) -> list[uuid.UUID]:
    return ids(stand.claim(limit, **options))


def test_one_at_a_time_in_the_order_of_their_coming(stand: Stand) -> None:
    jobs = put(stand, need("smtp"), count=5)
    order = []
    while claimed := stand.claim():
        assert len(claimed) == 1
        order += ids(claimed)
        assert claim_ids(stand) == []
        assert stand.broker.ack([claimed[0].lease]) == set()
    assert order == jobs
    assert not Need.objects.exists()
    assert not Blocked.objects.exists()


def test_who_comes_later_does_not_overtake(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    (running,) = stand.claim()
    (third,) = put(stand, need("smtp"))
    stand.broker.ack([running.lease])
    order = [running.job_id]
    while claimed := stand.claim():
        order += ids(claimed)
        stand.broker.ack([one.lease for one in claimed])
    assert order == [first, second, third]


def test_a_higher_priority_goes_first_among_those_that_wait(stand: Stand) -> None:
    running, waiting = put(stand, need("smtp"), count=2)
    (delivery,) = stand.claim()
    (urgent,) = put(stand, need("smtp"), priority=50)
    assert claim_ids(stand) == []
    stand.broker.ack([delivery.lease])
    assert claim_ids(stand) == [urgent]
    assert delivery.job_id == running
    assert stand.broker.whereabouts([waiting]) == {waiting: "blocked"}


def test_jobs_without_needs_go_by(stand: Stand) -> None:
    blocked = put(stand, need("smtp"), count=3)
    free = stand.put(3)
    assert set(claim_ids(stand)) == {blocked[0], *free}
    assert stand.broker.sizes()["default"]["blocked"] == 2


@pytest.mark.parametrize("places", [1, 2, 5])
def test_a_limit_lets_so_many_run(places: int, stand: Stand) -> None:
    jobs = put(stand, need("tenant", "limit", places), count=8)
    running = stand.claim()
    assert ids(running) == jobs[:places]
    stand.broker.ack([running[0].lease])
    assert claim_ids(stand) == [jobs[places]]


def test_all_needs_must_be_met(stand: Stand) -> None:
    (first,) = put(stand, need("a"))
    (second,) = put(stand, need("b"))
    (both,) = put(stand, need("a"), need("b"))
    running = {one.job_id: one for one in stand.claim()}
    assert set(running) == {first, second}
    stand.broker.ack([running[first].lease])
    assert claim_ids(stand) == []
    stand.broker.ack([running[second].lease])
    assert claim_ids(stand) == [both]


def test_a_turn_that_cannot_be_taken_goes_to_the_next(stand: Stand) -> None:
    """The first in the line of one key lacks another: the next one runs, and nobody is stuck."""
    holder_of_a, holder_of_b = put(stand, need("a")) + put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    (both,) = put(stand, need("a"), need("b"))
    (only_a,) = put(stand, need("a"))
    assert claim_ids(stand) == []
    stand.broker.ack([running[holder_of_a].lease])
    assert claim_ids(stand) + claim_ids(stand) == [only_a]
    stand.broker.ack([running[holder_of_b].lease])
    assert claim_ids(stand) == []
    stand.broker.ack([stand_lease(only_a)])
    assert claim_ids(stand) == [both]


def test_a_turn_goes_on_also_where_another_guard_is_stated_first(stand: Stand) -> None:
    (holder_of_b,) = put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    (both,) = put(stand, need("a"), need("b"))
    (only_b,) = put(stand, need("b"))
    assert claim_ids(stand) == []
    (holder_of_a,) = put(stand, need("a"))
    assert claim_ids(stand) == [holder_of_a]
    stand.broker.ack([running[holder_of_b].lease])
    assert claim_ids(stand) + claim_ids(stand) == [only_b]
    stand.broker.ack([stand_lease(holder_of_a), stand_lease(only_b)])
    assert claim_ids(stand) == [both]


def test_who_is_turned_away_may_be_called_in_the_same_moment(stand: Stand) -> None:
    """Two lose their turns under a, for want of b. Who comes after them is behind the line of a at
    first, and then among those who get these turns."""
    holders = [one for _ in range(2) for one in put(stand, need("a", "limit", 2))]
    (holder_of_b,) = put(stand, need("b"))
    running = {one.job_id: one for one in stand.claim()}
    assert set(running) == {*holders, holder_of_b}
    both = put(stand, need("a", "limit", 2), need("b"), count=2)
    (waiting,) = put(stand, need("a", "limit", 2))
    assert claim_ids(stand) == []
    stand.broker.ack([running[job_id].lease for job_id in holders])
    (newcomer,) = put(stand, need("a", "limit", 2))
    assert claim_ids(stand) + claim_ids(stand) == [waiting, newcomer]
    assert set(stand.broker.whereabouts(both).values()) == {"blocked"}


def stand_lease(job_id: uuid.UUID) -> Any:
    from stoker.brokers.contract import Lease

    return Lease(job_id, Claimed.objects.get(pk=job_id).lease_id)


def test_the_fencing_number_rises(stand: Stand) -> None:
    put(stand, need("smtp"), count=3)
    fences = []
    while claimed := stand.claim():
        fences.append(claimed[0].fence)
        stand.broker.ack([claimed[0].lease])
    assert fences == sorted(set(fences))
    assert fences[0] > 0
    put(stand, need("smtp"), need("other"))
    (both,) = stand.claim()
    assert both.fence > fences[-1]


def test_a_job_that_is_to_be_skipped_says_so(stand: Stand) -> None:
    put(stand, need("feed"))
    stand.claim()
    (late,) = put(stand, need("feed", on_busy="skip"))
    (delivery,) = stand.claim()
    assert (delivery.job_id, delivery.refused) == (late, "already running")
    stand.broker.ack([delivery.lease])
    assert claim_ids(stand) == []


def test_a_job_that_comes_again_later(stand: Stand) -> None:
    (first,) = put(stand, need("feed"))
    (running,) = stand.claim()
    (late,) = put(stand, need("feed", on_busy="retry", retry_us=10_000_000))
    assert claim_ids(stand) == []
    assert stand.broker.whereabouts([late]) == {late: "deferred"}
    stand.advance(11)
    assert claim_ids(stand) == []
    stand.broker.ack([running.lease])
    stand.advance(11)
    (again,) = stand.claim()
    assert (again.job_id, again.attempt) == (late, 1)
    assert first == running.job_id


def test_a_retry_frees_the_place(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    (running,) = stand.claim()
    stand.broker.release([Return(running.lease, delay_seconds=60, attempts=1)])
    assert claim_ids(stand) == [second]
    stand.advance(61)
    assert claim_ids(stand) == []
    assert stand.broker.whereabouts([first]) == {first: "blocked"}
    stand.broker.ack([stand_lease(second)])
    (again,) = stand.claim()
    assert (again.job_id, again.attempt) == (first, 2)


def test_a_sequence_waits_for_the_retry(stand: Stand) -> None:
    first, second = put(stand, need("account", "sequence"), count=2)
    (running,) = stand.claim()
    stand.broker.release([Return(running.lease, delay_seconds=60, attempts=1)])
    assert claim_ids(stand) == []
    stand.advance(61)
    assert claim_ids(stand) == [first]
    stand.broker.ack([stand_lease(first)])
    assert claim_ids(stand) == [second]


def test_a_sequence_keeps_its_order_whatever_the_priority(stand: Stand) -> None:
    (first,) = put(stand, need("account", "sequence"), priority=-10)
    (second,) = put(stand, need("account", "sequence"), priority=10, queue="other")
    queues = ("default", "other")
    order = []
    while claimed := stand.claim(10, *queues):
        order += ids(claimed)
        stand.broker.ack([one.lease for one in claimed])
    assert order == [first, second]


@pytest.mark.parametrize("halts", [True, False])
def test_a_sequence_halts_after_a_dead_letter_if_asked_to(halts: bool, stand: Stand) -> None:
    first, second = put(stand, need("account", "sequence", halts=halts), count=2)
    (running,) = stand.claim()
    stand.broker.ack([running.lease], failed={first})
    assert claim_ids(stand) == ([] if halts else [second])


def test_who_is_rescued_keeps_the_place_until_that_is_recorded(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    stand.claim(lease_seconds=5)
    stand.advance(6)
    assert claim_ids(stand) == []
    (rescued,) = stand.rescue()
    assert (rescued.job_id, claim_ids(stand)) == (first, [])
    stand.broker.release([Return(rescued.lease, attempts=1, crashes=1)])
    assert len(claimed := claim_ids(stand)) == 1
    assert set(claimed) <= {first, second}


def test_who_is_withdrawn_leaves_the_line(stand: Stand) -> None:
    first, second, third = put(stand, need("smtp"), count=3)
    (running,) = stand.claim()
    assert stand.broker.withdraw([second]) == {second}
    stand.broker.ack([running.lease])
    assert claim_ids(stand) == [third]
    assert running.job_id == first


def test_who_is_withdrawn_when_its_turn_had_come_gives_it_on(stand: Stand) -> None:
    first, second, third = put(stand, need("smtp"), count=3)
    (running,) = stand.claim()
    stand.broker.ack([running.lease])
    assert stand.broker.whereabouts([second]) == {second: "ready"}
    assert stand.broker.withdraw([second]) == {second}
    assert claim_ids(stand) == [third]
    assert running.job_id == first


def test_a_queue_that_nobody_serves_stops_nobody(stand: Stand) -> None:
    put(stand, need("smtp"))
    (running,) = stand.claim()
    (elsewhere,) = put(stand, need("smtp"), queue="night")
    (here,) = put(stand, need("smtp"))
    assert claim_ids(stand, 10) == []
    stand.claim(10, "night")
    stand.broker.ack([running.lease])
    assert claim_ids(stand) == [here]
    assert stand.broker.whereabouts([elsewhere]) == {elsewhere: "ready"}


def test_the_newest_job_says_how_many(stand: Stand) -> None:
    put(stand, need("tenant", "limit", 1), count=3)
    assert len(stand.claim()) == 1
    put(stand, need("tenant", "limit", 3))
    assert len(stand.claim() + stand.claim()) == 2


def test_purging_a_queue_forgets_what_its_jobs_needed(stand: Stand) -> None:
    put(stand, need("smtp"), count=3, queue="mail")
    (running,) = stand.claim(1, "mail")
    assert stand.broker.purge("mail") == 2
    stand.broker.ack([running.lease])
    assert not Need.objects.exists()


def test_the_sweep_takes_back_what_nobody_uses(stand: Stand) -> None:
    first, second = put(stand, need("smtp"), count=2)
    stand.claim()
    claim_ids(stand)
    Claimed.objects.filter(pk=first).delete()  # a hand in the tables
    assert claim_ids(stand) == []
    assert _sweep(stand) == 1
    assert claim_ids(stand) == [second]


def test_the_sweep_leaves_those_alone_that_run(stand: Stand) -> None:
    put(stand, need("smtp"), need("account", "sequence"), count=3)
    (running,) = stand.claim()
    assert _sweep(stand) == 0
    assert claim_ids(stand) == []
    stand.broker.ack([running.lease])
    assert len(claim_ids(stand)) == 1


def test_keys_and_needs_of_the_past_are_forgotten(stand: Stand) -> None:
    put(stand, need("smtp"))
    (running,) = stand.claim()
    Claimed.objects.all().delete()
    from stoker.models import Job

    Job.objects.filter(pk=running.job_id).delete()
    alias = _alias(stand)
    assert forget_needs(alias, None, 10) == (1, None)
    _sweep(stand, only_lines=False)
    assert not GuardKey.objects.exists()
    put(stand, need("smtp"))
    (again,) = stand.claim()
    assert again.fence > running.fence


def test_a_rollback_leaves_no_need(stand: Stand) -> None:
    with suppress(ZeroDivisionError), stand.atomic():
        put(stand, need("smtp"))
        raise ZeroDivisionError
    assert not Need.objects.exists()
    assert not Ready.objects.exists()


def test_the_same_job_twice_has_its_needs_once(stand: Stand) -> None:
    from tests.conformance.stands import message

    one = message(needs=(need("smtp"), need("feed")))
    stand.broker.enqueue([one])
    stand.broker.enqueue([one, one])
    assert Need.objects.count() == 2
    (delivery,) = stand.claim()
    stand.broker.ack([delivery.lease])
    assert not Need.objects.exists()


def _alias(stand: Stand) -> str:
    return str(getattr(stand.broker, "alias", "default"))


def _sweep(stand: Stand, *, only_lines: bool = True) -> int:
    freed, after = sweep_keys(_alias(stand), None, 100, only_lines=only_lines)
    assert after is None
    assert connections[_alias(stand)]
    return freed
