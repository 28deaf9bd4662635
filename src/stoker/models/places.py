"""Where jobs are: the narrow tables taken together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import CharField, Count, Value

from .blocked import Blocked
from .claimed import Claimed
from .deferred import Deferred
from .ready import Ready

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
