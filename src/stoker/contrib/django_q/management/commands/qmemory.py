"""``manage.py qmemory``: show the memory use of the clusters on this host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from stoker.contrib.django_q.monitor import show_until_stopped
from stoker.contrib.django_q.status import Stat

MIB = 1 << 20


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
    for stat in Stat.get_all():
        if stat.host != socket.gethostname():
            continue
        place = f"{stat.host[:24]:<24} {stat.cluster_id[-12:]:<14}"
        whole, of_workers = _memory(stat)
        yield f"{place} {'all':<10} {whole / MIB:>8.1f}"
        for number, size in enumerate(of_workers if workers else ()):
            yield f"{place} {f'worker {number}':<10} {size / MIB:>8.1f}"


def _memory(stat: Stat) -> tuple[int, list[int]]:
    """Return the resident bytes of all processes, and of each worker."""
    import psutil

    sizes: dict[int, int] = {}
    try:
        sentinel = psutil.Process(stat.pid)
        for process in (sentinel, *sentinel.children(recursive=True)):
            sizes[process.pid] = process.memory_info().rss
    except psutil.Error:
        pass  # it has just ended
    return sum(sizes.values()), [sizes.get(pid, 0) for pid in stat.workers]
