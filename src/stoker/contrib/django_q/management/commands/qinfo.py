"""``manage.py qinfo``: show numbers, settings or ids of clusters."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from stoker.conf import option_fields
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.monitor import get_ids, lines_of_info
from stoker.values.text import shown_text


class Command(BaseCommand):
    help = "Show numbers, settings or ids of clusters."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--config", action="store_true", help="The options that result from Q_CLUSTER."
        )
        parser.add_argument("--ids", action="store_true", help="The ids of running clusters.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["ids"]:
            lines = get_ids()
        elif options["config"]:
            settings = conf.settings()
            lines = [
                f"{key}: {getattr(settings, spec.name)!r}" for key, spec in option_fields().items()
            ]
        else:
            lines = list(lines_of_info())
        for line in lines:
            self.stdout.write(shown_text(line))
