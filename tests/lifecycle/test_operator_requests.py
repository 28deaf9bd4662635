"""A pusher reads the requests of operators, and tells the sentinel."""

from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.requests import Requests
from stoker.cluster.pusher.roster import Recall, Roster
from stoker.conf import settings_for
from stoker.models import Cancellation, Cluster, PausedQueue
from stoker.store.engines.sessions import Patience
from stoker.store.written import DatabaseNow

from tests.app import tasks

pytestmark = pytest.mark.django_db(transaction=True)

REASON = "wrong customer, sorry ☃"


def test_one_read_finds_all_requests(tmp_path: Path) -> None:
    """On MariaDB the tables have another collation than the connection."""
    settings = settings_for()
    plan = Plan(overrides=(("workers", 1), ("concurrency", 1)))
    broker, flights = broker_for(settings), Flights(last_number=0)
    patience = Patience(settings, broker)
    board = Board.create(tmp_path / "cluster.board", 1, 1)
    roster = Roster(plan, flights, board)
    said: list[tuple[Any, ...]] = []
    requests = Requests(
        plan, flights, Recall(roster, flights, board), lambda *one: said.append(one), print
    )
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
    board.close()
