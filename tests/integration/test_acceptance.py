"""Dead letters, retries, keys, leases and sequences: one short test for each rule.

Tests that need real processes are in `cluster` and `story`.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.dispatch import Signal
from django.utils import timezone

from stoker import JobState, dead_letters, task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import settings_for
from stoker.dead_letters import Fate
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.exceptions import DeadLetterNotFound
from stoker.models import Attempt, Claimed, Cluster, DeadLetter, Job, Ready, Requeue
from stoker.models.dead_letter import DeadLetterQuerySet
from stoker.signals import dead_lettered, post_execute_in_worker, pre_execute
from stoker.store.written import DatabaseNow, microseconds
from stoker.testing import drain
from stoker.values.ids import new_job_id

from tests.app import frail
from tests.integration.letters import dead

pytestmark = pytest.mark.django_db(transaction=True)

HOLDER = uuid.uuid4()


class NotFound(Exception):
    """An error after which the task is not retried."""


@task(max_attempts=3, give_up_on=(NotFound,))
def look_up(thing: str) -> None:
    if thing == "nothing":
        raise NotFound("no record")
    raise ValueError("not found: permission denied, it does not exist")


@task
def rest() -> None:
    time.sleep(0.05)


@contextmanager
def connected(*pairs: tuple[Signal, Callable[..., None]]) -> Iterator[None]:
    """Connect these receivers for the time of the block."""
    for signal, receiver in pairs:
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal, receiver in pairs:
            signal.disconnect(receiver)


@pytest.fixture(autouse=True)
def clear_broken() -> Iterator[None]:
    yield
    frail.broken.clear()


def upkeep() -> Upkeep:
    settings = settings_for()
    return Upkeep(Plan(), settings, broker_for(settings), lambda: None)


# -- the tables ------------------------------------------------------------------------------------


def test_migrating_twice_changes_nothing() -> None:
    for _ in range(2):
        call_command("migrate", "stoker", verbosity=0)


# -- dead letters ----------------------------------------------------------------------------------


def test_empty_store_has_zero_stats_and_no_page() -> None:
    seen = dead_letters.stats()
    assert (seen.total, seen.tasks, seen.queues, seen.failures, seen.requeues) == (0, 0, 0, 0, 0)
    assert seen.oldest is seen.newest is None
    page = dead_letters.find()
    assert (list(page.letters), page.next, dead_letters.count()) == ([], None, 0)


def test_unknown_id_raises_on_get_and_requeue_and_discard_returns_false() -> None:
    missing = str(new_job_id())
    for act in (dead_letters.get, dead_letters.requeue):
        with pytest.raises(DeadLetterNotFound, match=missing):
            act(missing)
    assert dead_letters.discard(missing) is False


def test_sweep_and_rescue_of_empty_store_do_nothing() -> None:
    sweep = DeadLetterSweep(settings_for(), lambda: None)
    assert [sweep.sweep(), sweep.sweep()] == [0, 0]
    assert [upkeep().rescuing.rescue(), upkeep().rescuing.rescue()] == [0, 0]


def test_dead_letter_has_arguments_queue_and_error_of_its_job() -> None:
    letter = dead(frail.charge.using(queue_name="bank", priority=-7), "order 1", note="twice")
    story = dead_letters.get(letter.pk)
    assert (list(story.args or ()), story.kwargs) == (["order 1"], {"note": "twice"})
    assert (letter.queue, letter.priority, letter.reason) == ("bank", -7, "error")
    assert (letter.message, letter.attempts) == ("order 1 is broken", 1)
    assert letter.exception_class == "tests.app.frail.Broken"


def test_dead_letter_of_task_without_queue_is_in_default_queue() -> None:
    assert dead(frail.charge, "order 1").queue == "default"


def test_count_applies_filters_but_not_the_page_limit() -> None:
    for number in range(5):
        dead(frail.charge, f"order {number}")
    dead(frail.charge.using(queue_name="bank"), "order 5")
    assert len(dead_letters.find(limit=2, queue="default").letters) == 2
    assert dead_letters.count(queue="default") == 5
    assert dead_letters.count() == 6


def test_requeue_records_count_author_and_reason() -> None:
    letter = dead(frail.charge, "order 1")
    assert letter.last_requeued_at is None
    answer = dead_letters.requeue(letter.pk, by="alice", because="the bank is back")
    assert answer.fate is Fate.REQUEUED
    letter.refresh_from_db()
    assert (letter.requeued_count, letter.last_requeued_by) == (1, "alice")
    assert letter.last_requeued_because == "the bank is back"
    assert letter.last_requeued_at is not None
    (requeue,) = dead_letters.get(letter.pk).requeues
    assert (requeue.by, requeue.because) == ("alice", "the bank is back")


def test_second_discard_returns_false() -> None:
    letter = dead(frail.charge, "order 1")
    assert [dead_letters.discard(letter.pk), dead_letters.discard(letter.pk)] == [True, False]


def test_success_of_same_key_resolves_dead_letter() -> None:
    letter = dead(frail.fetch, "news")
    frail.broken.clear()
    frail.fetch.enqueue("news")
    drain()
    letter.refresh_from_db()
    assert letter.state == "resolved"


def test_bulk_actions_change_nothing_if_empty_or_dry_run() -> None:
    for act in (dead_letters.requeue_many, dead_letters.discard_many):
        assert (act().matched, act().done) == (0, 0)
    dead(frail.charge, "order 1")
    dead(frail.charge, "order 2")
    for act in (dead_letters.requeue_many, dead_letters.discard_many):
        assert (act(dry_run=True).matched, act(dry_run=True).done) == (2, 0)
        assert act(dry_run=True, limit=1).matched == 1
    bulk = dead_letters.purge(timedelta(0), state="all", dry_run=True)
    assert (bulk.matched, bulk.done) == (2, 0)
    assert dead_letters.count(state="open") == 2
    assert not Ready.objects.exists()


def test_dead_letter_shows_newest_failure() -> None:
    """Arguments, queue and message are those of the requeued job."""
    letter = dead(frail.charge, "order 1")
    frail.broken.add("order 2")
    dead_letters.requeue(letter.pk, args=["order 2"], to_queue="bank")
    drain()
    letter.refresh_from_db()
    assert (letter.message, letter.queue, letter.failure_count) == ("order 2 is broken", "bank", 2)
    assert list(dead_letters.get(letter.pk).args or ()) == ["order 2"]
    assert len(dead_letters.get(letter.pk).attempts) == 2, "the first error can still be read"


def test_requeue_that_cannot_be_recorded_creates_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job and history are written in one transaction."""
    letter = dead(frail.charge, "order 1")

    def fail(*_: Any) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(DeadLetterQuerySet, "note_requeues", fail)
    with pytest.raises(ZeroDivisionError):
        dead_letters.requeue(letter.pk)
    assert not Ready.objects.exists()
    assert not Requeue.objects.exists()
    assert Job.objects.count() == 1


# -- retries ---------------------------------------------------------------------------------------


def test_give_up_on_error_fails_after_one_attempt() -> None:
    result = look_up.enqueue("nothing")
    assert [ran.attempt for ran in drain().failed] == [1]
    assert DeadLetter.objects.get(job_id=result.id).attempts == 1


def test_other_error_is_retried_whatever_its_message() -> None:
    result = look_up.enqueue("a house")
    (ran,) = drain(until_empty=False).retried
    assert ran.attempt == 1
    assert not DeadLetter.objects.exists()
    result.refresh()
    assert result.state in (JobState.READY, JobState.DEFERRED)
    row = Ready.objects.get(pk=result.id)
    assert row.attempts == 1


def test_outcomes_and_signal_report_retries_and_final_failure() -> None:
    """By the outcome of the attempt, and by the signal of a dead letter."""
    kinds: list[str] = []
    letters: list[DeadLetter] = []

    def hear(outcome: Any, **_: Any) -> None:
        kinds.append(outcome.kind)

    def hear_letter(dead_letter: DeadLetter, **_: Any) -> None:
        letters.append(dead_letter)

    with connected((post_execute_in_worker, hear), (dead_lettered, hear_letter)):
        look_up.enqueue("a house")
        drain()
    assert kinds == ["retry", "retry", "failed"]
    assert len(letters) == 1


# -- keys ------------------------------------------------------------------------------------------


def test_enqueue_with_same_key_returns_first_job() -> None:
    first, second = frail.fetch.enqueue("news"), frail.fetch.enqueue("news")
    assert first.id == second.id
    assert Job.objects.count() == 1


def test_enqueue_with_key_of_running_job_returns_that_job() -> None:
    frail.fetch.enqueue("news")
    (delivery,) = broker_for(settings_for()).claim(ClaimRequest(1, holder=HOLDER, lease_seconds=60))
    again = frail.fetch.enqueue("news")
    assert again.id == str(delivery.job_id)
    assert Job.objects.count() == 1


def test_cancelled_job_does_not_run() -> None:
    result = frail.fetch.enqueue("news")
    assert result.cancel() is True
    assert not drain()


# -- leases ----------------------------------------------------------------------------------------


def test_clean_up_frees_expired_leases_and_leaves_valid_ones() -> None:
    jobs = [frail.charge.enqueue(f"order {number}") for number in range(3)]
    claimed = broker_for(settings_for()).claim(ClaimRequest(3, holder=HOLDER, lease_seconds=600))
    over = [one.job_id for one in claimed[:2]]
    broker_for(settings_for()).note_handed_out([one.lease for one in claimed])
    Claimed.objects.filter(pk__in=over).update(leased_until_us=DatabaseNow() - microseconds(600))
    upkeep().clean_up_at_start()
    assert [one.pk for one in Claimed.objects.all()] == [claimed[2].job_id]
    assert len(jobs) == 3
    assert DeadLetter.objects.filter(job_id__in=over).count() == 2, "they had one try each"


def test_clean_up_frees_guard_held_by_dead_cluster() -> None:
    first, second = frail.book.enqueue("7", "one"), frail.book.enqueue("7", "two")
    broker = broker_for(settings_for())
    claimed = broker.claim(ClaimRequest(2, holder=HOLDER, lease_seconds=600))
    broker.note_handed_out([one.lease for one in claimed])
    Claimed.objects.update(leased_until_us=DatabaseNow() - microseconds(600))
    upkeep().clean_up_at_start()
    dead_letters.discard(first.id)
    assert [ran.id for ran in drain()] == [second.id]


def test_cluster_without_heartbeat_is_deleted_and_live_one_kept() -> None:
    for name, seconds in (("silent", 10_000.0), ("alive", 0.0)):
        Cluster.objects.create(
            id=uuid.uuid4(),
            name=name,
            host="elsewhere",
            pid=7,
            heartbeat_us=DatabaseNow() - microseconds(seconds),
            started_at=timezone.now(),
            info={},
        )
    upkeep().rescuing.bury_silent_clusters()
    assert [one.name for one in Cluster.objects.all()] == ["alive"]


# -- sequences -------------------------------------------------------------------------------------


def test_one_job_of_each_sequence_is_claimed_at_a_time() -> None:
    frail.book.enqueue("7", "one")
    frail.book.enqueue("7", "two")
    frail.book.enqueue("8", "three")
    claimed = broker_for(settings_for()).claim(ClaimRequest(10, holder=HOLDER, lease_seconds=60))
    assert len(claimed) == 2, "one of each account"


# -- signals and times -----------------------------------------------------------------------------


def test_signals_are_sent_in_order_and_run_time_is_stored() -> None:
    heard: list[str] = []

    def begin(**_: Any) -> None:
        heard.append("begins")

    def also(**_: Any) -> None:
        heard.append("begins, too")

    def end(**_: Any) -> None:
        heard.append("ends")

    with connected((pre_execute, begin), (pre_execute, also), (post_execute_in_worker, end)):
        result = rest.enqueue()
        drain()
    assert heard == ["begins", "begins, too", "ends"]
    job = Job.objects.get(pk=result.id)
    assert job.finished_at - job.started_at >= timedelta(milliseconds=50)


def test_one_drain_runs_all_jobs() -> None:
    frail.charge.enqueue_many([((f"order {number}",), {}) for number in range(20)])
    assert len(drain()) == 20
    assert not Ready.objects.exists()
    assert not Attempt.objects.exists()
