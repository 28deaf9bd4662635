"""`why`: one test for each reason why a job is not running, on the real database."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from stoker import InSequence, Limit, Lock, Rate, chain, dead_letters, group, queues, set_limit
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import Settings, settings_for
from stoker.exceptions import PackageError
from stoker.jobs import relay as outbox
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Snoozed
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.jobs.retries import UNKNOWN_TASK_WAIT
from stoker.models import Claimed, Cluster, Deferred, Job, Ready, Tally
from stoker.models.metrics import FINEST_SECONDS, Sums, TaskInQueue
from stoker.operations.clusters import health_of
from stoker.operations.operation import Operator
from stoker.operations.waiting_jobs import HOLD
from stoker.store.written import DatabaseNow, microseconds
from stoker.why import Answer, Kind, why

from tests.app import guarded
from tests.app.tasks import add, cancel_itself, fail, fail_unretried, nothing

BACKEND = "stoker.backend.StokerBackend"

pytestmark = pytest.mark.django_db


def asked(result: Any) -> Answer:
    """Return the answer, and check that it has a sentence and, if needed, advice."""
    answer = why(settings_for(), uuid.UUID(str(getattr(result, "id", result))))
    assert answer.sentence.endswith((".", "?", "…"))
    assert answer.needs_somebody <= bool(answer.advice), "it needs advice"
    return answer


def sign_on(silent_seconds: float = 0.0, state: str = "running", **info: Any) -> Cluster:
    return Cluster.objects.create(
        id=uuid.uuid4(),
        name=settings_for().cluster,
        host="one",
        pid=7,
        state=state,
        heartbeat_us=DatabaseNow() - microseconds(silent_seconds),
        started_at=timezone.now(),
        info={"workers": [{"number": 0, "pid": 8, "jobs_done": 0, "running": []}], **info},
    )


def at_work(cluster: Cluster, result: Any, seconds: float = 2.0) -> None:
    """Let the cluster's last heartbeat show that job as running."""
    running = [{"job": str(result.id), "seconds": seconds}]
    cluster.info["workers"] = [{"number": 3, "pid": 9, "jobs_done": 0, "running": running}]
    cluster.save(update_fields=["info"])


def claim(count: int, holder: uuid.UUID | None = None) -> list[Any]:
    broker = broker_for(settings_for())
    return broker.claim(ClaimRequest(count, holder=holder or uuid.uuid4(), lease_seconds=60))


def run(count: int = 1) -> None:
    """Run and record one attempt of each job, as a cluster does."""
    settings = settings_for()
    executor = Executor(settings, worker_id="me")
    finish(settings, broker_for(settings), [executor.run(one) for one in claim(count)])


def put_off() -> None:
    """Defer jobs that are due in seconds by ten minutes."""
    Deferred.objects.update(due_us=F("due_us") + microseconds(600))


# -- it has ended ---------------------------------------------------------------------------------


def test_successful_job_answers_successful() -> None:
    result = add.enqueue(1, 2)
    run()
    answer = asked(result)
    assert (answer.kind, answer.task, answer.queue) == (
        Kind.SUCCESSFUL,
        add.module_path,
        "default",
    )
    assert (answer.facts["attempts"], answer.facts["worker"]) == (1, "me")
    assert answer.kind.has_ended
    assert answer.advice == ""


def test_cancelled_job_answers_cancelled() -> None:
    result = nothing.enqueue()
    result.cancel("ordered twice")
    assert (asked(result).kind, asked(result).facts["reason"]) == (Kind.CANCELLED, "ordered twice")
    itself = cancel_itself.enqueue()
    run()
    assert asked(itself).kind == Kind.CANCELLED


def test_reason_that_was_cut_ends_with_an_ellipsis() -> None:
    result = nothing.enqueue()
    jobs = Job.objects.filter(pk=result.id)
    for reason, end in (("error: no coal", "error: no coal."), ("x" * 255, "xx…")):
        jobs.update(status=Job.Status.FAILED, finished_at=timezone.now(), reason=reason)
        assert asked(result).sentence.endswith(end)


def test_failed_job_answers_dead_letter() -> None:
    result = fail_unretried.enqueue()
    run()
    answer = asked(result)
    letter = dead_letters.find().letters[0]
    assert answer.kind == Kind.DEAD_LETTER
    assert answer.facts["dead_letter"] == str(letter.pk)
    assert f"dead requeue {letter.pk}" in answer.advice
    assert "KeyError" in answer.sentence
    again = dead_letters.requeue(letter.pk)
    answer = asked(result)
    assert answer.facts["carried_on_by"] == str(again.job_id)
    assert str(again.job_id) in answer.advice
    run()  # it fails again: the dead letter belongs to the other job now
    assert asked(result).facts["dead_letter_state"] == "open"


def test_unreadable_package_answers_unreadable() -> None:
    result = nothing.enqueue()
    job = Job.objects.get(pk=result.id)
    package = bytes(job.package)
    job.package = package[:-1] + bytes([package[-1] ^ 1])
    job.save()
    sign_on()
    answer = asked(result)
    assert (answer.kind, answer.kind.has_ended) == (Kind.UNREADABLE, False)
    run()
    answer = asked(result)
    assert answer.kind == Kind.UNREADABLE
    assert answer.facts["error"]
    assert answer.facts["dead_letter"]


def renamed(result: Any) -> None:
    """Name a task in the package that does not exist."""
    job = Job.objects.get(pk=result.id)
    sealer = sealer_for(settings_for())
    package = sealer.open(bytes(job.package))
    assert not isinstance(package, PackageError)
    job.task = "tests.app.tasks.gone"
    job.package = sealer.seal(replace(package, task=job.task))
    job.save()


def test_unknown_task_answers_unknown_task() -> None:
    """Before a cluster has claimed it, while it is released, and after the grace period."""
    result = nothing.enqueue()
    renamed(result)
    sign_on()
    assert asked(result).kind == Kind.UNKNOWN_TASK
    run()
    put_off()
    answer = asked(result)
    assert Deferred.objects.exists()
    assert answer.kind == Kind.UNKNOWN_TASK
    assert answer.facts["due_at"] > timezone.now()
    assert "gone" in answer.facts["error"]


# -- a cluster has it -----------------------------------------------------------------------------


def test_running_job_answers_running_with_its_worker() -> None:
    result = nothing.enqueue()
    cluster = sign_on()
    claim(1, cluster.pk)
    assert asked(result).kind == Kind.HANDED_OUT
    assert asked(result).facts["host"] == "one"
    at_work(cluster, result)
    answer = asked(result)
    assert answer.kind == Kind.RUNNING
    assert (answer.facts["worker"], answer.facts["pid"], answer.facts["attempt"]) == (3, 9, 1)
    assert answer.facts["seconds"] >= 2.0
    assert not answer.facts["is_being_cancelled"]
    result.cancel("too long")
    assert asked(result).facts["is_being_cancelled"]
    assert "too long" in asked(result).sentence


def test_job_handed_to_busy_worker_names_worker_and_its_job() -> None:
    busy, result = nothing.enqueue(), nothing.enqueue()
    cluster = sign_on()
    claim(2, cluster.pk)
    at_work(cluster, busy)
    cluster.info["workers"][0]["handed_out"] = [result.id]
    cluster.save(update_fields=["info"])
    answer = asked(result)
    assert answer.kind == Kind.HANDED_OUT
    assert (answer.facts["worker"], answer.facts["pid"]) == (3, 9)
    assert "handed to worker 3" in answer.sentence
    assert f"busy with {nothing.module_path} {busy.id[:8]} since 20" in answer.sentence


def test_busy_worker_is_found_by_its_cluster() -> None:
    """In containers, workers of two hosts have the same process id."""
    busy, result, others = nothing.enqueue(), nothing.enqueue(), fail.enqueue("x")
    for _ in range(3):
        at_work(sign_on(), others)
    cluster = sign_on()
    claim(3, cluster.pk)
    at_work(cluster, busy)
    cluster.info["workers"][0]["handed_out"] = [result.id]
    cluster.save(update_fields=["info"])
    for _ in range(3):
        at_work(sign_on(), others)
    assert f"busy with {nothing.module_path} {busy.id[:8]}" in asked(result).sentence


def test_running_job_of_cluster_with_old_heartbeat_mentions_it() -> None:
    """The heartbeat is late, but the lease has not ended."""
    result = nothing.enqueue()
    cluster = sign_on(silent_seconds=30)
    claim(1, cluster.pk)
    at_work(cluster, result)
    assert "no heartbeat" in asked(result).sentence


def test_job_of_another_backends_cluster_answers_handed_out() -> None:
    result = nothing.enqueue()
    claim(1, sign_on(alias="other").pk)
    assert asked(result).kind == Kind.HANDED_OUT
    assert "another backend" in asked(result).sentence


@pytest.mark.parametrize("is_buried", [False, True])
def test_job_of_a_silent_cluster_answers_cluster_silent(is_buried: bool) -> None:
    result = nothing.enqueue()
    cluster = sign_on(silent_seconds=90)
    claim(1, cluster.pk)
    if is_buried:
        Cluster.objects.all().delete()
    answer = asked(result)
    assert answer.kind == Kind.CLUSTER_SILENT
    assert 0 < answer.facts["lease_seconds"] <= 60
    assert "stoker run" in answer.advice
    sign_on()
    assert asked(result).advice == ""


# -- its moment has not come ----------------------------------------------------------------------


def test_deferred_job_answers_run_after() -> None:
    result = nothing.using(run_after=timedelta(minutes=5)).enqueue()
    answer = asked(result)
    assert answer.kind == Kind.RUN_AFTER
    assert answer.facts["seconds"] == pytest.approx(300, abs=30)


def test_job_held_by_an_operator_needs_somebody(capsys: pytest.CaptureFixture[str]) -> None:
    result = nothing.enqueue()
    assert HOLD.perform(Operator(settings_for(), "alice"), str(result.id)).is_good
    answer = asked(result)
    assert (answer.kind, answer.facts["is_held"]) == (Kind.RUN_AFTER, True)
    assert run_why(capsys, str(result.id))[0] == 1


def test_job_waiting_for_retry_answers_retry() -> None:
    result = fail.using(max_attempts=4).enqueue("out of paper")
    run()
    put_off()
    answer = asked(result)
    assert answer.kind == Kind.RETRY
    assert (answer.facts["attempts"], answer.facts["max_attempts"]) == (1, 4)
    assert "out of paper" in answer.facts["error"]
    assert "Attempt 1 of 4" in answer.sentence


def snooze(outcome: Snoozed) -> None:
    settings = settings_for()
    (attempted,) = [Executor(settings, worker_id="me").run(one) for one in claim(1)]
    finish(settings, broker_for(settings), [replace(attempted, outcome=outcome)])


def test_snoozed_job_answers_put_back() -> None:
    result = nothing.enqueue()
    snooze(Snoozed(300.0, "not now"))
    answer = asked(result)
    assert answer.kind == Kind.PUT_BACK
    assert answer.facts["seconds"] == pytest.approx(300, abs=60)
    assert "It snoozed" in answer.sentence
    assert "older code" not in answer.advice


def test_job_snoozed_after_a_failed_attempt_answers_put_back() -> None:
    result = fail.using(max_attempts=4).enqueue("out of paper")
    run()
    put_off()
    assert asked(result).kind == Kind.RETRY
    Deferred.objects.update(due_us=DatabaseNow())
    snooze(Snoozed(300.0, "not now"))
    answer = asked(result)
    assert answer.kind == Kind.PUT_BACK
    assert "out of paper" not in answer.sentence
    Deferred.objects.update(due_us=DatabaseNow())
    run()
    put_off()
    assert (asked(result).kind, asked(result).facts["attempts"]) == (Kind.RETRY, 2)


def test_job_released_because_its_task_is_unknown_mentions_older_code() -> None:
    result = nothing.enqueue()
    snooze(Snoozed(300.0, "unknown", UNKNOWN_TASK_WAIT))
    assert "released without having run" in asked(result).sentence
    assert "older code" in asked(result).advice


def test_job_signed_with_the_key_of_another_cluster_answers_put_back() -> None:
    """This process has both keys, and the cluster has only the old one."""
    with override_settings(SECRET_KEY="new"):
        result = nothing.enqueue()
        sign_on(alias="default", key=sealer_for(settings_for()).key_ids[0])
    (attempted,) = [Executor(settings_for(), worker_id="me").run(one) for one in claim(1)]
    finish(settings_for(), broker_for(settings_for()), [attempted])
    with override_settings(SECRET_KEY_FALLBACKS=["new"]):
        answers = [asked(result)]
    answers.append(asked(result))  # as in a process that has only the old key
    for answer in answers:
        assert answer.kind == Kind.PUT_BACK
        assert "another SECRET_KEY" in answer.sentence
        assert "SECRET_KEY_FALLBACKS" in answer.advice


def test_job_deferred_by_on_busy_retry_answers_put_back() -> None:
    guarded.enter.enqueue()
    claim(1)
    result = guarded.enter_or_come_back.enqueue()
    assert claim(1) == []
    put_off()
    answer = asked(result)
    assert answer.kind == Kind.PUT_BACK
    assert "door" in answer.sentence


def test_job_snoozed_after_its_guard_was_busy_answers_that_it_snoozed() -> None:
    guarded.enter.enqueue()
    (holder,) = claim(1)
    result = guarded.enter_or_come_back.enqueue()
    assert claim(1) == []
    settings = settings_for()
    attempted = Executor(settings, worker_id="me").run(holder)
    finish(settings, broker_for(settings), [attempted])
    Deferred.objects.update(due_us=DatabaseNow())
    snooze(Snoozed(300.0, "not now"))
    put_off()
    assert "It snoozed" in asked(result).sentence


def test_overdue_job_answers_like_a_ready_one() -> None:
    result = nothing.using(run_after=60).enqueue()
    Deferred.objects.update(due_us=1)
    assert asked(result).kind == Kind.NO_CLUSTER


# -- a guard blocks it ----------------------------------------------------------------------------


def blocked(task: Any, count: int = 2) -> list[Any]:
    """Enqueue jobs of that task and claim: the first holds the guard, the others are blocked."""
    results = [task.enqueue() for _ in range(count)]
    for _ in range(count):
        claim(count)
    return results


def test_job_blocked_by_a_lock_answers_lock_with_its_holder() -> None:
    sign_on()
    first, second, third = blocked(nothing.using(lock=Lock("printer")), 3)
    answer = asked(second)
    assert (answer.kind, answer.facts["before"]) == (Kind.LOCK, 0)
    (holder,) = answer.facts["holders"]
    assert holder == {
        "job_id": str(first.id),
        "task": nothing.module_path,
        "state": "RUNNING",
    }
    assert str(first.id) in answer.sentence
    assert "The lock 'printer', under which one may run at a time, is held by" in answer.sentence
    assert answer.sentence.endswith("It is next.")
    assert asked(third).facts["before"] == 1
    assert asked(third).sentence.endswith("1 job is before it.")


def test_job_blocked_by_a_limit_answers_limit() -> None:
    *_, third = blocked(nothing.using(limit=Limit(2, "tenant")), 3)
    answer = asked(third)
    assert (answer.kind, answer.facts["places"]) == (Kind.LIMIT, 2)
    assert len(answer.facts["holders"]) == 2
    assert answer.sentence.startswith("The limit 'tenant', under which 2 may run at a time")


def test_job_blocked_by_a_rate_answers_rate() -> None:
    _, second = blocked(nothing.using(rate=Rate("1/m", "mails")))
    answer = asked(second)
    assert answer.kind == Kind.RATE
    assert (answer.facts["places"], answer.facts["period_seconds"]) == (1, 60.0)
    assert 0 < answer.facts["next_start_seconds"] <= 61
    assert answer.sentence.startswith("The rate 'mails' lets 1 start in 1 min 0 s; the next may")


def test_job_behind_another_of_its_sequence_answers_sequence() -> None:
    sign_on()
    first, second = blocked(nothing.using(sequence="orders"))
    answer = asked(second)
    assert answer.kind == Kind.SEQUENCE
    assert [one["job_id"] for one in answer.facts["holders"]] == [str(first.id)]
    assert answer.facts["halted_by"] is None
    assert not answer.needs_somebody
    assert answer.sentence.startswith("In the sequence 'orders' an earlier job has not ended: ")


def test_job_of_a_halted_sequence_answers_with_the_dead_letter() -> None:
    task = fail_unretried.using(sequence=InSequence("orders", after_failure="halt"))
    first, second = task.enqueue(), task.enqueue()
    run()
    claim(1)
    answer = asked(second)
    assert (answer.kind, answer.facts["halted_by"]) == (Kind.SEQUENCE, str(first.id))
    assert "dead letter" in answer.advice
    assert answer.needs_somebody
    Job.objects.filter(pk=first.id).delete()  # as upkeep does after KEEP_RESULTS
    answer = asked(second)
    assert answer.facts["halted_by"] == str(first.id)
    assert answer.needs_somebody


def test_job_of_a_limit_of_zero_needs_somebody() -> None:
    sign_on()
    set_limit("tenant", 0)
    _, second = blocked(nothing.using(limit=Limit(2, "tenant")))
    answer = asked(second)
    assert (answer.kind, answer.facts["places"], answer.needs_somebody) == (Kind.LIMIT, 0, True)
    assert answer.sentence.startswith(
        "The limit 'tenant' was set to 0: no job may run until set_limit raises it. "
    )
    assert "is free" not in answer.sentence
    set_limit("tenant", 1)
    claim(1)
    assert not asked(second).needs_somebody


# -- a workflow -----------------------------------------------------------------------------------


def test_step_waiting_for_earlier_steps_answers_workflow() -> None:
    workflow = chain(add.si(1, 2), group(nothing.si(), nothing.si()), add.si(3, 4)).enqueue()
    steps = [one for one in workflow.steps() if one.kind == "task"]
    by_label = {(one.label, one.state): one for one in steps}
    first = by_label[add.module_path, "ENQUEUED"]
    member = by_label[nothing.module_path, "PENDING"]
    answer = asked(member.job_id)
    assert (answer.kind, answer.task) == (Kind.WORKFLOW, nothing.module_path)
    assert [one["job_id"] for one in answer.facts["waits_for"]] == [first.job_id]
    assert answer.facts["workflow"] == str(workflow.id)
    assert not answer.needs_somebody
    last = by_label[add.module_path, "PENDING"]
    assert len(asked(last.job_id).facts["waits_for"]) == 3
    run()
    assert {one["task"] for one in asked(last.job_id).facts["waits_for"]} == {nothing.module_path}


def test_step_of_a_failed_workflow_advises_retry() -> None:
    workflow = chain(fail_unretried.si(), nothing.si()).enqueue()
    run()
    (step,) = [one for one in workflow.steps() if one.label == nothing.module_path]
    answer = asked(step.job_id)
    assert (answer.kind, answer.facts["workflow_state"]) == (Kind.WORKFLOW, "FAILED")
    assert "retry" in answer.advice
    assert answer.needs_somebody


# -- it may start ---------------------------------------------------------------------------------


def test_job_of_a_paused_queue_answers_paused() -> None:
    result = nothing.enqueue()
    queues.pause("default", by="alice", because="the provider is down")
    answer = asked(result)
    assert (answer.kind, answer.facts["by"]) == (Kind.PAUSED, "alice")
    assert "the provider is down" in answer.sentence
    assert "stoker resume default" in answer.advice


@pytest.mark.parametrize("silent", [False, True])
def test_job_without_live_cluster_answers_no_cluster(silent: bool) -> None:
    result = nothing.enqueue()
    if silent:
        sign_on(silent_seconds=90)
    answer = asked(result)
    assert (answer.kind, len(answer.facts["silent"])) == (Kind.NO_CLUSTER, int(silent))


def test_job_of_a_queue_not_served_answers_not_served() -> None:
    result = nothing.enqueue()
    sign_on(queues=["mail"])
    answer = asked(result)
    assert answer.kind == Kind.NOT_SERVED
    assert [one["queues"] for one in answer.facts["clusters"]] == [["mail"]]


@pytest.mark.parametrize("state", ["quiet", "stopping"])
def test_job_with_quiet_or_stopping_clusters_answers_clusters_quiet(state: str) -> None:
    result = nothing.enqueue()
    cluster = sign_on(state=state)
    answer = asked(result)
    assert answer.kind == Kind.CLUSTERS_QUIET
    assert str(cluster.pk) in answer.advice


def test_job_in_line_has_position_and_expected_wait() -> None:
    """The expected wait needs a history of metrics."""
    sign_on()
    nothing.enqueue_many([((), {})] * 9)
    urgent = nothing.using(priority=5).enqueue()
    last = nothing.enqueue()
    assert (asked(urgent).kind, asked(urgent).facts["before"]) == (Kind.IN_LINE, 0)
    answer = asked(last)
    assert (answer.facts["before"], answer.facts["expected_seconds"]) == (10, None)
    assert answer.facts["free_workers"] == 1
    sums = {TaskInQueue("default", nothing.module_path): Sums(successful=600)}
    start = int(timezone.now().timestamp()) // FINEST_SECONDS * FINEST_SECONDS
    Tally.objects.bulk_create(Tally.objects.rows_of(start, FINEST_SECONDS, sums))
    answer = asked(last)
    assert answer.facts["per_second"] == pytest.approx(2.0)
    assert answer.facts["expected_seconds"] == pytest.approx(5.0)


def test_job_behind_busy_workers_says_so() -> None:
    busy, result = nothing.enqueue(), nothing.enqueue()
    cluster = sign_on()
    claim(1, cluster.pk)
    at_work(cluster, busy)
    answer = asked(result)
    assert (answer.kind, answer.facts["free_workers"]) == (Kind.IN_LINE, 0)
    assert answer.advice.startswith("All workers are busy")


def test_only_workers_that_would_take_the_job_are_free() -> None:
    busy, result = nothing.enqueue(), nothing.enqueue()
    cluster = sign_on(queues=["default"])
    claim(1, cluster.pk)
    at_work(cluster, busy)
    sign_on(queues=["mail"])
    sign_on(state="quiet")
    sign_on(silent_seconds=90)
    assert asked(result).facts["free_workers"] == 0
    sign_on()
    assert (asked(result).facts["free_workers"], asked(result).advice) == (1, "")


def test_deferred_job_of_a_paused_queue_needs_somebody(capsys: pytest.CaptureFixture[str]) -> None:
    result = nothing.using(run_after=60).enqueue()
    sign_on()
    assert not asked(result).needs_somebody
    queues.pause("default", by="alice")
    answer = asked(result)
    assert (answer.kind, answer.facts["then"]) == (Kind.RUN_AFTER, "paused")
    assert "becomes ready in" in answer.sentence
    assert re.search(r"The queue default is paused since [-0-9]+ [:0-9]+ UTC by", answer.sentence)
    assert answer.advice == "`manage.py stoker resume default`."
    assert run_why(capsys, str(result.id))[0] == 1


@pytest.mark.parametrize(("queues", "then"), [([], "no_cluster"), (["mail"], "not_served")])
def test_blocked_job_whose_queue_is_not_served_needs_somebody(queues: list[str], then: str) -> None:
    _, second = blocked(nothing.using(lock=Lock("printer")))
    if queues:
        sign_on(queues=queues)
    answer = asked(second)
    assert (answer.kind, answer.facts["then"], answer.needs_somebody) == (Kind.LOCK, then, True)
    assert "It is next. No cluster " in answer.sentence


def test_expired_job_answers_expired() -> None:
    result = nothing.using(expires=0.001).enqueue()
    sign_on()
    answer = asked(result)
    assert (answer.kind, answer.needs_somebody) == (Kind.EXPIRED, True)
    assert answer.sentence.startswith("It expired at 20")


def test_deferred_job_that_expires_before_it_is_due_says_so() -> None:
    """A retry or an operator may give it a later start."""
    result = nothing.using(run_after=60, expires=3600).enqueue()
    sign_on()
    assert not asked(result).needs_somebody
    Deferred.objects.update(due_us=F("due_us") + microseconds(7200))
    answer = asked(result)
    assert (answer.needs_somebody, answer.facts["then"]) == (True, "expired")
    assert "It expires at 20" in answer.sentence


# -- advice ---------------------------------------------------------------------------------------


@pytest.fixture
def reports() -> Iterator[Settings]:
    """Add the backend ``reports``, and return its settings."""
    backend = {"BACKEND": BACKEND, "QUEUES": []}
    with override_settings(TASKS={"default": backend, "reports": backend}):
        yield settings_for("reports")


def test_commands_in_advice_name_the_backend_and_quote_the_queue(reports: Settings) -> None:
    """Without --backend, they would act on the backend ``default``."""
    result = nothing.using(backend="reports", queue_name="big ones").enqueue()

    def advice() -> str:
        return why(reports, uuid.UUID(result.id)).advice

    assert advice() == "Start one with `manage.py stoker run --backend reports`."
    cluster = sign_on(state="quiet", queues=["mail"], alias="reports")
    assert "`manage.py stoker run --queues 'big ones' --backend reports`" in advice()
    cluster.info["queues"] = []
    cluster.save(update_fields=["info"])
    assert f"`manage.py stoker clusters resume {cluster.pk} --backend reports`" in advice()
    queues.pause("big ones", backend="reports")
    assert advice() == "`manage.py stoker resume 'big ones' --backend reports`."
    health, _ = health_of(reports, "another", 30.0)
    assert health.sentence.endswith("start one with `stoker run --backend reports`.")


# -- outside the store ----------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[None]:
    """Use a broker outside the database."""
    options = {"BROKER": "memory://", "CLUSTER": uuid.uuid4().hex}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        yield


@pytest.mark.django_db(transaction=True)
def test_job_in_the_outbox_answers_outbox(memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "relay_these", lambda *_: {})
    with transaction.atomic():
        result = nothing.enqueue()
    answer = asked(result)
    assert (answer.kind, answer.facts["database"]) == (Kind.OUTBOX, "default")
    assert (answer.task, answer.queue) == (nothing.module_path, "default")
    assert "stoker run" in answer.advice


@pytest.mark.django_db(transaction=True)
def test_job_at_a_broker_without_lookup_answers_at_broker(
    memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_for(settings_for())
    blind = replace(broker.capabilities, look_up=False)
    monkeypatch.setattr(broker, "capabilities", blind)
    result = nothing.enqueue()
    answer = asked(result)
    assert (answer.kind, "stoker run" in answer.advice) == (Kind.AT_BROKER, True)
    sign_on()
    assert "stoker run" not in asked(result).advice


@pytest.mark.django_db(transaction=True)
def test_job_at_a_broker_with_lookup_answers_its_state(memory: None) -> None:
    result, later = nothing.enqueue(), nothing.using(run_after=60).enqueue()
    assert asked(later).kind == Kind.AT_BROKER
    assert asked(result).kind == Kind.NO_CLUSTER
    cluster = sign_on()
    assert asked(result).kind == Kind.IN_LINE
    claim(1)
    assert asked(result).kind == Kind.HANDED_OUT
    at_work(cluster, result)
    assert (asked(result).kind, asked(result).facts["worker"]) == (Kind.RUNNING, 3)


def test_lost_job_answers_lost() -> None:
    """This must not happen; `stoker doctor` repairs it."""
    result = nothing.enqueue()
    Ready.objects.all().delete()
    assert asked(result).kind == Kind.LOST
    assert "doctor" in asked(result).advice


def test_unknown_id_answers_unknown() -> None:
    result = nothing.enqueue()
    Ready.objects.all().delete()
    Job.objects.all().delete()
    answer = asked(result)
    assert answer.kind == Kind.UNKNOWN
    assert abs(answer.facts["made_at"] - timezone.now()) < timedelta(minutes=1)
    assert asked(uuid.uuid4()).facts["made_at"] is None


# -- in the terminal ------------------------------------------------------------------------------


def run_why(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return exit code and output of the command."""
    code = 0
    try:
        call_command("stoker", "why", *arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    except CommandError as error:
        code = error.returncode
    return code, capsys.readouterr().out


def test_exit_code_is_one_if_action_is_needed_and_two_if_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = nothing.enqueue()
    code, output = run_why(capsys, str(result.id))
    assert (code, len(output.splitlines())) == (1, 3)
    assert "no cluster" in output
    code, output = run_why(capsys, str(result.id), "--json")
    shape = json.loads(output)
    assert (code, shape["kind"], shape["needs_somebody"]) == (1, "no_cluster", True)
    run()
    assert run_why(capsys, str(result.id))[0] == 0
    assert run_why(capsys, str(uuid.uuid4()))[0] == 2
    assert run_why(capsys, "17")[0] == 2


def test_job_that_moves_between_tables_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single query may miss it."""
    result = nothing.enqueue()
    real, looks = Ready.objects.get_queryset, []

    def look(*_: Any) -> Any:
        looks.append(None)
        return real() if len(looks) > 1 else real().none()

    monkeypatch.setattr(type(Ready._default_manager), "get_queryset", look)
    assert asked(result).kind == Kind.NO_CLUSTER
    assert len(looks) > 1
    assert not Claimed.objects.exists()
