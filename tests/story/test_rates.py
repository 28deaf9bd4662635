"""Rates measured by the tasks themselves: never too many starts, and hardly any lost.

STOKER_TEST_RATE_SECONDS=60 makes the runs that long and adds rates with longer periods. Then 95 %
of each rate must be reached, which needs an idle machine.
"""

import os
import random
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import transaction

from stoker import Rate
from stoker.models import DeadLetter, Job

from tests.app import chaos
from tests.app.rates import write_start
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.story.ledgers import unfinished

LONG_SECONDS = float(os.environ.get("STOKER_TEST_RATE_SECONDS", "0"))
SECONDS = LONG_SECONDS or 4.0
RATES = ["20/s", "50/10s", "100/m"] if LONG_SECONDS else ["20/s"]
SHARE = 0.95
"""The part of a rate that must be reached in a long run."""
WAIT_SECONDS = 150.0
TRIES = {"max_attempts": 100, "max_crashes": 100}

pytestmark = [pytest.mark.postgres, pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]


@pytest.mark.slow
@pytest.mark.parametrize("written", RATES)
def test_two_clusters_start_no_more_jobs_than_the_rate_allows(written: str, tmp_path: Path) -> None:
    rate = Rate(written)
    periods = max(1, int(SECONDS / rate.period_seconds))
    count = periods * rate.starts + 1
    starts = _Starts(tmp_path / "starts")
    calls = [((str(starts.path),), {})] * (count + 2 * rate.starts)
    write_start.using(rate=rate).enqueue_many(calls)
    with running_cluster(tmp_path) as first, running_cluster(tmp_path) as second:
        wait_for(lambda: starts.count() >= count, _tails(first, second), WAIT_SECONDS)
        assert first.stop() == 0
        assert second.stop() == 0
        assert not first.complaints() + second.complaints()
    seconds = starts.seconds_of(periods * rate.starts)
    share = periods * rate.period_seconds / seconds
    print(f"{written}: {share:.1%} of the rate; at most {starts.most(rate)} in a window")
    assert starts.most(rate) <= rate.starts
    assert share >= (SHARE if LONG_SECONDS else 0)
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@pytest.mark.chaos
def test_kills_cause_no_more_starts_than_the_rate_allows(seed: int, tmp_path: Path) -> None:
    """Permits of killed processes are lost, but none is used twice or too late."""
    rate, jobs = Rate("20/s"), 120
    chance = random.Random(seed)
    starts = _Starts(tmp_path / "starts")
    calls = [((str(starts.path), chance.random() * 0.05), {}) for _ in range(jobs)]
    results = write_start.using(rate=rate, **TRIES).enqueue_many(calls)
    with running_cluster(tmp_path) as first, running_cluster(tmp_path) as second:
        first.wait_for_crew()
        for before in range(0, jobs, 10):
            wait_for(lambda: starts.count() >= before or not unfinished())  # noqa: B023 - at once
            chance.choice([first, second]).kill(chance.choice(["pusher", "worker", "monitor"]))
        wait_for(lambda: not unfinished(), _tails(first, second), WAIT_SECONDS)
        assert first.stop() == 0
        assert second.stop() == 0
    assert starts.most(rate) <= rate.starts
    recorded = Job.objects.filter(pk__in=[result.id for result in results], status="SUCCESSFUL")
    assert recorded.count() == jobs


@pytest.mark.slow
def test_jobs_without_a_rate_pass_waiting_rated_jobs(tmp_path: Path) -> None:
    rated, free = _Starts(tmp_path / "rated"), _Starts(tmp_path / "free")
    write_start.using(rate=Rate("5/h")).enqueue_many([((str(rated.path),), {})] * 500)
    write_start.enqueue_many([((str(free.path),), {})] * 200)
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: free.count() == 200 and rated.count() == 5, _tails(cluster))
        wait_for(lambda: unfinished() == {"blocked": 495}, lambda: str(unfinished()))
        assert cluster.stop() == 0
    assert rated.count() == 5


def test_rated_job_runs_once_if_a_long_job_follows_it_in_its_worker(tmp_path: Path) -> None:
    """The rated job overtakes the long one, and its report waits for the long one's end. Meanwhile
    the other worker is idle, and the pusher recalls unstarted jobs from the first."""
    rated, may_end = _Starts(tmp_path / "rated"), tmp_path / "may end"
    with transaction.atomic():
        short = [write_start.enqueue(str(tmp_path / "short")) for _ in range(2)]
        long = chaos.run_until.enqueue(str(may_end))
        short.append(write_start.using(rate=Rate("20/s")).enqueue(str(rated.path)))
    with running_cluster(tmp_path) as cluster:
        waiting = Job.objects.filter(pk__in=[job.id for job in short]).exclude(status="SUCCESSFUL")
        wait_for(lambda: not waiting.exists(), _tails(cluster))
        may_end.touch()
        wait_for(lambda: Job.objects.get(pk=long.id).status == "SUCCESSFUL", _tails(cluster))
        assert cluster.stop() == 0
    assert rated.count() == 1


class _Starts:
    """The start times that the tasks wrote to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        return len(self._moments_ns())

    def most(self, rate: Rate) -> int:
        """Return the most starts in any window as long as the period."""
        moments = self._moments_ns()
        period_ns = round(rate.period_seconds * 1e9)
        ends = [bisect_left(moments, moment + period_ns) for moment in moments]
        return max(end - begin for begin, end in enumerate(ends))

    def seconds_of(self, count: int) -> float:
        """Return the time from the first start until ``count`` starts later."""
        moments = self._moments_ns()
        return (moments[count] - moments[0]) / 1e9

    def _moments_ns(self) -> list[int]:
        lines = self.path.read_text().split() if self.path.exists() else []
        return sorted(map(int, lines))


def _tails(*clusters: ProcessCluster) -> Callable[[], str]:
    return lambda: "\n---\n".join(cluster.tail() for cluster in clusters)
