"""Screens and commands while the broker outside the database cannot be reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import MethodType
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from stoker import Lock, chain
from stoker.brokers.dispatch import Dispatch
from stoker.brokers.outage import do_without_broker
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable, RowsLocked
from stoker.jobs import cancel as cancelling
from stoker.jobs import relay as outbox
from stoker.jobs.cancel import sweep_requests
from stoker.logs.lines import StoredLine, has_ended, pack_lines
from stoker.management.screen.pages import views_of
from stoker.management.screen.viewer import reading_of
from stoker.models import Attempt, Cancellation, Job, LogChunk, Outgoing
from stoker.operations.jobs import details_of
from stoker.values.ids import new_job_id
from stoker.why import Kind, why

from tests.app.tasks import add, fail_unretried
from tests.conformance.stands import message
from tests.integration.fronted import fronted_broker, outside

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

URL = "redis://127.0.0.1:1/0"


@contextmanager
def broker_at(url: str) -> Iterator[None]:
    backend = "stoker.backend.StokerBackend"
    options = {"BROKER": url}
    with override_settings(TASKS={"default": {"BACKEND": backend, "OPTIONS": options}}):
        yield


@pytest.fixture
def redis() -> Iterator[None]:
    with broker_at(URL):
        yield


@pytest.fixture(params=[URL, "disque://127.0.0.1:1"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with broker_at(request.param):
        yield request.param


@pytest.fixture
def retried() -> UUID:
    """Return a job that waits at the broker for its second attempt."""
    now, job_id = timezone.now(), new_job_id()
    Job.objects.create(
        pk=job_id, task=fail_unretried.module_path, queue="default", package=b"", enqueued_at=now
    )
    Attempt.objects.create(
        job_id=job_id,
        number=1,
        kind=Attempt.Kind.FAILED,
        started_at=now,
        finished_at=now,
        retry_at=now + timedelta(hours=1),
        exception_class="builtins.ValueError",
        message="no coal",
        traceback="",
    )
    return job_id


def test_commands_show_what_the_database_knows(
    redis: None, retried: UUID, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["jobs", "show", str(retried)], ["jobs", "list"], ["why", str(retried)]):
        call_command("stoker", *words)
        told = capsys.readouterr()
        assert told.err.startswith(f"The broker does not answer: {URL} cannot be reached: "), words
        assert "jobs that only the broker has are not shown" in told.err
        assert str(retried) in told.out


def test_number_of_jobs_at_an_unreachable_broker_is_unknown(
    redis: None, retried: UUID, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("stoker", "jobs", "list", "--json")
    assert json.loads(capsys.readouterr().out)["at_broker"] is None
    call_command("stoker", "jobs", "list")
    assert "Jobs that no cluster has received yet may be at the broker." in capsys.readouterr().out


def test_info_shows_what_the_database_knows(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("stoker", "info")
    told = capsys.readouterr()
    assert f"{url.partition(':')[0]} (does not answer), cluster name" in told.out
    assert told.err.startswith("The broker does not answer: ")


def test_details_have_the_error_of_the_failed_attempt(redis: None, retried: UUID) -> None:
    with do_without_broker() as outage:
        details = details_of(settings_for(), retried)
    assert [one.text for one in details.life.moments if one.attempt] == ["no coal"]
    assert URL in outage.sentence


def test_why_says_that_the_broker_does_not_answer(url: str, retried: UUID) -> None:
    with do_without_broker():
        for job_id in (retried, new_job_id()):
            answer = why(settings_for(), job_id)
            assert (answer.kind, "does not answer" in answer.sentence) == (Kind.AT_BROKER, True)


def test_job_that_only_the_broker_may_have_is_not_called_unknown(
    redis: None, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "The job is not in the database. The broker may have it, but does not answer"
    with pytest.raises(CommandError, match=f"{sentence}: redis://.* cannot be reached"):
        call_command("stoker", "jobs", "show", str(new_job_id()))
    with pytest.raises(SystemExit):
        call_command("stoker", "jobs", "cancel", str(new_job_id()))
    assert sentence in capsys.readouterr().out


def test_guarded_job_in_the_store_is_explained(redis: None) -> None:
    result = add.using(lock=Lock("one")).enqueue(1, 2)
    with do_without_broker() as outage:
        answer = why(settings_for(), UUID(result.id))
    assert (answer.kind, outage.sentence) == (Kind.NO_CLUSTER, "")


def test_monitor_shows_what_the_database_knows(
    redis: None, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("stoker", "monitor", "--once")
    told = capsys.readouterr()
    assert told.err.startswith("The broker does not answer: ")
    assert "clusters" in told.out


def test_screen_of_the_monitor_says_that_the_broker_does_not_answer(redis: None) -> None:
    (page,) = (one for one in views_of([settings_for()]) if one.title == "Queues")
    reading = reading_of(page)
    assert reading.notice.startswith("The broker does not answer: ")
    assert reading.error == ""


def test_why_exits_with_2_for_a_job_that_only_the_broker_may_have(
    redis: None, retried: UUID
) -> None:
    with pytest.raises(SystemExit) as exited:
        call_command("stoker", "why", str(new_job_id()))
    assert exited.value.code == 2
    call_command("stoker", "why", str(retried))


def test_logs_of_a_job_are_shown(
    redis: None, retried: UUID, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = pack_lines([StoredLine(0, "INFO", "orders", "no stock")])
    LogChunk.objects.create(job_id=retried, attempt=1, lines=lines, keep_until=timezone.now())
    call_command("stoker", "jobs", "logs", str(retried))
    assert "orders: no stock" in capsys.readouterr().out


def test_logs_of_a_job_without_lines_are_not_an_error(
    redis: None, retried: UUID, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("stoker", "jobs", "logs", str(retried))
    assert capsys.readouterr().err.startswith("The broker does not answer: ")


def test_job_that_only_the_broker_may_have_has_not_ended(redis: None) -> None:
    """``stoker jobs logs --follow`` continues."""
    assert not has_ended(settings_for(), new_job_id())


def test_workflow_is_enqueued_in_a_transaction(url: str) -> None:
    """Its first job waits in the outbox."""
    with transaction.atomic():
        chain(add.si(1, 2), add.using(lock=Lock("one")).si(3, 4)).enqueue()
    assert Outgoing.objects.get().task == add.module_path


class TestCancel:
    def test_guarded_job_in_the_store_is_cancelled(self, redis: None) -> None:
        result = add.using(lock=Lock("one")).enqueue(1, 2)
        call_command("stoker", "jobs", "cancel", result.id)
        assert Job.objects.get().status == Job.Status.CANCELLED

    def test_job_in_an_outbox_is_cancelled(
        self, redis: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "relay_these", lambda *_: {})
        with transaction.atomic():
            result = add.enqueue(1, 2)
        with pytest.raises(SystemExit) as exited:
            call_command("stoker", "why", result.id)
        assert exited.value.code == 1, "no cluster is alive"
        call_command("stoker", "jobs", "cancel", result.id)
        assert Job.objects.get().status == Job.Status.CANCELLED
        assert not Outgoing.objects.exists()

    def test_job_at_the_broker_is_not_cancelled(self, redis: None, retried: UUID) -> None:
        with pytest.raises(SystemExit):
            call_command("stoker", "jobs", "cancel", str(retried))
        assert Job.objects.get().status is None


def test_job_that_is_cancelled_in_an_outbox_is_withdrawn_if_the_broker_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the relay was lost, so that the outbox still has the job."""
    with fronted_broker() as broker:
        cancel_in_outbox(broker, monkeypatch)
        assert outside(broker) == 1
        assert sweep_requests(settings_for()) == 1
        assert outside(broker) == 0
        assert Job.objects.get().status == Job.Status.CANCELLED
        assert not Cancellation.objects.exists()


def test_request_is_kept_for_a_cancelled_job_that_a_cluster_claims_during_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pusher may not have seen the request yet."""
    with fronted_broker() as broker:
        cancel_in_outbox(broker, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(broker.broker, "withdraw", lambda _: set())
            assert sweep_requests(settings_for()) == 0
        assert Cancellation.objects.exists()
        assert sweep_requests(settings_for()) == 1


def test_cancel_does_not_search_outboxes_if_the_store_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On MariaDB a deadlock ends the caller's whole transaction, so every query would fail."""

    def lock(*_: object) -> None:
        raise RowsLocked("deadlock")

    with fronted_broker():
        result = add.enqueue(1, 2)
        monkeypatch.setattr(cancelling, "_cancel_anywhere", lock)
        monkeypatch.setattr(cancelling, "_cancel_outgoing", unavailable)
        with pytest.raises(RowsLocked):
            result.cancel()


def cancel_in_outbox(broker: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel a job that the outbox and the broker have, while the broker does not answer."""
    monkeypatch.setattr(outbox, "relay_these", lambda *_: {})
    with transaction.atomic():
        result = add.enqueue(1, 2)
    broker.enqueue([message(job_id=UUID(result.id))])
    with monkeypatch.context() as patch:
        for name in ("jobs", "states", "withdraw"):
            patch.setattr(broker.broker, name, MethodType(unavailable, broker.broker))
        call_command("stoker", "jobs", "cancel", result.id)


def unavailable(*_: object) -> None:
    raise BrokerUnavailable("Redis does not answer")


def test_reads_elsewhere_raise(redis: None, retried: UUID) -> None:
    with pytest.raises(BrokerUnavailable):
        details_of(settings_for(), retried)
