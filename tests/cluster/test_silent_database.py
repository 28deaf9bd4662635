"""Another entry of DATABASES whose server accepts connections and never answers."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connections

from stoker import every, schedules
from stoker.models import Schedule
from stoker.models.outbox import forget_tables

from tests.app.cancelling import wait
from tests.app.mischief import add_silent_database
from tests.app.tasks import nothing
from tests.cluster.clusters import run_command, running_cluster, wait_for
from tests.servers.silent import SilentServer

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def server() -> Iterator[SilentServer]:
    with SilentServer() as silent:
        yield silent


@pytest.fixture
def silent_database(server: SilentServer) -> Iterator[SilentServer]:
    """Add the server to DATABASES of this process."""
    before = connections.settings
    add_silent_database(str(server.port))
    yield server
    with suppress(AttributeError):  # this thread never used it
        del connections["silent"]
    connections.settings = before
    forget_tables()


def test_scheduler_fires_though_another_database_is_silent(
    server: SilentServer, tmp_path: Path
) -> None:
    schedules.create("seconds", nothing, every(seconds=1))
    mischief = {"STOKER_TEST_MISCHIEF": f"silent:{server.port}"}
    with running_cluster(tmp_path, environment=mischief, DATABASE_SECONDS=1) as cluster:
        (scheduler,) = cluster.wait_for_crew()["scheduler"]
        failed = "outbox of 'silent' failed"
        wait_for(lambda: cluster.text().count(failed) > 2 or not scheduler.is_running())
        fired = Schedule.objects.get().fired_count
        wait_for(lambda: Schedule.objects.get().fired_count > fired + 10, cluster.tail)
        assert cluster.crew()["scheduler"] == [scheduler], cluster.tail()
        assert cluster.stop() == 0


def test_cancel_of_known_job_does_not_ask_a_silent_database(
    silent_database: SilentServer, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    running, waiting = wait.enqueue(str(began)), nothing.using(queue_name="other").enqueue()
    with running_cluster(tmp_path, "--queues", "default") as cluster:
        wait_for(began.exists, cluster.tail)
        assert running.cancel()
        assert waiting.cancel()
        wait_for(lambda: wait.get_result(running.id).is_finished, cluster.tail)
    running.refresh()
    waiting.refresh()
    assert not running.cancel()
    assert not waiting.cancel()
    assert silent_database.accepted == 0


def test_look_up_in_a_silent_database_has_a_deadline(server: SilentServer) -> None:
    mischief = {"STOKER_TEST_MISCHIEF": f"silent:{server.port}"}
    done = run_command("stoker", "why", str(uuid4()), environment=mischief, DATABASE_SECONDS=1)
    assert "The database 'silent' does not answer" in done.stderr
    assert done.returncode == 2
    assert server.accepted == 1, "it is asked again only after a pause"
