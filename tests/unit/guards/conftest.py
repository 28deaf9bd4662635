"""Fixtures: a clock set by hand, a lock store in memory, the events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stoker.locks import holding as real_clock
from stoker.signals import event

from tests.unit.guards.stores import Clock, MemoryLocks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(real_clock, "now", clock.now)
    return clock


@pytest.fixture
def store() -> MemoryLocks:
    return MemoryLocks()


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The events so far: names and facts."""
    heard: list[tuple[str, dict[str, Any]]] = []

    def hear(name: str, facts: dict[str, Any], **_: Any) -> None:
        heard.append((name, facts))

    event.connect(hear)
    yield heard
    event.disconnect(hear)
