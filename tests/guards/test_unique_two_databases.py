"""Unique jobs enqueued in a transaction of a database other than the queue's: the outcome is
decided when that transaction commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from stoker import Unique
from stoker.compat import InvalidTask, task_signals
from stoker.models import Job, UniqueKey

from tests.app.tasks import add

pytestmark = [
    pytest.mark.two_databases,
    pytest.mark.django_db(transaction=True, databases=["default", "queue"]),
]


class Undo(Exception):
    """Raised to roll a transaction back."""


@pytest.fixture
def announced() -> Iterator[list[str]]:
    """The ids of jobs for which Django sent its signal."""
    ids: list[str] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_signals.task_enqueued.connect(receive)
    yield ids
    task_signals.task_enqueued.disconnect(receive)


def unique(mode: str = "keep") -> Any:
    return add.using(unique=Unique("{first}", on_conflict=mode))


def test_result_shows_after_the_commit_whether_it_is_a_duplicate(announced: list[str]) -> None:
    there = unique().enqueue(1, 1)
    with transaction.atomic(using="default"):
        kept = unique().enqueue(1, 2)
        new, again = unique().enqueue_many([((2, 1), {}), ((2, 2), {})])
        assert announced == [there.id]
        assert not Job.objects.using("queue").filter(pk=new.id).exists()
    assert (kept.id, kept.was_duplicate, kept.args) == (there.id, True, [1, 1])
    assert (again.id, again.was_duplicate) == (new.id, True)
    assert announced == [there.id, new.id]
    assert Job.objects.using("queue").count() == 2


def test_rolled_back_enqueue_takes_no_key() -> None:
    try:
        with transaction.atomic(using="default"):
            unique().enqueue(1, 1)
            raise Undo  # noqa: TRY301 - rolls back
    except Undo:
        pass
    assert not UniqueKey.objects.using("queue").exists()


def test_raise_mode_is_refused_inside_a_transaction_of_another_database() -> None:
    with (
        transaction.atomic(using="default"),
        pytest.raises(InvalidTask, match="too late for Unique"),
    ):
        unique("raise").enqueue(1, 1)
    with transaction.atomic(using="queue"):
        assert not unique("raise").enqueue(1, 1).was_duplicate
