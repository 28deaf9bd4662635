"""Screens and commands while the broker outside the database cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.utils import timezone

from stoker import Lock
from stoker.brokers.outage import do_without_broker
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.models import Attempt, Job
from stoker.operations.jobs import details_of
from stoker.values.ids import new_job_id
from stoker.why import Kind, why

from tests.app.tasks import add, fail_unretried

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


def test_job_that_only_the_broker_may_have_is_not_called_unknown(redis: None) -> None:
    with pytest.raises(CommandError, match="cannot be reached"):
        call_command("stoker", "jobs", "show", str(new_job_id()))


def test_guarded_job_in_the_store_is_explained(redis: None) -> None:
    result = add.using(lock=Lock("one")).enqueue(1, 2)
    with do_without_broker() as outage:
        answer = why(settings_for(), UUID(result.id))
    assert (answer.kind, outage.sentence) == (Kind.NO_CLUSTER, "")


def test_reads_elsewhere_raise(redis: None, retried: UUID) -> None:
    with pytest.raises(BrokerUnavailable):
        details_of(settings_for(), retried)
