"""Jobs and outcomes arrive unchanged in the next process."""

import marshal
from collections.abc import Callable
from dataclasses import replace

import pytest

from stoker.brokers.contract import Delivery
from stoker.cluster.wire import open_job, open_report, pack_for_monitor, pack_job, pack_report
from stoker.jobs.faults import Fault
from stoker.jobs.outcomes import (
    KINDS,
    Attempted,
    Cancelled,
    Crashed,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    TimedOut,
    open_outcome,
    pack_outcome,
)
from stoker.values.ids import LINKED, STEP, is_marked, new_job_id, none_is_marked

pytestmark = pytest.mark.unit

FAULT = Fault("builtins.ValueError", "no \N{SNOWMAN}", "Traceback", "shop.tasks:send")
OUTCOMES = (
    Succeeded(b"\x00\xffvalue"),
    Failed(FAULT, "expired"),
    Retried(FAULT, 2.5, "timeout"),
    Snoozed(3.5, "later", "lock"),
    Cancelled("not needed"),
    Cancelled("not needed", was_killed=True),
    Crashed("killed by SIGKILL", None, 9),
    Crashed("exit code 3", 3, None, has_begun=False),
    TimedOut("it went on", 9),
)


def test_outcomes_cover_every_kind() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(KINDS.values())


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.kind)
def test_report_arrives_unchanged(
    outcome: Outcome, deliveries: Callable[[int], list[Delivery]]
) -> None:
    (delivery,) = deliveries(1)
    attempted = Attempted(delivery, outcome, "host:1.1", 12.5, 13.5)
    sent = marshal.dumps((pack_report(7, attempted), pack_job(7, delivery)))
    report, job = marshal.loads(sent)  # noqa: S302 - ours
    arrived = open_report(report, job)
    # The monitor does not need the fence and the permit.
    assert arrived == replace(attempted, delivery=delivery._replace(fence=0, permit_seconds=0.0))


def test_replaced_outcome_of_a_cancelled_job_is_not_sent() -> None:
    cancelled = Cancelled("not needed", instead_of=Snoozed(3.5))
    assert open_outcome(pack_outcome(cancelled)) == Cancelled("not needed")


@pytest.mark.parametrize("lease_id", [2**63 - 1, "a-receipt"])
def test_job_arrives_unchanged(
    lease_id: int | str, deliveries: Callable[..., list[Delivery]]
) -> None:
    (delivery,) = deliveries(1, lease_id=lease_id)
    sent = marshal.dumps(pack_job(1, delivery))
    assert open_job(marshal.loads(sent)) == delivery  # noqa: S302 - ours


def test_jobs_for_the_monitor_have_no_package(deliveries: Callable[[int], list[Delivery]]) -> None:
    (delivery,) = deliveries(1)
    assert open_job(pack_for_monitor(1, delivery)) == delivery._replace(package=b"")


@pytest.mark.parametrize("marks", [0, STEP, LINKED, STEP | LINKED])
def test_marks_are_found_in_every_form_of_an_id(marks: int) -> None:
    for _ in range(50):
        job_id = new_job_id(marks)
        assert is_marked(job_id) == bool(marks)
        assert none_is_marked([new_job_id().hex, job_id.hex]) == (not marks)
