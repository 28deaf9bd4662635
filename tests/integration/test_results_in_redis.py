"""Results in the Redis of the broker: a success is recorded and acked there in one step."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from redis import Redis

from stoker import group
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Return
from stoker.brokers.redis.broker import RedisBroker
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted
from stoker.jobs.record import LeftOut, finish
from stoker.jobs.results import fetch_many
from stoker.models import Attempt, DeadLetter, Job, Outgoing
from stoker.signals import post_execute

from tests.app.tasks import add, fail, snooze_until, succeed_at
from tests.conformance.server_stands import redis_url
from tests.integration.work import work_off, work_off_when_due

HOLDER = uuid.uuid4()
REQUEST = ClaimRequest(100, holder=HOLDER, lease_seconds=60)

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@contextmanager
def results_in_redis(**options: Any) -> Iterator[Redis]:
    """Configure a broker on Redis that keeps results. Give a client, and delete all keys after."""
    cluster = f"results-{uuid.uuid4().hex[:12]}"
    options = {"BROKER": redis_url(), "CLUSTER": cluster, "RESULTS": "redis", **options}
    backend = {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": options}
    with Redis.from_url(redis_url()) as client, override_settings(TASKS={"default": backend}):
        yield client
        for key in client.scan_iter(f"{{stoker:{cluster}}}:*"):
            client.delete(key)


@pytest.fixture
def client() -> Iterator[Redis]:
    with results_in_redis() as made:
        yield made


def the_broker() -> RedisBroker:
    broker = broker_for(settings_for()).broker
    assert isinstance(broker, RedisBroker)
    return broker


def kept() -> int:
    return int(the_broker().client.hlen(f"{the_broker().prefix}:results"))


def run_claimed() -> list[Attempted]:
    executor = Executor(settings_for(), worker_id="worker 1")
    return [executor.run(delivery) for delivery in the_broker().claim(REQUEST)]


class Told:
    """Counts the calls of ``post_execute`` while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        post_execute.connect(self._note)

    def __exit__(self, *_: object) -> None:
        post_execute.disconnect(self._note)

    def _note(self, **_: Any) -> None:
        self.count += 1


@pytest.mark.usefixtures("client")
class TestResultInRedis:
    def test_success_has_the_same_fields_as_a_stored_one(self) -> None:
        result = add.enqueue(20, second=22)
        assert work_off() == 1
        assert not Job.objects.exists()
        assert result.wait(timeout=0) == 42
        later = add.get_result(result.id)
        for one in (result, later):
            assert (one.status, one.state, one.return_value) == ("SUCCESSFUL", "SUCCESSFUL", 42)
            assert (one.attempts, one.worker_ids, one.errors) == (1, ["worker 1"], [])
            assert one.enqueued_at <= one.started_at <= one.finished_at
        assert (later.args, later.kwargs) == ([20], {"second": 22})
        assert later.task.module_path == add.module_path

    def test_success_makes_no_query(self) -> None:
        for number in range(5):
            add.enqueue(number, 1)
        attempted = run_claimed()
        with CaptureQueriesContext(connection) as queries:
            finish(settings_for(), broker_for(settings_for()), attempted)
        assert [query["sql"] for query in queries] == []
        assert (kept(), broker_for(settings_for()).sizes()) == (5, {})

    def test_success_sends_post_execute(self) -> None:
        seen = []

        def note(sender: Any, **told: Any) -> None:
            seen.append(told["outcome"].kind)

        post_execute.connect(note)
        try:
            add.enqueue(1, 2)
            work_off()
        finally:
            post_execute.disconnect(note)
        assert seen == ["succeeded"]

    def test_attempt_with_a_stale_lease_records_nothing(self) -> None:
        result = add.enqueue(1, 2)
        (attempted,) = run_claimed()
        the_broker().settle(again=[Return(attempted.delivery.lease)])
        stale = finish(settings_for(), broker_for(settings_for()), [attempted])
        assert [lease.job_id.hex for lease in stale] == [uuid.UUID(result.id).hex]
        assert kept() == 0
        result.refresh()
        assert result.state == "READY"

    def test_repeated_record_after_a_lost_answer_changes_nothing(self) -> None:
        """The answer of the first one may have been lost."""
        add.enqueue(1, 2)
        attempted = run_claimed()
        for is_again in (False, True, True):
            broker = broker_for(settings_for())
            assert not finish(settings_for(), broker, attempted, is_again=is_again)
        assert (kept(), Job.objects.count()) == (1, 0)

    @pytest.mark.parametrize("keeps", [True, False])
    def test_record_whose_answer_was_lost_is_done_by_the_repetition(
        self, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
    ) -> None:
        told = Told()
        with results_in_redis(KEEP_RESULTS=keeps):
            add.enqueue(1, 2)
            attempted = run_claimed()
            dispatch, run = broker_for(settings_for()), the_broker()._run

            def lose_answer(*arguments: Any) -> None:
                run(*arguments)
                raise BrokerUnavailable("The connection was lost.")

            with monkeypatch.context() as patch:
                patch.setattr(the_broker(), "_run", lose_answer)
                with pytest.raises(LeftOut):
                    finish(settings_for(), dispatch, attempted)
            with told:
                assert finish(settings_for(), dispatch, attempted) == set()
                assert told.count == 1
                late = set() if keeps else {attempted[0].delivery.lease}
                assert finish(settings_for(), dispatch, attempted) == late

    def test_late_attempt_does_not_replace_the_result(self) -> None:
        """Its cluster was suspended, and another one took over the job and recorded it."""
        result = add.enqueue(1, 2)
        (late,) = run_claimed()
        the_broker().expire_holder(HOLDER)
        (delivery,) = the_broker().claim_expired(REQUEST)
        in_time = replace(late, delivery=delivery, worker_id="worker 2")
        assert not finish(settings_for(), broker_for(settings_for()), [in_time])
        assert finish(settings_for(), broker_for(settings_for()), [late]) == {late.delivery.lease}
        result.refresh()
        assert result.worker_ids == ["worker 2"]

    def test_job_that_succeeded_is_not_cancelled_in_an_outbox(self) -> None:
        """The process that relayed it died before it deleted the row."""
        with transaction.atomic():
            result = add.enqueue(1, 2)
            row = Outgoing.objects.get()
        row.save(force_insert=True)
        assert work_off() == 1
        assert not result.cancel("no")
        Outgoing.objects.all().delete()  # as the next relay does, which finds the job at Redis
        result.refresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", 3)

    def test_lost_result_does_not_exist(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        the_broker().client.delete(f"{the_broker().prefix}:results")
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    def test_damaged_result_does_not_exist(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        key, field = f"{the_broker().prefix}:results", uuid.UUID(result.id).hex
        for damaged in (b"", b"1;", b"1;\x00\x00\x00\x02\x00\x00\x00\x00{}", b"1;" + b"\xff" * 20):
            the_broker().client.hset(key, field, damaged)
            assert fetch_many(settings_for(), [result.id]) == []


@pytest.mark.usefixtures("client")
class TestResultInStore:
    def test_failed_job_has_a_dead_letter(self) -> None:
        result = fail.using(max_attempts=1).enqueue("no")
        work_off()
        assert Job.objects.get().status == "FAILED"
        assert DeadLetter.objects.count() == 1
        result.refresh()
        assert result.state == "FAILED"

    def test_success_after_failed_attempts_stays_in_the_store(self) -> None:
        result = succeed_at.enqueue(2)
        work_off()
        work_off_when_due()
        assert Job.objects.get().status == "SUCCESSFUL"
        assert (Attempt.objects.count(), kept()) == (1, 0)
        result.refresh()
        assert (result.state, len(result.errors)) == ("SUCCESSFUL", 1)

    def test_success_after_a_snooze_stays_in_the_store(self) -> None:
        """It is the first attempt that counts, but the store has a row for the job."""
        result = snooze_until.enqueue(time.time() + 1)
        work_off()
        assert Job.objects.get().status is None
        while Job.objects.get().status is None:
            work_off_when_due()
        assert (Job.objects.get().status, kept()) == ("SUCCESSFUL", 0)
        result.refresh()
        assert result.attempts == 1

    def test_results_of_workflow_steps_stay_in_the_store(self) -> None:
        result = group(add.s(1, 2), add.s(3, 4)).enqueue()
        work_off()
        assert Job.objects.filter(status="SUCCESSFUL").count() == 2
        assert result.wait(timeout=10) == [3, 7]

    def test_batch_of_several_outcomes_records_each_in_its_place(self) -> None:
        """Each outcome is recorded where it belongs, and each lease ends."""
        succeeded = [add.enqueue(number, 0) for number in range(3)]
        failed = fail.using(max_attempts=1).enqueue("no")
        step = group(add.s(1, 2)).enqueue()
        snoozed = snooze_until.enqueue(time.time() + 1)
        work_off()
        while broker_for(settings_for()).sizes():
            work_off_when_due()
        assert [one.wait(timeout=0) for one in succeeded] == [0, 1, 2]
        assert (step.wait(timeout=0), kept()) == ([3], 3)
        for one in (failed, snoozed):
            one.refresh()
        assert (failed.state, snoozed.state) == ("FAILED", "SUCCESSFUL")
        assert broker_for(settings_for()).sizes() == {}


class TestLimits:
    def test_result_expires(self) -> None:
        with results_in_redis(KEEP_RESULTS={"successful_seconds": 60}) as client:
            first = add.enqueue(1, 2)
            work_off()
            expiries = f"{the_broker().prefix}:result_expiries"
            assert 0 < client.pttl(expiries) <= 61_000
            client.zadd(expiries, {uuid.UUID(first.id).hex: 1})  # long ago
            second = add.enqueue(3, 4)
            work_off()
            assert [one.id for one in fetch_many(settings_for(), [first.id, second.id])] == [
                second.id
            ]

    def test_oldest_results_are_dropped_beyond_successful_count(self) -> None:
        with results_in_redis(KEEP_RESULTS={"successful_count": 3}):
            results = []
            for number in range(5):
                results.append(add.enqueue(number, 0))
                work_off()
            found = fetch_many(settings_for(), [one.id for one in results])
            assert [one.return_value for one in found] == [2, 3, 4]

    def test_unkept_success_makes_no_query_and_leaves_no_result(self) -> None:
        for place in ("redis", "database"):
            with results_in_redis(KEEP_RESULTS=False, RESULTS=place) as client:
                result = add.enqueue(1, 2)
                attempted = run_claimed()
                with CaptureQueriesContext(connection) as queries:
                    finish(settings_for(), broker_for(settings_for()), attempted)
                assert (list(queries), client.exists(f"{the_broker().prefix}:results")) == ([], 0)
                with pytest.raises(TaskResultDoesNotExist):
                    result.refresh()

    def test_large_results_are_recorded_in_several_requests(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.brokers.redis.forms.LOAD_BYTES", 2000)
        with results_in_redis():
            add.enqueue_many([(("x" * 700, str(number)), {}) for number in range(5)])
            attempted = run_claimed()
            stale = replace(attempted[3], delivery=attempted[3].delivery._replace(lease_id="1"))
            batch = [*attempted[:3], stale, attempted[4]]
            run, calls = the_broker()._run, []

            def count(name: str, *arguments: Any) -> Any:
                calls.append(name)
                return run(name, *arguments)

            monkeypatch.setattr(the_broker(), "_run", count)
            gone = finish(settings_for(), broker_for(settings_for()), batch)
            assert (gone, kept(), calls.count("finish") > 1) == ({stale.delivery.lease}, 4, True)

    def test_thousands_of_results_are_recorded_at_once(self) -> None:
        with results_in_redis():
            add.enqueue_many([((number, 0), {}) for number in range(2500)])
            assert work_off() == 2500
            assert kept() == 2500


def test_check_refuses_results_in_redis_with_another_broker() -> None:
    backend = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"RESULTS": "redis"}}
    with override_settings(TASKS={"default": backend}):
        (error,) = [one for one in run_checks() if one.id == "stoker.E011"]
        assert "BROKER does not name a Redis" in error.msg
