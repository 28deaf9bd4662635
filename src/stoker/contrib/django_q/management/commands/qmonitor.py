"""``manage.py qmonitor``: the clusters, again and again."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from stoker.contrib.django_q.monitor import lines_of_clusters

EVERY_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J"


class Command(BaseCommand):
    help = "Show the clusters that live, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run-once", action="store_true", help="Show them once.")

    def handle(self, *args: Any, **options: Any) -> None:
        show_until_stopped(self, lines_of_clusters, once=options["run_once"])


def show_until_stopped(command: BaseCommand, lines: Any, *, once: bool) -> None:
    """Show these lines, again and again, at the same place of a terminal."""
    try:
        while True:
            text = "\n".join(lines())
            is_terminal = bool(getattr(command.stdout, "isatty", bool)())
            command.stdout.write(text if once or not is_terminal else CLEAR + text)
            if once:
                return
            time.sleep(EVERY_SECONDS)
    except KeyboardInterrupt:
        return
