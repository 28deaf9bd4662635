"""A Django Q project that uses only `qcluster` and Q_CLUSTER."""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil
import pytest
from django.db import transaction
from django.test import override_settings

from stoker.contrib.django_q.models import OrmQ, Schedule, Task
from stoker.contrib.django_q.tasks import (
    async_chain,
    async_iter,
    async_task,
    fetch,
    result,
    result_group,
    schedule,
)
from stoker.jobs.retries import UNKNOWN_TASK_WAIT
from stoker.models import Job
from stoker.models.wait import Wait

from tests.app.models import Account
from tests.cluster.clusters import (
    DJANGO,
    WAIT_SECONDS,
    environment_of_commands,
    running_cluster,
    start_command,
    wait_for,
    wait_while_it_goes_on,
)

pytestmark = pytest.mark.django_db(transaction=True)
LONG = round(WAIT_SECONDS * 1000)  # milliseconds, a guard only
HERE = "tests.contrib.django_q.functions"
SIZE = int(os.environ.get("STOKER_TEST_SHIM_SIZE", "1"))
TASKS, CHAINS, KILLS = 100 * SIZE, 10 * SIZE, 6 * SIZE


def environment(**q_cluster: Any) -> dict[str, str]:
    return environment_of_commands(
        {
            "DJANGO_SETTINGS_MODULE": "tests.settings.from_django_q",
            "STOKER_TEST_BASE_SETTINGS": os.environ["DJANGO_SETTINGS_MODULE"],
            "STOKER_TEST_Q_CLUSTER": json.dumps(q_cluster),
        }
    )


@contextmanager
def qcluster(folder: Path, *arguments: str, **q_cluster: Any) -> Iterator[Any]:
    """Run a qcluster and end it afterwards."""
    with (folder / "qcluster.log").open("w+b") as log:
        process = start_command(
            DJANGO, ["qcluster", *arguments], environment(**q_cluster), log, log
        )
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_SECONDS) == 0, (folder / "qcluster.log").read_text()
        finally:
            process.kill()


def command(*arguments: str, **q_cluster: Any) -> tuple[int, str]:
    with TemporaryFile() as output:
        process = start_command(DJANGO, arguments, environment(**q_cluster), output, output)
        code = process.wait(WAIT_SECONDS)
        output.seek(0)
        return code, output.read().decode()


@pytest.fixture(autouse=True)
def _same_name() -> Iterator[None]:
    with override_settings(Q_CLUSTER={"name": "stoker"}):
        yield


def test_tasks_groups_chains_and_schedules_run_on_qcluster(tmp_path: Path) -> None:
    with qcluster(tmp_path):
        with transaction.atomic():
            first = async_task("math.copysign", 2, -2, task_name="first")
            assert OrmQ.objects.count() == 1
        assert result(first, wait=LONG) == -2
        for number in range(5):
            async_task("math.sqrt", number * number, group="roots")
        assert sorted(result_group("roots", wait=LONG, count=5) or []) == [0, 1, 2, 3, 4]
        chain = async_chain([("math.floor", (1.5,)), ("math.ceil", (1.5,))])
        assert result_group(chain, wait=LONG, count=2) == [2, 1]  # the newest first
        assert result(async_iter("math.floor", [1.5, 2.5]), wait=LONG) == [1, 2]
        row = schedule("math.pow", 2, 3, name="once", repeats=1)
        wait_for(lambda: Task.objects.filter(group="once").exists())
        assert Task.objects.get(group="once").result == 8
        wait_for(lambda: Schedule.objects.get(pk=row.pk).repeats == 0)
        bad = async_task("math.sqrt", -1, ack_failure=True)
        row = fetch(bad, wait=LONG)
        assert row is not None
        assert "math domain error" in row.result


def test_cluster_without_the_app_leaves_jobs_to_another(tmp_path: Path) -> None:
    """This happens in a rolling deploy of the release that adds the app. The old cluster could call
    the function, but could not record that it has ended. It does not know the tag of model
    instances, either."""
    account = Account.objects.create(total=7)
    ids = [async_task(f"{HERE}.create_account", 7001), async_task(f"{HERE}.total_of", account)]
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.settings.without_django_q",
        "STOKER_TEST_BASE_SETTINGS": os.environ["DJANGO_SETTINGS_MODULE"],
    }
    with running_cluster(tmp_path, environment=environment) as old:
        waits = Wait.objects.filter(name=UNKNOWN_TASK_WAIT)
        wait_for(lambda: waits.values("job_id").distinct().count() == 2, old.tail)
    assert Job.objects.filter(status=None).count() == 2, old.tail()
    assert not Account.objects.filter(pk=7001).exists()
    assert "Traceback" not in old.text()
    with qcluster(tmp_path):
        assert [result(one, wait=LONG) for one in ids] == [None, ["Account", 7]]
    assert Account.objects.filter(pk=7001).exists()


def test_run_once_ends_when_no_job_is_left(tmp_path: Path) -> None:
    ids = [async_task("math.floor", 1.5) for _ in range(3)]
    slow = async_task("math.floor", 2.5, cluster="slow")
    with qcluster(tmp_path, "--run-once") as process:
        assert process.wait(WAIT_SECONDS) == 0
    assert [result(one) for one in ids] == [1, 1, 1]
    assert result(slow) is None
    with qcluster(tmp_path, "--run-once", "-n", "slow") as process:
        assert process.wait(WAIT_SECONDS) == 0
    assert result(slow) == 2


@pytest.mark.slow
def test_qinfo_qmonitor_and_qmemory_show_the_cluster(tmp_path: Path) -> None:
    with qcluster(tmp_path):
        wait_for(lambda: "Workers       2" in command("qinfo")[1])
        assert len(command("qinfo", "--ids")[1].split()) == 1
        wait_for(lambda: "Idle" in command("qmonitor", "--run-once")[1])
        shown = command("qmemory", "--run-once", "--workers")[1]
        assert "worker 1" in shown
    assert "WORKERS: 2" in command("qinfo", "--config")[1]
    assert "WORKERS: 7" in command("qinfo", "--config", workers=7)[1]


def test_unsupported_settings_are_reported() -> None:
    code, told = command("check", redis={"hots": "localhost"}, orm=None, wrokers=3)
    assert code == 1
    assert "Did you mean 'workers'?" in told
    assert "Remove 'hots', or name a BROKER" in told
    code, told = command("check", cpu_affinity=1, max_attempts=0)
    assert code == 0
    assert '"cpu_affinity"] has no effect' in told
    assert "Stoker tries 3 times" in told


def crew_of(process: Any) -> list[psutil.Process]:
    """Return the pushers, monitors and workers of a cluster."""
    names = ("stoker-pusher", "stoker-monitor", "stoker-worker")
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() in names:
                found.append(child)
    return found


@pytest.mark.chaos
@pytest.mark.slow
def test_each_task_has_one_row_and_one_hook_though_processes_are_killed(
    tmp_path: Path, seed: int
) -> None:
    """The processes are killed while tasks, chains and an iteration run."""
    chance = random.Random(seed)
    function = f"{HERE}.step"
    with qcluster(tmp_path, max_attempts=100, retry=1, save_limit=0) as process:
        ids = [async_task(function, n, 0.01, hook=f"{HERE}.hook") for n in range(TASKS)]
        chains = [
            async_chain([(function, (n, 0.01), {"hook": f"{HERE}.hook"}) for n in range(4)])
            for _ in range(CHAINS)
        ]
        whole = async_iter(function, [(n, 0.01) for n in range(20)])
        most = OrmQ.objects.count()
        marks = [most * part // (KILLS + 1) for part in range(1, KILLS + 1)]

        def left() -> int:
            """Return the number of waiting jobs; kill a process at each mark."""
            count = OrmQ.objects.count()
            if marks and count <= marks[-1] and (crew := crew_of(process)):
                marks.pop()
                with suppress(psutil.NoSuchProcess):
                    chance.choice(crew).kill()
            return count

        wait_while_it_goes_on(left, (tmp_path / "qcluster.log").read_text)
    assert [result(one) for one in ids] == [*range(TASKS)]
    for chain in chains:
        rows = Task.objects.filter(group=chain).order_by("id")
        assert [row.result for row in rows] == [0, 1, 2, 3]
    assert result(whole) == [*range(20)]
    assert Task.objects.count() == TASKS + 4 * CHAINS + 1
    hooks = Job.objects.filter(task=f"{HERE}.hook")
    assert hooks.count() == TASKS + 4 * CHAINS
