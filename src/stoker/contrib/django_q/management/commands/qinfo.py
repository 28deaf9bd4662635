"""``manage.py qinfo``: show numbers, settings or ids of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from stoker.conf import option_fields
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.models import Failure, Schedule, Success
from stoker.contrib.django_q.monitor import get_ids
from stoker.contrib.django_q.results import queue_size
from stoker.contrib.django_q.status import Stat
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
            lines = list(_lines())
        for line in lines:
            self.stdout.write(shown_text(line))


def _lines() -> Iterator[str]:
    """Yield lines with the number of clusters, workers, jobs and tasks."""
    day_ago = timezone.now() - timedelta(days=1)
    yield f"Name {conf.Conf.PREFIX}, queue {conf.queue()}, broker {conf.settings().broker}"
    yield f"Clusters      {len(Stat.get_all())}"
    yield f"Workers       {sum(len(stat.workers) for stat in Stat.get_all())}"
    yield f"Queued        {queue_size()}"
    yield f"Schedules     {Schedule.objects.count()}"
    yield f"Successes     {Success.objects.count()}"
    yield f"Failures      {Failure.objects.count()}"
    ended = Success.objects.filter(stopped__gte=day_ago).count()
    yield f"In 24 hours   {ended} successes"
