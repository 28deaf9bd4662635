"""The store in front of a broker outside the database: where jobs wait, and how they end."""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from stoker import Lock, Unique, chain, dead_letters, group, queues
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.dispatch import Dispatch
from stoker.conf import Settings, settings_for
from stoker.dead_letters import Fate, undoing
from stoker.exceptions import BrokerError, BrokerUnavailable
from stoker.jobs import cancel as cancelling
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import CLUSTER_GONE, Attempted, Crashed, Succeeded
from stoker.jobs.package import NONE
from stoker.jobs.record import finish
from stoker.jobs.relay import relay_from
from stoker.jobs.states import JobState
from stoker.models import Attempt, Cancellation, Claimed, DeadLetter, Job, Outgoing, Ready
from stoker.signals import post_execute

from tests.app import atomic as atomic_tasks
from tests.app import frail
from tests.app.models import Account, Ledger
from tests.app.tasks import add, echo, succeed_at, write_ledger
from tests.conformance.stands import message
from tests.integration.fronted import fronted_broker, holder_of, outside, rescue, restored
from tests.integration.letters import dead
from tests.integration.work import claim, work_off, work_off_when_due

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def broker() -> Iterator[Dispatch]:
    with fronted_broker() as made:
        yield made


def statuses() -> set[str | None]:
    return set(Job.objects.values_list("status", flat=True))


ENQUEUED: list[Callable[[], Any]] = [
    lambda: add.enqueue(1, 2),
    lambda: group(add.s(1, 2), add.s(3, 4)).enqueue(),
]


class TestPlaces:
    def test_plain_job_makes_no_query(
        self, broker: Dispatch, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(0):
            add.enqueue(1, 2)
            add.enqueue_many([((1, 2), {})] * 3)
        assert (outside(broker), Ready.objects.count()) == (4, 0)

    def test_job_in_transaction_goes_through_the_outbox(self, broker: Dispatch) -> None:
        with transaction.atomic():
            add.enqueue(1, 2)
            assert (outside(broker), Outgoing.objects.count()) == (0, 1)
        assert (outside(broker), Outgoing.objects.count()) == (1, 0)

    def test_delivered_jobs_are_relayed_in_batches_that_the_broker_can_take(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A message server may refuse each message, and then the whole batch is relayed again."""
        sizes: list[int] = []
        real = broker.relay
        monkeypatch.setattr(broker, "relay_batch", 2)
        monkeypatch.setattr(
            broker, "relay", lambda rows, **how: (sizes.append(len(rows)), real(rows, **how))
        )
        with transaction.atomic():
            broker.deliver([message() for _ in range(5)])
        assert sizes == [2, 2, 1]
        assert (outside(broker), Outgoing.objects.count()) == (5, 0)

    @pytest.mark.parametrize("changes", [{"lock": Lock("one")}, {"unique": Unique("one")}])
    def test_guarded_job_waits_in_the_store(
        self, broker: Dispatch, changes: dict[str, Any]
    ) -> None:
        with transaction.atomic():
            result = add.using(**changes).enqueue(1, 2)
            assert (outside(broker), Outgoing.objects.count()) == (0, 0)
            assert Ready.objects.filter(pk=result.id).exists()
        assert work_off() == 1
        assert result.wait(5) == 3

    def test_job_beyond_the_brokers_limits_waits_in_the_store(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = replace(broker.broker.capabilities, max_payload_bytes=500, max_delay_seconds=60)
        monkeypatch.setattr(broker.broker, "capabilities", small)
        big = echo.enqueue("a" * 500)
        late = add.using(run_after=61).enqueue(1, 2)
        results = echo.enqueue_many([(("b",), {}), (("a" * 500,), {})])
        assert (outside(broker), Ready.objects.count()) == (1, 2)
        assert late.job.run_after is not None
        while work_off():
            pass
        assert big.wait(5) == "a" * 500
        assert [one.wait(5) for one in results] == ["b", "a" * 500]

    @pytest.mark.parametrize("queue", ["a\0b", "q" * 101, ""])
    def test_invalid_queue_name_is_refused(self, broker: Dispatch, queue: str) -> None:
        with pytest.raises(BrokerError, match="a name has 1 to 100 characters"):
            broker.enqueue([message(queue=queue)])
        assert outside(broker) == 0

    def test_store_option_names_another_database(self) -> None:
        assert Settings(broker="redis://host", store="queue").database == "queue"
        assert Settings(broker="orm://other", store="queue").database == "other"

    def test_unique_job_is_enqueued_once(self) -> None:
        unique = add.using(unique=Unique("one"))
        first, second = unique.enqueue(1, 2), unique.enqueue(3, 4)
        assert (second.id, second.was_duplicate) == (first.id, True)

    def test_claim_reads_the_store_when_the_broker_is_empty(self) -> None:
        for _ in range(4):
            assert claim() == []
            add.using(lock=Lock("one")).enqueue(1, 2)
            assert work_off() == 1

    def test_claim_with_jobs_at_the_broker_makes_no_query(
        self, django_assert_num_queries: Any
    ) -> None:
        assert claim() == []
        add.enqueue(1, 2)
        with django_assert_num_queries(0):
            assert len(claim()) == 1

    def test_every_second_claim_starts_with_the_store(self, broker: Dispatch) -> None:
        locked = add.using(lock=Lock("one")).enqueue(1, 2)
        add.enqueue_many([((1, 2), {})] * 5)
        found = [
            str(one.job_id)
            for _ in range(2)
            for one in broker.claim(ClaimRequest(1, holder=uuid.uuid4(), lease_seconds=60))
        ]
        assert len(found) == 2
        assert locked.id in found

    def test_enqueue_at_the_broker_sends_one_notification(self, broker: Dispatch) -> None:
        with closing(broker.broker.client.pubsub()) as listening:  # type: ignore[attr-defined] # of Redis
            listening.subscribe(broker.broker.channel)  # type: ignore[attr-defined] # as above
            assert listening.get_message(timeout=60)["type"] == "subscribe"
            add.enqueue(1, 2)
            broker.broker.client.publish(broker.broker.channel, "end")  # type: ignore[attr-defined] # as above
            told = []
            while b"end" not in told:
                message = listening.get_message(ignore_subscribe_messages=True, timeout=1)
                told += [message["data"]] if message else []
        assert told == [b"", b"end"]

    def test_lock_lets_one_job_run(self) -> None:
        locked = add.using(lock=Lock("one"))
        locked.enqueue_many([((1, 2), {})] * 2)
        assert len(claim()) == 1
        assert claim() == []


class TestEnds:
    def test_success_is_recorded_and_nothing_stays_claimed(self) -> None:
        result = add.enqueue(1, 2)
        result.refresh()
        assert result.state is JobState.READY
        assert work_off() == 1
        assert (result.wait(5), result.attempts, result.job.task) == (3, 1, "tests.app.tasks.add")
        assert Claimed.objects.count() == 0

    def test_failure_is_retried_and_becomes_dead_letter(self, broker: Dispatch) -> None:
        result = succeed_at.using(max_attempts=2).enqueue(3)
        work_off()
        assert not DeadLetter.objects.exists()
        result.refresh()
        assert (result.state, result.attempts) == (JobState.DEFERRED, 1)
        work_off_when_due()
        assert (outside(broker), DeadLetter.objects.get().attempts) == (0, 2)
        result.refresh()
        assert (result.state, len(result.errors)) == (JobState.FAILED, 2)

    def test_atomic_task_runs(self) -> None:
        account = Account.objects.create()
        atomic_tasks.add_and_sign.enqueue(account.pk, 0, 0)
        assert work_off() == 1
        account.refresh_from_db()
        assert account.total == 1

    def test_atomic_steps_and_hooks_wait_in_the_store(self, broker: Dispatch) -> None:
        """At the broker, a job would be lost if its worker died between the ack and the commit."""
        account = Account.objects.create()
        step = atomic_tasks.add.si(account.pk)
        chain(step, step).enqueue()
        add.using(on_success=step).enqueue(1, 2)
        assert outside(broker) == 1  # the job with the hook
        for _ in range(3):
            work_off()
            assert outside(broker) == 0
        account.refresh_from_db()
        assert account.total == 3

    def test_holder_of_lost_lease_records_nothing(self, broker: Dispatch) -> None:
        result = add.enqueue(1, 2)
        (delivery,) = claim()
        attempted = Executor(settings_for(), worker_id="w").run(delivery)
        broker.expire_holder(holder_of(broker, delivery.job_id))
        (rescued,) = broker.claim_expired(ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60))
        assert finish(settings_for(), broker, [attempted]) == {delivery.lease}
        assert not Job.objects.exists()
        again = Executor(settings_for(), worker_id="w").run(rescued)
        assert finish(settings_for(), broker, [again]) == set()
        assert result.wait(5) == 3

    def test_recorded_job_does_not_run_again_after_lost_ack(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add.enqueue(1, 2)
        (delivery,) = claim()
        attempted = Executor(settings_for(), worker_id="w").run(delivery)
        with monkeypatch.context() as patch:
            patch.setattr(broker.broker, "settle", lambda *_, **__: set())  # it dies before the ack
            finish(settings_for(), broker, [attempted])
        assert Job.objects.get().status == "SUCCESSFUL"
        broker.expire_holder(holder_of(broker, delivery.job_id))
        assert broker.claim_expired(ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60)) == []
        assert broker.states([delivery.job_id]) == {}
        assert Attempt.objects.count() == 0

    def test_rescued_job_that_may_not_run_again_becomes_a_dead_letter(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A monitor has recorded a retry, and its cluster dies before the job is released."""
        succeed_at.using(max_attempts=3, max_crashes=1).enqueue(2)
        (delivery,) = claim()
        failed = Executor(settings_for(), worker_id="w").run(delivery)
        with monkeypatch.context() as patch:
            patch.setattr(broker.broker, "settle", lambda *_, **__: set())
            finish(settings_for(), broker, [failed])
        assert (Attempt.objects.count(), DeadLetter.objects.count()) == (1, 0)
        (taken,) = rescue(broker, delivery.job_id)
        crash = Attempted(taken, CLUSTER_GONE, "", None, time.time())
        assert finish(settings_for(), broker, [crash]) == set()
        assert Job.objects.get().status == "FAILED"
        assert DeadLetter.objects.count() == 1
        assert broker.states([delivery.job_id]) == {}

    def test_success_counts_though_the_restored_broker_repeats_a_failed_attempt(
        self, broker: Dispatch
    ) -> None:
        """Redis falls back to a state before the job's first claim."""
        succeed_at.enqueue(2)
        with restored(broker):
            assert work_off() == 1
        assert Attempt.objects.get().number == 1
        (delivery,) = claim()
        assert delivery.attempt == 1
        success = Attempted(delivery, Succeeded(NONE), "w", time.time(), time.time())
        assert finish(settings_for(), broker, [success]) == set()
        assert Job.objects.get().status == "SUCCESSFUL"
        assert broker.states([delivery.job_id]) == {}

    @pytest.mark.postgres
    def test_success_is_written_with_one_statement(self) -> None:
        result = add.enqueue(1, 2)
        (delivery,) = claim()
        executor = Executor(settings_for(), worker_id="w")
        attempted = executor.run(delivery)
        broker = broker_for(settings_for())
        with CaptureQueriesContext(connection) as queries:
            assert finish(settings_for(), broker, [attempted]) == set()
        about_it = [one["sql"] for one in queries if re.search(r"\bstoker_job\b", one["sql"])]
        assert len(about_it) == 1, about_it
        assert (result.wait(5), result.attempts) == (3, 1)

    def test_row_of_retried_job_does_not_name_the_failed_attempt(self) -> None:
        succeed_at.enqueue(2)
        add.enqueue(1, 2)
        assert work_off() == 2
        rows = Job.objects.values_list("status", "attempts", "worker_id")
        assert set(rows) == {(None, 0, ""), ("SUCCESSFUL", 1, "worker 1")}
        times = Job.objects.filter(status=None).values_list("started_at", "finished_at")
        assert list(times) == [(None, None)]

    @pytest.mark.parametrize("first", ["success", "rescue"])
    def test_first_of_concurrent_success_and_rescue_counts(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch, first: str
    ) -> None:
        """A monitor pauses before it writes, and its lease ends meanwhile: both have asked the
        broker before the other one wrote."""
        add.using(max_attempts=2).enqueue(1, 2)
        (delivery,) = claim()
        executor = Executor(settings_for(), worker_id="w")
        success = executor.run(delivery)
        broker.expire_holder(holder_of(broker, delivery.job_id))
        (taken,) = broker.claim_expired(ClaimRequest(10, holder=uuid.uuid4(), lease_seconds=60))
        rescue = Attempted(taken, Crashed("its lease ended"), "", None, time.time())
        asked = broker.broker.extend
        answers = [set(), set()]  # before the other one wrote
        with monkeypatch.context() as patch:
            patch.setattr(
                broker.broker,
                "extend",
                lambda *args, **options: answers.pop() if answers else asked(*args, **options),
            )
            for one in (success, rescue) if first == "success" else (rescue, success):
                finish(settings_for(), broker, [one])
        ended = first == "success"
        assert Job.objects.get().status == ("SUCCESSFUL" if ended else None)
        assert Attempt.objects.count() == (0 if ended else 1)
        while outside(broker):  # the retry is deferred for a moment
            work_off()
            time.sleep(0.02)
        assert Job.objects.get().attempts == (1 if ended else 2)
        assert Attempt.objects.count() == (0 if ended else 1)

    @pytest.mark.parametrize("has_acted", [False, True])
    def test_outcome_recorded_twice_counts_once(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch, has_acted: bool
    ) -> None:
        """The broker fails, or its answer is lost, after everything but the ack is done."""
        told: list[Any] = []
        listen = partial(lambda **facts: told.append(facts))
        post_execute.connect(listen)
        add.enqueue(1, 2)
        succeed_at.using(max_attempts=1).enqueue(3)
        executor, settle = Executor(settings_for(), worker_id="w"), broker.broker.settle
        attempted = [executor.run(delivery) for delivery in claim()]

        def settle_in_vain(*arguments: Any, **options: Any) -> None:
            if has_acted:
                settle(*arguments, **options)
            raise BrokerUnavailable("it is away")

        with monkeypatch.context() as patch:
            patch.setattr(broker.broker, "settle", settle_in_vain)
            with pytest.raises(BrokerUnavailable):
                finish(settings_for(), broker, attempted)
        assert finish(settings_for(), broker, attempted, is_again=True) == set()
        assert DeadLetter.objects.get().failure_count == 1
        assert (Job.objects.exclude(status=None).count(), len(told)) == (2, 2)
        assert broker.broker.sizes() == {}

    def test_cancelled_workflow_withdraws_its_jobs(self, broker: Dispatch) -> None:
        workflow = group(add.s(1, 2), add.s(3, 4)).enqueue()
        workflow.cancel("no")
        workflow.refresh()
        assert (workflow.status, outside(broker), Ready.objects.count()) == ("CANCELLED", 0, 0)
        assert set(Job.objects.values_list("status", flat=True)) == {"CANCELLED"}

    def test_cancel_withdraws_a_waiting_job(self, broker: Dispatch) -> None:
        result = add.enqueue(1, 2)
        assert result.cancel("no")
        assert (outside(broker), result.state) == (0, JobState.CANCELLED)

    @pytest.mark.parametrize("one", ENQUEUED)
    def test_cancel_that_rolls_back_withdraws_nothing(
        self, one: Callable[[], Any], broker: Dispatch
    ) -> None:
        result = one()
        waiting = outside(broker)
        with transaction.atomic():
            result.cancel("no")
            transaction.set_rollback(True)
        assert (outside(broker), Cancellation.objects.count()) == (waiting, 0)
        work_off()
        assert statuses() == {"SUCCESSFUL"}

    @pytest.mark.parametrize("one", ENQUEUED)
    def test_cancel_in_transaction_withdraws_at_commit(
        self, one: Callable[[], Any], broker: Dispatch
    ) -> None:
        result = one()
        with transaction.atomic():
            result.cancel("no")
        assert (outside(broker), statuses()) == (0, {"CANCELLED"})

    @pytest.mark.parametrize("one", ENQUEUED)
    def test_unrecorded_withdrawal_is_recorded_by_upkeep(
        self, one: Callable[[], Any], broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The connection is lost between the withdrawal and the COMMIT."""
        result = one()
        with monkeypatch.context() as patch:
            patch.setattr(cancelling, "record_cancelled", _lose_connection)
            with pytest.raises((OperationalError, BrokerUnavailable)):
                result.cancel("no")
        sweep_requests(settings_for())
        assert (outside(broker), statuses()) == (0, {"CANCELLED"})

    def test_clear_in_a_transaction_that_rolls_back_removes_nothing(self, broker: Dispatch) -> None:
        result = add.enqueue(1, 2)
        add.using(lock=Lock("one")).enqueue(3, 4)
        with transaction.atomic():
            assert queues.clear("default") == queues.Cleared(2, 2)
            transaction.set_rollback(True)
        assert (outside(broker), Ready.objects.count()) == (1, 1)
        while work_off():
            pass
        assert result.wait(5) == 3

    def test_clear_in_a_transaction_removes_when_it_commits(self, broker: Dispatch) -> None:
        add.enqueue(1, 2)
        add.using(lock=Lock("one")).enqueue(3, 4)
        with transaction.atomic():
            queues.clear("default")
        assert (outside(broker), Ready.objects.count()) == (0, 0)


class TestUndoneRequeues:
    """A requeued job waits in the store, so its withdrawal is part of the store's transaction."""

    def test_undo_in_a_transaction_that_rolls_back_withdraws_nothing(self) -> None:
        letter = dead(frail.charge, "order 1")
        sent = dead_letters.requeue(letter.pk)
        with transaction.atomic():
            assert dead_letters.undo_requeue(letter.pk).fate is Fate.TAKEN_BACK
            transaction.set_rollback(True)
        _assert_carried_out(letter, sent.job_id)

    def test_undo_whose_connection_is_lost_withdraws_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letter = dead(frail.charge, "order 1")
        sent = dead_letters.requeue(letter.pk)
        with monkeypatch.context() as patch:
            patch.setattr(undoing, "record_taken_back", _lose_connection)
            with pytest.raises((OperationalError, BrokerUnavailable)):
                dead_letters.undo_requeue(letter.pk)
        _assert_carried_out(letter, sent.job_id)

    def test_undo_does_not_ask_the_broker_within_its_transaction(
        self, broker: Dispatch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letter = dead(frail.charge, "order 1")
        sent = dead_letters.requeue(letter.pk)
        assert [one.job_id for one in claim()] == [sent.job_id]
        monkeypatch.setattr(broker.broker, "withdraw", _lose_connection)
        assert dead_letters.undo_requeue(letter.pk).fate is Fate.UNDER_WAY


def _assert_carried_out(letter: DeadLetter, job_id: uuid.UUID | None) -> None:
    """The requeue is in force: its job runs, and resolves the dead letter."""
    assert list(Ready.objects.values_list("pk", flat=True)) == [job_id]
    frail.broken.clear()
    assert work_off() == 1
    letter.refresh_from_db()
    assert letter.state == "resolved"


def _lose_connection(*_: object) -> None:
    raise OperationalError("server closed the connection unexpectedly")


def test_missing_package_becomes_dead_letter(broker: Dispatch) -> None:
    """Other damage to packages is in test_tampering.py."""
    write_ledger.enqueue()
    _client(broker).delete(f"{_prefix(broker)}:package")
    for _ in range(3):
        work_off()
    letter = DeadLetter.objects.get()
    assert re.search("Unreadable|Signature", letter.exception_class), letter.exception_class
    assert letter.message
    assert not Ledger.objects.exists()
    assert Job.objects.get().status == "FAILED"


def _client(broker: Dispatch) -> Any:
    return broker.broker.client  # type: ignore[attr-defined] # of Redis


def _prefix(broker: Dispatch) -> str:
    return str(broker.broker.prefix)  # type: ignore[attr-defined] # of Redis


@pytest.mark.postgres  # the driver of SQLite begins no transaction for a statement with WITH
class TestCommitsByHand:
    """Autocommit is off: nothing happens at the broker before the caller commits."""

    @pytest.fixture(autouse=True)
    def _without_autocommit(self, broker: Dispatch) -> Iterator[None]:
        self.waiting = add.enqueue(3, 4)
        transaction.set_autocommit(False)
        yield
        transaction.rollback()
        transaction.set_autocommit(True)

    def test_job_of_a_transaction_that_rolls_back_does_not_exist(self, broker: Dispatch) -> None:
        add.enqueue(1, 2)
        add.enqueue_many([((1, 2), {})] * 60)
        assert (outside(broker), Outgoing.objects.count()) == (1, 61)
        transaction.rollback()
        assert (outside(broker), Outgoing.objects.count()) == (1, 0)

    def test_job_of_a_committed_transaction_is_relayed(self, broker: Dispatch) -> None:
        add.enqueue(1, 2)
        transaction.commit()
        transaction.set_autocommit(True)
        assert relay_from(settings_for(), "default", lambda: None) == 1
        assert outside(broker) == 2

    def test_cancel_that_rolls_back_cancels_nothing(self, broker: Dispatch) -> None:
        assert self.waiting.cancel("no")
        assert outside(broker) == 1
        transaction.rollback()
        assert sweep_requests(settings_for()) == 0
        assert outside(broker) == 1

    def test_upkeep_carries_out_a_committed_cancel(self, broker: Dispatch) -> None:
        assert self.waiting.cancel("no")
        transaction.commit()
        transaction.set_autocommit(True)
        assert sweep_requests(settings_for()) == 1
        self.waiting.refresh()
        assert (outside(broker), self.waiting.state) == (0, JobState.CANCELLED)

    def test_running_job_can_be_cancelled(self, broker: Dispatch) -> None:
        (delivery,) = claim()
        assert self.waiting.cancel("no")
        transaction.commit()
        assert Cancellation.objects.get().job_id == delivery.job_id
