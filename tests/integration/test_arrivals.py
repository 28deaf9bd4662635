"""A server without leases: its messages are moved into the store once, whatever fails."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InternalError,
    connection,
    transaction,
)
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.utils import timezone

from stoker import chain, queues
from stoker.brokers.adapters import ADAPTERS, broker_for
from stoker.brokers.arrivals import SHORTEST_PAUSE_SECONDS, Poller, PollRequest
from stoker.brokers.contract import ClaimRequest, Return
from stoker.brokers.ironmq import opened
from stoker.brokers.orm.broker import OrmBroker
from stoker.brokers.transport import Line, as_body, as_message, in_turn, lines_of
from stoker.compat import TaskResultMismatch
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable, PackageTooLarge
from stoker.jobs.relay import relay_from
from stoker.jobs.states import JobState
from stoker.models import Deferred, Job, Outgoing, Ready, Relayed
from stoker.models.need import NewNeed
from stoker.operations.operation import Operator
from stoker.operations.queues import CLEAR
from stoker.store.engines.sessions import Patience

from tests.app.tasks import add, echo
from tests.cluster.clusters import wait_for
from tests.conformance.memory_transport import MemoryTransport
from tests.conformance.server_stands import ArrivalsStand
from tests.conformance.stands import message
from tests.conformance.threads import PATIENCE_SECONDS, together
from tests.integration.work import claim

WAIT_BRIEFLY = {
    "postgresql": "SET lock_timeout = '100ms'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
}
"""Short lock timeouts, as in a cluster's own processes."""

pytestmark = [pytest.mark.sqlite, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def stand() -> Iterator[ArrivalsStand]:
    made = ArrivalsStand()
    yield made
    made.clear()


@pytest.fixture
def transport(stand: ArrivalsStand) -> MemoryTransport:
    made: MemoryTransport = stand.transport
    return made


@pytest.fixture
def _messages_in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the project use a message server that is in this process."""
    path = f"{MemoryTransport.__module__}.{MemoryTransport.__qualname__}"
    monkeypatch.setitem(ADAPTERS, "sqs", path)
    options = {"BROKER": "sqs://", "CLUSTER": f"test-{uuid.uuid4().hex}"}
    backend = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}
    with override_settings(TASKS={"default": backend}):
        yield


@pytest.fixture
def clock_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass with each look at the clock."""
    start, seconds = time.time(), itertools.count()
    monkeypatch.setattr(time, "time", lambda: start + next(seconds))


@pytest.mark.usefixtures("_messages_in_memory")
class TestOfProject:
    def test_message_that_has_not_arrived_counts_as_a_job_of_any_task(self) -> None:
        result = add.enqueue(1, 2)
        for task in (add, echo):
            found = task.get_result(result.id)
            assert (found.state, found.task, found.args) == (JobState.READY, task, [])
        claim()
        assert add.get_result(result.id).args == [1, 2]
        with pytest.raises(TaskResultMismatch):
            echo.get_result(result.id)

    def test_job_beyond_the_longest_delay_stays_in_the_store_though_time_passes(
        self, clock_that_runs: None
    ) -> None:
        """Several steps ask where a job waits. Once, the first said the store, and the next one
        sent the job to the server inside the transaction."""
        late = add.using(run_after=timezone.now() + timedelta(seconds=3603))
        with transaction.atomic():
            late.enqueue(1, 2)
            late.enqueue_many([((1, 2), {})] * 60)
            assert Deferred.objects.count() == 61
            transaction.set_rollback(True)
        assert broker_for(settings_for()).sizes() == {}

    def test_relayed_job_beyond_the_longest_delay_is_not_lost_though_time_passes(
        self, clock_that_runs: None
    ) -> None:
        """Once, its id was recorded as that of a stored job, and then it was sent to the server, so
        that it was dropped on its arrival."""
        now = time.time()
        late = replace(message(), run_after=now + 3603, enqueued_at=now)
        Outgoing.of_message("default", late).save()
        assert relay_from(settings_for(), "default", lambda: None) == 1
        assert Deferred.objects.filter(pk=late.job_id).exists()

    def test_clear_keeps_received_jobs_and_counts_the_deleted_messages(self) -> None:
        received = add.enqueue(1, 2)
        broker = broker_for(settings_for())
        (delivery,) = claim()
        broker.settle(again=[Return(delivery.lease)])
        add.enqueue(3, 4)
        add.enqueue(5, 6)
        done = CLEAR.perform(Operator(settings_for(), "alice", "old"), "default")
        assert done.value == queues.Cleared(3, 3, not_kept=2)
        assert done.sentence == (
            "3 jobs of the queue default cancelled. 2 of them were deleted at the broker, and are "
            "not kept."
        )
        job = Job.objects.get()
        assert (job.pk, job.status) == (UUID(received.id), "CANCELLED")
        assert job.reason == "the queue was cleared by alice: old"
        assert (broker.sizes(), claim()) == ({}, [])

    def test_workflow_whose_step_was_deleted_by_clear_runs_until_it_is_cancelled(self) -> None:
        workflow = chain(add.si(1, 2), add.si(3, 4)).enqueue()
        assert queues.clear("default") == queues.Cleared(1, 1, not_kept=1)
        workflow.refresh()
        assert workflow.status == "RUNNING", "no record says that its step has ended"
        assert workflow.cancel()
        assert workflow.status == "CANCELLED"
        assert workflow.progress().cancelled == 1

    def test_clear_deletes_no_messages_if_they_are_more_than_the_limit(self) -> None:
        for _ in range(3):
            add.enqueue(1, 2)
        done = CLEAR.perform(Operator(settings_for(), "alice"), "default", limit=2)
        assert done.value == queues.Cleared(2, 0, left_at_server=3)
        assert done.sentence == (
            "0 jobs of the queue default cancelled. About 3 more wait at the broker, which can "
            "only delete all of them: `manage.py stoker clear default` without --limit does so."
        )
        assert broker_for(settings_for()).sizes()["default"]["ready"] == 3
        assert queues.clear("default", limit=3) == queues.Cleared(3, 3, not_kept=3)

    def test_clear_in_a_transaction_deletes_messages_when_it_commits(self) -> None:
        add.enqueue(1, 2)
        broker = broker_for(settings_for())
        with transaction.atomic():
            assert queues.clear("default") == queues.Cleared(1, 1, not_kept=1)
            assert broker.sizes()["default"]["ready"] == 1
        assert broker.sizes() == {}

    def test_purge_that_fails_after_the_commit_is_logged_and_other_hooks_run(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(queue: str) -> int:
            raise BrokerUnavailable("no purge today")

        add.enqueue(1, 2)
        monkeypatch.setattr(broker_for(settings_for()).arrivals, "purge", fail)
        called: list[str] = []
        with transaction.atomic():
            queues.clear("default")
            transaction.on_commit(lambda: called.append("later"))
        assert called == ["later"]
        assert "no purge today" in caplog.text

    @pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
    def test_clear_in_a_transaction_that_is_committed_by_hand_is_refused(
        self, block: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        add.enqueue(1, 2)
        broker = broker_for(settings_for())
        broker.settle(again=[Return(claim()[0].lease)])
        add.enqueue(3, 4)
        transaction.set_autocommit(False)
        try:
            with block():
                assert queues.clear("default", dry_run=True).matched == 2
                with pytest.raises(TransactionManagementError, match="turn autocommit on"):
                    queues.clear("default")
                assert Ready.objects.count() == 1
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert broker.sizes()["default"]["ready"] == 2
        assert queues.clear("default") == queues.Cleared(2, 2, not_kept=1)


class TestOnce:
    def test_message_relayed_again_after_its_end_adds_no_job(
        self, stand: ArrivalsStand, transport: MemoryTransport
    ) -> None:
        job = message()
        stand.broker.enqueue([job])
        assert stand.broker.settle([stand.claim_one().lease]) == set()
        Job.objects.all().delete()  # as if results were not kept
        stand.broker.relay([job])
        assert stand.claim() == []
        assert transport.kept == {}

    def test_failed_drop_is_repeated_at_next_delivery(
        self, stand: ArrivalsStand, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put = stand.put(3)
        with monkeypatch.context() as patch:
            patch.setattr(transport, "drop", _unavailable)
            assert [one.job_id for one in stand.claim()] == put
        assert len(transport.kept) == 3
        stand.advance(transport.parcel_seconds + 1)
        assert stand.claim() == []
        assert transport.kept == {}

    def test_message_received_by_a_dead_cluster_is_delivered_again_and_delays_no_other(
        self, stand: ArrivalsStand, transport: MemoryTransport
    ) -> None:
        (received,) = stand.put()
        assert len(transport.receive((), 10)) == 1  # by a cluster that dies now
        (other,) = stand.put()
        assert [one.job_id for one in stand.claim()] == [other]
        transport.advance(transport.parcel_seconds + 1)
        assert [one.job_id for one in stand.claim()] == [received]

    @pytest.mark.mariadb
    def test_job_cancelled_in_open_transaction_delays_no_other(
        self, stand: ArrivalsStand, transport: MemoryTransport
    ) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("An open transaction blocks all other writers.")
        put = stand.put(4)
        is_held, is_over = threading.Event(), threading.Event()

        def cancel(broker: Any) -> set[UUID]:
            with transaction.atomic():
                gone: set[UUID] = broker.withdraw(put[1:2])
                is_held.set()
                is_over.wait(PATIENCE_SECONDS)
                return gone

        def claim(broker: Any) -> list[UUID]:
            is_held.wait(PATIENCE_SECONDS)
            with connection.cursor() as cursor:
                cursor.execute(WAIT_BRIEFLY[connection.vendor])
            try:
                found: list[UUID] = []
                for _ in range(3):
                    claimed = broker.claim(
                        ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60.0)
                    )
                    found += [one.job_id for one in claimed]
                return found
            finally:
                is_over.set()

        gone, found = together(stand, cancel, claim)
        assert gone == set(put[1:2])
        assert sorted(found) == sorted([put[0], *put[2:]])
        stand.advance(transport.parcel_seconds + 1)
        assert not set(put[1:2]) & {one.job_id for one in stand.claim()}
        assert transport.kept == {}

    def test_job_inserted_by_another_cluster_first_is_not_inserted_again(
        self, stand: ArrivalsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first insert of the note raises IntegrityError, the second finds it there."""
        (job_id,) = stand.put()
        notes = type(Relayed.objects.all())
        real, tries = notes.note, []

        def note(rows: Any, job_ids: Any) -> Any:
            tries.append(job_ids)
            if len(tries) == 1:
                raise IntegrityError("another cluster stored it")
            return real(rows, job_ids)

        monkeypatch.setattr(notes, "note", note)
        assert stand.claim_one().job_id == job_id
        assert len(tries) == 2

    def test_two_threads_of_one_broker_insert_all_messages(
        self, stand: ArrivalsStand, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a lock the messages of one thread would replace those of the other."""
        put = stand.put(20)
        real, both_have_something = transport.receive, threading.Barrier(2)

        def receive(queues: Any, limit: int, **how: Any) -> Any:
            found = real(queues, 10, **how)
            with suppress(threading.BrokenBarrierError):
                both_have_something.wait(0.5)
            return found

        monkeypatch.setattr(transport, "receive", receive)
        together(stand, *[lambda _: stand.claim()] * 2)
        assert transport.kept == {}
        assert sorted(Job.objects.values_list("pk", flat=True)) == sorted(put)

    def test_messages_stay_hidden_while_the_store_fails(
        self, stand: ArrivalsStand, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The messages stay reserved, so that the server does not deliver them to others: its
        redrive policy would count each delivery. A cluster closes its connections each time."""
        put = stand.put(2)
        patience = Patience(stand.settings, stand.broker)
        with monkeypatch.context() as patch:
            patch.setattr(OrmBroker, "enqueue", _database_is_away)
            for _ in range(4):
                assert patience.call(stand.claim) is None
                patience.try_at = 0.0  # without a pause
                transport.advance(transport.parcel_seconds / 2)
                stand.broker.arrivals._extend_at = 0.0  # type: ignore[attr-defined] # an extension is due
            assert transport.receive((), 10) == []
        assert [one.job_id for one in stand.claim()] == put
        assert transport.kept == {}

    def test_messages_not_yet_inserted_are_given_back_at_the_end(
        self, stand: ArrivalsStand, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (job_id,) = stand.put()
        with monkeypatch.context() as patch:
            patch.setattr(OrmBroker, "enqueue", _database_is_away)
            with pytest.raises((BrokerUnavailable, DatabaseError)):
                stand.claim()
        stand.broker.arrivals.release()  # type: ignore[attr-defined] # as a pusher does
        assert [one.message.job_id for one in transport.receive((), 10)] == [job_id]


@pytest.fixture
def _tables_in_latin1(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the store refuse names that have other characters. SQLite has no such tables, and on
    PostgreSQL the whole database has one character set: there, the driver's error is simulated."""
    if connection.vendor == "mysql":
        names = ["stoker_job", "stoker_ready"]
        with connection.cursor() as cursor:
            for name in names:
                cursor.execute(f"CREATE TABLE kept_{name} LIKE {name}")
                cursor.execute(f"ALTER TABLE {name} CONVERT TO CHARACTER SET latin1")
        yield
        with connection.cursor() as cursor:
            for name in names:
                cursor.execute(f"DROP TABLE {name}")
                cursor.execute(f"RENAME TABLE kept_{name} TO {name}")
        return
    insert = OrmBroker.enqueue

    def enqueue(self: OrmBroker, messages: Any) -> None:
        if not all((one.task + one.queue).isascii() for one in messages):
            raise DataError from UntranslatableCharacter()
        insert(self, messages)

    monkeypatch.setattr(OrmBroker, "enqueue", enqueue)
    yield


class UntranslatableCharacter(Exception):
    """PostgreSQL's error, as its driver raises it."""

    sqlstate = "22P05"


class TestRefused:
    """Messages that the database refuses."""

    @pytest.mark.mariadb
    @pytest.mark.usefixtures("_tables_in_latin1")
    @pytest.mark.parametrize(
        ("names", "stored"),
        [
            (("shop.\N{FIRE}", "default"), ("shop.\\U0001f525", "default")),
            (("shop.tasks.add", "\N{FIRE}"), ("shop.tasks.add", "\\U0001f525")),
        ],
        ids=["task", "queue"],
    )
    def test_name_that_tables_cannot_hold_is_stored_with_escapes(
        self, stand: ArrivalsStand, names: tuple[str, str], stored: tuple[str, str]
    ) -> None:
        before = stand.put(2)
        (job_id,) = stand.put(task=names[0], queue=names[1])
        after = stand.put(2)
        of_all_queues = ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60.0)
        claimed = [one for _ in range(2) for one in stand.broker.claim(of_all_queues)]
        found = {one.job_id: one.package for one in claimed}
        assert set(found) == {*before, job_id, *after}
        assert found[job_id] == b"package"
        job = Job.objects.get(pk=job_id)
        assert (job.task, job.queue) == stored

    @pytest.mark.parametrize(
        "refusal",
        [DataError("a number is out of range"), PackageTooLarge("raise max_allowed_packet")],
        ids=["data", "size"],
    )
    def test_refused_job_stays_at_the_broker_and_delays_no_other(
        self,
        stand: ArrivalsStand,
        transport: MemoryTransport,
        monkeypatch: pytest.MonkeyPatch,
        refusal: Exception,
    ) -> None:
        put = stand.put(4)
        insert = OrmBroker.enqueue

        def enqueue(self: OrmBroker, messages: Any) -> None:
            if any(one.job_id == put[1] for one in messages):
                raise refusal
            insert(self, messages)

        with monkeypatch.context() as patch:
            patch.setattr(OrmBroker, "enqueue", enqueue)
            claimed = [one.job_id for _ in range(3) for one in stand.claim()]
        assert claimed == [put[0], *put[2:]]
        assert len(transport.kept) == 1
        stand.advance(transport.parcel_seconds + 1)
        assert stand.claim_one().job_id == put[1]

    def test_messages_stay_hidden_while_the_database_is_read_only(
        self, stand: ArrivalsStand, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put = stand.put(2)

        def enqueue(*_: Any) -> None:
            raise InternalError("cannot execute INSERT in a read-only transaction")

        with monkeypatch.context() as patch:
            patch.setattr(OrmBroker, "enqueue", enqueue)
            with pytest.raises(InternalError):
                stand.claim()
            assert transport.receive((), 10) == []
        assert [one.job_id for one in stand.claim()] == put


class TestTurns:
    def test_backlog_in_store_does_not_delay_new_messages(
        self, stand: ArrivalsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.brokers.arrivals.MOST_AT_ONCE", 5)
        stand.broker.store.enqueue([message() for _ in range(20)])  # type: ignore[union-attr] # it has one
        (job_id,) = stand.put(priority=100)
        first = [one.job_id for _ in range(2) for one in stand.claim(5)]
        assert job_id in first

    def test_slow_backlog_in_store_does_not_delay_new_messages(
        self, stand: ArrivalsStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.brokers.arrivals.RELAY_SECONDS", 0.0)
        stand.broker.arrivals._relay_at = 0.0  # type: ignore[attr-defined] # a look is due
        stand.broker.store.enqueue([message() for _ in range(20)])  # type: ignore[union-attr] # it has one
        (job_id,) = stand.put(priority=100)
        first = [one.job_id for _ in range(2) for one in stand.claim(1)]
        assert job_id in first

    def test_urgent_lines_come_first_and_equal_ones_take_turns(self) -> None:
        lines = lines_of(["a", "b", "a"])
        asked = [list(in_turn(lines, turn)) for turn in (0, 1)]
        assert [line.band for line in asked[0]] == ["high", "high", "usual", "usual", "low", "low"]
        assert [line.queue for line in asked[0][:2]] == ["a", "b"]
        assert asked[1][0] == Line("high", "b")


class ServerAway:
    """Lets a server answer with an error until it is back. Counts the requests of the cluster's own
    thread, and not those of the poller."""

    def __init__(self, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = BrokerUnavailable("The server is away.")
        self.asked = 0
        self.has_polled = threading.Event()
        self._receive = transport.receive
        monkeypatch.setattr(transport, "receive", self.receive)
        monkeypatch.setattr(transport, "wait_seconds", 0.05)
        monkeypatch.setattr("stoker.brokers.arrivals.FIRST_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr("stoker.brokers.arrivals.LONGEST_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr("stoker.brokers.arrivals.RELAY_SECONDS", 0.0)

    def receive(self, *args: Any, **options: Any) -> Any:
        if is_cluster := threading.current_thread() is threading.main_thread():
            self.asked += 1
        if self.error is None:
            return self._receive(*args, **options)
        if not is_cluster:
            self.has_polled.set()
        raise self.error


class TestServerAway:
    @pytest.fixture
    def away(self, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch) -> ServerAway:
        return ServerAway(transport, monkeypatch)

    @pytest.fixture
    def poller(self, stand: ArrivalsStand, away: ServerAway) -> Iterator[Any]:
        with closing(stand.broker.arrivals.open_wake()) as made:  # type: ignore[attr-defined] # it has some
            yield made

    @pytest.mark.usefixtures("poller")
    @pytest.mark.parametrize("limit", [2, 50])
    def test_jobs_in_store_are_claimed_and_the_server_is_asked_once(
        self, stand: ArrivalsStand, away: ServerAway, limit: int
    ) -> None:
        """A silent server would delay each claim that asks it."""
        stand.broker.store.enqueue([message() for _ in range(20)])  # type: ignore[union-attr] # it has one
        stand.broker.arrivals._relay_at = 0.0  # type: ignore[attr-defined] # a look is due
        assert len([one for _ in range(12) for one in stand.claim(limit)]) == 20
        assert away.asked == 1

    @pytest.mark.parametrize("error", [BrokerUnavailable("Away."), RuntimeError("unexpected")])
    def test_messages_arrive_when_the_server_is_back(
        self, stand: ArrivalsStand, away: ServerAway, poller: Any, error: Exception
    ) -> None:
        assert stand.claim() == []
        away.error = error
        away.has_polled.clear()
        assert away.has_polled.wait(PATIENCE_SECONDS)
        (job_id,) = stand.put()
        away.error = None
        wait_for(poller.is_due, lambda: "the poller did not wake the pusher")
        assert stand.claim_one().job_id == job_id

    def test_unexpected_error_is_logged_with_its_traceback(
        self, stand: ArrivalsStand, away: ServerAway, poller: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        stand.claim()
        away.error = RuntimeError("unexpected")
        wait_for(lambda: "RuntimeError: unexpected. Trying again in 0.1 s." in caplog.text)
        wait_for(lambda: "raise self.error" in caplog.text)

    def test_server_that_did_not_answer_does_not_count_as_empty(
        self, stand: ArrivalsStand, away: ServerAway, poller: Any
    ) -> None:
        """``stoker run --drain`` would end although messages wait."""
        arrivals: Any = stand.broker.arrivals
        for _ in range(3):
            assert stand.claim() == []
            assert not arrivals.is_server_empty
        away.error = None
        wait_for(lambda: poller.is_idle)
        assert stand.claim() == []
        assert arrivals.is_server_empty

    @pytest.mark.usefixtures("away")
    def test_claim_outside_of_a_cluster_raises_if_it_finds_nothing(
        self, stand: ArrivalsStand
    ) -> None:
        stand.broker.store.enqueue([message()])  # type: ignore[union-attr] # it has one
        assert len(stand.claim(2)) == 1
        with pytest.raises(BrokerUnavailable):
            stand.claim(2)


class TestPlaces:
    def test_unencodable_text_is_opened_with_replacement(self) -> None:
        assert opened("nothing \ud800") == b"nothing ?"

    @pytest.mark.parametrize(
        "changes",
        [
            {"stays_in_store": True},
            {"run_after": 9_999_999_999.0},
            {"needs": [NewNeed(uuid.uuid4(), 1, 1)]},
        ],
        ids=["atomic", "late", "guarded"],
    )
    def test_atomic_late_and_guarded_jobs_wait_in_the_store(
        self, stand: ArrivalsStand, changes: dict[str, Any]
    ) -> None:
        assert stand.broker.joins(message(**changes))
        assert not stand.broker.joins(message())

    def test_claim_of_one_queue_leaves_others_on_the_server(
        self, stand: ArrivalsStand, transport: MemoryTransport
    ) -> None:
        stand.put(3, queue="mail")
        stand.put(1)
        assert len(stand.claim()) == 1
        assert len(transport.kept) == 3
        assert not Ready.objects.exists()

    def test_messages_of_a_paused_queue_are_moved_to_the_store(
        self, stand: ArrivalsStand, transport: MemoryTransport
    ) -> None:
        """The server would drop them after some days."""
        put = stand.put(3, queue="mail")
        assert stand.claim(10, "mail", passed_over=["mail"]) == []
        assert transport.kept == {}
        assert [one.job_id for one in stand.claim(10, "mail")] == put

    def test_withdrawal_that_rolls_back_keeps_the_job(self, stand: ArrivalsStand) -> None:
        (job_id,) = stand.put()
        with transaction.atomic():
            assert stand.broker.withdraw([job_id]) == {job_id}
            transaction.set_rollback(True)
        assert stand.claim_one().job_id == job_id


HEAD = b'["01a20027b8ce7d8981c25f09da44afbf",%s]\n'


class TestBodies:
    def test_message_survives_encoding_and_decoding(self) -> None:
        job = message(run_after=12.5, priority=-3, package=b"a\nb\n")
        assert as_message(as_body(job), "elsewhere") == job

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"nothing",
            b"\xff\n",
            b"[]\npackage",
            b'["x","t","q",0,0,null]\n',
            b'{"a":1}\n',
            b"[" * 100_000 + b"\n",
            HEAD % b'["t"],["q"],0,1,null',
            HEAD % b'"\\ud800","q",0,1,null',
            HEAD % b'"t","\\udfff",0,1,null',
            HEAD % b'"t","q",0,1,""',
            HEAD % b'"t","q",0,1,[]',
            HEAD % b'"t","q",0,1,false',
        ],
    )
    def test_unreadable_body_becomes_one_job_with_that_package(self, body: bytes) -> None:
        found = as_message(body, "mail")
        assert (found.queue, found.package) == ("mail", body)
        assert as_message(body, "mail").job_id == found.job_id

    @pytest.mark.parametrize(
        "changes",
        [
            {"queue": ""},
            {"queue": "q" * 101},
            {"queue": "a\0b"},
            {"task": "t" * 256},
            {"task": "half of a character: \ud800"},
            {"priority": 40_000},
            {"priority": True},
            {"enqueued_at": float("inf")},
            {"enqueued_at": -1.0},
            {"run_after": 1e12},
            {"run_after": 253_402_300_000.0},
            {"run_after": float("nan")},
        ],
    )
    def test_body_the_store_cannot_take_becomes_one_job_with_that_package(
        self, changes: dict[str, Any]
    ) -> None:
        body = as_body(replace(message(), **changes))
        found = as_message(body, "mail")
        assert (found.queue, found.priority, found.package) == ("mail", 0, body)

    def test_body_of_a_job_that_was_due_before_1970_is_read(self) -> None:
        job = message(run_after=-315_619_200.0)
        assert as_message(as_body(job), "mail") == job

    def test_unreadable_body_does_not_stop_other_jobs(
        self, stand: ArrivalsStand, transport: MemoryTransport
    ) -> None:
        stand.put()
        next(iter(transport.kept.values())).body = b"something else"
        (job_id,) = stand.put()
        packages = {one.job_id: one.package for one in stand.claim()}
        assert packages.pop(job_id) == b"package"
        assert list(packages.values()) == [b"something else"]


class TestPoller:
    def test_unclaimed_message_is_given_back(
        self, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.brokers.arrivals.BUFFER_SECONDS", 0.05)
        with closing(Poller(transport)) as poller:
            poller.start(PollRequest(("default",), 1))
            transport.send([message()])
            wait_for(poller.is_due, lambda: "the poller did not wake the pusher")
            wait_for(lambda: transport.released, lambda: "the message was not given back")
            assert poller.take() == []

    def test_close_gives_back_received_messages(self, transport: MemoryTransport) -> None:
        poller = Poller(transport)
        poller.start(PollRequest(("default",), 1))
        transport.send([message()])
        wait_for(poller.is_due, lambda: "the poller did not wake the pusher")
        poller.close()
        wait_for(lambda: transport.released, lambda: "the message was not given back")

    def test_long_request_that_failed_is_followed_by_the_shortest_pause(
        self, transport: MemoryTransport, events: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """Such a request may have failed for one queue only, and served the others meanwhile."""
        error = BrokerUnavailable("The server closed the connection.")
        with closing(Poller(transport)) as poller:
            poller.note_failure(error, time.monotonic() - 60)
            poller.note_failure(error, time.monotonic() + 60)
        seconds = [told["seconds"] for _, told in events]
        assert seconds[0] == SHORTEST_PAUSE_SECONDS
        assert seconds[1] > 60

    def test_claim_sends_no_request_while_the_poller_waits(
        self, stand: ArrivalsStand, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(stand.broker.open_wake()):
            assert stand.claim() == []
            receive, threads = transport._receive, set()

            def noted(*arguments: Any) -> Any:
                threads.add(threading.current_thread().name)
                return receive(*arguments)

            monkeypatch.setattr(transport, "_receive", noted)
            assert stand.claim() == []
            assert "MainThread" not in threads
            stand.claim(10, "another")
            assert "MainThread" in threads


def _unavailable(*_: Any) -> None:
    raise BrokerUnavailable("the server is away")


def _database_is_away(*_: Any) -> None:
    raise BrokerUnavailable("the database is away")
