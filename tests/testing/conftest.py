"""Clears what the tasks noted, before and after each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testing import tasks


@pytest.fixture(autouse=True)
def seen() -> Iterator[list[Any]]:
    """Give the list in which the tasks note their calls."""
    tasks.seen.clear()
    yield tasks.seen
    tasks.seen.clear()


@pytest.fixture(
    params=[
        pytest.param("in a transaction", marks=pytest.mark.django_db),
        pytest.param("committing", marks=pytest.mark.django_db(transaction=True)),
    ]
)
def database(request: pytest.FixtureRequest) -> str:
    """Run the test as in a TestCase, and again as in a TransactionTestCase."""
    return str(request.param)
