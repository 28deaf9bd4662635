"""No more jobs run at once than guards allow, although workers are killed and paused."""

import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from stoker.models import Blocked, DeadLetter, Job, Need

from tests.app.guarded import run_alone, run_in_fives, run_in_pairs
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.story.ledgers import assert_doctor_finds_no_fault, unfinished

JOBS = int(os.environ.get("STOKER_TEST_OVERLAP_JOBS", "1200"))
LEASE_SECONDS = 3.0
TRIES = {"max_attempts": 1000, "max_crashes": 1000}
TASKS = {"alone": (run_alone, 1, 30), "pair": (run_in_pairs, 2, 10), "five": (run_in_fives, 5, 10)}
"""Kind of key -> its task, its places, and the number of such keys."""
BLOWS = (
    ("kill", "worker"),
    ("kill", "pusher"),
    ("kill", "monitor"),
    ("pause", "worker"),
    ("pause", "worker", "pusher"),
)

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]


class Beat(NamedTuple):
    """A time at which an attempt reported that it runs."""

    key: str
    fence: int
    job_id: str
    attempt: int
    pid: int
    began_ns: int
    now_ns: int


def test_no_more_jobs_run_at_once_than_guards_allow(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = tmp_path / "beats"
    job_ids = _enqueue(chance, path)
    with (
        running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS, WORKERS=4) as first,
        running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS, WORKERS=4) as second,
    ):
        _strike(chance, (first, second))
        wait_for(
            lambda: not unfinished(),
            lambda: f"{unfinished()}\n{first.tail()}\n{second.tail()}",
            300,
        )
        assert first.stop() == 0
        assert second.stop() == 0
        assert first.complaints() + second.complaints() == []
    beats = _read(path)
    _assert_all_ran(job_ids, beats)
    _assert_none_too_many(beats)
    _assert_fences_rise(beats)
    assert not Need.objects.exists()
    assert not Blocked.objects.exists()
    assert_doctor_finds_no_fault()


def _enqueue(chance: random.Random, path: Path) -> list[str]:
    """Enqueue jobs of all three kinds in mixed order, most of them short. Those with a lock are so
    short that a cluster leases several together."""
    keys = [f"{kind}-{number}" for kind, (_, _, count) in TASKS.items() for number in range(count)]
    job_ids: list[str] = []
    for _ in range(20):
        calls = defaultdict(list)
        for _ in range(JOBS // 20):
            key = chance.choice(keys)
            kind = key.partition("-")[0]
            seconds = chance.random() ** (40 if kind == "alone" else 6) * 0.2
            calls[kind].append(((str(path), key, seconds), {}))
        for kind, those in calls.items():
            results = TASKS[kind][0].using(**TRIES).enqueue_many(those)
            job_ids += [result.id for result in results]
    return job_ids


def _strike(chance: random.Random, clusters: tuple[ProcessCluster, ...]) -> None:
    """Kill and pause processes in random order while jobs are left."""
    for cluster in clusters:
        cluster.wait_for_crew(workers=4)
    for what, *roles in chance.sample(BLOWS, len(BLOWS)):
        time.sleep(chance.uniform(0.1, 0.8))
        if not unfinished():
            return
        cluster = chance.choice(clusters)
        if what == "kill":
            cluster.kill(roles[0], chance.randrange(4))
        else:
            _pause(cluster, roles)
        assert_doctor_finds_no_fault()


def _pause(cluster: ProcessCluster, roles: list[str]) -> None:
    still = [cluster.pause(role) for role in roles]
    time.sleep(1.4 * LEASE_SECONDS)
    for process in still:
        try:
            process.resume()
        except psutil.NoSuchProcess:  # the sentinel has killed it
            continue


def _read(path: Path) -> list[Beat]:
    beats = []
    for line in path.read_text().splitlines():
        key, fence, job_id, attempt, pid, began_ns, now_ns = line.split()
        beats.append(
            Beat(key, int(fence), job_id, int(attempt), int(pid), int(began_ns), int(now_ns))
        )
    return beats


def _assert_all_ran(job_ids: list[str], beats: list[Beat]) -> None:
    jobs = {str(job.pk): job for job in Job.objects.filter(status="SUCCESSFUL")}
    assert set(jobs) >= set(job_ids)
    assert not DeadLetter.objects.exists()
    seen = {(beat.job_id, beat.attempt) for beat in beats}
    assert {(job_id, jobs[job_id].attempts) for job_id in job_ids} <= seen


def _assert_none_too_many(beats: list[Beat]) -> None:
    """Check the times that the attempts reported, on this machine's monotonic clock."""
    spans: dict[str, dict[tuple[str, int, int], list[int]]] = defaultdict(dict)
    for beat in beats:
        span = spans[beat.key].setdefault((beat.job_id, beat.attempt, beat.pid), [beat.began_ns, 0])
        span[1] = max(span[1], beat.now_ns)
    for key, executions in spans.items():
        allowed = TASKS[key.partition("-")[0]][1]
        edges = sorted(
            edge for began, ended in executions.values() for edge in ((began, 1), (ended, -1))
        )
        running = 0
        for _, step in edges:
            running += step
            assert running <= allowed, f"{running} at once under {key}"


def _assert_fences_rise(beats: list[Beat]) -> None:
    """Assert that a resource that rejects lower fences would accept each holder of the lock."""
    highest: dict[str, int] = defaultdict(int)
    for beat in sorted(beats, key=lambda beat: beat.now_ns):
        if beat.key.startswith("alone"):
            assert beat.fence >= highest[beat.key], f"a stale write by {beat}"
            highest[beat.key] = beat.fence
    assert all(highest.values())
