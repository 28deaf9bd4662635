"""Results and details of jobs that only a broker outside the database has."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from stoker.brokers.dispatch import Dispatch
from stoker.compat import TaskResultDoesNotExist, TaskResultMismatch, task_backends
from stoker.jobs.states import JobState
from stoker.models import Job
from stoker.values.ids import new_job_id

from tests.app.tasks import add, echo
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
