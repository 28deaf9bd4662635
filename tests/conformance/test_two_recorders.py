"""Two clusters record the same jobs of a broker outside the store at once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, transaction

from stoker.models import Job
from stoker.models.job import JobColumns
from stoker.store.engines import engine_of

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

COUNT = 2000
TASK, QUEUE = "tests.app.tasks.nothing", "default"


def succeeded(job_ids: Sequence[uuid.UUID]) -> int:
    count = len(job_ids)
    jobs = replace(
        called(job_ids),
        statuses=["SUCCESSFUL"] * count,
        attempts=[1] * count,
        worker_ids=["worker"] * count,
        started_at=[1.0] * count,
        finished_at=[2.0] * count,
        values=[b""] * count,
        reasons=[""] * count,
    )
    return count - len(engine_of("default").insert_ended(jobs))


def failed(job_ids: Sequence[uuid.UUID]) -> int:
    engine_of("default").ensure_jobs(called(job_ids))
    return 0


def called(job_ids: Sequence[uuid.UUID]) -> JobColumns:
    count = len(job_ids)
    return JobColumns(
        job_ids=[one.hex for one in job_ids],
        tasks=[TASK] * count,
        queues=[QUEUE] * count,
        priorities=[0] * count,
        packages=[b"x"] * count,
        enqueued_at=[1.0] * count,
    )


@pytest.mark.parametrize("record", [succeeded, failed])
def test_two_recorders_of_the_same_jobs_do_not_deadlock(
    record: Callable[[Sequence[uuid.UUID]], int],
) -> None:
    job_ids = [uuid.uuid4() for _ in range(COUNT)]
    barrier = threading.Barrier(2)
    added: list[int] = []
    errors: list[Any] = []

    def run(mine: Sequence[uuid.UUID]) -> None:
        try:
            with transaction.atomic():
                connection.ensure_connection()
                barrier.wait(120)
                added.append(record(mine))
        except Exception as error:  # noqa: BLE001 - asserted below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(mine,)) for mine in (job_ids, job_ids[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert Job.objects.count() == COUNT
    assert sum(added) in (0, COUNT)
