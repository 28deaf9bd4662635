"""Workflows on another database than the one with the open transaction."""

import pytest
from django.db import transaction

from stoker import chain, get_workflow, task
from stoker.compat import InvalidTask
from stoker.models import Job, Workflow
from stoker.testing import drain

from tests.workflows.tasks import DONE, note

pytestmark = [
    pytest.mark.two_databases,
    pytest.mark.django_db(transaction=True, databases=["default", "queue"]),
]


@task(atomic=True)
def start(name: str) -> str:
    return chain(note.si(name)).enqueue().id


def test_workflow_is_refused_in_a_transaction_that_cannot_undo_it() -> None:
    flow = chain(note.si("a"), note.si("b"))
    with transaction.atomic(using="default"):
        with pytest.raises(InvalidTask, match=r"inside a transaction of 'default'.*on_commit"):
            flow.enqueue()
        transaction.on_commit(lambda: note.si("late").enqueue(), using="default")
    assert Workflow.objects.using("queue").count() == Job.objects.using("queue").count() == 1
    with transaction.atomic(using="default"), transaction.atomic(using="queue"):
        flow.enqueue()
    assert Workflow.objects.using("queue").count() == 2


def test_job_of_the_transaction_enqueues_the_workflow() -> None:
    with transaction.atomic(using="default"):
        result = start.enqueue("a")
    drain()
    result.refresh()
    assert (get_workflow(result.return_value).status, DONE) == ("SUCCESSFUL", ["a"])
