"""How long jobs are expected to run, learned from the reports of their tasks."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.brokers.contract import Delivery
from stoker.cluster.wire import Report
from stoker.jobs.outline import TASK_AT, name_in_packages, outline
from stoker.jobs.package import Sealer

PREFETCH_SECONDS = 0.05
"""How much work may wait inside a worker, for each of its slots. A job of a task that takes as long
as this, or an unknown time, leaves no room for another."""
LONGEST_SECONDS = 1.0
"""Longer times count as this, so that a few short jobs outweigh a very long one."""
WEIGHT = 0.3
"""Weight of the newest reports in a moving average."""
MOST_TASKS = 10_000

NONE_YET = (b"\0", b"", (0.0, False))


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
        self._last: tuple[bytes, bytes, tuple[float, bool]] = NONE_YET
        """What the packages of the last job's kind have in common, and the answer for a first
        try."""

    def estimate(self, delivery: Delivery) -> tuple[float, bool]:
        """Return for how many seconds this job will occupy its slot, at most PREFETCH_SECONDS, and
        whether it would be a dead letter if its worker died. If it would, it counts as a long one:
        when the host is lost, all that workers have been sent counts as started."""
        package, (call, limits, answer) = delivery.package, self._last
        # There is one call for each job, and nearly all are like the one before.
        if (
            package.startswith(call, TASK_AT)
            and package.startswith(limits, package.find(b",[", TASK_AT + len(call)))
            and delivery.attempt == 1
            and not delivery.crashes
        ):
            return answer
        return self._look_at(delivery)

    def _look_at(self, delivery: Delivery) -> tuple[float, bool]:
        name, max_attempts, max_crashes, call = outline(self._sealer, delivery.package)
        if delivery.attempt >= max_attempts or delivery.crashes + 1 >= max_crashes:
            return PREFETCH_SECONDS, True
        answer = self._expected.get(name, PREFETCH_SECONDS), False
        if call:
            self._last = call, b",[%d,%d," % (max_attempts, max_crashes), answer
        return answer

    def note(self, reports: Iterable[Report]) -> None:
        """Learn from what workers have reported. Jobs that were refused before they began say
        nothing."""
        seconds: dict[str, list[float]] = {}
        for _, began, ended, _, _, task, _ in reports:
            if began is not None:
                seconds.setdefault(task, []).append(ended - began)
        if not seconds:
            return
        self._last = NONE_YET
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
