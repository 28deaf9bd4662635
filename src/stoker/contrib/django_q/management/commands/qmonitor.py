"""``manage.py qmonitor``: show the clusters until Ctrl-C."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from stoker.contrib.django_q.monitor import lines_of_clusters, show_until_stopped


class Command(BaseCommand):
    help = "Show the running clusters, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run-once", action="store_true", help="Show them once.")

    def handle(self, *args: Any, **options: Any) -> None:
        show_until_stopped(self, lines_of_clusters, once=options["run_once"])
