"""Jobs that wait are taken from where they wait."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from uuid import UUID

from .places import WAITING, whereabouts
from .ready import Ready
from .turns import leave

PAUSES_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, None, None)
"""After each look at jobs that somebody else holds. In the last looks one waits for him."""


def withdraw(alias: str, job_ids: Collection[UUID]) -> tuple[set[UUID], set[UUID]]:
    """Remove jobs that wait, with what they need; in a transaction, which may last.

    A job that others hold is mostly on the move, and is looked for again. To wait for it could be
    to wait in a circle, and MariaDB would let whoever brings it back wait for this transaction.

    Returns:
        Those removed; and the keys that are to be looked after when the transaction has ended.
    """
    gone: set[UUID] = set()
    key_ids: set[UUID] = set()
    for pause_seconds in PAUSES_SECONDS:
        waiting = whereabouts(alias, [one for one in job_ids if one not in gone], WAITING)
        if not waiting:
            break
        taken, left = _take(alias, waiting, waits=pause_seconds is None)
        gone |= taken
        key_ids |= left
        if taken == waiting.keys():
            break
        time.sleep(pause_seconds or 0)
    return gone, key_ids


def _take(alias: str, waiting: Mapping[UUID, str], *, waits: bool) -> tuple[set[UUID], set[UUID]]:
    taken: set[UUID] = set()
    left: set[UUID] = set()
    for name, model in WAITING.items():
        there = [job_id for job_id, place in waiting.items() if place == name]
        guards = model.objects.using(alias).withdraw(there, waits=waits) if there else {}
        held = {job_id: count for job_id, count in guards.items() if count}
        if held:
            left |= leave(alias, held, had_turn=model is Ready)
        taken |= guards.keys()
    return taken, left
