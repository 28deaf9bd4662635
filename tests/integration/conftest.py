"""Fixtures that tests of dead letters share."""

from collections.abc import Iterator

import pytest

from tests.app import frail


@pytest.fixture
def nothing_broken() -> Iterator[None]:
    """Clear what is marked as broken, before and after the test."""
    frail.broken.clear()
    frail.TOLD.clear()
    yield
    frail.broken.clear()
