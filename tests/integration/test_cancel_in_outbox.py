"""Cancel a job that waits in the outbox of another database than the queue's. Each of the two
databases may be in a transaction, which may be rolled back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, override_settings

from stoker.conf import settings_for
from stoker.jobs import relay as outbox
from stoker.jobs.relay import relay_from
from stoker.jobs.states import JobState
from stoker.models import Cancellation, Job, Outgoing

from tests.app.tasks import add
from tests.integration.fronted import fronted_broker
from tests.integration.work import work_off

pytestmark = [
    pytest.mark.two_databases,
    pytest.mark.django_db(transaction=True, databases=["default", "queue"]),
]


class Undo(Exception):
    """Raised to roll a transaction back."""


@contextmanager
def with_broker(url: str, **options: Any) -> Iterator[None]:
    options |= {"BROKER": url, "CLUSTER": uuid.uuid4().hex}
    default = {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": [], "OPTIONS": options}
    with override_settings(TASKS={"default": default}):
        yield


@pytest.fixture(params=["store", "memory", pytest.param("redis", marks=pytest.mark.redis)])
def broker(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "redis":
        with fronted_broker(DATABASE="queue"):
            yield
    elif request.param == "memory":
        with with_broker("memory://", DATABASE="queue"):
            yield
    else:
        with with_broker("orm://queue"):
            yield


@pytest.fixture
def job(broker: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The result of a job that is left in the outbox, because its process died."""
    return enqueue_and_die(monkeypatch)


def enqueue_and_die(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(outbox, "relay_these", lambda *_: {})
    with transaction.atomic():
        return add.enqueue(1, 2)


def relay() -> int:
    """Relay what is in the outbox, as a scheduler does. Return the number of rows that left it."""
    return relay_from(settings_for(), "default", lambda: None)


def ends() -> list[tuple[Any, ...]]:
    return list(Job.objects.using("queue").values_list("status", "reason"))


def test_job_runs_if_the_transaction_on_the_queues_database_is_rolled_back(job: Any) -> None:
    with suppress(Undo), transaction.atomic(using="queue"):
        assert job.cancel("no")
        raise Undo
    assert (relay(), work_off()) == (1, 1)
    assert job.wait(5) == 3


def test_job_is_cancelled_after_the_commit_on_the_queues_database(job: Any) -> None:
    with transaction.atomic(using="queue"):
        assert job.cancel("no")
        assert (job.state, Outgoing.objects.count()) == (JobState.READY, 1)
    job.refresh()
    assert (job.state, job.job.reason) == (JobState.CANCELLED, "no")
    assert (relay(), work_off(), Cancellation.objects.using("queue").count()) == (0, 0, 0)
    assert ends() == [("CANCELLED", "no")]


def test_cancel_is_refused_while_autocommit_is_off_on_the_queues_database(job: Any) -> None:
    transaction.set_autocommit(False, using="queue")
    try:
        with pytest.raises(TransactionManagementError, match="outbox of the database 'default'"):
            job.cancel("no")
        transaction.commit(using="queue")
    finally:
        transaction.rollback(using="queue")
        transaction.set_autocommit(True, using="queue")
    assert (relay(), work_off()) == (1, 1)
    assert job.wait(5) == 3


def test_job_is_cancelled_though_an_outer_transaction_on_the_outbox_is_open(broker: None) -> None:
    with transaction.atomic():
        job = add.enqueue(1, 2)
        with transaction.atomic(using="queue"):
            assert job.cancel("no")
            assert not job.is_finished
        job.refresh()
        assert job.state is JobState.CANCELLED
    assert (relay(), work_off()) == (0, 0)
    assert ends() == [("CANCELLED", "no")]


@pytest.mark.parametrize("broker", ["store"], indirect=True)
def test_cancelled_job_does_not_run_though_the_outboxs_transaction_is_rolled_back(job: Any) -> None:
    """A view under ATOMIC_REQUESTS fails, for example."""
    with suppress(Undo), transaction.atomic():
        assert job.cancel("no")
        raise Undo
    assert (relay(), work_off(), Outgoing.objects.count()) == (1, 0, 0)
    assert ends() == [("CANCELLED", "no")]


def test_job_that_has_ended_is_not_cancelled_though_its_row_is_in_the_outbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that relayed it lost the connection before it deleted the row."""
    with with_broker("orm://queue", KEEP_RESULTS=False):
        job = enqueue_and_die(monkeypatch)
        with suppress(Undo), transaction.atomic():
            relay()
            raise Undo
        assert (Outgoing.objects.count(), work_off()) == (1, 1)
        assert not job.cancel("no")
        assert (relay(), work_off(), ends()) == (1, 0, [])


def test_job_is_not_cancelled_if_a_test_calls_the_hook_before_the_commit(job: Any) -> None:
    with transaction.atomic(using="queue"):
        with TestCase.captureOnCommitCallbacks(using="queue", execute=True) as calls:
            assert job.cancel("no")
        assert (len(calls), job.state) == (1, JobState.READY)
