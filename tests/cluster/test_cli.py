"""`manage.py stoker` in separate processes on the tests' database."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from stoker.models import Attempt, Cluster, Job, Ready
from stoker.store.written import DatabaseNow

from tests.app.chaos import run_until
from tests.app.mischief import open_files
from tests.app.models import Ledger
from tests.app.tasks import add, fail_once, write_ledger
from tests.cluster.clusters import (
    DJANGO,
    ROOT,
    WAIT_SECONDS,
    environment_of_commands,
    run_command,
    running_cluster,
    start_command,
    wait_for,
)
from tests.cluster.ends import value_of
from tests.cluster.projects import Project, Releases
from tests.story.ledgers import assert_all_recorded_once, unfinished

# Tests in which the database plays no part run on SQLite only: @pytest.mark.sqlite.
pytestmark = pytest.mark.django_db(transaction=True)

LONG = str(WAIT_SECONDS)


def stoker(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return run_command("stoker", *arguments, **options)


def without_database() -> dict[str, str]:
    """Return an environment in which the database is unreachable."""
    return {"STOKER_TEST_DATABASES": json.dumps({"default": "/nowhere/at/all"})}


def assert_one_sentence(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


# -- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start_method", ["fork", pytest.param("spawn", marks=[pytest.mark.sqlite, pytest.mark.slow])]
)
def test_drain_ends_when_no_job_is_ready(start_method: str) -> None:
    job_ids = [result.id for result in write_ledger.enqueue_many([((), {})] * 50)]
    later = write_ledger.using(run_after=3600).enqueue()
    done = stoker("run", "--drain", START_METHOD=start_method)
    assert done.returncode == 0, done.stderr
    assert unfinished() == {"deferred": 1}
    later.cancel()
    assert_all_recorded_once(job_ids)
    assert not Cluster.objects.exists()


def test_run_with_queues_serves_only_these() -> None:
    served, other = add.using(queue_name="mail").enqueue(1, 2), add.enqueue(1, 2)
    assert stoker("run", "--drain", "--queues", "mail,post", "--workers", "1").returncode == 0
    served.refresh()
    other.refresh()
    assert (served.status, other.status) == ("SUCCESSFUL", "READY")


def start_of_a_job(seconds: float) -> str:
    """Enqueue a job that runs for so long and return its id."""
    return str(write_ledger.enqueue(seconds=seconds).id)


def test_sigterm_lets_running_jobs_finish(tmp_path: Path) -> None:
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        job_id = run_until.enqueue(str(may_end)).id
        wait_for(Ledger.objects.exists, cluster.tail)
        waiting = [run_until.enqueue(str(may_end)).id for _ in range(5)]
        cluster.signal(signal.SIGTERM)
        wait_for(lambda: "Stopping" in cluster.text(), cluster.tail)
        wait_for(Cluster.objects.filter(state="stopping").exists, cluster.tail)
        may_end.touch()
        assert cluster.wait() == 0
    assert Job.objects.get(pk=job_id).status == "SUCCESSFUL"
    assert Ready.objects.filter(pk__in=waiting, attempts=0).count() >= len(waiting) - 1
    assert not Cluster.objects.exists()


def test_second_sigterm_interrupts_at_once_and_costs_no_attempt(tmp_path: Path) -> None:
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=120) as cluster:
        job_id = start_of_a_job(120)
        wait_for(Ledger.objects.exists, cluster.tail)
        cluster.signal(signal.SIGTERM)
        wait_for(lambda: "Stopping" in cluster.text(), cluster.tail)
        cluster.signal(signal.SIGTERM)
        assert cluster.wait() == 0
    ready = Ready.objects.get(pk=job_id)
    assert (ready.attempts, ready.crashes) == (0, 0)
    assert not Attempt.objects.exists()


def test_shutdown_seconds_limits_the_stop(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--shutdown-seconds", "0.2", SHUTDOWN_SECONDS=120) as cluster:
        job_id = start_of_a_job(120)
        wait_for(Ledger.objects.exists, cluster.tail)
        cluster.signal(signal.SIGINT)
        assert cluster.wait() == 0
    assert Ready.objects.get(pk=job_id).attempts == 0


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "way",
    [
        "manage.py",
        pytest.param("-m django", marks=pytest.mark.slow),
        pytest.param("django-admin", marks=pytest.mark.slow),
    ],
)
def test_sighup_loads_new_code_in_the_same_process(tmp_path: Path, way: str) -> None:
    project = Project(tmp_path)
    settings = {"command": project.commands[way], "environment": project.environment}
    with running_cluster(tmp_path, "--workers", "1", **settings) as cluster:
        assert project.version(cluster) == 1
        pid = cluster.sentinel.pid
        project.write(2)
        cluster.signal(signal.SIGHUP)
        wait_for(lambda: cluster.text().count("started on") == 2, cluster.tail)
        assert project.version(cluster) == 2
        assert cluster.process.poll() is None
        said = [line for line in cluster.text().splitlines() if "started on" in line]
        assert all(f"process {pid}." in line for line in said), said
        assert cluster.sentinel.cmdline()[-4:] == ["stoker", "run", "--workers", "1"]
        assert cluster.stop() == 0


@pytest.mark.sqlite
@pytest.mark.slow
def test_sighup_keeps_the_old_code_if_the_new_code_does_not_start(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with running_cluster(tmp_path, environment=project.environment) as cluster:
        assert project.version(cluster) == 1
        project.spoil()
        cluster.signal(signal.SIGHUP)
        wait_for(lambda: "The new code does not start" in cluster.text(), cluster.tail)
        wait_for(lambda: "SyntaxError" in cluster.text(), cluster.tail)
        assert "Stopping" not in cluster.text()
        project.write(1)
        assert project.version(cluster) == 1
        assert cluster.stop() == 0


NOTE_BLOCKED_SIGNALS = """
import os
import signal

if "STOKER_TRIAL" not in os.environ:
    with open({note!r}, "w") as note:
        note.write(" ".join(sorted(s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, []))))
"""


@pytest.mark.slow
@pytest.mark.sqlite
def test_sighup_loads_the_release_that_the_link_leads_to(tmp_path: Path) -> None:
    releases = Releases(tmp_path)
    first, second = releases.projects
    blocked = tmp_path / "blocked"
    with (second.folder / "project_settings.py").open("a") as settings:
        settings.write(NOTE_BLOCKED_SIGNALS.format(note=str(blocked)))
    with running_cluster(tmp_path, "--workers", "1", **releases.options) as cluster:
        assert first.version(cluster) == 1
        releases.switch(second.folder)
        cluster.signal(signal.SIGHUP)
        wait_for(lambda: cluster.text().count("started on") == 2, cluster.tail)
        assert second.version(cluster) == 2
        assert Path(cluster.sentinel.cwd()) == second.folder.resolve()
        assert cluster.sentinel.cmdline()[0] == str(releases.current / ".venv/bin/python")
        assert blocked.read_text() == "SIGHUP", "an older version unblocks no other signal"
        releases.switch(tmp_path / "gone")
        cluster.signal(signal.SIGHUP)
        wait_for(lambda: "The new code could not be tried" in cluster.text(), cluster.tail)
        assert second.version(cluster) == 2
        assert cluster.stop() == 0


@pytest.mark.slow
@pytest.mark.sqlite
def test_reload_stays_in_the_old_directory_if_the_link_disappears(tmp_path: Path) -> None:
    releases, may_end = Releases(tmp_path), tmp_path / "may end"
    options = {**releases.options, "SHUTDOWN_SECONDS": 2 * WAIT_SECONDS}
    with running_cluster(tmp_path, "--workers", "1", **options) as cluster:
        run_until.enqueue(str(may_end))
        wait_for(Ledger.objects.exists, cluster.tail)
        cluster.signal(signal.SIGHUP)
        wait_for(lambda: "Reloading the code" in cluster.text(), cluster.tail)
        releases.current.unlink()
        may_end.touch()
        wait_for(lambda: cluster.text().count("started on") == 2, cluster.tail)
        assert "so the cluster starts again in the old one" in cluster.text()
        assert releases.projects[0].version(cluster) == 1
        assert cluster.stop() == 0


@pytest.mark.sqlite
def test_sigterm_while_reloading_stops_the_cluster(tmp_path: Path) -> None:
    may_end = tmp_path / "may end"
    with running_cluster(tmp_path, SHUTDOWN_SECONDS=2 * WAIT_SECONDS) as cluster:
        job_id = run_until.enqueue(str(may_end)).id
        wait_for(Ledger.objects.exists, cluster.tail)
        cluster.signal(signal.SIGHUP)
        wait_for(lambda: "Reloading the code" in cluster.text(), cluster.tail)
        cluster.signal(signal.SIGTERM)
        may_end.touch()
        assert cluster.wait() == 0
    assert Job.objects.get(pk=job_id).status == "SUCCESSFUL", "the first SIGTERM interrupts no job"
    assert cluster.text().count("started on") == 1


@pytest.mark.sqlite
def test_reload_restarts_when_files_change(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with running_cluster(tmp_path, "--reload", environment=project.environment) as cluster:
        assert project.version(cluster) == 1
        project.write(2)
        wait_for(lambda: cluster.text().count("started on") == 2, cluster.tail)
        assert project.version(cluster) == 2
        assert "changing/tasks.py has changed" in cluster.text()
        project.spoil()
        wait_for(lambda: "SyntaxError" in cluster.text(), cluster.tail)
        assert cluster.process.poll() is None
        project.write(3)
        wait_for(lambda: cluster.text().count("started on") == 3, cluster.tail)
        assert project.version(cluster) == 3
        assert cluster.stop() == 0


@pytest.mark.sqlite
@pytest.mark.slow
def test_syntax_error_during_a_reload_waits_for_the_next_change(tmp_path: Path) -> None:
    project = Project(tmp_path)
    may_end = tmp_path / "may end"
    options: dict[str, Any] = {
        "environment": project.environment,
        "SHUTDOWN_SECONDS": 2 * WAIT_SECONDS,
    }
    with running_cluster(tmp_path, "--reload", **options) as cluster:
        run_until.enqueue(str(may_end))
        wait_for(Ledger.objects.exists, cluster.tail)
        project.write(2)
        wait_for(lambda: "Reloading the code" in cluster.text(), cluster.tail)
        project.spoil()
        may_end.touch()
        wait_for(lambda: "SyntaxError" in cluster.text(), cluster.tail)
        assert cluster.text().count("started on") == 1
        project.write(3)
        assert project.version(cluster) == 3
        assert cluster.stop() == 0


@pytest.mark.parametrize(
    "mischief",
    [
        "open",
        pytest.param("cache:PyMemcacheCache", marks=pytest.mark.memcached),
        pytest.param("cache:PyLibMCCache", marks=pytest.mark.memcached),
    ],
)
def test_sentinel_has_no_connection_though_the_project_opened_one(
    mischief: str, tmp_path: Path
) -> None:
    """Otherwise the processes that it forks would share it."""
    if mischief.endswith("PyLibMCCache"):
        pytest.importorskip("pylibmc", reason="there is no wheel for this Python")
    with running_cluster(tmp_path, environment={"STOKER_TEST_MISCHIEF": mischief}) as cluster:
        cluster.wait_for_crew()
        assert value_of(add.enqueue(1, 2), cluster) == 3
        opened = re.findall(r"^opened (\S+)", cluster.text(), re.MULTILINE)
        assert opened
        assert not set(opened) & set(open_files(cluster.sentinel.pid))


# -- run: reasons not to start ---------------------------------------------------------------------


@pytest.mark.sqlite
@pytest.mark.parametrize("subcommand", ["run", "info", "health", "enqueue tests.app.tasks.nothing"])
def test_missing_tables_are_reported(subcommand: str, tmp_path: Path) -> None:
    names = json.dumps({"default": str(tmp_path / "empty.sqlite3")})
    done = stoker(*subcommand.split(), environment={"STOKER_TEST_DATABASES": names})
    assert done.returncode == 2
    assert_one_sentence(done)
    assert "Run: python manage.py migrate --database default" in done.stderr


def test_missing_column_is_reported() -> None:
    """The column is renamed, not removed, because adding it again would make SQLite rebuild the
    table without the indexes that no model declares."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE stoker_job RENAME COLUMN reason TO another")
    try:
        done = stoker("run")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE stoker_job RENAME COLUMN another TO reason")
    assert done.returncode == 2
    assert_one_sentence(done)
    assert "migrate" in done.stderr


@pytest.mark.sqlite
def test_invalid_settings_are_reported() -> None:
    done = stoker("run", WORKERS="many")
    assert done.returncode == 2
    assert_one_sentence(done)
    assert "[\"WORKERS\"] is 'many', but must be a whole number" in done.stderr


@pytest.mark.sqlite
def test_memory_broker_is_refused() -> None:
    done = stoker("run", BROKER="memory://")
    assert done.returncode == 2
    assert_one_sentence(done)
    assert "keeps jobs in the memory of each process" in done.stderr


def test_cluster_waits_for_an_unreachable_database(tmp_path: Path) -> None:
    with running_cluster(tmp_path, environment=without_database()) as cluster:
        wait_for(lambda: "Trying again in" in cluster.text(), cluster.tail)
        assert "The cluster starts, and keeps trying." in cluster.text()
        assert "Traceback" not in cluster.text()
        assert cluster.stop() == 0


# -- health ---------------------------------------------------------------------------------------


def test_health_fails_while_the_pusher_hangs(tmp_path: Path) -> None:
    done = stoker("health")
    assert done.returncode == 1
    assert_one_sentence(done)
    assert f"No cluster of the backend 'default' runs on {socket.gethostname()}" in done.stderr
    with running_cluster(tmp_path) as cluster:
        wait_for(Cluster.objects.exists, cluster.tail)
        done = stoker("health")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"(process {cluster.process.pid}) is alive" in done.stdout
        (pusher,) = cluster.wait_for_crew()["pusher"]
        pusher.suspend()
        time.sleep(1.2)
        done = stoker("health", "--max-silence", "1")
        assert done.returncode == 1, "the sentinel and the workers live, but no jobs are claimed"
        assert "no heartbeat" in done.stderr
        pusher.resume()
        wait_for(lambda: stoker("health", "--max-silence", "3").returncode == 0, cluster.tail)


def sign_on(host: str, state: str = "running") -> None:
    Cluster.objects.create(
        id=uuid.uuid4(),
        name="stoker",
        host=host,
        pid=7,
        state=state,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
    )


def test_health_counts_other_hosts_only_with_any_host() -> None:
    sign_on("elsewhere")
    assert stoker("health").returncode == 1
    assert stoker("health", "--any-host").returncode == 0


def test_stopping_cluster_is_not_healthy() -> None:
    sign_on(socket.gethostname(), "stopping")
    done = stoker("health")
    assert done.returncode == 1
    assert "is stopping" in done.stderr


def test_health_without_the_database_is_unknown() -> None:
    done = stoker("health", environment=without_database())
    assert done.returncode == 2
    assert_one_sentence(done)
    done = stoker("health", "--json", environment=without_database())
    shape = json.loads(done.stdout)
    assert (done.returncode, done.stderr, shape["healthy"]) == (2, "", None)
    assert "'default'" in shape["reason"]


def test_health_json_has_the_documented_keys() -> None:
    done = stoker("health", "--json")
    shape = json.loads(done.stdout)
    assert (done.returncode, done.stderr, shape["healthy"]) == (1, "", False)
    sign_on("elsewhere")
    shape = json.loads(stoker("health", "--json", "--any-host").stdout)
    assert shape["healthy"] is True
    assert set(shape) == {
        "healthy", "reason", "backend", "host", "max_silence_seconds", "clusters",
    }  # fmt: skip
    assert (shape["host"], shape["backend"]) == (None, "default")
    assert [one["host"] for one in shape["clusters"]] == ["elsewhere"]


# -- info -----------------------------------------------------------------------------------------

SHAPE = {
    "": "backend cluster broker server taken_at queues clusters finished dead_letters guards",
    "queues": "name ready deferred blocked running is_exact oldest_ready_seconds paused",
    "clusters": (
        "id name host pid state request started_at silent_seconds queues leases workers loops "
        "processes wanted_workers most_workers is_single"
    ),
    "workers": "number name pid jobs_done running resident_bytes handed_out is_recycled is_leaving",
    "processes": "role pid resident_bytes",
    "running": "job_id task queue attempt seconds",
    "finished": "successful failed cancelled is_exact",
    "dead_letters": "total by_reason is_exact",
    "guards": "keys more",
}


def assert_shape(value: Any, name: str = "") -> None:
    """Assert that every object has the documented keys."""
    if isinstance(value, list):
        for item in value:
            assert_shape(item, name)
    elif isinstance(value, dict) and name in SHAPE:
        assert list(value) == SHAPE[name].split(), (
            f"{name}: add a new key here and to the description in management/info.py"
        )
        for key, inner in value.items():
            assert_shape(inner, key)


def test_info_shows_clusters_queues_and_running_jobs(tmp_path: Path) -> None:
    fail_once.enqueue()
    with running_cluster(tmp_path, "--shutdown-seconds", "0") as cluster:
        cluster.wait_for_crew()
        wait_for(lambda: Job.objects.filter(status="FAILED").exists(), cluster.tail)
        job_id = start_of_a_job(3600)
        add.using(queue_name="mail", run_after=600).enqueue(1, 2)

        def shown() -> dict[str, Any]:
            done = stoker("info", "--json")
            assert done.returncode == 0, done.stderr
            value: dict[str, Any] = json.loads(done.stdout)
            return value

        def running(seen: dict[str, Any]) -> list[Any]:
            workers = [worker for one in seen["clusters"] for worker in one["workers"]]
            return [job for worker in workers for job in worker["running"]]

        wait_for(lambda: running(shown()), cluster.tail)
        seen = shown()
        assert_shape(seen)
        (one,) = seen["clusters"]
        assert (one["pid"], one["state"], len(one["workers"])) == (
            cluster.process.pid,
            "running",
            2,
        )
        assert [process["role"] for process in one["processes"]] == [
            "sentinel",
            "pusher",
            "monitor",
            "scheduler",
        ]
        assert all(process["resident_bytes"] for process in one["processes"])
        (job,) = running(seen)
        assert (job["job_id"], job["attempt"]) == (job_id, 1)
        assert job["task"] == "tests.app.tasks.write_ledger"
        queues = {queue["name"]: queue for queue in seen["queues"]}
        assert (queues["default"]["running"], queues["mail"]["deferred"]) == (1, 1)
        assert seen["finished"]["failed"] == 1
        assert seen["dead_letters"]["by_reason"] == {"error": 1}
        text = stoker("info").stdout
        assert f"tests.app.tasks.write_ledger {job_id}, attempt 1, for " in text
        assert "worker" in text
        assert re.search(r"worker \d, process \d+, \d+ attempts? done: ", text)
        assert "idle" in text
        assert "error 1" in text


@pytest.mark.sqlite
def test_colours_are_off_without_a_terminal() -> None:
    assert "\x1b[" not in stoker("info").stdout
    assert "\x1b[" in stoker("info", "--force-color").stdout
    assert "\x1b[" not in stoker("health", "--no-color").stderr


@pytest.mark.sqlite
def test_closed_output_pipe_causes_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(
            [*DJANGO, "stoker", "info"],
            cwd=ROOT,
            env=environment_of_commands(),
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


# -- enqueue --------------------------------------------------------------------------------------


def test_enqueue_prints_the_id() -> None:
    done = stoker(
        "enqueue", "tests.app.tasks.add", "1", "2", "--queue", "mail", "--priority", "-7",
        "--run-after", "60",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    job = Job.objects.get(pk=done.stdout.strip())
    assert (job.task, job.queue, job.priority) == ("tests.app.tasks.add", "mail", -7)
    assert job.run_after is not None
    assert 50 < (job.run_after - job.enqueued_at).total_seconds() < 61


def test_enqueue_waits_for_the_result(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        done = stoker("enqueue", "tests.app.tasks.echo", '{"a": [1, "ü"]}', "--wait", LONG)
        assert (done.returncode, done.stdout) == (0, '{"a": [1, "ü"]}\n'), cluster.tail()
        job_id = done.stderr.removeprefix("Job ").strip()
        assert Job.objects.get(pk=job_id).status == "SUCCESSFUL"
        done = stoker("enqueue", "tests.app.tasks.add", "--args", "[1, 2]", "--wait", "-v", "0")
        assert (done.stdout, done.stderr) == ("3\n", "")
        done = stoker("enqueue", "tests.app.tasks.echo", "--kwargs", '{"value": "x"}', "--wait")
        assert done.stdout == '"x"\n'
        done = stoker("enqueue", "tests.app.tasks.fail_once", "--wait", LONG, "-v", "0")
        assert (done.returncode, done.stdout) == (1, "")
        assert_one_sentence(done)
        assert "failed" in done.stderr


def test_enqueue_stops_waiting_after_its_time() -> None:
    done = stoker("enqueue", "tests.app.tasks.add", "1", "2", "--wait=0.1", "-v0")
    assert (done.returncode, done.stdout) == (3, "")
    assert_one_sentence(done)
    assert Ready.objects.count() == 1


@pytest.mark.sqlite
def test_ctrl_c_ends_the_wait_of_enqueue(tmp_path: Path) -> None:
    arguments = ["stoker", "enqueue", "tests.app.tasks.add", "1", "2", "--wait"]
    with (tmp_path / "said").open("w+b") as said:
        process = start_command(DJANGO, arguments, environment_of_commands(), said, said)
        try:
            wait_for(lambda: (tmp_path / "said").read_text().endswith("\n"))
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_SECONDS) == 130
        finally:
            process.kill()
    assert (tmp_path / "said").read_text() == f"Job {Ready.objects.get().pk}\n"


@pytest.mark.sqlite
@pytest.mark.parametrize("moment", ["-5", "0", "2020-01-01"])
def test_start_in_the_past_means_now(moment: str) -> None:
    done = stoker("enqueue", "tests.app.tasks.add", "1", "2", "--run-after", moment)
    assert done.returncode == 0, done.stderr
    assert str(Ready.objects.get().pk) == done.stdout.strip()


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tests.app.tasks.add", "1"], "missing a required argument: 'second'"),
        (["tests.app.tasks.add", "1", "2", "3"], "too many positional arguments"),
        (["tests.app.tasks.no_such"], "There is no task 'tests.app.tasks.no_such'"),
        (["tests.app.tasks"], "There is no task 'tests.app.tasks'"),
        (["nonsense"], "is not the name of a task"),
        (["tests.app.tasks.add", "1", "2", "--priority", "200"], "between -100 and 100"),
    ],
)
def test_invalid_enqueue_is_reported(arguments: list[str], told: str) -> None:
    done = stoker("enqueue", *arguments)
    assert done.returncode == 2
    assert_one_sentence(done)
    assert told in done.stderr
    assert not Job.objects.exists()


def test_enqueue_without_the_database_fails() -> None:
    done = stoker("enqueue", "tests.app.tasks.nothing", environment=without_database())
    assert (done.returncode, done.stdout) == (2, "")
    assert_one_sentence(done)


# -- all commands ---------------------------------------------------------------------------------


@pytest.mark.sqlite
def test_traceback_option_shows_the_traceback() -> None:
    done = stoker("enqueue", "tests.app.tasks.no_such", "--traceback")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "UnknownTask" in done.stderr


@pytest.mark.sqlite
def test_stoker_without_a_subcommand_prints_its_help() -> None:
    done = stoker()
    assert done.returncode == 0
    assert "Run a cluster until it is stopped." in done.stdout
