"""The numbers that Prometheus is told, each with what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError
from django.utils import timezone
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.metrics import by_task, totals
from stoker.queue_depths import STATES, queues
from stoker.stats import clusters, dead_letters

RECENT = timedelta(minutes=5)
QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}

PLACE = ("backend", "queue", "task")
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "stoker_jobs": (
        "Jobs that ended, by outcome: successful, failed (dead letters), cancelled.",
        (*PLACE, "outcome"),
    ),
    "stoker_retries": ("Attempts that failed, after which the job is tried again.", PLACE),
    "stoker_run_seconds": ("Seconds that attempts ran, whatever they came to.", PLACE),
    "stoker_wait_seconds": (
        "Seconds that jobs waited for their first attempt since they were due.",
        PLACE,
    ),
}
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "stoker_up": ("Whether the store could be read: 1, else 0.", ("backend",)),
    "stoker_queue_jobs": (
        "Jobs of a queue by state: ready, deferred, blocked, running. Very many are estimated.",
        ("backend", "queue", "state"),
    ),
    "stoker_queue_oldest_ready_seconds": (
        "How long the next ready job has waited; 0 without one.",
        ("backend", "queue"),
    ),
    "stoker_queue_paused": ("Whether the queue is paused: 1, else 0.", ("backend", "queue")),
    "stoker_dead_letters": ("Dead letters that are not closed, by reason.", ("backend", "reason")),
    "stoker_clusters": ("Clusters, by state: running, quiet, stopping.", ("backend", "state")),
    "stoker_cluster_silent_seconds": (
        "Since the last sign of life of a cluster.",
        ("backend", "cluster", "host"),
    ),
    "stoker_workers": ("Worker processes.", ("backend", "cluster", "host")),
    "stoker_jobs_running": (
        "Jobs that ran at a cluster's last sign of life.",
        ("backend", "cluster", "host"),
    ),
    "stoker_task_run_seconds": (
        "Quantiles of how long attempts ran in the last five minutes.",
        ("backend", "task", "quantile"),
    ),
    "stoker_task_wait_seconds": (
        "Quantiles of how long jobs waited in the last five minutes.",
        ("backend", "task", "quantile"),
    ),
}

Sample = tuple[str, Sequence[str], float]
"""Name, labels without the backend, and value."""
Read = Callable[[Settings], Iterator[Sample]]


class Source(NamedTuple):
    """Where numbers come from."""

    read: Read
    whose: Callable[[Settings], tuple[str, ...]]
    """What they are numbers of: two backends may have it in common."""


class Numbers(Collector):
    """What the stores of these backends say now. What several of them have in common is told once,
    under the name of the first: else sums would be wrong."""

    def __init__(self, backends: Iterable[Settings]) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: kind(name, doc, labels=labels)
            for kind, known in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES))
            for name, (doc, labels) in known.items()
        }
        told: set[tuple[str, ...]] = set()
        for settings in backends:
            is_up = True
            for source in SOURCES:
                if (whose := source.whose(settings)) not in told:
                    told.add(whose)
                    is_up &= self._read(settings, source.read)
            self._add(settings, ("stoker_up", (), float(is_up)))

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield from self._families.values()

    def _read(self, settings: Settings, read: Read) -> bool:
        """What cannot be read is left out: nothing is told that is not so."""
        try:
            samples = list(read(settings))
        except (StokerError, DatabaseError, InterfaceError):
            return False
        for sample in samples:
            self._add(settings, sample)
        return True

    def _add(self, settings: Settings, sample: Sample) -> None:
        name, labels, value = sample
        self._families[name].add_metric([settings.alias, *labels], value)


def _counted(settings: Settings) -> Iterator[Sample]:
    for total in totals(settings):
        place = (total.queue, total.task)
        for outcome in ("successful", "failed", "cancelled"):
            yield "stoker_jobs", (*place, outcome), getattr(total, outcome)
        yield "stoker_retries", place, total.retried
        yield "stoker_run_seconds", place, total.run_seconds
        yield "stoker_wait_seconds", place, total.wait_seconds


def _recent(settings: Settings) -> Iterator[Sample]:
    now = timezone.now()
    for one in by_task(settings, now - RECENT, now):
        for label, name in QUANTILES.items():
            for times, metric in ((one.figures.run, "run"), (one.figures.wait, "wait")):
                value = getattr(times, name)
                if value is not None:
                    yield f"stoker_task_{metric}_seconds", (one.task, label), value


def _waiting(settings: Settings) -> Iterator[Sample]:
    for queue in queues(settings):
        for state in STATES:
            yield "stoker_queue_jobs", (queue.name, state), getattr(queue, state)
        oldest = queue.oldest_ready_seconds or 0.0
        yield "stoker_queue_oldest_ready_seconds", (queue.name,), oldest
        yield "stoker_queue_paused", (queue.name,), float(queue.paused is not None)


def _dead(settings: Settings) -> Iterator[Sample]:
    for reason, count in dead_letters(settings).by_reason.items():
        yield "stoker_dead_letters", (reason,), count


def _running(settings: Settings) -> Iterator[Sample]:
    known = clusters(settings)
    for state in ("running", "quiet", "stopping"):
        count = sum(one.state == state for one in known)
        yield "stoker_clusters", (state,), count
    for one in known:
        place = (one.id[:8], one.host)
        yield "stoker_cluster_silent_seconds", place, one.silent_seconds
        yield "stoker_workers", place, len(one.workers)
        yield "stoker_jobs_running", place, sum(len(worker.running) for worker in one.workers)


SOURCES = (
    Source(_counted, lambda settings: ("counted", settings.database)),
    Source(_recent, lambda settings: ("recent", settings.database)),
    Source(_waiting, lambda settings: ("waiting", settings.database, settings.broker)),
    Source(_dead, lambda settings: ("dead", settings.database)),
    Source(_running, lambda settings: ("running", settings.alias)),
)
