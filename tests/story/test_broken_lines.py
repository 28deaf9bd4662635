"""Jobs on Disque, IronMQ or MongoDB: each is recorded once, although processes are killed and
connections to the server break."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import transaction

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.models import Job, Outgoing, Relayed

from tests.app.tasks import write_ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.servers.disque import disque_nodes
from tests.servers.ironmq import PrivateIronmq, url_at
from tests.servers.mongodb import PrivateMongodb
from tests.story.ledgers import (
    assert_all_recorded_once,
    assert_doctor_finds_no_fault,
    assert_no_overlap,
    unfinished,
)
from tests.story.redis_server import BrokenLine, broker_at

JOBS = int(os.environ.get("STOKER_TEST_LINES_JOBS", "128"))
TRIES = {"max_attempts": 100, "max_crashes": 100}
OPTIONS: dict[str, Any] = {"DATABASE_SECONDS": 1, "LEASE_SECONDS": 6}

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.django_db(transaction=True),
]


class Server:
    """The broker's server: proxies to it, and faults of its own."""

    def __init__(self, lines: list[BrokenLine]) -> None:
        self.lines = lines

    def lose_a_part(self) -> None:
        """Cause a fault that the server is built to survive."""

    def go_on(self) -> None:
        """Called while the story waits for the remaining jobs."""


class DisqueServer(Server):
    """Three nodes, one of which is killed."""

    def __init__(self, lines: list[BrokenLine], nodes: list[Any]) -> None:
        super().__init__(lines)
        self._nodes = nodes

    def lose_a_part(self) -> None:
        """Kill one node."""
        self._nodes[0].kill()


class IronmqServer(Server):
    """One server with reservations of at least half a minute."""

    def __init__(self, lines: list[BrokenLine], port: int) -> None:
        super().__init__(lines)
        self._port = port

    def lose_a_part(self) -> None:
        """Answer that the server is too busy for a while."""
        self._tell("busy", times=20)

    def go_on(self) -> None:
        """Advance the server's clock."""
        self._tell("advance", seconds=5)

    def _tell(self, verb: str, **what: Any) -> None:
        httpx.post(f"http://127.0.0.1:{self._port}/standin/{verb}", json=what)


@contextmanager
def on_disque() -> Iterator[Server]:
    with disque_nodes(3) as nodes, ExitStack() as stack:
        lines = [BrokenLine(node.port) for node in nodes]
        for line in lines:
            stack.callback(line.close)
        hosts = ",".join(f"127.0.0.1:{line.port}" for line in lines)
        with broker_at(f"disque://{hosts}", "STOKER_TEST_DISQUE_URL"):
            yield DisqueServer(lines, nodes)


@contextmanager
def on_ironmq() -> Iterator[Server]:
    with PrivateIronmq() as server, ExitStack() as stack:
        line = BrokenLine(server.port)
        stack.callback(line.close)
        with broker_at(url_at(line.port), "STOKER_TEST_IRONMQ_URL"):
            yield IronmqServer([line], server.port)


@contextmanager
def on_mongodb() -> Iterator[Server]:
    with PrivateMongodb() as server, ExitStack() as stack:
        line = BrokenLine(server.port)
        stack.callback(line.close)
        url = f"mongodb://127.0.0.1:{line.port}/stoker_test?directConnection=true"
        with broker_at(url, "STOKER_TEST_MONGODB_URL"):
            yield Server([line])


@pytest.fixture(
    params=[
        pytest.param(on_mongodb, marks=pytest.mark.on_mongodb),
        pytest.param(on_disque, marks=pytest.mark.on_disque),
        pytest.param(on_ironmq, marks=pytest.mark.on_ironmq),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as made:
        yield made


def test_every_job_is_recorded_once_despite_kills_and_cut_connections(
    server: Server, seed: int, tmp_path: Path
) -> None:
    """Workers, pusher and monitor are killed; connections are cut, stall and lose replies."""
    chance = random.Random(seed)
    job_ids: list[str] = []
    with running_cluster(tmp_path, **OPTIONS) as cluster:
        cluster.wait_for_crew()
        ways = [
            lambda: cluster.kill("worker", chance.randrange(2)),
            lambda: cluster.kill("pusher"),
            lambda: cluster.kill("monitor"),
            lambda: [line.cut() for line in server.lines],
            lambda: chance.choice(server.lines).hold(),
            lambda: chance.choice(server.lines).lose_replies(3),
            lambda: [line.lose_replies() for line in server.lines],
            server.lose_a_part,
        ]
        for way in chance.sample(ways, len(ways)):
            with transaction.atomic():
                job_ids += _enqueue(chance, JOBS // 16)
            with suppress(BrokerUnavailable):
                job_ids += _enqueue(chance, JOBS // 16)
            way()
            time.sleep(chance.uniform(0.1, 1.5))
            for line in server.lines:
                line.release()
        wait_for(
            lambda: _is_over(server, job_ids),
            lambda: _how_it_stands(cluster, job_ids),
            240 + JOBS / 10,
        )
        assert cluster.stop() == 0
        assert not cluster.complaints()
    assert_all_recorded_once(job_ids)
    assert_no_overlap()
    assert_doctor_finds_no_fault()


def _enqueue(chance: random.Random, count: int) -> list[str]:
    calls = [((), {"seconds": chance.random() ** 4 * 0.05}) for _ in range(count)]
    return [result.id for result in write_ledger.using(**TRIES).enqueue_many(calls)]


def _how_it_stands(cluster: ProcessCluster, job_ids: list[str]) -> str:
    ended = Job.objects.filter(pk__in=job_ids).exclude(status=None).count()
    there = f"in the outbox: {Outgoing.objects.count()}, noted: {Relayed.objects.count()}"
    here = f"in all: {broker_for(settings_for()).sizes()}"
    return f"{ended} of {len(job_ids)} ended; {there}; {here}\n{cluster.tail()}"


def _is_over(server: Server, job_ids: list[str]) -> bool:
    """Return whether all jobs are recorded and none is left."""
    server.go_on()
    ended = Job.objects.filter(pk__in=job_ids).exclude(status=None).count()
    with suppress(BrokerUnavailable):
        if ended == len(job_ids) and not unfinished():  # the server may not count all of them
            return True
    time.sleep(0.2)
    return False
