from collections.abc import Iterator

import pytest
from django.core.cache import caches

from tests.contrib.django_q import functions


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    functions.done.clear()
    yield
    caches["default"].clear()
