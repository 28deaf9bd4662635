"""pytest fixtures, available when Stoker is installed. Stoker is imported only when a fixture is
used.

They need access to the database: mark the test with ``pytest.mark.django_db``, or request
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
    """Run the waiting jobs: ``stoker_drain()``. See ``stoker.testing.drain``."""
    _open_database_first(request)
    from .testing import drain

    return drain


@pytest.fixture
def stoker_inline(request: pytest.FixtureRequest) -> Iterator[Drained]:
    """Run jobs as soon as they are enqueued, during the whole test. See ``stoker.testing.inline``.

    Returns the attempts made so far.
    """
    _open_database_first(request)
    from .testing import inline

    with inline() as ran:
        yield ran


@pytest.fixture
def stoker_enqueued(request: pytest.FixtureRequest) -> Callable[..., list[Enqueued]]:
    """Inspect the waiting jobs: ``stoker_enqueued()``. See ``stoker.testing.enqueued``."""
    _open_database_first(request)
    from .testing import enqueued

    return enqueued


def _open_database_first(request: pytest.FixtureRequest) -> None:
    """Set up the database fixture first, so that it is torn down last."""
    for name in ("transactional_db", "db"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
            return
