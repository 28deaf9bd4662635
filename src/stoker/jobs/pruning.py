"""Delete results whose retention has ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.utils import timezone

from stoker.brokers.adapters import brokers_beside
from stoker.brokers.contract import Broker
from stoker.conf import Settings
from stoker.dead_letters.search import told_by_dead_letters
from stoker.models import Attempt, Job, LogChunk
from stoker.setting_values import Retention
from stoker.signals import tell
from stoker.store.statements import delete_by_key, delete_of_jobs

from .backends import retentions

BATCH = 500


class Pruning:
    """Deletes old results of one store. Several backends may have results there: each is kept as
    long as its own backend says.

    Args:
        settings: the backend of the cluster that does upkeep.
        beat: called often, as a heartbeat.
    """

    def __init__(self, settings: Settings, beat: Callable[[], None]) -> None:
        self._settings = settings
        self._alias = settings.database
        self._beat = beat
        self._before: datetime | None = None
        self._others: list[Broker] = []

    def prune(self, before: datetime | None = None) -> int:
        """Delete results whose retention has ended, in batches along an index.

        Results of jobs that a broker of another backend still has are kept.

        Args:
            before: delete only results of jobs that ended before this time; None = all.

        Raises:
            BrokerUnavailable: such a broker does not answer.
        """
        self._before = before
        beside = (one.broker for one in brokers_beside(self._settings))
        self._others = [broker for broker in beside if broker is not None]
        kept = retentions(self._settings, lambda one: one.keep_results)
        removed = sum(self._prune(rows, keep) for rows, keep in kept)
        if removed:
            tell("pruned", count=removed)
        return removed

    def _prune(self, rows: Q, keep: Retention) -> int:
        """Delete the jobs among these rows whose retention has ended. Return their number."""
        limits = (
            ((Job.Status.SUCCESSFUL,), keep.successful_seconds, keep.successful_count),
            ((Job.Status.FAILED, Job.Status.CANCELLED), keep.failed_seconds, keep.failed_count),
        )
        removed = 0
        for statuses, seconds, count in limits:
            for status in statuses:
                finished = Job.objects.using(self._alias).filter(rows, status=status)
                removed += self._prune_older(finished, seconds)
                removed += self._prune_beyond(finished, count)
        return removed

    def _prune_older(self, finished: models.QuerySet[Job], seconds: float | None) -> int:
        if seconds is None:
            return 0
        limit = timezone.now() - timedelta(seconds=seconds)
        return self._delete(finished.filter(finished_at__lt=limit))

    def _prune_beyond(self, finished: models.QuerySet[Job], count: int | None) -> int:
        if count is None:
            return 0
        newest_first = finished.order_by("-finished_at", "-pk")
        beyond = newest_first[count : count + 1].values_list("finished_at", "pk").first()
        if beyond is None:
            return 0
        moment, job_id = beyond  # many jobs may have ended at the same moment
        is_older = Q(finished_at__lt=moment) | Q(pk__lte=job_id)
        return self._delete(finished.filter(is_older, finished_at__lte=moment))

    def _delete(self, jobs: models.QuerySet[Job]) -> int:
        if self._before is not None:
            jobs = jobs.filter(finished_at__lt=self._before)
        removed, after = 0, jobs
        while rows := list(
            after.order_by("finished_at", "pk").values_list("finished_at", "pk")[:BATCH]
        ):
            # Rows that are kept may lie in between, and are not read again in this run.
            ended_at, last = rows[-1]
            is_later = Q(finished_at__gt=ended_at) | Q(pk__gt=last)
            after = jobs.filter(is_later, finished_at__gte=ended_at)
            job_ids = self._unleased([job_id for _, job_id in rows])
            told_of = told_by_dead_letters(self._alias, job_ids)
            forgotten = [job_id for job_id in job_ids if job_id not in told_of]
            delete_of_jobs(Attempt.objects.using(self._alias), forgotten)
            if self._settings.logs is not None:
                delete_of_jobs(LogChunk.objects.using(self._alias), forgotten)
            removed += delete_by_key(Job.objects.using(self._alias), job_ids)
            self._beat()
        return removed

    def _unleased(self, job_ids: list[UUID]) -> list[UUID]:
        """Return the jobs that no broker of another backend has."""
        held: set[UUID] = set()
        for broker in self._others:
            held |= broker.states(job_ids).keys()
        return [job_id for job_id in job_ids if job_id not in held]
