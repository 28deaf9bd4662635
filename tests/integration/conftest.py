"""Fixtures that several modules share."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stoker.signals import event

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


@pytest.fixture
def events() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Collect the name and the facts of each event."""
    heard: list[tuple[str, dict[str, Any]]] = []

    def note(name: str, facts: dict[str, Any], **_: Any) -> None:
        heard.append((name, facts))

    event.connect(note)
    yield heard
    event.disconnect(note)
