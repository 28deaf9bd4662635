"""A database that is restored from a backup: what `docs/howto/back-up-and-restore.md` promises."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connections

from stoker import queues
from stoker.conf import settings_for
from stoker.inspect.doctor.examination import examine
from stoker.models import Attempt, Claimed, DeadLetter, Job

from tests.app import chaos
from tests.app.models import Ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def copy_database(source: Path, target: Path) -> None:
    """Do what `.backup` and `.restore` of the program `sqlite3` do."""
    connections.close_all()
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


WRITE_AND_DIE = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("UPDATE stoker_job SET reason = 'of the time after the backup'")
connection.commit()
os.kill(os.getpid(), 9)
"""


def leave_wal_behind(database: Path) -> Path:
    """Let a process write to the database and be killed. Return the file that it leaves."""
    connections.close_all()
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, database], check=False)
    left = database.with_name(f"{database.name}-wal")
    assert left.stat().st_size
    return left


def status_of(job_id: str) -> str | None:
    return Job.objects.values_list("status", flat=True).get(pk=job_id)


def wait_for_ends(cluster: ProcessCluster, *job_ids: str) -> None:
    wait_for(lambda: all(map(status_of, job_ids)), cluster.tail)


def test_jobs_of_a_restored_database_run_again(tmp_path: Path) -> None:
    live, backup = Path(connections["default"].settings_dict["NAME"]), tmp_path / "backup.sqlite3"
    may_end = str(tmp_path / "may end")
    queues.pause("later")
    with running_cluster(tmp_path, WORKERS=3) as cluster:
        running = chaos.run_until.enqueue(may_end).id
        last = chaos.run_until.using(max_attempts=1).enqueue(may_end).id
        once = chaos.run_once_until.using(queue_name="later").enqueue(may_end).id
        wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
        copy_database(live, backup)

        Path(may_end).touch()
        queues.resume("later")
        wait_for_ends(cluster, running, last, once)
        assert cluster.stop() == 0
    assert not Attempt.objects.exists()

    leave_wal_behind(live)
    copy_database(backup, live)
    assert not Job.objects.exclude(reason="").exists()
    Claimed.objects.update(leased_until_us=1)  # as in a backup of yesterday
    assert {str(pk) for pk in Claimed.objects.values_list("pk", flat=True)} == {running, last}
    assert {one.name for one in examine(settings_for()).findings} == {"abandoned_leases"}, (
        "a cluster has to take these jobs over; nothing else is wrong"
    )

    with running_cluster(tmp_path, WORKERS=3) as cluster:
        wait_for_ends(cluster, running, last)
        assert status_of(once) is None, "the pauses are those of the backup, too"
        queues.resume("later")
        wait_for_ends(cluster, once)
    kinds = Attempt.objects.values_list("job_id", "kind")
    assert {(str(job_id), kind) for job_id, kind in kinds} == {
        (running, "crashed"),
        (last, "crashed"),
    }
    assert {one: status_of(one) for one in (running, last, once)} == {
        running: "SUCCESSFUL",
        last: "FAILED",
        once: "SUCCESSFUL",
    }
    assert str(DeadLetter.objects.get().job_id) == last
    assert Ledger.objects.filter(job_id=once).count() == 1, "it ran after the backup, and now again"
    assert not examine(settings_for()).findings


def test_copied_backup_is_intact_if_the_files_of_killed_processes_are_deleted(
    tmp_path: Path,
) -> None:
    live, backup = Path(connections["default"].settings_dict["NAME"]), tmp_path / "backup.sqlite3"
    chaos.run_until.enqueue(str(tmp_path / "never"))
    copy_database(live, backup)
    left = leave_wal_behind(live)
    left.unlink()
    live.with_name(f"{live.name}-shm").unlink(missing_ok=True)
    shutil.copyfile(backup, live)
    assert Job.objects.get().reason == ""
