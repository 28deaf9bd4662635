"""Rows and details of jobs for all interfaces, and the operations cancel and run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q

from stoker.brokers.adapters import broker_for
from stoker.brokers.outage import do_without_broker, read_or_default
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import Settings
from stoker.dead_letters.requeueing import run_again
from stoker.exceptions import PackageError
from stoker.inspect.jobs import COUNTED, STATES, JobFilter, tally
from stoker.inspect.timeline import MomentKind, Timeline, row_of, seconds_between, timeline
from stoker.inspect.waits import Waits
from stoker.jobs.change import is_held
from stoker.jobs.package import Package
from stoker.jobs.results import fetch, result_of
from stoker.jobs.states import (
    JobState,
    Progress,
    full_progress_of_one,
    package_of,
    rows_at_broker,
)
from stoker.models import Cluster, DeadLetter, Job, Workflow
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import ShownCall, shown_call
from stoker.values.ids import parse_job_id
from stoker.values.marks import bounds_of
from stoker.values.text import plural

from .details import Fact, call_of, calls_of_jobs, given, opened_call
from .operation import Done, Operation, Operator
from .wording import value_text

COLUMNS = (
    "id", "task", "queue", "priority", "attempts", "enqueued_at", "run_after", "started_at",
    "finished_at", "worker_id", "reason",
)  # fmt: skip
"""The columns of a job in JSON."""
COLOURS = {
    MomentKind.ATTEMPT_FAILED: "bad",
    MomentKind.ATTEMPT_TIMED_OUT: "bad",
    MomentKind.ATTEMPT_CRASHED: "bad",
    MomentKind.FAILED: "bad",
    MomentKind.DEAD_LETTERED: "bad",
    MomentKind.SUCCEEDED: "good",
    MomentKind.RESOLVED: "good",
    MomentKind.RUNS: "wait",
    MomentKind.ATTEMPT_BEGAN: "wait",
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """One line of a list of jobs."""

    job: Job
    state: str
    """A value of ``JobState``."""
    ran_seconds: float | None
    """Duration of the last attempt in seconds; None = unknown."""
    call: ShownCall | None
    """The job's arguments; None = they cannot be read or are too large."""


def rows_of(settings: Settings, jobs: Iterable[Job], *, reveal: bool = False) -> list[JobRow]:
    """Return a row for each job, with one query, and another one if some jobs have not ended.

    Args:
        reveal: Hide no secrets among the arguments.
    """
    jobs, broker = list(jobs), broker_for(settings)
    calls = calls_of_jobs(settings, [job.pk for job in jobs], reveal=reveal)
    unended = [job.pk for job in jobs if job.status is None]
    places = broker.states(unended) if unended and broker.capabilities.look_up else {}
    return [
        JobRow(
            job,
            # A job that moves from one table to another meanwhile may be found in neither.
            job.status or places.get(job.pk, "ready").upper(),
            seconds_between(job.started_at, job.finished_at),
            calls.get(job.pk),
        )
        for job in jobs
    ]


WAITING_AT_BROKER = ("READY", "DEFERRED")
"""States of the jobs that wait at a broker outside the database."""


class NumberAtBroker(NamedTuple):
    """Number of jobs at a broker outside the database."""

    waiting: int = 0
    running: int = 0


def is_of_place(wanted: JobFilter) -> bool:
    """Return whether the filter asks for no more than queue and state."""
    return wanted == JobFilter(state=wanted.state, queue=wanted.queue)


def number_at_broker(settings: Settings, wanted: JobFilter) -> NumberAtBroker | None:
    """Return how many jobs of the filter's queue and state are at a broker outside the database.
    Return None if that is unknown, and no jobs if the filter asks for more than queue and state,
    because the broker cannot tell."""
    broker = broker_for(settings)
    if not is_of_place(wanted) or wanted.state not in ("", "RUNNING", *WAITING_AT_BROKER):
        return NumberAtBroker()
    if broker.broker is None:  # each queue would be a request to the server
        return NumberAtBroker() if broker.arrivals is None else None
    sizes: dict[str, dict[str, int]] | None = read_or_default(broker.broker.sizes, None)
    if sizes is None:
        return None
    queues = [wanted.queue] if wanted.queue else list(sizes)
    ready, deferred, running = (
        sum(sizes[queue][state.lower()] for queue in queues if queue in sizes)
        if wanted.state in ("", state)
        else 0
        for state in (*WAITING_AT_BROKER, "RUNNING")
    )
    return NumberAtBroker(ready + deferred, running)


def broker_notice(settings: Settings, wanted: JobFilter, number: NumberAtBroker | None) -> str:
    """Say how many jobs are at a broker outside the database, and which commands show them; "" =
    none. Lists of jobs are read from the database only."""
    if number is None:
        return "Jobs that no cluster has received yet may be at the broker. They are not listed."
    backend = settings.backend_option
    counts, commands = [], []
    if number.waiting:
        counts.append(f"{plural(number.waiting, 'job waits', 'jobs wait')} at the broker")
        command = "manage.py stoker jobs list --at-broker"
        command += f" --state {wanted.state.lower()}" if wanted.state else ""
        command += f" --queue {quote(wanted.queue)}" if wanted.queue else ""
        commands.append(f"`{command}{backend}` lists those that wait")
    if number.running:
        counts.append(
            plural(number.running, "job from the broker runs", "jobs from the broker run")
        )
        commands.append(f"`manage.py stoker info{backend}` shows those that run")
    if not counts:
        return ""
    return (
        f"{', and '.join(counts)}. Of these, this list has only jobs whose first attempt has "
        f"ended: {', and '.join(commands)}."
    )


def rows_waiting_at_broker(settings: Settings, wanted: JobFilter, limit: int) -> list[JobRow]:
    """Return jobs of the filter's state, queue and task that wait at a broker outside the database.

    Raises:
        ValueError: this backend has no broker that can list its jobs.
    """
    broker = broker_for(settings).broker
    if broker is None:
        raise ValueError("This backend has no broker that can list its jobs.")
    found: dict[UUID, JobRow] = {}  # a job that becomes ready meanwhile may be listed twice
    for queue in [wanted.queue] if wanted.queue else sorted(broker.sizes()):
        for job_ids in broker.waiting_in(queue):
            for job in rows_at_broker(settings, job_ids).values():
                state = WAITING_AT_BROKER[job.run_after is not None]
                if wanted.task in ("", job.task) and wanted.state in ("", state):
                    job.queue = queue  # unknown if the package cannot be opened
                    call = opened_call(settings, bytes(job.package))
                    found[job.pk] = JobRow(job, state, None, call)
            if len(found) >= limit:
                return list(found.values())[:limit]
    return list(found.values())


def filter_of(given: Mapping[str, str]) -> JobFilter:
    """Return the filter in a query string or form.

    Raises:
        ValueError: ``since`` or ``until`` is not a valid date and time.
    """
    since, until = bounds_of(given)
    return JobFilter(
        state=given.get("state", "").upper(),
        queue=given.get("queue", "")[:100],
        task=given.get("task", "")[:255],
        text=given.get("q", "").strip(),
        node=given.get("node", "")[:255],
        since=since,
        until=until,
    )


def nodes_of(settings: Settings) -> list[str]:
    """Return the hosts of the known clusters, with one query."""
    rows = Cluster.objects.using(settings.database).filter(name=settings.cluster)
    return sorted(set(rows.values_list("host", flat=True)))


def others_of_id(settings: Settings, text: str) -> tuple[UUID | None, UUID | None]:
    """Return the dead letter and the workflow with this id. If it is the id of a failed job, return
    the job's dead letter. Runs two queries if the text is an id, otherwise none."""
    wanted = parse_job_id(text)
    if wanted is None:
        return None, None
    letters = DeadLetter.objects.using(settings.database)
    workflows = Workflow.objects.using(settings.database).filter(backend=settings.alias)
    by_id = letters.filter(Q(pk=wanted) | Q(job_id=wanted)).values_list("pk", flat=True)
    return by_id.first(), workflows.filter(pk=wanted).values_list("pk", flat=True).first()


def numbers_by_state(alias: str) -> dict[str, str]:
    """Return the number of jobs in each state, as text up to ``10,000+``, with one query."""
    counts = tally(alias)
    return {
        state: f"{COUNTED:,}+" if counts.get(state, 0) > COUNTED else f"{counts.get(state, 0):,}"
        for state in STATES
    }


@dataclass(frozen=True, slots=True)
class JobDetails:
    """The details of one job."""

    job_id: UUID
    progress: Progress
    row: Any
    """The job's row in the table of its state; None = the job has ended."""
    life: Timeline
    shown: ShownCall | None
    """The job's arguments; None = they cannot be read."""
    value: str | None
    """The return value as text; None = it is not kept."""
    facts: list[Fact]
    letter: DeadLetter | None
    """The job's dead letter, unless that is closed."""

    @property
    def call(self) -> dict[str, Any]:
        """Return its arguments as text, for web pages."""
        return call_of(self.shown)

    @property
    def label(self) -> str:
        """Return the label from the task's option ``describe``; "" = none."""
        return "" if self.shown is None else self.shown.label

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended."""
        return self.progress.state in (JobState.SUCCESSFUL, JobState.FAILED, JobState.CANCELLED)

    @property
    def can_run_again(self) -> bool:
        """Return whether a copy of the job may be enqueued. False for failed jobs, because their
        dead letter is requeued instead."""
        return self.is_over and self.progress.job is not None and self.letter is None

    @property
    def colours(self) -> list[str]:
        """Return the colour of each event of its timeline: good, bad, wait or ""."""
        return [COLOURS.get(moment.kind, "") for moment in self.life.moments]


def details_of(settings: Settings, job_id: UUID, *, reveal: bool = False) -> JobDetails:
    """Return the details of a job.

    Args:
        reveal: Hide no secrets among the arguments.

    Raises:
        TaskResultDoesNotExist: No job has this id (any more).
    """
    progress = full_progress_of_one(settings, job_id)
    package = package_of(settings, progress.job)
    with explained(settings.database):
        row = row_of(settings, job_id, progress)
    life = timeline(settings, job_id, progress, row)
    call = None if package is None else shown_call(package, settings.redact, reveal=reveal)
    if progress.job is None:  # the broker cannot look up jobs
        call = ShownCall([], {}, [])
    return JobDetails(
        job_id,
        progress,
        row,
        life,
        call,
        value_of(settings, job_id, progress),
        facts_of(progress, package, life.waits),
        _letter(settings.database, life),
    )


def value_of(settings: Settings, job_id: UUID, progress: Progress) -> str | None:
    """Return the job's return value as text, or None if it is not kept."""
    if progress.job is None or progress.job.value is None:
        return None
    try:
        return value_text(result_of(settings, job_id, progress).return_value)
    except (ValueError, PackageError) as error:
        return f"cannot be read here: {error}"


def facts_of(progress: Progress, package: Package | None, waits: Waits | None) -> list[Fact]:
    """Return the details of a job."""
    job = progress.job
    if job is None or not job.task:  # the broker cannot look it up, or its package is unreadable
        return [Fact("Stored", "only by the broker, until the job has ended")]
    most = f" of {package.options.max_attempts}" if package is not None else ""
    identity = package.options.identity if package is not None else ""
    return given(
        Fact("Task", job.task, "task"),
        Fact("Queue", job.queue, "queue"),
        Fact("Priority", job.priority, hint="Higher runs first"),
        Fact("Enqueued", job.enqueued_at),
        Fact("Not before", "held by an operator" if is_held(job.run_after) else job.run_after),
        Fact("Started", progress.started_at, hint="When its first attempt began"),
        Fact("Ended", job.finished_at),
        Fact("Waited", str(waits or ""), hint="The time before its attempts, by cause"),
        Fact("Attempts", f"{progress.attempts}{most}", hint="Started attempts, and the maximum"),
        Fact("Worker", job.worker_id, hint="Where its last attempt ran"),
        Fact("Reason", job.reason),
        Fact("Unique key", identity.rpartition(" ")[0]),
    )


def _letter(alias: str, life: Timeline) -> DeadLetter | None:
    letter_id = next((one.dead_letter_id for one in life.moments if one.dead_letter_id), None)
    if letter_id is None:
        return None
    with explained(alias):
        letters = DeadLetter.objects.using(alias).unclosed().defer("package", "traceback")
        return letters.filter(pk=letter_id).first()


# -- operations -----------------------------------------------------------------------------------


def job_id_of(text: str) -> UUID:
    """Parse a job id.

    Raises:
        TaskResultDoesNotExist: The text is not a valid id.
    """
    job_id = parse_job_id(text)
    if job_id is None:
        raise TaskResultDoesNotExist(f"{text!r} is not a job id, which is a UUID.")
    return job_id


def _cancel(operator: Operator, job_id: str) -> Done:
    with do_without_broker():  # jobs in the store or an outbox can be cancelled without the broker
        result = fetch(operator.settings, job_id)
    if not result.cancel(operator.cancellation):
        result.refresh()
        state = result.state.value
        sentence = f"The job has ended already: {state}."
        return Done(sentence, is_good=False, facts={"state": state})
    if result.state in (JobState.CLAIMED, JobState.RUNNING):
        return Done("The job is asked to end. This may take a moment.")
    return Done("The job is cancelled.")


def _run_again(operator: Operator, job_id: str) -> Done:
    again = run_again(operator.settings, job_id_of(job_id))
    new_id = again.result.id if again.result is not None else ""
    if again.because:
        return Done(again.because, is_good=False, job_id=new_id)
    return Done("Enqueued again with the same arguments: this is the new job.", job_id=new_id)


CANCEL = Operation(
    "cancel",
    "job",
    "stoker.cancel_job",
    _cancel,
    question="Cancel this job? If the job is running, it is asked to end.",
    is_grave=True,
    things="jobs",
    done="cancelled",
)
RUN_AGAIN = Operation(
    "again",
    "job",
    "stoker.add_job",
    _run_again,
    label="Run again",
    things="jobs",
    done="enqueued again",
)
OPERATIONS = (CANCEL, RUN_AGAIN)
