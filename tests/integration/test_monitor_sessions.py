"""Outcomes and log lines that the monitor writes after its session has become useless."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from stoker.cluster.board import Board
from stoker.cluster.channel import Control
from stoker.cluster.monitor.monitor import Monitor
from stoker.cluster.plan import Plan
from stoker.cluster.wire import pack_for_monitor, pack_report
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Snoozed
from stoker.models import Begun, DeadLetter, Job, LogChunk

from tests.app.chaos import snooze_once
from tests.app.tasks import add
from tests.integration.test_deadlines import cluster_of_a_project, end_session
from tests.integration.work import claim

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def open_monitor(tmp_path: Path) -> Iterator[Callable[[], Monitor]]:
    board = Board.create(tmp_path / "cluster.board", 1, 1)
    ours, theirs = socket.socketpair()

    def start() -> Monitor:
        child: Any = SimpleNamespace(plan=Plan(), board=board, control=Control(ours))
        return Monitor(child)

    yield start
    ours.close()
    theirs.close()
    board.close()


def only_read() -> None:
    """Let the session refuse all writes, as after its server has become a replica."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")


@pytest.mark.parametrize(
    ("spoil", "is_pooled"), [(end_session, False), (end_session, True), (only_read, False)]
)
def test_success_is_recorded_on_a_new_connection(
    open_monitor: Callable[[], Monitor], spoil: Callable[[], None], *, is_pooled: bool
) -> None:
    add.enqueue(1, 2)
    (attempted,) = map(Executor(settings_for(), worker_id="worker").run, claim())
    with cluster_of_a_project(DISABLE_SERVER_SIDE_CURSORS=is_pooled):
        monitor = open_monitor()
        monitor.broker.ping()
        spoil()
        delivery = attempted.delivery
        monitor.pending = [(pack_report(1, attempted), pack_for_monitor(1, delivery))]
        monitor._record()
        assert monitor.aside == []
    assert Job.objects.get().status == Job.Status.SUCCESSFUL
    assert not DeadLetter.objects.exists()


def test_enqueue_on_a_server_that_only_reads_says_so() -> None:
    only_read()
    with pytest.raises(BrokerUnavailable, match="read-only transaction"):
        add.enqueue(1, 2)
    connection.close()


def test_at_most_once_job_waits_while_its_server_only_reads() -> None:
    snooze_once.enqueue()
    (delivery,) = claim()
    executor = Executor(settings_for(), worker_id="worker")
    only_read()
    refused = executor.run(delivery).outcome
    assert isinstance(refused, Snoozed)
    assert "the database was not available" in refused.reason
    assert not Begun.objects.exists()
    executor.run(delivery)
    assert Begun.objects.exists(), "it starts on a new connection"


@pytest.mark.mariadb
def test_lines_of_a_job_are_written_after_the_server_has_ended_an_idle_session(
    open_monitor: Callable[[], Monitor],
) -> None:
    """MySQL ends the session of a cluster after a minute without a statement."""
    with cluster_of_a_project():
        monitor = open_monitor()
        monitor.broker.ping()
        end_session()
        monitor.logs.add([(uuid4().bytes, 1, "said")])
        monitor.logs._due_at = monitor.patience._used_at = 0.0
        monitor._write_logs()
    assert LogChunk.objects.get().lines == "said"
