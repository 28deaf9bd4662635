"""Every place for locks, one after another."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from django.core.management import call_command

from tests.guards.holder import hold
from tests.guards.places import PLACES, Place, place_named
from tests.guards.processes import Other, started


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Place]:
    """A store of locks, ready for use."""
    place = place_named(request.param)
    with place.opened():
        if place.name == "database cache":
            call_command("createcachetable")
        yield place


@pytest.fixture
def name() -> str:
    """The name of a lock that no other test knows."""
    return f"test {uuid.uuid4()}"


@pytest.fixture
def other(place: Place) -> Iterator[Other]:
    """Another process, which does with locks what it is told."""
    with started(hold, place) as other:
        yield other
