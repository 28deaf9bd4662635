"""``manage.py stoker``: runs clusters, and looks at them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError
from django.utils.module_loading import import_string

from stoker.exceptions import StokerError
from stoker.management.clusters import Clusters
from stoker.management.dead import Dead
from stoker.management.doctor import Doctor
from stoker.management.enqueue import Enqueue
from stoker.management.health import Health
from stoker.management.info import Info
from stoker.management.memory import Memory
from stoker.management.monitor import Monitor
from stoker.management.queues import ClearQueue, PauseQueue, ResumeQueue
from stoker.management.run import Run
from stoker.management.schedules import Schedules
from stoker.management.subcommand import (
    ExitCode,
    HelpFormatter,
    Subcommand,
    add_subcommands,
    has_own_process,
    one_sentence,
    refuse,
)
from stoker.management.why import Why
from stoker.management.workflows import Workflows

SUBCOMMANDS: tuple[type[Subcommand], ...] = (
    Run,
    Info,
    Monitor,
    Memory,
    Health,
    Why,
    Enqueue,
    Dead,
    PauseQueue,
    ResumeQueue,
    ClearQueue,
    Clusters,
    Schedules,
    Doctor,
    Workflows,
)

EPILOG = """\
`manage.py stoker SUBCOMMAND --help` tells more of each, with examples.
Options of every Django command (--settings, --verbosity, --no-color, --traceback, ...) work
before and after the subcommand."""


class Command(BaseCommand):
    """Parses, calls, and turns errors into sentences and exit codes."""

    help = (
        "Background jobs: run a cluster of workers, look at it, enqueue a job, see to dead letters "
        "and queues."
    )
    # `run` checks what it needs by itself; the others must answer quickly.
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        formatter = kwargs.pop("formatter_class", HelpFormatter)
        return super().create_parser(
            prog_name, subcommand, formatter_class=formatter, epilog=EPILOG, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        self._parser = parser
        self._subcommands = add_subcommands(parser, self, (*SUBCOMMANDS, *of_other_apps()))

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] is None:
            self._parser.print_help(self.stdout)
            return
        subcommand = self._subcommands[options["subcommand"]]
        has_own_process.set(getattr(self, "_called_from_command_line", False))
        try:
            code = subcommand.run(options)
            self.stdout.flush()
        except (StokerError, ImproperlyConfigured, DatabaseError, InterfaceError) as error:
            raise refuse(one_sentence(error)) from error
        except KeyboardInterrupt:
            sys.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            stop_writing()
            sys.exit(ExitCode.NOBODY_READS)
        if code is not ExitCode.DONE:
            sys.exit(code)


def of_other_apps() -> list[type[Subcommand]]:
    """What installed apps add: dotted paths, in ``stoker_subcommands`` of their AppConfig."""
    paths = [
        one for app in apps.get_app_configs() for one in getattr(app, "stoker_subcommands", ())
    ]
    return [import_string(path) for path in paths]


def stop_writing() -> None:
    """Nobody reads: let what is left be written nowhere, or Python complains when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
