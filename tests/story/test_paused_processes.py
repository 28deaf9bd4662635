"""Processes that are paused for longer than a lease and then resume."""

import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from stoker.models import Attempt, DeadLetter, Job

from tests.app.chaos import beat
from tests.cluster.clusters import (
    WAIT_SECONDS,
    is_alive,
    running_cluster,
    wait_for,
    wait_while_it_goes_on,
)
from tests.cluster.ends import end_of
from tests.story.beats import assert_none_overlap, spans
from tests.story.ledgers import unfinished

LEASE_SECONDS = 3.0
JOBS = 90
TRIES = {"max_attempts": 100, "max_crashes": 100}
PAUSED = (("pusher",), ("monitor",), ("worker",), ("pusher", "worker"), ("pusher", "monitor"))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.sqlite,
    pytest.mark.django_db(transaction=True),
]


def test_no_attempts_overlap_though_processes_pause_for_longer_than_a_lease(
    tmp_path: Path,
) -> None:
    """A second cluster takes over the jobs whose leases end."""
    beats = tmp_path / "beats"
    calls = [((str(beats), 0.1 + 0.02 * (number % 60)), {}) for number in range(JOBS)]
    results = beat.using(**TRIES).enqueue_many(calls)
    with (
        running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS) as first,
        running_cluster(tmp_path, LEASE_SECONDS=LEASE_SECONDS) as second,
    ):
        first.wait_for_crew()
        wait_for(lambda: len(spans(beats)) >= 4, first.tail)
        for roles in PAUSED:
            still = [first.pause(role) for role in roles]
            time.sleep(1.4 * LEASE_SECONDS)
            for process in still:
                with suppress(psutil.NoSuchProcess):  # the sentinel has killed it
                    process.resume()
            time.sleep(0.2)
        wait_while_it_goes_on(unfinished, lambda: f"{first.tail()}\n---\n{second.tail()}")
        assert first.stop() == 0
        assert second.stop() == 0
        assert "Traceback" not in first.text() + second.text()
    job_ids = [result.id for result in results]
    jobs = {str(job.pk): job for job in Job.objects.filter(pk__in=job_ids, status="SUCCESSFUL")}
    assert set(jobs) == set(job_ids)
    assert not DeadLetter.objects.exists()
    for job_id, executions in spans(beats).items():
        assert jobs[job_id].attempts in {span.attempt for span in executions}
        assert not Attempt.objects.filter(job_id=job_id, number=jobs[job_id].attempts).exists()
    assert_none_overlap(beats)


def test_worker_stops_at_the_fence_while_sentinel_and_pusher_are_paused(tmp_path: Path) -> None:
    """No process extends its lease or can kill it, so it has to stop on its own."""
    beats, may_end = tmp_path / "beats", tmp_path / "may end"
    options = {"LEASE_SECONDS": LEASE_SECONDS, "WORKERS": 1}
    with running_cluster(tmp_path, **options) as first:
        first.wait_for_crew(1)
        result = beat.using(**TRIES).enqueue(str(beats), WAIT_SECONDS, str(may_end))
        wait_for(lambda: len(spans(beats)) == 1, first.tail)
        with running_cluster(tmp_path, **options) as second:
            second.wait_for_crew(1)
            first.sentinel.suspend()
            still = [first.sentinel, first.pause_at_rest("pusher")]
            wait_for(lambda: len(spans(beats)[result.id]) == 2, second.tail)
            may_end.touch()
            end = end_of(result, second)
            for process in still:
                process.resume()
            wait_for(lambda: "is about to end" in first.text(), first.tail)
            assert second.stop() == 0
        assert first.stop() == 0
    assert (end.job.status, end.job.attempts) == (Job.Status.SUCCESSFUL, 2)
    assert_none_overlap(beats)


def test_worker_paused_for_longer_than_its_lease_does_nothing_more(
    tmp_path: Path,
) -> None:
    """Its whole cluster was paused, as if the machine had been suspended."""
    beats, may_end = tmp_path / "beats", tmp_path / "may end"
    options = {"LEASE_SECONDS": LEASE_SECONDS, "WORKERS": 4}
    with running_cluster(tmp_path, **options) as first:
        crew = first.wait_for_crew(4)
        calls = [((str(beats), WAIT_SECONDS, str(may_end)), {})] * 4
        beat.using(**TRIES).enqueue_many(calls)
        wait_for(lambda: len(spans(beats)) == 4, first.tail)
        with running_cluster(tmp_path, **options) as second:
            second.wait_for_crew(4)
            # The pusher last: it extends the leases until no worker runs any more.
            for process in (first.sentinel, *crew["worker"]):
                process.suspend()
            still = [first.sentinel, first.pause_at_rest("pusher")]
            wait_for(lambda: all(len(of) == 2 for of in spans(beats).values()), second.tail)
            for worker in crew["worker"]:
                worker.resume()
            wait_for(lambda: not any(map(is_alive, crew["worker"])), first.tail)
            may_end.touch()
            for process in still:
                process.resume()
            wait_while_it_goes_on(unfinished, second.tail)
            assert second.stop() == 0
        assert first.stop() == 0
    assert_none_overlap(beats)
