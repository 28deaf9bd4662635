"""Model instances as arguments and results of ``async_task``."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker.contrib.django_q.models import Failure, OrmQ, Task
from stoker.contrib.django_q.tasks import async_iter, async_task, fetch, result
from stoker.exceptions import NotSerializable
from stoker.testing import drain

from tests.app.models import Account

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"


@pytest.fixture
def account() -> Account:
    return Account.objects.create(total=5)


def test_function_gets_the_instance_as_it_is_at_run_time(account: Account) -> None:
    task_id = async_task(f"{HERE}.total_of", account)
    Account.objects.update(total=7)
    drain()
    assert result(task_id) == ["Account", 7]


def test_instances_in_containers_and_keywords_arrive(account: Account) -> None:
    task_id = async_task(f"{HERE}.totals_of", [account, {"one": (account,)}], last=account)
    drain()
    assert result(task_id) == [5, 5, 5]


def test_instances_of_an_iteration_arrive(account: Account) -> None:
    task_id = async_iter(f"{HERE}.total_of", [(account,), (Account.objects.create(total=6),)])
    drain()
    assert result(task_id) == [["Account", 5], ["Account", 6]]


def test_function_can_return_an_instance(account: Account) -> None:
    task_id = async_task(f"{HERE}.first_of", account)
    drain()
    found: Any = result(task_id)
    assert found == account
    assert isinstance(found, Account)
    assert found.total == 5


def test_rows_are_shown_without_reading_the_instance(account: Account) -> None:
    task_id = async_task(f"{HERE}.total_of", account)
    (waiting,) = OrmQ.objects.all()
    shown = f"<testapp.Account {account.pk}>"
    with CaptureQueriesContext(connection) as queries:
        assert repr(waiting.call()["args"]) == f"({shown},)"
    assert not queries.captured_queries
    drain()
    account.delete()
    assert repr(Task.objects.get(pk=task_id).args) == f"[{shown}]"


def test_deleted_instance_fails_the_task_and_is_named(account: Account) -> None:
    task_id = async_task(f"{HERE}.total_of", account, ack_failure=True)
    key = account.pk
    account.delete()
    drain()
    (failure,) = Failure.objects.all()
    assert failure.id == task_id
    assert f"There is no testapp.Account with the primary key {key} any more." in failure.result


def test_unsaved_instance_is_refused() -> None:
    with pytest.raises(NotSerializable, match=r"is not saved.*: save it first\.$"):
        async_task(f"{HERE}.total_of", Account(total=5))
    assert not OrmQ.objects.exists()


def test_returned_instance_can_be_an_argument_again(account: Account) -> None:
    task_id = async_task(f"{HERE}.first_of", account)
    drain()
    again = async_task(f"{HERE}.total_of", result(task_id))
    drain()
    assert result(again) == ["Account", 5]
    assert fetch(again).success
