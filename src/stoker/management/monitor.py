"""``manage.py stoker monitor``: show clusters, queues, dead letters and failures live."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from stoker.backend import StokerBackend
from stoker.compat import task_backends
from stoker.conf import Settings
from stoker.inspect.stats import ClusterState, state_of
from stoker.operations.dead_letters import kind_of
from stoker.operations.wording import first_line, since
from stoker.values.durations import in_words

from .arguments import positive_seconds
from .info import table_lines
from .screen.pages import views_of
from .screen.seen import PACE_COLUMNS, Seen, SeenBackend, look, queue_rows
from .screen.terminal import TerminalScreen
from .screen.viewer import Viewer
from .subcommand import (
    ExitCode,
    Subcommand,
    as_json,
    backend_settings,
    option,
    within_deadlines,
)

PlainTable = tuple[str, Sequence[str], list[Sequence[str]]]
"""Title, column names and rows of a table."""
CLUSTER_COLUMNS = ("cluster", "process", "state", "workers", "leases", "last heartbeat", "up")
WORKER_COLUMNS = ("worker", "process", "attempts", "runs", "for")
FAULT_COLUMNS = ("fault", "task", "jobs", "last")
FAILURE_COLUMNS = ("job", "task", "failed", "error")


class MonitorCommand(Subcommand):
    """Watch clusters, queues and dead letters live.

    Watch clusters, what their workers run, queues with the throughput of the last minute, dead
    letters by fault, and recent failures, of all backends or of the named ones. On a terminal it
    fills the screen: ? shows the keys, Enter opens a line, and q or Ctrl-C quits. Otherwise it
    writes plain lines.

    --json writes one object for each refresh, a line each:
      taken_at
      backends[]     name, queues[] and clusters[] as in `stoker info --json`, dead_letters,
                     max_silence_seconds (a healthy cluster sends a heartbeat more often),
                     last_minute[], faults[] as in `stoker dead stats --json`, failures[]
        last_minute[]  queue, finished, failed, retried, per_second, run_p95_seconds,
                       wait_p95_seconds
        failures[]     job_id, task, queue, failed_at, error; the newest first

    Examples:
      manage.py stoker monitor
      manage.py stoker monitor --once                 print once, as text
      manage.py stoker monitor --json --interval 60   a line every minute
    """

    name = "monitor"
    options = (
        option(
            "--backend",
            action="append",
            metavar="ALIAS",
            help="Only this backend, by its name under TASKS; may be given several times. Default: "
            "all of Stoker's.",
        ),
        option(
            "--interval",
            type=positive_seconds,
            default=2.0,
            metavar="SECONDS",
            help="Seconds between two refreshes. Default: 2.",
        ),
        option("--once", action="store_true", help="Print once, as plain text."),
        option("--json", action="store_true", help="Write JSON objects, as described above."),
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = [within_deadlines(one) for one in _backends(options["backend"])]
        is_plain = options["once"] or options["json"] or not self._has_screen()
        if not is_plain:
            has_styles = not (options["no_color"] or os.environ.get("NO_COLOR"))
            with TerminalScreen(has_styles=has_styles) as screen:
                Viewer(screen, views_of(settings), options["interval"]).run()
            return ExitCode.DONE
        while True:
            with self.without_broker():
                seen = look(settings)
            for line in (as_json(asdict(seen)),) if options["json"] else plain_lines(seen):
                self.say(line)
            if options["once"]:
                return ExitCode.DONE
            self.command.stdout.flush()
            time.sleep(options["interval"])

    def _has_screen(self) -> bool:
        """Return whether there is a terminal that can move its cursor. False on Windows, which
        lacks the needed functions."""
        if find_spec("termios") is None or os.environ.get("TERM", "dumb") == "dumb":
            return False
        return sys.stdin.isatty() and self.command.stdout.isatty()


def _backends(names: list[str] | None) -> Iterator[Settings]:
    chosen = names or [
        alias for alias in task_backends.settings if isinstance(task_backends[alias], StokerBackend)
    ]
    for alias in dict.fromkeys(chosen or ["default"]):
        yield backend_settings(alias)


def plain_lines(seen: Seen) -> Iterator[str]:
    """Return the tables as text."""
    for backend in seen.backends:
        yield f"{backend.name} at {seen.taken_at:%Y-%m-%d %H:%M:%S}"
        for title, columns, rows in _tables(backend):
            yield f"  {title}" if rows or ":" in title else f"  {title}: 0"
            if rows:
                yield from table_lines(columns, rows)
    yield ""


def _tables(seen: SeenBackend) -> Iterator[PlainTable]:
    yield "clusters", CLUSTER_COLUMNS, list(_cluster_rows(seen))
    yield "queues", PACE_COLUMNS, list(queue_rows(seen.queues, seen.last_minute))
    yield "workers", WORKER_COLUMNS, list(_worker_rows(seen.clusters))
    faults: list[Sequence[str]] = [
        (kind_of(one), one.task or "unknown task", f"{one.number:,}", since(one.failed_at))
        for one in seen.faults
    ]
    yield f"dead letters: {seen.dead_letters:,}", FAULT_COLUMNS, faults
    failed: list[Sequence[str]] = [
        (one.job_id, one.task, since(one.failed_at), first_line(one.error, 60))
        for one in seen.failures
    ]
    yield "recent failures", FAILURE_COLUMNS, failed


def _cluster_rows(seen: SeenBackend) -> Iterator[Sequence[str]]:
    for one in seen.clusters:
        now = datetime.now(one.started_at.tzinfo)
        busy = sum(1 for worker in one.workers if worker.running)
        yield (
            f"{one.name} on {one.host}",
            str(one.pid),
            state_of(one, seen.max_silence_seconds),
            f"{busy} of {len(one.workers)} busy",
            f"{one.leases:,}",
            f"{in_words(one.silent_seconds)} ago",
            in_words((now - one.started_at).total_seconds()),
        )


def _worker_rows(known: Iterable[ClusterState]) -> Iterator[Sequence[str]]:
    for cluster in known:
        for worker in cluster.workers:
            leaving = ", leaving" if worker.is_leaving else ""
            name = f"{worker.number} on {cluster.host}{leaving}"
            place = (name, str(worker.pid), f"{worker.jobs_done:,}")
            for job in worker.running:
                yield (*place, f"{job.task or 'a job'} {job.job_id}", in_words(job.seconds))
            if not worker.running:
                yield (*place, "idle", "")
