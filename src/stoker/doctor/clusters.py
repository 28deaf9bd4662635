"""Leases and clusters: what nobody has looked after."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.cancelling import sweep_requests
from stoker.cluster.plan import Plan
from stoker.cluster.upkeep import Upkeep
from stoker.models import Cancellation, Claimed, Cluster, Deferred, Outgoing
from stoker.models.clock import DatabaseNow, microseconds

from .look import AT_ONCE, Kind, Look

ABANDONED = Kind(
    "abandoned_leases",
    "The leases of these jobs ended long ago, and nobody has taken them over: does a cluster run?",
    "they are taken over: tried again, or dead letters when out of tries",
)
SILENT = Kind(
    "silent_clusters",
    "These clusters have given no sign of life for longer than a lease.",
    "they are buried, and what they held is taken over when its lease ends",
    is_fault=False,
)
OVERDUE = Kind(
    "overdue_jobs",
    "The moment of these jobs came long ago, and no cluster has looked for them: all are busy with "
    "long jobs, or none runs.",
    is_fault=False,
)
UNHEARD = Kind(
    "settled_cancellations",
    "These jobs were to be cancelled while they ran, and do not run any more.",
    "those that wait again are cancelled; of the others the request is forgotten",
    is_fault=False,
)
UNRELAYED = Kind(
    "unrelayed_jobs",
    "These jobs have long been in the outbox, and nobody has sent them on to their broker: does a "
    "cluster of this backend run?",
    is_fault=False,
)
LONG_SECONDS = 300.0
"""For which no living cluster leaves things as they are."""


class Clusters(Look):
    """Leases that are over are taken over, and clusters that are gone are buried."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        settings = self.scene.settings
        long_seconds = max(LONG_SECONDS, 3 * settings.upkeep_seconds, 3 * settings.lease_seconds)
        long_ago = DatabaseNow() - microseconds(long_seconds)
        for page in self.scene.pages(Claimed):
            leases = Claimed.objects.using(self.alias).filter(pk__in=[row[0] for row in page])
            over = leases.filter(leased_until_us__lt=long_ago)
            yield ABANDONED, list(over.values_list("pk", flat=True))
        silent = Cluster.objects.using(self.alias).silent_for(long_seconds)
        yield SILENT, list(silent.values_list("pk", flat=True)[:AT_ONCE])
        due = Deferred.objects.using(self.alias).filter(due_us__lt=long_ago).order_by("due_us")
        yield OVERDUE, list(due.values_list("pk", flat=True)[:AT_ONCE])
        own = Outgoing.objects.using(self.alias).filter(backend=settings.alias)
        old = own.filter(enqueued_at__lt=time.time() - long_seconds).order_by("job_id")
        yield UNRELAYED, list(old.values_list("pk", flat=True)[:AT_ONCE])
        for page in self.scene.pages(Cancellation):
            asked = [row[0] for row in page]
            places = self.scene.broker.whereabouts(asked)
            yield UNHEARD, [one for one in asked if places.get(one) != "running"]

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        settings = self.scene.settings
        upkeep = Upkeep(Plan(alias=settings.alias), settings, self.scene.broker, lambda: None)
        if kind is UNHEARD:
            return min(len(ids), sweep_requests(settings))
        if kind is SILENT:
            upkeep.bury_silent_clusters()
            return len(ids) - Cluster.objects.using(self.alias).filter(pk__in=ids).count()
        upkeep.rescue()
        leases = Claimed.objects.using(self.alias).filter(pk__in=ids)
        return len(ids) - leases.filter(leased_until_us__lt=DatabaseNow()).count()
