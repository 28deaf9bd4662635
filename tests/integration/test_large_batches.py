"""Batches whose rows are large, or locked by another transaction."""

import time
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.contrib.django_q.models import Task
from stoker.contrib.django_q.tasks import async_task
from stoker.jobs.outcomes import Attempted, Succeeded
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.models import Job
from stoker.operations import bulk, bulk_walk, waiting_jobs
from stoker.operations.operation import Operator
from stoker.store.locked_jobs import locked_jobs

from tests.app import payments, tasks
from tests.integration.work import claim

pytestmark = pytest.mark.django_db(transaction=True)
SMALLEST_PACKET_BYTES = 1 << 20


def test_bulk_edit_writes_no_statement_above_the_smallest_packet() -> None:
    for number in range(100):
        payments.plain.enqueue(number, note="a,b,c" * 3_000)
    alice = Operator(settings_for(), "alice", "")
    options = {"arguments": {"note": "new"}}
    row = bulk.start(alice, waiting_jobs.EDIT, {"state": "ready"}, options)
    with CaptureQueriesContext(connection) as queries:
        bulk_walk.go_on(alice.settings, 60)
    assert bulk.get(alice.settings, row.pk).done == 100
    assert max(len(one["sql"]) for one in queries.captured_queries) < SMALLEST_PACKET_BYTES


def finish_shim_jobs(count: int, argument: str, value: str) -> None:
    for _ in range(count):
        async_task("math.fabs", argument)
    settings = settings_for()
    sealed = sealer_for(settings).seal_value(value)
    ended = [Attempted(one, Succeeded(sealed), "worker", None, time.time()) for one in claim()]
    finish(settings, broker_for(settings), ended)


@pytest.mark.mariadb
def test_tasks_of_the_shim_that_are_large_together_are_recorded() -> None:
    finish_shim_jobs(20, "a", "y" * 1_000_000)
    assert Task.objects.filter(success=True).count() == 20


@pytest.mark.mariadb
def test_success_is_kept_if_its_task_of_the_shim_is_too_large() -> None:
    """The arguments and the value fit into a statement each, but not into one together."""
    finish_shim_jobs(1, "a" * 900_000, "y" * 16_100_000)
    assert Job.objects.get().status == Job.Status.SUCCESSFUL


@pytest.mark.postgres
@pytest.mark.mariadb
def test_job_whose_row_is_locked_is_found() -> None:
    locked, _free = (tasks.add.enqueue(1, 2) for _ in range(2))
    ids = list(Job.objects.values_list("pk", flat=True))
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            id_of_locked = Job._meta.pk.get_db_prep_value(UUID(locked.id), other)
            text = "SELECT id FROM stoker_job WHERE id = %s FOR UPDATE"
            cursor.execute(text, [id_of_locked])
            assert len(cursor.fetchall()) == 1
        assert locked_jobs("default", ids) == {UUID(locked.id)}
    finally:
        other.close()
