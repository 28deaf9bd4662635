"""Marks and fixtures of the stories."""

import os
from collections.abc import Iterator

import pytest

from stoker.conf import settings_for


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each story as slow, so that only `make test-all` runs it, unless it is marked quick on
    this database."""
    quick = item.get_closest_marker("quick")
    ours = os.environ.get("DJANGO_SETTINGS_MODULE", "").rpartition(".")[2]
    if quick is None or (quick.args and ours not in quick.args):
        item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _empty_redis() -> Iterator[None]:
    """Empty the queue on Redis, because a failed story leaves its jobs there."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE", "").endswith("on_redis"):
        yield
        return
    from tests.servers.drop import drop_on_redis

    settings = settings_for()
    run = settings.cluster.removeprefix("test-")
    drop_on_redis(settings.broker, run)
    yield
    drop_on_redis(settings.broker, run)
