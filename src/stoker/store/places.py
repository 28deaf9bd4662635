"""Where jobs are: the narrow tables taken together."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import CharField, Count, Value

from stoker.models.blocked import Blocked
from stoker.models.claimed import Claimed
from stoker.models.deferred import Deferred
from stoker.models.ready import Ready

from .turns import leave

WAITING: Mapping[str, type[Ready | Deferred | Blocked]] = {
    "ready": Ready,
    "deferred": Deferred,
    "blocked": Blocked,
}
PLACES: Mapping[str, type[models.Model]] = {**WAITING, "running": Claimed}


def whereabouts(
    alias: str, job_ids: Collection[UUID], places: Mapping[str, type[models.Model]] = PLACES
) -> dict[UUID, str]:
    """Job id -> the place, for those that are in one of these. One statement, so one snapshot: a
    job that moves meanwhile is seen here or there."""
    if not job_ids:
        return {}
    found = [
        _rows(alias, place).filter(pk__in=job_ids).values_list("pk", Value(name, CharField()))
        for name, place in places.items()
    ]
    return dict(found[0].union(*found[1:], all=True))


def sizes(alias: str) -> dict[str, dict[str, int]]:
    """Queue -> how many jobs are in each place."""
    counted = [
        _rows(alias, place)
        .values_list("queue", Value(name, CharField()))
        .annotate(count=Count("pk"))
        for name, place in PLACES.items()
    ]
    found: dict[str, dict[str, int]] = {}
    for queue, name, count in counted[0].union(*counted[1:], all=True):
        found.setdefault(queue, dict.fromkeys(PLACES, 0))[name] = count
    return found


def _rows(alias: str, place: type[models.Model]) -> models.QuerySet[Any]:
    return place._default_manager.using(alias)


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
