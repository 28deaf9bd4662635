"""``django_q.monitor``: what runs, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.utils import timezone

from . import conf
from .asking import queue_size
from .clusters import Stat
from .models import Failure, Schedule, Success


def get_ids() -> list[str]:
    """The ids of the clusters that live."""
    return [stat.cluster_id for stat in Stat.get_all()]


def lines_of_clusters() -> Iterator[str]:
    """One line for each cluster, below a heading."""
    yield f"{'Host':<24} {'Id':<14} {'Status':<9} {'Jobs':>6} {'Workers':>7} {'Done':>9} {'Up':>9}"
    for stat in Stat.get_all():
        hours, seconds = divmod(int(stat.uptime()), 3600)
        up = f"{hours}:{seconds // 60:02}:{seconds % 60:02}"
        yield (
            f"{stat.host[:24]:<24} {stat.cluster_id[-12:]:<14} {stat.status:<9} "
            f"{stat.task_q_size:>6} {len(stat.workers):>7} {stat.jobs_done:>9} {up:>9}"
        )


def lines_of_info() -> Iterator[str]:
    """How many there are of what."""
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
