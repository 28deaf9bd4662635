"""The answers to the question why a job is not running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from shlex import quote
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
from stoker.models import Attempt, Job, Workflow
from stoker.operations.wording import exactly
from stoker.store.written import MICROSECONDS, database_now_us, moment
from stoker.tasks.arguments import CUT
from stoker.tasks.registry import find_task, task_of
from stoker.values.durations import in_words


class Kind(TextChoices):
    """The kind of obstacle that a job waits for. If it does not wait: its state.

    Jobs that run or have ended have two more facts, about the time before all attempts by cause:
    waited (a text), and waits (seconds, is_complete, causes).
    """

    SUCCESSFUL = "successful"
    """It succeeded. Facts: finished_at, started_at, attempts, worker."""
    CANCELLED = "cancelled"
    """It was cancelled. Facts: finished_at, reason."""
    DEAD_LETTER = "dead_letter"
    """It failed for good. Facts: finished_at, reason, attempts; and while its dead letter is kept:
    dead_letter, dead_letter_state, carried_on_by, requeued_at_the_latest."""
    UNREADABLE = "unreadable"
    """Its package cannot be opened. Facts: error; if it has ended, those of ``dead_letter``."""
    UNKNOWN_TASK = "unknown_task"
    """No process has its task. Facts: error, due_at; if it has ended, those of ``dead_letter``."""
    RUNNING = "running"
    """It runs in a worker. Facts: cluster, host, worker, pid, seconds, attempt,
    is_being_cancelled."""
    HANDED_OUT = "handed_out"
    """A cluster has claimed it and not yet reported it as running. Facts: cluster, host, attempt;
    and worker and pid if it was handed to a worker that has not started it."""
    CLUSTER_SILENT = "cluster_silent"
    """Its cluster sends no heartbeats. Facts: cluster, host, silent_seconds, lease_seconds,
    is_cluster_alive (whether another cluster is alive)."""
    RUN_AFTER = "run_after"
    """It is deferred. Facts: due_at, seconds, is_held (whether an operator holds it).

    Deferred and blocked jobs (from here to ``sequence``) have the fact ``then`` if they will not
    run afterwards: the ``Kind`` of that obstacle, such as ``paused``."""
    RETRY = "retry"
    """It failed and will be retried. Facts: due_at, seconds, attempts, max_attempts, error."""
    PUT_BACK = "put_back"
    """The job snoozed, a cluster released it, or a guard with ``on_busy="retry"`` was taken.
    Facts: due_at, seconds."""
    LOCK = "lock"
    """Another job holds its lock. Facts: key, holders, before, places."""
    LIMIT = "limit"
    """The limit of the job is reached. Facts: those of ``lock``. places 0: no job may run."""
    RATE = "rate"
    """The rate of the job is used up. Facts: key, before, places, period_seconds,
    next_start_seconds."""
    SEQUENCE = "sequence"
    """An earlier job of its sequence has not ended. Facts: key, holders, halted_by."""
    WORKFLOW = "workflow"
    """It is a step that has not started yet. Facts: workflow, workflow_state, waits_for."""
    EXPIRED = "expired"
    """It has expired, and becomes a dead letter instead of running. Facts: expires_at."""
    PAUSED = "paused"
    """Its queue is paused. Facts: since, by, because."""
    NO_CLUSTER = "no_cluster"
    """No cluster is alive. Facts: silent (clusters that died)."""
    NOT_SERVED = "not_served"
    """No cluster serves its queue. Facts: clusters, each with its queues."""
    CLUSTERS_QUIET = "clusters_quiet"
    """The clusters that serve its queue take no new jobs. Facts: clusters, each with its state."""
    IN_LINE = "in_line"
    """It is ready, behind other jobs. Facts: before, is_exact, waited_seconds, per_second,
    expected_seconds, free_workers."""
    OUTBOX = "outbox"
    """It is still in an outbox, not at its broker. Facts: database, enqueued_at,
    is_cluster_alive."""
    AT_BROKER = "at_broker"
    """It is deferred at a broker outside the database, or waits at one that cannot look up jobs.
    Facts: broker, due_at, is_cluster_alive. If the broker does not answer, it may have the job.
    Facts: is_known (whether the database knows the job)."""
    LOST = "lost"
    """The job has a row, but is in no hot table. Facts: none."""
    UNKNOWN = "unknown"
    """No job has this id. Facts: made_at, from the id itself."""

    @property
    def needs_somebody(self) -> bool:
        """Whether a job with this obstacle never runs unless an operator acts. For the other kinds
        it depends on the facts: see ``Answer.needs_somebody``."""
        return self in HELD_UP

    @property
    def has_ended(self) -> bool:
        return self in (self.SUCCESSFUL, self.CANCELLED, self.DEAD_LETTER)


HELD_UP = frozenset(
    {
        Kind.DEAD_LETTER,
        Kind.UNREADABLE,
        Kind.UNKNOWN_TASK,
        Kind.EXPIRED,
        Kind.PAUSED,
        Kind.NO_CLUSTER,
        Kind.NOT_SERVED,
        Kind.CLUSTERS_QUIET,
        Kind.LOST,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The reason why a job is not running, as far as the store contains it."""

    job_id: UUID
    kind: Kind
    sentence: str
    """The explanation as a sentence for users."""
    advice: str = ""
    """Advice for the operator; "" = nothing needs to be done."""
    task: str = ""
    """Dotted path; "" = unknown."""
    queue: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Data for programs, with the names that the ``Kind`` lists. The values are numbers, texts,
    datetimes (aware or naive as in USE_TZ), None, and lists and dicts of these. Unknown values are
    None or missing."""

    @property
    def needs_somebody(self) -> bool:
        """Whether the job will not run unless an operator acts."""
        facts = self.facts
        return (
            self.kind.needs_somebody
            or facts.get("is_cluster_alive") is False
            or facts.get("is_held", False)
            or facts.get("halted_by") is not None
            or "then" in facts
            or (self.kind == Kind.LIMIT and facts["places"] == 0)
            or (self.kind == Kind.WORKFLOW and facts["workflow_state"] != Workflow.State.RUNNING)
        )


def answer_as_plain(answer: Answer) -> dict[str, Any]:
    """Return an answer for JSON."""
    return {
        "job_id": str(answer.job_id),
        "kind": answer.kind.value,
        "sentence": answer.sentence,
        "advice": answer.advice,
        "needs_somebody": answer.needs_somebody,
        "task": answer.task,
        "queue": answer.queue,
        "facts": dict(answer.facts),
    }


def when(one: datetime | None) -> str:
    """Format a moment for a sentence."""
    return "an unknown time" if one is None else exactly(one)


def at(microseconds: int) -> datetime:
    """Convert a due time to a datetime."""
    return moment(microseconds / 1e6)


M = TypeVar("M", bound=models.Model)


class Asked:
    """The job that ``why`` explains, as read at one moment.

    Args:
        seen: the job's progress, if the caller has read it already.
        row: the job's row of a hot table, if the caller has read it already.
    """

    def __init__(
        self, settings: Settings, job_id: UUID, seen: Progress | None = None, row: Any = None
    ) -> None:
        self.settings = settings
        self.job_id = job_id
        self._row = row
        self.alias = settings.database
        self._seen = seen
        self.take(
            seen.job
            if seen is not None
            else Job.objects.using(self.alias).filter(pk=job_id).first()
        )

    def take(self, job: Job | None) -> None:
        """Answer about the job with this row. The row may be an unsaved one of a broker."""
        self.job: Job | None = job
        self.task = job.task if job is not None else ""
        self.queue = job.queue if job is not None else ""

    def may_be(self, state: JobState) -> bool:
        """Return whether the job may be in this state."""
        return self._seen is None or self._seen.state == state

    def row(self, model: type[M]) -> M | None:
        """Return the job's row of this hot table."""
        if isinstance(self._row, model):
            return self._row
        return model._default_manager.using(self.alias).filter(pk=self.job_id).first()

    def answer(self, kind: Kind, sentence: str, advice: str = "", **facts: Any) -> Answer:
        # The sentence may end with the message of another library.
        stop = "" if sentence.endswith((".", "!", "?", CUT)) else "."
        return Answer(self.job_id, kind, sentence + stop, advice, self.task, self.queue, facts)

    def command(self, words: str, name: object = "") -> str:
        """Return a command for this backend, for a sentence.

        Args:
            name: what it acts on, such as a queue.
        """
        target = f" {quote(str(name))}" if name else ""
        return f"`manage.py stoker {words}{target}{self.settings.backend_option}`"

    def seconds_until(self, moment_us: int) -> float:
        """Return the seconds until a moment; negative if it is past."""
        return (moment_us - self.now_us) / MICROSECONDS

    def soon(self, due_us: int) -> tuple[str, dict[str, Any]]:
        """Return when the job is due, in words and as facts."""
        seconds = self.seconds_until(due_us)
        words = f"in {in_words(seconds)}, at {when(at(due_us))}" if seconds > 0 else "now"
        return words, {"due_at": at(due_us), "seconds": max(0.0, seconds)}

    def last_failure(self) -> Attempt | None:
        """Return the last attempt that did not succeed."""
        failures = Attempt.objects.using(self.alias).filter(job_id=self.job_id)
        return failures.order_by("-number").first()

    @cached_property
    def now_us(self) -> int:
        """Return the time on the database's clock."""
        return database_now_us(self.alias)

    @cached_property
    def clusters(self) -> tuple[ClusterState, ...]:
        """The backend's clusters. Of their running jobs, only this one has a task and a queue."""
        own = {self.job_id: (self.task, self.queue, None)}
        return clusters(self.settings, facts=own)

    def is_alive(self, cluster: ClusterState) -> bool:
        """Return whether the last heartbeat is younger than a lease. After that, other clusters
        take over its jobs."""
        return cluster.silent_seconds <= self.settings.lease_seconds

    @cached_property
    def pause(self) -> Pause | None:
        return pauses(self.settings).get(self.queue)

    @property
    def is_read(self) -> bool:
        """Whether the caller has read the job's progress already."""
        return self._seen is not None

    @cached_property
    def package(self) -> Package | PackageError | None:
        """Return the package, opened except for its arguments; an error if it cannot be opened;
        None if the store has no package."""
        if self.job is None or not self.job.package:
            return None
        try:
            return sealer_for(self.settings).open_without_arguments(bytes(self.job.package))
        except PackageError as error:
            return error

    @cached_property
    def unknown_task(self) -> UnknownTask | None:
        """Return the error if this process does not have the task, otherwise None."""
        try:
            if isinstance(self.package, Package):
                task_of(self.package)
            else:
                find_task(self.task)
        except UnknownTask as error:
            return error
        return None
