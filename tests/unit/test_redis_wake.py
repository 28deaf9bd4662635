"""The connection on which Redis wakes a pusher."""

from itertools import pairwise
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from stoker.brokers.redis import wake as module
from stoker.brokers.redis.wake import RedisWake

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


class Node:
    """A client, its connection and its subscription: they lead to one node of a Redis cluster."""

    def __init__(self) -> None:
        self.is_down = self.is_closed = False
        self.messages: list[dict[str, str]] = []
        self.connection = self
        self._sock = None

    def pubsub(self) -> "Node":
        return self

    def subscribe(self, _channel: str) -> None:
        self.get_message(timeout=0)

    def get_message(self, *, timeout: int) -> Any:
        if self.is_down:
            raise RedisConnectionError("It is down.")
        return self.messages.pop(timeout) if self.messages else None

    def close(self) -> None:
        self.is_closed = True


def test_wake_of_a_redis_cluster_follows_a_fail_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a new client knows the new master: the old one refreshes its slots by commands only."""
    clock, nodes = Clock(), [Node()]
    tries: list[float] = []

    def connect() -> Node:
        tries.append(clock.now)
        return nodes[-1]

    monkeypatch.setattr(module, "time", clock)
    wake = RedisWake(connect, "channel")
    assert not wake.is_due()
    nodes[0].is_down = True
    assert wake.is_due()
    assert nodes[0].is_closed
    for _ in range(100):
        clock.turn(1)
        wake.is_due()
    pauses = [later - one for one, later in pairwise(tries)]
    assert pauses == [2, 4, 8, 16, 30, 30]
    nodes.append(Node())
    clock.turn(30)
    assert wake.is_due(), "a wake-up may have been missed"
    nodes[1].messages.append({"type": "message"})
    assert wake.is_due()
    wake.close()
