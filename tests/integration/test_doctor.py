"""The doctor: each fault is planted by hand, found, and repaired where that is safe."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for
from stoker.inspect.doctor import examination
from stoker.inspect.doctor import looks as look
from stoker.inspect.doctor.examination import Finding, Indexes, Report, examine
from stoker.inspect.doctor.looks import Jobs
from stoker.models import (
    Attempt,
    Blocked,
    BulkOperation,
    Cancellation,
    Claimed,
    Cluster,
    DeadLetter,
    Deferred,
    GuardKey,
    Job,
    Need,
    Outgoing,
    Ready,
    Requeue,
    Step,
    UniqueKey,
)
from stoker.operations import audit
from stoker.operations.audit import AuditFilter
from stoker.store.written import DatabaseNow
from stoker.testing import drain
from stoker.values.ids import new_job_id

from tests.app import frail, guarded, tasks
from tests.conformance.server_stands import sqs_url
from tests.integration.fronted import fronted_broker
from tests.integration.letters import dead
from tests.integration.work import work_off

pytestmark = pytest.mark.django_db(transaction=True)

HOLDER = uuid.uuid4()


@pytest.fixture(autouse=True)
def without_index_check(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Leave out the check of indexes, which is slow on SQLite, and the pause for clusters."""
    monkeypatch.setattr(examination, "A_MOMENT_SECONDS", 0.0)
    if "indexes" not in request.node.name:
        looks = tuple(one for one in examination.LOOKS if one is not Indexes)
        monkeypatch.setattr(examination, "LOOKS", looks)


def examine_store(**options: Any) -> Report:
    return examine(settings_for(), **options)


def findings(**options: Any) -> dict[str, Finding]:
    return {one.name: one for one in examine_store(**options).findings}


def claim(limit: int = 1) -> list[Delivery]:
    return broker_for(settings_for()).claim(ClaimRequest(limit, holder=HOLDER, lease_seconds=60))


def enqueue(count: int = 1) -> list[uuid.UUID]:
    return [uuid.UUID(one.id) for one in tasks.nothing.enqueue_many([((), {})] * count)]


# -- faults, each planted by hand ------------------------------------------------------------------

Plant = Callable[[], list[Any]]


def lost_jobs() -> list[Any]:
    lost = enqueue(2)
    enqueue()
    Ready.objects.filter(pk__in=lost).delete()
    return lost


def jobs_in_two_places() -> list[Any]:
    first, second = enqueue(2)
    Deferred.objects.create(job_id=first, due_us=2**60, queue="default")
    claim(2)
    Ready.objects.create(job_id=second, queue="default")
    return [first, second]


def ended_jobs_in_line() -> list[Any]:
    ended = enqueue(2)
    claim()
    Job.objects.filter(pk__in=ended).update(status="SUCCESSFUL", finished_at=timezone.now())
    return ended


def places_without_job() -> list[Any]:
    gone = enqueue(2)
    Job.objects.filter(pk__in=gone).delete()
    return gone


def jobs_without_their_guards() -> list[Any]:
    job_id = uuid.UUID(guarded.enter.enqueue().id)
    Need.objects.all().delete()
    return [job_id]


def abandoned_leases() -> list[Any]:
    jobs = enqueue(2)
    claim(2)
    Claimed.objects.update(leased_until_us=1)
    return jobs


def needs_without_job() -> list[Any]:
    holder = one_waits_for_another()
    Claimed.objects.all().delete()
    Job.objects.filter(pk=holder.job_id).delete()
    return list(Need.objects.filter(job_id=holder.job_id).values_list("pk", flat=True))


def places_of_nobody() -> list[Any]:
    holder = one_waits_for_another()
    Claimed.objects.all().delete()
    Ready.objects.create(job_id=holder.job_id, queue="default", guards=1)
    return list(Need.objects.filter(job_id=holder.job_id).values_list("pk", flat=True))


def locks_held_twice() -> list[Any]:
    one_waits_for_another()
    (blocked,) = Blocked.objects.all()
    Need.objects.update(holds=blocked.key_id)
    until_us = Claimed.objects.get().leased_until_us
    values = {"lease_id": 1, "holder": uuid.uuid4(), "leased_until_us": until_us, "guards": 1}
    Claimed.objects.create(job_id=blocked.pk, queue="default", **values)
    Blocked.objects.all().delete()
    return [blocked.key_id]


def blocked_without_key() -> list[Any]:
    one_waits_for_another()
    GuardKey.objects.all().delete()
    return [Blocked.objects.get().pk]


def blocked_with_room() -> list[Any]:
    holder = one_waits_for_another()
    GuardKey.objects.update(has_line=False)
    assert not broker_for(settings_for()).settle([holder.lease])
    Job.objects.filter(pk=holder.job_id).update(status="SUCCESSFUL", finished_at=timezone.now())
    return [Blocked.objects.get().key_id]


def dead_letters_of_no_failure() -> list[Any]:
    letter = dead(frail.charge, "7")
    Job.objects.filter(pk=letter.job_id).update(status="SUCCESSFUL")
    return [letter.pk]


def unresolved_dead_letters() -> list[Any]:
    letter = dead(frail.charge, "7")
    (successor,) = enqueue()
    drain()
    DeadLetter.objects.update(state="requeued", successor_id=successor)
    return [letter.pk]


def steps_left_behind() -> list[Any]:
    (job_id,) = enqueue()
    drain()
    row = Step.objects.create(
        id=job_id, workflow_id=uuid.uuid4(), kind="task", state="ENQUEUED", job_id=job_id
    )
    return [row.pk]


def deserted_dead_letters() -> list[Any]:
    letter = dead(frail.charge, "7")
    DeadLetter.objects.update(state="requeued", successor_id=new_job_id())
    return [letter.pk]


def requeues_without_dead_letter() -> list[Any]:
    row = Requeue.objects.create(job_id=new_job_id(), identity="gone", from_job_id=new_job_id())
    return [row.pk]


def attempts_without_job() -> list[Any]:
    row = Attempt.objects.create(
        job_id=new_job_id(), number=1, kind="failed", finished_at=timezone.now()
    )
    return [row.pk]


def unique_keys_without_job() -> list[Any]:
    row = UniqueKey.objects.create(
        key_id=uuid.uuid4(), name="gone", job_id=new_job_id(), taken_us=1, until_us=1
    )
    return [row.pk]


def settled_cancellations() -> list[Any]:
    (job_id,) = enqueue()
    Cancellation.objects.create(job_id=job_id)
    return [job_id]


def silent_clusters() -> list[Any]:
    row = Cluster.objects.create(
        id=uuid.uuid4(), name="stoker", host="gone", pid=7, heartbeat_us=1,
        started_at=timezone.now(), info={},
    )  # fmt: skip
    return [row.pk]


def overdue_jobs() -> list[Any]:
    result = tasks.nothing.using(run_after=3600).enqueue()
    Deferred.objects.update(due_us=1)
    return [uuid.UUID(result.id)]


def stranded_jobs() -> list[Any]:
    """Write rows of an outbox by hand, as of a backend that was removed, and of a broker that was
    exchanged for the database."""
    return [f"{outgoing(backend)} of {backend} in default" for backend in ("removed", "default")]


def outgoing(backend: str, seconds_ago: float = 1e6) -> uuid.UUID:
    """Insert a job into the outbox."""
    row = Outgoing.objects.create(
        job_id=new_job_id(), backend=backend, task="shop.tasks.send", queue="default",
        package=b"", enqueued_at=time.time() - seconds_ago,
    )  # fmt: skip
    return row.pk


def unreadable_packages() -> list[Any]:
    spoiled, _ = enqueue(2)
    Job.objects.filter(pk=spoiled).update(package=b"not a package")
    return [spoiled]


def one_waits_for_another() -> Delivery:
    """Enqueue two jobs that need the same lock: one holds it, and the other is blocked."""
    for _ in range(2):
        guarded.enter.enqueue()
    (holder,) = claim()
    assert not claim()
    assert Blocked.objects.count() == 1
    return holder


MENDED: tuple[Plant, ...] = (
    lost_jobs,
    jobs_in_two_places,
    ended_jobs_in_line,
    abandoned_leases,
    needs_without_job,
    places_of_nobody,
    blocked_without_key,
    blocked_with_room,
    unresolved_dead_letters,
    deserted_dead_letters,
    requeues_without_dead_letter,
    attempts_without_job,
    unique_keys_without_job,
    settled_cancellations,
    silent_clusters,
)
NAMED: tuple[Plant, ...] = (
    places_without_job,
    jobs_without_their_guards,
    locks_held_twice,
    dead_letters_of_no_failure,
    steps_left_behind,
    overdue_jobs,
    stranded_jobs,
    unreadable_packages,
)


def test_jobs_of_one_cluster_may_hold_a_lock_together() -> None:
    """The cluster starts them one after another."""
    locks_held_twice()
    Claimed.objects.update(holder=HOLDER)
    assert findings() == {}


def test_lock_of_a_job_that_was_just_taken_over_is_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other jobs of its cluster hold the lock until their leases have ended, too."""
    locks_held_twice()
    rescued = Claimed.objects.exclude(holder=HOLDER)

    def release(_seconds: float) -> None:
        Need.objects.filter(job_id__in=rescued.values("pk")).update(holds=None)

    monkeypatch.setattr(
        examination, "time", SimpleNamespace(sleep=release, monotonic=time.monotonic)
    )
    assert "locks_held_twice" not in findings()


@pytest.mark.parametrize("plant", [*MENDED, *NAMED], ids=lambda plant: plant.__name__)
def test_each_fault_is_found(plant: Plant) -> None:
    wrong = plant()
    found = findings()
    assert list(found) == [plant.__name__]
    (finding,) = found.values()
    assert sorted(finding.ids) == sorted(map(str, wrong))
    assert finding.count == len(wrong)
    assert not finding.mended
    assert examine_store().is_healthy is not finding.is_fault


@pytest.mark.parametrize("plant", MENDED, ids=lambda plant: plant.__name__)
def test_safe_faults_are_repaired(plant: Plant) -> None:
    wrong = plant()
    report = examine_store(repair=True)
    assert [(one.name, one.mended) for one in report.findings] == [(plant.__name__, len(wrong))]
    assert report.is_healthy
    assert not findings(), "and stays so"
    drain()
    assert not findings()


@pytest.mark.parametrize("plant", NAMED, ids=lambda plant: plant.__name__)
def test_unsafe_faults_are_reported_but_not_repaired(plant: Plant) -> None:
    plant()
    before = {name: one.ids for name, one in findings().items()}
    after = findings(repair=True)
    assert {name: one.ids for name, one in after.items()} == before
    assert not any(one.mended for one in after.values())


def test_many_faults_at_once_are_found_and_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of fault is read in pages of one or two rows."""
    monkeypatch.setattr(look, "AT_ONCE", 2)
    one_waits_for_another()
    Claimed.objects.all().delete()
    Job.objects.filter(pk__in=Blocked.objects.values("pk")).delete()
    lost = lost_jobs()
    lost += lost_jobs()
    overdue_jobs()
    deserted_dead_letters()
    found = findings(repair=True)
    assert found["lost_jobs"].count == found["lost_jobs"].mended == len(lost) + 1
    assert set(findings()) <= {"overdue_jobs", "places_without_job", "jobs_without_their_guards"}


def test_lost_job_is_restored_with_attempts_and_guards() -> None:
    """Attempts and crashes are counted from the recorded attempts."""
    job_id = uuid.UUID(guarded.enter.using(priority=7).enqueue().id)
    Ready.objects.all().delete()
    for number, kind in ((1, "failed"), (2, "crashed")):
        Attempt.objects.create(job_id=job_id, number=number, kind=kind, finished_at=timezone.now())
    findings(repair=True)
    row = Ready.objects.get()
    assert (row.job_id, row.rank, row.attempts, row.crashes, row.guards) == (job_id, -7, 2, 1, 1)


def test_repair_skips_faults_repaired_meanwhile() -> None:
    """Another doctor has repaired them since."""
    lost = lost_jobs()
    scene = look.Scene(settings_for(), broker_for(settings_for()), 1000)
    jobs = Jobs(scene)
    seen = [(kind, ids) for kind, ids in jobs.find() if ids]
    findings(repair=True)
    assert len(claim(2)) == 2
    assert [jobs.mend(kind, ids) for kind, ids in seen] == [0]
    assert not findings()
    assert len(lost) == 2


def test_job_in_two_places_stays_claimed() -> None:
    (job_id,) = enqueue()
    (delivery,) = claim()
    Ready.objects.create(job_id=job_id, queue="default")
    Deferred.objects.create(job_id=job_id, due_us=2**60, queue="default")
    findings(repair=True)
    assert not Ready.objects.exists()
    assert not Deferred.objects.exists()
    assert not broker_for(settings_for()).settle([delivery.lease])


def test_place_without_job_becomes_dead_letter() -> None:
    """The finding's sentence recommends this."""
    wrong = places_without_job()
    drain()
    assert set(DeadLetter.objects.values_list("job_id", "reason")) == {
        (one, "unreadable") for one in wrong
    }


def test_healthy_store_has_no_findings() -> None:
    """The store has jobs in every state, with guards and keys, and dead letters in every state."""
    tasks.nothing.enqueue_many([((), {})] * 3)
    tasks.nothing.using(run_after=3600).enqueue()
    frail.fetch.enqueue("news")
    drain()
    one_waits_for_another()
    tasks.nothing.enqueue()
    letter = dead(frail.book, "account", "broken entry")
    frail.book.enqueue("account", "the next")
    assert not examine_store().findings
    assert letter.state == "open"


# -- with a broker outside the database -----------------------------------------------------------


@pytest.fixture
def redis() -> Iterator[Dispatch]:
    with fronted_broker() as made:
        yield made


@pytest.fixture
def sqs() -> Iterator[Dispatch]:
    run = uuid.uuid4().hex[:12]
    options = {"BROKER": sqs_url().replace("/test?", f"/test-{run}?"), "CLUSTER": f"test-{run}"}
    backend = {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": options}
    with override_settings(TASKS={"default": backend}):
        yield broker_for(settings_for())


OF_STORE: tuple[Plant, ...] = (
    places_of_nobody,
    blocked_with_room,
    needs_without_job,
    attempts_without_job,
)
"""Faults of jobs that wait in the store, whatever the broker is."""


@pytest.mark.sqs
@pytest.mark.parametrize("plant", OF_STORE, ids=lambda plant: plant.__name__)
def test_faults_are_found_in_a_store_that_messages_arrive_in(sqs: Dispatch, plant: Plant) -> None:
    wrong = plant()
    found = findings()
    assert list(found) == [plant.__name__]
    assert sorted(found[plant.__name__].ids) == sorted(map(str, wrong))


@pytest.mark.sqs
def test_lost_jobs_are_found_in_a_store_that_messages_arrive_in(sqs: Dispatch) -> None:
    _, lost = enqueue(2)
    frail.fetch.enqueue("news")
    assert len(claim(3)) == 3
    enqueue()  # stays at the broker
    report = examine_store()
    assert (report.findings, report.not_checked) == ([], [])
    Claimed.objects.filter(pk=lost).delete()
    found = findings()
    assert list(found) == ["lost_jobs"]
    assert found["lost_jobs"].ids == [str(lost)]


@pytest.mark.redis
@pytest.mark.parametrize("plant", OF_STORE, ids=lambda plant: plant.__name__)
def test_faults_are_found_in_a_store_beside_redis(redis: Dispatch, plant: Plant) -> None:
    wrong = plant()
    found = findings()
    assert list(found) == [plant.__name__]
    assert sorted(found[plant.__name__].ids) == sorted(map(str, wrong))


@pytest.mark.redis
def test_healthy_store_beside_redis_has_no_findings(
    redis: Dispatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With jobs before, between and after their attempts, in the store and in Redis."""
    enqueue(3)
    guarded.enter.enqueue()
    frail.fetch.enqueue("news")
    work_off()
    guarded.enter.enqueue()
    guarded.enter.enqueue()
    enqueue(2)
    assert claim(9)
    assert Blocked.objects.exists()
    report = examine_store()
    assert (report.findings, report.not_checked) == ([], ["lost_jobs"])
    call_command("stoker", "doctor")
    said = "not checked, because a broker outside the database has jobs: lost_jobs"
    assert said in capsys.readouterr().out


@pytest.mark.redis
def test_jobs_that_stay_in_an_outbox_are_found(redis: Dispatch) -> None:
    waiting, removed = outgoing("default"), outgoing("removed")
    outgoing("default", seconds_ago=0)
    outgoing("removed", seconds_ago=0)
    found = findings()
    assert found["unrelayed_jobs"].ids == [str(waiting)]
    assert found["stranded_jobs"].ids == [f"{removed} of removed in default"]
    assert list(found) == ["unrelayed_jobs", "stranded_jobs"]
    assert not examine_store().is_healthy


@pytest.mark.sqlite
def test_jobs_of_backends_of_another_project_are_not_stranded() -> None:
    """Two projects, or two releases during a rolling deploy, may share a database."""
    outgoing("theirs")
    Cluster.objects.create(
        id=uuid.uuid4(), name="theirs", host="elsewhere", pid=7, heartbeat_us=DatabaseNow(),
        started_at=timezone.now(), info={"alias": "theirs"},
    )  # fmt: skip
    assert "stranded_jobs" not in findings()
    Cluster.objects.update(heartbeat_us=1)
    assert "stranded_jobs" in findings()


@pytest.mark.two_databases
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_jobs_that_stay_in_the_outbox_of_another_database_are_found() -> None:
    """The queue has a database of its own, and the transactions of the project another."""
    waiting, removed = outgoing("default"), outgoing("removed")
    found = findings()
    assert found["unrelayed_jobs"].ids == [str(waiting)]
    assert found["stranded_jobs"].ids == [f"{removed} of removed in default"]


def test_most_rows_limits_the_rows_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "AT_ONCE", 2)
    enqueue(7)
    report = examine_store(most_rows=4)
    assert report.cut_short == ["stoker_job", "stoker_ready"]
    assert report.looked_at == 8
    assert examine_store(most_rows=7).cut_short == []


def test_number_of_queries_does_not_grow_with_rows() -> None:
    costs = []
    for count in (1, 30):
        enqueue(count)
        with CaptureQueriesContext(connection) as captured:
            examine_store()
        costs.append(len(captured))
    assert costs[0] == costs[1]


def test_missing_indexes_are_named() -> None:
    editor = connection.schema_editor
    (index,) = Deferred._meta.indexes
    with editor() as schema:
        schema.remove_index(Deferred, index)
    try:
        found = findings()
    finally:
        with editor() as schema:
            schema.add_index(Deferred, index)
    assert found["missing_indexes"].ids == ["stoker_deferred_due"]
    assert not findings()


def test_unapplied_migration_is_the_only_finding() -> None:
    lost_jobs()
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("stoker", "0007_paused_queues")
    try:
        found = findings()
    finally:
        recorder.record_applied("stoker", "0007_paused_queues")
    assert list(found) == ["unapplied_migrations"]
    assert found["unapplied_migrations"].ids == ["0007_paused_queues"]
    assert list(findings()) == ["lost_jobs"]


# -- the command -----------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    """Run the command and return its exit code."""
    try:
        call_command("stoker", "doctor", *arguments)
    except SystemExit as exit_:
        return int(str(exit_.code))
    return 0


def test_command_exits_with_one_if_a_fault_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run() == 0
    assert "No guarantee is broken" in capsys.readouterr().out
    (lost, _) = lost_jobs()
    assert run() == 1
    out = capsys.readouterr().out
    assert "fault   lost_jobs: 2" in out
    assert str(lost) in out
    assert "with --repair they become ready" in out
    assert run("--repair") == 0
    assert "mended 2: they become ready" in capsys.readouterr().out
    overdue_jobs()
    assert run("--json") == 0, "a notice is no fault"
    told = json.loads(capsys.readouterr().out)
    assert told["is_healthy"] is True
    assert [(one["name"], one["is_fault"]) for one in told["findings"]] == [("overdue_jobs", False)]


def test_audit_lists_what_a_repair_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stoker.operations")
    lost_jobs()
    deserted_dead_letters()
    overdue_jobs()
    assert run() == 1
    assert not BulkOperation.objects.exists(), "nothing was changed"
    assert run("--repair", "--by", "anna", "--because", "restored from a dump") == 0
    row = BulkOperation.objects.get()
    assert row.filters == {"target": "lost_jobs=2, deserted_dead_letters=1"}
    assert (row.operation, row.by, row.because) == ("repair-store", "anna", "restored from a dump")
    assert (row.done, row.state) == (3, "done")
    (entry,) = audit.find(settings_for(), AuditFilter(text="lost_jobs"), 10).entries
    assert (entry.title, entry.kind, entry.is_bulk) == ("Repair", "store", False)
    by = "repair-store lost_jobs=2, deserted_dead_letters=1 by anna (restored from a dump)"
    assert f"{by}: 3 rows of the store repaired." in caplog.messages
    assert run("--repair") == 0
    assert BulkOperation.objects.count() == 1, "nothing was left to repair"


def test_command_shortens_long_lists_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    enqueue(25)
    Ready.objects.all().delete()
    assert run() == 1
    assert "and 5 more" in capsys.readouterr().out
