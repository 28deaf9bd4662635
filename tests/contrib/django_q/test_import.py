"""``stoker import_django_q``, with tables written by Django Q 2 (old_tables.json)."""

import base64
import json
import os
import pickle
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.signing import TimestampSigner
from django.db import connection, connections
from django.test import override_settings
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from stoker.brokers.adapters import broker_for
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for
from stoker.contrib.django_q import conf
from stoker.contrib.django_q.importing import (
    NotReadable,
    OldPackage,
    OldSchedule,
    OldTask,
    read_package,
    read_plain,
)
from stoker.contrib.django_q.models import Schedule, Task
from stoker.contrib.django_q.tasks import result
from stoker.models import Job, Outgoing
from stoker.schedules.fire import Firing
from stoker.testing import drain

from tests.conformance.server_stands import redis_url

MODELS = {"task": OldTask, "schedule": OldSchedule, "ormq": OldPackage}
FUTURE = datetime(2040, 1, 31, 12, 30, tzinfo=UTC)
MOMENTS = ("started", "stopped", "next_run", "lock")

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("old_tables"),
]


@pytest.fixture
def old_tables(transactional_db: None) -> Iterator[None]:
    """Fill the tables as django-q2 1.11.1 did, with this SECRET_KEY and the name "oldname"."""
    tables = json.loads((Path(__file__).parent / "old_tables.json").read_text())
    with connection.schema_editor() as editor:
        for model in MODELS.values():
            editor.create_model(model)
    for table, rows in tables.items():
        for row in rows:
            read = {
                key: parse_datetime(value) if key in MOMENTS and value else value
                for key, value in row.items()
            }
            MODELS[table].objects.create(**read)
    yield
    with connection.schema_editor() as editor:
        for model in MODELS.values():
            editor.delete_model(model)


def import_all(*arguments: str, name: str = "oldname") -> str:
    told = StringIO()
    call_command("stoker", "import_django_q", "--name", name, *arguments, stdout=told)
    return told.getvalue()


def test_dry_run_counts_and_copies_nothing() -> None:
    told = import_all("--dry-run")
    assert "django_q_schedule: 3 rows, 3 would be copied" in told
    assert "django_q_ormq: 4 rows, 3 would be copied" in told
    assert "1 not: a cluster of Django Q has it" in told
    assert "django_q_task: 2 rows, 2 would be copied" in told
    assert not Schedule.objects.exists()
    assert not Task.objects.exists()
    assert not Job.objects.using(conf.database()).exists()


@pytest.fixture
def lock_expired(old_tables: None) -> None:
    """Let the lock of the package that a cluster had end, so that it counts as not being run."""
    OldPackage.objects.update(lock=parse_datetime("2020-01-01T00:00:00+00:00"))


@pytest.mark.usefixtures("lock_expired")
def test_packages_that_a_cluster_of_django_q_may_be_running_are_reported() -> None:
    """In the first Django Q, the lock is the time of the claim, so it never looks locked."""
    assert "claimed by a cluster" not in import_all("--dry-run")
    OldPackage.objects.filter(pk=4).update(lock=timezone.now())
    told = import_all("--dry-run")
    assert "1 of them were enqueued, or claimed by a cluster of django-q, in the last 60 s" in told


@pytest.mark.usefixtures("lock_expired")
def test_all_rows_are_copied_once() -> None:
    assert "django_q_ormq: 4 rows, 4 copied" in import_all()
    schedules = {row.name: row for row in Schedule.objects.all()}
    assert schedules["daily"].repeats == 5
    assert schedules["daily"].next_run == parse_datetime("2040-01-01T00:00:00+00:00")
    assert schedules["crony"].cron == "0 3 * * *"
    assert schedules["crony"].hook == "math.hypot"
    assert schedules[None].minutes == 7
    bad, ok = Task.objects.order_by("name")
    assert (bad.name, bad.success, bad.args) == ("bad", False, (-1,))
    assert bad.result.startswith("math domain error")
    assert (ok.name, ok.result, ok.group) == ("ok", -2.0, "g")

    drain()
    assert result("waiting one") == -3.0
    assert result("7835656c00c0407bbeee42f9e5799cd4") == -3.0
    assert result("8870739162424a198c71be0c289bb41a") == 3.5
    assert result("ok") == -2.0
    assert Task.objects.get(name="bad").attempt_count == 3

    jobs = Job.objects.using(conf.database()).count()
    Job.objects.using(conf.database()).all().delete()  # as pruning does
    told = import_all()
    assert "django_q_ormq: 4 rows, 0 copied, 4 were before" in told
    assert "django_q_schedule: 3 rows, 0 copied, 3 were before" in told
    assert "django_q_task: 2 rows, 0 copied, 2 were before" in told
    assert jobs
    assert not Job.objects.using(conf.database()).exists()
    assert Schedule.objects.count() == 3


@pytest.mark.parametrize("is_id_taken", [False, True])
def test_overdue_schedules_are_due_at_once(*, is_id_taken: bool) -> None:
    OldSchedule.objects.all().delete()
    past = datetime(2020, 1, 31, 2, tzinfo=UTC)
    kinds = {Schedule.CRON: "0 2 * * *", Schedule.DAILY: None, Schedule.ONCE: None}
    for number, (kind, cron) in enumerate(kinds.items(), 1):
        OldSchedule.objects.create(
            id=number, name=kind, schedule_type=kind, cron=cron, func="math.floor", next_run=past
        )
        if is_id_taken:
            Schedule.objects.create(id=number, func="math.ceil", next_run=FUTURE)
    import_all()
    rows = Schedule.objects.filter(name__in=kinds)
    assert {row.name: row.next_run for row in rows} == dict.fromkeys(kinds, past)
    firing = Firing(settings_for(conf.alias()))
    assert [firing.fire(row.own_id) is not None for row in rows] == [True, True, True]
    assert Job.objects.using(conf.database()).filter(task="math.floor").count() == 3


def test_cron_schedule_that_has_missed_nothing_is_due_at_its_next_moment() -> None:
    now = timezone.now()
    OldSchedule.objects.create(
        id=9, name="leap", schedule_type=Schedule.CRON, cron="0 0 29 2 *", func="a.b", next_run=now
    )
    import_all()
    (row,) = Schedule.objects.filter(name="leap")
    assert row.next_run > now


@pytest.mark.usefixtures("lock_expired")
def test_interrupted_import_continues_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.contrib.django_q import importing

    real, calls = importing._enqueue, []

    def enqueue(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            real(*given)
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(importing, "_enqueue", enqueue)
    with pytest.raises(SystemExit):
        import_all()
    assert Job.objects.using(conf.database()).count() == 1
    told = import_all()
    assert "django_q_ormq: 4 rows, 3 copied, 1 were before" in told
    assert Job.objects.using(conf.database()).count() == 4


@pytest.fixture
def broker(old_tables: None) -> Iterator[Dispatch]:
    """The queue is on Redis."""
    options = {"BROKER": redis_url(), "CLUSTER": f"test-{uuid.uuid4().hex}"}
    entry = {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": options}
    with override_settings(TASKS={"default": entry}):
        made = broker_for(settings_for())
        assert isinstance(made, Dispatch)
        yield made
        for queue in made.sizes():
            made.purge(queue)
        made.close()


@pytest.mark.redis
@pytest.mark.usefixtures("lock_expired")
def test_dry_run_enqueues_nothing_on_a_broker_outside_the_database(broker: Dispatch) -> None:
    assert "django_q_ormq: 4 rows, 4 would be copied" in import_all("--dry-run")
    assert broker.sizes() == {}


@pytest.mark.redis
@pytest.mark.usefixtures("lock_expired")
def test_packages_are_enqueued_on_a_broker_outside_the_database(broker: Dispatch) -> None:
    assert "django_q_ormq: 4 rows, 4 copied" in import_all()
    assert sum(size["ready"] for size in broker.broker.sizes().values()) == 4
    assert not Outgoing.objects.exists()


@pytest.mark.usefixtures("lock_expired")
def test_package_of_another_cluster_name_is_not_opened() -> None:
    told = import_all(name="another")
    assert "4 not: its signature is not that of SECRET_KEY with the name 'another'" in told
    assert not Job.objects.using(conf.database()).exists()


@pytest.mark.usefixtures("lock_expired")
@override_settings(SECRET_KEY="a new one", SECRET_KEY_FALLBACKS=["for tests only"])
def test_package_signed_with_a_fallback_secret_is_opened() -> None:
    assert "django_q_ormq: 4 rows, 4 copied" in import_all()


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nowhere/at/all",)


def test_unsigned_pickle_calls_no_function() -> None:
    trap = base64.b64encode(pickle.dumps(Trap())).decode()
    with pytest.raises(NotReadable, match=r"posix\.mkdir, and was not signed"):
        read_plain(trap)
    OldTask.objects.filter(name="ok").update(result=trap)
    import_all()
    assert Task.objects.get(name="ok").result == (
        "(not read: it has a posix.mkdir, and was not signed)"
    )


def test_package_with_wrong_signature_is_not_unpickled() -> None:
    payload = TimestampSigner(key="another", salt="oldname").sign(
        base64.urlsafe_b64encode(pickle.dumps(Trap())).decode()
    )
    with pytest.raises(NotReadable, match="signature"):
        read_package(payload, "oldname")


def test_compressed_package_is_opened() -> None:
    class Pickle:
        @staticmethod
        def dumps(value: Any) -> bytes:
            return pickle.dumps(value)

    signer = TimestampSigner(key="for tests only", salt="oldname")
    given = {"id": "1", "func": "math.floor", "args": ("x" * 1000,)}
    payload = signer.sign_object(given, serializer=Pickle, compress=True)  # type: ignore[arg-type] # as Django Q does
    assert payload.startswith(".")
    assert read_package(payload, "oldname") == given


@pytest.mark.two_databases
@pytest.mark.usefixtures("lock_expired")
@override_settings(Q_CLUSTER={"name": "oldname", "orm": "queue"})
def test_each_table_is_read_where_django_q_has_its_rows() -> None:
    """Django Q keeps only packages in the database of "orm". The other tables are empty there."""
    queue = connections["queue"]
    with queue.schema_editor() as editor:
        for model in MODELS.values():
            editor.create_model(model)
    try:
        packages = list(OldPackage.objects.all())
        OldPackage.objects.using("queue").bulk_create(packages)
        OldPackage.objects.all().delete()
        told = import_all()
        assert "django_q_schedule: 3 rows, 3 copied" in told
        assert "django_q_ormq: 4 rows, 4 copied" in told
        assert "django_q_task: 2 rows, 2 copied" in told
        assert "django_q_task: 0 rows" in import_all("--from", "queue")
    finally:
        with queue.schema_editor() as editor:
            for model in MODELS.values():
                editor.delete_model(model)


def test_missing_table_is_skipped() -> None:
    with connection.schema_editor() as editor:
        editor.delete_model(OldTask)
    assert "django_q_task" not in import_all("--dry-run")
    with connection.schema_editor() as editor:
        editor.create_model(OldTask)
