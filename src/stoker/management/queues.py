"""``manage.py stoker pause``, ``resume`` and ``clear``: what may be done to a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from stoker import queues

from .bar import bar
from .labels import positive
from .subcommand import (
    ExitCode,
    Subcommand,
    add_backend,
    as_json,
    backend_settings,
    user,
    within_deadlines,
)


class _OfQueue(Subcommand):
    """Something done to one queue."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", help="Its name.")
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def add_reason(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--by",
            metavar="NAME",
            help="Name recorded with the action. Default: the user who runs the command.",
        )
        parser.add_argument(
            "--because", default="", metavar="TEXT", help="Reason, recorded with the action."
        )

    def backend(self, options: dict[str, Any]) -> str:
        return within_deadlines(backend_settings(options["backend"])).alias

    def reason(self, options: dict[str, Any]) -> dict[str, str]:
        return {"by": options["by"] or user(), "because": options["because"]}


class PauseQueue(_OfQueue):
    name = "pause"
    summary = "Let no cluster start jobs of a queue."
    description = """\
Let no cluster start jobs of this queue, from within a second on until `stoker resume`, restarts
included. Jobs that run go on; those that were fetched and have not started are given back, and the
attempt does not count. Jobs may be enqueued all the while. `stoker info` shows what is paused. A
queue that is paused already stays so as it is: you are told since when.

--json writes one object: queue, paused {since, by, because}."""
    examples = """\
  manage.py stoker pause mail --because "the provider is down\""""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_reason(parser)

    def run(self, options: dict[str, Any]) -> ExitCode:
        queue, backend = options["queue"], self.backend(options)
        pause = queues.pause(queue, backend=backend, **self.reason(options))
        if options["json"]:
            self.say(as_json({"queue": queue, "paused": pause}))
        else:
            self.say(f"{queue} is {told(pause)}")
        return ExitCode.DONE


class ResumeQueue(_OfQueue):
    name = "resume"
    summary = "Let the jobs of a paused queue be started again."
    description = """\
Let the jobs of a paused queue be started again: by every cluster that serves it, within a second.

--json writes one object: queue, was_paused (true, false)."""
    examples = """\
  manage.py stoker resume mail"""

    def run(self, options: dict[str, Any]) -> ExitCode:
        queue, backend = options["queue"], self.backend(options)
        was_paused = queues.resume(queue, backend=backend)
        if options["json"]:
            self.say(as_json({"queue": queue, "was_paused": was_paused}))
        else:
            self.say(f"{queue} goes on" if was_paused else f"{queue} was not paused")
        return ExitCode.DONE


class ClearQueue(_OfQueue):
    name = "clear"
    summary = "Cancel the jobs that wait in a queue."
    description = """\
Cancel the jobs that wait in a queue, those included that wait for their moment or for a guard.
Each is kept as CANCELLED, with who did it and why. Jobs that run go on. What is enqueued meanwhile
may be cancelled, too: pause the queue first.

--json writes one object: queue, matched, done, dry_run."""
    examples = """\
  manage.py stoker clear mail --dry-run
  manage.py stoker clear mail --because "yesterday's news\""""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_reason(parser)
        parser.add_argument(
            "--limit", type=positive, metavar="N", help="Maximum number. Default: all."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Only count them; change nothing."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        queue, backend, dry_run = options["queue"], self.backend(options), options["dry_run"]
        with bar("cancelling jobs"):
            cleared = queues.clear(
                queue,
                limit=options["limit"],
                dry_run=dry_run,
                backend=backend,
                **self.reason(options),
            )
        if options["json"]:
            shape = {"queue": queue, "matched": cleared.matched, "done": cleared.done}
            self.say(as_json({**shape, "dry_run": dry_run}))
        elif dry_run:
            self.say(f"{cleared.matched:,} would be cancelled")
        else:
            self.say(f"{cleared.done:,} cancelled")
        return ExitCode.DONE


def told(pause: queues.Pause) -> str:
    """``paused since ..., by ...: ...``."""
    by = f", by {pause.by}" if pause.by else ""
    because = f": {pause.because}" if pause.because else ""
    return f"paused since {pause.since.isoformat(sep=' ', timespec='seconds')}{by}{because}"
