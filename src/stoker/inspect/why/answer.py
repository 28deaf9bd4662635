"""What is answered when somebody asks why a job is not running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from django.db import models
from django.db.models import TextChoices

from stoker.conf import Settings
from stoker.exceptions import PackageError, UnknownTask
from stoker.inspect.queue_depths import Pause, pauses
from stoker.inspect.stats import ClusterState, clusters
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.states import JobState, Progress
from stoker.models import Job
from stoker.models.job import moment
from stoker.store.clock import MICROSECONDS, database_now_us
from stoker.tasks.registry import find_task, task_of


class Kind(TextChoices):
    """What it is that a job waits for; or how it stands, if it waits for nothing."""

    SUCCESSFUL = "successful"
    """It ended well. Facts: finished_at, started_at, attempts, worker."""
    CANCELLED = "cancelled"
    """It was ended on purpose. Facts: finished_at, reason."""
    DEAD_LETTER = "dead_letter"
    """It failed for good. Facts: finished_at, reason, attempts; of its dead letter, while that is
    kept: dead_letter, dead_letter_state, carried_on_by, requeued_at_the_latest."""
    UNREADABLE = "unreadable"
    """Its package cannot be opened. Facts: error; if it has ended, those of ``dead_letter``."""
    UNKNOWN_TASK = "unknown_task"
    """Nobody has its task. Facts: error, due_at; if it has ended, those of ``dead_letter``."""
    RUNNING = "running"
    """A worker has it. Facts: cluster, host, worker, pid, seconds, attempt, is_being_cancelled."""
    HANDED_OUT = "handed_out"
    """A cluster has it, and has not shown it running yet. Facts: cluster, host, attempt."""
    CLUSTER_SILENT = "cluster_silent"
    """The cluster that has it gives no sign of life. Facts: cluster, host, silent_seconds,
    lease_seconds."""
    RUN_AFTER = "run_after"
    """Its moment has not come. Facts: due_at, seconds."""
    RETRY = "retry"
    """It failed, and is tried again. Facts: due_at, seconds, attempts, max_attempts, error."""
    PUT_BACK = "put_back"
    """It was put back without having run. Facts: due_at, seconds."""
    LOCK = "lock"
    """Another job has its lock. Facts: key, holders, before, places."""
    LIMIT = "limit"
    """As many run as its limit allows. Facts: as of ``lock``."""
    RATE = "rate"
    """As many were started as its rate allows. Facts: key, before, places, period_seconds,
    next_start_seconds."""
    SEQUENCE = "sequence"
    """A job that comes before it in its sequence has not ended. Facts: key, holders, halted_by."""
    WORKFLOW = "workflow"
    """It is a step whose turn has not come. Facts: workflow, workflow_state, waits_for."""
    PAUSED = "paused"
    """Its queue is paused. Facts: since, by, because."""
    NO_CLUSTER = "no_cluster"
    """No cluster is alive. Facts: silent (clusters that died)."""
    NOT_SERVED = "not_served"
    """No cluster serves its queue. Facts: clusters, each with its queues."""
    CLUSTERS_QUIET = "clusters_quiet"
    """The clusters that serve its queue take no more jobs. Facts: clusters, each with its state."""
    IN_LINE = "in_line"
    """It may start, and others are before it. Facts: before, is_exact, waited_seconds, per_second,
    expected_seconds, free_workers."""
    OUTBOX = "outbox"
    """Its broker does not have it yet. Facts: database, enqueued_at."""
    AT_BROKER = "at_broker"
    """A broker outside the database has it, which cannot say more. Facts: broker."""
    LOST = "lost"
    """It has a row, and waits nowhere. Facts: none."""
    UNKNOWN = "unknown"
    """Nobody knows a job of this id. Facts: made_at, which the id itself says."""

    @property
    def needs_somebody(self) -> bool:
        """Whether it will not run before somebody does something about it."""
        return self in HELD_UP

    @property
    def has_ended(self) -> bool:
        return self in (self.SUCCESSFUL, self.CANCELLED, self.DEAD_LETTER)


HELD_UP = frozenset(
    {
        Kind.DEAD_LETTER,
        Kind.UNREADABLE,
        Kind.UNKNOWN_TASK,
        Kind.PAUSED,
        Kind.NO_CLUSTER,
        Kind.NOT_SERVED,
        Kind.CLUSTERS_QUIET,
        Kind.LOST,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Why a job is not running, as far as the store knows."""

    job_id: UUID
    kind: Kind
    sentence: str
    """For people."""
    advice: str = ""
    """What to do about it; "" = nothing needs to be done."""
    task: str = ""
    """The dotted path; "" where nobody knows it."""
    queue: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs: those that the kind names, of numbers, texts, moments (aware, or as USE_TZ
    says), None, and lists and dicts of these. Where one is not known it is None, or missing."""


def when(one: datetime | None) -> str:
    """A moment, as sentences have it."""
    return "a moment that nobody noted" if one is None else one.isoformat(" ", "seconds")


def at(microseconds: int) -> datetime:
    """The moment of a due time."""
    return moment(microseconds / 1e6)


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
