"""Fixtures: the places that can keep locks, and other processes that use them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from django.core.management import call_command

from tests.locks.holder import hold
from tests.locks.places import PLACES, TOGETHER, Place, all_opened, place_named
from tests.locks.processes import Other, started


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Place]:
    """A store of locks, ready for use."""
    place = place_named(request.param)
    with _opened([place]):
        yield place


@pytest.fixture(params=TOGETHER)
def places(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[list[Place]]:
    """All stores of locks that are there, ready for use."""
    places = [Place(name) for name in request.param]
    with _opened(places):
        yield places


@contextmanager
def _opened(places: list[Place]) -> Iterator[None]:
    with all_opened():
        if Place("database cache") in places:
            call_command("createcachetable")
        yield


@pytest.fixture
def name() -> str:
    """A lock name that no other test uses."""
    return f"test {uuid.uuid4()}"


@pytest.fixture
def other(place: Place) -> Iterator[Other]:
    """Another process that takes and releases locks on request."""
    with started(hold, place) as other:
        yield other


@pytest.fixture
def others(places: list[Place]) -> Iterator[dict[Place, Other]]:
    """Another process for each place."""
    with ExitStack() as stack:
        yield {place: stack.enter_context(started(hold, place)) for place in places}
