"""Single tasks: ``async_task``, ``result``, ``fetch``."""

import math
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from stoker.conf import settings_for
from stoker.contrib.django_q import tasks
from stoker.contrib.django_q.brokers import get_broker
from stoker.contrib.django_q.models import Failure, OrmQ, Schedule, Success, Task
from stoker.contrib.django_q.signals import pre_enqueue
from stoker.contrib.django_q.spec import UnknownFunction
from stoker.contrib.django_q.tasks import (
    AsyncTask,
    async_iter,
    async_task,
    fetch,
    fetch_cached,
    queue_size,
    result,
    result_cached,
)
from stoker.exceptions import JobFailed, NotSerializable, UnknownTask
from stoker.models import Job
from stoker.operations.details import opened_call
from stoker.signals import pre_enqueue as stoker_pre_enqueue
from stoker.testing import drain

from tests.contrib.django_q import functions

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"


def test_function_given_by_path_is_called() -> None:
    task_id = async_task("math.copysign", 2, -2)
    assert len(task_id) == 32
    assert result(task_id) is None
    assert queue_size() == 1
    drain()
    assert result(task_id) == -2
    assert queue_size() == 0


def test_callable_is_called() -> None:
    task_id = async_task(math.floor, 1.5)
    drain()
    assert result(task_id) == 1


def test_static_method_is_called() -> None:
    ids = [async_task(functions.Till.count, 1, 2), async_task(f"{HERE}.Till.count", 3)]
    drain()
    assert [result(one) for one in ids] == [3, 3]


def test_callable_without_a_path_is_refused() -> None:
    with pytest.raises(UnknownFunction, match="not a function of a module"):
        async_task(lambda: None)
    with pytest.raises(UnknownFunction, match="not a function of a module"):
        async_task([].append, 1)
    assert not Job.objects.exists()


def test_function_whose_path_leads_to_another_one_is_refused() -> None:
    """A worker would call the other one, here the one without its decorator."""
    with pytest.raises(UnknownFunction, match=r"functions\._single, because another function"):
        async_task(functions.double, 3)
    with pytest.raises(UnknownFunction, match="another function has that path"):
        async_task(functions.four_times.__wrapped__, 3)
    ids = [
        async_task(functions.four_times, 3),
        async_task(f"{HERE}.double", 3),
        async_task(functions.Till.name_of),
    ]
    drain()
    assert [result(one) for one in ids] == [12, 6, "Till"]


def test_arguments_keep_value_and_type() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    task_id = async_task(f"{HERE}.note", moment, Decimal("1.50"), (1, 2), x=uuid.UUID(int=7))
    drain()
    assert functions.done == [((moment, Decimal("1.50"), (1, 2)), {"x": uuid.UUID(int=7)})]
    row = fetch(task_id)
    assert row is not None
    assert row.args == [moment, Decimal("1.50"), (1, 2)]
    assert row.kwargs == {"x": uuid.UUID(int=7)}
    assert row.result == (moment, Decimal("1.50"), (1, 2))


def test_unserializable_argument_is_refused() -> None:
    with pytest.raises(NotSerializable):
        async_task(f"{HERE}.note", object())


def test_task_row_has_name_group_times_and_attempts() -> None:
    task_id = async_task(f"{HERE}.add", 1, two=2, task_name="sum", group="sums")
    drain()
    row = fetch("sum")
    assert row is not None
    assert (row.id, row.name, row.func, row.group) == (task_id, "sum", f"{HERE}.add", "sums")
    assert row.success
    assert row.attempt_count == 1
    assert row.stopped >= row.started
    assert row.time_taken() >= 0
    assert list(Success.objects.filter(func=f"{HERE}.add", group="sums")) == [row]
    assert not Failure.objects.exists()


def test_option_in_q_options_leaves_the_argument_of_that_name_to_the_function() -> None:
    options = {"group": "g", "task_name": "two"}
    async_task(f"{HERE}.note", group="eu", save=True, q_options=options)
    drain()
    assert functions.done == [((), {"group": "eu"})]
    row = fetch("two")
    assert row is not None
    assert row.group == "g"


def test_task_name_is_always_an_option() -> None:
    async_task(f"{HERE}.note", task_name="one", x=1, q_options={"task_name": "two"})
    drain()
    assert functions.done == [((), {"x": 1})]
    assert fetch("one") is not None


def test_result_of_failed_task_raises_job_failed() -> None:
    task_id = async_task(f"{HERE}.fail", "no coal", ack_failure=True)
    drain()
    with pytest.raises(JobFailed, match="no coal"):
        result(task_id)
    row = fetch(task_id)
    assert row is not None
    assert not row.success
    assert row.result.startswith("no coal")
    assert "Traceback" in row.result
    assert list(Failure.objects.all()) == [row]


def test_failed_task_is_retried() -> None:
    task_id = async_task(f"{HERE}.fail")
    drain()
    assert fetch(task_id).attempt_count == 3  # type: ignore[union-attr] # it is there


def test_unknown_function_fails_the_task() -> None:
    task_id = async_task("nowhere.at.all", ack_failure=True)
    drain()
    with pytest.raises(JobFailed, match="nowhere"):
        result(task_id)


def test_unsaved_success_leaves_no_row() -> None:
    async_task(f"{HERE}.add", 1, save=False)
    async_task(f"{HERE}.fail", save=False, ack_failure=True)
    drain()
    assert [row.func for row in Task.objects.all()] == [f"{HERE}.fail"]


def test_hook_is_called_once_with_the_task() -> None:
    task_id = async_task(f"{HERE}.add", 1, 1, hook=f"{HERE}.hook", task_name="two")
    failed = async_task(f"{HERE}.fail", hook=functions.hook, ack_failure=True, task_name="no")
    drain()
    seen = {one[0]: one[1:3] for one in functions.done}
    assert seen == {task_id: ("two", True), failed: ("no", False)}
    assert len(functions.done) == 2


def test_hook_is_called_if_nothing_is_saved() -> None:
    async_task(f"{HERE}.add", 1, 1, hook=f"{HERE}.hook", save=False)
    async_task(f"{HERE}.add", 2, 2, hook=f"{HERE}.hook", cached=60)
    drain()
    assert sorted(one[3] for one in functions.done) == [2, 4]


def test_failing_hook_does_not_change_the_result() -> None:
    task_id = async_task(f"{HERE}.add", 1, 1, hook="nowhere.hook")
    drain()
    assert result(task_id) == 2


def test_cached_result_is_in_the_cache_only() -> None:
    task_id = async_task(f"{HERE}.add", 1, 1, cached=60, task_name="in the cache")
    drain()
    assert result_cached(task_id) == 2
    assert result_cached("in the cache") == 2
    assert fetch_cached(task_id).name == "in the cache"  # type: ignore[union-attr] # it is there
    assert result(task_id) is None
    assert not Task.objects.exists()


def test_sync_task_runs_at_once() -> None:
    task_id = async_task(f"{HERE}.add", 1, 1, sync=True, hook=f"{HERE}.hook", task_name="now")
    assert result(task_id) == 2
    assert functions.done == [(task_id, "now", True, 2)]
    assert drain() == []


def test_failed_sync_task_is_recorded_and_raises() -> None:
    """Django Q does the same, and projects' tests rely on it."""
    with pytest.raises(ValueError, match="out of order") as raised:
        async_task(f"{HERE}.fail", sync=True, task_name="bad", hook=f"{HERE}.hook")
    assert raised.traceback[-1].name == "fail"
    row = fetch("bad")
    assert row is not None
    assert not row.success
    assert row.attempt_count == 1
    assert functions.done == []
    assert drain() == []


def test_database_error_of_a_sync_task_in_a_transaction_is_raised() -> None:
    """The transaction is broken, so that nothing can be recorded in it."""
    functions.create_account(7)
    with pytest.raises(IntegrityError), transaction.atomic():
        async_task(f"{HERE}.create_account", 7, sync=True)
    assert not Job.objects.exists()


def test_unknown_function_in_sync_raises() -> None:
    with pytest.raises(UnknownTask, match="nowhere"):
        async_task("nowhere.at.all", sync=True)


def test_failed_sync_iteration_raises() -> None:
    with pytest.raises(ValueError, match="2 is bad"):
        async_iter(f"{HERE}.fail_on", [(1, 2), (2, 2)], sync=True)


def test_error_of_nested_sync_task_is_raised_once() -> None:
    """The inner error is raised in the outer function, which handles it."""
    task_id = async_task(f"{HERE}.try_in_sync", f"{HERE}.fail", sync=True)
    assert result(task_id) == "out of order"


@pytest.mark.parametrize("sync", [False, True])
def test_job_calls_other_functions_in_sync(sync: bool) -> None:
    task_id = async_task(f"{HERE}.call_others_in_sync", sync=sync)
    drain()
    assert result(task_id) == [3, 7]
    assert [one[1:] for one in functions.done] == [("inner", True, 2)]


def test_failing_hook_of_sync_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task_id = async_task(f"{HERE}.add", 1, 1, sync=True, hook="nowhere.hook")
    assert result(task_id) == 2
    assert "The hook nowhere.hook" in caplog.text


def test_cached_sync_result_is_readable_inside_the_transaction() -> None:
    with transaction.atomic():
        task_id = async_task(f"{HERE}.add", 1, 1, sync=True, cached=True)
        assert result(task_id, cached=True) == 2


def test_async_task_object_runs_and_fetches() -> None:
    later = AsyncTask(f"{HERE}.add", 1, 1)
    later.group = "later"
    later.cached = False
    assert (later.id, later.started, later.result()) == ("", False, None)
    task_id = later.run()
    assert later.started
    drain()
    assert later.result() == 2
    assert later.fetch().id == task_id
    assert later.result_group() == [2]
    assert [row.id for row in later.fetch_group()] == [task_id]


def test_callers_options_are_not_changed() -> None:
    options = {"task_name": "one", "group": "g"}
    later = AsyncTask(f"{HERE}.add", 1, 1, q_options=options)
    later.group = "other"
    later.run()
    async_task(f"{HERE}.add", 1, 1, q_options=options)
    assert options == {"task_name": "one", "group": "g"}
    drain()
    assert later.fetch_group().count() == 1
    assert later.group == "other"
    later.group = "third"
    assert not later.started


def test_pre_enqueue_signal_has_the_task_id() -> None:
    told = []

    def note(sender: Any, task: dict[str, Any], **_: Any) -> None:
        told.append((sender, task))

    before = list(stoker_pre_enqueue.receivers)
    pre_enqueue.connect(note)
    try:
        task_id = async_task(f"{HERE}.add", 1, two=2, task_name="sum", group="g")
        inline = async_task(f"{HERE}.add", 1, sync=True)
    finally:
        pre_enqueue.disconnect(note)
    assert stoker_pre_enqueue.receivers == before, "it listens only while it has receivers"
    assert [task["id"] for _, task in told] == [task_id, inline]
    sender, task = told[0]
    assert sender == "django_q"
    assert (task["func"], task["args"], task["kwargs"]) == (f"{HERE}.add", (1,), {"two": 2})
    assert (task["name"], task["group"]) == ("sum", "g")
    assert task["started"] <= timezone.now()


def test_tasks_module_exports_the_models() -> None:
    assert tasks.Schedule is Schedule
    assert tasks.Task is Task


def test_waiting_jobs_are_ormq_rows() -> None:
    async_task(f"{HERE}.add", 1, task_name="first", cluster="slow")
    async_task(f"{HERE}.add", 2)
    assert OrmQ.objects.count() == 2
    row = OrmQ.objects.get(key="slow")
    assert (row.name(), row.func(), row.lock) == ("first", f"{HERE}.add", None)
    assert (row.args(), row.kwargs(), row.q_options()) == ((1,), {}, {"cluster": "slow"})
    assert OrmQ.objects.filter(key="slow").delete()[0] == 1
    assert OrmQ.objects.count() == 1
    assert drain().succeeded[0].args[1] == [[2], {}]


def test_broker_counts_and_purges_its_own_queue() -> None:
    slow = get_broker("slow")
    for _ in range(2):
        async_task(f"{HERE}.add", 1, broker=slow)
    async_task(f"{HERE}.add", 1)
    assert (slow.queue_size(), slow.lock_size(), queue_size(slow)) == (2, 0, 2)
    assert slow.ping()
    assert slow.info().startswith("orm://")
    assert slow.purge_queue() == 2
    assert (slow.queue_size(), get_broker().queue_size()) == (0, 1)


def test_task_rows_can_be_created_and_deleted() -> None:
    """They behave like rows of any model."""
    Task.objects.create(name="by hand", func="a.b", args=(1,), result={"x": 1}, success=True)
    row = Task.objects.get(name="by hand")
    assert (row.args, row.result) == ((1,), {"x": 1})
    assert Task.get_result("by hand") == {"x": 1}
    assert Task.objects.filter(name="by hand").delete()[0] == 1


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_task_is_enqueued_at_commit() -> None:
    """The task would otherwise run before the row that it needs is visible."""

    def send_msg(text: str, *, queue: bool = False) -> Any:
        return async_task(f"{HERE}.note", text) if queue else functions.note(text)

    with transaction.atomic():
        send_msg("paid", queue=True)
        assert functions.done == []
    with transaction.atomic():
        send_msg("never", queue=True)
        transaction.set_rollback(True)
    drain()
    assert functions.done == [(("paid",), {})]


def test_arguments_are_shown_by_the_names_of_the_function_without_secrets() -> None:
    secret = "correct horse"
    for path, args, line in (
        (f"{HERE}.sign_in", ("anna", secret), "name='anna', password=[withheld]"),
        ("no.such.function", ("anna", secret), "argument 1=[withheld], argument 2=[withheld]"),
    ):
        job = Job.objects.get(pk=async_task(path, *args, token=secret))
        call = opened_call(settings_for(), bytes(job.package))
        assert call is not None
        assert call.label == f"{line}, token=[withheld]"
        assert secret not in str(call)
        revealed = opened_call(settings_for(), bytes(job.package), reveal=True)
        assert revealed is not None
        assert secret in revealed.label
