"""Upkeep goes on while transactions of user code hold the rows of some jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone

from stoker import chain, get_workflow
from stoker.conf import settings_for
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.jobs.cancel import sweep_requests
from stoker.models import Cancellation, DeadLetter, Job, Workflow
from stoker.testing import drain
from stoker.workflows.sweep import WorkflowSweep

from tests.app import frail, tasks
from tests.guards.sessions import Session, session
from tests.integration.letters import dead
from tests.workflows.tasks import FAILING, note

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_broken", "_impatient"),
]
COUNT = 4


@pytest.fixture(autouse=True)
def _no_step_fails() -> None:
    FAILING.clear()  # tests of other folders may have left some


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


@pytest.fixture
def _impatient() -> Iterator[None]:
    """Give up on a lock soon, as a cluster does."""
    is_postgres = connection.vendor == "postgresql"
    name = "lock_timeout" if is_postgres else "SESSION innodb_lock_wait_timeout"
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'" if is_postgres else f"SET {name} = 1")
        yield
        cursor.execute(f"SET {name} = DEFAULT")


@pytest.mark.parametrize("locked", [[0], [0, 1], [1, 2]])
def test_locked_dead_letter_delays_only_its_own_requeue(locked: list[int], other: Session) -> None:
    letters = [dead(frail.pay, f"order {number}") for number in range(COUNT)]
    for number, letter in enumerate(letters):
        DeadLetter.objects.filter(pk=letter.pk).update(requeue_due_us=number + 1)
    removed = dead(frail.charge, "order")
    DeadLetter.objects.filter(pk=removed.pk).update(state="requeued", successor_id=removed.pk)
    held = [letters[number].pk for number in locked]
    other.begin()
    other.do(lambda: list(DeadLetter.objects.select_for_update().filter(pk__in=held)))
    sweep = DeadLetterSweep(settings_for(), lambda: None)
    assert sweep.sweep() == COUNT - len(held)
    removed.refresh_from_db()
    assert removed.state == "open", "the other part of the sweep ran"
    other.roll_back()
    assert sweep.sweep() == len(held)


def test_locked_workflow_delays_only_the_requeue_of_its_own_dead_letters(other: Session) -> None:
    frail.broken.update(["step", "job"])
    workflow = chain(frail.pay.si("step")).enqueue()
    drain()
    dead(frail.pay, "job")
    DeadLetter.objects.update(requeue_due_us=1)
    other.begin()
    other.do(lambda: Workflow.objects.select_for_update().get(pk=workflow.id))
    sweep = DeadLetterSweep(settings_for(), lambda: None)
    assert sweep.sweep() == 1
    other.roll_back()
    assert sweep.sweep() == 1


@pytest.mark.parametrize("locked", [[0], [0, 1], [1, 2]])
def test_locked_job_delays_only_its_own_cancellation(locked: list[int], other: Session) -> None:
    jobs = [tasks.nothing.enqueue() for _ in range(COUNT)]
    Cancellation.objects.ask_all([UUID(job.id) for job in jobs], "enough")
    other.begin()
    for number in locked:
        assert other.do(jobs[number].cancel)
    assert sweep_requests(settings_for()) == COUNT - len(locked)
    held = {UUID(jobs[number].id) for number in locked}
    assert set(Cancellation.objects.values_list("job_id", flat=True)) == held
    assert Job.objects.filter(status="CANCELLED").count() == COUNT - len(locked)
    other.roll_back()
    assert sweep_requests(settings_for()) == len(locked)
    assert Job.objects.filter(status="CANCELLED").count() == COUNT


def test_locked_workflow_delays_only_its_own_deletion(other: Session) -> None:
    old = [chain(note.si("a")).enqueue() for _ in range(COUNT)]
    drain()
    Workflow.objects.update(finished_at=timezone.now() - timedelta(days=800))
    other.begin()
    other.do(lambda: Workflow.objects.select_for_update().get(pk=old[1].id))
    sweep = WorkflowSweep(settings_for(), lambda: None)
    assert sweep.prune() == COUNT - 1
    assert get_workflow(old[1].id).status == "SUCCESSFUL"
    other.roll_back()
    assert sweep.prune() == 1


def test_locked_workflow_delays_only_the_deletion_of_its_own_values(other: Session) -> None:
    ended = [chain(note.si("a"), note.s()).enqueue() for _ in range(COUNT)]
    drain()
    other.begin()
    other.do(lambda: Workflow.objects.select_for_update().get(pk=ended[1].id))
    sweep = WorkflowSweep(settings_for(), lambda: None)
    assert sweep.forget_values() == COUNT
    assert Workflow.objects.filter(has_values=True).count() == 1
    other.roll_back()
    sweep.forget_values()
    assert not Workflow.objects.filter(has_values=True).exists()


def test_job_whose_locked_row_is_not_found_is_passed_over(
    other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.jobs.cancel.locked_waiting_jobs", lambda *_: set())
    jobs = [tasks.nothing.enqueue() for _ in range(COUNT)]
    Cancellation.objects.ask_all([UUID(job.id) for job in jobs], "enough")
    other.begin()
    assert other.do(jobs[2].cancel)
    assert sweep_requests(settings_for()) == COUNT - 1
    other.roll_back()
    assert sweep_requests(settings_for()) == 1
