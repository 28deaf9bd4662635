"""Enqueue: in the caller's transaction, checked before a query is made."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import DuplicateJob, Unique, chain, every, group, schedules
from stoker.brokers.adapters import broker_for
from stoker.cluster.relays import Relays
from stoker.compat import (
    TASKS_APP,
    DjangoTask,
    DjangoTaskResult,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_signals,
)
from stoker.conf import settings_for
from stoker.exceptions import (
    BrokerUnavailable,
    InvalidTaskOption,
    NotMigrated,
    NotSerializable,
    PackageTooLarge,
    ResultTimeout,
)
from stoker.jobs import relay as outbox
from stoker.jobs.faults import MESSAGE_LIMIT, TRACEBACK_LIMIT, Fault
from stoker.jobs.outcomes import Attempted, Failed
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.record import finish
from stoker.jobs.results import Result
from stoker.jobs.states import JobState
from stoker.models import DeadLetter, Deferred, Job, Outgoing, Ready, Relayed
from stoker.signals import pre_enqueue
from stoker.store.engines import LARGE_BYTES, engine_of
from stoker.store.engines.mysql import REST_BYTES
from stoker.tasks.decorator import task

from tests.app.tasks import add, add_later, echo, write_ledger
from tests.cluster.clusters import WAIT_SECONDS, wait_for
from tests.integration.work import another_database, claim, outside_the_database, work_off

PER_THOUSAND = {"postgresql": 1, "mysql": 2, "sqlite": 16}
"""Statements that name stoker_job: one if a single statement fills both tables, else two;
SQLite takes at most 999 parameters in each statement."""

BACKEND = "stoker.backend.StokerBackend"


class Undo(Exception):
    """Raised to roll a transaction back."""


def plain_function(number: int) -> int:
    return number * 2


plain_function_task = DjangoTask(
    func=plain_function,
    priority=3,
    backend="default",
    queue_name="default",
    run_after=None,
    takes_context=False,
)


@pytest.fixture
def received() -> Iterator[list[Any]]:
    """Record the calls of Django's signal."""
    calls: list[Any] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        calls.append((sender, task_result))

    task_signals.task_enqueued.connect(receive)
    yield calls
    task_signals.task_enqueued.disconnect(receive)


def package_of(result: Any) -> Package:
    return sealer_for(settings_for()).open(bytes(result.job.package))


@pytest.mark.django_db
class TestOne:
    def test_enqueue_adds_job_and_ready_row(self) -> None:
        before = timezone.now()
        result = add.enqueue(1, second=2)
        job = Job.objects.get()
        assert (job.task, job.queue, job.priority) == ("tests.app.tasks.add", "default", 0)
        assert before <= job.enqueued_at <= timezone.now()
        assert Ready.objects.get().job_id == job.pk
        assert str(job.pk) == result.id
        assert len(result.id) <= 64

    def test_result_is_a_django_task_result(self) -> None:
        result = add.enqueue(1, second=2)
        assert isinstance(result, Result)
        assert isinstance(result, DjangoTaskResult)
        assert result.task is add
        assert result.status is TaskResultStatus.READY
        assert result.state is JobState.READY
        assert (result.args, result.kwargs, result.backend) == ([1], {"second": 2}, "default")
        assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
        assert result.enqueued_at == Job.objects.get().enqueued_at
        assert not result.is_finished
        assert result.started_at is result.finished_at is result.last_attempted_at is None

    def test_ids_sort_in_order_of_creation(self) -> None:
        ids = [add.enqueue(1, 2).id for _ in range(20)]
        assert ids == sorted(ids)

    def test_queue_and_priority_are_stored(self) -> None:
        result = add.using(queue_name="mail", priority=-7).enqueue(1, 2)
        assert (result.job.queue, result.job.priority) == ("mail", -7)
        assert Ready.objects.get().rank == 7

    def test_arguments_keep_value_and_type(self) -> None:
        value = {
            "when": datetime(2030, 1, 1, tzinfo=UTC),
            "sum": Decimal("1.10"),
            "pair": (1, b"x"),
        }
        result = echo.enqueue(value)
        assert package_of(result).args == (value,)
        assert result.args == [value]

    def test_result_keeps_arguments_as_enqueued(self) -> None:
        numbers = [1, 2]
        result = echo.enqueue({"numbers": numbers})
        numbers.append(3)
        assert result.args == [{"numbers": [1, 2]}]

    def test_options_are_stored_in_the_package(self) -> None:
        result = add.using(max_attempts=9, max_crashes=8, timeout=7, expires=60).enqueue(1, 2)
        package = package_of(result)
        options = package.options
        assert (options.max_attempts, options.max_crashes, options.timeout_seconds) == (9, 8, 7)
        assert options.expires_at == pytest.approx(package.enqueued_at + 60)

    def test_run_after_datetime_defers_the_job(self) -> None:
        moment = timezone.now() + timedelta(hours=1)
        result = add.using(run_after=moment).enqueue(1, 2)
        assert result.state is JobState.DEFERRED
        assert result.status is TaskResultStatus.READY
        assert Deferred.objects.get().due_us == pytest.approx(moment.timestamp() * 1e6, abs=1)
        assert result.job.run_after == moment
        assert not Ready.objects.exists()

    @pytest.mark.parametrize("year", [1, 1899, 9001, 9999])
    def test_start_that_some_database_cannot_store_is_refused(self, year: int) -> None:
        far = add.using(run_after=datetime(year, 12, 31, 23, 59, tzinfo=UTC))
        calls = [
            partial(far.enqueue, 1, 2),
            partial(far.enqueue_many, [((1, 2), {})]),
            partial(add.using(on_success=far.s(3)).enqueue, 1, 2),
            chain(add.s(1, 2), far.s(3)).enqueue,
        ]
        for call in calls:
            with pytest.raises(InvalidTaskOption, match="between the years 1900 and 9000"):
                call()
        assert not Job.objects.exists()

    def test_run_after_delay_counts_from_enqueue(self) -> None:
        later = add.using(run_after=timedelta(minutes=1))
        time.sleep(0.05)
        before = time.time()
        later.enqueue(1, 2)
        assert before + 60 <= Deferred.objects.get().due_us / 1e6 <= time.time() + 60

    def test_run_after_delay_counts_from_enqueue_by_the_backend(self) -> None:
        later = add.using(run_after=timedelta(minutes=1))
        before = time.time()
        task_backends["default"].enqueue(later, [1, 2], {})
        assert Deferred.objects.get().due_us > before * 1e6 + 59e6

    @pytest.mark.parametrize(
        ("now", "delay"),
        [
            (datetime(2050, 3, 26, 11, tzinfo=UTC), timedelta(days=1)),  # the next day has 23 hours
            (datetime(2050, 10, 30, 0, 55, tzinfo=UTC), timedelta(minutes=10)),  # the hour repeats
        ],
    )
    def test_delay_across_a_change_of_the_clocks_keeps_its_length(
        self, now: datetime, delay: timedelta, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class FixedClock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> "FixedClock":
                moment = now.astimezone(tz or ZoneInfo("Europe/Zurich"))
                return cls.fromtimestamp(moment.timestamp(), tz)

        monkeypatch.setattr("stoker.tasks.task.datetime", FixedClock)
        with override_settings(USE_TZ=False, TIME_ZONE="Europe/Zurich"):
            add.using(run_after=delay).enqueue(1, 2)
        assert Deferred.objects.get().due_us == (now + delay).timestamp() * 1e6

    def test_plain_django_task_runs(self) -> None:
        result = plain_function_task.enqueue(21)
        assert isinstance(result, Result)
        assert result.job.priority == 3
        work_off()
        result.refresh()
        assert result.return_value == 42
        assert task_backends["default"].get_result(result.id).task == plain_function_task

    def test_enqueued_at_follows_use_tz(self) -> None:
        with override_settings(USE_TZ=False):
            assert timezone.is_naive(add.enqueue(1, 2).enqueued_at)


@pytest.mark.django_db
class TestRefused:
    @pytest.mark.parametrize(
        ("args", "kwargs", "what"),
        [
            ((1,), {}, "missing a required argument: 'second'"),
            ((1,), {"secnd": 2}, "missing a required argument: 'second'; unexpected: 'secnd'"),
            ((1, 2, 3), {}, "too many positional arguments"),
            ((1, 2), {"third": 3}, "unexpected keyword argument 'third'"),
            ((1,), {"first": 1}, "multiple values for argument 'first'"),
        ],
    )
    def test_wrong_arguments_raise_type_error(self, args: Any, kwargs: Any, what: str) -> None:
        with pytest.raises(TypeError, match=what) as caught:
            add.enqueue(*args, **kwargs)
        assert str(caught.value).startswith("tests.app.tasks.add(first: ")
        assert not Job.objects.exists()

    def test_context_is_not_counted_as_argument(self) -> None:
        write_ledger.enqueue(0.0)
        with pytest.raises(TypeError, match="too many"):
            write_ledger.enqueue("context", 0.0, "note", "more")

    def test_unserializable_argument_leaves_transaction_usable(self) -> None:
        with transaction.atomic():
            with pytest.raises(NotSerializable, match=r"Argument 1 of tests\.app\.tasks\.echo"):
                echo.enqueue({object()})
            kept = add.enqueue(1, 2)
        assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [kept.id]

    def test_queue_removed_from_settings_raises_invalid_task(self) -> None:
        mail = add.using(queue_name="mail")
        only = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}
        with override_settings(TASKS=only), pytest.raises(InvalidTask, match="mail"):
            mail.enqueue(1, 2)

    def test_job_that_expires_before_run_after_is_refused(self) -> None:
        with pytest.raises(InvalidTaskOption, match="would expire before it may start"):
            add.using(run_after=60, expires=30).enqueue(1, 2)

    def test_task_of_a_script_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plain_function, "__module__", "__main__")
        with pytest.raises(InvalidTask, match="Move the function into a module"):
            task(plain_function).enqueue(1)


@pytest.mark.django_db(transaction=True)
class TestTransactions:
    def test_commit_keeps_the_job(self) -> None:
        with transaction.atomic():
            result = add.enqueue(1, 2)
        assert Job.objects.get(pk=result.id)
        assert Ready.objects.count() == 1

    def test_rollback_leaves_nothing(self) -> None:
        with suppress(Undo), transaction.atomic():
            add.enqueue(1, 2)
            add.using(run_after=60).enqueue(1, 2)
            add.enqueue_many([((1, 2), {})] * 3)
            raise Undo
        assert not Job.objects.exists()
        assert not Ready.objects.exists()
        assert not Deferred.objects.exists()

    def test_savepoint_rollback_removes_its_jobs(self) -> None:
        with transaction.atomic():
            kept = add.enqueue(1, 2)
            with suppress(Undo), transaction.atomic():
                add.enqueue(3, 4)
                raise Undo
        assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [kept.id]

    def test_clusters_are_woken_after_commit_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        woken: list[set[str]] = []
        broker = broker_for(settings_for())
        monkeypatch.setattr(broker, "wake_up", lambda queues, **_: woken.append(queues))
        with transaction.atomic():
            add.enqueue(1, 2)
            assert woken == []
        assert woken == [{"default"}]
        with suppress(Undo), transaction.atomic():
            add.enqueue(1, 2)
            raise Undo
        assert len(woken) == 1
        add.enqueue(1, 2)
        assert len(woken) == 2

    def test_failing_wake_up_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(queues: set[str]) -> None:
            raise RuntimeError("no wake-up today")

        monkeypatch.setattr(broker_for(settings_for()), "wake_up", fail)
        with transaction.atomic():
            add.enqueue(1, 2)
        assert Job.objects.count() == 1

    def test_enqueue_works_with_manual_commit(self) -> None:
        transaction.set_autocommit(False)
        try:
            add.enqueue(1, 2)
            transaction.rollback()
            assert not Job.objects.exists()
            add.enqueue(1, 2)
            add.enqueue_many([((1, 2), {})])
            transaction.commit()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert Job.objects.count() == 2

    def test_aenqueue_in_sync_transaction_rolls_back_with_it(self) -> None:
        with suppress(Undo), transaction.atomic():
            async_to_sync(add.aenqueue)(1, 2)
            assert Job.objects.count() == 1
            raise Undo
        assert not Job.objects.exists()
        assert async_to_sync(add.aenqueue)(1, 2).job.task == "tests.app.tasks.add"

    def test_aenqueue_does_not_block_the_event_loop(self) -> None:
        has_ticked = threading.Event()

        def dawdle(**_: Any) -> None:
            assert has_ticked.wait(120), "the loop is held up"

        async def both() -> None:
            enqueued = asyncio.create_task(add_later.aenqueue(1, 2))
            for _ in range(5):
                await asyncio.sleep(0.01)
                assert not enqueued.done()
            has_ticked.set()
            await enqueued

        pre_enqueue.connect(dawdle)
        try:
            async_to_sync(both)()
        finally:
            pre_enqueue.disconnect(dawdle)
        assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
class TestMany:
    def test_enqueue_many_keeps_the_order_of_calls(self) -> None:
        results = add.enqueue_many(((number,), {"second": 1}) for number in range(2500))
        assert [result.args for result in results] == [[number] for number in range(2500)]
        assert Job.objects.count() == Ready.objects.count() == 2500
        assert [str(pk) for pk in Job.objects.order_by("pk").values_list("pk", flat=True)] == [
            result.id for result in results
        ]

    def test_enqueue_many_needs_one_round_trip_per_thousand(self) -> None:
        add.enqueue_many([((1, 2), {})])
        with CaptureQueriesContext(connection) as captured:
            add.enqueue_many([((1, 2), {})] * 2000)
        statements = [query["sql"] for query in captured if "stoker_job" in query["sql"]]
        assert len(statements) <= 2 * PER_THOUSAND[connection.vendor]

    def test_enqueue_many_adds_nothing_if_one_call_is_refused(self) -> None:
        calls: list[Any] = [((number, 1), {}) for number in range(1500)]
        with transaction.atomic():
            with pytest.raises(TypeError, match="missing"):
                add.enqueue_many([*calls, ((1,), {})])
            with pytest.raises(NotSerializable):
                add.enqueue_many([*calls, ((1, object()), {})])
            kept = add.enqueue(1, 2)
        assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [kept.id]

    @pytest.mark.postgres
    def test_large_packages_are_inserted_by_several_statements(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An execution wrapper, such as a log of statements, prevents a COPY."""
        monkeypatch.setattr("stoker.store.engines.postgresql.INSERT_BYTES", 10_000)
        statements: list[str] = []

        def note(execute: Any, sql: str, *rest: Any) -> Any:
            statements.append(sql)
            if len(statements) == 6:
                raise Undo
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            echo.enqueue_many([(("x" * 4000,), {})] * 4)
            assert sum("unnest" in sql for sql in statements) == 2
            with pytest.raises(Undo):
                echo.enqueue_many([(("x" * 4000,), {})] * 40)
        assert Job.objects.count() == Ready.objects.count() == 4

    def test_enqueue_many_without_calls_adds_nothing(self) -> None:
        assert list(add.enqueue_many([])) == []

    def test_enqueue_many_with_run_after_defers_all(self) -> None:
        add.using(run_after=60).enqueue_many([((1, 2), {})] * 3)
        assert Deferred.objects.count() == 3

    def test_aenqueue_many_adds_all(self) -> None:
        results = async_to_sync(add.aenqueue_many)([((1, 2), {})] * 3)
        assert len(results) == Job.objects.count() == 3


@pytest.mark.django_db
class TestSignals:
    def test_django_signal_is_sent_after_the_insert(self, received: list[Any]) -> None:
        result = add.enqueue(1, 2)
        assert received == [(type(task_backends["default"]), result)]

    def test_signal_is_sent_for_each_of_many(self, received: list[Any]) -> None:
        results = add.enqueue_many([((1, 2), {})] * 3)
        assert [result for _, result in received] == list(results)

    def test_receiver_that_raises_is_logged_and_ignored(
        self, received: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(**_: Any) -> None:
            raise RuntimeError("a bad receiver")

        for signal in (pre_enqueue, task_signals.task_enqueued):
            signal.connect(fail)
        try:
            add.enqueue(1, 2)
        finally:
            for signal in (pre_enqueue, task_signals.task_enqueued):
                signal.disconnect(fail)
        assert Job.objects.count() == len(received) == 1
        assert "a bad receiver" in caplog.text

    def test_enqueue_is_logged_by_djangos_logger(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("DEBUG", logger=TASKS_APP):
            result = add.enqueue(1, 2)
        assert f"Task id={result.id} path=tests.app.tasks.add enqueued" in caplog.text

    def test_pre_enqueue_receiver_can_add_metadata(self) -> None:
        def trace(task: Any, args: Any, kwargs: Any, metadata: dict[str, Any], **_: Any) -> None:
            assert (task, args, kwargs) == (add, (1,), {"second": 2})
            metadata["trace"] = 123

        pre_enqueue.connect(trace)
        try:
            result = add.enqueue(1, second=2)
        finally:
            pre_enqueue.disconnect(trace)
        assert package_of(result).metadata == {"trace": "123"}


@pytest.mark.django_db(transaction=True)
class TestOutsideTheDatabase:
    """A broker outside the database gets its jobs after the commit."""

    @pytest.fixture(autouse=True)
    def memory(self) -> Iterator[None]:
        # Another CLUSTER in each test: a broker in memory belongs to the settings.
        options = {"BROKER": "memory://", "CLUSTER": uuid.uuid4().hex}
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
            yield

    def waiting(self) -> int:
        sizes = broker_for(settings_for()).sizes()
        return sum(size["ready"] for size in sizes.values())

    def test_job_is_sent_at_once_outside_a_transaction(self) -> None:
        add.enqueue(1, 2)
        assert self.waiting() == 1

    def test_job_is_sent_after_commit(self) -> None:
        with transaction.atomic():
            add.enqueue(1, 2)
            add.enqueue_many([((1, 2), {})] * 2)
            assert self.waiting() == 0
        assert self.waiting() == 3

    def test_job_is_not_sent_after_rollback(self) -> None:
        with suppress(Undo), transaction.atomic():
            add.enqueue(1, 2)
            raise Undo
        assert self.waiting() == 0

    def test_result_is_known_before_there_is_a_row(self) -> None:
        result = add.enqueue(1, 2)
        result.refresh()
        assert result.state is JobState.READY
        assert add.get_backend().get_result(result.id).state is JobState.READY
        work_off()
        assert result.wait(5) == 3

    def test_cancel_withdraws_a_job_without_row(self) -> None:
        result = add.enqueue(1, 2)
        assert result.cancel("no")
        assert self.waiting() == 0
        assert result.state is JobState.CANCELLED
        assert (result.job.task, result.job.reason) == ("tests.app.tasks.add", "no")


class TestAnotherDatabase:
    """A transaction on a database other than the store's."""

    @pytest.fixture
    def shop(self, django_db_blocker: Any, django_db_setup: None, tmp_path: Path) -> Iterator[str]:
        names = {
            "sqlite": str(tmp_path / "shop.sqlite3"),
            "postgresql": "postgres",
            "mysql": "mysql",
        }
        with (
            django_db_blocker.unblock(),
            another_database(NAME=names[connections["default"].vendor]) as alias,
        ):
            yield alias
            for model in (Job, Ready):
                model.objects.all().delete()

    def test_job_exists_only_after_other_database_commits(self, shop: str) -> None:
        with transaction.atomic(using=shop):
            result = add.enqueue(1, 2)
            results = add.enqueue_many([((1, 2), {})] * 3)
            assert not Job.objects.exists()
            with pytest.raises(TaskResultDoesNotExist):
                result.refresh()
        assert Ready.objects.count() == Job.objects.count() == 4
        assert [result.state for result in [result, *results]] == [JobState.READY] * 4

    def test_job_does_not_exist_if_other_database_rolls_back(self, shop: str) -> None:
        with suppress(Undo), transaction.atomic(using=shop):
            add.enqueue(1, 2)
            add.enqueue_many([((1, 2), {})] * 3)
            raise Undo
        assert not Job.objects.exists()

    def test_transaction_of_the_store_has_precedence(self, shop: str) -> None:
        with transaction.atomic(using=shop), transaction.atomic():
            add.enqueue(1, 2)
            assert Job.objects.count() == 1


class NoTablesIn:
    """A database router that keeps Stoker's tables out of one database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if (db, app_label) == (self._alias, "stoker") else None


@pytest.mark.postgres
class TestReplica:
    """A transaction on a replica, which has the table of the outbox but accepts no rows."""

    @pytest.fixture
    def replica(self, django_db_blocker: Any, django_db_setup: None) -> Iterator[str]:
        options = {"options": "-c default_transaction_read_only=on"}
        with django_db_blocker.unblock(), another_database(OPTIONS=options) as alias:
            yield alias
            for model in (Job, Ready, Outgoing):
                model.objects.all().delete()

    def test_job_is_enqueued_after_the_transaction_if_the_router_excludes_the_replica(
        self, replica: str
    ) -> None:
        with override_settings(DATABASE_ROUTERS=[NoTablesIn(replica)]):
            with transaction.atomic(using=replica):
                add.enqueue(1, 2)
                assert not Job.objects.exists()
            assert Ready.objects.count() == 1

    def test_error_names_the_replica_if_the_router_does_not_exclude_it(self, replica: str) -> None:
        told = f"'{replica}'.*read-only"
        with pytest.raises(BrokerUnavailable, match=told), transaction.atomic(using=replica):
            add.enqueue(1, 2)

    def test_transaction_of_a_database_with_an_outbox_has_precedence(self, replica: str) -> None:
        with (
            override_settings(DATABASE_ROUTERS=[NoTablesIn(replica)]),
            another_database() as shop,
            suppress(Undo),
            transaction.atomic(using=shop),
        ):
            with transaction.atomic(using=replica):
                add.enqueue(1, 2)
                assert Outgoing.objects.using(shop).count() == 1
            raise Undo
        assert not Job.objects.exists()


class TestOutbox:
    """A transaction on another database with an outbox."""

    @pytest.fixture
    def shop(self, django_db_blocker: Any, django_db_setup: None) -> Iterator[str]:
        with django_db_blocker.unblock(), another_database() as alias:
            yield alias
            for model in (Outgoing, Relayed, Ready, Job):
                model.objects.all().delete()

    def test_wait_in_the_transaction_that_enqueued_is_refused(self, shop: str) -> None:
        with transaction.atomic(using=shop):
            result = add.enqueue(1, 2)
            told = "enqueued in a transaction that is still open"
            with pytest.raises(TransactionManagementError, match=told):
                result.wait(1)
        with pytest.raises(ResultTimeout):
            result.wait(0)

    def test_error_names_the_database_in_which_the_outbox_is_looked_for(
        self, shop: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: str) -> None:
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr("stoker.jobs.enqueue.has_outbox", fail)
        with pytest.raises(BrokerUnavailable, match=shop), transaction.atomic(using=shop):
            add.enqueue(1, 2)

    @pytest.mark.postgres  # on SQLite the two aliases would wait for each other
    def test_relay_commits_though_the_database_has_no_autocommit(
        self, shop: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "relay_these", lambda *_: {})  # the process dies
            with transaction.atomic(using=shop):
                add.enqueue(1, 2)
        assert Outgoing.objects.count() == 1
        monkeypatch.setitem(connections.settings[shop], "AUTOCOMMIT", False)
        relays = Relays(settings_for())
        relays.start()
        wait_for(lambda: not Outgoing.objects.exists())
        relays.stop(WAIT_SECONDS)
        assert Ready.objects.count() == 1


class TestCommittedByHandElsewhere:
    """Autocommit is off on another database, which has Stoker's tables. It decides about no job,
    because it may never be committed."""

    @pytest.fixture
    def legacy(self, django_db_blocker: Any, django_db_setup: None) -> Iterator[str]:
        with django_db_blocker.unblock(), another_database(AUTOCOMMIT=False) as alias:
            assert not connections[alias].in_atomic_block  # Django makes the connection's object
            yield alias
            for model in (Outgoing, Relayed, Ready, Job):
                model.objects.all().delete()

    def test_job_is_stored_at_once_if_that_database_was_not_used(self, legacy: str) -> None:
        add.enqueue(1, 2)
        add.enqueue_many([((1, 2), {})] * 60)
        connections[legacy].close()
        assert Ready.objects.count() == 61

    def test_job_is_stored_at_once_if_that_database_was_read(self, legacy: str) -> None:
        assert not Job.objects.using(legacy).exists()
        add.enqueue(1, 2)
        connections[legacy].rollback()
        assert Ready.objects.count() == 1

    def test_atomic_block_that_django_does_not_commit_does_not_count(self, legacy: str) -> None:
        """Neither with an outbox nor without one, whose ``on_commit`` would never run."""
        for routers in ([], [NoTablesIn(legacy)]):
            with override_settings(DATABASE_ROUTERS=routers), transaction.atomic(using=legacy):
                add.enqueue(1, 2)
        connections[legacy].rollback()
        assert Ready.objects.count() == 2

    def test_transaction_that_django_commits_has_precedence(self, legacy: str) -> None:
        with another_database() as shop, suppress(Undo), transaction.atomic(using=shop):
            add.enqueue(1, 2)
            assert Outgoing.objects.using(shop).count() == 1
            raise Undo
        assert not Ready.objects.exists()

    def test_duplicate_and_workflow_are_not_refused(self, legacy: str) -> None:
        unique = add.using(unique=Unique("add", on_conflict="raise"))
        unique.enqueue(1, 2)
        with pytest.raises(DuplicateJob):
            unique.enqueue(1, 2)
        assert chain(add.si(1, 2), add.si(3, 4)).enqueue().cancel()

    def test_job_is_stored_though_that_database_is_unreachable(
        self, django_db_blocker: Any, django_db_setup: None, tmp_path: Path
    ) -> None:
        away = {"HOST": "127.0.0.1", "PORT": "1"}
        if connections["default"].vendor == "sqlite":
            away = {"NAME": str(tmp_path / "no" / "such" / "folder.sqlite3")}
        with (
            django_db_blocker.unblock(),
            another_database(AUTOCOMMIT=False, **away) as alias,
        ):
            assert not connections[alias].in_atomic_block
            add.enqueue(1, 2)
            assert Ready.objects.count() == 1
            Ready.objects.all().delete()
            Job.objects.all().delete()


class TestNoDatabase:
    """An unusable database raises an error that says what to do."""

    @pytest.fixture
    def empty(self, django_db_blocker: Any, django_db_setup: None, tmp_path: Path) -> Iterator[str]:
        """Give a database of the same kind without tables."""
        names = {
            "sqlite": str(tmp_path / "empty.sqlite3"),
            "postgresql": "postgres",
            "mysql": "mysql",
        }
        with (
            django_db_blocker.unblock(),
            another_database(NAME=names[connections["default"].vendor]) as alias,
        ):
            yield alias

    @pytest.fixture
    def unreachable(
        self, django_db_blocker: Any, django_db_setup: None, tmp_path: Path
    ) -> Iterator[str]:
        away = {"HOST": "127.0.0.1", "PORT": "1"}
        if connections["default"].vendor == "sqlite":
            away = {"NAME": str(tmp_path / "no" / "such" / "folder.sqlite3")}
        with django_db_blocker.unblock(), another_database(**away) as alias:
            yield alias

    @pytest.mark.parametrize("many", [False, True])
    def test_enqueue_without_tables_raises_not_migrated(self, empty: str, many: bool) -> None:
        tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"BROKER": f"orm://{empty}"}}}
        with (
            override_settings(TASKS=tasks),
            pytest.raises(NotMigrated, match=r"Run: .*migrate") as caught,
        ):
            add.enqueue_many([((1, 2), {})]) if many else add.enqueue(1, 2)
        assert f"migrate --database {empty}" in str(caught.value)

    def test_get_result_without_tables_raises_not_migrated(self, empty: str) -> None:
        tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"BROKER": f"orm://{empty}"}}}
        with override_settings(TASKS=tasks), pytest.raises(NotMigrated):
            add.get_result(str(uuid.uuid4()))

    @pytest.mark.parametrize("many", [False, True])
    def test_enqueue_without_server_raises_broker_unavailable(
        self, unreachable: str, many: bool
    ) -> None:
        tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"BROKER": f"orm://{unreachable}"}}}
        with override_settings(TASKS=tasks), pytest.raises(BrokerUnavailable, match=unreachable):
            add.enqueue_many([((1, 2), {})]) if many else add.enqueue(1, 2)

    def test_get_result_without_server_raises_broker_unavailable(self, unreachable: str) -> None:
        tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"BROKER": f"orm://{unreachable}"}}}
        with override_settings(TASKS=tasks), pytest.raises(BrokerUnavailable, match=unreachable):
            add.get_result(str(uuid.uuid4()))

    def test_unknown_alias_raises_configuration_error(self) -> None:
        from stoker.exceptions import ConfigurationError

        tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"BROKER": "orm://nowhere"}}}
        with override_settings(TASKS=tasks), pytest.raises(ConfigurationError, match="nowhere"):
            add.enqueue(1, 2)

    def test_check_warns_about_missing_tables_and_unreachable_database(
        self, empty: str, unreachable: str
    ) -> None:
        from stoker.checks import check_databases

        for alias in (empty, unreachable):
            tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"BROKER": f"orm://{alias}"}}}
            with override_settings(TASKS=tasks):
                assert [message.id for message in check_databases(databases=[alias])] == [
                    "stoker.W001"
                ]
                assert check_databases(databases=[]) == []
        assert check_databases(databases=["default"]) == []


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "enqueue",
    [
        echo.enqueue,
        lambda text: echo.enqueue_many([((text,), {})] * 2),
        lambda text: group(echo.s(text), echo.s(1)).enqueue(),
        lambda text: schedules.create("large", echo, every(hours=1, args=[text])),
    ],
    ids=["one", "many", "workflow", "schedule"],
)
def test_package_above_max_allowed_packet_leaves_the_callers_transaction_usable(
    enqueue: Callable[[str], object],
) -> None:
    most_bytes = max_allowed_packet()
    options = {"MAX_PACKAGE_BYTES": 2 * most_bytes}
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}),
        transaction.atomic(),
    ):
        first = echo.enqueue(1)
        with pytest.raises(PackageTooLarge, match="max_allowed_packet"):
            enqueue("x" * most_bytes)
    assert [str(job.pk) for job in Job.objects.all()] == [first.id]


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_package_that_could_not_be_recorded_is_refused_before_it_is_sent_to_a_broker() -> None:
    most_bytes = max_allowed_packet()
    tasks = outside_the_database()
    tasks["default"]["OPTIONS"]["MAX_PACKAGE_BYTES"] = 2 * most_bytes
    with override_settings(TASKS=tasks):
        with pytest.raises(PackageTooLarge, match="max_allowed_packet"):
            echo.enqueue("x" * most_bytes)
        assert not broker_for(settings_for()).sizes()


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_job_with_the_largest_package_becomes_a_dead_letter_whatever_its_error_says() -> None:
    most_bytes = max_allowed_packet()
    options = {"MAX_PACKAGE_BYTES": 2 * most_bytes}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        result = echo.enqueue("x" * (most_bytes - REST_BYTES - 2000))
        (delivery,) = claim()
        fault = Fault("ValueError", "\U0001f600" * MESSAGE_LIMIT, "\U0001f600" * TRACEBACK_LIMIT)
        now = time.time()
        finish(
            settings_for(),
            broker_for(settings_for()),
            [Attempted(delivery, Failed(fault), "w", now, now)],
        )
    assert str(DeadLetter.objects.values_list("job_id", flat=True).get()) == result.id


@pytest.mark.mariadb
def test_size_of_a_package_is_not_checked_on_an_event_loop() -> None:
    async def check() -> None:
        engine_of("default").refuse_too_large(b"x" * LARGE_BYTES)

    asyncio.run(check())


def max_allowed_packet() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        return int(cursor.fetchone()[0])
