"""Cancelled and cleared jobs that waited in a broker outside the database: they are kept."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.utils import timezone

from stoker import Lock, Unique, chain, group, queues
from stoker.brokers.adapters import broker_for
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.inspect.doctor.examination import examine
from stoker.inspect.waits import WaitCause
from stoker.jobs import cancel as cancelling
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.states import JobState
from stoker.models import Cancellation, Job, Step
from stoker.operations import jobs as job_operations
from stoker.operations.jobs import details_of
from stoker.operations.operation import Operator

from tests.app.tasks import add, echo
from tests.conformance.stands import message
from tests.guards.sessions import PATIENCE_SECONDS, session, wait_until_waiting
from tests.integration.fronted import fronted_broker, outside
from tests.integration.work import claim, outside_the_database, work_off

pytestmark = pytest.mark.django_db(transaction=True)

REASON = "the queue was cleared by alice: old"


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def broker(request: pytest.FixtureRequest) -> Iterator[Dispatch]:
    """Let jobs wait outside the database: in memory or in Redis."""
    if request.param == "redis":
        with fronted_broker() as made:
            yield made
    else:
        with override_settings(TASKS=outside_the_database()):
            yield broker_for(settings_for())


@pytest.fixture
def fronted() -> Iterator[Dispatch]:
    with fronted_broker() as made:
        yield made


def clear(**options: Any) -> queues.Cleared:
    return queues.clear("default", by="alice", because="old", **options)


def lose_connection(*_: object) -> None:
    raise OperationalError("server closed the connection unexpectedly")


class TestClear:
    def test_cleared_jobs_are_kept_as_cancelled(self, broker: Dispatch) -> None:
        due_at = timezone.now() + timedelta(hours=1)
        ready = add.using(priority=5).enqueue(1, second=2)
        deferred = add.using(run_after=due_at).enqueue(3, 4)
        other = add.using(queue_name="mail").enqueue(5, 6)
        assert clear(dry_run=True) == queues.Cleared(2, 0)
        assert clear() == queues.Cleared(2, 2)
        assert outside(broker) == 1
        for result, priority, run_after in ((ready, 5, None), (deferred, 0, due_at)):
            job = Job.objects.get(pk=result.id)
            assert (job.status, job.reason, job.attempts) == ("CANCELLED", REASON, 0)
            assert (job.task, job.queue, job.priority) == (add.module_path, "default", priority)
            assert (job.enqueued_at, job.run_after) == (result.enqueued_at, run_after)
        fetched = add.get_result(ready.id)
        assert (fetched.args, fetched.kwargs) == ([1], {"second": 2})
        assert add.get_result(other.id).state is JobState.READY
        assert clear() == queues.Cleared(0, 0)
        assert not Cancellation.objects.exists()

    def test_clear_at_the_broker_stops_at_its_limit(self, broker: Dispatch) -> None:
        add.enqueue_many([((1, 2), {})] * 5)
        assert clear(limit=3) == queues.Cleared(3, 3)
        assert (outside(broker), Job.objects.count()) == (2, 3)

    def test_clear_leaves_running_jobs_alone(self, broker: Dispatch) -> None:
        running = add.enqueue(1, 2)
        (delivery,) = claim()
        waiting = add.enqueue(3, 4)
        assert clear() == queues.Cleared(1, 1)
        assert broker.states([UUID(running.id)]) == {delivery.job_id: "running"}
        assert list(Job.objects.values_list("pk", flat=True)) == [UUID(waiting.id)]

    def test_job_with_unreadable_package_is_cleared(self, broker: Dispatch) -> None:
        job = message(package=b"nonsense")
        broker.enqueue([job])
        assert clear() == queues.Cleared(1, 1)
        row = Job.objects.get()
        assert (row.pk, row.status, row.task, row.queue) == (job.job_id, "CANCELLED", "", "default")

    def test_clear_fails_the_workflow_and_calls_the_hooks(self, broker: Dispatch) -> None:
        workflow = chain(add.si(1, 2), add.si(3, 4)).enqueue()
        add.using(on_finish=add.si(7, 8)).enqueue(5, 6)
        assert clear() == queues.Cleared(2, 2)
        workflow.refresh()
        assert workflow.status == "FAILED"
        assert [broker.jobs([one.job_id])[one.job_id] for one in claim()], "the hook waits"

    @pytest.mark.redis
    def test_guarded_jobs_in_the_store_are_kept_too(self, fronted: Dispatch) -> None:
        add.enqueue(1, 2)
        add.using(lock=Lock("one")).enqueue(3, 4)
        assert clear() == queues.Cleared(2, 2)
        assert list(Job.objects.values_list("status", "reason")) == [("CANCELLED", REASON)] * 2

    @pytest.mark.redis
    @pytest.mark.parametrize("dies_at", ["withdraw", "record"])
    def test_clear_that_dies_is_finished_by_upkeep(
        self, fronted: Dispatch, monkeypatch: pytest.MonkeyPatch, dies_at: str
    ) -> None:
        """The process dies before or after the withdrawal: no job is lost, and none runs."""
        results = [add.enqueue(1, 2), add.using(run_after=3600).enqueue(3, 4)]
        chain(add.si(5, 6), add.si(7, 8)).enqueue()
        with monkeypatch.context() as patch:
            if dies_at == "withdraw":
                patch.setattr(fronted.broker, "withdraw", lose_connection)
            else:
                patch.setattr(cancelling, "record_cancelled", lose_connection)
            with pytest.raises((OperationalError, BrokerUnavailable)):
                clear()
        assert outside(fronted) == (3 if dies_at == "withdraw" else 2)
        assert Cancellation.objects.count() == Job.objects.filter(status=None).count() > 0
        sweep_requests(settings_for())
        clear()  # the batches that were not begun
        assert outside(fronted) == 0
        rows = Job.objects.values_list("status", "reason", "task")
        assert list(rows) == [("CANCELLED", REASON, add.module_path)] * 3
        assert add.get_result(results[0].id).args == [1, 2]
        assert not Cancellation.objects.exists()

    @pytest.mark.redis
    def test_job_that_starts_while_its_queue_is_cleared_continues(
        self, fronted: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        withdraw, deliveries = fronted.broker.withdraw, []

        def withdraw_after_claim(job_ids: Any) -> Any:
            deliveries.extend(claim())
            return withdraw(job_ids)

        with monkeypatch.context() as patch:
            patch.setattr(fronted.broker, "withdraw", withdraw_after_claim)
            assert clear() == queues.Cleared(1, 0)
        assert fronted.states([UUID(result.id)]) == {deliveries[0].job_id: "running"}
        assert (Cancellation.objects.count(), Job.objects.count()) == (0, 0)

    @pytest.mark.redis
    def test_clear_in_a_transaction_keeps_its_jobs(self, fronted: Dispatch) -> None:
        add.enqueue(1, 2)
        add.using(lock=Lock("one")).enqueue(3, 4)
        with transaction.atomic():
            assert clear() == queues.Cleared(2, 2)
            assert outside(fronted) == 1
        assert outside(fronted) == 0
        assert list(Job.objects.values_list("status", "reason")) == [("CANCELLED", REASON)] * 2

    def test_clear_in_a_transaction_that_is_committed_by_hand_is_refused(
        self, broker: Dispatch
    ) -> None:
        """A cluster could claim jobs between the commit and the next sweep, and stop them."""
        add.enqueue_many([((1, 2), {})] * 2)
        transaction.set_autocommit(False)
        try:
            assert clear(dry_run=True).matched == 2
            with pytest.raises(TransactionManagementError, match="turn autocommit on"):
                clear()
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert (Cancellation.objects.count(), work_off()) == (0, 2)

    @pytest.mark.redis
    def test_clear_whose_process_dies_after_the_commit_is_finished_by_upkeep(
        self, fronted: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add.enqueue(1, 2)
        monkeypatch.setattr(cancelling, "_cancel_asked", lose_connection)
        with transaction.atomic():
            clear()
        assert (outside(fronted), Job.objects.get().status) == (1, None)
        sweep_requests(settings_for())
        assert (outside(fronted), Job.objects.get().status) == (0, "CANCELLED")


class TestCancel:
    def test_cancelled_job_is_kept_with_its_call(self, broker: Dispatch) -> None:
        due_at = timezone.now() + timedelta(hours=1)
        result = add.using(priority=5, run_after=due_at).enqueue(1, second=2)
        assert add.get_result(result.id).cancel("no")
        job = Job.objects.get()
        assert (job.status, job.reason) == ("CANCELLED", "no")
        assert (job.task, job.queue, job.priority) == (add.module_path, "default", 5)
        assert (job.enqueued_at, job.run_after) == (result.enqueued_at, due_at)
        fetched = add.get_result(result.id)
        assert (fetched.args, fetched.kwargs) == ([1], {"second": 2})

    def test_wait_of_a_job_cancelled_before_its_start_is_for_its_start_time(
        self, broker: Dispatch
    ) -> None:
        result = add.using(run_after=3600).enqueue(1, 2)
        result.cancel()
        ago = timezone.now() - timedelta(seconds=35)
        Job.objects.update(enqueued_at=ago)
        (wait,) = details_of(settings_for(), UUID(result.id)).life.waits.before
        assert [one.cause for one in wait.parts] == [WaitCause.START_TIME]

    @pytest.mark.redis
    def test_job_that_another_call_withdraws_and_cannot_record_is_cancelled(
        self, fronted: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        withdraw = fronted.broker.withdraw

        def withdraw_for_another_call(job_ids: Any) -> set[UUID]:
            withdraw(job_ids)
            return set()

        monkeypatch.setattr(fronted.broker, "withdraw", withdraw_for_another_call)
        assert add.get_result(result.id).cancel("no")
        assert Job.objects.get().status == "CANCELLED"
        assert not Cancellation.objects.exists()

    def test_cancelled_job_can_run_again(self, broker: Dispatch) -> None:
        result = add.enqueue(1, 2)
        result.cancel()
        operator = Operator(settings_for(), "alice")
        job_operations.RUN_AGAIN.perform(operator, result.id)
        assert work_off() == 1
        assert Job.objects.get(status="SUCCESSFUL").task == add.module_path

    def test_cancelled_workflow_can_be_retried(self, broker: Dispatch) -> None:
        workflow = chain(add.si(1, 2), add.si(3, 4)).enqueue()
        workflow.cancel("no")
        workflow.retry()
        while work_off():
            time.sleep(0.01)
        workflow.refresh()
        assert workflow.status == "SUCCESSFUL"

    def test_cancel_in_an_outbox_keeps_the_call(self, broker: Dispatch) -> None:
        with transaction.atomic():
            result = add.enqueue(1, 2)
            assert result.cancel("no")
        assert add.get_result(result.id).args == [1, 2]

    def test_cancel_in_a_transaction_that_rolls_back_withdraws_nothing(
        self, broker: Dispatch
    ) -> None:
        result = add.enqueue(1, 2)
        with transaction.atomic():
            result.cancel("no")
            transaction.set_rollback(True)
        assert work_off() == 1
        assert result.wait(5) == 3

    def test_cancel_finishes_a_withdrawal_that_was_not_recorded(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        with monkeypatch.context() as patch:
            patch.setattr(cancelling, "record_cancelled", lose_connection)
            with pytest.raises((OperationalError, BrokerUnavailable)):
                result.cancel("no")
        assert Job.objects.get().status is None
        assert result.cancel("not twice")
        found = add.get_result(result.id)
        assert (found.state, found.args, found.job.reason) == (JobState.CANCELLED, [1, 2], "no")
        assert not Cancellation.objects.exists()
        assert not result.cancel("no")

    def test_withdrawal_that_upkeep_records_keeps_the_call(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = add.enqueue(1, 2)
        with monkeypatch.context() as patch:
            patch.setattr(cancelling, "record_cancelled", lose_connection)
            with pytest.raises((OperationalError, BrokerUnavailable)):
                result.cancel("no")
        assert (broker.sizes(), Job.objects.get().status) == ({}, None)
        sweep_requests(settings_for())
        found = add.get_result(result.id)
        assert (found.state, found.args) == (JobState.CANCELLED, [1, 2])

    @pytest.mark.redis
    def test_cancelled_jobs_leave_no_request(self, fronted: Dispatch) -> None:
        add.enqueue(1, 2).cancel()
        add.using(run_after=3600).enqueue(1, 2).cancel()
        assert not Cancellation.objects.exists()
        assert examine(settings_for()).findings == []

    @pytest.mark.redis
    def test_step_that_upkeep_cancels_keeps_its_call(self, fronted: Dispatch) -> None:
        """A group has failed, and its waiting jobs are to be withdrawn."""
        group(add.si(1, 2), add.si(3, 4)).enqueue()
        job_ids = [one.job_id for one in Step.objects.exclude(job_id=None)]
        Cancellation.objects.ask_all(job_ids, "no")
        sweep_requests(settings_for())
        calls = sorted(add.get_result(str(job_id)).args for job_id in job_ids)
        assert calls == [[1, 2], [3, 4]]
        assert set(Job.objects.values_list("status", "reason")) == {("CANCELLED", "no")}

    @pytest.mark.redis
    def test_job_that_succeeds_before_its_request_is_seen_stays_successful(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fronted_broker(RESULTS="redis") as made:
            result = add.enqueue(1, 2)
            with monkeypatch.context() as patch:
                patch.setattr(made.broker, "withdraw", lose_connection)
                with pytest.raises((OperationalError, BrokerUnavailable)):
                    result.cancel("no")
            assert work_off() == 1
            sweep_requests(settings_for())
            assert add.get_result(result.id).state is JobState.SUCCESSFUL
            assert (Job.objects.count(), Cancellation.objects.count()) == (0, 0)

    @pytest.mark.redis
    @pytest.mark.postgres
    @pytest.mark.mariadb
    def test_outcome_is_recorded_though_its_request_row_is_deleted_meanwhile(self) -> None:
        """The queue is cleared while the job runs. Its outcome waits for the lock on the row."""
        with fronted_broker(), session() as clearing, session() as recording:
            result = add.enqueue(1, 2)
            row = Job(
                pk=UUID(result.id), task="", queue="", package=b"", enqueued_at=timezone.now()
            )
            cancelling._ask_with_rows("default", [row], "no")
            rows = Job.objects.filter(pk=result.id)
            clearing.begin()
            clearing.do(lambda: list(rows.select_for_update()))
            work = recording.start(work_off)
            wait_until_waiting()
            clearing.do(rows.delete)
            clearing.commit()
            assert work.result(PATIENCE_SECONDS) == 1
            assert add.get_result(result.id).return_value == 3

    @pytest.mark.slow
    @pytest.mark.redis
    @pytest.mark.parametrize("mode", ["keep", "replace"])
    def test_many_large_packages_need_no_large_statement(self, mode: str) -> None:
        """MariaDB refuses statements of more than 16 MiB, and closes the connection."""
        calls = [((str(number) + "x" * 600_000,), {}) for number in range(30)]
        with fronted_broker() as broker:
            task = echo if mode == "keep" else echo.using(unique=Unique(on_conflict="replace"))
            for _ in range(2):
                with transaction.atomic():
                    task.enqueue_many(calls)
            assert outside(broker) == (60 if mode == "keep" else 0)
            assert clear().done == (60 if mode == "keep" else 30)

    def test_doctor_finds_a_step_whose_job_is_nowhere(self, broker: Dispatch) -> None:
        chain(add.si(1, 2), add.si(3, 4)).enqueue()
        claim()
        chain(add.si(5, 6), add.si(7, 8)).enqueue()
        with transaction.atomic():
            chain(add.si(9, 10), add.si(11, 12)).enqueue()
            assert examine(settings_for()).findings == []
        assert examine(settings_for()).findings == []
        broker.purge("default")  # the broker has lost its data
        (finding,) = examine(settings_for()).findings
        assert (finding.name, finding.count) == ("steps_left_behind", 2)

    def test_command_shows_the_cancelled_job(
        self, broker: Dispatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = add.using(run_after=3600).enqueue(1, 2)
        call_command("stoker", "clear", "default", "--by", "alice", "--because", "old")
        call_command("stoker", "why", result.id)
        call_command("stoker", "jobs", "show", result.id)
        said = capsys.readouterr().out
        assert "1 job of the queue default cancelled." in said
        assert REASON in said
        assert "cannot be opened" not in said


@pytest.mark.sqlite
def test_many_requests_are_finished_in_pages() -> None:
    """SQLite allows 32,766 parameters, and the state of a job is looked up in four tables."""
    requested = [uuid4() for _ in range(9_000)]
    waits = add.enqueue(1, 2)
    Cancellation.objects.ask_all([*requested, UUID(waits.id)], "")
    raw = connection.connection
    before = raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
    try:
        assert sweep_requests(settings_for()) == 9_001
        assert broker_for(settings_for()).states(requested) == {}
    finally:
        raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)
    assert not Cancellation.objects.exists()
    assert add.get_result(waits.id).state == JobState.CANCELLED
