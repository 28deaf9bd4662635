"""A pusher reads the requests of operators, and jobs of paused queues do not start."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from stoker.brokers.contract import Delivery
from stoker.brokers.memory import MemoryBroker
from stoker.cluster.plan import Plan
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.requests import (
    CLUSTER,
    IDLE_LOOK_SECONDS,
    LOOK_SECONDS,
    PAUSE,
    Pauses,
    Requests,
)
from stoker.cluster.pusher.roster import Recall
from stoker.exceptions import BrokerUnavailable
from stoker.models import Cluster, PausedQueue
from stoker.store.engines.sessions import Patience

from tests.unit.cluster.parts import Clock

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("clock")]

Make = Callable[..., list[Delivery]]


class Table:
    """Replaces the tables with the requests of operators."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self.request = ""
        self.looks = 0
        self.is_away = False

    def fetch(self) -> list[tuple[int, str, int, str]]:
        self.looks += 1
        if self.is_away:
            raise BrokerUnavailable("away")
        return [(CLUSTER, self.request, 0, ""), *((PAUSE, queue, 0, "") for queue in self.paused)]

    def rows_of(self, names: Sequence[str]) -> list[PausedQueue]:
        since = datetime(2030, 1, 31, tzinfo=UTC)
        return [PausedQueue(queue=one, since=since, by="ann", because="Late.") for one in names]


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def patience(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Patience:
    monkeypatch.setattr(
        "stoker.store.engines.sessions.connections", {"default": SimpleNamespace(close=int)}
    )
    # An earlier test in this process may have run a cluster on SQLite.
    monkeypatch.setattr("stoker.store.engines.sessions.files_of", {})
    return Patience(plan.settings, MemoryBroker(replace(plan.settings, broker="memory://")))


@pytest.fixture
def requests(plan: Plan, flights: Flights, recall: Recall, table: Table) -> Requests:
    requests = Requests(plan, flights, recall, lambda *_: None, lambda _: None)
    requests._asked = table  # type: ignore[assignment] # it has the method that is used
    requests.pauses._rows_of = table.rows_of  # type: ignore[method-assign]
    return requests


def test_claims_read_requests_at_most_twice_a_second(
    requests: Requests, patience: Patience, table: Table, clock: Clock
) -> None:
    for _ in range(100):
        assert requests.allow_claims(patience)
        clock.turn(LOOK_SECONDS / 10)
    assert table.looks == 10


def test_requests_are_read_less_often_without_flights_or_paused_queues(
    requests: Requests, patience: Patience, table: Table, clock: Clock
) -> None:
    for _ in range(100):
        requests.look_if_due(patience)
        clock.turn(IDLE_LOOK_SECONDS / 10)
    assert table.looks == 10


def test_claim_that_sees_pauses_is_followed_by_one_read(
    requests: Requests, patience: Patience, table: Table, clock: Clock
) -> None:
    for _ in range(100):
        requests.note_claim()
        requests.look_if_due(patience)
        clock.turn(LOOK_SECONDS / 10)
    assert table.looks == 10
    clock.turn(LOOK_SECONDS)
    requests.look_if_due(patience)
    assert table.looks == 10, "the pusher is not woken for it"


def test_no_claim_is_made_while_requests_cannot_be_read(
    requests: Requests, patience: Patience, table: Table, clock: Clock
) -> None:
    assert requests.allow_claims(patience)
    table.is_away = True
    clock.turn(LOOK_SECONDS)
    assert not requests.allow_claims(patience)
    table.is_away = False
    assert not requests.allow_claims(patience), "it is too early to ask again"
    clock.turn(LOOK_SECONDS)
    assert requests.allow_claims(patience)


def test_request_to_be_quiet_is_read_before_a_claim(
    requests: Requests, patience: Patience, table: Table, clock: Clock
) -> None:
    table.request = Cluster.Request.QUIET
    assert not requests.allow_claims(patience)
    table.request = ""
    clock.turn(LOOK_SECONDS)
    assert requests.allow_claims(patience)


def test_waiting_jobs_of_a_paused_queue_are_released(
    requests: Requests, patience: Patience, table: Table, flights: Flights, deliveries: Make
) -> None:
    mail, report = deliveries(2)
    mail = mail._replace(queue="mail")
    flights.add([mail, report], leased_at=1000.0)
    table.paused = {"mail"}
    requests.look_if_due(patience)
    assert [one.delivery for one in flights.to_release()] == [mail]
    assert [one.delivery for one in flights.waiting] == [report]


def test_end_of_a_pause_calls_on_resume(
    requests: Requests, patience: Patience, table: Table, clock: Clock
) -> None:
    told: list[str] = []
    requests.pauses.on_resume = lambda: told.append("resumed")
    table.paused = {"mail"}
    assert requests.allow_claims(patience)
    clock.turn(LOOK_SECONDS)
    requests.look_if_due(patience)
    assert requests.pauses.queues == {"mail"}
    table.paused = set()
    requests.look_if_due(patience)
    assert not told, "it has read the pauses a moment ago"
    clock.turn(LOOK_SECONDS)
    requests.look_if_due(patience)
    assert told == ["resumed"]


def test_paused_job_taken_back_from_a_worker_is_released(
    requests: Requests, patience: Patience, table: Table, flights: Flights, deliveries: Make
) -> None:
    flights.add([one._replace(queue="mail") for one in deliveries(2)], leased_at=1000.0)
    first, second = flights.send(0, 2)
    flights.take_back(second)
    table.paused = {"mail"}
    assert requests.allow_claims(patience)
    assert flights.to_release() == [second]
    assert first.is_open
    flights.take_back(first)
    assert flights.to_release() == [second, first]
    assert not flights.waiting


def test_pauses_of_served_queues_are_logged_once(
    plan: Plan,
    flights: Flights,
    recall: Recall,
    patience: Patience,
    table: Table,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "stoker")
    pauses = Pauses(replace(plan, queues=("mail",)), flights, recall)
    pauses._rows_of = table.rows_of  # type: ignore[method-assign]
    for paused in (["mail", "other"], ["mail", "other"], ["other"]):
        pauses.carry_out(paused, patience)
    assert caplog.messages == [
        "The queue mail is paused since 2030-01-31 00:00:00+00:00 by ann: Late.",
        "The queue mail is resumed.",
    ]
