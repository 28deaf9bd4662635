"""What tests of dead letters share."""

from collections.abc import Iterator

import pytest

from tests.app import frail


@pytest.fixture
def mended() -> Iterator[None]:
    """Begin and end with nothing broken."""
    frail.broken.clear()
    frail.TOLD.clear()
    yield
    frail.broken.clear()
