"""Lines that jobs log and print, kept by clusters with LOGS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stoker.conf import settings_for
from stoker.contrib.django_q.tasks import async_task
from stoker.logs.lines import LogLine, has_ended, log_page
from stoker.models import LogChunk
from stoker.values.ids import parse_job_id

from tests.app import tasks, wordy
from tests.cluster.clusters import (
    DJANGO,
    ProcessCluster,
    environment_of_commands,
    running_cluster,
    start_command,
    wait_for,
)
from tests.cluster.ends import end_of, value_of

pytestmark = pytest.mark.usefixtures("db")

LOGS = {"level": "INFO", "max_lines": 20, "max_bytes": 4096}


@pytest.fixture(scope="module", params=[1, 4])
def cluster(
    request: pytest.FixtureRequest,
    shared_database: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProcessCluster]:
    """A cluster whose workers run tasks in the main thread, or in threads beside a loop."""
    options = {"CONCURRENCY": request.param, "WORKERS": 1, "LOGS": LOGS}
    with running_cluster(tmp_path_factory.mktemp("cluster"), **options) as cluster:
        cluster.wait_for_crew(1)
        yield cluster


def lines_of(job: Any) -> list[LogLine]:
    job_id = parse_job_id(str(getattr(job, "id", job)))
    assert job_id is not None
    return list(log_page(settings_for(), job_id).lines)


def wait_for_lines(job: Any, cluster: ProcessCluster, count: int) -> list[LogLine]:
    """Wait for that many lines: they are written after the outcome."""
    wait_for(lambda: len(lines_of(job)) >= count, cluster.tail)
    return lines_of(job)


def plain(lines: list[LogLine]) -> list[tuple[int, str, str, str]]:
    return [(one.attempt, one.level, one.source, one.text) for one in lines]


def test_each_attempt_has_what_it_logged_and_printed(cluster: ProcessCluster) -> None:
    result = wordy.log_and_print.enqueue(7, fails=True)
    end_of(result, cluster)
    seen = plain(wait_for_lines(result, cluster, 10))
    assert len(seen) == 10
    for number, lines in enumerate((seen[:5], seen[5:]), 1):
        failed = lines.pop(3)
        assert lines == [
            (number, "INFO", "shop.orders", "order 7"),
            (number, "", "stdout", "printed 7"),
            (number, "", "stderr", "complaint"),
            (number, "", "stdout", "no line feed"),
        ]
        assert failed[:3] == (number, "ERROR", "shop.orders")
        assert failed[3].startswith("order 7 failed\nTraceback (most recent call last):\n")
        assert failed[3].endswith("ValueError: 7")


def test_lines_of_concurrent_jobs_are_not_mixed(cluster: ProcessCluster) -> None:
    jobs = [wordy.log_async.enqueue(number) for number in range(4)]
    for number, result in enumerate(jobs):
        end_of(result, cluster)
        seen = [one.text for one in wait_for_lines(result, cluster, 3)]
        assert seen == [f"order {number} step {step}" for step in range(3)]


def test_lines_of_threads_with_the_jobs_context_belong_to_the_job(cluster: ProcessCluster) -> None:
    results = [wordy.log_in_threads.enqueue(number) for number in range(4)]
    for number, result in enumerate(results):
        end_of(result, cluster)
        seen = [one.text for one in wait_for_lines(result, cluster, 2)]
        assert seen == [f"order {number} thread", f"order {number} done"]


def test_lines_can_be_read_and_followed_while_the_job_runs(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    may_end, told = tmp_path / "end", tmp_path / "told"
    result = wordy.log_until.enqueue(str(may_end))
    (before,) = wait_for_lines(result, cluster, 1)
    assert before.text == "before"
    assert not has_ended(settings_for(), UUID(result.id))
    with told.open("wb") as output:
        follower = start_command(
            DJANGO,
            ["stoker", "jobs", "logs", result.id, "--follow"],
            environment_of_commands(LOGS=LOGS),
            output,
            output,
        )
    wait_for(lambda: "before" in told.read_text(), told.read_text)
    assert follower.poll() is None
    may_end.touch()
    assert follower.wait(60) == 0
    assert [line.partition(": ")[2] for line in told.read_text().splitlines()] == [
        "before",
        "after",
    ]


@pytest.mark.parametrize(("count", "characters", "kept"), [(30, 10, 20), (10, 1000, 4)])
def test_lines_beyond_the_bounds_are_counted(
    cluster: ProcessCluster, count: int, characters: int, kept: int
) -> None:
    result = wordy.log_much.enqueue(count, characters)
    end_of(result, cluster)
    *seen, last = wait_for_lines(result, cluster, kept + 1)
    assert [one.text.split()[0] for one in seen] == [str(number) for number in range(kept)]
    assert plain([last]) == [(1, "WARNING", "stoker", f"{count - kept} more lines were dropped.")]


def test_hidden_arguments_are_hidden_in_lines(cluster: ProcessCluster) -> None:
    result = wordy.log_secrets.enqueue("4711", password="hunter22", order=123456)
    end_of(result, cluster)
    seen = [one.text for one in wait_for_lines(result, cluster, 2)]
    assert seen == ["pin [withheld] and [withheld] for 123456", "[withheld][withheld]"]


def test_jobs_of_django_q_have_lines(cluster: ProcessCluster) -> None:
    job = async_task("tests.app.wordy.log_from_path", 7)
    assert plain(wait_for_lines(job, cluster, 1)) == [(1, "INFO", "shop.orders", "order 7")]


def test_job_that_logs_nothing_has_no_row(cluster: ProcessCluster) -> None:
    silent, last = tasks.add.enqueue(1, 2), wordy.log_async.enqueue(1)
    value_of(silent, cluster)
    wait_for_lines(last, cluster, 3)
    assert not LogChunk.objects.filter(job_id=silent.id).exists()


@pytest.mark.parametrize("role", ["pusher", "monitor"])
def test_lines_are_kept_again_after_a_part_of_the_cluster_died(
    cluster: ProcessCluster, role: str
) -> None:
    """Lines on their way may be lost, so this asks for lines of any later job."""
    killed = cluster.kill(role)
    wait_for(
        lambda: [one.pid for one in cluster.crew().get(role, ())] not in ([], [killed]),
        cluster.tail,
    )

    def has_lines() -> bool:
        result = wordy.log_async.enqueue(5)
        end_of(result, cluster)
        try:
            return bool(wait_for(lambda: lines_of(result), seconds=2))
        except AssertionError:
            return False

    wait_for(has_lines, cluster.tail)


def test_log_handlers_of_the_project_receive_the_same_records(cluster: ProcessCluster) -> None:
    result = wordy.log_and_print.enqueue(4242)
    wait_for_lines(result, cluster, 4)
    assert "printed 4242" in cluster.text()
    assert "order 4242" not in cluster.text()
