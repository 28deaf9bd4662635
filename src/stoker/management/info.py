"""``manage.py stoker info``: queues, clusters, finished jobs and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from stoker.conf import Settings
from stoker.inspect.guards import Crowded, CrowdedKey, crowded
from stoker.inspect.stats import (
    ClusterState,
    Overview,
    WorkerState,
    longest_silence,
    overview,
    state_of,
)
from stoker.operations.queues import QUEUE_COLUMNS, pause_in_words, queue_row
from stoker.values.durations import in_words
from stoker.values.text import plural

from .screen.layout import one_line, pad, width_of
from .subcommand import (
    BACKEND,
    JSON,
    NO_JOBS,
    ExitCode,
    OutputLine,
    Subcommand,
    heading,
    no_cluster,
)


class InfoCommand(Subcommand):
    """Show queues, clusters and what their workers run.

    For each queue: how many jobs wait and run, and how long the next one has waited. For each
    cluster: what its workers run. At the end: how many finished jobs and dead letters are stored.
    Numbers over 20,000 may be estimates; these begin with a ~.

    --json writes one object:
      backend, cluster, broker, server   what is shown
      taken_at                           when
      queues[]         name, ready, deferred, blocked, running, is_exact, oldest_ready_seconds or
                       null, paused or null
        paused         since, by, because
      clusters[]       id, name, host, pid, state ("running", "quiet" or "stopping", as of the
                       last heartbeat, also if the cluster was killed: look at silent_seconds),
                       request ("", "quiet" or "stop"), started_at, silent_seconds,
                       queues[] (empty: all), leases, loops {role: seconds since its last turn},
                       processes[] (other than workers: role, pid, resident_bytes),
                       wanted_workers (null: as at its start), most_workers, is_single (runs
                       with --single), workers[]
        workers[]      number, name (number and incarnation), pid, jobs_done (attempts), running[],
                       resident_bytes (0: not known), handed_out[] (ids of jobs that it has not
                       started), is_recycled (it is replaced after its running jobs), is_leaving
                       (it starts no more jobs, and exits after its running ones)
          running[]    job_id, task, queue, attempt or null, seconds
      finished         successful, failed, cancelled, is_exact
      dead_letters     total, by_reason {reason: number}, is_exact
      guards           keys[] (with jobs waiting, the longest lines first, 20 at most), more (number
                       of other keys with jobs waiting)
        keys[]         name, kind, places, period_seconds or null, holders[] {job_id, task},
                       waiting, is_exact, next_start_seconds or null, halted_by or null,
                       is_set_by_hand
    Later versions may add keys; the keys above stay.

    Examples:
      manage.py stoker info
      manage.py stoker info --json | jq '.queues[] | {name, ready}'
    """

    name = "info"
    options = (BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        with self.without_broker():
            seen, guards = overview(settings), crowded(settings)
        lines = (*self._lines(settings, seen), *self._guard_lines(guards))
        self.answer(options, {**asdict(seen), "guards": asdict(guards)}, lines)
        return ExitCode.DONE

    def _lines(self, settings: Settings, seen: Overview) -> Iterator[OutputLine]:
        yield f"{seen.broker} ({seen.server}), cluster name {seen.cluster}"
        yield ""
        yield heading("Clusters")
        max_silence_seconds = longest_silence(settings)
        for cluster in seen.clusters:
            yield from _cluster_lines(cluster, state_of(cluster, max_silence_seconds))
        if not seen.clusters:
            yield f"  {no_cluster(settings)}"
        yield ""
        yield heading("Queues")
        rows = [queue_row(queue) for queue in seen.queues]
        yield from table_lines(QUEUE_COLUMNS, rows) if rows else [f"  {NO_JOBS}"]
        for queue in seen.queues:
            if queue.paused is not None:
                yield f"  {queue.name} is {pause_in_words(queue.paused)}"
        yield ""
        yield heading("Finished jobs in the store")
        kept, about = seen.finished, _about(seen.finished.is_exact)
        yield (
            f"  successful {about}{kept.successful:,}, failed {about}{kept.failed:,}, "
            f"cancelled {about}{kept.cancelled:,}"
        )
        yield ""
        yield heading("Dead letters")
        letters, about = seen.dead_letters, _about(seen.dead_letters.is_exact)
        by_reason = ", ".join(f"{reason} {about}{n:,}" for reason, n in letters.by_reason.items())
        yield f"  {by_reason or 'No job has failed for good.'}"

    def _guard_lines(self, guards: Crowded) -> Iterator[OutputLine]:
        if not guards.keys:
            return
        yield ""
        yield heading("Guards that block jobs")
        for key in guards.keys:
            yield from _key_lines(key)
        if guards.more:
            yield f"  and {plural(guards.more, 'other key')}"


def _cluster_lines(cluster: ClusterState, state: str) -> Iterator[str]:
    heartbeat = f"last heartbeat {in_words(cluster.silent_seconds)} ago"
    queues = f"queues: {', '.join(cluster.queues) or 'all'}"
    process = f"process {cluster.pid}{', --single' if cluster.is_single else ''}"
    yield f"  {cluster.name} on {cluster.host}, {process}: {state}, {heartbeat}, {queues}"
    for worker in cluster.workers:
        yield from _worker_lines(worker)


def _worker_lines(worker: WorkerState) -> Iterator[str]:
    attempts = plural(worker.jobs_done, "attempt")
    done = f"    worker {worker.number}, process {worker.pid}, {attempts} done: "
    if not worker.running:
        yield done + "idle"
    if worker.handed_out:
        yield f"{done}{len(worker.handed_out):,} sent to workers, not started yet"
    for job in worker.running:
        attempt = f", attempt {job.attempt}" if job.attempt else ""
        yield f"{done}{job.task or 'a job'} {job.job_id}{attempt}, for {in_words(job.seconds)}"


def _key_lines(key: CrowdedKey) -> Iterator[str]:
    waits = plural(key.waiting, "job waits", "jobs wait")
    yield f"  {key.name}: {_about(key.is_exact)}{waits}, {_room(key)}"
    if key.halted_by is not None:
        yield f"    halted until the dead letter of job {key.halted_by} is requeued or discarded"
        return
    for holder in key.holders:
        yield f"    held by {holder.task or 'a job'} {holder.job_id}"


def _room(key: CrowdedKey) -> str:
    if key.period_seconds is None:
        room = "one at a time" if key.places == 1 else f"{key.places} at a time"
        return f"{room}, set by hand" if key.is_set_by_hand else room
    rate = f"{key.places} in {in_words(key.period_seconds)}"
    return rate + f", the next in {in_words(key.next_start_seconds or 0.0)}"


def _about(is_exact: bool) -> str:
    return "" if is_exact else "~"


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return lines with columns as wide as needed: the first aligned left, the others right."""
    lines = [columns, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(width_of(line[column]) for line in lines) for column in range(len(columns))]
    for first, *others in lines:
        cells = [pad(first, widths[0])]
        cells += [
            pad(cell, width, is_right=True) for cell, width in zip(others, widths[1:], strict=True)
        ]
        yield "  " + "  ".join(cells).rstrip()
