"""What jobs waited for, after they have started or ended."""

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from stoker import InSequence, Limit, Lock, Rate
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.guards.sweep import call_due, forget_waits
from stoker.inspect.timeline import MomentKind, timeline
from stoker.inspect.waits import Waits, waits_of
from stoker.jobs import outcomes
from stoker.jobs.faults import plain_fault
from stoker.jobs.outcomes import Attempted, Outcome
from stoker.jobs.record import finish
from stoker.jobs.states import progress_of_one
from stoker.models import Attempt, Blocked, Cluster, Deferred, GuardKey, Job, Wait
from stoker.operations import waiting_jobs
from stoker.operations.operation import Operator
from stoker.store.written import DatabaseNow, microseconds
from stoker.why import why

from tests.app import guarded, tasks
from tests.guards.sessions import session
from tests.integration.work import claim, work_off

pytestmark = pytest.mark.django_db(transaction=True)

SLACK_SECONDS = 50.0
"""How long the steps of a test may take on a busy machine. Less than every simulated wait."""


def waits(job_id: Any) -> Waits:
    found = waits_of(settings_for(), progress_of_one(settings_for(), uuid.UUID(str(job_id))))
    assert found is not None
    return found


def seconds(job_id: Any) -> dict[str, float]:
    """Return what the job waited for -> seconds."""
    return {f"{one.cause.value} {one.name}".strip(): one.seconds for one in waits(job_id).parts}


def age(job_id: Any, enqueued: float = 0.0, blocked: float = 0.0) -> None:
    """Let a waiting job look as if it was enqueued and blocked earlier."""
    earlier = F("enqueued_at") - timedelta(seconds=enqueued)
    Job.objects.filter(pk=job_id).update(enqueued_at=earlier)
    Blocked.objects.filter(pk=job_id).update(since_us=F("since_us") - microseconds(blocked))


def end_with(outcome: Outcome, began_seconds_ago: float = 0.0) -> None:
    """End the claimed attempts with this outcome."""
    now = time.time()
    ended = [Attempted(one, outcome, "w", now - began_seconds_ago, now) for one in claim()]
    assert ended
    finish(settings_for(), broker_for(settings_for()), ended)


def succeed(delivery: Delivery) -> None:
    ended = Attempted(delivery, outcomes.Succeeded(b""), "w", time.time(), time.time())
    finish(settings_for(), broker_for(settings_for()), [ended])


def make_due() -> None:
    Deferred.objects.update(due_us=DatabaseNow())


def is_about(found: float, expected: float) -> bool:
    return expected - 1 <= found <= expected + SLACK_SECONDS


def assert_adds_up(job_id: Any) -> None:
    """The causes add up to the time between enqueue and start, without the attempts that failed."""
    job = Job.objects.get(pk=job_id)
    assert job.started_at is not None
    ran = timedelta()
    for attempt in Attempt.objects.filter(job_id=job_id):
        if attempt.number < job.attempts:
            assert attempt.started_at is not None
            ran += attempt.finished_at - attempt.started_at
    expected = (job.started_at - job.enqueued_at - ran).total_seconds()
    assert waits(job_id).seconds == pytest.approx(expected, abs=0.01)


def test_job_that_ran_at_once_waited_in_the_queue_and_has_no_row() -> None:
    result = tasks.add.enqueue(1, 2)
    age(result.id, enqueued=100)
    work_off()
    assert list(seconds(result.id)) == ["queue"]
    assert is_about(seconds(result.id)["queue"], 100)
    assert_adds_up(result.id)
    assert not Wait.objects.exists()
    kinds = [one.kind for one in timeline(settings_for(), uuid.UUID(result.id)).moments]
    assert MomentKind.WAITED not in kinds


def test_blocked_job_waited_for_its_lock_and_then_in_the_queue() -> None:
    first, second = guarded.enter.enqueue(), guarded.enter.enqueue()
    (running,) = claim()
    assert str(running.job_id) == first.id
    age(second.id, enqueued=300, blocked=200)
    succeed(running)
    assert work_off() == 1
    found = seconds(second.id)
    assert list(found) == ["lock lock door", "queue"]
    assert is_about(found["lock lock door"], 200)
    assert is_about(found["queue"], 100)
    assert_adds_up(second.id)
    (wait,) = waits(second.id).before
    assert (wait.number, wait.began_at) == (1, Job.objects.get(pk=second.id).enqueued_at)
    (waited,) = (
        one
        for one in timeline(settings_for(), uuid.UUID(second.id)).moments
        if one.kind == MomentKind.WAITED
    )
    assert "blocked by lock door" in waited.text
    assert waited.seconds == wait.seconds
    assert list(seconds(first.id)) in ([], ["queue"])


@pytest.mark.parametrize(
    ("guard", "name"),
    [
        ({"limit": Limit(1, "tenant")}, "limit limit tenant"),
        ({"sequence": InSequence("account")}, "sequence sequence account"),
        ({"rate": Rate("1/h", "mails")}, "rate rate mails per 3600 s"),
    ],
    ids=["limit", "sequence", "rate"],
)
def test_every_kind_of_guard_is_a_cause(guard: dict[str, Any], name: str) -> None:
    task = tasks.nothing.using(**guard)
    _, second = task.enqueue(), task.enqueue()
    (running,) = claim()
    while not Blocked.objects.exists():
        assert claim() == []
    age(second.id, enqueued=300, blocked=200)
    succeed(running)
    GuardKey.objects.filter(kind="rate").update(starts=[], due_us=DatabaseNow())
    call_due("default", 10)
    assert work_off() == 1
    assert name in seconds(second.id), seconds(second.id)
    assert is_about(seconds(second.id)[name], 200)
    assert_adds_up(second.id)


def test_job_that_is_blocked_twice_before_an_attempt_has_one_row() -> None:
    guarded.enter.enqueue()
    (running,) = claim()
    second = guarded.enter.enqueue()
    for _ in range(2):
        assert claim() == []
        age(second.id, enqueued=100, blocked=100)
        waiting_jobs.PRIORITISE.attempt(Operator(settings_for()), second.id, priority=3)
        assert not Blocked.objects.exists(), "it is decided about again"
    (wait,) = Wait.objects.all()
    assert (wait.times, wait.job_id) == (2, uuid.UUID(second.id))
    assert is_about(wait.total_us / 1e6, 200)
    assert running.job_id != wait.job_id


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("on_busy", ["wait", "retry"])
def test_first_wait_of_a_job_is_recorded_while_a_transaction_adds_to_that_of_another(
    on_busy: str,
) -> None:
    """In the order of the index, the new row is just before the one that the transaction has
    changed. One claim blocks or defers the job, and leases another one."""
    guarded.enter.enqueue()
    (running,) = claim()
    held_back = guarded.enter.using(lock=Lock("door", on_busy=on_busy), queue_name="late").enqueue()
    blocked_again = guarded.enter.enqueue()
    for _ in range(2):
        assert claim(queues=("default",)) == []
        waiting_jobs.PRIORITISE.attempt(Operator(settings_for()), blocked_again.id, priority=-3)
    assert claim(queues=("default",)) == []
    assert Wait.objects.get().times == 2
    free = tasks.nothing.enqueue()
    with session() as other:
        other.begin()
        assert other.do(blocked_again.cancel)
        assert [str(one.job_id) for one in claim()] == [free.id]
        succeed(running)
        make_due()
        assert [str(one.job_id) for one in claim()] == [held_back.id]
        other.commit()
    assert {str(one.job_id): one.times for one in Wait.objects.all()} == {
        held_back.id: 1,
        blocked_again.id: 3,
    }


def test_job_that_comes_back_to_a_busy_lock_waited_for_it() -> None:
    task = guarded.enter_or_come_back.using(lock=Lock("door", on_busy="retry", retry_delay=60))
    guarded.enter.enqueue()
    (running,) = claim()
    second = task.enqueue()
    for _ in range(3):
        assert claim() == []
        make_due()
    (wait,) = Wait.objects.all()
    assert (wait.kind, wait.name, wait.times) == ("lock", "lock door", 3)
    assert wait.total_us == 3 * microseconds(60)
    age(second.id, enqueued=400)
    broker_for(settings_for()).settle([running.lease])
    assert work_off() == 1
    assert seconds(second.id)["lock lock door"] == 180
    assert_adds_up(second.id)


def test_deferred_job_was_delayed_until_its_start_time() -> None:
    result = tasks.nothing.using(run_after=120).enqueue()
    age(result.id, enqueued=200)
    Job.objects.update(run_after=F("run_after") - timedelta(seconds=200))
    make_due()
    assert work_off() == 1
    found = seconds(result.id)
    assert is_about(found["start_time"], 120)
    assert is_about(found["queue"], 80)
    assert_adds_up(result.id)


def test_job_that_an_operator_held_was_delayed_until_it_was_run() -> None:
    result = tasks.nothing.enqueue()
    assert waiting_jobs.HOLD.attempt(Operator(settings_for()), result.id).is_good
    assert list(seconds(result.id)) == ["start_time"], "it is held now"
    # its enqueue comes from its package
    began_at = Job.objects.get().enqueued_at
    assert waiting_jobs.RUN_NOW.attempt(Operator(settings_for()), result.id).is_good
    (wait,) = Wait.objects.all()
    assert (wait.kind, wait.name) == ("start_time", "")
    assert abs(wait.began_us - began_at.timestamp() * 1e6) < 10
    assert work_off() == 1
    assert "start_time" in seconds(result.id)
    assert_adds_up(result.id)


def test_retry_waited_until_it_was_due_and_then_in_the_queue() -> None:
    result = tasks.nothing.using(max_attempts=5).enqueue()
    age(result.id, enqueued=30)
    end_with(outcomes.Retried(plain_fault(ValueError, "no"), 90.0, "error"), began_seconds_ago=10)
    attempt = Attempt.objects.get()
    assert attempt.retry_at == attempt.finished_at + timedelta(seconds=90)
    earlier = timedelta(seconds=150)
    Job.objects.update(enqueued_at=F("enqueued_at") - earlier)
    Attempt.objects.update(
        started_at=F("started_at") - earlier,
        finished_at=F("finished_at") - earlier,
        retry_at=F("retry_at") - earlier,
    )
    make_due()
    assert work_off() == 1
    found = seconds(result.id)
    assert found["retry"] == 90
    assert is_about(found["queue"], 60 + 20)
    assert_adds_up(result.id)
    assert [one.number for one in waits(result.id).before] == [1, 2]
    waited = [
        one.text
        for one in timeline(settings_for(), uuid.UUID(result.id)).moments
        if one.kind == MomentKind.WAITED
    ]
    assert len(waited) == 1
    assert waited[0].startswith("1 min 30 s for a retry, ")


def test_failed_last_attempt_leaves_no_retry_time() -> None:
    result = tasks.nothing.enqueue()
    end_with(outcomes.Failed(plain_fault(ValueError, "no")))
    assert Attempt.objects.get().retry_at is None
    assert list(seconds(result.id)) in ([], ["queue"])


def test_wait_of_a_snoozed_job_includes_its_uncounted_attempts() -> None:
    result = tasks.nothing.enqueue()
    for _ in range(2):
        end_with(outcomes.Snoozed(60.0, "later"), began_seconds_ago=5)
        make_due()
    (wait,) = Wait.objects.all()
    assert (wait.kind, wait.times, wait.attempts) == ("put_back", 2, 0)
    assert wait.total_us == pytest.approx(130e6, abs=1e6)
    age(result.id, enqueued=200)
    assert work_off() == 1
    assert seconds(result.id)["put_back"] == pytest.approx(130, abs=1)
    assert_adds_up(result.id)


def test_job_cancelled_while_blocked_waited_until_its_end() -> None:
    guarded.enter.enqueue()
    claim()
    second = guarded.enter.enqueue()
    assert claim() == []
    age(second.id, enqueued=300, blocked=200)
    assert second.cancel("enough")
    found = seconds(second.id)
    assert is_about(found["lock lock door"], 200)
    job = Job.objects.get(pk=second.id)
    assert job.finished_at is not None
    until_end = (job.finished_at - job.enqueued_at).total_seconds()
    assert sum(found.values()) == pytest.approx(until_end, abs=0.01)


def test_blocked_job_has_waited_since_it_was_blocked() -> None:
    guarded.enter.enqueue()
    claim()
    second = guarded.enter.enqueue()
    assert claim() == []
    age(second.id, enqueued=300, blocked=200)
    life = timeline(settings_for(), uuid.UUID(second.id))
    assert life.waits is not None
    found = {one.cause.value: one.seconds for one in life.waits.parts}
    assert is_about(found["lock"], 200)
    assert is_about(found["queue"], 100)
    blocked_at = life.moments[-1].at
    assert blocked_at is not None
    assert is_about(time.time() - blocked_at.timestamp(), 200)


def test_running_job_shows_what_it_waited_for() -> None:
    result = tasks.nothing.enqueue()
    age(result.id, enqueued=100)
    holder = uuid.uuid4()
    Cluster.objects.create(
        id=holder,
        name="stoker",
        host="one",
        pid=1,
        heartbeat_us=DatabaseNow(),
        started_at=Job.objects.get().enqueued_at,
        info={
            "workers": [
                {
                    "number": 0,
                    "pid": 8,
                    "jobs_done": 0,
                    "running": [{"job": result.id, "seconds": 80.0}],
                }
            ]
        },
    )
    broker_for(settings_for()).claim(ClaimRequest(1, holder=holder, lease_seconds=600))
    assert is_about(seconds(result.id)["queue"], 20)
    answer = why(settings_for(), uuid.UUID(result.id))
    assert answer.kind == "running"
    assert is_about(answer.facts["waits"]["seconds"], 20)
    assert answer.facts["waited"].endswith("in the queue or with a busy worker")


def test_clocks_that_differ_make_no_negative_wait() -> None:
    result = tasks.nothing.enqueue()
    age(result.id, enqueued=-3600)
    work_off()
    assert (waits(result.id).seconds, waits(result.id).parts) == (0, [])


def test_unknown_attempt_makes_the_waits_incomplete() -> None:
    result = tasks.nothing.using(max_attempts=5).enqueue()
    for _ in range(2):
        end_with(outcomes.Retried(plain_fault(ValueError, "no"), 0.0, "error"))
    Attempt.objects.filter(number=1).delete()
    work_off()
    found = waits(result.id)
    assert not found.is_complete
    assert [one.number for one in found.before] == [3]


def test_waits_of_jobs_that_are_gone_are_deleted() -> None:
    kept = tasks.nothing.enqueue()
    gone = uuid.uuid4()
    for job_id in (gone, uuid.UUID(kept.id), gone):
        place = {"attempts": Wait.objects.count(), "began_us": 1, "total_us": 1}
        Wait.objects.create(job_id=job_id, kind="lock", name="door", **place)
    first = Wait.objects.order_by("pk")[0].pk
    assert forget_waits("default", None, 1) == (1, first)
    assert forget_waits("default", first, 5) == (1, None)
    assert [one.job_id for one in Wait.objects.all()] == [uuid.UUID(kept.id)]
