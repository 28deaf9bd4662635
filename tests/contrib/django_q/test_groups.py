"""Groups, chains and iterations of tasks."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.test import override_settings

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.contrib.django_q import results
from stoker.contrib.django_q.models import Task
from stoker.contrib.django_q.tasks import (
    Chain,
    Iter,
    async_chain,
    async_iter,
    async_task,
    count_group,
    count_group_cached,
    delete_cached,
    delete_group,
    delete_group_cached,
    fetch,
    fetch_cached,
    fetch_group,
    fetch_group_cached,
    result,
    result_cached,
    result_group,
    result_group_cached,
)
from stoker.exceptions import JobFailed
from stoker.jobs.outcomes import Attempted, Crashed
from stoker.jobs.record import finish
from stoker.testing import drain

from tests.contrib.django_q import functions
from tests.integration.work import claim, work_off

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"


def test_results_of_a_group_are_found_by_its_name() -> None:
    for number in range(4):
        async_task("math.sqrt", number * number, group="roots")
    assert result_group("roots") is None
    drain()
    assert count_group("roots") == 4
    assert sorted(result_group("roots") or []) == [0, 1, 2, 3]
    assert {row.func for row in fetch_group("roots")} == {"math.sqrt"}
    row = Task.objects.filter(group="roots").first()
    assert row is not None
    assert row.group_count() == 4
    assert sorted(row.group_result() or []) == [0, 1, 2, 3]


def test_failures_of_a_group_are_counted_but_not_in_its_results() -> None:
    for number in range(3):
        async_task(f"{HERE}.fail_on", number, 1, group="some", ack_failure=True)
    drain()
    assert count_group("some") == 3
    assert count_group("some", failures=True) == 1
    assert sorted(result_group("some") or []) == [0, 2]
    assert len(result_group("some", failures=True) or []) == 3
    assert len(fetch_group("some", failures=False)) == 2


def test_result_group_waits_for_the_given_count() -> None:
    async_task("math.sqrt", 4, group="roots")
    drain()
    assert result_group("roots", count=2) is None
    assert result_group("roots", count=1) == [2]


def test_result_group_returns_what_there_is_when_the_time_is_over() -> None:
    async_task("math.sqrt", 4, group="roots")
    async_task("math.sqrt", 4, group="cached", cached=60)
    assert result_group("roots", count=2, wait=1) is None
    drain()
    assert result_group("roots", count=2, wait=1) == [2]
    assert result_group_cached("cached", count=2, wait=1) == [2]


def test_delete_group_removes_the_name_or_the_tasks() -> None:
    for group in ("one", "two"):
        async_task("math.sqrt", 4, group=group)
    drain()
    assert delete_group("one") == 1
    assert Task.objects.count() == 2
    assert count_group("one") == 0
    assert delete_group("two", tasks=True) == (1, {"stoker_django_q.Task": 1})
    assert Task.objects.count() == 1


def test_cached_group_is_read_and_deleted() -> None:
    ids = [async_task("math.sqrt", number, group="cached", cached=60) for number in (1, 4)]
    async_task(f"{HERE}.fail", group="cached", cached=60, ack_failure=True)
    drain()
    assert count_group_cached("cached") == 3
    assert count_group_cached("cached", failures=True) == 1
    assert result_group_cached("cached", count=3) == [1, 2]
    assert len(fetch_group_cached("cached")) == 3
    assert delete_cached(ids[0])
    assert not delete_cached(ids[0])
    assert count_group_cached("cached") == 2
    assert delete_group_cached("cached") == 2
    assert count_group_cached("cached") is None
    assert fetch_cached(ids[1]) is None


@pytest.fixture
def large_cache() -> Iterator[None]:
    backend = "django.core.cache.backends.locmem.LocMemCache"
    with override_settings(
        CACHES={"default": {"BACKEND": backend, "OPTIONS": {"MAX_ENTRIES": 10_000}}}
    ):
        yield
        caches["default"].clear()


@pytest.fixture
def cache_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    class CountingCache:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(caches["default"], name)

    monkeypatch.setattr(results, "_cache", CountingCache)
    return calls


@pytest.fixture
def pass_seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock of the cache on."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: sum(now))
    return now.append


def keep_in_group(numbers: Iterable[int], seconds: float = 60) -> None:
    for number in numbers:
        row = Task(name=f"{number}", func="f", group="g", result=number, args=[], kwargs={})
        results.keep(row, seconds)


@pytest.mark.usefixtures("large_cache")
def test_number_of_cache_calls_does_not_grow_with_the_group(cache_calls: list[str]) -> None:
    keep_in_group(range(200))
    assert len(cache_calls) < 2000
    cache_calls.clear()
    assert sorted(result_group_cached("g") or []) == [*range(200)]
    assert len(cache_calls) < 50


@pytest.mark.usefixtures("large_cache")
def test_number_of_cache_calls_does_not_grow_with_the_expired_slots(
    monkeypatch: pytest.MonkeyPatch,
    cache_calls: list[str],
    pass_seconds: Callable[[float], None],
) -> None:
    monkeypatch.setattr(results, "PAGE", 5)
    for number in range(200):
        keep_in_group([number], 60)
        pass_seconds(10)
    assert len(cache_calls) < 2000
    cache_calls.clear()
    assert sorted(result_group_cached("g") or []) == [195, 196, 197, 198, 199]
    assert len(cache_calls) < 20
    assert delete_group_cached("g") == 5
    keep_in_group([200])
    assert result_group_cached("g") == [200]


@pytest.mark.usefixtures("large_cache")
def test_members_of_a_cached_group_outlive_the_expiry_of_shorter_ones(
    pass_seconds: Callable[[float], None],
) -> None:
    day = 86_400
    keep_in_group(range(120), 60)
    keep_in_group(range(120, 240), 7 * day)
    keep_in_group([240], 60)
    pass_seconds(3 * day)
    assert sorted(result_group_cached("g") or []) == [*range(120, 240)]
    keep_in_group([241], 60)
    pass_seconds(3 * day)
    assert sorted(result_group_cached("g") or []) == [*range(120, 240)]


@pytest.mark.usefixtures("large_cache")
def test_lost_counter_of_a_cached_group_is_made_anew_behind_its_members() -> None:
    keep_in_group(range(350))
    expired = [results._slot("g", slot) for slot in range(150)]
    caches["default"].delete_many([*expired[:50], *expired[51:], results._counter("g")])
    keep_in_group([350])
    assert sorted(result_group_cached("g") or []) == [50, *range(150, 351)]


@pytest.mark.usefixtures("large_cache")
def test_start_of_a_cached_group_remains_valid_without_its_counter(
    monkeypatch: pytest.MonkeyPatch, pass_seconds: Callable[[float], None]
) -> None:
    monkeypatch.setattr(results, "PAGE", 5)
    for number in range(40):
        keep_in_group([number], 60)
        pass_seconds(10)
    pass_seconds(60)
    caches["default"].delete(results._counter("g"))
    keep_in_group([40])
    assert result_group_cached("g") == [40]


@pytest.mark.usefixtures("large_cache")
def test_expired_slots_of_a_cached_group_do_not_hide_later_ones() -> None:
    keep_in_group(range(210))
    expired = [results._slot("g", slot) for slot in (0, *range(5, 205))]
    caches["default"].delete_many(expired)
    assert sorted(result_group_cached("g") or []) == [1, 2, 3, 4, 205, 206, 207, 208, 209]
    assert delete_group_cached("g") == 9
    assert count_group_cached("g") is None


@pytest.mark.usefixtures("large_cache")
def test_cached_group_of_an_earlier_version_is_read_and_continued() -> None:
    """It took the slots from 0 on, and had no counter."""
    keep_in_group(range(150))
    caches["default"].delete_many([results._counter("g"), results._start("g")])
    assert count_group_cached("g") == 150
    keep_in_group([150])
    caches["default"].set(results._counter("g"), 149, 60)  # it still runs, and has taken two slots
    keep_in_group([151])
    assert sorted(result_group_cached("g") or []) == [*range(152)]


def test_group_in_a_cache_that_keeps_nothing_is_empty(
    caplog: pytest.LogCaptureFixture, cache_calls: list[str]
) -> None:
    dummy = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    with override_settings(CACHES=dummy):
        keep_in_group([1])
        assert len(cache_calls) < 15
        assert count_group_cached("g") is None
    assert "could not be added" not in caplog.text


def test_group_in_a_cache_without_its_server_is_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache_calls: list[str]
) -> None:
    monkeypatch.setattr(LocMemCache, "incr", lambda *_args: None)
    keep_in_group([1])
    assert cache_calls.count("incr") == 1
    assert "could not be added to its group 'g'" in caplog.text


def test_chain_runs_its_steps_in_order() -> None:
    group = async_chain([(f"{HERE}.note", (1,)), (f"{HERE}.note", (2,), {"x": 1}), "math.nan"][:2])
    drain()
    assert functions.done == [((1,), {}), ((2,), {"x": 1})]
    assert count_group(group) == 2


def test_failed_step_ends_its_chain() -> None:
    group = async_chain(
        [(f"{HERE}.note", (1,)), (f"{HERE}.fail", (), {"ack_failure": True}), (f"{HERE}.note",)]
    )
    drain()
    assert functions.done == [((1,), {})]
    assert count_group(group) == 2
    assert count_group(group, failures=True) == 1


def test_chain_object_runs_the_appended_steps() -> None:
    chain = Chain()
    assert chain.append("math.copysign", 1, -1) == 1
    assert chain.append("math.floor", 1.5) == 2
    chain.run()
    assert chain.current() == 0
    assert chain.result() is None
    drain()
    assert chain.current() == 2
    assert chain.length() == 2
    assert chain.result() == [-1, 1]
    assert [row.func for row in chain.fetch()] == ["math.copysign", "math.floor"]


@pytest.mark.parametrize("cached", [None, 60])
def test_chain_that_gets_a_step_and_runs_again_has_only_its_new_results(cached: Any) -> None:
    chain = Chain([("math.floor", (1.5,)), ("math.floor", (2.5,))], cached=cached)
    chain.run()
    drain()
    assert chain.result() == [1, 2]
    chain.append("math.floor", 3.5)
    chain.run()
    assert chain.current() in (0, None)
    assert chain.result() is None
    drain()
    assert chain.result() == [1, 2, 3]


def test_cached_chain_has_results_in_the_cache() -> None:
    chain = Chain([("math.floor", (1.5,)), ("math.ceil", (1.5,))], cached=60)
    chain.run()
    drain()
    assert chain.result() == [1, 2]
    assert not Task.objects.exists()


def test_sync_chain_runs_at_once_and_raises() -> None:
    chain = Chain([("math.floor", (1.5,)), (f"{HERE}.fail",), (f"{HERE}.note",)], sync=True)
    assert chain.current() is None
    with pytest.raises(ValueError, match="out of order"):
        chain.run()
    assert functions.done == []
    chain = Chain([("math.floor", (1.5,)), ("math.ceil", (1.5,))], sync=True)
    chain.run()
    assert chain.current() == 2
    assert chain.result() == [1, 2]


def test_chain_option_runs_after_its_task() -> None:
    first = async_task(f"{HERE}.note", 1, chain=[(f"{HERE}.note", (2,))])
    drain()
    assert functions.done == [((1,), {}), ((2,), {})]
    assert result(first) == (1,)


def test_iteration_has_one_row_with_all_results() -> None:
    task_id = async_iter("math.floor", [1.5, 2.5, 3.5], hook=f"{HERE}.hook", task_name="floors")
    assert result(task_id) is None
    drain()
    assert result(task_id) == [1, 2, 3]
    row = fetch("floors")
    assert row is not None
    assert (row.id, row.func, row.args) == (task_id, "math.floor", [[1.5], [2.5], [3.5]])
    assert Task.objects.count() == 1
    assert functions.done == [(task_id, "floors", True, [1, 2, 3])]


def test_iteration_unpacks_tuples_as_arguments() -> None:
    task_id = async_iter("math.copysign", [(1, -1), (2, -2)])
    drain()
    assert result(task_id) == [-1, -2]


def test_iteration_passes_a_list_as_one_argument() -> None:
    async_iter(f"{HERE}.note", [[1, 2], [3, 4]])
    Iter(f"{HERE}.note", args=[[5, 6]]).run()
    drain()
    assert functions.done == [(([1, 2],), {}), (([3, 4],), {}), (([5, 6],), {})]


def test_empty_iteration_returns_an_empty_list() -> None:
    task_id = async_iter("math.floor", [])
    drain()
    assert result(task_id) == []


def test_failed_call_fails_the_iteration() -> None:
    task_id = async_iter(f"{HERE}.fail_on", [(1, 2), (2, 2)], ack_failure=True)
    drain()
    with pytest.raises(JobFailed, match="1 of 2 calls"):
        result(task_id)


@pytest.mark.parametrize("items", [[1.5, 2.5], []])
def test_iteration_collects_again_after_a_crash(items: list[float]) -> None:
    """The parts are still stored and are collected again, whatever `ack_failure` is."""
    task_id = async_iter("math.floor", items, ack_failure=True)
    settings = settings_for()
    if items:
        work_off(settings)
    (collecting,) = claim(settings)
    crashed = Crashed("its worker was killed", None, 9)
    finish(settings, broker_for(settings), [Attempted(collecting, crashed, "", None, time.time())])
    drain(include_deferred=True)
    assert result(task_id) == [1, 2][: len(items)]


def test_cached_iteration_has_its_result_in_the_cache() -> None:
    task_id = async_iter("math.floor", [1.5], cached=60)
    drain()
    assert result_cached(task_id) == [1]
    assert not Task.objects.exists()


def test_iteration_object_runs_the_appended_calls() -> None:
    calls = Iter("math.copysign")
    calls.append(1, -1)
    assert calls.append(2, -2) == 2
    calls.run()
    assert calls.result() is None
    drain()
    assert calls.result() == [-1, -2]
    assert calls.fetch().result == [-1, -2]
    assert calls.length() == 2


def test_sync_iteration_runs_at_once() -> None:
    calls = Iter("math.floor", args=[1.5, 2.5], sync=True)
    calls.run()
    assert calls.result() == [1, 2]
    assert drain() == []
