"""A full disk: the write is refused with an error, and no job is lost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.execute import Executor
from stoker.jobs.record import finish
from stoker.models import Claimed, Job

from tests.app import tasks
from tests.integration.work import claim, work_off

pytestmark = [pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]

LARGE = "x" * 500_000
"""More than the free space in the existing pages of the database."""


@contextmanager
def full_disk() -> Iterator[None]:
    """Let the database file not grow."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
        cursor.execute(f"PRAGMA max_page_count = {pages}")
        try:
            yield
        finally:
            cursor.execute("PRAGMA max_page_count = 1000000000")


def refused(act: Callable[[], object]) -> None:
    """Check that the call raises an error after which the cluster's processes retry."""
    with full_disk(), pytest.raises((BrokerUnavailable, OperationalError), match="full"):
        act()


def test_enqueue_on_full_disk_raises_and_adds_no_job() -> None:
    refused(lambda: tasks.echo.enqueue(LARGE))
    assert not Job.objects.exists()
    tasks.echo.enqueue(LARGE)
    assert work_off() == 1


def test_outcome_on_full_disk_is_recorded_once_there_is_room() -> None:
    """It is not acked, so the holder keeps it and records it again."""
    result = tasks.echo.enqueue(LARGE)
    settings = settings_for()
    (delivery,) = claim()
    attempted = Executor(settings, worker_id="one").run(delivery)
    refused(lambda: finish(settings, broker_for(settings), [attempted]))
    assert Claimed.objects.filter(pk=result.id, lease_id=delivery.lease_id).exists()
    finish(settings, broker_for(settings), [attempted])
    result.refresh()
    assert result.return_value == LARGE
    assert not Claimed.objects.exists()
