"""Brokers on private Redis servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stoker.brokers.adapters import adapter_for
from stoker.brokers.redis.broker import RedisBroker
from stoker.brokers.redis.slots import SlottedRedisBroker
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable

from tests.servers.private import NotInstalledError
from tests.servers.redis import PrivateRedis


@contextmanager
def private(**options: Any) -> Iterator[PrivateRedis]:
    """Start a server, or skip the test if there is no program for it."""
    try:
        with PrivateRedis(**options) as server:
            yield server
    except NotInstalledError as missing:
        pytest.skip(f"private redis: {missing}")


def at(url: str, **options: Any) -> Any:
    """Return the broker at this URL: a RedisBroker, or a SlottedRedisBroker of a Redis cluster."""
    broker = adapter_for(Settings(broker=url, **options))
    assert isinstance(broker, RedisBroker | SlottedRedisBroker)
    return broker


def does(act: Any) -> bool:
    """Return whether the broker answers this call."""
    try:
        act()
    except BrokerUnavailable:
        return False
    return True
