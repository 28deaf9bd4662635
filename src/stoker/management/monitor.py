"""``manage.py stoker monitor``: clusters, queues and workers, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from stoker.compat import task_backends
from stoker.conf import Settings

from .monitored import Seen, look
from .subcommand import (
    ExitCode,
    Subcommand,
    as_json,
    backend_settings,
    positive_seconds,
    within_deadlines,
)


class Monitor(Subcommand):
    name = "monitor"
    summary = "Watch clusters, queues and workers live."
    description = """\
Watch clusters, queues, workers and the throughput of the last minute, of all backends or of those
that are named. On a terminal it fills the screen, and ends at q or Ctrl-C; that needs the package
rich: pip install 'django-stoker[terminal]'. Elsewhere, or without it, it writes plain lines.

--json writes one object for each look, a line each:
  taken_at
  backends[]     name, queues[] and clusters[] as `stoker info --json` has them, dead_letters,
                 max_silence_seconds (a cluster that is well speaks more often), last_minute[]
    last_minute[]  queue, finished, failed, retried, per_second, run_p95_seconds,
                   wait_p95_seconds"""
    examples = """\
  manage.py stoker monitor
  manage.py stoker monitor --once                 one look, as text
  manage.py stoker monitor --json --interval 60   a line every minute"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--backend",
            action="append",
            metavar="ALIAS",
            help="Only this backend, by its name under TASKS; may be given several times. Default: "
            "all of Stoker's.",
        )
        parser.add_argument(
            "--interval",
            type=positive_seconds,
            default=2.0,
            metavar="SECONDS",
            help="Look so often. Default: 2.",
        )
        parser.add_argument("--once", action="store_true", help="Look once, as plain text.")
        parser.add_argument("--json", action="store_true", help="Write objects, as told above.")

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = [within_deadlines(one) for one in _backends(options["backend"])]
        is_plain = options["once"] or options["json"] or not self._has_screen()
        if not is_plain:
            from .monitor_screen import watch

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
        """Whether a person looks at it, and rich is there to show it to him."""
        if not (sys.stdin.isatty() and self.command.stdout.isatty()):
            return False
        try:
            import rich  # noqa: F401 - only whether it is there
        except ImportError:
            self.remark("A live screen needs rich: pip install 'django-stoker[terminal]'.")
            return False
        return True


def _backends(names: list[str] | None) -> Iterator[Settings]:
    from stoker.backend import StokerBackend

    chosen = names or [
        alias for alias in task_backends.settings if isinstance(task_backends[alias], StokerBackend)
    ]
    for alias in dict.fromkeys(chosen or ["default"]):
        yield backend_settings(alias)


def plain_lines(seen: Seen) -> Iterator[str]:
    """One look as text."""
    from .info import table_lines

    for backend in seen.backends:
        yield f"{backend.name} at {seen.taken_at:%Y-%m-%d %H:%M:%S}"
        for title, columns, rows in backend.tables():
            yield f"  {title}" if rows or not columns else f"  {title}: none"
            if rows:
                yield from table_lines(columns, rows)
    yield ""
