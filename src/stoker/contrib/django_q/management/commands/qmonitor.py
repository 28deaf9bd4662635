"""``manage.py qmonitor``: show the clusters until Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from stoker.contrib.django_q.monitor import show_until_stopped
from stoker.contrib.django_q.status import Stat


class Command(BaseCommand):
    help = "Show the running clusters, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run-once", action="store_true", help="Show them once.")

    def handle(self, *args: Any, **options: Any) -> None:
        show_until_stopped(self, _lines, once=options["run_once"])


def _lines() -> Iterator[str]:
    """Yield a heading and one line for each cluster."""
    yield f"{'Host':<24} {'Id':<14} {'Status':<9} {'Jobs':>6} {'Workers':>7} {'Done':>9} {'Up':>9}"
    for stat in Stat.get_all():
        hours, seconds = divmod(int(stat.uptime()), 3600)
        up = f"{hours}:{seconds // 60:02}:{seconds % 60:02}"
        yield (
            f"{stat.host[:24]:<24} {stat.cluster_id[-12:]:<14} {stat.status:<9} "
            f"{stat.task_q_size:>6} {len(stat.workers):>7} {stat.jobs_done:>9} {up:>9}"
        )
