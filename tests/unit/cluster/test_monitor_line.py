"""The pusher's connection to the monitor."""

import selectors
from collections.abc import Callable, Iterator

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster.channel import Stream, socket_pair
from stoker.cluster.pusher.flights import Flights
from stoker.cluster.pusher.pusher import MonitorLine
from stoker.cluster.pusher.roster import Roster

from tests.unit.cluster.parts import make_report

pytestmark = pytest.mark.unit


@pytest.fixture
def streams() -> Iterator[list[Stream]]:
    """Return the ends of two connections, one after the other."""
    opened = [Stream(end) for _ in range(2) for end in socket_pair()]
    yield opened
    for one in opened:
        one.close()


def test_reports_are_the_last_when_no_job_waits_or_is_at_a_worker(
    flights: Flights,
    roster: Roster,
    deliveries: Callable[..., list[Delivery]],
    streams: list[Stream],
) -> None:
    pushers_end, monitors_end, workers_line, _ = streams
    roster.welcome(0, 1, workers_line)
    flights.add(deliveries(3), 1.0)
    with selectors.DefaultSelector() as selector:
        line = MonitorLine(selector, roster, 30.0)
        line.meet(pushers_end, ())
        flights.send(0, 2)
        line.pass_on(flights.report_all(0, [make_report(1), make_report(2)]))  # the third waits
        flights.send(0, 1)
        line.pass_on(flights.report_all(0, [make_report(3)]))
        flights.add(deliveries(2), 1.0)
        flights.send(0, 2)
        line.pass_on(flights.report_all(0, [make_report(4)]))  # the fifth is at the worker
    words = [word for word, _ in monitors_end.receive(block=False)]
    assert words == ["reports", "last_reports", "reports"]
