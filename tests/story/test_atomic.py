"""Exactly once: sums are right although workers are killed and leases end."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from django.db.models import Sum

from stoker import Task
from stoker.models import Attempt, Claimed, DeadLetter, Job

from tests.app.atomic import add_and_sign, add_and_sign_without
from tests.app.models import Account, Ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.story.ledgers import unfinished

JOBS = int(os.environ.get("STOKER_TEST_ATOMIC_JOBS", "300"))
ACCOUNTS = 20
CLUSTERS = 2
AT_LEAST = 1
"""The least number of kills and of expired leases in a story."""

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]


@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.sqlite), 4])
def test_every_atomic_job_takes_effect_once_despite_kills(
    concurrency: int, seed: int, tmp_path: Path
) -> None:
    """Workers are killed and leases end at random moments; two clusters take over the jobs."""
    job_ids = _run(add_and_sign, concurrency, seed, tmp_path)
    assert _total() == len(job_ids)
    _assert_recorded_by_who_signed(job_ids)


@pytest.mark.postgres
def test_jobs_without_atomic_are_recorded_once_but_may_take_effect_twice(
    seed: int, tmp_path: Path
) -> None:
    """For contrast: usually some effects happen twice, but none is missing."""
    job_ids = _run(add_and_sign_without, 1, seed, tmp_path)
    recorded = Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL").count()
    print(f"{recorded} jobs are recorded, and the total is {_total()}")
    assert recorded == len(job_ids) <= _total()


def _total() -> int:
    return int(Account.objects.aggregate(total=Sum("total"))["total"])


def _run(one: Task[..., int], concurrency: int, seed: int, folder: Path) -> list[str]:
    """Run jobs under disturbance until there was enough of it. Return their ids."""
    chance = random.Random(seed)
    accounts = [Account.objects.create() for _ in range(ACCOUNTS)]  # MySQL tells no ids of many
    job_ids: list[str] = []
    killed = expired = 0
    with _clusters(folder, concurrency) as clusters:
        while min(killed, expired) < AT_LEAST:
            calls = [((chance.choice(accounts).pk, *_pauses(chance)), {}) for _ in range(JOBS)]
            job_ids += [result.id for result in one.enqueue_many(calls)]
            more_killed, more_expired = _disturb(chance, clusters)
            killed, expired = killed + more_killed, expired + more_expired
        for cluster in clusters:
            assert cluster.stop() == 0
    began = len(job_ids) + Attempt.objects.count()
    print(f"{killed} workers killed, {expired} leases ended; {began} attempts and more")
    return job_ids


def _pauses(chance: random.Random) -> tuple[float, float]:
    return chance.random() ** 4 * 0.2, chance.random() ** 4 * 0.02


@contextmanager
def _clusters(folder: Path, concurrency: int) -> Iterator[list[ProcessCluster]]:
    with ExitStack() as stack:
        options = {"CONCURRENCY": concurrency, "LEASE_SECONDS": 3, "UPKEEP_SECONDS": 0.2}
        started = [stack.enter_context(running_cluster(folder, **options)) for _ in range(CLUSTERS)]
        for cluster in started:
            cluster.wait_for_crew()
        yield started


def _disturb(chance: random.Random, clusters: list[ProcessCluster]) -> tuple[int, int]:
    """Disturb until all jobs are done. Return the numbers of killed workers and ended leases."""
    killed = expired = 0

    def disturb() -> bool:
        nonlocal killed, expired
        time.sleep(chance.uniform(0.0, 0.1))
        if chance.random() < 0.2:
            killed += chance.choice(clusters).kill("worker", chance.randrange(2)) is not None
        held = list(Claimed.objects.values_list("pk", flat=True))
        some = [job_id for job_id in held if chance.random() < 0.1]
        for job_id in some:  # a cluster might lock two rows in another order
            expired += Claimed.objects.filter(pk=job_id).update(leased_until_us=1)
        return not unfinished()

    wait_for(disturb, lambda: f"{unfinished()} left\n{clusters[0].tail()}", 240)
    return killed, expired


def _assert_recorded_by_who_signed(job_ids: list[str]) -> None:
    """Assert that the attempt recorded as successful is the one that took effect."""
    assert not DeadLetter.objects.exists()
    recorded = {str(job.pk): (job.status, job.attempts, job.worker_id) for job in Job.objects.all()}
    signed = {
        line.job_id: ("SUCCESSFUL", line.attempt, line.worker) for line in Ledger.objects.all()
    }
    assert Ledger.objects.count() == len(job_ids)
    assert recorded == signed
    assert set(recorded) == set(job_ids)
    failed = {(str(one.job_id), one.number) for one in Attempt.objects.all()}
    assert failed.isdisjoint((job_id, number) for job_id, (_, number, _) in recorded.items())
