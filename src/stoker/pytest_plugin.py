"""pytest fixtures, there as soon as Stoker is installed. Nothing is loaded before one is used.

They need the database as the jobs do: mark the test with ``pytest.mark.django_db``, or take
pytest-django's ``db`` or ``transactional_db``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Drained, Enqueued


@pytest.fixture
def stoker_drain(request: pytest.FixtureRequest) -> Callable[..., Drained]:
    """Run the jobs that wait: ``stoker_drain()``. See ``stoker.testing.drain``."""
    _open_database_first(request)
    from .testing import drain

    return drain


@pytest.fixture
def stoker_inline(request: pytest.FixtureRequest) -> Iterator[Drained]:
    """Run jobs as soon as they are enqueued, all through the test. See ``stoker.testing.inline``.

    Gives the attempts made so far."""
    _open_database_first(request)
    from .testing import inline

    with inline() as ran:
        yield ran


@pytest.fixture
def stoker_enqueued(request: pytest.FixtureRequest) -> Callable[..., list[Enqueued]]:
    """Look at the jobs that wait: ``stoker_enqueued()``. See ``stoker.testing.enqueued``."""
    _open_database_first(request)
    from .testing import enqueued

    return enqueued


def _open_database_first(request: pytest.FixtureRequest) -> None:
    """What is opened before is closed after."""
    for name in ("transactional_db", "db"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
            return
