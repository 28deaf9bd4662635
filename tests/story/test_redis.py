"""Redis crashes, restarts, loses its scripts or is replaced by its replica, and connections to it
break: no job is lost or recorded twice."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from redis import Redis

from stoker import Lock
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.models import Cluster, Deferred, Job, Outgoing, Ready
from stoker.store.written import MICROSECONDS, database_now_us

from tests.app.models import Ledger
from tests.app.tasks import write_ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.servers.redis import PrivateRedis
from tests.story.ledgers import (
    assert_all_recorded_once,
    assert_doctor_finds_no_fault,
    assert_no_overlap,
    unfinished,
)
from tests.story.redis_server import BrokenLine, broker_at, durable_redis

JOBS = int(os.environ.get("STOKER_TEST_REDIS_JOBS", "400"))
AWAY_SECONDS = float(os.environ.get("STOKER_TEST_REDIS_AWAY_SECONDS", "3"))
TRIES = {"max_attempts": 100, "max_crashes": 100}

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.on_redis,
    pytest.mark.django_db(transaction=True),
]

__all__ = ["durable_redis"]


def is_over() -> bool:
    """Return whether no job waits or runs; False while Redis is down."""
    try:
        return not unfinished()
    except BrokerUnavailable:
        return False


def test_every_job_is_recorded_once_though_the_server_crashes(
    durable_redis: PrivateRedis, seed: int, tmp_path: Path
) -> None:
    """It is killed and started again, and loses its scripts in between."""
    chance = random.Random(seed)
    with broker_at(durable_redis.url):
        job_ids = _enqueue(chance, JOBS)
        with running_cluster(tmp_path) as cluster:
            cluster.wait_for_crew()
            for _ in range(3):
                time.sleep(chance.uniform(0.1, 0.5))
                with Redis(port=durable_redis.port) as client:
                    client.script_flush()
                time.sleep(chance.uniform(0.1, 0.5))
                durable_redis.stop("immediate")
                time.sleep(chance.uniform(0.0, 1.0))
                durable_redis.start()
            wait_for(is_over, cluster.tail, 240)
            assert cluster.stop() == 0
            assert not cluster.complaints()
        _assert_well(job_ids)


def test_jobs_committed_while_redis_is_down_run_afterwards(
    durable_redis: PrivateRedis, tmp_path: Path
) -> None:
    """Enqueues in transactions succeed; those outside a transaction fail at once."""
    job_ids: list[str] = []
    with broker_at(durable_redis.url), running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        job_ids.append(write_ledger.enqueue().id)
        durable_redis.stop("immediate")
        until = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < until:
            with transaction.atomic():
                job_ids += [write_ledger.enqueue().id for _ in range(5)]
            with pytest.raises(BrokerUnavailable, match="cannot be reached"):
                write_ledger.enqueue()
            time.sleep(0.05)
        assert Outgoing.objects.count() >= len(job_ids) - 1
        durable_redis.start()
        wait_for(is_over, cluster.tail, 240)
        assert cluster.stop() == 0
        _assert_well(job_ids)
        assert Job.objects.count() == len(job_ids)


@pytest.mark.quick
def test_jobs_that_waited_in_the_database_run_after_a_move_to_redis(
    durable_redis: PrivateRedis, tmp_path: Path
) -> None:
    """The option BROKER is changed while jobs wait; the next cluster has no other backend."""
    with broker_at("orm://default"):
        job_ids = [write_ledger.enqueue().id for _ in range(3)]
        job_ids.append(write_ledger.using(run_after=1).enqueue().id)
        job_ids.append(write_ledger.using(lock=Lock("moved")).enqueue().id)
        assert Ready.objects.count() + Deferred.objects.count() == len(job_ids)
    with broker_at(durable_redis.url), running_cluster(tmp_path) as cluster:
        job_ids += [write_ledger.enqueue().id for _ in range(3)]
        wait_for(is_over, cluster.tail, 240)
        assert cluster.stop() == 0
        _assert_well(job_ids)


def test_jobs_of_the_store_and_heartbeats_go_on_while_redis_is_down(
    durable_redis: PrivateRedis, tmp_path: Path
) -> None:
    """Redis is away for longer than a lease. Only the job that it has leased is stopped, and this
    does not count as an attempt."""
    with (
        broker_at(durable_redis.url),
        running_cluster(
            tmp_path, LEASE_SECONDS=6, HEARTBEAT_SECONDS=1, UPKEEP_SECONDS=0.2
        ) as cluster,
    ):
        cluster.wait_for_crew()
        of_redis = write_ledger.using(max_attempts=1).enqueue(8.0)
        of_store = write_ledger.using(lock=Lock("one")).enqueue(16.0)
        wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
        durable_redis.stop("immediate")
        lost_us = database_now_us("default")
        wait_for(lambda: f"{of_redis.id}" in cluster.text(), cluster.tail)
        job = Job.objects.filter(pk=of_store.id, status="SUCCESSFUL", attempts=1)
        wait_for(job.exists, cluster.tail)
        beats = Cluster.objects.filter(heartbeat_us__gt=lost_us + 6 * MICROSECONDS)
        wait_for(beats.exists, cluster.tail)
        durable_redis.start()
        wait_for(is_over, cluster.tail)
        assert cluster.stop() == 0
    ended = Job.objects.get(pk=of_redis.id)
    assert (ended.status, ended.attempts) == ("SUCCESSFUL", 1)
    assert Ledger.objects.filter(job_id=of_redis.id).count() == 2


def test_jobs_that_wait_in_the_store_are_claimed_while_redis_is_down(
    durable_redis: PrivateRedis, tmp_path: Path
) -> None:
    """For a job in its last attempt, the cluster first notes in the store that it is handed out."""
    with broker_at(durable_redis.url), running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        durable_redis.stop("immediate")
        wait_for(lambda: "Trying again" in cluster.text(), cluster.tail)
        time.sleep(AWAY_SECONDS)  # so that the pauses between the calls to Redis are long
        job_ids = [
            write_ledger.using(lock=Lock(str(number)), max_attempts=1 + number % 2).enqueue().id
            for number in range(20)
        ]
        ended = Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL")
        wait_for(lambda: ended.count() == len(job_ids), cluster.tail, 10)
        durable_redis.start()
        wait_for(is_over, cluster.tail)
        assert cluster.stop() == 0
        _assert_well(job_ids)


def test_outcomes_of_the_store_are_recorded_while_redis_cannot_record_others(
    durable_redis: PrivateRedis, tmp_path: Path
) -> None:
    """Redis goes away while a job runs whose success it records."""
    options: dict[str, Any] = {"RESULTS": "redis"}
    with (
        broker_at(durable_redis.url, **options),
        running_cluster(tmp_path, **options) as cluster,
    ):
        cluster.wait_for_crew()
        of_redis = write_ledger.using(**TRIES).enqueue(4.0, "redis")
        of_store = write_ledger.using(lock=Lock("one")).enqueue(6.0, "store")
        wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
        durable_redis.stop("immediate")
        job = Job.objects.filter(pk=of_store.id, status="SUCCESSFUL", attempts=1)
        wait_for(job.exists, cluster.tail)
        assert Ledger.objects.get(note="redis").finished_ns is not None
        durable_redis.start()
        wait_for(is_over, cluster.tail)
        assert cluster.stop() == 0
        assert of_redis.wait(5) is not None
        assert Ledger.objects.count() == 2


def test_every_job_runs_though_a_replica_takes_over(
    durable_redis: PrivateRedis, seed: int, tmp_path: Path
) -> None:
    """Redis answers before its replicas have the data, so the test waits for the replica after the
    enqueues. Claims and acks that the master had not replicated happen again."""
    chance = random.Random(seed)
    line = BrokenLine(durable_redis.port)
    with PrivateRedis(is_durable=True, replicaof=f"127.0.0.1 {durable_redis.port}") as replica:
        with broker_at(line.url), running_cluster(tmp_path) as cluster:
            cluster.wait_for_crew()
            job_ids = _enqueue(chance, JOBS)
            with Redis(port=durable_redis.port) as client:
                assert client.wait(1, 30_000) == 1
            time.sleep(chance.uniform(0.0, 0.5))
            durable_redis.stop("immediate")
            with Redis(port=replica.port) as client:
                client.replicaof("NO", "ONE")
            line.lead_to(replica.port)
            wait_for(is_over, cluster.tail, 240)
            assert cluster.stop() == 0
            recorded = Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL")
            assert recorded.count() == len(job_ids)
        line.close()


def test_every_job_is_recorded_once_over_a_broken_connection(
    durable_redis: PrivateRedis, line: BrokenLine, seed: int, tmp_path: Path
) -> None:
    """It is cut, it stalls, and replies to claims, acks, relays and enqueues are lost."""
    chance = random.Random(seed)
    job_ids: list[str] = []
    options: dict[str, Any] = {"DATABASE_SECONDS": 1, "LEASE_SECONDS": 6}
    with broker_at(line.url), running_cluster(tmp_path, **options) as cluster:
        cluster.wait_for_crew()
        ways = [line.cut, line.hold, line.lose_replies] * 3
        for way in chance.sample(ways, len(ways)):
            with transaction.atomic():
                job_ids += _enqueue(chance, JOBS // 18)
            with suppress(BrokerUnavailable):
                job_ids += _enqueue(chance, JOBS // 18)
            way()
            time.sleep(chance.uniform(0.1, 1.5))
            line.release()
        wait_for(is_over, cluster.tail, 240)
        assert cluster.stop() == 0
        assert line.lost_replies > 0
    with broker_at(durable_redis.url):
        _assert_well(job_ids)


def test_results_in_redis_are_kept_once_despite_kills_and_lost_replies(
    durable_redis: PrivateRedis, line: BrokenLine, seed: int, tmp_path: Path
) -> None:
    """Each success is either in Redis or, if its job was released before, in the store."""
    chance = random.Random(seed)
    options: dict[str, Any] = {"DATABASE_SECONDS": 1, "LEASE_SECONDS": 6, "RESULTS": "redis"}
    job_ids: list[str] = []
    with broker_at(line.url, RESULTS="redis"), running_cluster(tmp_path, **options) as cluster:
        cluster.wait_for_crew()
        roles = ["monitor", "pusher", "worker"]
        ways = [
            line.cut,
            line.lose_replies,
            *(partial(_kill_one, cluster, role, chance) for role in roles),
        ] * 2
        for way in chance.sample(ways, len(ways)):
            with suppress(BrokerUnavailable):
                job_ids += _enqueue(chance, JOBS // 10)
            way()
            time.sleep(chance.uniform(0.1, 1.0))
            line.release()
        wait_for(is_over, cluster.tail, 240)
        assert cluster.stop() == 0
        assert line.lost_replies > 0
    with broker_at(durable_redis.url, RESULTS="redis"):
        broker = broker_for(settings_for())
        in_redis = broker.results([UUID(job_id) for job_id in job_ids])
        in_store = Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL")
        assert in_redis
        assert Counter([*map(str, in_redis), *(str(job.pk) for job in in_store)]) == Counter(
            job_ids
        )
        assert_no_overlap()
        assert_doctor_finds_no_fault()


def _kill_one(cluster: ProcessCluster, role: str, chance: random.Random) -> None:
    chance.choice(cluster.crew()[role]).kill()


@pytest.fixture
def line(durable_redis: PrivateRedis) -> Iterator[BrokenLine]:
    made = BrokenLine(durable_redis.port)
    yield made
    made.close()


def _enqueue(chance: random.Random, count: int) -> list[str]:
    calls = [((), {"seconds": chance.random() ** 4 * 0.05}) for _ in range(count)]
    return [result.id for result in write_ledger.using(**TRIES).enqueue_many(calls)]


def _assert_well(job_ids: list[str]) -> None:
    assert_all_recorded_once(job_ids)
    assert_no_overlap()
    assert_doctor_finds_no_fault()
