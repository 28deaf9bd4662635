"""``django_q.monitor``: the state of clusters, for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from stoker.values.text import shown_text

from . import conf
from .models import Failure, Schedule, Success
from .results import queue_size
from .status import Stat

EVERY_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J"


def get_ids() -> list[str]:
    """Return the ids of the live clusters."""
    return [stat.cluster_id for stat in Stat.get_all()]


def lines_of_clusters() -> Iterator[str]:
    """Yield a heading and one line for each cluster."""
    yield f"{'Host':<24} {'Id':<14} {'Status':<9} {'Jobs':>6} {'Workers':>7} {'Done':>9} {'Up':>9}"
    for stat in Stat.get_all():
        hours, seconds = divmod(int(stat.uptime()), 3600)
        up = f"{hours}:{seconds // 60:02}:{seconds % 60:02}"
        yield (
            f"{stat.host[:24]:<24} {stat.cluster_id[-12:]:<14} {stat.status:<9} "
            f"{stat.task_q_size:>6} {len(stat.workers):>7} {stat.jobs_done:>9} {up:>9}"
        )


def lines_of_info() -> Iterator[str]:
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


def show_until_stopped(command: BaseCommand, lines: Any, *, once: bool) -> None:
    """Write the lines repeatedly, at the same place of the terminal."""
    try:
        while True:
            text = shown_text("\n".join(lines()))
            is_terminal = bool(getattr(command.stdout, "isatty", bool)())
            command.stdout.write(text if once or not is_terminal else CLEAR + text)
            if once:
                return
            time.sleep(EVERY_SECONDS)
    except KeyboardInterrupt:
        return
