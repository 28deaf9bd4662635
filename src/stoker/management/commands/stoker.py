"""``manage.py stoker``: run clusters, inspect and manage them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError
from django.utils.module_loading import import_string

from stoker.compat import TaskResultDoesNotExist
from stoker.exceptions import StokerError
from stoker.management.subcommand import (
    ExitCode,
    HelpFormatter,
    Subcommand,
    add_subcommands,
    has_own_process,
    refuse,
)
from stoker.values.marks import InvalidMark
from stoker.values.text import first_line_of

SUBCOMMANDS = {
    "run": "stoker.management.run.RunCommand",
    "info": "stoker.management.info.InfoCommand",
    "monitor": "stoker.management.monitor.MonitorCommand",
    "memory": "stoker.management.memory.MemoryCommand",
    "health": "stoker.management.health.HealthCommand",
    "why": "stoker.management.why.WhyCommand",
    "enqueue": "stoker.management.enqueue.Enqueue",
    "tasks": "stoker.management.tasks.TasksCommand",
    "jobs": "stoker.management.jobs.JobsCommand",
    "dead": "stoker.management.dead.DeadLettersCommand",
    "pause": "stoker.management.queues.PauseQueue",
    "resume": "stoker.management.queues.ResumeQueue",
    "clear": "stoker.management.queues.ClearQueue",
    "bulk": "stoker.management.bulk.BulkCommand",
    "clusters": "stoker.management.clusters.ClustersCommand",
    "schedules": "stoker.management.schedules.SchedulesCommand",
    "doctor": "stoker.management.doctor.DoctorCommand",
    "workflows": "stoker.management.workflows.WorkflowsCommand",
    "completion": "stoker.management.completion.CompletionCommand",
}
"""Name -> path of the class."""

REFUSALS = (
    StokerError,
    TaskResultDoesNotExist,
    ImproperlyConfigured,
    DatabaseError,
    InterfaceError,
)
EPILOG = """\
`manage.py stoker SUBCOMMAND --help` shows the options of each, with examples.
Options of every Django command (--settings, --verbosity, --no-color, --traceback, ...) work
before and after the subcommand."""


class Command(BaseCommand):
    """Parse the command line, run a subcommand, turn errors into sentences and exit codes."""

    help = (
        "Background jobs: run clusters of workers, enqueue jobs, inspect and manage queues, jobs, "
        "dead letters, schedules and workflows."
    )
    # `run` makes its own checks; the others must answer quickly.
    requires_system_checks = ()
    _typed = ""
    """The word after ``stoker`` on the command line, usually the subcommand."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        formatter = kwargs.pop("formatter_class", HelpFormatter)
        return super().create_parser(
            prog_name, subcommand, formatter_class=formatter, epilog=EPILOG, **kwargs
        )

    def get_version(self) -> str:
        """Return what ``stoker --version`` writes."""
        return f"Stoker {version('django-stoker')}, Django {super().get_version()}"

    def add_arguments(self, parser: CommandParser) -> None:
        self._parser = parser
        self._subcommands = add_subcommands(parser, self, self._needed())
        if not self._typed.startswith("-") and self._typed not in self._subcommands:
            for near in get_close_matches(self._typed, self._subcommands, n=1):
                parser.error(f"There is no subcommand {self._typed!r}. Did you mean {near!r}?")

    def run_from_argv(self, argv: list[str]) -> None:
        self._typed = "".join(argv[2:3])
        super().run_from_argv(argv)

    def _needed(self) -> list[type[Subcommand]]:
        """Return the subcommand that was typed. To load the others, too, would take longer than
        most subcommands run, and processes of ``run`` would keep them for weeks. If the word is not
        known, return all, for the help and for error messages."""
        if path := SUBCOMMANDS.get(self._typed):
            return [import_string(path)]
        return [*map(import_string, SUBCOMMANDS.values()), *of_other_apps()]

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] is None:
            self._parser.print_help(self.stdout)
            return
        subcommand = self._subcommands[options["subcommand"]]
        has_own_process.set(getattr(self, "_called_from_command_line", False))
        try:
            code = subcommand.run(options)
            self.stdout.flush()
        except InvalidMark as error:
            raise refuse(f"--after: {error}.") from error
        except REFUSALS as error:
            raise refuse(first_line_of(error)) from error
        except KeyboardInterrupt:
            sys.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            stop_writing()
            sys.exit(ExitCode.NOBODY_READS)
        if code is not ExitCode.DONE:
            sys.exit(code)


def of_other_apps() -> list[type[Subcommand]]:
    """Return the subcommands that AppConfigs of installed apps list in ``stoker_subcommands``."""
    paths = [
        one for app in apps.get_app_configs() for one in getattr(app, "stoker_subcommands", ())
    ]
    return [import_string(path) for path in paths]


def stop_writing() -> None:
    """Discard the rest of the output. Otherwise Python would complain about the closed pipe when it
    exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
