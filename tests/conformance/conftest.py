"""The broker under test: each test takes one fixture and runs for every broker that fits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.server_stands import stands
from tests.conformance.stands import Stand


@pytest.fixture(params=stands())
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Yield a stand with a fresh, empty broker."""
    yield from _stand(request)


@pytest.fixture(params=stands(lambda kind: bool(kind.url)))
def shared_stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Yield a stand whose broker other processes can reach."""
    yield from _stand(request)


@pytest.fixture(params=stands(lambda kind: kind.capabilities.transactional))
def transactional_stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Yield a stand whose broker joins the store's transactions."""
    yield from _stand(request)


@pytest.fixture(params=stands(lambda kind: kind.capabilities.guards))
def guarding_stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Yield a stand whose broker keeps guards."""
    yield from _stand(request)


def _stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    made: Stand = request.param()
    yield made
    made.clear()
