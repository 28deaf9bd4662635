"""A pusher carries the requests in its cluster's row to the sentinel."""

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cluster.plan import Plan
from stoker.cluster.pusher.requests import REQUESTS_SECONDS, Requests

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit

PATIENCE: Any = SimpleNamespace(call=lambda fetch: SimpleNamespace(value=fetch()))


class Sentinel:
    """Records what a pusher says, while the cluster's row has these values."""

    def __init__(self, workers: int | None = None, recycle: str = "") -> None:
        self.row = ("", workers, recycle)
        self.heard: list[tuple[Any, ...]] = []

    def fetch(self) -> list[tuple[Any, ...]]:
        return [self.row]

    def hear(self, *message: Any) -> None:
        self.heard.append(message)

    def start_pusher(self, plan: Plan) -> Requests:
        requests = Requests(plan, self.hear, lambda: None)
        requests._asked = self  # type: ignore[assignment] # it has the method that is used
        return requests


def test_requests_are_sent_when_they_change(plan: Plan, clock: Clock) -> None:
    sentinel = Sentinel(workers=3)
    requests = sentinel.start_pusher(plan)
    for row in (("", 3, ""), ("", 3, "0.1"), ("", None, "0.1 1.2"), ("", None, "")):
        sentinel.row = row
        requests.look_if_due(PATIENCE)
        clock.turn(REQUESTS_SECONDS)
    expected = [("resize", 3), ("replace", 0, 1), ("resize", None), ("replace", 1, 2)]
    assert sentinel.heard == expected


def test_new_pusher_resets_a_number_of_workers_that_is_no_longer_requested(
    plan: Plan, clock: Clock
) -> None:
    """The sentinel may still have the number that the dead pusher sent."""
    sentinel = Sentinel(workers=None)
    requests = sentinel.start_pusher(plan)
    requests.look_if_due(PATIENCE)
    clock.turn(REQUESTS_SECONDS)
    requests.look_if_due(PATIENCE)
    assert sentinel.heard == [("resize", None)]
