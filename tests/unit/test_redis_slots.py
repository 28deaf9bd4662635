"""The slots of a Redis cluster, as the threads of a process share them."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.brokers.redis import slots
from stoker.conf import Settings

pytestmark = pytest.mark.unit


def test_threads_that_find_the_slots_at_once_agree_on_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []

    class Slot:
        client = None

        def __init__(self, settings: Settings, first: Any = None, slot: int = 0) -> None:
            self.slot = slot
            if slot and not begun:
                begun.append(slot)
                _ = broker.slots  # as another thread does at this moment

        def note_slots(self, count: int) -> list[int]:
            return [1, count]

    monkeypatch.setattr(slots, "RedisBroker", Slot)
    broker = slots.SlottedRedisBroker(Settings("default"), slots=8)
    assert [one.slot for one in broker.slots] == list(range(8))  # type: ignore[attr-defined] # of this stand-in
