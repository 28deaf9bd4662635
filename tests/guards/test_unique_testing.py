"""Unique jobs in a project's tests: run inline, drained, asserted."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from stoker import Unique, task
from stoker.models import Blocked
from stoker.testing import assert_enqueued, assert_enqueues, drain, enqueued, inline

from tests.app.tasks import add, echo

pytestmark = [
    pytest.mark.parametrize(
        "database",
        [
            pytest.param("in a transaction", marks=pytest.mark.django_db),
            pytest.param("committing", marks=pytest.mark.django_db(transaction=True)),
        ],
    ),
    pytest.mark.usefixtures("database"),
]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@task(unique=Unique("count down", on_conflict="after"))
def count_down(number: int) -> None:
    if number:
        count_down.enqueue(number - 1)


def unique(mode: str = "keep", **options: Any) -> Any:
    return add.using(unique=Unique("{first}", on_conflict=mode, **options))


def test_inline_jobs_are_never_duplicates() -> None:
    """Each has ended before the next is enqueued."""
    with inline() as ran:
        results = [unique().enqueue(1, second) for second in (1, 2)]
    assert [result.return_value for result in results] == [2, 3]
    assert len(ran) == 2


def test_inline_jobs_in_one_transaction_are_duplicates() -> None:
    with inline() as ran, transaction.atomic():
        results = [unique("replace").enqueue(1, second) for second in (1, 2)]
    assert [result.was_duplicate for result in results] == [False, True]
    assert [one.args for one in ran] == [(1, 2)]


def test_inline_key_is_taken_for_its_period() -> None:
    with inline() as ran:
        results = [unique(within=60).enqueue(1, second) for second in (1, 2)]
    assert [result.was_duplicate for result in results] == [False, True]
    assert results[1].return_value == 2
    assert len(ran) == 1


def test_drained_jobs_free_their_keys() -> None:
    first = unique().enqueue(1, 1)
    assert unique().enqueue(1, 2).id == first.id
    assert [ran.args for ran in drain()] == [(1, 1)]
    assert not unique().enqueue(1, 3).was_duplicate


def test_drain_runs_postponed_jobs_with_the_deferred() -> None:
    task = unique("postpone", delay=60)
    task.enqueue(1, 1)
    task.enqueue(1, 2)
    assert not drain()
    assert [ran.args for ran in drain(include_deferred=True)] == [(1, 2)]


def test_job_enqueued_by_its_own_task_runs_after_it() -> None:
    count_down.enqueue(3)
    assert [ran.args for ran in drain()] == [(3,), (2,), (1,), (0,)]


def test_assert_enqueued_sees_the_replaced_arguments() -> None:
    unique("replace").enqueue(1, 1)
    with assert_enqueues(add, count=0):
        unique("replace").enqueue(1, 2)
    assert_enqueued(add, args=[1, 2], count=1)


def test_assert_enqueued_sees_blocked_jobs() -> None:
    from tests.integration.work import claim

    unique("after").enqueue(1, 1)
    assert len(claim()) == 1
    unique("after").enqueue(1, 2)
    assert claim() == []
    assert Blocked.objects.exists()
    assert [job.args for job in enqueued(add)] == [(1, 2)]
    assert_enqueued(add, args=[1, 2])
    assert echo.enqueue("other").id
