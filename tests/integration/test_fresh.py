"""The fast path for one job, which bypasses Django's cursors, behaves like the ORM."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

import pytest
from django.db import (
    Error,
    IntegrityError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from stoker.exceptions import BrokerUnavailable
from stoker.jobs import sealing
from stoker.models import Deferred, Job, Ready
from stoker.store import past_cursor, prepared
from stoker.store import wake as orm_wake
from stoker.values import ids

from tests.app.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["by itself", "prepared", "watched", "bound by the server"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Choose how the statement reaches the server."""
    if request.param == "bound by the server":
        if connection.vendor != "postgresql":
            pytest.skip("an option of PostgreSQL's driver")
        options = {**connection.settings_dict["OPTIONS"], "server_side_binding": True}
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    if request.param == "prepared":
        prepare(monkeypatch)
    if request.param == "watched":
        with CaptureQueriesContext(connection):
            yield request.param
    else:
        yield request.param


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this connection prepare its next insert of a job outside a transaction."""
    if connection.vendor != "postgresql":
        pytest.skip("Only PostgreSQL has prepared statements.")
    connection.ensure_connection()
    past_cursor._used.add(connection.connection)
    monkeypatch.delitem(connection.settings_dict, prepared.KEPT_KEY, raising=False)


def prepared_inserts() -> int:
    """Return how many inserts of jobs this session has prepared."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%INTO stoker_job%'"
        )
        return int(cursor.fetchone()[0])


class Queue(str, Enum):  # noqa: UP042 - as projects have written it for years
    MAIL = "mail"


@pytest.mark.parametrize("queue", ["mail", "o'mäil\\", "%(id)s", Queue.MAIL])
def test_enqueue_writes_job_and_ready_row(way: str, queue: str) -> None:
    result = add.using(priority=-9, queue_name=queue).enqueue(1, 2)
    (job,) = Job.objects.values("id", "queue", "priority", "status", "attempts", "enqueued_at")
    assert (str(job["id"]), job["queue"], job["priority"]) == (result.id, queue, -9)
    assert add.get_result(result.id).args == [1, 2]
    assert (job["status"], job["attempts"], job["enqueued_at"]) == (None, 0, result.enqueued_at)
    (place,) = Ready.objects.values()
    assert place == {
        "job_id": job["id"], "queue": queue, "rank": 9, "attempts": 0, "crashes": 0,
        "guards": 0,
    }  # fmt: skip
    assert not Deferred.objects.exists()


def test_enqueue_is_rolled_back_with_its_savepoint_or_transaction(way: str) -> None:
    with transaction.atomic():
        kept = add.enqueue(1, 2)
        with suppress(ZeroDivisionError), transaction.atomic():
            add.enqueue(3, 4)
            raise ZeroDivisionError
    assert [str(pk) for pk in Job.objects.values_list("pk", flat=True)] == [kept.id]
    assert Ready.objects.count() == 1
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            add.enqueue(1, 2)
    assert Job.objects.count() == 1


def test_failed_insert_breaks_the_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed ``Model.save()`` has the same effect."""
    same = ids.new_job_id()
    monkeypatch.setattr(sealing, "new_job_id", lambda *_: same)
    with transaction.atomic():
        add.enqueue(1, 2)
        with pytest.raises(IntegrityError):
            add.enqueue(1, 2)
        assert transaction.get_rollback()
    assert not Job.objects.exists()


def test_statements_are_seen_by_wrappers_and_query_log() -> None:
    seen: list[str] = []

    def note(execute: Any, sql: str, *arguments: Any) -> Any:
        seen.append(sql)
        return execute(sql, *arguments)

    with connection.execute_wrapper(note):
        add.enqueue(1, 2)
    with CaptureQueriesContext(connection) as captured:
        add.enqueue(1, 2)
    for statements in (seen, [query["sql"] for query in captured]):
        assert any("stoker_job" in sql for sql in statements)
        assert any("stoker_ready" in sql for sql in statements)


@pytest.mark.parametrize("guarded", ["cursor", "ensure_connection"])
def test_database_access_that_is_blocked_in_tests_raises(
    monkeypatch: pytest.MonkeyPatch, guarded: str
) -> None:
    """Django's database-free tests replace `cursor` of the connection, pytest-django replaces
    `ensure_connection` of its class."""

    def forbid(*_: Any) -> None:
        raise PermissionError

    connection.ensure_connection()
    owner = connections["default"] if guarded == "cursor" else BaseDatabaseWrapper
    with monkeypatch.context() as patch:
        patch.setattr(owner, guarded, forbid)
        with pytest.raises(PermissionError):
            add.enqueue(1, 2)
    assert not Job.objects.exists()


@pytest.mark.postgres
def test_job_is_written_to_the_schema_that_the_cursor_selects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Multi-tenant packages set the search path when a cursor is opened."""
    tables = ("stoker_job", "stoker_ready")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        for table in tables:
            cursor.execute(f"CREATE TABLE tenant.{table} (LIKE {table} INCLUDING ALL)")

    def cursor_of_tenant(wrapper: Any, name: str | None = None) -> Any:
        cursor = BaseDatabaseWrapper._cursor(wrapper, name)  # type: ignore[attr-defined] # not in the stubs
        cursor.execute("SET search_path = tenant, public")
        return cursor

    try:
        with monkeypatch.context() as patch:
            patch.setattr(type(connections["default"]), "_cursor", cursor_of_tenant, raising=False)
            result = add.enqueue(1, 2)
        with connection.cursor() as cursor:
            for table, key in zip(tables, ("id", "job_id"), strict=True):
                cursor.execute(f"SELECT {key} FROM tenant.{table}")
                assert [str(row[0]) for row in cursor.fetchall()] == [result.id]
    finally:
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA tenant CASCADE")


def test_closed_connection_is_reopened() -> None:
    connection.close()
    add.enqueue(1, 2)
    assert Ready.objects.count() == 1


def test_failing_second_insert_leaves_no_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE stoker_ready RENAME TO stoker_away")
    try:
        with pytest.raises(Exception, match="migrate"):
            add.enqueue(1, 2)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE stoker_away RENAME TO stoker_ready")
    assert not Job.objects.exists()


def test_failed_enqueue_leaves_no_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    same = ids.new_job_id()
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "new_job_id", lambda _: same)
        patch.setattr(orm_wake, "_last_notified", {})
        add.enqueue(1, 2)
        orm_wake._last_notified.clear()
        with pytest.raises(IntegrityError):
            add.enqueue(3, 4)
    assert (Job.objects.count(), Ready.objects.count()) == (1, 1)
    with transaction.atomic():
        add.enqueue(5, 6)
    assert (Job.objects.count(), Ready.objects.count()) == (2, 2)


@pytest.mark.sqlite
def test_manual_transaction_on_sqlite_is_not_ended() -> None:
    """Django's `atomic` does not begin inside a manual transaction either."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        with pytest.raises(Exception, match="within a transaction"):
            add.enqueue(1, 2)
        cursor.execute("ROLLBACK")  # fails if there is none
    assert not Job.objects.exists()


@pytest.mark.sqlite
def test_driver_error_is_raised_as_django_error() -> None:
    add.enqueue(1, 2)  # the first enqueue opens and tunes the connection
    connection.connection.close()
    try:
        with pytest.raises(Error):
            add.enqueue(3, 4)
    finally:
        connection.close()
    assert Job.objects.count() == 1


@contextmanager
def trigger(body: str, *, at_commit: bool = False) -> Iterator[None]:
    """Let the database run this code for each job that is inserted."""
    kind, moment = ("CONSTRAINT ", "DEFERRABLE INITIALLY DEFERRED") if at_commit else ("", "")
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION trouble() RETURNS trigger AS $$ BEGIN {body}; RETURN NULL; END $$ "
            f"LANGUAGE plpgsql; CREATE {kind}TRIGGER trouble AFTER INSERT ON stoker_job {moment} "
            "FOR EACH ROW EXECUTE FUNCTION trouble()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION trouble() CASCADE")


@pytest.mark.postgres
class TestPrepared:
    """An insert that the session keeps prepared."""

    @pytest.fixture(autouse=True, params=[True, False], ids=["with notice", "without"])
    def _notice(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Send a notification with each job, or with none."""
        monkeypatch.setattr(orm_wake, "may_notify", lambda _: request.param)
        connection.close()
        monkeypatch.delitem(connection.settings_dict, prepared.KEPT_KEY, raising=False)

    def test_insert_is_prepared_from_its_second_use_on(self) -> None:
        for number in range(4):
            add.enqueue(number, 0)
            assert prepared_inserts() == min(number, 1)
        with transaction.atomic():
            add.enqueue(4, 0)
        assert Job.objects.count() == Ready.objects.count() == 5

    def test_insert_in_a_transaction_is_not_prepared(self) -> None:
        for number in range(3):
            with transaction.atomic():
                add.enqueue(number, 0)
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                add.enqueue(number, 1)
                cursor.execute("COMMIT")
        assert prepared_inserts() == 0
        assert Job.objects.count() == 6

    def test_nothing_is_prepared_behind_a_declared_pooler(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
        for number in range(3):
            add.enqueue(number, 0)
        assert prepared_inserts() == 0
        assert Job.objects.count() == 3

    @pytest.mark.parametrize("is_known", [True, False])
    def test_job_is_added_in_a_session_that_lost_or_has_the_statement(
        self, *, is_known: bool
    ) -> None:
        """This happens behind a pooler that the settings do not declare."""
        for number in range(3):
            add.enqueue(number, 0)
        if is_known:
            with connection.cursor() as cursor:
                cursor.execute("DISCARD ALL")
        else:
            prepared.names_known_to(connection.connection).clear()
        for number in range(3):
            add.enqueue(number, 1)
        assert Job.objects.count() == Ready.objects.count() == 6
        assert connection.settings_dict[prepared.KEPT_KEY] is False
        with transaction.atomic():
            add.enqueue(1, 2)
        assert Job.objects.count() == 7

    @pytest.mark.parametrize("use", [1, 2, 3])
    @pytest.mark.parametrize("at_commit", [True, False])
    def test_failed_insert_or_commit_is_raised(self, use: int, *, at_commit: bool) -> None:
        for number in range(use - 1):
            add.enqueue(number, 0)
        message = "this task is not wanted here"
        with (
            trigger(f"RAISE EXCEPTION '{message}'", at_commit=at_commit),
            pytest.raises(ProgrammingError, match=message),
        ):
            add.enqueue(1, 2)
        driver = connection.connection
        assert Job.objects.count() == Ready.objects.count() == use - 1
        add.enqueue(3, 4)
        assert Job.objects.count() == Ready.objects.count() == use
        assert connection.connection is driver
        assert prepared.KEPT_KEY not in connection.settings_dict

    @pytest.mark.parametrize("use", [2, 3])
    @pytest.mark.parametrize("at_commit", [True, False])
    def test_lost_session_is_an_error_and_the_next_enqueue_opens_another(
        self, use: int, *, at_commit: bool
    ) -> None:
        for number in range(use - 1):
            add.enqueue(number, 0)
        end = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60)"
        with trigger(end, at_commit=at_commit), pytest.raises(BrokerUnavailable):
            add.enqueue(1, 2)
        assert Job.objects.count() == use - 1
        add.enqueue(3, 4)
        assert Job.objects.count() == Ready.objects.count() == use

    @pytest.mark.parametrize("use", [1, 2, 3])
    def test_enqueue_of_a_session_that_ends_after_the_commit_succeeds(
        self, monkeypatch: pytest.MonkeyPatch, use: int
    ) -> None:
        """An error would say that the job was not added, and the caller would add it again."""
        notice = "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)"
        for number in range(use - 1):
            add.enqueue(number, 0)
        with monkeypatch.context() as patch:
            patch.setattr(orm_wake, "NOTICE", notice)
            add.enqueue(1, 2)
        if use == 1:  # its text is sent without the driver's knowledge of the transaction
            connection.close()
        add.enqueue(3, 4)
        assert Job.objects.count() == Ready.objects.count() == use + 1

    def test_text_is_stored_as_it_is_in_a_session_with_another_encoding(self) -> None:
        for number in range(3):
            add.enqueue(number, 0)
        with connection.cursor() as cursor:
            cursor.execute("SET client_encoding = 'LATIN1'")
        try:
            add.using(queue_name="größe").enqueue(1, 2)
        finally:
            connection.close()
        assert Job.objects.filter(queue="größe").count() == 1

    def test_enqueue_in_a_pipeline_of_the_driver_is_an_error(self) -> None:
        for number in range(3):
            add.enqueue(number, 0)
        with connection.connection.pipeline(), pytest.raises(BrokerUnavailable):
            add.enqueue(1, 2)
        add.enqueue(3, 4)
        assert Job.objects.count() == 4

    @pytest.mark.parametrize("use", [2, 3])
    def test_interrupted_enqueue_leaves_a_connection_that_can_be_used(
        self, monkeypatch: pytest.MonkeyPatch, use: int
    ) -> None:
        for number in range(use - 1):
            add.enqueue(number, 0)
        driver = connection.connection
        wait = driver.wait

        def wait_in_vain(generator: Any, *arguments: Any, **options: Any) -> Any:
            next(generator)
            raise KeyboardInterrupt

        with trigger("PERFORM pg_sleep(0.2)"):
            driver.wait = wait_in_vain
            with pytest.raises(KeyboardInterrupt):
                add.enqueue(1, 2)
            driver.wait = wait
            add.enqueue(3, 4)
        assert Job.objects.count() == Ready.objects.count()
        assert add.get_result(add.enqueue(5, 6).id).args == [5, 6]


@pytest.mark.postgres
@pytest.mark.parametrize("is_prepared", [True, False])
class TestNotices:
    """The notification that is sent with the job to wake pushers."""

    @pytest.fixture(autouse=True)
    def _notification_is_due(self, monkeypatch: pytest.MonkeyPatch, *, is_prepared: bool) -> None:
        monkeypatch.setattr(orm_wake, "_last_notified", {})
        if is_prepared:
            prepare(monkeypatch)

    def test_failing_notification_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(orm_wake, "NOTICE", "SELECT 1 / 0")
        add.enqueue(1, 2)
        assert (Job.objects.count(), Ready.objects.count()) == (1, 1)

    def test_enqueue_does_not_commit_a_manual_transaction(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            add.enqueue(1, 2)
            cursor.execute("ROLLBACK")
        assert not Job.objects.exists()

    def test_job_is_committed_when_notification_arrives(self) -> None:
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                cursor.execute(f"LISTEN {orm_wake.CHANNEL}")
            add.enqueue(1, 2)
            (told,) = other.connection.notifies(timeout=60, stop_after=1)
            assert told.pid == connection.connection.info.backend_pid
        finally:
            other.close()
