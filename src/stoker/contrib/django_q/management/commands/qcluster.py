"""``manage.py qcluster``: ``stoker run`` with the settings of Q_CLUSTER."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from stoker.contrib.django_q import conf
from stoker.exceptions import StokerError
from stoker.management.run import RunCommand
from stoker.management.subcommand import ExitCode, has_own_process, refuse
from stoker.values.text import first_line_of


class Command(BaseCommand):
    help = "Run a cluster, as Q_CLUSTER says. `manage.py stoker run` has more options."
    requires_system_checks = ()  # as `stoker run`, it checks what it needs

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--run-once",
            action="store_true",
            help="Stop as soon as no job is ready or runs.",
        )
        parser.add_argument(
            "-n",
            "--name",
            metavar="NAME",
            help="The cluster, of ALT_CLUSTERS, and its queue. Default: Q_CLUSTER_NAME of the "
            'environment, else "cluster_name", else "name".',
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["name"]:
            os.environ["Q_CLUSTER_NAME"] = options["name"]
            conf.install()
        has_own_process.set(getattr(self, "_called_from_command_line", False))
        level = str(conf.given().get("log_level") or "INFO").upper()
        try:
            code = RunCommand(self).run(
                {
                    "backend": conf.alias(),
                    "queues": conf.queue(),
                    "drain": options["run_once"],
                    "reload": False,
                    "single": False,
                    "log_json": False,
                    "log_level": level if level in ("DEBUG", "INFO", "WARNING") else "ERROR",
                    "verbosity": options["verbosity"],
                    **dict.fromkeys(("workers", "concurrency", "shutdown_seconds")),
                }
            )
        except StokerError as error:
            raise refuse(first_line_of(error)) from error
        if code is not ExitCode.DONE:
            raise SystemExit(code)
