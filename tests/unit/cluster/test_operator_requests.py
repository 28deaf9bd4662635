"""A pusher carries the requests in its cluster's row to the sentinel."""

from typing import Any

import pytest

from stoker.cluster.pusher.requests import ClusterRequests

pytestmark = pytest.mark.unit


class Sentinel:
    """Records what a pusher says."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def hear(self, *message: Any) -> None:
        self.heard.append(message)


@pytest.fixture
def sentinel() -> Sentinel:
    return Sentinel()


@pytest.fixture
def requests(sentinel: Sentinel) -> ClusterRequests:
    return ClusterRequests(sentinel.hear, recall=lambda: None)


def test_requests_are_sent_when_they_change(requests: ClusterRequests, sentinel: Sentinel) -> None:
    for row in (("", 3, ""), ("", 3, "0.1"), ("", None, "0.1 1.2"), ("", None, "")):
        requests.carry_out([row])
    expected = [("resize", 3), ("replace", 0, 1), ("resize", None), ("replace", 1, 2)]
    assert sentinel.heard == expected


def test_new_pusher_resets_a_number_of_workers_that_is_no_longer_requested(
    requests: ClusterRequests, sentinel: Sentinel
) -> None:
    """The sentinel may still have the number that the dead pusher sent."""
    requests.carry_out([("", None, "")])
    requests.carry_out([("", None, "")])
    assert sentinel.heard == [("resize", None)]


def test_nothing_is_sent_before_the_first_heartbeat(
    requests: ClusterRequests, sentinel: Sentinel
) -> None:
    requests.carry_out([])
    assert not sentinel.heard
