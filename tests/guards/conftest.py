"""Fixtures: each place that can keep locks, and another process that uses it."""

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
    """A lock name that no other test uses."""
    return f"test {uuid.uuid4()}"


@pytest.fixture
def other(place: Place) -> Iterator[Other]:
    """Another process that takes and releases locks on request."""
    with started(hold, place) as other:
        yield other
