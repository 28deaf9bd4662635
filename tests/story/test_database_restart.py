"""The database stops and starts again: no job is lost, and no attempts overlap."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import Error, connection

from stoker.models import Job

from tests.app.chaos import beat
from tests.app.tasks import write_ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.servers.postgres import PrivatePostgres
from tests.story.beats import assert_none_overlap, spans
from tests.story.ledgers import assert_all_recorded_once, assert_no_overlap, unfinished
from tests.story.servers import Line, environment_for, private_database

LEASE_SECONDS = 5.0
TRIES = {"max_attempts": 100, "max_crashes": 100}

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
]

__all__ = ["private_database"]


def is_over() -> bool:
    """Return whether no job waits or runs; False while the database is down."""
    try:
        return not unfinished()
    except Error:
        connection.close()
        return False


@pytest.mark.parametrize(
    ("jobs", "restarts"), [pytest.param(100, 1, marks=pytest.mark.quick), (600, 3)]
)
def test_every_job_is_recorded_once_though_the_database_crashes(
    private_database: PrivatePostgres, jobs: int, restarts: int, seed: int, tmp_path: Path
) -> None:
    """It crashes and starts again, and a process of the cluster is killed each time, too."""
    chance = random.Random(seed)
    calls = [((), {"seconds": chance.random() ** 4 * 0.05}) for _ in range(jobs)]
    job_ids = [result.id for result in write_ledger.using(**TRIES).enqueue_many(calls)]
    connection.close()
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        for role in chance.sample(("worker", "pusher", "monitor", "scheduler"), restarts):
            time.sleep(chance.uniform(0.2, 0.8))
            private_database.stop(mode="immediate")
            cluster.kill(role)
            time.sleep(chance.uniform(0.1, 1.0))
            private_database.start()
        wait_for(is_over, cluster.tail, 240)
        assert cluster.stop() == 0
    assert_all_recorded_once(job_ids)
    assert_no_overlap()


def test_jobs_are_stopped_before_their_lease_ends_while_the_database_is_away(
    private_database: PrivatePostgres, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    results = _enqueue(beats, 10, seconds=2.0)
    with running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS) as cluster:
        wait_for(lambda: len(spans(beats)) >= 2, cluster.tail)
        connection.close()
        private_database.stop(mode="immediate")
        away_ns = time.monotonic_ns()
        time.sleep(LEASE_SECONDS + 2)
        private_database.start()
        back_ns = time.monotonic_ns()
        assert _beats_between(beats, away_ns + LEASE_SECONDS * 1e9, back_ns) == []
        with running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS) as second:
            wait_for(is_over, lambda: f"{cluster.tail()}\n---\n{second.tail()}", 240)
    _assert_all_successful(results, beats)


def test_cut_off_cluster_stops_its_jobs_before_another_takes_over(
    private_database: PrivatePostgres, tmp_path: Path
) -> None:
    """The first cluster's connections stall: it gets neither replies nor errors. Later they are
    released, and the statements that it sent meanwhile arrive."""
    beats = tmp_path / "beats"
    results = _enqueue(beats, 4, seconds=6.0)
    line = Line(private_database.url)
    options: dict[str, Any] = {"LEASE_SECONDS": LEASE_SECONDS, "DATABASE_SECONDS": 5}
    first = ProcessCluster(tmp_path, environment=environment_for(line.url), **options)
    try:
        wait_for(lambda: len(spans(beats)) >= 2, first.tail)
        line.hold()
        held_ns = time.monotonic_ns()
        with running_cluster(tmp_path, **options) as second:
            wait_for(lambda: any(len(one) > 1 for one in spans(beats).values()), second.tail)
            line.release()
            wait_for(is_over, lambda: f"{first.tail()}\n---\n{second.tail()}", 240)
        ended = [
            executions[0].ended_ns
            for executions in spans(beats).values()
            if executions[0].began_ns < held_ns
        ]
        assert max(ended) < held_ns + LEASE_SECONDS * 1e9
        assert first.stop() == 0
    finally:
        first.process.kill()
        first.process.wait()
        line.close()
    _assert_all_successful(results, beats)


def _enqueue(beats: Path, count: int, seconds: float) -> list[Any]:
    calls = [((str(beats), seconds), {}) for _ in range(count)]
    results = beat.using(**TRIES).enqueue_many(calls)
    assert os.environ["STOKER_TEST_DATABASES"]
    return list(results)


def _beats_between(beats: Path, from_ns: float, to_ns: float) -> list[str]:
    lines = beats.read_text().splitlines()
    return [line for line in lines if from_ns < int(line.split()[4]) < to_ns]


def _assert_all_successful(results: list[Any], beats: Path) -> None:
    job_ids = [result.id for result in results]
    assert Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL").count() == len(results)
    assert_none_overlap(beats)
