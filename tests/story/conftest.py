"""What stories need around them."""

import os
from collections.abc import Iterator

import pytest

from stoker.conf import settings_for


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave a story to `make test-all`, unless it is marked as one of a size of seconds."""
    if item.get_closest_marker("quick") is None:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _empty_redis() -> Iterator[None]:
    """Where the queue is on Redis, a story that failed leaves its jobs there, also when the tables
    have been emptied."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE", "").endswith("on_redis"):
        yield
        return
    from tests.servers.drop import drop_on_redis

    settings = settings_for()
    run = settings.cluster.removeprefix("test-")
    drop_on_redis(settings.broker, run)
    yield
    drop_on_redis(settings.broker, run)
