"""``manage.py qmemory``: show the memory use of the clusters on this host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from stoker.contrib.django_q import conf
from stoker.contrib.django_q.monitor import show_until_stopped
from stoker.inspect.stats import clusters
from stoker.management.memory import MIB, memory_of


class Command(BaseCommand):
    help = "Show the memory that the clusters of this host take, until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--run-once", action="store_true", help="Show it once.")
        parser.add_argument("--workers", action="store_true", help="Show each worker, too.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            import psutil  # noqa: F401 - only whether it is there
        except ImportError:
            raise CommandError("qmemory needs psutil: pip install django-stoker[memory].") from None
        show_until_stopped(self, lambda: _lines(options["workers"]), once=options["run_once"])


def _lines(workers: bool) -> Iterator[str]:
    yield f"{'Host':<24} {'Id':<14} {'Process':<10} {'MiB':>8}"
    for cluster in clusters(conf.settings()):
        if cluster.host != socket.gethostname():
            continue
        place = f"{cluster.host[:24]:<24} {cluster.id[-12:]:<14}"
        processes = memory_of(cluster).processes
        whole = sum(one.resident_bytes for one in processes)
        yield f"{place} {'all':<10} {whole / MIB:>8.1f}"
        for one in processes if workers else ():
            if one.role.startswith("worker"):
                yield f"{place} {one.role:<10} {one.resident_bytes / MIB:>8.1f}"
