"""``manage.py stoker``: runs clusters, and looks at them."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError

from stoker.exceptions import StokerError
from stoker.management.enqueue import Enqueue
from stoker.management.health import Health
from stoker.management.info import Info
from stoker.management.run import Run
from stoker.management.subcommand import (
    ExitCode,
    HelpFormatter,
    Subcommand,
    SubcommandParser,
    one_sentence,
    refuse,
)

SUBCOMMANDS: tuple[type[Subcommand], ...] = (Run, Info, Health, Enqueue)

EPILOG = """\
`manage.py stoker SUBCOMMAND --help` tells more of each, with examples.
Options of every Django command (--settings, --verbosity, --no-color, --traceback, ...) work
before and after the subcommand."""


class Command(BaseCommand):
    """Parses, calls, and turns errors into sentences and exit codes."""

    help = "Background jobs: run a cluster of workers, look at it, enqueue a job."
    # `run` checks what it needs by itself; the others must answer quickly.
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        formatter = kwargs.pop("formatter_class", HelpFormatter)
        return super().create_parser(
            prog_name, subcommand, formatter_class=formatter, epilog=EPILOG, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        self._parser = parser
        self._subcommands = {kind.name: kind(self) for kind in SUBCOMMANDS}
        group = parser.add_subparsers(
            dest="subcommand",
            title="subcommands",
            metavar="SUBCOMMAND",
            parser_class=SubcommandParser,
        )
        for name, subcommand in self._subcommands.items():
            own = group.add_parser(
                name,
                help=subcommand.summary,
                description=subcommand.description,
                epilog="examples:\n" + subcommand.examples.rstrip(),
                formatter_class=HelpFormatter,
            )
            subcommand.add_arguments(own)
            add_base_options(own)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] is None:
            self._parser.print_help(self.stdout)
            return
        subcommand = self._subcommands[options["subcommand"]]
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


def add_base_options(parser: CommandParser) -> None:
    """Those of every Django command, after the subcommand as well. Without defaults: what was
    given before the subcommand must stand."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **hidden)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, **hidden)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", **hidden)


def stop_writing() -> None:
    """Nobody reads: let what is left be written nowhere, or Python complains when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
