"""The job that is asked about, with what several answers want to know."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from django.db import models

from stoker.conf import Settings
from stoker.exceptions import PackageError, UnknownTask
from stoker.finding import find_task, task_of
from stoker.models import Job
from stoker.models.clock import MICROSECONDS, database_now_us
from stoker.package import Package, sealer_for
from stoker.progress import JobState, Progress
from stoker.queue_depths import Pause, pauses
from stoker.stats import ClusterState, clusters

from .answer import Answer, Kind

M = TypeVar("M", bound=models.Model)


class Asked:
    """One job, seen at one moment.

    Args:
        seen: what somebody else has just seen of it.
        row: its row of a narrow table, where somebody else has just read it.
    """

    def __init__(
        self, settings: Settings, job_id: UUID, seen: Progress | None = None, row: Any = None
    ) -> None:
        self.settings = settings
        self.job_id = job_id
        self._row = row
        self.alias = settings.database
        self._seen = seen
        self.job: Job | None = (
            seen.job
            if seen is not None
            else Job.objects.using(self.alias).filter(pk=job_id).first()
        )
        self.task = self.job.task if self.job is not None else ""
        self.queue = self.job.queue if self.job is not None else ""

    def may_be(self, state: JobState) -> bool:
        """Whether it is worth looking for it there."""
        return self._seen is None or self._seen.state == state

    def row(self, model: type[M]) -> M | None:
        """Its row of a narrow table."""
        if isinstance(self._row, model):
            return self._row
        return model._default_manager.using(self.alias).filter(pk=self.job_id).first()

    def answer(self, kind: Kind, sentence: str, advice: str = "", **facts: Any) -> Answer:
        stop = "" if sentence.endswith((".", "!", "?")) else "."  # it may end in others' words
        return Answer(self.job_id, kind, sentence + stop, advice, self.task, self.queue, facts)

    def seconds_until(self, moment_us: int) -> float:
        """From now on; negative when it is past."""
        return (moment_us - self.now_us) / MICROSECONDS

    @cached_property
    def now_us(self) -> int:
        """On the database's clock."""
        return database_now_us(self.alias)

    @cached_property
    def clusters(self) -> tuple[ClusterState, ...]:
        """With this job, where one of them shows that it runs."""
        own = {self.job_id: (self.task, self.queue, None)}
        return clusters(self.settings, facts=own)

    def is_alive(self, cluster: ClusterState) -> bool:
        """Whether it has given a sign of life within a lease: after that, others take over."""
        return cluster.silent_seconds <= self.settings.lease_seconds

    @cached_property
    def pause(self) -> Pause | None:
        return pauses(self.settings).get(self.queue)

    @cached_property
    def package(self) -> Package | PackageError | None:
        """Opened, but for its arguments; or why it can't be; None where the store has none."""
        if self.job is None or not self.job.package:
            return None
        try:
            return sealer_for(self.settings).open_without_arguments(bytes(self.job.package))
        except PackageError as error:
            return error

    @cached_property
    def unknown_task(self) -> UnknownTask | None:
        """Why the task is not found here, with the code that this process has."""
        try:
            if isinstance(self.package, Package):
                task_of(self.package)
            else:
                find_task(self.task)
        except UnknownTask as error:
            return error
        return None
