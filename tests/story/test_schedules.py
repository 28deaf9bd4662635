"""Each tick makes one job: three clusters, two of which are killed and started again.

``STOKER_TEST_SCHEDULES=200x60`` is the full size: 200 schedules with one-second intervals, for 60
seconds. The default is smaller.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from django.utils import timezone

from stoker import every, schedules
from stoker.models import Job, Schedule, Tick
from stoker.store.written import database_now_us

from tests.app.tasks import tell_moment
from tests.cluster.clusters import ProcessCluster, end_family, wait_for, wait_while_it_goes_on
from tests.story.ledgers import unfinished

SCHEDULES, SECONDS = map(int, os.environ.get("STOKER_TEST_SCHEDULES", "20x5").split("x"))
SECOND_US = 1_000_000

pytestmark = [
    pytest.mark.sqlite,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.on_redis,
    pytest.mark.chaos,
    pytest.mark.timeout(600 + 10 * SECONDS),
    pytest.mark.django_db(transaction=True),
]


def test_each_tick_is_one_job_despite_killed_clusters(tmp_path: Path) -> None:
    with ExitStack() as stack:
        clusters = [_start(tmp_path, stack) for _ in range(3)]
        for cluster in clusters:
            cluster.wait_for_crew(1)
        _create()
        for part, victim in enumerate((0, 1), 1):
            _wait_until_fired(part / 3)
            clusters[victim].kill("sentinel")
            end_family(clusters[victim])
            clusters[victim] = _start(tmp_path, stack)
        _assert_each_tick_is_one_job(clusters)


def test_each_tick_is_one_job_despite_wrong_host_clocks(tmp_path: Path) -> None:
    """One clock is an hour ahead, one an hour behind."""
    with ExitStack() as stack:
        clusters = [
            _start(tmp_path, stack, {"STOKER_TEST_MISCHIEF": f"clock:{seconds}"})
            for seconds in (3600, 0, -3600)
        ]
        for cluster in clusters:
            cluster.wait_for_crew(1)
        _create()
        _assert_each_tick_is_one_job(clusters)


def _start(
    folder: Path, stack: ExitStack, environment: Mapping[str, str] | None = None
) -> ProcessCluster:
    command = (sys.executable, "-m", "django")
    if library := os.environ.get(
        "STOKER_TEST_FAKETIME"
    ):  # changes the clock of the whole process, not only of Python
        shift = int((environment or {}).get("STOKER_TEST_MISCHIEF", "clock:0").partition(":")[2])
        command = ("env", f"LD_PRELOAD={library}", f"FAKETIME={shift:+d}s",
                   "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_NO_CACHE=1", *command)  # fmt: skip
        environment = None
    cluster = ProcessCluster(folder, command=command, environment=environment, WORKERS=1)
    stack.callback(end_family, cluster)
    return cluster


def _create() -> None:
    far = timezone.now() + timedelta(days=1)
    rule = every(seconds=1, start=far, misfire="all", misfire_cap=1000, moment_as="when")
    for number in range(SCHEDULES):
        schedules.create(f"schedule {number}", tell_moment, rule)
    start_us = database_now_us("default") // SECOND_US * SECOND_US + SECOND_US
    Schedule.objects.update(
        start_us=start_us,
        end_us=start_us + (SECONDS - 1) * SECOND_US,
        moment_us=start_us,
        due_us=start_us,
    )


def _wait_until_fired(part: float) -> None:
    wait_for(lambda: Tick.objects.count() >= part * SCHEDULES * SECONDS)


def _without_a_job() -> set[UUID]:
    """Return the ids of the ticks' jobs that are not recorded: still running, or lost."""
    return set(Tick.objects.values_list("job_id", flat=True)) - set(
        Job.objects.exclude(status=None).values_list("pk", flat=True)
    )


def _assert_each_tick_is_one_job(clusters: list[ProcessCluster]) -> None:
    def told() -> str:
        tails = "\n".join(cluster.tail(20) for cluster in clusters)
        return f"{unfinished()}\njobs of ticks missing: {sorted(_without_a_job())}\n{tails}"

    wait_while_it_goes_on(
        lambda: [*Schedule.objects.exclude(due_us=None).values_list("due_us", flat=True)], told
    )
    wait_while_it_goes_on(unfinished, told)
    wait_while_it_goes_on(_without_a_job, told)
    ticks = list(Tick.objects.all())
    assert Counter(tick.outcome for tick in ticks) == {"fired": SCHEDULES * SECONDS}
    assert len({(tick.schedule_id, tick.moment_us) for tick in ticks}) == len(ticks)
    jobs = set(Job.objects.values_list("pk", flat=True))
    assert jobs - {tick.job_id for tick in ticks} == set(), "jobs without a tick"
    assert len(jobs) == len(ticks)
    for schedule in Schedule.objects.all():
        own = sorted(tick.moment_us for tick in ticks if tick.schedule_id == schedule.pk)
        assert own == [own[0] + number * SECOND_US for number in range(SECONDS)]
    assert all(tick.fired_us >= tick.moment_us for tick in ticks), "early"
    late = sorted((tick.fired_us - tick.moment_us) / SECOND_US for tick in ticks)
    print(
        f"{len(ticks)} ticks, late by p50 {late[len(late) // 2]:.3f} s, "
        f"p99 {late[len(late) * 99 // 100]:.3f} s, at most {late[-1]:.3f} s"
    )
    assert not [line for cluster in clusters for line in cluster.complaints()]
