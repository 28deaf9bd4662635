"""Cancel workflows inside a transaction: their jobs are withdrawn when it commits."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections, transaction

from stoker import WorkflowResult, get_workflow, group
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.jobs.cancel import sweep_requests
from stoker.models import Cancellation, Job, Ready
from stoker.models.cancellation import CancellationQuerySet
from stoker.store.statements import deciding
from stoker.testing import drain
from stoker.workflows.follow import record_cancelled

from tests.workflows.tasks import DONE, note

PATIENCE_SECONDS = 60.0

pytestmark = pytest.mark.django_db(transaction=True)


class Undo(Exception):
    """Raised to roll a transaction back."""


def started() -> WorkflowResult:
    return group(note.si("a"), note.si("b")).enqueue()


def test_jobs_are_withdrawn_after_the_commit() -> None:
    workflow = started()
    with transaction.atomic():
        assert workflow.cancel("enough")
        assert Ready.objects.count() == 2
    assert not Ready.objects.exists()
    assert set(Job.objects.values_list("status", "reason")) == {("CANCELLED", "enough")}
    assert get_workflow(workflow.id).status == "CANCELLED"


def test_rollback_cancels_nothing() -> None:
    workflow = started()
    with suppress(Undo), transaction.atomic():
        assert workflow.cancel()
        raise Undo
    assert not Cancellation.objects.exists()
    drain()
    assert (sorted(DONE), get_workflow(workflow.id).status) == (["a", "b"], "SUCCESSFUL")


def test_upkeep_withdraws_the_jobs_if_the_caller_commits_by_hand() -> None:
    workflow = started()
    transaction.set_autocommit(False)
    try:
        assert workflow.cancel()
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    sweep_requests(settings_for())
    assert not Ready.objects.exists()
    sweep_requests(settings_for())
    assert not Cancellation.objects.exists()
    assert set(Job.objects.values_list("status", flat=True)) == {"CANCELLED"}


@pytest.mark.django_db
def test_drain_does_not_run_jobs_that_were_cancelled_in_a_transaction() -> None:
    """The test rolls everything back, so nothing is ever done after the commit."""
    workflow = started()
    with transaction.atomic():
        assert workflow.cancel()
    drain()
    assert DONE == []
    assert not Ready.objects.exists()


@pytest.mark.postgres
@pytest.mark.mariadb
def test_process_that_has_deleted_a_row_of_a_job_can_wait_for_the_workflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code that withdraws a job locks the workflow last."""
    workflow = started()
    settings = settings_for()
    job_id = Ready.objects.order_by("pk").values_list("pk", flat=True)[0]
    has_deleted, is_locked = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def withdraw() -> None:
        try:
            with deciding(settings.database):
                gone = broker_for(settings).withdraw([job_id])
                has_deleted.set()
                assert is_locked.wait(PATIENCE_SECONDS)
                record_cancelled(settings, gone, "withdrawn")
        except BaseException as error:  # noqa: BLE001 - the test shows it
            errors.append(error)
        finally:
            connections.close_all()

    really = CancellationQuerySet.ask_all

    def ask_all(*given: Any) -> None:
        really(*given)
        is_locked.set()

    monkeypatch.setattr(CancellationQuerySet, "ask_all", ask_all)
    thread = threading.Thread(target=withdraw)
    thread.start()
    assert has_deleted.wait(PATIENCE_SECONDS)
    with transaction.atomic():
        assert workflow.cancel("enough")
    thread.join()
    assert not errors
    assert not Ready.objects.exists()
    assert Job.objects.get(pk=job_id).reason == "withdrawn"
    assert get_workflow(workflow.id).status == "CANCELLED"
