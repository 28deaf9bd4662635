"""The outbox: jobs of transactions that their broker cannot join."""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.db import (
    DataError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.test import override_settings

from stoker import chain, queues
from stoker.brokers import outage
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable, PackageTooLarge
from stoker.jobs import relay as outbox
from stoker.jobs.relay import RelayRefused, relay_from
from stoker.jobs.states import JobState
from stoker.models import Job, Outgoing
from stoker.models import outbox as outbox_table
from stoker.models.outbox import forget_tables
from stoker.store.statements import insert_with_packages, with_keys

from tests.app.tasks import add, echo
from tests.guards.sessions import PATIENCE_SECONDS, session
from tests.integration.work import another_database, work_off

BACKEND = "stoker.backend.StokerBackend"
AFTER_THE_LAST_YEAR = 253_402_300_800.0
"""The first second of the year 10000."""

pytestmark = pytest.mark.django_db(transaction=True)


class Undo(Exception):
    """Raised to roll a transaction back."""


@contextmanager
def with_broker(url: str) -> Iterator[None]:
    # Another CLUSTER in each test: a broker in memory belongs to the settings.
    options = {"BROKER": url, "CLUSTER": uuid.uuid4().hex}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        yield


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with with_broker("memory://"):
        yield


@pytest.fixture
def nobody_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as if every process died right after its commit."""
    monkeypatch.setattr(outbox, "relay_these", lambda *_: {})


def waiting() -> int:
    sizes = broker_for(settings_for()).sizes()
    return sum(size["ready"] + size["deferred"] for size in sizes.values())


def relay() -> int:
    return relay_from(settings_for(), "default", lambda: None)


def test_outbox_row_exists_until_commit_and_job_afterwards() -> None:
    with transaction.atomic():
        result = add.enqueue(1, 2)
        assert (Outgoing.objects.count(), waiting()) == (1, 0)
    assert (Outgoing.objects.count(), waiting()) == (0, 1)
    work_off()
    assert result.wait(5) == 3


@pytest.mark.usefixtures("nobody_relays")
def test_clear_cancels_the_jobs_in_an_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait there while the broker is away."""
    monkeypatch.setattr(outbox_table, "LISTED_AT_ONCE", 2)
    with transaction.atomic():
        *results, other = [add.enqueue(number, 2) for number in range(6)]
    Outgoing.objects.filter(pk=other.id).update(queue="mail")
    assert queues.clear("default", dry_run=True) == queues.Cleared(5, 0)
    assert queues.clear("default", limit=3, by="alice") == queues.Cleared(3, 3)
    assert Outgoing.objects.count() == 3
    assert queues.clear("default", by="alice", because="too late") == queues.Cleared(2, 2)
    for result in results:
        assert add.get_result(result.id).state is JobState.CANCELLED
    assert [str(pk) for pk in Outgoing.objects.values_list("pk", flat=True)] == [other.id]


class SchemaRouter:
    """A database router that refuses shared tables in the schema of a tenant, as in
    django-tenants."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return False if hasattr(connections[db], "tenant") else None


@pytest.fixture
def in_tenant_schema(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connection, "tenant", "one", raising=False)
    # django-tenants lists the tables of this schema only
    monkeypatch.setattr(connection.introspection, "table_names", lambda cursor: [])
    forget_tables()
    with override_settings(DATABASE_ROUTERS=[SchemaRouter()]):
        yield
    forget_tables()


@pytest.mark.usefixtures("in_tenant_schema", "nobody_relays")
def test_enqueue_in_the_schema_of_a_tenant_writes_an_outbox_row() -> None:
    with transaction.atomic():
        add.enqueue(1, 2)
    assert (Outgoing.objects.count(), waiting()) == (1, 0)


@pytest.mark.postgres
@pytest.mark.usefixtures("in_tenant_schema", "nobody_relays")
def test_enqueue_for_another_database_in_the_schema_of_a_tenant_writes_an_outbox_row() -> None:
    with another_database() as queue, with_broker(f"orm://{queue}"):
        with transaction.atomic():
            add.enqueue(1, 2)
        assert (Outgoing.objects.count(), Job.objects.count()) == (1, 0)


def test_rollback_leaves_no_outbox_row() -> None:
    with suppress(Undo), transaction.atomic():
        add.enqueue_many([((1, 2), {})] * 3)
        raise Undo
    assert (Outgoing.objects.count(), relay(), waiting()) == (0, 0, 0)


def test_enqueue_outside_a_transaction_writes_no_outbox_row() -> None:
    add.enqueue(1, 2)
    assert (Outgoing.objects.exists(), waiting()) == (False, 1)


@pytest.mark.usefixtures("nobody_relays")
class TestLeftBehind:
    """The process that enqueued the job has died."""

    def test_relay_sends_each_job_once(self) -> None:
        with transaction.atomic():
            results = add.enqueue_many([((1, number), {}) for number in range(1201)])
        assert [relay(), relay(), waiting()] == [1201, 0, 1201]
        work_off()
        assert Job.objects.filter(status=Job.Status.SUCCESSFUL).count() == 1201
        assert [results[number].wait(5) for number in (0, 600, 1200)] == [1, 601, 1201]

    def test_relay_keeps_options_and_order(self) -> None:
        with transaction.atomic():
            add.using(priority=7, run_after=3600).enqueue(1, 2)
            add.using(priority=9).enqueue(1, second=3)
        relay()
        first, second = broker_for(settings_for()).broker.waiting()  # type: ignore[union-attr] # memory's
        assert (first.priority, second.priority, second.run_after) == (7, 9, None)
        assert first.run_after == pytest.approx(first.enqueued_at + 3600)

    @pytest.mark.parametrize(
        ("run_after", "state"), [(None, JobState.READY), (60, JobState.DEFERRED)]
    )
    def test_job_in_outbox_has_the_state_it_will_have(
        self, run_after: Any, state: JobState
    ) -> None:
        with transaction.atomic():
            result = add.using(run_after=run_after).enqueue(1, 2)
        result.refresh()
        assert result.state is state
        assert add.get_result(result.id).state is state

    def test_job_in_outbox_can_be_cancelled(self) -> None:
        with transaction.atomic():
            result = add.enqueue(1, 2)
        assert result.cancel("no")
        assert (relay(), waiting(), result.state) == (0, 0, JobState.CANCELLED)
        assert Job.objects.get().reason == "no"

    def test_rows_of_other_backends_are_left_alone(self) -> None:
        with transaction.atomic():
            add.enqueue(1, 2)
        Outgoing.objects.update(backend="another")
        assert (relay(), Outgoing.objects.count()) == (0, 1)


class TestBrokerAway:
    """Committed jobs wait in the outbox, and enqueue does not wait for the broker."""

    @pytest.fixture
    def away(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Refuse jobs and record how many were offered, until the list is cleared."""
        broker = broker_for(settings_for()).broker
        assert broker is not None
        enqueue, asked = broker.enqueue, [0]

        def refuse(messages: Any) -> None:
            if not asked:
                enqueue(messages)
                return
            asked.append(len(messages))
            raise BrokerUnavailable("It is away.")

        monkeypatch.setattr(broker, "enqueue", refuse)
        monkeypatch.setattr(outage, "SHORTEST_PAUSE_SECONDS", 3600.0)
        monkeypatch.setattr(outage, "LONGEST_PAUSE_SECONDS", 3600.0)
        return asked

    def test_unreachable_broker_is_tried_once_and_then_left_alone(
        self, away: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The monitor starts the steps of workflows in transactions of the store."""
        chain(add.si(1, 2)).enqueue()
        for _ in range(2):
            with transaction.atomic():
                add.enqueue(1, 2)
        assert (away, Outgoing.objects.count()) == ([0, 1], 3)
        assert "wait in the outbox until the broker is reachable: It is away." in caplog.text

    def test_failing_relay_loses_nothing(self, away: list[int]) -> None:
        with transaction.atomic():
            add.enqueue(1, 2)
        with pytest.raises(BrokerUnavailable):
            relay()
        assert (away, Outgoing.objects.count()) == ([0, 1, 1], 1)
        away.clear()
        assert (relay(), waiting(), Outgoing.objects.count()) == (1, 1, 0)


@pytest.mark.mariadb
@pytest.mark.usefixtures("nobody_relays")
def test_relay_holds_up_no_enqueue_though_the_project_reads_repeatably(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transaction of the relay lasts as long as the call of the broker."""
    with transaction.atomic():
        add.enqueue(1, 2)
    broker, outgoing, moved = broker_for(settings_for()), Outgoing.objects, list[Outgoing]()
    isolation = {"isolation_level": "repeatable read"}
    options = {**connection.settings_dict["OPTIONS"], **isolation}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.close()
    connection.connect()
    with session() as other, closing(connection):

        def enqueue_meanwhile(rows: Sequence[Outgoing], _: float) -> None:
            other.do(lambda: connection.cursor().execute("SET innodb_lock_wait_timeout = 1"))
            other.start_transaction(partial(add.enqueue, 3, 4)).result(PATIENCE_SECONDS)
            other.commit()
            moved.extend(rows)

        lock = partial(outgoing.lock_first, "default", 10)
        assert broker.move_outbox("default", lock, enqueue_meanwhile) == moved
    assert (len(moved), outgoing.count()) == (1, 1)


class TestTooLarge:
    """The database of the queue does not accept some packages that the outbox has accepted."""

    @pytest.fixture(autouse=True)
    def limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Refuse jobs of high priority."""
        broker = broker_for(settings_for())
        real = broker.relay

        def take(messages: Any, **options: Any) -> None:
            if any(one.priority for one in messages):
                raise PackageTooLarge("It is too large.")
            real(messages, **options)

        monkeypatch.setattr(broker, "relay", take)
        monkeypatch.setattr(broker, "relay_batch", 50)

    @pytest.mark.usefixtures("nobody_relays")
    def test_jobs_behind_packages_that_are_too_large_are_relayed(self) -> None:
        with transaction.atomic():
            add.using(priority=9).enqueue_many([((1, 2), {})] * (outbox.MANY_REFUSALS + 2))
            add.enqueue_many([((1, 2), {})] * 60)
        with pytest.raises(RelayRefused, match="too large"):
            relay()
        assert waiting() == 60
        assert Outgoing.objects.count() == outbox.MANY_REFUSALS + 2
        with pytest.raises(RelayRefused, match="too large"):
            relay()  # nothing but the refused rows is left

    def test_package_that_is_too_large_does_not_pause_the_relay(self) -> None:
        with transaction.atomic():
            add.using(priority=9).enqueue(1, 2)
        with transaction.atomic():
            add.enqueue(1, 2)
        assert (waiting(), Outgoing.objects.count()) == (1, 1)


@pytest.mark.usefixtures("nobody_relays")
def test_large_packages_are_read_in_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends a statement that does not send its rows in time, and so would the next."""
    monkeypatch.setattr(outbox_table, "PAGE_BYTES", 3000)
    with transaction.atomic():
        for length in (10, 10, 5000, 2000, 10):
            echo.enqueue("a" * length)
    pages, after = [], None
    with transaction.atomic():
        while page := Outgoing.objects.lock_first("default", 500, after):
            pages.append(len(page))
            after = page[-1].pk
    assert pages == [2, 1, 2]
    assert (relay(), waiting()) == (5, 5)


class TestRefusals:
    """The broker refuses some jobs, which does not delay the others."""

    @pytest.fixture
    def given(self, nobody_relays: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Refuse jobs of high priority, and record the sizes of the batches."""
        broker = broker_for(settings_for())
        real, given = broker.relay, []
        monkeypatch.setattr(broker, "relay_batch", 3)

        def take(messages: Any, **options: Any) -> None:
            given.append(len(messages))
            if any(one.priority for one in messages):
                raise BrokerUnavailable("Not these.")
            real(messages, **options)

        monkeypatch.setattr(broker, "relay", take)
        with transaction.atomic():
            for number in range(10):
                add.using(priority=0 if number % 5 else 9).enqueue(1, 1)
        return given

    def test_refused_jobs_stay_in_the_outbox_and_raise(self, given: list[int]) -> None:
        with pytest.raises(RelayRefused, match="Not these"):
            relay()
        assert (waiting(), Outgoing.objects.count()) == (8, 2)
        assert set(Outgoing.objects.values_list("priority", flat=True)) == {9}

    def test_unreachable_broker_is_not_tried_for_each_job(
        self, given: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ping() -> None:
            raise BrokerUnavailable("It is away.")

        monkeypatch.setattr(broker_for(settings_for()), "ping", ping)
        with pytest.raises(BrokerUnavailable, match="away"):
            relay()
        assert (given, Outgoing.objects.count()) == ([3], 10)

    def test_refusal_of_a_single_job_raises_the_error_of_an_unreachable_broker(
        self, given: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ping() -> None:
            raise BrokerUnavailable("It is away.")

        Outgoing.objects.filter(priority=0).delete()
        Outgoing.objects.first().delete()  # type: ignore[union-attr] # one of two
        monkeypatch.setattr(broker_for(settings_for()), "ping", ping)
        with pytest.raises(BrokerUnavailable, match="away"):
            relay()

    def test_broker_that_refuses_everything_is_left_alone(
        self, given: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A Redis whose memory is full does so. The scheduler waits longer after each sweep."""
        monkeypatch.setattr(outbox, "MANY_REFUSALS", 4)
        Outgoing.objects.update(priority=9)
        with pytest.raises(BrokerUnavailable, match="Not these") as raised:
            relay()
        assert not isinstance(raised.value, RelayRefused)
        assert (given, Outgoing.objects.count()) == ([3, 1, 1, 1, 3, 1, 3, 1, 1], 10)

    def test_error_about_all_jobs_is_not_met_for_each_of_them(
        self, given: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(messages: Any, **options: Any) -> None:
            given.append(len(messages))
            raise ProgrammingError("permission denied for table stoker_job")

        monkeypatch.setattr(outbox, "MANY_REFUSALS", 4)
        monkeypatch.setattr(broker_for(settings_for()), "relay", refuse)
        with pytest.raises(ProgrammingError, match="permission denied"):
            relay()
        assert given == [3, 1, 1, 1, 3, 1, 3, 1, 1]

    def test_good_jobs_behind_many_refused_ones_leave_the_outbox(
        self, given: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "MANY_REFUSALS", 2)
        monkeypatch.setattr(broker_for(settings_for()), "relay_batch", 20)
        first = list(Outgoing.objects.order_by("pk").values_list("pk", flat=True)[:5])
        Outgoing.objects.update(priority=0)
        Outgoing.objects.filter(pk__in=first).update(priority=9)
        for _ in range(100):
            with suppress(RelayRefused, BrokerUnavailable):
                relay()
        assert (waiting(), Outgoing.objects.count()) == (5, 5)

    def test_queue_whose_jobs_are_all_refused_delays_no_other_queue(
        self, given: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "MANY_REFUSALS", 2)
        Outgoing.objects.update(priority=9, queue="missing")
        with transaction.atomic():
            add.enqueue(1, 1)
        with pytest.raises(RelayRefused):
            relay()
        assert (waiting(), Outgoing.objects.count()) == (1, 10)


@pytest.mark.postgres
@pytest.mark.parametrize("number", [3, 500])
def test_rows_are_found_by_key_though_the_table_was_empty_when_it_was_vacuumed(number: int) -> None:
    """PostgreSQL believes then that it still is. It compared each row with each key."""
    messages = [
        Outgoing(job_id=uuid.uuid4(), backend="default", package=b"x" * 300, enqueued_at=0.0)
        for _ in range(2000)
    ]
    Outgoing.objects.bulk_create(messages)
    Outgoing.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE, TRUNCATE false) stoker_outbox")
    Outgoing.objects.bulk_create(messages)
    keys = [one.pk for one in messages[:number]]
    (plan,) = json.loads(with_keys(Outgoing.objects.all(), keys).explain(format="json"))
    assert plan["Plan"]["Node Type"] in ("Index Scan", "Seq Scan"), "no loop over the keys"
    assert len(with_keys(Outgoing.objects.all(), keys)) == number


def test_rows_keep_their_values_when_they_are_inserted_together() -> None:
    now = 1_700_000_000.123456
    rows = [
        Outgoing(
            job_id=uuid.UUID(int=number),
            backend="default",
            task="shop.tasks.grüße'\\{",
            queue="mail",
            priority=number - 1,
            package=bytes(range(256)) * number,
            enqueued_at=now,
            run_after=None if number % 2 else now + number,
            needs=[] if number else [["a", "lock", None, 'x"{,}\\']],
            stays_in_store=number == 1,
            claim=None if number else ["key", True, 1.5],
        )
        for number in range(3)
    ]
    insert_with_packages(Outgoing.objects, rows)
    names = [field.attname for field in Outgoing._meta.concrete_fields]
    for row, found in zip(rows, Outgoing.objects.order_by("job_id"), strict=True):
        for name in names:
            value = getattr(found, name)
            # psycopg 2 returns a memoryview
            value = bytes(value) if name == "package" else value
            assert value == getattr(row, name), name


def test_text_that_is_too_long_for_its_column_is_not_cut() -> None:
    rows = [
        Outgoing(
            job_id=uuid.UUID(int=number),
            backend="x" * 101,
            task="shop.tasks.pay",
            queue="mail",
            package=b"",
            enqueued_at=0.0,
        )
        for number in range(2)
    ]
    if connection.vendor == "sqlite":
        pytest.skip("SQLite ignores the length of a column")
    with pytest.raises(DataError):
        insert_with_packages(Outgoing.objects, rows)


class TestUnstorable:
    """A row of an older version has a start time that neither Python nor some databases know."""

    @pytest.fixture
    def broken(self, nobody_relays: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def take(messages: Any, **options: Any) -> None:
            for one in messages:
                if one.run_after is not None:
                    datetime.fromtimestamp(one.run_after, UTC)
            real(messages, **options)

        broker = broker_for(settings_for())
        real = broker.relay
        monkeypatch.setattr(broker, "relay", take)
        with transaction.atomic():
            add.using(run_after=60).enqueue(1, 2)
            add.enqueue(1, 2)
        Outgoing.objects.exclude(run_after=None).update(run_after=AFTER_THE_LAST_YEAR)

    @pytest.mark.usefixtures("broken")
    def test_jobs_behind_an_unstorable_one_are_relayed(self) -> None:
        with pytest.raises(RelayRefused, match="year"):
            relay()
        assert waiting() == 1
        assert Outgoing.objects.get().run_after == AFTER_THE_LAST_YEAR

    @pytest.mark.usefixtures("broken")
    def test_error_of_the_database_ends_the_sweep(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(messages: Any, **options: Any) -> None:
            raise OperationalError("It is away.")

        monkeypatch.setattr(broker_for(settings_for()), "relay", fail)
        with pytest.raises(OperationalError):
            relay()
        assert Outgoing.objects.count() == 2

    @pytest.mark.sqlite
    @pytest.mark.usefixtures("broken")
    def test_job_that_the_store_cannot_hold_delays_no_other(self) -> None:
        with override_settings(TASKS={"default": {"BACKEND": BACKEND}}):
            with pytest.raises(RelayRefused, match="year"):
                relay()
            assert Job.objects.get().run_after is None
        assert Outgoing.objects.get().run_after == AFTER_THE_LAST_YEAR
