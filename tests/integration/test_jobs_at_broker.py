"""Results and details of jobs that only a broker outside the database has."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from stoker.brokers.dispatch import Dispatch
from stoker.compat import TaskResultDoesNotExist, TaskResultMismatch, task_backends
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.inspect.stats import clusters
from stoker.inspect.timeline import MomentKind
from stoker.jobs.states import JobState
from stoker.locks.sweep import Leftovers
from stoker.models import Attempt, Begun, Cluster, Job
from stoker.operations.jobs import details_of
from stoker.store.written import DatabaseNow
from stoker.values.ids import new_job_id
from stoker.why import Kind, why

from tests.app.chaos import snooze_once
from tests.app.payments import pay
from tests.app.tasks import add, ask_for_retry, echo
from tests.conformance.stands import message
from tests.integration.fronted import fronted_broker
from tests.integration.work import claim, work_off

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def broker() -> Iterator[Dispatch]:
    with fronted_broker() as made:
        yield made


class TestFetching:
    def test_job_at_the_broker_is_fetched_with_its_task(self, broker: Dispatch) -> None:
        result = add.using(priority=5).enqueue(1, second=2)
        later = add.using(run_after=60).enqueue(1, 2)
        assert not Job.objects.exists()
        found = add.get_result(result.id)
        assert (found.state, found.args, found.kwargs) == (JobState.READY, [1], {"second": 2})
        assert (found.task.func, found.task.priority) == (add.func, 5)
        assert found.enqueued_at == result.enqueued_at
        assert async_to_sync(add.aget_result)(result.id) == found
        assert task_backends["default"].get_result(result.id) == found
        assert add.get_result(later.id).state == JobState.DEFERRED
        claim()
        assert add.get_result(result.id).state in (JobState.CLAIMED, JobState.RUNNING)

    def test_deferred_job_at_the_broker_is_fetched_with_its_start_time(
        self, broker: Dispatch
    ) -> None:
        due_at = timezone.now() + timedelta(hours=1)
        result = add.using(run_after=due_at).enqueue(1, 2)
        found = add.get_result(result.id)
        assert (found.state, found.task.run_after) == (JobState.DEFERRED, due_at)
        assert found.job.run_after == due_at
        ready = add.get_result(add.enqueue(1, 2).id)
        assert (ready.task.run_after, ready.job.run_after) == (None, None)

    def test_row_of_a_job_at_the_broker_is_unsaved(self, broker: Dispatch) -> None:
        result = add.using(priority=5).enqueue(1, second=2)
        assert (result.job.task, result.job.priority) == (add.module_path, 5)
        assert not Job.objects.exists()
        work_off()
        assert add.get_result(result.id).job == Job.objects.get()

    def test_job_of_another_task_at_the_broker_raises_mismatch(self, broker: Dispatch) -> None:
        result = add.enqueue(1, 2)
        with pytest.raises(TaskResultMismatch, match=re.escape(add.module_path)):
            echo.get_result(result.id)
        with pytest.raises(TaskResultMismatch, match=re.escape(add.module_path)):
            async_to_sync(echo.aget_result)(result.id)

    def test_unknown_id_raises_does_not_exist(self, broker: Dispatch) -> None:
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(str(new_job_id()))

    def test_job_that_ends_while_it_is_fetched_is_fetched_from_the_store(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        jobs = broker.broker.jobs

        def jobs_after_the_end(job_ids: Any) -> Any:
            work_off()
            return jobs(job_ids)

        monkeypatch.setattr(broker.broker, "jobs", jobs_after_the_end)
        assert add.get_result(result.id).return_value == 3

    def test_job_that_is_deleted_while_it_is_fetched_raises_does_not_exist(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        jobs = broker.broker.jobs

        def jobs_after_the_deletion(job_ids: Any) -> Any:
            broker.purge("default")
            return jobs(job_ids)

        monkeypatch.setattr(broker.broker, "jobs", jobs_after_the_deletion)
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(result.id)

    def test_job_with_unreadable_package_counts_as_the_tasks_own(self, broker: Dispatch) -> None:
        job = message(package=b"nonsense")
        broker.enqueue([job])
        found = add.get_result(str(job.job_id))
        assert (found.state, found.task, found.args) == (JobState.READY, add, [])

    def test_cancelled_job_is_recorded_with_its_task(self, broker: Dispatch) -> None:
        result = add.enqueue(1, 2)
        assert task_backends["default"].get_result(result.id).cancel()
        assert Job.objects.get().task == add.module_path


class TestDetails:
    def test_details_of_a_job_at_the_broker_name_its_call(self, broker: Dispatch) -> None:
        result = pay.using(priority=5).enqueue(7, "DE12")
        found = details_of(settings_for(), UUID(result.id))
        facts = {one.label: one.value for one in found.facts}
        assert (facts["Task"], facts["Queue"], facts["Priority"]) == (pay.module_path, "default", 5)
        assert facts["Enqueued"] == result.enqueued_at
        assert (found.label, found.call["pairs"]) == (
            "order 7",
            [("order_id", "7"), ("iban", "[withheld]")],
        )
        revealed = details_of(settings_for(), UUID(result.id), reveal=True)
        assert ("iban", "'DE12'") in revealed.call["pairs"]
        assert (found.life.task, found.life.moments[0].at) == (pay.module_path, facts["Enqueued"])
        assert found.life.waits is not None
        claim()
        found = details_of(settings_for(), UUID(result.id))
        assert found.progress.state in (JobState.CLAIMED, JobState.RUNNING)
        assert found.life.task == pay.module_path

    def test_details_of_a_deferred_job_at_the_broker_have_its_start_time(
        self, broker: Dispatch
    ) -> None:
        due_at = timezone.now() + timedelta(hours=1)
        result = add.using(run_after=due_at).enqueue(1, 2)
        found = details_of(settings_for(), UUID(result.id))
        assert due_at in [one.value for one in found.facts if one.label == "Not before"]
        waits = found.life.moments[-1]
        assert (waits.kind, waits.until) == (MomentKind.WAITS_FOR_MOMENT, due_at)

    def test_job_with_unreadable_package_shows_where_it_is(self, broker: Dispatch) -> None:
        job = message(package=b"nonsense")
        broker.enqueue([job])
        found = details_of(settings_for(), job.job_id)
        assert [one.label for one in found.facts] == ["Stored"]
        assert not found.call["is_readable"]
        assert why(settings_for(), job.job_id).kind == Kind.UNREADABLE

    def test_command_shows_the_call_of_a_job_at_the_broker(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        due_at = timezone.now() + timedelta(hours=1)
        result = add.using(run_after=due_at).enqueue(1, second=2)
        call_command("stoker", "jobs", "show", result.id, json=True)
        shown = json.loads(capsys.readouterr().out)
        assert (shown["job"]["task"], shown["job"]["id"]) == (add.module_path, result.id)
        assert parse_datetime(shown["job"]["run_after"]) == due_at
        assert (shown["args"], shown["kwargs"]) == (["1"], {"second": "2"})

    def test_why_names_task_and_start_time_of_a_job_at_the_broker(self, broker: Dispatch) -> None:
        due_at = timezone.now() + timedelta(hours=1)
        result = add.using(run_after=due_at).enqueue(1, 2)
        answer = why(settings_for(), UUID(result.id))
        assert (answer.kind, answer.task, answer.queue) == (
            Kind.AT_BROKER,
            add.module_path,
            "default",
        )
        assert answer.facts["due_at"] == due_at
        assert f"until its start time, {due_at:%Y-%m-%d %H:%M:%S}" in answer.sentence

    def test_job_between_two_attempts_names_the_error_and_the_next_attempt(
        self, broker: Dispatch
    ) -> None:
        result = ask_for_retry.enqueue(3600)
        work_off()
        retry_at = Attempt.objects.get().retry_at
        answer = why(settings_for(), UUID(result.id))
        assert answer.kind == Kind.RETRY
        error = "stoker.exceptions.Retry: asked for"
        assert answer.sentence.startswith(f"Attempt 1 of 2 failed ({error}); it is retried in")
        assert abs(answer.facts["due_at"] - retry_at) < timedelta(seconds=1)
        assert (answer.facts["attempts"], answer.facts["error"]) == (1, error)
        details = details_of(settings_for(), UUID(result.id))
        waits = details.life.moments[-1]
        assert (waits.kind, waits.until) == (MomentKind.WAITS_FOR_RETRY, retry_at)
        assert why(settings_for(), UUID(result.id), details.progress).kind == Kind.RETRY

    def test_job_that_is_snoozed_after_a_failure_names_no_past_retry(
        self, broker: Dispatch
    ) -> None:
        result = ask_for_retry.enqueue(3600)
        work_off()
        Attempt.objects.update(retry_at=timezone.now() - timedelta(hours=1))
        waits = details_of(settings_for(), UUID(result.id)).life.moments[-1]
        assert (waits.kind, waits.until) == (MomentKind.WAITS_FOR_RETRY, None)


class TestRunning:
    def test_running_job_from_the_broker_is_shown_with_task_queue_and_attempt(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = echo.using(queue_name="mail").enqueue("dear ann")
        second = ask_for_retry.enqueue(3600)
        claim()
        Attempt.objects.create(
            job_id=second.id, number=1, kind=Attempt.Kind.FAILED, finished_at=timezone.now()
        )
        sign_on_with(first.id, second.id)
        call_command("stoker", "info", "--json")
        (cluster,) = json.loads(capsys.readouterr().out)["clusters"]
        shown = [
            (one["task"], one["queue"], one["attempt"]) for one in cluster["workers"][0]["running"]
        ]
        assert shown == [
            (echo.module_path, "mail", 1),
            (ask_for_retry.module_path, "default", 2),
        ]
        answer = why(settings_for(), UUID(first.id))
        assert (answer.kind, answer.task, answer.queue) == (Kind.RUNNING, echo.module_path, "mail")
        assert "in attempt 1 in worker" in answer.sentence
        assert "in attempt 2 in worker" in why(settings_for(), UUID(second.id)).sentence

    def test_workers_are_listed_while_the_broker_does_not_answer(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        sign_on_with(result.id)

        def fail(job_ids: Any) -> Any:
            raise BrokerUnavailable("redis cannot be reached")

        monkeypatch.setattr(broker.broker, "jobs", fail)
        (cluster,) = clusters(settings_for())
        (job,) = cluster.workers[0].running
        assert (job.job_id, job.task) == (result.id, "")


def sign_on_with(*job_ids: str) -> None:
    """Add a cluster whose last heartbeat shows these jobs as running."""
    running = [{"job": job_id, "seconds": 2.0} for job_id in job_ids]
    Cluster.objects.create(
        id=new_job_id(),
        name=settings_for().cluster,
        host="one",
        pid=7,
        state="running",
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"workers": [{"number": 0, "pid": 8, "jobs_done": 0, "running": running}]},
    )


class TestLists:
    def test_list_says_how_many_jobs_wait_at_the_broker(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        call_command("stoker", "jobs", "list")
        assert capsys.readouterr().out == "No jobs. Enqueue one: manage.py stoker enqueue TASK\n"
        add.enqueue(1, 2)
        add.using(run_after=3600).enqueue(3, 4)
        call_command("stoker", "jobs", "list")
        assert capsys.readouterr().out == (
            "2 jobs wait at the broker. Of these, this list has only jobs whose first attempt has "
            "ended: `manage.py stoker jobs list --at-broker` lists those that wait.\n"
        )
        for words in (["--state", "failed"], ["--queue", "mail"]):
            call_command("stoker", "jobs", "list", *words)
            assert capsys.readouterr().out == "No such jobs.\n"

    def test_list_says_how_many_jobs_from_the_broker_run(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add.enqueue(1, 2)
        claim()
        call_command("stoker", "jobs", "list", "--state", "running")
        assert capsys.readouterr().out == (
            "1 job from the broker runs. Of these, this list has only jobs whose first attempt has "
            "ended: `manage.py stoker info` shows those that run.\n"
        )
        add.enqueue(1, 2)
        call_command("stoker", "jobs", "list")
        told = capsys.readouterr().out
        assert told.startswith("1 job waits at the broker, and 1 job from the broker runs. Of ")
        assert "lists those that wait, and `manage.py stoker info` shows those that run." in told
        numbers = {(): 2, ("--state", "ready"): 1, ("--task", "add"): None, ("--since", "2d"): None}
        for words, number in numbers.items():
            call_command("stoker", "jobs", "list", "--json", *words)
            assert json.loads(capsys.readouterr().out)["at_broker"] == number

    def test_list_at_the_broker_shows_the_waiting_jobs(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ready = add.enqueue(1, second=2)
        later = echo.using(run_after=3600, queue_name="mail").enqueue("late")
        broker.enqueue([message(package=b"nonsense")])

        def listed(*words: str) -> list[dict[str, Any]]:
            call_command("stoker", "jobs", "list", "--at-broker", "--json", *words)
            jobs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["jobs"]
            return jobs

        found = {one["id"]: one for one in listed()}
        assert len(found) == 3
        assert (found[ready.id]["state"], found[ready.id]["kwargs"]) == ("READY", {"second": "2"})
        assert (found[later.id]["state"], found[later.id]["queue"]) == ("DEFERRED", "mail")
        assert [one["id"] for one in listed("--queue", "mail")] == [later.id]
        assert [one["id"] for one in listed("--task", add.module_path)] == [ready.id]
        assert [one["id"] for one in listed("--state", "deferred")] == [later.id]
        assert len(listed("--limit", "2")) == 2
        call_command("stoker", "jobs", "list", "--at-broker", "--queue", "mail")
        assert f"{later.id}  deferred\n  {echo.module_path}\n" in capsys.readouterr().out
        claim()
        assert [one["id"] for one in listed()] == [later.id]

    def test_bulk_operation_says_that_it_leaves_out_jobs_at_the_broker(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add.using(queue_name="mail").enqueue(1, 2)
        for words in (["--queue", "mail", "--dry-run"], ["--task", add.module_path]):
            call_command("stoker", "bulk", "start", "cancel-job", *words)
            told = capsys.readouterr().err
            assert told.startswith("1 job waits at the broker. Of these, only jobs whose"), words
            assert "`manage.py stoker clear QUEUE` cancels all that wait in a queue" in told
        for words in (
            ["cancel-job", "--queue", "other", "--dry-run"],
            ["discard-letter", "--dry-run"],
        ):
            call_command("stoker", "bulk", "start", *words)
            assert capsys.readouterr().err == "", words

    def test_list_at_the_broker_refuses_other_filters(self, broker: Dispatch) -> None:
        with pytest.raises(CommandError, match="--at-broker"):
            call_command("stoker", "jobs", "list", "--at-broker", "--search", "ann")
        with pytest.raises(CommandError, match="--at-broker"):
            call_command("stoker", "jobs", "list", "--at-broker", "--after", "x")


def test_start_of_an_at_most_once_job_is_remembered_until_the_job_has_ended(
    broker: Dispatch,
) -> None:
    """The store has no row of the job before that."""
    snooze_once.enqueue()
    (delivery,) = claim()
    long_ago = timezone.now() - timedelta(days=30)
    Begun.objects.create(job_id=delivery.job_id, worker_id="w", begun_at=long_ago)
    assert Leftovers("default", lambda: None).forget_begun() == 0
    broker.settle([delivery.lease])
    assert Leftovers("default", lambda: None).forget_begun() == 1


def test_start_of_an_at_most_once_job_is_remembered_while_its_broker_is_away(
    broker: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BrokerUnavailable("Redis does not answer")

    long_ago = timezone.now() - timedelta(days=30)
    begun = Begun.objects.create(job_id=new_job_id(), worker_id="w", begun_at=long_ago)
    monkeypatch.setattr(broker.broker, "states", fail)
    with pytest.raises(BrokerUnavailable):
        Leftovers("default", lambda: None).forget_begun()
    assert Begun.objects.get() == begun
