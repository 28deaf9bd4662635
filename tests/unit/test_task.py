"""``@task`` and ``Task``: defining, changing, pickling."""

import copy
import math
import pickle
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import django
import pytest
from django.test import override_settings
from django.utils import timezone

from stoker.compat import TASKS_APP, DjangoTask, InvalidTask, TaskContext, is_task
from stoker.conf import settings_for
from stoker.exceptions import InvalidTaskOption, UnknownTask
from stoker.tasks.backoff import exponential
from stoker.tasks.decorator import Task, absent_task, option_fields, own_backends, task
from stoker.tasks.options import Changes, Options, options_of

pytestmark = pytest.mark.unit

OTHERS = {
    "default": {"BACKEND": "stoker.backend.StokerBackend", "QUEUES": []},
    "immediate": {"BACKEND": f"{TASKS_APP}.backends.immediate.ImmediateBackend", "QUEUES": []},
    "dummy": {"BACKEND": f"{TASKS_APP}.backends.dummy.DummyBackend", "QUEUES": []},
}


def function(number: int, name: str = "x") -> str:
    return name * number


async def later(number: int) -> int:
    return number


def with_context(context: TaskContext, number: int) -> int:
    return number


@task
def plain(number: int) -> int:
    return number


@task(priority=7, queue_name="mail", max_attempts=5, backoff=[1, 2], timeout=30, retry_on=OSError)
def full(number: int) -> int:
    return number


def test_bare_decorator_makes_a_task() -> None:
    assert isinstance(plain, Task)
    assert isinstance(plain, DjangoTask)
    assert is_task(plain)
    assert (plain.name, plain.module_path) == ("plain", f"{__name__}.plain")
    assert (plain.priority, plain.queue_name, plain.backend) == (0, "default", "default")


def test_decorator_sets_options() -> None:
    assert (full.priority, full.queue_name, full.max_attempts) == (7, "mail", 5)
    assert full.timeout == 30
    assert full.retry_on == (OSError,)
    assert full.backoff(OSError(), type("Result", (), {"attempts": 9})) == 2


def test_decorator_with_empty_parentheses_makes_a_task() -> None:
    assert task()(function) == task(function)


@pytest.mark.parametrize("decorate", [task, import_module(TASKS_APP).task])
def test_task_of_something_else_than_a_function_is_refused(decorate: Any) -> None:
    with pytest.raises(InvalidTask, match=r"^@task belongs on a function, not on 5\.$"):
        decorate(5)
    told = rf"^{plain.module_path} is a task already: write @task only once"
    with pytest.raises(InvalidTask, match=told):
        decorate(plain)


def test_task_is_called_only_through_call() -> None:
    assert not callable(plain)
    assert plain.call(3) == 3
    assert task(later).call(4) == 4


async def _acall() -> tuple[int, int]:
    return await plain.acall(5), await task(later).acall(6)


def test_acall_runs_sync_and_async_functions() -> None:
    from asgiref.sync import async_to_sync

    assert async_to_sync(_acall)() == (5, 6)


def test_djangos_decorator_makes_the_same_task() -> None:
    django_task = import_module(TASKS_APP).task
    assert type(django_task(function)) is Task
    if django.VERSION[:2] == (6, 0):
        with pytest.raises(TypeError):
            django_task(max_attempts=5)
    else:
        assert django_task(max_attempts=5, backoff=3)(function) == task(max_attempts=5, backoff=3)(
            function
        )


def test_djangos_decorator_refuses_unknown_options() -> None:
    with pytest.raises(TypeError, match=r"max_atempts"):
        import_module(TASKS_APP).task(max_atempts=5)(function)


def test_unknown_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        InvalidTaskOption, match=r"no option 'max_atempts'. Did you mean 'max_attempts'"
    ):
        task(max_atempts=5)
    with pytest.raises(InvalidTaskOption, match=r"no option 'queue'. Did you mean 'queue_name'"):
        plain.using(queue="mail")
    with pytest.raises(InvalidTaskOption, match=r"'max_retrys'. Did you mean 'max_attempts'"):
        plain.using(max_retrys=5)
    with pytest.raises(InvalidTaskOption, match=r"Known: .*max_attempts"):
        plain.using(zzz=1)


def test_repr_of_a_task_is_one_short_line() -> None:
    assert repr(plain) == f"<Task {__name__}.plain>"
    assert repr(plain.using(priority=3)) == repr(plain)


def test_run_after_in_the_decorator_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match=r"using\(run_after"):
        task(run_after=timezone.now())


@pytest.mark.parametrize("kind", ["immediate", "dummy"])
@override_settings(TASKS=OTHERS)
def test_options_have_no_effect_on_other_backends(kind: str) -> None:
    with override_settings(TASKS={"default": OTHERS[kind]}):
        made = task(max_attempts=5, timeout=3)(function)
        result = made.enqueue(2, name="ab")
        assert isinstance(made, Task)
        assert result.args == [2]
        if kind == "immediate":
            assert result.return_value == "abab"
        assert [r.kwargs for r in made.enqueue_many([((1,), {"name": "c"}), ((2,), {})])] == [
            {"name": "c"},
            {},
        ]


def test_lambda_is_refused() -> None:
    """Jobs of it would wait for a worker that has a task of that name, and become dead letters."""
    with pytest.raises(InvalidTask, match="write a function with def"):
        task(lambda: 1)


@override_settings(TASKS=OTHERS)
def test_delay_becomes_a_datetime_on_other_backends() -> None:
    made = task(backend="dummy")(function).using(run_after=60)
    before = timezone.now()
    result = made.enqueue(1)
    assert before < result.task.run_after - timedelta(seconds=59)
    with pytest.raises(InvalidTask):
        task(backend="immediate")(function).using(run_after=60).enqueue(1)


@override_settings(TASKS=OTHERS | {"broken": {"BACKEND": "no.such.Backend"}})
def test_own_backends_lists_only_stokers() -> None:
    assert list(own_backends()) == ["default"]


def test_using_changes_only_the_named_options() -> None:
    changed = full.using(priority=-3, timeout=timedelta(minutes=1))
    assert (changed.priority, changed.timeout) == (-3, 60)
    assert (changed.queue_name, changed.max_attempts, changed.func) == ("mail", 5, full.func)
    assert full.priority == 7


def test_using_without_changes_gives_an_equal_task() -> None:
    assert full.using() == full
    assert full.using(priority=None, queue_name=None, backend=None, run_after=None) == full


def test_using_none_resets_an_option() -> None:
    assert full.using(timeout=None, max_attempts=None).timeout is None


def test_run_after_accepts_a_datetime() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert plain.using(run_after=moment).run_after == moment


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_run_after_accepts_a_delay(delay: Any) -> None:
    changed = plain.using(run_after=delay)
    assert (changed.run_after, changed.run_after_seconds) == (None, 90.0)


@pytest.mark.parametrize("delay", [0, -5, -0.5, timedelta(seconds=-5)])
def test_delay_of_zero_or_less_means_now(delay: Any) -> None:
    changed = plain.using(run_after=60).using(run_after=delay)
    assert (changed.run_after, changed.run_after_seconds) == (None, None)


def test_last_run_after_in_using_takes_precedence() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert plain.using(run_after=5).using(run_after=moment).run_after_seconds is None
    assert plain.using(run_after=moment).using(run_after=5).run_after is None


@pytest.mark.parametrize("wrong", ["tomorrow", True, math.nan, math.inf, object()])
def test_invalid_run_after_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=r"run_after=.*write a datetime"):
        plain.using(run_after=wrong)


def test_naive_datetime_follows_use_tz() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - on purpose
    with override_settings(USE_TZ=True), pytest.raises(InvalidTask, match=r"aware"):
        plain.using(run_after=naive)
    with override_settings(USE_TZ=True), pytest.raises(InvalidTaskOption, match=r"aware"):
        plain.using(expires=naive)
    with override_settings(USE_TZ=False):
        assert plain.using(run_after=naive).run_after == naive
        assert plain.using(expires=naive).expires == naive


def test_using_another_backend_keeps_the_options() -> None:
    with override_settings(TASKS=OTHERS):
        assert full.using(backend="dummy").max_attempts == 5


@pytest.mark.parametrize("priority", [-101, 101, 1.5, math.nan, "high", None, True])
def test_invalid_priority_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidTask, match=r"whole number"):
        task(priority=priority)(function)


@pytest.mark.parametrize("queue_name", ["", None, 3, "x" * 101])
def test_invalid_queue_name_is_refused(queue_name: Any) -> None:
    with pytest.raises(InvalidTask, match=r"queue_name"):
        task(queue_name=queue_name)(function)


@override_settings(TASKS={"default": OTHERS["default"] | {"QUEUES": ["mail"]}})
def test_unknown_queue_is_refused() -> None:
    assert task(queue_name="mail")(function).queue_name == "mail"
    with pytest.raises(InvalidTask):
        task(queue_name="male")(function)


def test_function_outside_a_module_is_refused() -> None:
    def local() -> None: ...

    for thing in (local, lambda: None, print, Task):
        with pytest.raises(InvalidTask):
            task(thing)


def test_takes_context_without_a_context_parameter_is_refused() -> None:
    assert task(takes_context=True)(with_context).takes_context
    with pytest.raises(InvalidTask, match=r"context"):
        task(takes_context=True)(function)


def test_very_long_function_name_is_refused() -> None:
    def long() -> None: ...

    long.__qualname__ = long.__name__ = "x" * 250
    with pytest.raises(InvalidTask, match=r"longer than 255"):
        task(long)


def test_tasks_compare_and_hash_by_value() -> None:
    assert task(backoff=[1, 2])(function) == task(backoff=[1, 2])(function)
    assert hash(task(backoff=[1, 2])(function)) == hash(task(backoff=(1, 2))(function))
    assert task(max_attempts=2)(function) != task(function)
    with pytest.raises(AttributeError):
        plain.priority = 5  # type: ignore[misc]


@pytest.mark.parametrize("original", [plain, full, full.using(run_after=5, expires=60)])
def test_tasks_can_be_pickled_and_copied(original: Task) -> None:
    assert pickle.loads(pickle.dumps(original)) == original
    assert copy.copy(original) == original
    assert copy.deepcopy(original) == original


def test_pickled_task_that_no_longer_exists_is_reported() -> None:
    data = pickle.dumps(plain).replace(b"test_task.plain", b"test_task.plaim")
    with pytest.raises(UnknownTask, match=r"plaim"):
        pickle.loads(data)


def test_at_most_once_allows_one_attempt() -> None:
    once = task(at_most_once=True)(function)
    assert options_of(once, settings_for()).max_attempts == 1
    assert options_of(task(at_most_once=True, max_attempts=1)(function), settings_for())
    with pytest.raises(InvalidTaskOption, match=r"max_attempts=3: a task with at_most_once=True"):
        once.using(max_attempts=3)


def test_every_option_is_typed_for_type_checkers() -> None:
    names = {spec.name for spec in option_fields()}
    assert set(Options.__annotations__) == names, "add it to Options in tasks/options.py"
    stay_behind = {
        "backoff", "retry_on", "give_up_on", "atomic", "at_most_once", "dead_letters",
        "on_dead_letter", "exposed", "schedule", "describe", "redact",
    }  # fmt: skip
    of_django = {"priority", "queue_name", "backend", "run_after"}
    assert set(Changes.__annotations__) == (names - stay_behind) | of_django, (
        "an option that using() does not take belongs in stay_behind"
    )


def test_absent_task_has_a_name_but_cannot_be_called() -> None:
    absent = absent_task("shop.tasks.send", "other")
    assert is_task(absent)
    assert (absent.module_path, absent.name, absent.backend) == ("shop.tasks.send", "send", "other")
    with pytest.raises(UnknownTask, match=r"shop.tasks.send"):
        absent.call(1)


@pytest.mark.parametrize("path", ["", "x", "..", "no module.at all", "a.b.c.d"])
def test_absent_task_accepts_any_path(path: str) -> None:
    absent = absent_task(path)
    assert absent.module_path == path
    assert pickle.loads(pickle.dumps(absent)).module_path == path
    assert copy.deepcopy(absent) is absent
    assert path in repr(absent) or not path


def test_absent_task_cannot_be_enqueued() -> None:
    with pytest.raises(UnknownTask, match=r"no task 'shop.tasks.send'"):
        absent_task("shop.tasks.send").enqueue(1)


def test_task_stores_its_exponential_backoff() -> None:
    assert task(backoff=exponential(3))(function).backoff == exponential(3)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", r"write enqueue\(\.\.\.\)\.$"),
        ("apply_async", "run_after and queue_name"),
        ("apply", r"write call\(\.\.\.\)\.$"),
        ("dely", "no attribute 'dely'$"),
    ],
)
def test_method_of_celery_raises_with_stokers_equivalent(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(task(function), name)
