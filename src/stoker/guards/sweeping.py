"""The part of upkeep that repairs guards: it frees unused places and makes blocked jobs ready.

Usually claims and recorded outcomes do that. The sweep repairs the leftovers of a crash, a changed
limit or an edited table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings
from stoker.models import GuardKey
from stoker.signals import tell
from stoker.store.prepared import any_of

from . import sweep as guard_upkeep

AT_ONCE = 200
WAITS_AT_ONCE = 500
ALL_SECONDS = 3600.0
"""Interval between checks of keys without blocked jobs, and of needs and waits of past jobs."""

Page = Callable[[Any], tuple[int, Any]]


class GuardSweep:
    """Repairs the guards of one store.

    Args:
        beat: called after each page, as a heartbeat.
    """

    def __init__(self, settings: Settings, broker: Dispatch, beat: Callable[[], None]) -> None:
        self._alias = settings.database
        self._broker = broker
        self._beat = beat
        self._all_at = 0.0
        self._any_line = any_of(GuardKey.objects.using(self._alias).filter(has_line=True))

    def sweep(self) -> int:
        """Repair all keys with blocked jobs, and once an hour all keys, needs and waits.

        Returns the number of freed places.
        """
        if not self._broker.capabilities.guards:
            return 0
        freed = 0
        if self._any_line.fetch():
            freed = self._look_through(
                lambda after: guard_upkeep.sweep_keys(self._alias, after, AT_ONCE, only_lines=True)
            )
        if time.monotonic() >= self._all_at:
            self._look_through(lambda after: guard_upkeep.forget_needs(self._alias, after, AT_ONCE))
            freed += self._look_through(
                lambda after: guard_upkeep.sweep_keys(self._alias, after, AT_ONCE, only_lines=False)
            )
            self._look_through(
                lambda after: guard_upkeep.forget_waits(self._alias, after, WAITS_AT_ONCE)
            )
            self._all_at = time.monotonic() + ALL_SECONDS
        if freed:
            tell("places_freed", count=freed)
        return freed

    def _look_through(self, page: Page) -> int:
        total, after = page(None)
        while after is not None:
            self._beat()
            count, after = page(after)
            total += count
        return total
