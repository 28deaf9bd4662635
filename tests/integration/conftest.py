"""Fixtures that several modules share."""

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.app import frail


@pytest.fixture
def nothing_broken() -> Iterator[None]:
    """Clear what is marked as broken, before and after the test."""
    frail.broken.clear()
    frail.TOLD.clear()
    yield
    frail.broken.clear()


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make a driver fail to import, and import the broker's package that uses it again."""

    def hide(driver: str, package: str) -> None:
        __import__(package)
        parent, _, name = package.rpartition(".")
        # An import sets the parent's attribute, too. Both are restored at the end.
        monkeypatch.setattr(sys.modules[parent], name, sys.modules[package])
        for loaded in [one for one in sys.modules if f"{one}.".startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, driver, None)

    return hide
