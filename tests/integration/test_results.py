"""Results: fetched, refreshed, waited for, cancelled."""

import asyncio
import copy
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, connections, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.utils import timezone

from stoker import chain
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.compat import (
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
)
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable, JobCancelled, JobFailed, ResultTimeout, UnknownTask
from stoker.jobs.cancel import cancel, sweep_requests
from stoker.jobs.execute import Executor
from stoker.jobs.results import Result, WaitState, fetch, fetch_many
from stoker.jobs.states import JobState
from stoker.models import (
    Attempt,
    Blocked,
    Cancellation,
    Claimed,
    Cluster,
    Deferred,
    Job,
    Need,
    Ready,
)
from stoker.signals import pre_execute
from stoker.store.engines import engine_of
from stoker.store.written import DatabaseNow
from stoker.tasks.decorator import AbsentTask

from tests.app.cancelling import work_locked
from tests.app.tasks import (
    add,
    add_later,
    cancel_itself,
    echo,
    fail,
    fail_once,
    return_what_cannot_be_kept,
    succeed_at,
)
from tests.cluster.clusters import wait_for
from tests.integration.work import claim, work_off, work_off_when_due

BACKEND = "stoker.backend.StokerBackend"


@contextmanager
def working(begin: Callable[[], object] = lambda: time.sleep(0.1)) -> Iterator[None]:
    """Work off the waiting jobs in another thread, on its own connection, after `begin`."""

    def work() -> None:
        try:
            begin()
            work_off_when_due()
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def session_id() -> int:
    """Return the server's id of this thread's connection."""
    with connection.cursor() as cursor:
        asked = "pg_backend_pid()" if connection.vendor == "postgresql" else "connection_id()"
        cursor.execute(f"SELECT {asked}")
        return int(cursor.fetchone()[0])


def end_session(session: int) -> None:
    """Let the server end a connection, as a restart does."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(%s)", [session])
        else:
            cursor.execute(f"KILL {session}")


def fetched(result: Result[Any]) -> Result[Any]:
    return fetch(settings_for(), result.id)


def new_cluster() -> Cluster:
    """Create the row of a cluster whose heartbeat contains no job."""
    return Cluster.objects.create(
        id=uuid.uuid4(),
        name="stoker",
        host="one",
        pid=7,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"lease_seconds": 60.0},
    )


@pytest.mark.django_db
class TestLife:
    def test_successful_job_has_value_times_and_worker(self) -> None:
        result = add.enqueue(1, 2)
        work_off(worker_id="worker 7")
        result.refresh()
        assert (result.state, result.status) == (JobState.SUCCESSFUL, TaskResultStatus.SUCCESSFUL)
        assert result.is_finished
        assert result.return_value == result.wait(0) == 3
        assert (result.worker_ids, result.attempts, result.errors) == (["worker 7"], 1, [])
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.last_attempted_at == result.started_at

    def test_async_task_returns_its_value(self) -> None:
        result = add_later.enqueue(1, 2)
        work_off()
        assert result.wait(0) == 3

    def test_fetched_result_equals_the_enqueued_one(self) -> None:
        result = add.using(queue_name="mail", priority=5).enqueue(1, second=2)
        assert fetched(result) == result
        assert fetched(result).task == result.task
        work_off()
        result.refresh()
        assert fetched(result) == result

    def test_return_value_keeps_value_and_type(self) -> None:
        value = [
            {"when": datetime(2030, 1, 1, tzinfo=UTC), "day": date(2030, 1, 1)},
            (Decimal("1.10"), b"bytes", uuid.UUID(int=7), timedelta(hours=1)),
            None,
        ]
        result = echo.enqueue(value)
        work_off()
        result.refresh()
        assert result.return_value == fetched(result).return_value == value
        assert fetched(result).args == [value]

    def test_none_is_returned_after_the_end_only(self) -> None:
        result = echo.enqueue(None)
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        work_off()
        result.refresh()
        assert result.return_value is None

    def test_claimed_job_is_running(self) -> None:
        result = add.enqueue(1, 2)
        claim()
        result.refresh()
        assert (result.state, result.status) == (JobState.RUNNING, TaskResultStatus.RUNNING)
        assert (result.attempts, result.is_finished) == (1, False)

    def test_claimed_job_counts_as_running_after_a_second(self) -> None:
        """Until then no worker has it as far as is known."""
        cluster = new_cluster()
        result = add.enqueue(1, 2)
        broker_for(settings_for()).claim(ClaimRequest(1, holder=cluster.pk, lease_seconds=60))
        result.refresh()
        assert (result.state, result.status) == (JobState.CLAIMED, TaskResultStatus.READY)
        assert (result.attempts, result.worker_ids, result.started_at) == (0, [], None)
        Claimed.objects.update(leased_until_us=F("leased_until_us") - 1_100_000)
        result.refresh()
        assert (result.state, result.status) == (JobState.RUNNING, TaskResultStatus.RUNNING)
        assert (result.attempts, result.worker_ids) == (1, [cluster.worker_ids])

    def test_running_task_sees_itself_run_before_the_next_heartbeat(self) -> None:
        shown: list[Any] = []

        def look(task_result: Result[int], **_: Any) -> None:
            for is_refreshed in (False, True):
                if is_refreshed:
                    task_result.refresh()
                times = (task_result.started_at, task_result.last_attempted_at)
                shown.append(
                    (task_result.state, task_result.attempts, task_result.worker_ids, times)
                )
            # The lease ended, and another cluster has claimed the job.
            Attempt.objects.create(job_id=task_result.id, number=1, finished_at=timezone.now())
            task_result.refresh()
            shown.append(task_result.state)

        cluster, settings = new_cluster(), settings_for()
        add.enqueue(1, 2)
        broker = broker_for(settings)
        (delivery,) = broker.claim(ClaimRequest(1, holder=cluster.pk, lease_seconds=60))
        pre_execute.connect(look)
        try:
            Executor(settings, worker_id="worker 7").run(delivery)
        finally:
            pre_execute.disconnect(look)
        first, refreshed, lost = shown
        assert first[:3] == (JobState.RUNNING, 1, ["worker 7"])
        assert refreshed == first
        assert lost == JobState.CLAIMED

    def test_failed_job_has_its_error(self) -> None:
        result = fail_once.enqueue()
        work_off(worker_id="worker 7")
        result.refresh()
        assert (result.state, result.status) == (JobState.FAILED, TaskResultStatus.FAILED)
        assert (result.worker_ids, result.attempts) == (["worker 7"], 1)
        (error,) = result.errors
        assert error.exception_class is RuntimeError
        assert "for good" in error.traceback
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value

    def test_retried_job_has_all_workers_and_errors(self) -> None:
        result = succeed_at.enqueue(3)
        work_off(worker_id="worker 1")
        result.refresh()
        assert (result.state, result.status) == (JobState.DEFERRED, TaskResultStatus.READY)
        assert (result.attempts, len(result.errors)) == (1, 1)
        work_off_when_due("worker 2")
        work_off_when_due("worker 3")
        result.refresh()
        assert result.return_value == result.attempts == 3
        assert result.worker_ids == ["worker 1", "worker 2", "worker 3"]
        assert ["attempt 1" in error.traceback for error in result.errors] == [True, False]
        assert result.started_at < result.last_attempted_at

    def test_unserializable_return_value_fails_the_job(self) -> None:
        result = return_what_cannot_be_kept.enqueue()
        work_off()
        result.refresh()
        assert result.state is JobState.FAILED
        assert "set" in result.errors[0].traceback

    def test_job_that_cancels_itself_is_cancelled(self) -> None:
        result = cancel_itself.enqueue()
        work_off()
        result.refresh()
        assert (result.state, result.status) == (JobState.CANCELLED, TaskResultStatus.FAILED)
        assert result.errors == []

    def test_job_attribute_is_the_row(self) -> None:
        result = add.enqueue(1, 2)
        assert isinstance(result.job, Job)
        assert str(result.job.pk) == result.id

    def test_arefresh_loads_the_outcome(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        async_to_sync(result.arefresh)()
        assert result.return_value == 3

    def test_results_can_be_copied_and_pickled(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        result.refresh()
        for twin in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert twin == result
            assert (twin.return_value, twin.state) == (3, JobState.SUCCESSFUL)


@pytest.mark.django_db
class TestFetching:
    def test_task_and_backend_fetch_the_same_result(self) -> None:
        result = add.enqueue(1, 2)
        assert add.get_result(result.id) == result
        assert async_to_sync(add.aget_result)(result.id) == result
        assert task_backends["default"].get_result(result.id) == result
        assert async_to_sync(task_backends["default"].aget_result)(result.id) == result

    @pytest.mark.parametrize(
        "wrong",
        # Its id must be the same in each worker of pytest-xdist.
        [pytest.param(str(uuid.uuid4()), id="unknown"), "no id", "", "1", None, 7, "x" * 500],
    )
    def test_unknown_id_raises_does_not_exist(self, wrong: Any) -> None:
        with pytest.raises(TaskResultDoesNotExist, match="There is no job"):
            task_backends["default"].get_result(wrong)

    def test_id_of_another_task_raises_mismatch(self) -> None:
        result = add.enqueue(1, 2)
        with pytest.raises(TaskResultMismatch):
            echo.get_result(result.id)
        with pytest.raises(TaskResultMismatch):
            async_to_sync(echo.aget_result)(result.id)

    def test_result_of_removed_task_has_absent_task(self) -> None:
        result = add.enqueue(1, 2)
        Job.objects.update(task="tests.app.gone.send")
        gone = fetched(result)
        assert isinstance(gone.task, AbsentTask)
        assert (gone.task.module_path, gone.task.name) == ("tests.app.gone.send", "send")
        assert (gone.args, gone.status) == ([1, 2], TaskResultStatus.READY)
        gone.refresh()
        with pytest.raises(UnknownTask):
            gone.task.call(1, 2)
        with pytest.raises(TaskResultMismatch):
            add.get_result(result.id)

    def test_result_with_unreadable_package_has_no_arguments(self) -> None:
        result = add.enqueue(1, 2)
        Job.objects.update(package=b"nonsense")
        assert (fetched(result).args, fetched(result).kwargs) == ([], {})
        assert fetched(result).state is JobState.READY

    def test_result_of_removed_queue_is_fetched(self) -> None:
        result = add.using(queue_name="mail").enqueue(1, 2)
        only = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}
        with override_settings(TASKS=only):
            assert fetched(result).task == add

    def test_fetch_many_keeps_the_order_asked_for(self) -> None:
        results = add.enqueue_many([((number, 0), {}) for number in range(5)])
        wanted = [result.id for result in reversed(results)]
        found = fetch_many(settings_for(), [*wanted, str(uuid.uuid4()), "no id"])
        assert [result.id for result in found] == wanted

    def test_fetch_many_needs_few_queries(self, django_assert_max_num_queries: Any) -> None:
        results = add.enqueue_many([((number, 0), {}) for number in range(400)])
        with django_assert_max_num_queries(6):
            assert len(fetch_many(settings_for(), [result.id for result in results])) == 400

    def test_result_that_is_not_kept_raises_does_not_exist(self) -> None:
        options = {"KEEP_RESULTS": False}
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
            result = add.enqueue(1, 2)
            work_off(settings_for())
            with pytest.raises(TaskResultDoesNotExist, match="not kept"):
                result.wait(1)
            with pytest.raises(TaskResultDoesNotExist):
                result.refresh()


@pytest.mark.django_db(transaction=True)
class TestWaiting:
    def test_wait_returns_the_value(self) -> None:
        result = add.enqueue(1, 2)
        with working():
            assert result.wait(120) == 3
        assert result.state is JobState.SUCCESSFUL

    def test_wait_raises_job_failed(self) -> None:
        result = fail_once.enqueue()
        with working(), pytest.raises(JobFailed, match="RuntimeError: for good") as caught:
            result.wait(120)
        assert not isinstance(caught.value, JobCancelled)
        assert [error.exception_class for error in caught.value.errors] == [RuntimeError]
        assert result.id in str(caught.value)

    def test_wait_raises_job_cancelled(self) -> None:
        result = add.enqueue(1, 2)
        fetched(result).cancel("not wanted")
        with pytest.raises(JobCancelled, match="was cancelled: not wanted"):
            result.wait(120)

    @pytest.mark.parametrize("timeout", ["1", b"1", True, object()])
    def test_timeout_of_a_wrong_type_is_refused(self, timeout: Any) -> None:
        result = add.enqueue(1, 2)
        with pytest.raises(TypeError, match=r"timeout=.*: write seconds or a timedelta"):
            result.wait(timeout)
        with pytest.raises(TypeError, match=r"timeout=.*: write seconds or a timedelta"):
            chain(add.s(1, 2)).enqueue().wait(timeout)

    def test_negative_timeout_means_a_single_look(self) -> None:
        result = add.enqueue(1, 2)
        with pytest.raises(ResultTimeout):
            result.wait(-1)
        with working(lambda: None):
            result.wait(30)
        assert fetched(result).wait(-1) == 3

    @pytest.mark.parametrize("timeout", [0.1, timedelta(seconds=0.1)])
    def test_wait_raises_after_its_timeout(self, timeout: Any) -> None:
        result = add.enqueue(1, 2)
        began = time.monotonic()
        with pytest.raises(ResultTimeout, match=r"after 0\.1 s: it is READY") as caught:
            result.wait(timeout)
        assert time.monotonic() - began >= 0.1
        assert isinstance(caught.value, TimeoutError)
        assert Ready.objects.count() == 1

    def test_wait_warns_once_that_no_cluster_is_alive(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.jobs.results.WARN_AFTER_SECONDS", 0.0)
        result = add.enqueue(1, 2)
        with pytest.raises(ResultTimeout):
            result.wait(0.1)
        (warning,) = [one.getMessage() for one in caplog.records]
        assert warning.startswith(f"No cluster is alive, so the wait for job {result.id} goes on")
        assert warning.endswith("manage.py stoker run")

    def test_wait_does_not_warn_while_a_cluster_is_alive(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.jobs.results.WARN_AFTER_SECONDS", 0.0)
        Cluster.objects.create(
            id=uuid4(), pid=1, started_at=timezone.now(), heartbeat_us=DatabaseNow()
        )
        with pytest.raises(ResultTimeout):
            add.enqueue(1, 2).wait(0.1)
        assert not caplog.records

    def test_await_and_wait_async_return_the_value(self) -> None:
        result = add.enqueue(1, 2)

        async def both_ways() -> tuple[int, int]:
            return await result, await result.wait_async(120)

        with working():
            assert async_to_sync(both_ways)() == (3, 3)

    def test_wait_async_does_not_block_the_event_loop(self) -> None:
        result = add.enqueue(1, 2)

        has_ticked = threading.Event()

        async def wait_and_tick() -> int:
            waiting = asyncio.create_task(result.wait_async(60))
            for _ in range(5):
                await asyncio.sleep(0.01)
                assert not waiting.done()
            has_ticked.set()
            return await waiting

        with working(lambda: has_ticked.wait(120)):
            assert async_to_sync(wait_and_tick)() == 3

    def test_wait_async_raises_after_its_timeout(self) -> None:
        with pytest.raises(ResultTimeout):
            async_to_sync(add.enqueue(1, 2).wait_async)(0.05)

    @pytest.mark.postgres
    @pytest.mark.mariadb
    @pytest.mark.parametrize("way", ["sync", "async"])
    def test_wait_survives_the_end_of_its_connection(self, way: str) -> None:
        result = add.enqueue(1, 2)
        session = session_id()

        def break_connection() -> None:
            try:
                end_session(session)
                work_off_when_due()
            finally:
                connections.close_all()

        thread = threading.Thread(target=break_connection)
        looks = 0

        def is_seen(self: Result[Any], waiting: WaitState) -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:  # the wait has begun
                thread.start()
            return seen(self, waiting)

        seen = Result._is_seen_to_have_ended
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Result, "_is_seen_to_have_ended", is_seen)
            wait = result.wait if way == "sync" else async_to_sync(result.wait_async)
            assert wait(60) == 3
        thread.join()
        assert session_id() != session

    @pytest.mark.parametrize("way", ["sync", "async"])
    def test_timeout_message_has_the_latest_state(self, way: str) -> None:
        result = add.enqueue(1, 2)
        claim()
        wait = result.wait if way == "sync" else async_to_sync(result.wait_async)
        with pytest.raises(ResultTimeout, match="it is RUNNING"):
            wait(0.01)

    def test_unreachable_database_raises_broker_unavailable_after_the_timeout(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The state of the job is not known, so ResultTimeout would be wrong."""
        result = add.enqueue(1, 2)
        looks = 0

        def look_in_vain(result: Result[Any]) -> bool:
            nonlocal looks
            looks += 1
            raise BrokerUnavailable("away")

        def looks_of_a_wait() -> int:
            nonlocal looks
            looks = 0
            with pytest.raises(BrokerUnavailable, match="away"):
                result.wait(0.1)
            return looks

        monkeypatch.setattr(Result, "_has_ended", look_in_vain)
        wait_for(lambda: looks_of_a_wait() > 2)  # fewer if the machine is slow
        with pytest.raises(BrokerUnavailable, match="away"):
            async_to_sync(result.wait_async)(0.1)

    def test_wait_in_the_enqueueing_transaction_raises(self) -> None:
        with transaction.atomic():
            result = add.enqueue(1, 2)
            with pytest.raises(
                TransactionManagementError, match="enqueued in a transaction that is"
            ):
                result.wait(120)
            with pytest.raises(TransactionManagementError):
                async_to_sync(result.wait_async)(120)
        with working():
            assert result.wait(120) == 3

    def test_wait_after_rollback_raises_does_not_exist(self) -> None:
        with suppress(ZeroDivisionError), transaction.atomic():
            result = add.enqueue(1, 2)
            _ = 1 / 0
        with pytest.raises(TaskResultDoesNotExist, match="never committed"):
            result.wait(120)

    def test_wait_in_another_transaction_raises_on_sqlite_only(self) -> None:
        result = add.enqueue(1, 2)
        with working(), transaction.atomic():
            if connection.vendor == "sqlite":
                with pytest.raises(TransactionManagementError, match="never sees"):
                    result.wait(120)
            else:
                assert result.wait(120) == 3

    @pytest.mark.postgres
    def test_wait_in_repeatable_read_transaction_raises(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        result = add.enqueue(1, 2)
        monkeypatch.setitem(
            connection.settings_dict, "OPTIONS", {"isolation_level": IsolationLevel.REPEATABLE_READ}
        )
        connection.close()
        with (
            transaction.atomic(),
            pytest.raises(TransactionManagementError, match="never sees"),
        ):
            result.wait(120)
        connection.close()

    def test_wait_for_ended_job_works_in_a_transaction(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        with transaction.atomic():
            assert result.wait() == 3


@pytest.mark.django_db(transaction=True)
class TestCancelling:
    def test_ready_job_is_cancelled_at_once(self) -> None:
        result = add.enqueue(1, 2)
        assert result.cancel("not wanted") is True
        assert (result.state, result.job.reason) == (JobState.CANCELLED, "not wanted")
        assert result.finished_at is not None
        assert not Ready.objects.exists()
        assert work_off() == 0

    def test_deferred_job_is_cancelled_at_once(self) -> None:
        result = add.using(run_after=3600).enqueue(1, 2)
        assert fetched(result).cancel()
        assert not Deferred.objects.exists()
        assert fetched(result).state is JobState.CANCELLED

    def test_job_waiting_for_retry_is_cancelled(self) -> None:
        result = fail.enqueue()  # its next attempt is seconds away
        work_off()
        assert result.cancel()
        assert (result.attempts, result.job.attempts, len(result.errors)) == (1, 1, 1)

    def test_running_job_is_asked_to_stop(self) -> None:
        """The cluster that runs it reads the request. The first reason is kept."""
        result = add.enqueue(1, 2)
        claim()
        assert [result.cancel("not wanted"), result.cancel("not needed")] == [True, True]
        assert Cancellation.objects.page(None) == {uuid.UUID(result.id): "not wanted"}
        assert Claimed.objects.count() == 1
        assert fetched(result).state is JobState.RUNNING

    def test_cancel_of_a_job_that_is_deleted_meanwhile_returns_true(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With ``KEEP_RESULTS: False`` its row is deleted when it ends."""

        def cancel_and_end(*args: Any) -> bool:
            is_cancelled = cancel(*args)
            Claimed.objects.all().delete()
            Job.objects.all().delete()
            return is_cancelled

        result = add.enqueue(1, 2)
        claim()
        monkeypatch.setattr("stoker.jobs.results.cancel", cancel_and_end)
        assert result.cancel() is True
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    def test_blocked_job_is_cancelled_and_leaves_its_line(self) -> None:
        """Its needs are deleted."""
        _runs, blocked = (work_locked.enqueue("") for _ in range(2))
        claim()
        assert fetched(blocked).state is JobState.BLOCKED
        assert blocked.cancel("not wanted") is True
        assert (blocked.state, blocked.job.reason) == (JobState.CANCELLED, "not wanted")
        assert not Blocked.objects.exists()
        assert not Need.objects.filter(job_id=blocked.id).exists()

    def test_request_is_kept_until_its_job_has_ended(self) -> None:
        ended = add.enqueue(1, 2)
        work_off()
        runs = add.enqueue(1, 2)
        claim()
        waits = add.enqueue(1, 2)
        for job_id in (runs.id, waits.id, ended.id, str(uuid.uuid4())):
            Cancellation.objects.ask(uuid.UUID(job_id), "not wanted")
        assert sweep_requests(settings_for("default")) == 3
        assert list(Cancellation.objects.page(None)) == [uuid.UUID(runs.id)]
        states = [fetched(one).state.value for one in (runs, waits, ended)]
        assert states == ["RUNNING", "CANCELLED", "SUCCESSFUL"]

    def test_ended_job_is_not_cancelled(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        assert result.cancel() is False
        assert fetched(result).state is JobState.SUCCESSFUL

    def test_second_cancel_returns_false(self) -> None:
        result = add.enqueue(1, 2)
        assert [result.cancel(), result.cancel()] == [True, False]

    def test_cancel_that_rolls_back_changes_nothing(self) -> None:
        result = add.enqueue(1, 2)
        with suppress(ZeroDivisionError), transaction.atomic():
            assert result.cancel()
            _ = 1 / 0
        assert fetched(result).state is JobState.READY
        assert work_off() == 1

    def test_job_whose_cancellation_cannot_be_recorded_stays_ready(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise OperationalError("the server went away")

        result = add.enqueue(1, 2)
        monkeypatch.setattr(type(engine_of("default")), "finish_jobs", fail)
        with pytest.raises(BrokerUnavailable, match="went away"):
            result.cancel()
        assert Ready.objects.count() == 1

    def test_acancel_cancels_a_ready_job(self) -> None:
        result = add.enqueue(1, 2)
        assert async_to_sync(result.acancel)("no") is True
        assert fetched(result).state is JobState.CANCELLED

    def test_long_reason_is_cut(self) -> None:
        result = add.enqueue(1, 2)
        assert result.cancel("x" * 1000)
        assert len(result.job.reason) == 255

    def test_cancelled_job_has_no_attempt(self) -> None:
        add.enqueue(1, 2).cancel()
        assert not Attempt.objects.exists()


@pytest.mark.django_db
def test_repr_of_a_result_is_one_line_without_arguments() -> None:
    result = echo.enqueue("the secret")
    assert repr(result) == f"<Result {result.id} of tests.app.tasks.echo READY>"
