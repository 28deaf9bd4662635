"""Redis goes away, is started again, forgets its scripts, is replaced by its replica; lines to it
break: nothing is lost, and nothing is recorded twice."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from stoker.exceptions import BrokerUnavailable
from stoker.models import Job, Outgoing

from tests.app.tasks import write_ledger
from tests.cluster.clusters import running_cluster, wait_for
from tests.servers.redis import PrivateRedis
from tests.story.ledgers import (
    assert_all_recorded_once,
    assert_doctor_is_content,
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
    pytest.mark.timeout(600),
    pytest.mark.django_db(transaction=True),
]

__all__ = ["durable_redis"]


def is_over() -> bool:
    """Nothing waits or runs. While the server is away, nobody can say so."""
    try:
        return not unfinished()
    except BrokerUnavailable:
        return False


def test_every_job_is_recorded_once_though_the_server_crashes(
    durable_redis: PrivateRedis, seed: int, tmp_path: Path
) -> None:
    """It is killed and started again, and is made to forget its scripts in between."""
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


def test_what_was_committed_while_the_server_was_away_runs_afterwards(
    durable_redis: PrivateRedis, tmp_path: Path
) -> None:
    """The web goes on. Outside of a transaction it is told at once that the queue is away."""
    job_ids: list[str] = []
    with broker_at(durable_redis.url), running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        job_ids.append(write_ledger.enqueue().id)
        durable_redis.stop("immediate")
        until = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < until:
            with transaction.atomic():
                job_ids += [write_ledger.enqueue().id for _ in range(5)]
            with pytest.raises(BrokerUnavailable, match="did not carry this out"):
                write_ledger.enqueue()
            time.sleep(0.05)
        assert Outgoing.objects.count() >= len(job_ids) - 1
        durable_redis.start()
        wait_for(is_over, cluster.tail, 240)
        assert cluster.stop() == 0
        _assert_well(job_ids)
        assert Job.objects.count() == len(job_ids)


def test_every_job_runs_though_a_replica_takes_over(
    durable_redis: PrivateRedis, seed: int, tmp_path: Path
) -> None:
    """Redis answers before its replicas have what it answered for: so the enqueues wait for them
    here. What the master had not passed on of leases and acks is done again."""
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


def test_every_job_is_recorded_once_whatever_becomes_of_the_line(
    durable_redis: PrivateRedis, line: BrokenLine, seed: int, tmp_path: Path
) -> None:
    """It is cut, it goes deaf, and answers are lost of what the server has done: of claims, acks,
    relays and enqueues alike."""
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
    assert_doctor_is_content()
