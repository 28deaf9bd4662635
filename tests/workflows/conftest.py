import pytest

from tests.workflows import tasks


@pytest.fixture(autouse=True)
def _nothing_is_done() -> None:
    tasks.DONE.clear()
    tasks.FAILING.clear()
