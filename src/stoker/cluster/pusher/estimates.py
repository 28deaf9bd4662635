"""Estimates from earlier jobs: how long jobs run, and how long permits of rate limits must last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from stoker.brokers.contract import Delivery
from stoker.cluster.wire import Report
from stoker.exceptions import PackageError
from stoker.jobs.envelope import HEADER_BYTES
from stoker.jobs.package import JOB, Sealer
from stoker.values import codec

PREFETCH_SECONDS = 0.05
"""Expected run time of the jobs that a worker may hold, for each of its slots. A job that is
expected to take this long or longer leaves no room for another. So does a job whose run time is
unknown."""
LAST_TRY_WEIGHT, LAST_TRY_SECONDS = 25, 0.0001
"""The expected run time of a job in its last attempt is raised to at least LAST_TRY_SECONDS, and
multiplied by LAST_TRY_WEIGHT. So a worker gets at most 20 such jobs per slot, and only one if
they take 2 ms or more."""
LONGEST_SECONDS = 1.0
"""Longer run times count as this in averages, so that a few short jobs outweigh a very long one."""
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
        """Name of a task as in packages -> moving average, limited to PREFETCH_SECONDS."""
        self.mean_seconds = LONGEST_SECONDS
        """The average over all tasks. It determines how many jobs to claim."""
        self._has_mean = False
        self.turn_seconds = 0.0
        """The average over the jobs that take turns under a lock; 0 = unknown."""
        self._last: tuple[bytes, bytes, tuple[float, bool]] = NONE_YET
        """Cache for the next job like the last one: the common parts of their packages, and the
        estimate for a first attempt."""

    def estimate(self, delivery: Delivery) -> tuple[float, bool]:
        """Return for how many seconds this job will occupy its slot, at most PREFETCH_SECONDS, and
        whether it would be a dead letter if its worker died. If it would, it counts as a longer
        one: when the host is lost, all that workers have been sent counts as started."""
        package, (call, limits, answer) = delivery.package, self._last
        # Called for each job. Nearly all jobs are like the one before.
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
        is_last_try = delivery.attempt >= max_attempts or delivery.crashes + 1 >= max_crashes
        seconds = self._expected.get(name, PREFETCH_SECONDS)
        if is_last_try:
            seconds = min(LAST_TRY_WEIGHT * max(seconds, LAST_TRY_SECONDS), PREFETCH_SECONDS)
        answer = seconds, is_last_try
        if call and delivery.attempt == 1 and not delivery.crashes:
            self._last = call, b",[%d,%d," % (max_attempts, max_crashes), answer
        return answer

    def note(self, reports: Iterable[Report], of_turns: Iterable[Report] = ()) -> None:
        """Update the averages with reports. Ignore jobs that were refused before they began.

        Args:
            reports: of all jobs that have ended.
            of_turns: those of jobs that take turns under a lock.
        """
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
        if some := [ended - began for _, began, ended, *_ in of_turns if began is not None]:
            turn_seconds = _clipped(sum(some) / len(some))
            if self.turn_seconds:
                turn_seconds = _moved(self.turn_seconds, turn_seconds)
            self.turn_seconds = turn_seconds

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


TASK_AT = HEADER_BYTES + len('["') + 32 + len('","')
"""Position of the task's name in a package that is neither pickled nor compressed."""


class Outline(NamedTuple):
    """The head of a package, as far as a pusher needs it."""

    name: bytes
    """The task, as ``name_in_packages`` writes it. b"": the package cannot be read."""
    max_attempts: int
    """0: the package cannot be read."""
    max_crashes: int
    call: bytes = b""
    """The bytes from TASK_AT on that name task and queue; b"" if the package has none."""


def outline(sealer: Sealer, data: bytes) -> Outline:
    """Return the outline of a package. It is good for estimates only, because the signature of most
    packages is not verified."""
    if data.startswith(JOB.plain):  # nearly always
        queue_at = data.find(b'"', TASK_AT) + len('","')
        ends_at = data.find(b'"', queue_at)
        options_at = data.find(b",[", ends_at) + len(",[")  # only numbers are between them
        limits = _limits(data[options_at : options_at + 8])
        if limits is not None and data[ends_at - 1 : ends_at] != b"\\":
            call = data[TASK_AT : ends_at + len('",')]
            return Outline(call[: queue_at - TASK_AT - len('","')], *limits, call)
    try:
        package = sealer.open_without_arguments(data)
    except PackageError:
        return Outline(b"", 0, 0)
    options = package.options
    return Outline(name_in_packages(package.task), options.max_attempts, options.max_crashes)


def name_in_packages(task: str) -> bytes:
    """Return the name of a task as it is written in packages."""
    return codec.write(task)[1:-1]


@lru_cache(maxsize=1024)
def _limits(options: bytes) -> tuple[int, int] | None:
    """Parse the first two numbers of a package's options, ``max_attempts`` and ``max_crashes``.
    Return None if they are not numbers."""
    first, _, rest = options.partition(b",")
    second, comma, _ = rest.partition(b",")
    if comma and first.isdigit() and second.isdigit():
        return int(first), int(second)
    return None


SHORTEST_PERMIT_SECONDS = 0.02
"""The shortest validity of a permit that a broker supports."""
LONGEST_PERMIT_SECONDS = 1.0
REMEMBERED = 64
PERIOD_SECONDS = 1.0
"""The period of a short rate limit. With a longer one, the time lost on a permit hardly matters."""


class Permits:
    """Chooses how long permits of rate limits are valid, from how the last ones were used. On a
    busy host or database all permits would otherwise run out, and no such job would start."""

    def __init__(self) -> None:
        self._used: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """Return how long the next permits must last, chosen so that the least capacity is lost."""
        if not self._used:
            return SHORTEST_PERMIT_SECONDS
        late_seconds = PERIOD_SECONDS / len(self._used)
        used = enumerate(sorted(self._used, reverse=True))
        _, seconds = min((seconds + late * late_seconds, seconds) for late, seconds in used)
        return min(max(1.1 * seconds, SHORTEST_PERMIT_SECONDS), LONGEST_PERMIT_SECONDS)

    def note(self, asked_seconds: float, left_seconds: float) -> None:
        """Note how much time was left when a job with a permit started; negative = it was late.
        Very late jobs count less, because they had to wait for a long job."""
        self._used.append(min(asked_seconds - left_seconds, 2 * asked_seconds))
