"""What succeeds is recorded together, and leaves exactly what ``finish`` would leave."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError

from stoker import Lock, chain
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import Broker, Delivery, Return
from stoker.cluster.wire import (
    Reported,
    open_report,
    open_successes,
    pack_for_monitor,
    pack_job,
    pack_report,
)
from stoker.conf import Settings, settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Succeeded
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish, finish_together
from stoker.jobs.tallies import Tallies
from stoker.models import Blocked, Claimed, DeadLetter, Job, Need, Requeue, Tally
from stoker.signals import post_execute
from stoker.store.clock import instant_us, instants_us

from tests.app import tasks

pytestmark = [pytest.mark.sqlite, pytest.mark.postgres, pytest.mark.django_db]

KEPT = ("status", "attempts", "worker_id", "started_at", "finished_at", "value", "reason")
VALUES: list[Any] = [42, None, True, "", 'a "b" {c}, \\ and é', {"a": [1.5, "\\x00"]}, "NULL"]


@pytest.fixture
def settings() -> Settings:
    return settings_for()


@pytest.fixture
def broker(settings: Settings) -> Broker:
    return broker_for(settings)


def claim(broker: Broker, count: int) -> list[Delivery]:
    return broker.claim([], count, holder=uuid4(), lease_seconds=60)


def succeeded(broker: Broker, values: list[Any]) -> list[Reported]:
    """Reports of jobs that have returned these, as the monitor gets them."""
    tasks.add.enqueue_many([((1, 2), {}) for _ in values])
    sealer, reports = sealer_for(settings_for()), []
    claimed = claim(broker, len(values))
    for number, (delivery, value) in enumerate(zip(claimed, values, strict=True)):
        started_at = 1_700_000_000.0 + number / 7
        attempted = Attempted(
            delivery,
            Succeeded(sealer.seal_value(value)),
            'host, "1".2',
            started_at,
            started_at + 0.1,
            task="tests.app.tasks.add",
            enqueued_at=started_at - 5,
        )
        reports.append(
            (pack_report(number, attempted), pack_for_monitor(pack_job(number, delivery)))
        )
    return reports


def record(settings: Settings, broker: Broker, reported: list[Reported]) -> bool:
    successes = open_successes(reported)
    return successes is not None and finish_together(settings, broker, successes)


def rows_of(reported: list[Reported]) -> list[tuple[Any, ...]]:
    found = {job.pk: tuple(getattr(job, name) for name in KEPT) for job in Job.objects.all()}
    return [found[UUID(bytes=job[1])] for _, job in reported]


def test_leaves_what_finish_would_leave(settings: Settings, broker: Broker) -> None:
    together, singly = succeeded(broker, VALUES), succeeded(broker, VALUES)
    assert record(settings, broker, together)
    assert not finish(settings, broker, [open_report(*one) for one in singly])
    assert rows_of(together) == rows_of(singly)
    assert not Claimed.objects.exists()


def test_counts_what_finish_would_count(settings: Settings, broker: Broker) -> None:
    (delivery,) = (one for one in claim_again(broker))
    late = open_report(*succeeded(broker, [1])[0])
    late.delivery, late.enqueued_at = delivery, 1_800_000_000.0
    reported = [
        *succeeded(broker, VALUES),
        (pack_report(9, late), pack_for_monitor(pack_job(9, delivery))),
    ]
    successes = open_successes(reported)
    assert successes is not None
    both = [Tallies(settings), Tallies(settings)]
    both[0].add_together(successes)
    both[1].add_recorded(open_report(*one) for one in reported)
    written = []
    for tallies in both:
        tallies.write()
        written.append(list(Tally.objects.order_by("task").values()))
        Tally.objects.all().delete()
    for row in (*written[0], *written[1]):
        del row["id"], row["start"]
    assert written[0] == written[1]
    assert written[0][0]["successful"] == len(reported)


def claim_again(broker: Broker) -> list[Delivery]:
    """A job in its second attempt, whose wait is not counted."""
    tasks.add.enqueue(1, 2)
    (delivery,) = claim(broker, 1)
    broker.release([Return(delivery.lease, attempts=1)])
    return claim(broker, 1)


def test_a_stale_lease_leaves_all_of_them_to_finish(settings: Settings, broker: Broker) -> None:
    reported = succeeded(broker, [1, 2, 3])
    taken = UUID(bytes=reported[1][1][1])
    Claimed.objects.filter(pk=taken).update(lease_id=1)
    assert not record(settings, broker, reported)
    assert Claimed.objects.count() == 3, "what was done of it is rolled back"
    assert not Job.objects.exclude(status=None).exists()
    stale = finish(settings, broker, [open_report(*one) for one in reported])
    assert [lease.job_id for lease in stale] == [taken]


def test_what_cannot_be_recorded_is_not_acked(
    settings: Settings, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DatabaseError("no")

    reported = succeeded(broker, [1, 2])
    monkeypatch.setattr(type(Job.objects.all()), "succeeding", lambda *_: fail)
    with pytest.raises(DatabaseError):
        record(settings, broker, reported)
    assert Claimed.objects.count() == 2


def test_one_that_has_not_succeeded_leaves_all_of_them_to_finish(
    settings: Settings, broker: Broker
) -> None:
    reported = succeeded(broker, [1, 2])
    tasks.fail.enqueue()
    (delivery,) = claim(broker, 1)
    failed = Executor(settings, worker_id="host:1.2").run(delivery)
    reported.append((pack_report(3, failed), pack_for_monitor(pack_job(3, delivery))))
    assert open_successes(reported) is None
    assert open_successes(reported[:2]) is not None


def test_the_same_job_twice_is_a_matter_of_finish(broker: Broker) -> None:
    reported = succeeded(broker, [1])
    assert open_successes(reported * 2) is None


def test_what_follows_from_a_job_is_a_matter_of_finish(settings: Settings, broker: Broker) -> None:
    chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue()
    (delivery,) = claim(broker, 1)
    attempted = Executor(settings, worker_id="host:1.2").run(delivery)
    reported = [(pack_report(1, attempted), pack_for_monitor(pack_job(1, delivery)))]
    assert open_successes(reported) is not None
    assert not record(settings, broker, reported)
    assert Claimed.objects.count() == 1


def test_who_listens_to_ends_is_told_by_finish(settings: Settings, broker: Broker) -> None:
    reported = succeeded(broker, [1])
    with listening(lambda **_: None):
        assert not record(settings, broker, reported)
    assert record(settings, broker, reported)


@contextmanager
def listening(receiver: Any) -> Iterator[None]:
    post_execute.connect(receiver)
    try:
        yield
    finally:
        post_execute.disconnect(receiver)


def test_the_next_of_a_line_comes(settings: Settings, broker: Broker) -> None:
    locked = tasks.add.using(lock=Lock("one"))
    locked.enqueue(1, 2)
    locked.enqueue(3, 4)
    (delivery,) = claim(broker, 10)
    assert Blocked.objects.count() == 1
    attempted = Executor(settings, worker_id="host:1.2").run(delivery)
    assert record(
        settings, broker, [(pack_report(1, attempted), pack_for_monitor(pack_job(1, delivery)))]
    )
    assert not Blocked.objects.exists()
    assert Need.objects.count() == 1, "those of the one that has ended are gone"


def test_a_dead_letter_that_was_carried_on_is_resolved(settings: Settings, broker: Broker) -> None:
    tasks.fail.using(max_attempts=1).enqueue()
    (delivery,) = claim(broker, 1)
    finish(settings, broker, [Executor(settings, worker_id="host:1.2").run(delivery)])
    letter = DeadLetter.objects.get()
    reported = succeeded(broker, [1])
    Requeue.objects.create(
        job_id=UUID(bytes=reported[0][1][1]),
        identity=letter.identity,
        from_job_id=letter.job_id,
    )
    assert record(settings, broker, reported)
    letter.refresh_from_db()
    assert letter.state == DeadLetter.State.RESOLVED


def test_moments_are_rounded_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    moments = [time.time() + chance.uniform(-1e6, 1e6) for _ in range(5000)]
    moments += [0.0, 0.9999996, 1_700_000_000.9999998, 1_700_000_000.0000005]
    assert instants_us(moments) == [instant_us(one) for one in moments]
