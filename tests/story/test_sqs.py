"""The queue on SQS: processes are killed, and the connection breaks, stalls and loses replies. No
job is lost or recorded twice."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import transaction
from django.test import override_settings

from stoker.exceptions import BrokerUnavailable

from tests.app.tasks import write_ledger
from tests.cluster.clusters import running_cluster, wait_for
from tests.servers.private import NotInstalledError, ServerUnavailableError
from tests.servers.sqs import PrivateSqs, sqs_url
from tests.settings.base import RUN
from tests.story.ledgers import (
    assert_all_recorded_once,
    assert_doctor_finds_no_fault,
    assert_no_overlap,
    unfinished,
)
from tests.story.redis_server import BrokenLine

JOBS = int(os.environ.get("STOKER_TEST_SQS_JOBS", "80"))
ROUNDS = max(2, JOBS // 250)
TRIES = {"max_attempts": 100, "max_crashes": 100}
VICTIMS = ("worker", "pusher", "monitor")

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.on_sqs,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def line() -> Iterator[BrokenLine]:
    """Yield a proxy to a private moto server."""
    try:
        with PrivateSqs() as server:
            made = BrokenLine(server.port)
            yield made
            made.close()
    except (NotInstalledError, ServerUnavailableError) as missing:
        pytest.skip(f"private sqs: {missing}")


def test_every_job_is_recorded_once_despite_kills_and_cut_connections(
    line: BrokenLine, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {"DATABASE_SECONDS": 6, "LEASE_SECONDS": 6}
    job_ids: list[str] = []
    with _queue_on(line), running_cluster(tmp_path, **options) as cluster:
        cluster.wait_for_crew()
        ways = [line.cut, line.hold, line.lose_replies, *VICTIMS] * ROUNDS
        for way in chance.sample(ways, len(ways)):
            with transaction.atomic():
                job_ids += _enqueue(chance, JOBS // (2 * len(ways)) + 1)
            with suppress(BrokerUnavailable):
                job_ids += _enqueue(chance, JOBS // (2 * len(ways)) + 1)
            if isinstance(way, str):
                cluster.kill(way, chance.randrange(2))
            else:
                way()
            time.sleep(chance.uniform(0.1, 1.5))
            line.release()
        wait_for(lambda: not _left(), lambda: f"{_left()} left\n{cluster.tail()}", 240)
        assert cluster.stop() == 0
        assert line.lost_replies > 0
        assert_all_recorded_once(job_ids)
        assert_no_overlap()
        assert_doctor_finds_no_fault()


def _enqueue(chance: random.Random, count: int) -> list[str]:
    calls = [((), {"seconds": chance.random() ** 4 * 0.05}) for _ in range(count)]
    return [result.id for result in write_ledger.using(**TRIES).enqueue_many(calls)]


def _left() -> dict[str, int]:
    """Return how many jobs wait or run, by state; while the connection is down, one."""
    try:
        return unfinished()
    except BrokerUnavailable:
        return {"behind a broken connection": 1}


@contextmanager
def _queue_on(line: BrokenLine) -> Iterator[None]:
    """Use the queue behind this proxy in this process and those that it starts."""
    url = sqs_url(urlsplit(line.url).port or 0)
    (tasks,) = settings.TASKS.values()
    options = {**tasks["OPTIONS"], "BROKER": url.replace("/test?", f"/test-{RUN}?")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "STOKER_TEST_SQS_URL", url)
        with override_settings(TASKS={"default": {**tasks, "OPTIONS": options}}):
            yield
