"""Never doubled: eight processes enqueue the same unique keys, roll back, and work off the jobs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from stoker import Unique
from stoker.models import Job, UniqueKey

from tests.app.tasks import echo
from tests.integration.work import work_off
from tests.story.ledgers import unfinished
from tests.story.unique_racer import WANTED

PROCESSES = 8
KEYS = 500
DEEDS = int(os.environ.get("STOKER_TEST_RACE_DEEDS", "150"))
"""The least number per process; it continues until there were duplicates and rollbacks."""
WAIT_SECONDS = 120

PAUSE_SECONDS = 0.005

ALIVE = """
    SELECT queue, count(*) FROM stoker_job WHERE status IS NULL GROUP BY queue HAVING count(*) > 1
"""
"""Each key has its own queue, which identifies its jobs."""
RUNNING = "SELECT queue, count(*) FROM stoker_claimed GROUP BY queue HAVING count(*) > 1"
WAITING = """
    SELECT queue, count(*) FROM (
        SELECT queue FROM stoker_ready WHERE attempts = 0
        UNION ALL SELECT queue FROM stoker_deferred WHERE attempts = 0
        UNION ALL SELECT queue FROM stoker_blocked WHERE attempts = 0
    ) AS waiting
    GROUP BY queue HAVING count(*) > 1
"""
"""Jobs that wait for their first attempt."""

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]


@pytest.mark.parametrize("mode", ["keep", "raise", "replace"])
def test_racing_processes_never_make_two_jobs_of_a_key(mode: str, seed: int) -> None:
    """With "replace" one job may wait behind the running one, but not run beside it."""
    seen = (WAITING, RUNNING) if mode == "replace" else (ALIVE, RUNNING)
    with racing(mode, seed) as processes:
        looks, doubled = 0, []
        while any(process.poll() is None for process in processes) and not doubled:
            doubled = [row for statement in seen for row in rows(statement)]
            looks += 1
            time.sleep(PAUSE_SECONDS)
        told = [json.loads(process.communicate(timeout=WAIT_SECONDS)[0]) for process in processes]
    assert not doubled, f"seen at look {looks}"
    faults = [fault for one in told for fault in one["faults"]]
    assert not faults, f"{sum(one['failed'] for one in told)}, the first: {faults[0]}"
    counts: dict[str, int] = {}
    for one in told:
        for name, count in one["counts"].items():
            counts[name] = counts.get(name, 0) + count
    print(f"{mode}: {looks} looks, {counts}")
    assert [row for statement in seen for row in rows(statement)] == []
    assert all(counts.get(name) for name in WANTED)
    while work_off():
        pass
    assert not unfinished()
    assert not Job.objects.filter(status=None).exists()
    again = echo.using(unique=Unique("race {value}")).enqueue_many(
        [((str(key),), {}) for key in range(KEYS)]
    )
    assert not [result for result in again if result.was_duplicate], "keys are still taken"
    assert UniqueKey.objects.count() == KEYS


def rows(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


@contextmanager
def racing(mode: str, seed: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the racing processes."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for number in range(PROCESSES):
            orders = {"keys": KEYS, "mode": mode, "seed": seed + number, "deeds": DEEDS}
            command = [sys.executable, "-m", "tests.story.unique_racer", json.dumps(orders)]
            processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()
