"""Upkeep of the jobs in the database while the broker outside it does not answer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError
from django.utils import timezone

from stoker import Lock
from stoker.brokers.contract import ClaimRequest, Delivery, Return
from stoker.brokers.dispatch import Dispatch
from stoker.cluster.board import PID, Board, lease_mark
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.rescue import Outages
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.exceptions import BrokerUnavailable
from stoker.models import Attempt, Claimed, Cluster, Ready
from stoker.models.lock import LockQuerySet
from stoker.store.written import DatabaseNow

from tests.app.tasks import add
from tests.integration.fronted import fronted_broker, outside

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def broker() -> Iterator[Dispatch]:
    with fronted_broker() as made:
        yield made


@pytest.fixture
def upkeep(broker: Dispatch) -> Upkeep:
    return upkeep_of(broker, Outages(0.0))


def upkeep_of(broker: Dispatch, outages: Outages) -> Upkeep:
    plan = Plan()
    made = Upkeep(plan, plan.settings, broker, lambda: None)
    made.rescuing._outages = outages
    return made


@contextmanager
def outage(broker: Dispatch) -> Iterator[None]:
    def fail(*_: object, **__: object) -> None:
        raise BrokerUnavailable("Redis does not answer")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("claim_expired", "kept", "held_by", "settle", "expire_holder", "ping"):
            patch.setattr(broker.broker, name, fail)
        yield


def claim(broker: Dispatch, holder: UUID, count: int) -> list[Delivery]:
    """Lease jobs, some of which are in the store and some in Redis."""
    found: list[Delivery] = []
    request = ClaimRequest(count, holder=holder, lease_seconds=600)
    while len(found) < count:
        found += broker.claim(request._replace(limit=count - len(found)))
    return found


def dead_cluster(upkeep: Upkeep, path: Path) -> tuple[Cluster, Board]:
    board = Board.create(path, workers=1, slots=2)
    board.set_worker(0, PID, 4711)
    row = Cluster.objects.create(
        id=uuid4(), name="dead", host=upkeep._plan.host, pid=7, heartbeat_us=0,
        started_at=timezone.now(), info={"board": str(path)},
    )  # fmt: skip
    return row, board


def test_expired_lease_in_the_store_is_rescued(broker: Dispatch, upkeep: Upkeep) -> None:
    guarded = UUID(add.using(lock=Lock("one")).enqueue(1, 2).id)
    plain = UUID(add.enqueue(1, 2).id)
    holder = uuid4()
    claim(broker, holder, 2)
    broker.expire_holder(holder)
    with outage(broker), pytest.raises(BrokerUnavailable):
        upkeep.rescuing.rescue()
    assert not Claimed.objects.exists()
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {guarded}
    assert upkeep.rescuing.rescue() == 1
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {guarded, plain}


def test_lease_that_ended_in_an_outage_is_left_to_its_holder_for_a_while(broker: Dispatch) -> None:
    """A living cluster releases its job, and the attempt does not count."""
    add.enqueue(1, 2)
    holder = uuid4()
    (delivery,) = claim(broker, holder, 1)
    broker.expire_holder(holder)
    upkeep = upkeep_of(broker, Outages(600.0))
    with outage(broker), pytest.raises(BrokerUnavailable):
        upkeep.rescuing.rescue()
    with outage(broker), pytest.raises(BrokerUnavailable):
        upkeep.rescuing.rescue()
    assert upkeep.rescuing.rescue() == 0
    assert upkeep.rescuing.rescued_at == 0
    broker.settle(again=[Return(delivery.lease)])
    assert [one.attempt for one in claim(broker, uuid4(), 1)] == [1]
    assert not Attempt.objects.exists()


def test_lease_that_ended_in_an_outage_is_rescued_after_a_while(broker: Dispatch) -> None:
    add.enqueue(1, 2)
    holder = uuid4()
    claim(broker, holder, 1)
    broker.expire_holder(holder)
    outages = Outages(600.0)
    upkeep = upkeep_of(broker, outages)
    with outage(broker), pytest.raises(BrokerUnavailable):
        upkeep.rescuing.rescue()
    assert upkeep.rescuing.rescue() == 0
    for place in broker.lessors:
        outages.note(place)  # a further outage does not prolong the time
    outages._over_at = dict.fromkeys(broker.lessors, time.monotonic())
    assert upkeep.rescuing.rescue() == 1


def other_cluster(heartbeat_us: object) -> Cluster:
    row: Cluster = Cluster.objects.create(
        id=uuid4(), name="other", host="elsewhere", pid=7, started_at=timezone.now(),
        heartbeat_us=heartbeat_us,
    )  # fmt: skip
    return row


@pytest.mark.parametrize("heartbeat_us", [DatabaseNow(), 0], ids=["beats", "silent"])
def test_start_beside_another_cluster_leaves_it_time_for_its_leases(
    broker: Dispatch, heartbeat_us: object
) -> None:
    """The new cluster cannot know whether the broker was away until just now. If the store was
    away for longer than a lease, the heartbeats of living clusters are as old."""
    add.enqueue(1, 2)
    add.using(lock=Lock("one")).enqueue(1, 2)
    upkeep = upkeep_of(broker, Outages(600.0))
    row = other_cluster(heartbeat_us)
    claim(broker, row.pk, 2)
    broker.expire_holder(row.pk)
    upkeep.clean_up_at_start()
    upkeep.run()
    assert not Attempt.objects.exists()
    assert Cluster.objects.filter(pk=row.pk).exists()
    upkeep.rescuing._outages._over_at.clear()
    assert upkeep.rescuing.rescue() == 2


def test_new_cluster_rescues_the_jobs_of_a_silent_cluster_once_others_have_had_time(
    broker: Dispatch,
) -> None:
    """It does so although another cluster holds the upkeep lease. Until then a drain waits."""
    add.enqueue(1, 2)
    add.using(lock=Lock("one")).enqueue(1, 2)
    row = other_cluster(0)
    claim(broker, row.pk, 2)
    broker.expire_holder(row.pk)
    assert upkeep_of(broker, Outages(600.0))._take_lease()
    upkeep = upkeep_of(broker, Outages(600.0))
    upkeep.clean_up_at_start()
    upkeep.clean_up_if_due()
    assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (0, False)
    upkeep._clean_up_at = 0.0
    upkeep.rescuing._outages._over_at.clear()
    upkeep.clean_up_if_due()
    assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (2, True)
    assert not Cluster.objects.exists()


def test_clean_up_is_tried_again_if_the_store_was_away_at_its_first_step(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store returns, living clusters get time again. Until then a drain waits."""
    add.using(lock=Lock("one")).enqueue(1, 2)
    row = other_cluster(0)
    claim(broker, row.pk, 1)
    broker.expire_holder(row.pk)
    upkeep = upkeep_of(broker, Outages(600.0))
    upkeep.clean_up_at_start()
    let_pauses_end(upkeep)
    with monkeypatch.context() as patch:
        patch.setattr(upkeep.rescuing, "bury_silent_clusters", _fail)
        upkeep.clean_up_if_due()
    assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (0, False)
    let_pauses_end(upkeep)
    upkeep.clean_up_if_due()
    assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (1, True)


def test_clean_up_waits_if_the_store_was_away_during_the_whole_start(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for living clusters begins only with the first try to clean up."""
    add.using(lock=Lock("one")).enqueue(1, 2)
    row = other_cluster(0)
    claim(broker, row.pk, 1)
    broker.expire_holder(row.pk)
    upkeep = upkeep_of(broker, Outages(600.0))
    with monkeypatch.context() as patch:
        patch.setattr(upkeep.rescuing._clock, "can_be_trusted", _fail)
        for name in ("bury_clusters_of_this_host", "any_is_silent"):
            patch.setattr(upkeep.rescuing, name, _fail)
        patch.setattr(upkeep._any_other, "fetch", _fail)
        upkeep.clean_up_at_start()
    for _ in range(2):
        assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (0, False)
        let_pauses_end(upkeep)
        upkeep.clean_up_if_due()
    assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (1, True)


def let_pauses_end(upkeep: Upkeep) -> None:
    outages = upkeep.rescuing._outages
    outages._over_at = dict.fromkeys(outages._over_at, time.monotonic())
    upkeep._clean_up_at = 0.0


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize("step", ["rescue", "bury_clusters_of_this_host"])
def test_drain_waits_if_the_store_was_away_at_the_start(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch, step: str, is_alone: bool
) -> None:
    if not is_alone:
        other_cluster(DatabaseNow())
    upkeep = upkeep_of(broker, Outages(600.0))
    with monkeypatch.context() as patch:
        patch.setattr(upkeep.rescuing, step, _fail)
        upkeep.clean_up_at_start()
    assert not upkeep.is_cleaned_up
    for _ in range(2):  # the first may only begin the time for living clusters
        let_pauses_end(upkeep)
        upkeep.clean_up_if_due()
    assert upkeep.is_cleaned_up


def test_drain_does_not_wait_for_clusters_with_heartbeats(broker: Dispatch) -> None:
    upkeep = upkeep_of(broker, Outages(600.0))
    other_cluster(DatabaseNow())
    upkeep.clean_up_at_start()
    assert upkeep.is_cleaned_up


def test_start_while_the_store_comes_back_leaves_other_clusters_time_for_their_leases(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers again when the new cluster has just asked for the others."""
    add.enqueue(1, 2)
    upkeep = upkeep_of(broker, Outages(600.0))
    row = other_cluster(DatabaseNow())
    claim(broker, row.pk, 1)
    broker.expire_holder(row.pk)
    with monkeypatch.context() as patch:
        patch.setattr(upkeep._any_other, "fetch", _fail)
        upkeep.clean_up_at_start()
    assert not Attempt.objects.exists()
    assert not upkeep.rescuing._outages.are_over(broker.lessors[0])


def test_start_without_other_clusters_rescues_at_once(broker: Dispatch) -> None:
    add.enqueue(1, 2)
    add.using(lock=Lock("one")).enqueue(1, 2)
    upkeep = upkeep_of(broker, Outages(600.0))
    holder = uuid4()
    claim(broker, holder, 2)
    broker.expire_holder(holder)
    upkeep.clean_up_at_start()
    assert (Attempt.objects.count(), upkeep.is_cleaned_up) == (2, True)


@pytest.mark.parametrize("heartbeat_us", [DatabaseNow(), 0], ids=["beats", "silent"])
def test_start_after_a_crash_rescues_only_the_jobs_of_the_dead_cluster(
    broker: Dispatch, tmp_path: Path, heartbeat_us: object
) -> None:
    """A living cluster on another host has just lost its leases in an outage. Its heartbeat may be
    younger than a lease, because it extends its leases less often."""
    upkeep = upkeep_of(broker, Outages(600.0))
    other = other_cluster(heartbeat_us)
    row, board = dead_cluster(upkeep, tmp_path / "cluster.board")
    died = set()
    for holder in (other.pk, row.pk):
        add.enqueue(1, 2)
        add.using(lock=Lock(holder.hex)).enqueue(1, 2)
        deliveries = claim(broker, holder, 2)
        broker.expire_holder(holder)
    for slot, delivery in enumerate(deliveries):
        mark = lease_mark(delivery.lease_id)
        board.slot(0, slot).occupy(slot + 1, delivery.job_id.bytes, 1, 1, 0, mark)
        died.add(delivery.job_id)
    board.close()
    upkeep.clean_up_at_start()
    assert set(Attempt.objects.values_list("job_id", flat=True)) == died
    assert len(broker.held_by(other.pk)) == 2


def test_lease_that_ended_while_the_store_was_away_is_left_to_its_holder_for_a_while(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    add.using(lock=Lock("one")).enqueue(1, 2)
    holder = uuid4()
    claim(broker, holder, 1)
    broker.expire_holder(holder)
    upkeep = upkeep_of(broker, Outages(600.0))
    with monkeypatch.context() as patch:
        patch.setattr(LockQuerySet, "take", _fail)
        upkeep.run()
    upkeep.run()
    assert Claimed.objects.exists()
    upkeep.rescuing._outages = Outages(600.0)
    upkeep.run()
    assert not Claimed.objects.exists()


@pytest.mark.parametrize("of_broker", [False, True], ids=["store", "broker"])
def test_leases_that_ended_during_a_run_of_upkeep_are_left_to_their_holder_for_a_while(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch, of_broker: bool
) -> None:
    """The outage began after the rescue and is over before the next run. Only the leases of the
    store or broker that was away are left alone."""
    inside = UUID(add.using(lock=Lock("one")).enqueue(1, 2).id)
    outside = UUID(add.enqueue(1, 2).id)
    upkeep = upkeep_of(broker, Outages(600.0))
    fail = _fail_at_broker if of_broker else _fail
    with monkeypatch.context() as patch:
        patch.setattr(upkeep._dead_letters, "sweep", fail)
        upkeep.run()
    holder = uuid4()
    claim(broker, holder, 2)
    broker.expire_holder(holder)
    upkeep.run()
    assert Attempt.objects.get().job_id == (inside if of_broker else outside)


@pytest.mark.parametrize("step", ["vacuum_if_due", "go_on_in_bulk"])
def test_leases_that_ended_between_two_runs_of_upkeep_are_left_to_their_holder_for_a_while(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    add.using(lock=Lock("one")).enqueue(1, 2)
    upkeep = upkeep_of(broker, Outages(600.0))
    upkeep.run()
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "_vacuum", _fail)
        patch.setattr(upkeep._running_in_bulk, "fetch", _fail)
        getattr(upkeep, step)()
    assert_leaves_ended_lease(upkeep, broker)


def test_outage_that_outlasts_the_time_after_an_earlier_one_counts(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rescue begins while the store is away, because upkeep does not get its lease."""
    add.using(lock=Lock("one")).enqueue(1, 2)
    upkeep = upkeep_of(broker, Outages(600.0))
    other_cluster(DatabaseNow())
    upkeep.rescuing.give_living_clusters_time()
    upkeep.run()
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "_take_lease", _fail)
        upkeep.run()
        upkeep.rescuing._outages._over_at = dict.fromkeys(broker.lessors, time.monotonic())
        upkeep.run()
    assert_leaves_ended_lease(upkeep, broker)


def assert_leaves_ended_lease(upkeep: Upkeep, broker: Dispatch) -> None:
    """Assert that the next run of upkeep leaves a lease that has just ended to its holder."""
    holder = uuid4()
    claim(broker, holder, 1)
    broker.expire_holder(holder)
    upkeep.run()
    assert Claimed.objects.exists()


def test_step_that_always_fails_does_not_prevent_the_rescue_for_ever(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    add.using(lock=Lock("one")).enqueue(1, 2)
    holder = uuid4()
    claim(broker, holder, 1)
    upkeep = upkeep_of(broker, Outages(600.0))
    monkeypatch.setattr(upkeep.rescuing, "bury_silent_clusters", _fail)
    other_cluster(DatabaseNow())
    upkeep.run()
    broker.expire_holder(holder)
    upkeep.run()
    assert not Attempt.objects.exists()
    upkeep.rescuing._outages._over_at = dict.fromkeys(broker.lessors, time.monotonic())
    upkeep.run()
    assert Attempt.objects.exists()


def _fail_at_broker(*_: object, **__: object) -> None:
    raise BrokerUnavailable("Redis does not answer")


def _fail(*_: object, **__: object) -> None:
    raise OperationalError("the database does not answer")


@pytest.mark.parametrize("word", ["bury_clusters_of_this_host", "bury_silent_clusters"])
def test_jobs_of_dead_clusters_in_the_store_are_released(
    word: str, broker: Dispatch, upkeep: Upkeep, tmp_path: Path
) -> None:
    """The clusters are not forgotten before their jobs in Redis are released, too."""
    paths = [tmp_path / "1.board", tmp_path / "2.board"]
    for path in paths:
        add.using(lock=Lock(path.name)).enqueue(1, 2)
        add.enqueue(1, 2)
        row, board = dead_cluster(upkeep, path)
        claim(broker, row.pk, 2)
        board.close()
    bury = getattr(upkeep.rescuing, word)
    with outage(broker), pytest.raises(BrokerUnavailable):
        bury()
    assert (Claimed.objects.count(), Ready.objects.count(), outside(broker)) == (0, 2, 0)
    assert Cluster.objects.count() == 2
    assert all(path.exists() for path in paths)
    assert bury() == 2
    assert (Ready.objects.count(), outside(broker)) == (2, 2)
    assert not Cluster.objects.exists()
    assert not any(path.exists() for path in paths)
    assert {one.attempt for one in claim(broker, uuid4(), 4)} == {1}


def test_running_jobs_of_a_dead_cluster_are_rescued_one_place_after_the_other(
    broker: Dispatch, upkeep: Upkeep, tmp_path: Path
) -> None:
    """Each lost attempt names the worker process that ran it."""
    add.using(lock=Lock("one")).enqueue(1, 2)
    add.enqueue(1, 2)
    row, board = dead_cluster(upkeep, tmp_path / "cluster.board")
    for number, delivery in enumerate(claim(broker, row.pk, 2)):
        lease = lease_mark(delivery.lease_id)
        board.slot(0, number).occupy(number + 1, delivery.job_id.bytes, 1, 1, 0, lease)
    board.close()
    with outage(broker):
        upkeep.clean_up_at_start()
    assert Attempt.objects.count() == 1
    upkeep.clean_up_at_start()
    assert Attempt.objects.count() == 2
    messages = set(Attempt.objects.values_list("message", flat=True))
    assert messages == {f"the worker process 4711 on {row.host} died with its whole cluster"}
