"""Steps that end together in transactions of any isolation level."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections

from stoker import chord, task
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.record import finish
from stoker.models import Job
from stoker.testing import drain

from tests.guards.sessions import PATIENCE_SECONDS
from tests.workflows.tasks import total

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

_together = threading.Barrier(2, timeout=PATIENCE_SECONDS)


@task(max_attempts=3, atomic=True, backoff=0)
def member(number: int) -> int:
    """Return the number when both members have read. A second attempt does not wait."""
    Job.objects.count()
    if not _together.broken:
        _together.wait()
    return number


@pytest.fixture(params=["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
def _level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    options = {
        **connection.settings_dict["OPTIONS"],
        "isolation_level": IsolationLevel[request.param],
    }
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.close()
    _together.reset()
    yield
    connection.close()


@pytest.mark.usefixtures("_level")
def test_workflow_goes_on_after_atomic_members_that_end_together() -> None:
    """With REPEATABLE READ, neither saw the end of the other, and both were committed."""
    workflow = chord([member.si(1), member.si(2)], total.s()).enqueue()
    settings, broker = settings_for(), broker_for(settings_for())
    claimed: list[Delivery] = []
    while len(claimed) < 2:
        claimed += broker.claim(ClaimRequest(2, holder=uuid.uuid4(), lease_seconds=60))
    errors: list[Exception] = []

    def run(delivery: Delivery) -> Any:
        try:
            ran = Executor(settings, worker_id="w").run(delivery)
            _together.abort()
            finish(settings, broker, [ran])
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[one]) for one in claimed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    drain()
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL"
