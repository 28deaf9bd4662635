"""Calls in a transaction of another database than that of the queue."""

from collections.abc import Callable

import pytest
from django.db import transaction

from stoker import task
from stoker.compat import InvalidTask
from stoker.contrib.django_q.tasks import async_chain, async_iter, async_task
from stoker.models import Job, Workflow
from stoker.testing import drain

from tests.contrib.django_q import functions

pytestmark = [
    pytest.mark.two_databases,
    pytest.mark.django_db(transaction=True, databases=["default", "queue"]),
]
NOTE = "tests.contrib.django_q.functions.note"


def note_each() -> str:
    return async_iter(NOTE, [1, 2])


@task(atomic=True)
def note_each_once() -> str:
    return note_each()


@pytest.mark.parametrize(
    "enqueue",
    [
        note_each,
        lambda: async_chain([NOTE, NOTE]),
        lambda: async_task(NOTE, chain=[NOTE]),
    ],
)
def test_workflow_is_refused(enqueue: Callable[[], object]) -> None:
    with transaction.atomic(using="default"), pytest.raises(InvalidTask, match="on_commit"):
        enqueue()
    assert not Workflow.objects.using("queue").exists()
    assert not Job.objects.using("queue").exists()


@pytest.mark.parametrize(
    "enqueue",
    [
        note_each_once.enqueue,
        lambda: async_task(note_each),
        lambda: transaction.on_commit(note_each, using="default"),
    ],
)
def test_workflow_of_a_job_or_after_the_commit_runs(enqueue: Callable[[], object]) -> None:
    with transaction.atomic(using="default"):
        enqueue()
        assert not Workflow.objects.using("queue").exists()
    drain()
    assert sorted(functions.done) == [((1,), {}), ((2,), {})]
