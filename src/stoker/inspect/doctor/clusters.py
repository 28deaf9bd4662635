"""Checks of the doctor: what clusters leave behind, and jobs in outboxes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError

from stoker.backend import StokerBackend
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.rescue import Rescue
from stoker.compat import InvalidTaskBackend, task_backends
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.outcomes import Tallies
from stoker.models import Cancellation, Claimed, Cluster, Deferred
from stoker.models.outbox import Outgoing, ask_outbox
from stoker.store.written import DatabaseNow, microseconds

from .looks import AT_ONCE, FindingKind, Look

ABANDONED = FindingKind(
    "abandoned_leases",
    "The leases of these jobs ended long ago, and no cluster has taken them over. Check that a "
    "cluster runs.",
    "they are taken over: retried, or dead letters if they have used up their attempts",
)
SILENT = FindingKind(
    "silent_clusters",
    "These clusters have sent no heartbeat for longer than a lease.",
    "they are removed, and their jobs are taken over when the leases end",
    is_fault=False,
)
OVERDUE = FindingKind(
    "overdue_jobs",
    "These jobs were due long ago, and no cluster has claimed them. All clusters are busy with "
    "long jobs, or no cluster runs.",
    is_fault=False,
)
UNHEARD = FindingKind(
    "settled_cancellations",
    "The cancellation of these jobs was requested, and they do not run (any more).",
    "waiting jobs are cancelled; the requests for other jobs are deleted",
    is_fault=False,
)
LONG_SECONDS = 300.0
"""A state that lasts longer than this is a fault: a live cluster would have repaired it."""


def long_seconds_of(settings: Settings) -> float:
    """Return after how many seconds a live cluster of this backend has repaired everything."""
    return max(LONG_SECONDS, 3 * settings.upkeep_seconds, 3 * settings.lease_seconds)


class LostClusters(Look):
    """Find leases, heartbeats, due jobs and requests that no cluster takes care of."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        settings = self.scene.settings
        long_seconds = long_seconds_of(settings)
        long_ago = DatabaseNow() - microseconds(long_seconds)
        for page in self.scene.pages(Claimed):
            leases = Claimed.objects.using(self.alias).filter(pk__in=[row[0] for row in page])
            over = leases.filter(leased_until_us__lt=long_ago)
            yield ABANDONED, list(over.values_list("pk", flat=True))
        silent = Cluster.objects.using(self.alias).silent_for(long_seconds)
        yield SILENT, list(silent.values_list("pk", flat=True)[:AT_ONCE])
        due = Deferred.objects.using(self.alias).filter(due_us__lt=long_ago).order_by("due_us")
        yield OVERDUE, list(due.values_list("pk", flat=True)[:AT_ONCE])
        for page in self.scene.pages(Cancellation):
            asked = [row[0] for row in page]
            places = self.scene.broker.states(asked)
            yield UNHEARD, [one for one in asked if places.get(one) != "running"]

    def mend(self, kind: FindingKind, ids: Sequence[Any]) -> int:
        settings = self.scene.settings
        if kind is UNHEARD:
            return min(len(ids), sweep_requests(settings))
        plan, tallies = Plan(alias=settings.alias), Tallies(settings)
        rescuing = Rescue(plan, self.scene.broker, lambda: None, tallies)
        if kind is SILENT:
            rescuing.bury_silent_clusters()
            return len(ids) - Cluster.objects.using(self.alias).filter(pk__in=ids).count()
        rescuing.rescue()
        leases = Claimed.objects.using(self.alias).filter(pk__in=ids)
        return len(ids) - leases.filter(leased_until_us__lt=DatabaseNow()).count()


UNRELAYED = FindingKind(
    "unrelayed_jobs",
    "These jobs have long been in an outbox, and were not relayed to their broker. Check that a "
    "cluster of this backend runs.",
    is_fault=False,
)
STRANDED = FindingKind(
    "stranded_jobs",
    "No cluster relays these jobs from their outbox: TASKS has no such backend any more, or its "
    "BROKER was changed. Restore these settings, and run a cluster until the jobs are relayed.",
)


class Outboxes(Look):
    """Check that jobs are relayed from the outboxes of all databases."""

    def find(self) -> Iterator[tuple[FindingKind, Sequence[Any]]]:
        relayed = self.scene.broker.outboxes()
        for alias in dict.fromkeys([self.alias, *relayed]):
            try:
                own, foreign = self._rows(alias)
            except (BrokerUnavailable, DatabaseError, InterfaceError):
                if alias == self.alias:
                    raise
                self.scene.cut_short.add(f"{Outgoing._meta.db_table} in {alias}")
                continue
            if alias in relayed:
                yield UNRELAYED, [row.pk for row in own]
            else:
                foreign = [*own, *foreign]
            yield STRANDED, [f"{row.pk} of {row.backend} in {alias}" for row in foreign]

    def _rows(self, alias: str) -> tuple[list[Outgoing], list[Outgoing]]:
        """Return the old rows of this backend, and those of backends that neither TASKS nor a live
        cluster has. Another project, or a newer release of this one, may have further backends."""
        settings = self.scene.settings
        long_seconds = long_seconds_of(settings)
        long_ago = time.time() - long_seconds
        relaying = Cluster.objects.using(self.alias).alive_within(long_seconds)
        named = {info.get("alias") for info in relaying.values_list("info", flat=True)}
        known = named.union(_backends()) - {None}

        def read() -> tuple[list[Outgoing], list[Outgoing]]:
            rows = Outgoing.objects.using(alias).only("job_id", "backend").order_by("job_id")
            own = rows.filter(backend=settings.alias, enqueued_at__lt=long_ago)
            foreign = rows.exclude(backend__in=known).filter(enqueued_at__lt=long_ago)
            return list(own[:AT_ONCE]), list(foreign[:AT_ONCE])

        return ask_outbox(alias, read, settings) or ([], [])


def _backends() -> list[str]:
    """Return the aliases of Stoker's backends in TASKS. One that cannot be loaded counts."""
    found = []
    for alias in task_backends.settings:
        try:
            if isinstance(task_backends[alias], StokerBackend):
                found.append(alias)
        except InvalidTaskBackend:
            found.append(alias)
    return found
