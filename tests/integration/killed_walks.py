"""Walks of bulk operations whose process is killed again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stoker.conf import Settings
from stoker.models import BulkOperation
from stoker.operations import bulk, bulk_walk

LONG = 600.0


class Killed(BaseException):
    """Raised where a process is killed, so that nothing handles it."""


def walk_despite_kills(
    settings: Settings,
    row: BulkOperation,
    monkeypatch: pytest.MonkeyPatch,
    after_batch: Callable[[], object] = lambda: None,
) -> int:
    """Walk until the bulk operation has ended, but kill every second batch after it has changed its
    targets and before it commits. Return the number of kills."""
    really, calls = bulk_walk._act, []

    def act(*args: Any) -> Any:
        outcomes = really(*args)
        calls.append(len(outcomes))
        if len(calls) % 2 == 0:
            raise Killed
        return outcomes

    monkeypatch.setattr(bulk_walk, "_act", act)
    kills = 0
    while bulk.get(settings, row.pk).state == "running":
        try:
            bulk_walk.go_on(settings, LONG)
        except Killed:
            kills += 1
        after_batch()
    return kills
