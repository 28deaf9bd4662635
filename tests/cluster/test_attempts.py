"""What tasks do to their workers, and what is recorded."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.jobs.package import JobOptions, Package, Sealer, sealer_for
from stoker.jobs.retries import UNKNOWN_TASK_WAIT
from stoker.models import Claimed, Cluster, DeadLetter, Deferred, Job
from stoker.models.job import Message
from stoker.models.wait import NewWait, Wait
from stoker.store.written import microseconds
from stoker.values.ids import new_job_id

from tests.app import chaos, tasks
from tests.cluster.clusters import WAIT_SECONDS, ProcessCluster, wait_for
from tests.cluster.ends import End, end_of, value_of

HOUR_SECONDS = 3600.0

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(scope="module")
def cluster(share_cluster: Callable[..., ProcessCluster]) -> ProcessCluster:
    """A cluster with a grace period long enough for tasks that end without being killed."""
    return share_cluster(TIMEOUT_GRACE_SECONDS=5, UNKNOWN_TASK_GRACE_SECONDS=HOUR_SECONDS / 2)


@pytest.fixture(scope="module")
def ends(cluster: ProcessCluster) -> Callable[[str], End]:
    """Enqueue the crashing jobs all at once, because each waits for its retry. Each kills only its
    own worker."""
    enqueued = {
        "exit code": tasks.exit_process.enqueue(3),
        "clean exit": chaos.exit_cleanly.enqueue(),
        "signal": tasks.kill_itself.enqueue(),
        "crashes": chaos.crash_always.enqueue(),
        "interrupt": chaos.raise_keyboard_interrupt.enqueue(),
        "interrupt of a coroutine": chaos.raise_keyboard_interrupt_async.enqueue(),
        "swallowed": tasks.swallow_timeout.enqueue(30.0),
        "in C code": chaos.sit_in_c_code.enqueue(30.0),
        "given up": chaos.ignore_timeout_and_give_up.enqueue(30.0),
    }
    return lambda name: end_of(enqueued[name], cluster)


def story_of(end: End) -> list[tuple[Any, ...]]:
    return [(one.number, one.kind, one.exit_code, one.signal) for one in end.attempts]


# -- crashes --------------------------------------------------------------------------------------


def test_exiting_worker_is_recorded_with_its_exit_code(
    ends: Callable[[str], End],
) -> None:
    end = ends("exit code")
    assert story_of(end) == [(1, "crashed", 3, None), (2, "crashed", 3, None)]
    assert end.dead_letter is not None
    assert (end.dead_letter.reason, end.dead_letter.attempts) == ("crash", 2)


def test_exit_with_code_0_is_a_crash(ends: Callable[[str], End]) -> None:
    end = ends("clean exit")
    assert story_of(end) == [(1, "crashed", 0, None), (2, "crashed", 0, None)]
    assert end.job.status == Job.Status.FAILED


def test_killed_worker_is_recorded_with_its_signal(ends: Callable[[str], End]) -> None:
    end = ends("signal")
    assert story_of(end) == [(1, "crashed", None, 9), (2, "crashed", None, 9)]
    assert "SIGKILL" in end.attempts[0].message
    assert end.attempts[0].worker_id
    assert end.attempts[0].started_at is not None
    assert end.dead_letter is not None


def test_crashing_job_stops_at_max_crashes(
    ends: Callable[[str], End],
) -> None:
    """max_crashes=2 of max_attempts=10: a job killed for its memory must not go on for hours."""
    end = ends("crashes")
    assert len(end.attempts) == 2
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "crash"


@pytest.mark.parametrize("name", ["interrupt", "interrupt of a coroutine"])
def test_keyboard_interrupt_raised_by_task_is_recorded_as_failure(
    name: str, ends: Callable[[str], End]
) -> None:
    end = ends(name)
    assert story_of(end) == [(1, "failed", None, None)]
    (attempt,) = end.attempts
    assert attempt.exception_class == "builtins.KeyboardInterrupt"
    assert "raise KeyboardInterrupt" in attempt.traceback


def test_system_exit_fails_the_attempt_and_keeps_the_worker(
    ends: Callable[[str], End], cluster: ProcessCluster
) -> None:
    for name in ("swallowed", "in C code"):
        ends(name)  # so that no other job kills a worker meanwhile
    before = {one.pid for one in cluster.crew()["worker"]}
    end = end_of(tasks.raise_system_exit.enqueue(), cluster)
    assert [(one.number, one.kind) for one in end.attempts] == [(1, "failed"), (2, "failed")]
    assert end.attempts[0].exception_class == "builtins.SystemExit"
    assert end.job.status == Job.Status.FAILED
    assert before & {one.pid for one in cluster.crew()["worker"]}


def test_worker_crashed_by_a_finished_task_is_replaced(cluster: ProcessCluster) -> None:
    """The job had returned, so it is recorded as successful or as crashed. A job that follows it on
    that worker could crash, too, so none runs now."""
    assert end_of(chaos.die_after_returning.enqueue(0.02), cluster).job.status is not None
    assert value_of(tasks.add.enqueue(1, 2), cluster) == 3


# -- time-outs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [tasks.sleep_too_long, tasks.sleep_too_long_async])
def test_soft_time_out_is_raised_in_the_task(task: Any, cluster: ProcessCluster) -> None:
    end = end_of(task.enqueue(2 * WAIT_SECONDS), cluster)
    assert story_of(end) == [(1, "timed_out", None, None)]
    assert end.attempts[0].exception_class == "stoker.exceptions.TaskTimeout"
    assert end.attempts[0].message == "the task ran longer than its time-out of 0.3 s"
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "timeout"


@pytest.mark.parametrize(
    ("name", "attempts"), [("swallowed", 2), ("in C code", 1), ("given up", 1)]
)
def test_task_that_ignores_its_time_out_is_killed_and_recorded(
    name: str, attempts: int, ends: Callable[[str], End]
) -> None:
    end = ends(name)
    assert story_of(end) == [(number, "timed_out", None, 9) for number in range(1, attempts + 1)]
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "timeout"


# -- values and errors ----------------------------------------------------------------------------


def test_unserializable_return_value_fails_the_job(
    cluster: ProcessCluster,
) -> None:
    end = end_of(tasks.return_what_cannot_be_kept.enqueue(), cluster)
    assert len(end.attempts) == 1, "a retry would return the same"
    assert end.attempts[0].exception_class == "stoker.exceptions.NotSerializable"
    assert "set" in end.attempts[0].message
    assert end.job.status == Job.Status.FAILED


def test_error_message_with_a_nul_is_recorded(cluster: ProcessCluster) -> None:
    end = end_of(chaos.raise_poison.enqueue(), cluster)
    assert end.attempts[0].exception_class == "builtins.ValueError"
    assert "NUL" in end.attempts[0].message
    assert end.dead_letter is not None


def test_result_of_megabytes_is_kept(cluster: ProcessCluster) -> None:
    assert len(value_of(chaos.return_much.enqueue(3_000_000), cluster)) == 3_000_000


def test_return_value_of_a_failed_job_raises(cluster: ProcessCluster) -> None:
    result = tasks.fail_once.enqueue()
    end_of(result, cluster)
    result.refresh()
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_failed_job_is_retried_and_knows_its_attempt(cluster: ProcessCluster) -> None:
    result = tasks.succeed_at.enqueue(3)
    assert value_of(result, cluster) == 3
    assert [one.number for one in end_of(result, cluster).attempts] == [1, 2]


def test_snoozing_uses_no_attempt(cluster: ProcessCluster) -> None:
    result = tasks.snooze_until.enqueue(time.time() + 0.3)
    assert value_of(result, cluster) == 1
    assert end_of(result, cluster).attempts == []


def test_task_can_cancel_itself(cluster: ProcessCluster) -> None:
    end = end_of(tasks.cancel_itself.enqueue(), cluster)
    assert (end.job.status, end.job.reason) == (Job.Status.CANCELLED, "not needed any more")
    assert end.dead_letter is None


def test_expired_job_is_not_started(cluster: ProcessCluster) -> None:
    expires = time.time() - 5
    end = end_of(_put(_package("tests.app.tasks.add", expires_at=expires)), cluster)
    assert end.dead_letter is not None
    assert end.dead_letter.reason == "expired"


# -- packages that do not open --------------------------------------------------------------------


def test_unreadable_packages_become_dead_letters_and_other_jobs_run(
    cluster: ProcessCluster,
) -> None:
    crew = {role: [one.pid for one in members] for role, members in cluster.crew().items()}
    sealed = sealer_for(settings_for()).seal(_package("tests.app.tasks.add"))
    old = _job_id_of(time.time() - HOUR_SECONDS)
    bad = {
        "tampered": _put(_package("tests.app.tasks.add"), _with_last_bit_flipped),
        "other key": _put(
            _package("tests.app.tasks.add"), sealer=Sealer(["another key"], "stoker")
        ),
        "other cluster": _put(
            _package("tests.app.tasks.add"), sealer=Sealer(["for tests only"], "elsewhere")
        ),
        "another job's": _put(_package("tests.app.tasks.add"), lambda _: sealed),
        "no package": _put(_package("tests.app.tasks.add"), lambda _: b"what is this?"),
        "empty": _put(_package("tests.app.tasks.add"), lambda _: b""),
        "newer": _put(_long_unknown(_package("tests.app.tasks.add", job_id=old)), _of_version(99)),
        "unknown task": _put(_long_unknown(_package("tests.app.gone.task"))),
        "unknown name": _put(_long_unknown(_package("tests.app.tasks.gone"))),
    }
    good = tasks.add.enqueue_many([((number, 1), {}) for number in range(20)])
    assert [value_of(result, cluster) for result in good] == [n + 1 for n in range(20)]
    reasons = {}
    for name, result in bad.items():
        end = end_of(result, cluster)
        assert end.job.status == Job.Status.FAILED
        assert end.dead_letter is not None
        assert end.dead_letter.message
        assert bytes(end.dead_letter.package) == bytes(end.job.package)
        reasons[name] = end.dead_letter.reason
    unknown = {"unknown task", "unknown name"}
    assert reasons == {name: "unknown_task" if name in unknown else "unreadable" for name in bad}
    now = {role: [one.pid for one in members] for role, members in cluster.crew().items()}
    assert now["pusher"] == crew["pusher"]
    assert now["monitor"] == crew["monitor"]


@pytest.mark.parametrize("what", ["unknown task", "newer version", "other key"])
def test_unknown_task_or_version_is_deferred_within_the_grace_period(
    what: str, cluster: ProcessCluster
) -> None:
    """The period begins when a cluster first did not know the task, not at the enqueue. Another
    key is a reason to wait only while there is a cluster that signs with it."""
    if what == "other key":
        sealer = Sealer(["another key"], "stoker")
        _add_cluster(sealer.key_ids[0])
        result = _put(_package("tests.app.tasks.add"), sealer=sealer)
    elif what == "unknown task":
        result = _put(_package("tests.app.gone.task", age_seconds=HOUR_SECONDS))
    else:
        old = _job_id_of(time.time() - HOUR_SECONDS)
        result = _put(_package("tests.app.tasks.add", job_id=old), _of_version(99))
    deferred = Deferred.objects.filter(pk=result.id)
    put_back = wait_for(deferred.first, cluster.tail)  # only for a short time
    assert put_back is not None
    assert put_back.attempts == 0, "the attempt is given back"
    assert not DeadLetter.objects.filter(job_id=result.id).exists()
    result.withdraw()
    Cluster.objects.filter(host="elsewhere").delete()


# -- what a task leaves behind --------------------------------------------------------------------


def test_task_can_start_and_end_child_processes(cluster: ProcessCluster) -> None:
    """Children must not inherit that workers ignore SIGTERM, or they could not be terminated."""
    assert value_of(chaos.start_children.enqueue(), cluster) == [7, 9, 16, -15]


def test_output_of_a_task_is_not_buffered(cluster: ProcessCluster) -> None:
    line = f"said by {os.getpid()} at {time.time()}"
    end_of(chaos.say.enqueue(line), cluster)
    wait_for(lambda: line in cluster.text(), cluster.tail)


def test_log_records_inside_a_task_name_the_job(cluster: ProcessCluster) -> None:
    result = chaos.look_at_log_record.enqueue()
    expected = [result.id, "tests.app.chaos.look_at_log_record", "1"]
    assert value_of(result, cluster) == expected


# -- recording ------------------------------------------------------------------------------------


@pytest.mark.mariadb
def test_value_above_max_allowed_packet_fails_without_delaying_other_jobs(
    cluster: ProcessCluster,
) -> None:
    """The value is not sent, because the server would close the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (most_bytes,) = cursor.fetchone()
    for task in (chaos.return_much, chaos.return_much_async, chaos.note_much):
        end = end_of(task.using(max_attempts=1).enqueue(most_bytes), cluster)
        assert end.job.status == Job.Status.FAILED
        assert [one.exception_class for one in end.attempts] == [
            "stoker.exceptions.PackageTooLarge"
        ]
        assert "max_allowed_packet" in end.attempts[0].message
    assert value_of(tasks.add.enqueue(1, 2), cluster) == 3
    assert "Trying again" not in cluster.text()


@pytest.mark.postgres
def test_job_that_cannot_be_recorded_is_not_acked_and_delays_no_other(
    cluster: ProcessCluster,
) -> None:
    """A trigger refuses to update the jobs of one queue."""
    with _refusing("refused"):
        refused = tasks.add.using(queue_name="refused").enqueue(20, 22)
        others = tasks.add.enqueue_many([((number, 1), {}) for number in range(50)])
        wait_for(lambda: "could not be recorded" in cluster.text(), cluster.tail)
        assert [value_of(result, cluster) for result in others] == [n + 1 for n in range(50)]
        assert Claimed.objects.filter(pk=refused.id).exists()
        assert Job.objects.get(pk=refused.id).status is None
    assert value_of(refused, cluster) == 42


@contextmanager
def _refusing(queue: str) -> Iterator[None]:
    """Make the database refuse to change the jobs of one queue."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON stoker_job FOR EACH ROW "
            f"WHEN (OLD.queue = '{queue}') EXECUTE FUNCTION refuse()"
        )
        try:
            yield
        finally:
            cursor.execute("DROP TRIGGER refuse ON stoker_job")
            cursor.execute("DROP FUNCTION refuse()")


class _Put:
    """The id of a job that was enqueued as raw bytes, used like a result."""

    def __init__(self, job_id: UUID) -> None:
        self.id = str(job_id)

    def withdraw(self) -> None:
        broker_for(settings_for()).withdraw([UUID(self.id)])


def _package(
    task: str,
    *,
    job_id: UUID | None = None,
    age_seconds: float = 0.0,
    expires_at: float | None = None,
) -> Package:
    return Package(
        job_id or new_job_id(),
        task,
        (1, 2),
        {},
        "default",
        0,
        time.time() - age_seconds,
        JobOptions(expires_at=expires_at),
    )


def _add_cluster(key_id: str) -> None:
    """Add the row of another live cluster, which signs with this key."""
    Cluster.objects.create(
        pk=new_job_id(),
        name="stoker",
        host="elsewhere",
        pid=1,
        heartbeat_us=microseconds(time.time() + HOUR_SECONDS),
        started_at=timezone.now(),
        info={"alias": "default", "key": key_id},
    )


def _long_unknown(package: Package) -> Package:
    """Record that a cluster did not know the job's task an hour ago."""
    began_us = microseconds(time.time() - HOUR_SECONDS)
    wait = NewWait(package.job_id, 0, Wait.Kind.PUT_BACK, UNKNOWN_TASK_WAIT, began_us, 2_000_000)
    Wait.objects.add([wait])
    return package


def _put(
    package: Package,
    change: Callable[[bytes], bytes] = lambda data: data,
    sealer: Sealer | None = None,
) -> _Put:
    data = change((sealer or sealer_for(settings_for())).seal(package))
    message = Message(package.job_id, package.task, "default", 0, data, enqueued_at=time.time())
    broker_for(settings_for()).enqueue([message])
    return _Put(package.job_id)


def _with_last_bit_flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _of_version(version: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:2] + bytes([version]) + data[3:]


def _job_id_of(moment: float) -> UUID:
    """Return a job id of that time, which is in its first 48 bits."""
    return UUID(int=int(moment * 1000) << 80 | new_job_id().int & (1 << 80) - 1)
