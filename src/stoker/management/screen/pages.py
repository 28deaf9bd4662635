"""The pages of the monitor: the views, and the pages that their lines open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.search import FaultGroup, Faults
from stoker.dead_letters.service import Story
from stoker.exceptions import ClusterNotFound
from stoker.inspect.jobs import JobFilter, JobSearch
from stoker.inspect.stats import ClusterState, WorkerState, clusters, longest_silence, state_of
from stoker.logs.lines import LogPage, newest_lines
from stoker.management.details import job_lines, letter_lines
from stoker.management.subcommand import NO_JOBS, OutputLine, StyledLine, no_cluster
from stoker.models import DeadLetter
from stoker.operations.clusters import memory_in_words
from stoker.operations.dead_letters import faults_of, kind_of, page_of
from stoker.operations.details import opened_call
from stoker.operations.jobs import JobDetails, JobRow, details_of, rows_of
from stoker.operations.queues import pause_in_words
from stoker.operations.wording import first_line, mebibytes, since
from stoker.queues import QueueDepth
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import ShownCall
from stoker.values.durations import in_words

from .layout import Heading, fit, table, wrap
from .seen import RecentFailure, SeenBackend, failures, look, queue_rows, queues_seen
from .viewer import MonitorPage, PageLine

SHOWN = 100
"""Maximum number of faults, dead letters, failures and jobs of a page."""
IN_OVERVIEW = 8
LOG_LINES = 50
STYLES = {"running": "good", "quiet": "wait", "stopping": "wait", "silent": "bad"}
QUEUES = (
    Heading("queue", is_text=True),
    Heading("ready"),
    Heading("deferred", 3),
    Heading("blocked", 4),
    Heading("running"),
    Heading("waited", 1),
    Heading("done/s", 2),
    Heading("failed/min", 1),
    Heading("p95 run", 6),
    Heading("p95 wait", 5),
)
"""The columns of ``queue_rows``, with short names."""
WORKERS = (
    Heading("worker", is_text=True),
    Heading("runs", is_text=True, keeps_end=True),
    Heading("for"),
    Heading("attempts", 1),
    Heading("memory", 2),
    Heading("process", 3),
)
FAULTS = (
    Heading("jobs"),
    Heading("fault", is_text=True, keeps_end=True),
    Heading("task", is_text=True, keeps_end=True),
    Heading("last", 1),
)
FAILURES = (
    Heading("failed"),
    Heading("task", is_text=True, keeps_end=True),
    Heading("error", is_text=True),
)
LETTERS = (
    Heading("failed"),
    Heading("times"),
    Heading("error", is_text=True),
    Heading("state", 1, is_text=True),
)
WAITING = (
    Heading("task", is_text=True, keeps_end=True),
    Heading("priority", 2),
    Heading("enqueued", 1),
    Heading("arguments", is_text=True),
)
IN_QUEUE = (("Running", "RUNNING"), ("Ready, the next first", "READY"), ("Deferred", "DEFERRED"))
Cells = Sequence[str]


def views_of(backends: Sequence[Settings]) -> list[MonitorPage]:
    """Return the views, in the order of their keys."""
    return [
        MonitorPage(
            ("overview",),
            "Overview",
            partial(look, backends),
            partial(_overview, {one.alias: one for one in backends}),
        ),
        _view(
            "Clusters", backends, lambda one: (clusters(one), longest_silence(one)), _cluster_lines
        ),
        _view("Queues", backends, queues_seen, _queue_lines),
        _view("Dead letters", backends, partial(faults_of, filters={}, limit=SHOWN), _fault_lines),
        _view("Failures", backends, partial(failures, limit=SHOWN), _failure_lines),
    ]


def _view(title: str, backends: Sequence[Settings], read: Any, lay_out: Any) -> MonitorPage:
    """Return a view that shows one backend after the other."""

    def lines(value: Sequence[Any], width: int) -> Iterator[PageLine]:
        for settings, of_one in zip(backends, value, strict=True):
            if len(backends) > 1:
                yield PageLine(settings.alias, "heading")
            yield from lay_out(settings, of_one, width)

    return MonitorPage((title,), title, lambda: [read(one) for one in backends], lines)


def _table(
    headings: Sequence[Heading], rows: Sequence[tuple[Cells, MonitorPage | None]], width: int
) -> Iterator[PageLine]:
    head, *lines = table(headings, [cells for cells, _ in rows], width)
    yield PageLine(head, "dim")
    for line, (_, opens) in zip(lines, rows, strict=True):
        yield PageLine(line, opens=opens)


def _paragraph(text: str, width: int, style: str = "") -> Iterator[PageLine]:
    yield from (PageLine(line, style) for line in wrap(text, width))


# -- overview -------------------------------------------------------------------------------------


def _overview(known: dict[str, Settings], seen: Any, width: int) -> Iterator[PageLine]:
    for backend in seen.backends:
        settings = known[backend.name]
        if len(seen.backends) > 1:
            yield PageLine(backend.name, "heading")
        yield from _short_clusters(settings, backend, width)
        yield PageLine("")
        yield from _queue_lines(settings, backend, width)
        yield PageLine("")
        yield PageLine(f"Dead letters: {backend.dead_letters:,}", "heading")
        if backend.faults:
            yield from _fault_table(settings, backend.faults[:IN_OVERVIEW], width)
        yield PageLine("")
        yield PageLine("Recent failures", "heading")
        yield from _failure_lines(settings, backend.failures[:IN_OVERVIEW], width)
        yield PageLine("")


def _short_clusters(settings: Settings, seen: SeenBackend, width: int) -> Iterator[PageLine]:
    if not seen.clusters:
        yield from _paragraph(no_cluster(settings), width, "bad")
    for one in seen.clusters:
        yield _cluster_line(settings, one, seen.max_silence_seconds, width)
        for worker in one.workers:
            for job in worker.running:
                times = f"  {in_words(job.seconds)}"
                start = f"  worker {worker.number}  "
                room = width - len(start) - len(times)
                text = fit(job.task or "a job", room, keeps_end=True)
                yield PageLine(f"{start}{text}{times}", "", job_page(settings, job.job_id))
        if idle := [str(worker.number) for worker in one.workers if not worker.running]:
            word = "workers" if len(idle) > 1 else "worker"
            text = fit(f"  {word} {', '.join(idle)} idle", width)
            yield PageLine(text, "dim", _cluster_page(settings, one))


def _cluster_line(
    settings: Settings, one: ClusterState, max_silence_seconds: float, width: int
) -> PageLine:
    state = state_of(one, max_silence_seconds)
    busy = sum(bool(worker.running) for worker in one.workers)
    facts = f": {state}, {busy} of {len(one.workers)} busy"
    if state == "silent":
        facts += f", last heartbeat {in_words(one.silent_seconds)} ago"
    name = fit(f"{one.name} on {one.host}", max(20, width - len(facts)))
    return PageLine(name + facts, STYLES[state], _cluster_page(settings, one))


# -- clusters -------------------------------------------------------------------------------------


def _cluster_lines(settings: Settings, seen: Any, width: int) -> Iterator[PageLine]:
    known, max_silence_seconds = seen
    if not known:
        yield from _paragraph(no_cluster(settings), width, "bad")
    for one in known:
        yield _cluster_line(settings, one, max_silence_seconds, width)
        yield from _worker_table(settings, one, width - 2, indent="  ")
        yield PageLine("")


def _cluster_page(settings: Settings, cluster: ClusterState) -> MonitorPage:
    def read() -> tuple[ClusterState, float]:
        for one in clusters(settings):
            if one.id == cluster.id:
                return one, longest_silence(settings)
        raise ClusterNotFound(f"The cluster {cluster.name} on {cluster.host} has ended.")

    return MonitorPage(("cluster", cluster.id), cluster.host, read, partial(_one_cluster, settings))


def _one_cluster(settings: Settings, seen: Any, width: int) -> Iterator[PageLine]:
    one, max_silence_seconds = seen
    loops = ", ".join(f"{role} {in_words(age)}" for role, age in one.loops.items())
    for label, text in (
        ("cluster", f"{one.name} on {one.host}"),
        ("id", one.id),
        ("process", f"{one.pid}{', --single' if one.is_single else ''}"),
        ("state", state_of(one, max_silence_seconds)),
        ("request", one.request),
        ("heartbeat", f"{in_words(one.silent_seconds)} ago"),
        ("started", since(one.started_at)),
        ("queues", ", ".join(one.queues) or "all"),
        ("leases", f"{one.leases:,}"),
        ("last turns", loops),
        ("memory", memory_in_words(one)),
    ):
        if text:
            yield from _paragraph(f"{label:<12}{text}", width)
    yield PageLine("")
    yield from _worker_table(settings, one, width)


def _worker_table(
    settings: Settings, one: ClusterState, width: int, indent: str = ""
) -> Iterator[PageLine]:
    rows = [row for worker in one.workers for row in _worker_rows(settings, worker)]
    for line in _table(WORKERS, rows, width) if rows else ():
        yield line._replace(text=indent + line.text)


def _worker_rows(
    settings: Settings, worker: WorkerState
) -> Iterator[tuple[Cells, MonitorPage | None]]:
    size = mebibytes(worker.resident_bytes) if worker.resident_bytes else ""
    others = (f"{worker.jobs_done:,}", size, str(worker.pid))
    name = f"{worker.number}, leaving" if worker.is_leaving else str(worker.number)
    for job in worker.running:
        runs = (job.task or "a job", in_words(job.seconds))
        yield (name, *runs, *others), job_page(settings, job.job_id)
    if not worker.running:
        yield (name, "idle", "", *others), None


# -- queues ---------------------------------------------------------------------------------------


def _queue_lines(settings: Settings, seen: Any, width: int) -> Iterator[PageLine]:
    if not seen.queues:
        yield from _paragraph(NO_JOBS, width)
        return
    rows = [
        (cells, _queue_page(settings, queue))
        for queue, cells in zip(seen.queues, queue_rows(seen.queues, seen.last_minute), strict=True)
    ]
    yield from _table(QUEUES, rows, width)


def _queue_page(settings: Settings, queue: QueueDepth) -> MonitorPage:
    def read() -> Any:
        with explained(settings.database):
            found = {
                name: JobSearch(settings, JobFilter(state=state, queue=queue.name)).page(SHOWN).jobs
                for name, state in IN_QUEUE
            }
            return [(name, rows_of(settings, jobs)) for name, jobs in found.items()]

    return MonitorPage(("queue", queue.name), queue.name, read, partial(_queue, settings, queue))


def _queue(settings: Settings, queue: QueueDepth, groups: Any, width: int) -> Iterator[PageLine]:
    if queue.paused is not None:
        yield from _paragraph(f"This queue is {pause_in_words(queue.paused)}", width, "wait")
        yield PageLine("")
    if not any(jobs for _, jobs in groups):
        yield from _paragraph("No jobs are in this queue, or a broker keeps them.", width)
    for name, jobs in groups:
        if jobs:
            yield PageLine(name, "heading")
            rows = [(_waiting_cells(one), job_page(settings, str(one.job.pk))) for one in jobs]
            yield from _table(WAITING, rows, width)
            yield PageLine("")


def _waiting_cells(row: JobRow) -> Cells:
    job, call = row.job, "" if row.call is None else row.call.label or row.call.line
    return job.task, str(job.priority), since(job.enqueued_at), call


# -- dead letters ---------------------------------------------------------------------------------


def _fault_lines(settings: Settings, faults: Faults, width: int) -> Iterator[PageLine]:
    if not faults.groups:
        yield PageLine("No dead letters.")
        return
    yield from _fault_table(settings, faults.groups, width)
    if faults.is_cut:
        yield from _paragraph("Only the newest 10,000 are counted.", width, "dim")


def _fault_table(
    settings: Settings, groups: Iterable[FaultGroup], width: int
) -> Iterator[PageLine]:
    rows = [
        (
            (f"{one.number:,}", kind_of(one), one.task or "unknown task", since(one.failed_at)),
            _fault_page(settings, one),
        )
        for one in groups
    ]
    yield from _table(FAULTS, rows, width)


def _fault_page(settings: Settings, fault: FaultGroup) -> MonitorPage:
    def read() -> Sequence[DeadLetter]:
        filters = {"fingerprint": fault.fingerprint, "task": fault.task}
        return page_of(settings, filters, SHOWN, None).letters

    def lines(letters: Sequence[DeadLetter], width: int) -> Iterator[PageLine]:
        yield from _paragraph(
            f"{kind_of(fault)} in {fault.task or 'an unknown task'}", width, "heading"
        )
        rows = [(_letter_cells(one), letter_page(settings, str(one.pk))) for one in letters]
        yield from _table(LETTERS, rows, width) if rows else [PageLine("None is left.")]

    return MonitorPage(("fault", fault.fingerprint, fault.task), kind_of(fault), read, lines)


def _letter_cells(letter: DeadLetter) -> Cells:
    error = first_line(letter.message) or letter.reason
    return since(letter.failed_at), str(letter.failure_count), error, letter.state


def letter_page(settings: Settings, letter_id: str) -> MonitorPage:
    """Return the page of a dead letter: its details, its error and its traceback."""

    def read() -> tuple[Story, ShownCall | None]:
        story = dead_letters.get(letter_id, backend=settings.alias)
        return story, opened_call(settings, bytes(story.letter.package))

    def lines(found: Any, width: int) -> Iterator[PageLine]:
        story, call = found
        error = f"{story.letter.exception_class}: {story.letter.message}".strip(": ")
        yield from _paragraph(error or story.letter.reason, width, "bad")
        yield from _texts(letter_lines(story, call), width)

    return MonitorPage(("letter", letter_id), letter_id[:8], read, lines)


# -- failures and jobs ----------------------------------------------------------------------------


def _failure_lines(
    settings: Settings, failed: Sequence[RecentFailure], width: int
) -> Iterator[PageLine]:
    rows = [
        ((since(one.failed_at), one.task, first_line(one.error)), job_page(settings, one.job_id))
        for one in failed
    ]
    yield from _table(FAILURES, rows, width) if rows else [PageLine("No job has failed.")]


def job_page(settings: Settings, job_id: str) -> MonitorPage:
    """Return the page of a job: its details, its timeline, its errors and its log."""

    def read() -> tuple[JobDetails, LogPage]:
        found = details_of(settings, UUID(job_id))
        return found, newest_lines(settings, found.job_id, LOG_LINES)

    def lines(seen: Any, width: int) -> Iterator[PageLine]:
        found, log = seen
        yield from _texts(job_lines(found), width)
        if log.lines:
            yield PageLine("Log, the last lines" if log.has_more else "Log", "heading")
            for line in log.lines:
                level = f"{line.level} " if line.level else ""
                yield from _paragraph(f"{line.at:%H:%M:%S} {level}{line.text}", width)

    return MonitorPage(("job", job_id), f"job {job_id[:8]}", read, lines)


def _texts(lines: Iterable[OutputLine], width: int) -> Iterator[PageLine]:
    for line in lines:
        if isinstance(line, StyledLine):
            yield PageLine(fit(line.beginning + line.rest, width), "heading")
        else:
            yield from _paragraph(line, width)
