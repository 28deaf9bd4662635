"""``manage.py stoker monitor``: show clusters, queues and workers live."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError

from stoker.backend import StokerBackend
from stoker.compat import task_backends
from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.inspect.queue_depths import QueueDepth, queues
from stoker.inspect.stats import ClusterState, clusters, dead_letters, longest_silence, state_of
from stoker.metrics import by_queue
from stoker.operations.queues import QUEUE_COLUMNS, queue_row
from stoker.values.durations import in_words
from stoker.values.text import first_line_of

from .arguments import positive_seconds
from .info import table_lines
from .subcommand import (
    ExitCode,
    Subcommand,
    as_json,
    backend_settings,
    option,
    within_deadlines,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PERIOD_SECONDS = 60

Rows = tuple[str, Sequence[str], list[Sequence[str]]]
"""Title, column names and rows of a table."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Number of jobs of one queue that ended in the last minute, and their times."""

    queue: str
    finished: int
    failed: int
    retried: int
    per_second: float
    run_p95_seconds: float | None
    wait_p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class SeenBackend:
    """One backend, as read at one moment."""

    name: str
    queues: tuple[QueueDepth, ...]
    clusters: tuple[ClusterState, ...]
    dead_letters: int
    last_minute: tuple[Pace, ...]
    max_silence_seconds: float
    """Seconds without a heartbeat after which a cluster counts as silent."""

    def tables(self) -> Iterator[Rows]:
        """Return the tables to show."""
        yield "clusters", CLUSTER_COLUMNS, list(self._cluster_rows())
        yield "queues", PACE_COLUMNS, list(self._queue_rows())
        yield "workers", WORKER_COLUMNS, list(_worker_rows(self.clusters))
        yield f"dead letters: {self.dead_letters:,}", (), []

    def _cluster_rows(self) -> Iterator[Sequence[str]]:
        for one in self.clusters:
            started_at = one.started_at
            now = datetime.now(started_at.tzinfo)
            busy = sum(1 for worker in one.workers if worker.running)
            yield (
                f"{one.name} on {one.host}",
                str(one.pid),
                state_of(one, self.max_silence_seconds),
                f"{busy} of {len(one.workers)} busy",
                f"{one.leases:,}",
                f"{in_words(one.silent_seconds)} ago",
                in_words((now - started_at).total_seconds()),
            )

    def _queue_rows(self) -> Iterator[Sequence[str]]:
        paces = {one.queue: one for one in self.last_minute}
        for queue in self.queues:
            pace = paces.get(queue.name)
            name, *numbers = queue_row(queue)
            yield (
                f"{name} (paused)" if queue.paused is not None else name,
                *numbers,
                f"{pace.per_second:,.1f}" if pace is not None else "0.0",
                f"{pace.failed:,}" if pace is not None else "0",
                _time(pace.run_p95_seconds if pace is not None else None),
                _time(pace.wait_p95_seconds if pace is not None else None),
            )


@dataclass(frozen=True, slots=True)
class Seen:
    """All shown backends, as read at one moment."""

    taken_at: datetime
    backends: tuple[SeenBackend, ...]


CLUSTER_COLUMNS = ("cluster", "process", "state", "workers", "leases", "last heartbeat", "up")
PACE_COLUMNS = (*QUEUE_COLUMNS, "done/s", "failed/min", "p95 run", "p95 wait")
WORKER_COLUMNS = ("worker", "process", "jobs done", "runs", "for")


def look(settings: Iterable[Settings]) -> Seen:
    """Read the state of the backends.

    Raises:
        BrokerUnavailable, NotMigrated: The store cannot be read.
    """
    return Seen(datetime.now(UTC), tuple(_look(one) for one in settings))


def _look(settings: Settings) -> SeenBackend:
    now = datetime.now(UTC)
    paces = (
        Pace(
            queue=one.queue,
            finished=one.figures.finished,
            failed=one.figures.failed,
            retried=one.figures.retried,
            per_second=round(one.figures.finished / PERIOD_SECONDS, 3),
            run_p95_seconds=one.figures.run.p95,
            wait_p95_seconds=one.figures.wait.p95,
        )
        for one in by_queue(settings, now - timedelta(seconds=PERIOD_SECONDS), now)
    )
    return SeenBackend(
        name=settings.alias,
        queues=queues(settings),
        clusters=clusters(settings),
        dead_letters=dead_letters(settings).total,
        last_minute=tuple(paces),
        max_silence_seconds=longest_silence(settings),
    )


def _worker_rows(known: Iterable[ClusterState]) -> Iterator[Sequence[str]]:
    for cluster in known:
        for worker in cluster.workers:
            place = (f"{worker.number} on {cluster.host}", str(worker.pid), f"{worker.jobs_done:,}")
            for job in worker.running:
                yield (*place, f"{job.task or 'a job'} {job.job_id}", in_words(job.seconds))
            if not worker.running:
                yield (*place, "idle", "")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else in_words(seconds)


STYLES = {"running": "green", "quiet": "yellow", "stopping": "yellow"}


def watch(settings: Sequence[Settings], interval_seconds: float) -> None:
    """Show the backends until q is pressed. If the store cannot be read, show the reason."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = Live(Text("Looking ..."), console=Console(), screen=True, auto_refresh=False)
    with live, keys():
        while True:
            live.update(_try_look(settings), refresh=True)
            if is_quit_within(interval_seconds):
                return


def screen_of(seen: Seen) -> RenderableType:
    """Return the contents of the screen."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for backend in seen.backends:
        parts.append(Text(f"{backend.name}  {seen.taken_at.astimezone():%H:%M:%S}", style="bold"))
        for title, columns, rows in backend.tables():
            parts.append(_table(title, columns, rows) if rows else Text(f"{title}", style="dim"))
    parts.append(Text("q: leave", style="dim"))
    return Group(*parts)


def _try_look(settings: Sequence[Settings]) -> RenderableType:
    from rich.text import Text

    try:
        return screen_of(look(settings))
    except (StokerError, DatabaseError, InterfaceError) as error:
        return Text(first_line_of(error), style="red")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import table as tables
    from rich.text import Text

    table = tables.Table(title=title, title_justify="left", expand=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table


@contextmanager
def keys() -> Iterator[None]:
    """Let keys be read as they are pressed, without Enter, inside the block."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def is_quit_within(seconds: float) -> bool:
    """Wait for a key. Return whether q was pressed or the terminal was closed."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


class MonitorCommand(Subcommand):
    """Watch clusters, queues and workers live.

    Watch clusters, queues, workers and the throughput of the last minute, of all backends or of the
    named ones. On a terminal it fills the screen, and ends at q or Ctrl-C; that needs the package
    rich: pip install 'django-stoker[terminal]'. Otherwise it writes plain lines.

    --json writes one object for each refresh, a line each:
      taken_at
      backends[]     name, queues[] and clusters[] as in `stoker info --json`, dead_letters,
                     max_silence_seconds (a healthy cluster sends a heartbeat more often),
                     last_minute[]
        last_minute[]  queue, finished, failed, retried, per_second, run_p95_seconds,
                       wait_p95_seconds

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
            watch(settings, options["interval"])
            return ExitCode.DONE
        while True:
            seen = look(settings)
            for line in (as_json(asdict(seen)),) if options["json"] else plain_lines(seen):
                self.say(line)
            if options["once"]:
                return ExitCode.DONE
            self.command.stdout.flush()
            time.sleep(options["interval"])

    def _has_screen(self) -> bool:
        """Return whether there is a terminal and rich is installed. False on Windows, which lacks
        the needed terminal functions."""
        if find_spec("termios") is None:
            return False
        if not (sys.stdin.isatty() and self.command.stdout.isatty()):
            return False
        try:
            import rich  # noqa: F401 - only whether it is there
        except ImportError:
            self.remark("A live screen needs rich: pip install 'django-stoker[terminal]'.")
            return False
        return True


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
        for title, columns, rows in backend.tables():
            yield f"  {title}" if rows or not columns else f"  {title}: none"
            if rows:
                yield from table_lines(columns, rows)
    yield ""
