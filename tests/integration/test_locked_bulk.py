"""Bulk operations continue while a transaction of user code holds the rows of some of their
targets."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from stoker.conf import settings_for
from stoker.models import BulkOperation, DeadLetter, Deferred, Job
from stoker.operations import bulk, bulk_walk, dead_letters, waiting_jobs
from stoker.operations.operation import Operator

from tests.app import frail, payments, tasks
from tests.guards.sessions import Session, session
from tests.integration.killed_walks import LONG
from tests.integration.letters import dead

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nothing_broken", "impatient"),
]
HOLD = waiting_jobs.HOLD


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_walk, "lock_seconds", lambda _: 0.05)


@pytest.fixture
def alice() -> Operator:
    return Operator(settings_for(), "alice", "the bank is back")


@pytest.fixture
def other() -> Iterator[Session]:
    with session() as opened:
        yield opened


@pytest.fixture
def third() -> Iterator[Session]:
    with session() as opened:
        yield opened


def cancel_and_stay_open(other: Session, job: Any) -> None:
    other.begin()
    assert other.do(job.cancel)


def state_of(alice: Operator, row: BulkOperation) -> tuple[str, int, int]:
    row = bulk.get(alice.settings, row.pk)
    return row.state, row.done, row.refused


@pytest.mark.parametrize(("is_cancelled", "done"), [(False, 5), (True, 4)])
def test_locked_target_is_changed_last_and_holds_up_nothing(
    is_cancelled: bool, done: int, alice: Operator, other: Session
) -> None:
    jobs = [tasks.nothing.enqueue() for _ in range(5)]
    payments.plain.enqueue(1)
    cancel_and_stay_open(other, jobs[2])
    first = bulk.start(alice, HOLD, {"task": tasks.nothing.module_path})
    second = bulk.start(alice, HOLD, {"task": payments.plain.module_path})
    for _ in range(4):
        bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, first) == ("running", 4, 1)
    assert bulk.refusals_of(alice.settings, first, 5)[0].refusal == bulk_walk.LOCKED
    assert state_of(alice, second) == ("done", 1, 0)
    if is_cancelled:
        other.commit()
    else:
        other.roll_back()
    bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, first) == ("done", done, 5 - done)
    assert Deferred.objects.count() == done + 1


def test_target_that_stays_locked_does_not_hold_up_one_that_is_free_again(
    alice: Operator, other: Session, third: Session
) -> None:
    jobs = [tasks.nothing.enqueue() for _ in range(3)]
    cancel_and_stay_open(other, jobs[0])
    cancel_and_stay_open(third, jobs[1])
    row = bulk.start(alice, HOLD, {})
    for _ in range(4):
        bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, row) == ("running", 1, 2)
    third.roll_back()
    for _ in range(2):
        bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, row) == ("running", 2, 1)
    other.roll_back()
    bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, row) == ("done", 3, 0)


def test_request_that_starts_an_operation_does_not_wait_for_a_locked_target(
    alice: Operator, other: Session
) -> None:
    """The connections of a web process have no deadline for locks."""
    jobs = [tasks.nothing.enqueue() for _ in range(2)]
    cancel_and_stay_open(other, jobs[0])
    done = bulk.perform(alice, HOLD, {})
    assert done.value.state == "running"
    other.roll_back()
    bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, done.value) == ("done", 2, 0)


def test_limit_of_lock_waits_ends_with_the_operation(alice: Operator, other: Session) -> None:
    name = "lock_timeout" if connection.vendor == "postgresql" else "@@innodb_lock_wait_timeout"

    def limit() -> Any:
        with connection.cursor() as cursor:
            verb = "SHOW" if connection.vendor == "postgresql" else "SELECT"
            cursor.execute(f"{verb} {name}")
            return cursor.fetchone()

    before = limit()
    jobs = [tasks.nothing.enqueue() for _ in range(2)]
    cancel_and_stay_open(other, jobs[0])
    row = bulk.start(alice, HOLD, {})
    for _ in range(3):
        bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, row) == ("running", 1, 1)
    assert limit() == before


@pytest.mark.parametrize("operation", [dead_letters.REQUEUE, dead_letters.DISCARD])
def test_locked_dead_letter_does_not_hold_up_others(
    operation: Any, alice: Operator, other: Session
) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    other.begin()
    other.do(lambda: DeadLetter.objects.select_for_update().get(pk=letters[1].pk))
    row = bulk.start(alice, operation, {"task": frail.charge.module_path})
    for _ in range(4):
        bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, row) == ("running", 2, 1)
    other.roll_back()
    bulk_walk.go_on(alice.settings, LONG)
    assert state_of(alice, row) == ("done", 3, 0)
    assert Job.objects.count() == (6 if operation is dead_letters.REQUEUE else 3)
