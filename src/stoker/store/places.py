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
AT_ONCE = 2_000
"""Number of jobs in one statement, which has four parameters for each. SQLite allows 32,766."""


def stored_states(
    alias: str, job_ids: Collection[UUID], places: Mapping[str, type[models.Model]] = PLACES
) -> dict[UUID, str]:
    """Return job id -> name of the narrow table that contains the job. The tables are read for many
    jobs in one statement and snapshot, so a job that moves meanwhile is found."""
    states: dict[UUID, str] = {}
    given = list(job_ids)
    for start in range(0, len(given), AT_ONCE):
        found = [
            place._default_manager.using(alias)
            .filter(pk__in=given[start : start + AT_ONCE])
            .values_list("pk", Value(name, CharField()))
            for name, place in places.items()
        ]
        states.update(found[0].union(*found[1:], all=True))
    return states
