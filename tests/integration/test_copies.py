"""`enqueue_many` of many jobs: COPY on PostgreSQL writes the same rows as single enqueues, and jobs
for a broker are sealed in the same way."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from stoker.conf import settings_for
from stoker.exceptions import NotSerializable, PackageTooLarge
from stoker.jobs.package import sealer_for
from stoker.jobs.states import JobState
from stoker.models import Deferred, Job, Need, Ready
from stoker.signals import pre_enqueue
from stoker.store.engines import engine_of
from stoker.tasks.guards import Lock

from tests.app.tasks import add, echo
from tests.integration.fronted import fronted_broker, outside
from tests.integration.work import work_off

COUNT = 120
CALLS: list[Any] = [((number, 1), {}) for number in range(COUNT)]

pytestmark = pytest.mark.django_db(transaction=True)


def copied(enqueue: Callable[[], object]) -> bool:
    with CaptureQueriesContext(connection) as captured:
        enqueue()
    return any("COPY stoker_job" in query["sql"] for query in captured)


def rows(model: type[Any]) -> list[dict[str, Any]]:
    """Return the rows without the columns that differ between two jobs of the same call."""
    left_out = {"id", "job_id", "package", "enqueued_at"}
    return [
        {name: value for name, value in row.items() if name not in left_out}
        for row in model.objects.order_by("pk").values()
    ]


class TestRows:
    @pytest.mark.parametrize("moment", [None, datetime(2099, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)])
    def test_enqueue_many_writes_the_same_rows_as_single_enqueues(
        self, moment: datetime | None
    ) -> None:
        own = add.using(run_after=moment, priority=-7, queue_name="mäil")
        place = Ready if moment is None else Deferred
        for call in CALLS:
            own.enqueue(*call[0])
        singly = rows(Job), rows(place)
        Job.objects.all().delete()
        place.objects.all().delete()
        own.enqueue_many(CALLS)
        assert (rows(Job), rows(place)) == singly
        assert Ready.objects.count() + Deferred.objects.count() == COUNT
        assert set(place.objects.values_list("pk")) == set(Job.objects.values_list("pk"))

    def test_copied_jobs_have_readable_packages_and_run(self) -> None:
        results = add.enqueue_many(iter(CALLS))
        sealer = sealer_for(settings_for())
        opened = [sealer.open(bytes(job.package)) for job in Job.objects.order_by("pk")]
        assert [package.args for package in opened] == [call[0] for call in CALLS]
        assert [str(package.job_id) for package in opened] == [result.id for result in results]
        moments = {job.enqueued_at for job in Job.objects.all()}
        assert moments == {result.enqueued_at for result in results}
        assert work_off() == COUNT
        assert [result.wait(5) for result in results[:3]] == [1, 2, 3]

    def test_only_postgresql_copies_and_only_many_jobs(self) -> None:
        takes = engine_of("default").takes_copies
        assert takes == (connection.vendor == "postgresql")
        assert copied(lambda: add.enqueue_many(CALLS)) == takes
        assert not copied(lambda: add.enqueue_many(CALLS[:3]))

    def test_guarded_jobs_are_not_copied(self) -> None:
        assert not copied(lambda: add.using(lock=Lock("key")).enqueue_many(CALLS))
        assert Need.objects.count() == COUNT

    def test_pre_enqueue_receivers_are_called_for_each_job(self) -> None:
        def number(args: Any, metadata: dict[str, str], **_: Any) -> None:
            metadata["number"] = str(args[0])

        pre_enqueue.connect(number)
        try:
            assert not copied(lambda: add.enqueue_many(CALLS))
        finally:
            pre_enqueue.disconnect(number)
        sealer = sealer_for(settings_for())
        noted = [sealer.open(bytes(one.package)).metadata for one in Job.objects.order_by("pk")]
        assert noted == [{"number": str(number)} for number in range(COUNT)]


class TestTransactions:
    def test_refused_call_adds_no_rows(self) -> None:
        with transaction.atomic():
            for value, error in (
                (float("nan"), NotSerializable),
                ("x" * 2_000_000, PackageTooLarge),
                (object(), NotSerializable),
            ):
                with pytest.raises(error):
                    echo.enqueue_many([*CALLS_OF_ECHO, ((value,), {})])
            kept = add.enqueue(1, 2)
        assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [kept.id]
        assert Ready.objects.count() == 1

    def test_rollback_removes_copied_jobs(self) -> None:
        with transaction.atomic():
            add.enqueue_many(CALLS)
            assert Ready.objects.count() == COUNT
            transaction.set_rollback(True)
        assert not Job.objects.exists()
        assert not Ready.objects.exists()

    def test_calls_can_be_read_from_the_database_while_enqueueing(self) -> None:
        add.enqueue_many(CALLS)

        def calls() -> Iterator[Any]:
            with transaction.atomic():
                for job in Job.objects.order_by("pk").iterator(chunk_size=10):
                    yield ((job.priority, 1), {})

        add.using(queue_name="other").enqueue_many(calls())
        assert Ready.objects.filter(queue="other").count() == COUNT

    def test_broken_transaction_raises_and_adds_nothing(self) -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                add.enqueue_many(CALLS)
        assert not Job.objects.exists()


@pytest.mark.redis
class TestBroker:
    """Many jobs for a broker outside the database."""

    @pytest.fixture(params=[False, True], ids=["directly", "through an outbox"])
    def own(self, request: pytest.FixtureRequest) -> AbstractContextManager[Any]:
        return transaction.atomic() if request.param else nullcontext()

    def test_jobs_have_readable_packages(self, own: AbstractContextManager[Any]) -> None:
        with fronted_broker() as broker:
            with own:
                results = add.using(priority=5).enqueue_many(iter(CALLS))
            job_ids = [UUID(result.id) for result in results]
            jobs = broker.jobs(job_ids)
            sealer = sealer_for(settings_for())
            opened = [sealer.open(jobs[job_id].package) for job_id in job_ids]
            assert [package.args for package in opened] == [call[0] for call in CALLS]
            assert {package.priority for package in opened} == {5}
            assert results[3].state is JobState.READY

    def test_refused_call_adds_no_jobs(self, own: AbstractContextManager[Any]) -> None:
        with fronted_broker() as broker:
            with own, pytest.raises(PackageTooLarge):
                echo.enqueue_many([*CALLS_OF_ECHO, (("x" * 2_000_000,), {})])
            assert outside(broker) == 0


class TestResults:
    def test_results_behave_like_a_sequence(self) -> None:
        results = add.enqueue_many(CALLS)
        assert len(results) == COUNT
        assert results[0] is results[0]
        assert results[-1] is list(results)[-1]
        assert [one.args for one in results[1:3]] == [[1, 1], [2, 1]]
        assert results[5] in results
        more: Any = add.enqueue_many(CALLS)
        assert (more + results)[COUNT] is results[0]
        some: Any = [results[0], results[1]]
        some += more
        assert (some + more)[2] is more[0]
        with pytest.raises(IndexError):
            results[COUNT]

    def test_results_keep_arguments_as_enqueued(self) -> None:
        listed: list[Any] = [1]
        moment = datetime(2026, 10, 25, tzinfo=UTC)
        results = echo.enqueue_many([((listed,), {})] * 60 + [((moment,), {})])
        listed.append(2)
        assert [results[0].args, results[-1].args] == [[[1]], [moment]]
        assert results[0].state is JobState.READY
        results[0].refresh()
        assert results[0].job.task == "tests.app.tasks.echo"


CALLS_OF_ECHO: list[Any] = [((number,), {}) for number in range(COUNT)]


def test_execute_wrapper_that_forbids_writes_is_obeyed() -> None:
    """For example, a read-only shell forbids writes like this."""

    def forbid(execute: Any, sql: str, *arguments: Any) -> Any:
        if not sql.startswith("SELECT"):
            raise PermissionError(sql)
        return execute(sql, *arguments)

    with connection.execute_wrapper(forbid), pytest.raises(PermissionError):
        add.enqueue_many(CALLS)
    assert not Job.objects.exists()
