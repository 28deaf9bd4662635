"""The figures of all screens, on the real database."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.orm.broker import OrmBroker
from stoker.conf import settings_for
from stoker.exceptions import NotMigrated
from stoker.inspect import queue_depths, stats
from stoker.inspect.stats import QueueDepth
from stoker.models import Attempt, Claimed, Cluster, DeadLetter, Job, Ready
from stoker.store import counting
from stoker.store.written import DatabaseNow, microseconds
from stoker.values.ids import new_job_id

from tests.app.tasks import add, nothing

pytestmark = pytest.mark.django_db(transaction=True)

HOLDER = uuid.uuid4()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate from ten rows on."""
    monkeypatch.setattr(counting, "COUNTED_ROWS", 10)
    monkeypatch.setattr(counting, "SAMPLED_ROWS", 8)


def queues() -> dict[str, QueueDepth]:
    return {queue.name: queue for queue in stats.queues(settings_for())}


def claim(limit: int) -> list[str]:
    deliveries = broker_for(settings_for()).claim(
        ClaimRequest(limit, holder=HOLDER, lease_seconds=60)
    )
    return [str(delivery.job_id) for delivery in deliveries]


def sign_on(name: str = "stoker", silent_seconds: float = 0.0, **info: object) -> Cluster:
    return Cluster.objects.create(
        id=uuid.uuid4(),
        name=name,
        host="one",
        pid=7,
        heartbeat_us=DatabaseNow() - microseconds(silent_seconds),
        started_at=timezone.now(),
        info=info,
    )


def test_estimate_is_shared_among_large_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner may have no figures for one queue: see ``queue_depths``."""

    def estimates(each: Any) -> list[int]:
        return [1 if rows.query.where else 1_000 for rows in each]

    monkeypatch.setattr(counting, "COUNTED_ROWS", 10)
    monkeypatch.setattr(queue_depths, "estimates_of", estimates)
    for queue, count in (("mail", 20), ("photos", 20), ("few", 4)):
        add.using(queue_name=queue).enqueue_many([((1, 2), {})] * count)
    found = {name: (depth.ready, depth.is_exact) for name, depth in queues().items()}
    assert (found["mail"], found["photos"], found["few"]) == (
        (498, False),
        (498, False),
        (4, False),
    )


# -- queues ---------------------------------------------------------------------------------------


def test_jobs_are_counted_by_queue_and_state() -> None:
    nothing.enqueue_many([((), {})] * 5)
    nothing.using(queue_name="mail", run_after=60).enqueue_many([((), {})] * 3)
    claim(2)
    assert {name: (one.ready, one.deferred, one.running) for name, one in queues().items()} == {
        "default": (3, 0, 2),
        "mail": (0, 3, 0),
    }
    assert all(one.is_exact and one.blocked == 0 for one in queues().values())


def test_configured_queues_are_listed_when_empty(settings: object) -> None:
    settings.TASKS = {  # type: ignore[attr-defined] # pytest-django's
        "default": {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": ["b", "a"]}
    }
    assert [(one.name, one.ready) for one in stats.queues(settings_for())] == [("a", 0), ("b", 0)]


def test_oldest_wait_counts_from_enqueue_run_after_or_last_attempt() -> None:
    assert "default" not in queues()
    urgent = nothing.using(priority=5).enqueue()
    other = nothing.enqueue()
    later = nothing.using(run_after=timezone.now() - timedelta(seconds=30)).enqueue()
    now = timezone.now()
    for result, hours in ((urgent, 1), (other, 2), (later, 9)):
        Job.objects.filter(pk=result.id).update(enqueued_at=now - timedelta(hours=hours))
    waited = queues()["default"].oldest_ready_seconds
    assert waited is not None
    assert 7200 <= waited < 7260, "the longest wait among the first jobs"
    Ready.objects.filter(pk=other.id).delete()
    Ready.objects.filter(pk=urgent.id).delete()
    OrmBroker(settings_for()).promote(10)
    waited = queues()["default"].oldest_ready_seconds
    assert waited is not None
    assert 30 <= waited < 90, "counted from run_after"
    failed_at = timezone.now() - timedelta(seconds=7)
    Attempt.objects.create(job_id=later.id, number=1, kind="failed", finished_at=failed_at)
    waited = queues()["default"].oldest_ready_seconds
    assert waited is not None
    assert 7 <= waited < 67, "counted from the last attempt"


def test_oldest_wait_needs_the_same_queries_for_many_jobs() -> None:
    def number_of_queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            queues()
        return len(captured)

    nothing.enqueue_many([((), {})] * 3)
    few = number_of_queries()
    nothing.enqueue_many([((), {})] * 300)
    assert number_of_queries() == few


@pytest.mark.usefixtures("few")
def test_large_queue_is_estimated() -> None:
    nothing.enqueue_many([((), {})] * 400)
    nothing.using(queue_name="mail").enqueue()
    nothing.using(run_after=60).enqueue_many([((), {})] * 300)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE stoker_ready")
            cursor.execute("ANALYZE stoker_deferred")
    seen = queues()
    assert not seen["default"].is_exact
    assert 200 <= seen["default"].ready <= 800
    assert 150 <= seen["default"].deferred <= 600
    assert seen["mail"].ready == 1


@pytest.mark.usefixtures("few")
def test_large_queues_are_estimated_separately() -> None:
    nothing.enqueue_many([((), {})] * 400)
    nothing.using(queue_name="mail").enqueue_many([((), {})] * 150)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE stoker_ready")
    seen = queues()
    # MySQL estimates from the number of pages, and each may be half full.
    assert 200 <= seen["default"].ready <= 800
    assert 50 <= seen["mail"].ready <= 300


def test_missing_table_raises_not_migrated() -> None:
    with connection.schema_editor() as editor:
        editor.alter_db_table(DeadLetter, "stoker_deadletter", "stoker_elsewhere")
    try:
        with pytest.raises(NotMigrated, match="migrate --database default"):
            stats.overview(settings_for())
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(DeadLetter, "stoker_elsewhere", "stoker_deadletter")


# -- outcomes -------------------------------------------------------------------------------------


def finish(number: int, status: str) -> None:
    now = timezone.now()
    Job.objects.bulk_create(
        Job(
            id=new_job_id(),
            task="x",
            queue="q",
            package=b"",
            enqueued_at=now,
            status=status,
            finished_at=now,
        )
        for _ in range(number)
    )


def test_finished_jobs_are_counted_by_status() -> None:
    nothing.enqueue()
    finish(3, "SUCCESSFUL")
    finish(2, "FAILED")
    finish(1, "CANCELLED")
    assert stats.finished(settings_for()) == stats.FinishedCounts(3, 2, 1, is_exact=True)


@pytest.mark.postgres
@pytest.mark.usefixtures("few")
def test_finished_jobs_are_estimated_on_postgresql() -> None:
    finish(500, "SUCCESSFUL")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE stoker_job")
    with CaptureQueriesContext(connection) as captured:
        counts = stats.finished(settings_for())
    assert not counts.is_exact
    assert 250 <= counts.successful <= 1000
    for query in captured.captured_queries:
        assert "LIMIT 11" in query["sql"] or query["sql"].startswith("EXPLAIN"), query["sql"]


@pytest.mark.postgres
@pytest.mark.parametrize("look", [stats.finished, stats.clusters], ids=lambda one: one.__name__)
def test_stats_do_not_scan_all_jobs(look: Callable[..., object]) -> None:
    sign_on(workers=[worker(0, str(new_job_id()))])
    finish(500, "SUCCESSFUL")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE stoker_job")
    with CaptureQueriesContext(connection) as captured:
        look(settings_for())
    about_jobs = [q["sql"] for q in captured.captured_queries if '"stoker_job"' in q["sql"]]
    assert about_jobs
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        for statement in about_jobs:
            cursor.execute("EXPLAIN " + statement)
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on stoker_job" not in plan, f"{statement}\n{plan}"
        cursor.execute("RESET enable_seqscan")


def letters(number: int, reason: str) -> None:
    DeadLetter.objects.bulk_create(
        DeadLetter(
            id=uuid.uuid4(),
            identity=str(uuid.uuid4()),
            job_id=uuid.uuid4(),
            task="x",
            queue="q",
            package=b"",
            reason=reason,
            failed_at=timezone.now(),
            first_failed_at=timezone.now(),
        )
        for _ in range(number)
    )


def test_dead_letters_are_counted_by_reason() -> None:
    letters(3, "error")
    letters(1, "crash")
    seen = stats.dead_letters(settings_for())
    assert (seen.total, seen.by_reason, seen.is_exact) == (4, {"crash": 1, "error": 3}, True)


# -- clusters -------------------------------------------------------------------------------------


def worker(number: int, *job_ids: str) -> dict[str, object]:
    running = [{"job": job_id, "seconds": 3.0} for job_id in job_ids]
    return {"number": number, "pid": 70 + number, "jobs_done": 9, "running": running}


def test_clusters_list_their_workers_and_running_jobs() -> None:
    add.using(queue_name="mail").enqueue(1, 2)
    nothing.enqueue()
    running, ended = claim(2)
    Claimed.objects.filter(pk=ended).delete()
    sign_on(
        silent_seconds=2,
        alias="default",
        queues=["mail"],
        leases=1,
        workers=[worker(0, running, ended), worker(1)],
    )
    sign_on(name="another")
    sign_on(alias="other")
    (seen,) = stats.clusters(settings_for())
    assert (seen.name, seen.host, seen.pid, seen.state) == ("stoker", "one", 7, "running")
    assert (seen.queues, seen.leases) == (("mail",), 1)
    assert 2 <= seen.silent_seconds < 62
    busy, idle = seen.workers
    assert (busy.number, busy.pid, busy.jobs_done, idle.running) == (0, 70, 9, ())
    (job,) = busy.running
    assert job.job_id == running
    assert (job.task, job.queue, job.attempt) == ("tests.app.tasks.add", "mail", 1)
    assert 5 <= job.seconds < 65, "it went on since the heartbeat"


def test_cluster_without_info_is_listed() -> None:
    sign_on()
    (seen,) = stats.clusters(settings_for())
    assert (seen.queues, seen.leases, seen.workers) == ((), 0, ())


def test_overview_has_all_figures() -> None:
    nothing.enqueue()
    sign_on()
    finish(1, "FAILED")
    letters(1, "error")
    seen = stats.overview(settings_for())
    assert (seen.backend, seen.cluster, seen.broker) == ("default", "stoker", "orm://default")
    assert connection.display_name in seen.server or "MariaDB" in seen.server
    assert (len(seen.queues), len(seen.clusters)) == (1, 1)
    assert (seen.finished.failed, seen.dead_letters.total) == (1, 1)


# -- in the terminal ------------------------------------------------------------------------------


def test_commands_show_a_silent_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    sign_on("stoker", silent_seconds=30)
    for command in (["info"], ["monitor", "--once"]):
        call_command("stoker", *command)
        shown = capsys.readouterr().out
        assert "silent" in shown, command
        assert "running," not in shown, command
    assert "dead letters: 0\n" in shown
    assert "none" not in shown.partition("dead letters")[2]
    call_command("stoker", "clusters", "list")
    assert capsys.readouterr().out.splitlines()[0].endswith("  silent")
