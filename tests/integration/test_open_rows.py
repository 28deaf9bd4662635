"""Old rows are deleted while a transaction of user code has inserted rows in the same tables and
stays open. On MariaDB, a DELETE that reads a small table from end to end would wait for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from stoker import dead_letters, group
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.pruning import Pruning
from stoker.models import Attempt, Cancellation, DeadLetter, Job, Requeue, Workflow
from stoker.workflows.sweep import WorkflowSweep

from tests.app import frail, tasks
from tests.guards.sessions import session
from tests.integration.letters import dead
from tests.integration.work import work_off

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_broken"),
]

COUNT = 40
SHORT_WAIT = {
    "postgresql": "SET lock_timeout = 1000",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
}


def insert_everywhere() -> None:
    tasks.nothing.enqueue()
    group(tasks.nothing.si(), tasks.nothing.si()).enqueue()
    job_id = uuid.uuid4()
    Attempt.objects.create(job_id=job_id, number=1, kind="failed", finished_at=timezone.now())
    Cancellation.objects.create(job_id=job_id)
    DeadLetter.objects.create(id=job_id, identity="open", job_id=job_id, package=b"")
    Requeue.objects.create(job_id=job_id, identity="open", from_job_id=job_id)


@pytest.fixture
def open_rows() -> Iterator[None]:
    """A fixture that comes last: the rows of another transaction, and impatient statements."""
    with session() as user, closing(connection):
        user.begin()
        user.do(insert_everywhere)
        with connection.cursor() as cursor:
            cursor.execute(SHORT_WAIT[connection.vendor])
        yield


@pytest.fixture
def no_results() -> Iterator[None]:
    options = {"KEEP_RESULTS": False}
    default = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}
    with override_settings(TASKS={"default": default}):
        yield


@pytest.fixture
def waiting_jobs() -> None:
    tasks.nothing.enqueue_many([((), {})] * COUNT)


@pytest.fixture
def ended_jobs(waiting_jobs: None) -> None:
    assert work_off() == COUNT


@pytest.fixture
def letters() -> None:
    for number in range(10):
        dead(frail.charge, f"order {number}")
    Job.objects.all().delete()  # otherwise their attempts are kept


@pytest.fixture
def ended_workflow() -> None:
    group(tasks.nothing.si() for _ in range(COUNT)).enqueue()
    while work_off():
        pass
    Workflow.objects.update(finished_at=timezone.now() - timedelta(days=8))


@pytest.mark.usefixtures("no_results", "waiting_jobs", "open_rows")
def test_jobs_whose_results_are_not_kept_are_recorded() -> None:
    assert work_off() == COUNT
    assert not Job.objects.exists()


@pytest.mark.usefixtures("ended_jobs", "open_rows")
def test_old_results_are_pruned() -> None:
    Job.objects.update(finished_at=timezone.now() - timedelta(days=8))
    assert Pruning(settings_for(), lambda: None).prune() == COUNT


@pytest.mark.usefixtures("waiting_jobs", "open_rows")
def test_queue_is_purged() -> None:
    assert broker_for(settings_for()).purge("default") == COUNT


@pytest.mark.usefixtures("ended_jobs", "open_rows")
def test_requests_to_cancel_ended_jobs_are_deleted() -> None:
    job_ids = list(Job.objects.values_list("pk", flat=True))
    Cancellation.objects.ask_all(job_ids, "enough")
    assert sweep_requests(settings_for()) == COUNT


@pytest.mark.usefixtures("letters", "open_rows")
def test_old_dead_letters_are_purged() -> None:
    assert dead_letters.purge(timedelta(), state="open").done == 10
    assert not Attempt.objects.exists()


@pytest.mark.usefixtures("ended_workflow", "open_rows")
def test_old_workflows_are_pruned() -> None:
    assert WorkflowSweep(settings_for(), lambda: None).prune() == 1
