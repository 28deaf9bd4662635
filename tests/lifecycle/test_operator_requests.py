"""A pusher reads the requests of operators, and tells the sentinel."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.requests import MOST_CANCELLATIONS, Requests
from stoker.cluster.pusher.roster import Recall, Roster
from stoker.conf import settings_for
from stoker.models import Cancellation, Cluster, PausedQueue
from stoker.store.engines.sessions import Patience
from stoker.store.written import DatabaseNow

from tests.app import tasks

pytestmark = pytest.mark.django_db(transaction=True)

REASON = "wrong customer, sorry ☃"


class Pusher:
    """The parts of a pusher that read and carry out requests."""

    def __init__(self, board: Board) -> None:
        settings = settings_for()
        self.plan = Plan(overrides=(("workers", 1), ("concurrency", 1)))
        self.broker, self.flights = broker_for(settings), Flights(last_number=0)
        self.patience = Patience(settings, self.broker)
        self.said: list[tuple[Any, ...]] = []
        recall = Recall(Roster(self.plan, self.flights, board), self.flights, board)
        self.requests = Requests(
            self.plan, self.flights, recall, lambda *one: self.said.append(one), print
        )


@pytest.fixture
def pusher(tmp_path: Path) -> Iterator[Pusher]:
    board = Board.create(tmp_path / "cluster.board", 1, 1)
    yield Pusher(board)
    board.close()


def test_running_job_is_cancelled_although_there_are_many_requests(pusher: Pusher) -> None:
    tasks.nothing.enqueue()
    claims = pusher.broker.claim(ClaimRequest(1, pusher.plan.cluster_id, 60))
    pusher.flights.add(claims, leased_at=0.0)
    (flight,) = pusher.flights.send(0, 1)
    first = [UUID(int=number) for number in range(MOST_CANCELLATIONS)]
    Cancellation.objects.ask_all([*first, uuid4()], "")
    Cancellation.objects.ask(flight.delivery.job_id, REASON)
    assert pusher.requests.allow_claims(pusher.patience)
    assert pusher.said == [("cancel", 0, flight.number, REASON)]
    assert len(pusher.requests._asked.fetch()) == MOST_CANCELLATIONS


def test_one_read_finds_all_requests(pusher: Pusher) -> None:
    """On MariaDB the tables have another collation than the connection."""
    settings, plan, broker, flights = settings_for(), pusher.plan, pusher.broker, pusher.flights
    requests, patience, said = pusher.requests, pusher.patience, pusher.said
    assert requests.allow_claims(patience)
    assert not said, "the cluster has no row yet"

    tasks.nothing.enqueue()
    flights.add(broker.claim(ClaimRequest(1, plan.cluster_id, 60)), leased_at=0.0)
    (flight,) = flights.send(0, 1)
    Cancellation.objects.ask(flight.delivery.job_id, REASON)
    Cluster.objects.create(
        id=plan.cluster_id, name=settings.cluster, host="here", pid=1, started_at=timezone.now(),
        heartbeat_us=DatabaseNow(), request=Cluster.Request.QUIET, workers=3, recycle="0.1",
    )  # fmt: skip
    PausedQueue.objects.pause("mäil", "", "")
    requests._look_at = 0.0
    assert not requests.allow_claims(patience)

    assert said == [("resize", 3), ("replace", 0, 1), ("cancel", 0, flight.number, REASON)]
    assert all(type(value) in (str, int) for message in said for value in message)
    assert requests.pauses.queues == {"mäil"}
