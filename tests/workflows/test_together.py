"""Several monitors record steps of the same workflows at once, as those of many clusters do:
there is no deadlock, and no step is skipped or enqueued twice."""

from __future__ import annotations

import random
import threading
import uuid
from typing import Any

import pytest
from django.db import connections

from stoker import chain, chord, get_workflow, group
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.record import finish
from stoker.models import Job, Step, Workflow
from stoker.testing import drain

from tests.workflows.tasks import DONE, FAILING, double, note, tell, total

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]

MONITORS = 4


def test_concurrent_monitors_finish_shared_workflows(seed: int) -> None:
    nested = group(chord([double.s(number), double.s(number)], total.s()) for number in range(10))
    flows = [chord([double.s(one) for one in range(30)], total.s()).enqueue() for _ in range(3)]
    flows.append(chain(nested, total.s(), tell.s()).enqueue())
    _let_monitors_run(seed)
    values = [get_workflow(flow.id).value for flow in flows]
    assert values == [870, 870, 870, 180]
    assert Job.objects.exclude(status="SUCCESSFUL").count() == 0
    assert Job.objects.count() == 3 * 31 + 32


def test_groups_stop_while_other_monitors_record_their_members(seed: int) -> None:
    FAILING.add("bad")
    names = [*["good"] * 10, "bad", *["good"] * 10]
    flows = [
        chain(
            group([note.si(name) for name in names], on_failure="stop"), note.si("never")
        ).enqueue()
        for _ in range(6)
    ]
    _let_monitors_run(seed)
    drain()
    assert {get_workflow(flow.id).status for flow in flows} == {"FAILED"}
    assert "never" not in DONE
    assert not Step.objects.filter(state="ENQUEUED").exists()


def _let_monitors_run(seed: int) -> None:
    errors: list[BaseException] = []
    threads = [
        threading.Thread(target=_monitor, args=(random.Random(seed + number), errors))
        for number in range(MONITORS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def _monitor(chance: random.Random, errors: list[BaseException]) -> None:
    """Claim, run and record batches until every workflow has ended."""
    settings = settings_for()
    broker, executor = broker_for(settings), Executor(settings, worker_id="test")
    try:
        while Workflow.objects.filter(state="RUNNING").exists():
            claimed = broker.claim(
                ClaimRequest(chance.randint(1, 9), holder=uuid.uuid4(), lease_seconds=60)
            )
            attempted: list[Any] = [executor.run(one) for one in claimed]
            chance.shuffle(attempted)
            finish(settings, broker, attempted)
    except BaseException as error:  # noqa: BLE001 - the test shows it
        errors.append(error)
    finally:
        connections.close_all()
