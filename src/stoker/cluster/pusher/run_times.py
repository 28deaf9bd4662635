"""How long jobs are expected to run, learned from the reports of their tasks."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.cluster.wire import Report
from stoker.jobs.package import Sealer, name_in_packages

PREFETCH_SECONDS = 0.05
"""How much work may wait inside a worker, for each of its slots. A job of a task that takes as long
as this, or an unknown time, leaves no room for another."""
LONGEST_SECONDS = 1.0
"""A job that took longer counts as one that took so long, so that a few short ones outweigh it."""
WEIGHT = 0.3
"""Weight of the newest reports in a moving average."""
MOST_TASKS = 10_000


class RunTimes:
    """Moving averages of the run times of tasks.

    Args:
        sealer: opens packages whose task cannot be read otherwise.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._seconds: dict[bytes, float] = {}
        """Name of a task as in packages -> moving average."""
        self._expected: dict[bytes, float] = {}
        """The same, at most PREFETCH_SECONDS."""
        self.mean_seconds = LONGEST_SECONDS
        """The average over all tasks. It says how many jobs are worth claiming."""
        self._has_mean = False

    def expected(self, package: bytes) -> float:
        """Return for how many seconds a job will occupy its slot, at most PREFETCH_SECONDS."""
        return self._expected.get(self._sealer.task_name_in(package), PREFETCH_SECONDS)

    def note(self, reports: Iterable[Report]) -> None:
        """Learn from what workers have reported. Jobs that were refused before they began say
        nothing."""
        seconds: dict[str, list[float]] = {}
        for _, began, ended, _, _, task, _ in reports:
            if began is not None:
                seconds.setdefault(task, []).append(ended - began)
        if not seconds:
            return
        for task, some in seconds.items():
            self._learn(name_in_packages(task), sum(some) / len(some))
        count = sum(map(len, seconds.values()))
        mean_seconds = _clipped(sum(map(sum, seconds.values())) / count)
        if self._has_mean:
            mean_seconds = _moved(self.mean_seconds, mean_seconds)
        self.mean_seconds, self._has_mean = mean_seconds, True

    def _learn(self, name: bytes, seconds: float) -> None:
        if name in self._seconds:
            seconds = _moved(self._seconds[name], _clipped(seconds))
        elif len(self._seconds) >= MOST_TASKS:
            self._seconds.clear()
            self._expected.clear()
        self._seconds[name] = _clipped(seconds)
        self._expected[name] = min(self._seconds[name], PREFETCH_SECONDS)


def _moved(average: float, newest: float) -> float:
    return average + WEIGHT * (newest - average)


def _clipped(seconds: float) -> float:
    return min(max(seconds, 1e-6), LONGEST_SECONDS)
