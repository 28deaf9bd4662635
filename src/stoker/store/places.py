"""The narrow tables. Each unfinished job is in exactly one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from django.db import models
from django.db.models import CharField, Value

from stoker.models.blocked import Blocked
from stoker.models.claimed import Claimed
from stoker.models.deferred import Deferred
from stoker.models.ready import Ready

WAITING: Mapping[str, type[Ready | Deferred | Blocked]] = {
    "ready": Ready,
    "deferred": Deferred,
    "blocked": Blocked,
}
PLACES: Mapping[str, type[models.Model]] = {**WAITING, "running": Claimed}


def stored_states(
    alias: str, job_ids: Collection[UUID], places: Mapping[str, type[models.Model]] = PLACES
) -> dict[UUID, str]:
    """Return job id -> name of the narrow table that contains the job. The tables are read in one
    statement and snapshot, so a job that moves meanwhile is found."""
    if not job_ids:
        return {}
    found = [
        place._default_manager.using(alias)
        .filter(pk__in=job_ids)
        .values_list("pk", Value(name, CharField()))
        for name, place in places.items()
    ]
    return dict(found[0].union(*found[1:], all=True))
