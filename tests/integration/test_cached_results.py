"""Results in a cache: which are cached, which stay in the store, and a cache that fails."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.cache import cache
from django.core.checks import run_checks
from django.test import override_settings

from stoker import group
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.jobs import cached_results
from stoker.jobs.cached_results import keep
from stoker.jobs.results import fetch, fetch_many
from stoker.models import Attempt, DeadLetter, Job
from stoker.signals import event
from stoker.store.written import moment

from tests.app import atomic as atomic_tasks
from tests.app.models import Account
from tests.app.tasks import add, fail, succeed_at
from tests.cluster.clusters import wait_for
from tests.integration.work import work_off, work_off_when_due

BACKEND = "stoker.backend.StokerBackend"
REDIS = "django.core.cache.backends.redis.RedisCache"
MEMCACHED = "django.core.cache.backends.memcached.PyMemcacheCache"

pytestmark = pytest.mark.django_db(transaction=True)


def caches_at(backend: str, location: str) -> dict[str, Any]:
    return {
        "default": {"BACKEND": backend, "LOCATION": location, "KEY_PREFIX": uuid.uuid4().hex[:12]}
    }


def tasks(**options: Any) -> dict[str, Any]:
    options = {"RESULTS": "cache:default", **options}
    return {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}


@pytest.fixture(
    params=[
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("memcached", marks=pytest.mark.memcached),
    ]
)
def _cached(request: pytest.FixtureRequest) -> Iterator[None]:
    url = os.environ[f"STOKER_TEST_{request.param.upper()}_URL"]
    location = url if request.param == "redis" else urlsplit(url).netloc
    backend = REDIS if request.param == "redis" else MEMCACHED
    with override_settings(CACHES=caches_at(backend, location), TASKS=tasks()):
        yield
    cached_results._asked_again_at.clear()


@pytest.fixture
def events() -> Iterator[list[str]]:
    """Collect the names of the events that are sent."""
    names: list[str] = []

    def note(sender: Any, name: str, **_: Any) -> None:
        names.append(name)

    event.connect(note)
    yield names
    event.disconnect(note)
    cached_results._asked_again_at.clear()


@pytest.mark.postgres
@pytest.mark.usefixtures("_cached")
class TestCachedResult:
    def test_cached_success_has_the_same_fields_as_a_stored_one(self) -> None:
        result = add.enqueue(20, second=22)
        assert work_off() == 1
        assert not Job.objects.exists()
        assert result.wait(timeout=0) == 42
        later = add.get_result(result.id)
        for one in (result, later):
            assert (one.status, one.state, one.return_value) == ("SUCCESSFUL", "SUCCESSFUL", 42)
            assert (one.attempts, one.worker_ids, one.errors) == (1, ["worker 1"], [])
            assert one.enqueued_at <= one.started_at <= one.finished_at
        assert (later.args, later.kwargs) == ([20], {"second": 22})
        assert later.task.module_path == add.module_path

    def test_result_of_atomic_task_is_cached(self) -> None:
        account = Account.objects.create()
        result = atomic_tasks.add.enqueue(account.pk)
        work_off()
        account.refresh_from_db()
        assert (result.wait(timeout=0), account.total) == (account.pk, 1)
        assert not Job.objects.exists()

    def test_result_deleted_from_cache_does_not_exist(self) -> None:
        result = add.enqueue(1, 2)
        work_off()
        # Not all of the cache: that would be all of a Redis that others use, too.
        assert cache.delete(cached_results._key(uuid.UUID(result.id)))
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    def test_cached_result_expires(self) -> None:
        with override_settings(TASKS=tasks(KEEP_RESULTS={"successful_seconds": 1})):
            results: list[Any] = []

            def is_there() -> bool:
                """Memcached counts in seconds of its own clock: a result may expire at once."""
                results[:] = [add.enqueue(1, 2)]
                work_off()
                return bool(fetch_many(settings_for(), [results[0].id]))

            wait_for(is_there)
            wait_for(lambda: not fetch_many(settings_for(), [results[0].id]))


@pytest.mark.postgres
@pytest.mark.usefixtures("_cached")
class TestStoredResult:
    def test_failed_job_stays_in_store_with_dead_letter(self) -> None:
        result = fail.using(max_attempts=1).enqueue("no")
        work_off()
        assert Job.objects.get().status == "FAILED"
        assert DeadLetter.objects.count() == 1
        result.refresh()
        assert result.state == "FAILED"

    def test_success_after_failed_attempts_stays_in_store(self) -> None:
        result = succeed_at.enqueue(2)
        work_off()
        work_off_when_due()
        assert Job.objects.get().status == "SUCCESSFUL"
        assert Attempt.objects.count() == 1
        result.refresh()
        assert (result.state, len(result.errors)) == ("SUCCESSFUL", 1)

    def test_workflow_steps_stay_in_store(self) -> None:
        result = group(add.s(1, 2), add.s(3, 4)).enqueue()
        work_off()
        assert Job.objects.filter(status="SUCCESSFUL").count() == 2
        assert result.wait(timeout=10) == [3, 7]

    def test_row_in_store_wins_over_late_cache_entry(self) -> None:
        result = add.enqueue(1, 2)
        (row,) = Job.objects.all()
        row.status, row.value, row.finished_at = "SUCCESSFUL", None, moment(time.time())
        assert keep(settings_for(), [row]) == {row.pk}
        assert fetch(settings_for(), result.id).state == "READY"


@pytest.mark.sqlite
class TestBadCache:
    @pytest.fixture(autouse=True)
    def _is_not_asked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cached_results, "PAUSE_SECONDS", 3600.0)

    def test_unreachable_cache_leaves_results_in_store(self, events: list[str]) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            location = f"redis://127.0.0.1:{unused.getsockname()[1]}/0"
            with override_settings(CACHES=caches_at(REDIS, location), TASKS=tasks()):
                self._assert_results_stay_in_store()
                with pytest.raises(TaskResultDoesNotExist):
                    add.get_result(str(uuid.uuid4()))
        assert events.count("results_not_cached") == 1  # the cache is not used again at once
        assert "results_not_read" in events

    def test_silent_cache_leaves_results_in_store(
        self, events: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cached_results, "MOST_SECONDS", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            location = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
            with override_settings(CACHES=caches_at(REDIS, location), TASKS=tasks()):
                self._assert_results_stay_in_store()
        assert events.count("results_not_cached") == 1

    def _assert_results_stay_in_store(self) -> None:
        results = [add.enqueue(1, 2), add.enqueue(3, 4)]
        assert work_off() == 2
        assert Job.objects.filter(status="SUCCESSFUL").count() == 2
        assert [result.wait(timeout=10) for result in results] == [3, 7]
        add.enqueue(5, 6)
        assert work_off() == 1


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("backend", "name", "sentence"),
    [
        ("django.core.cache.backends.locmem.LocMemCache", "default", "no other process sees it"),
        ("django.core.cache.backends.dummy.DummyCache", "default", "it keeps nothing"),
        ("django.core.cache.backends.filebased.FileBasedCache", "default", "on one host"),
        (REDIS, "results", "no cache of that name"),
    ],
)
def test_unsuitable_cache_is_reported_by_check(backend: str, name: str, sentence: str) -> None:
    options = {"RESULTS": f"cache:{name}"}
    with override_settings(CACHES=caches_at(backend, "/tmp"), TASKS=tasks(**options)):
        (found,) = [one for one in run_checks() if one.id == "stoker.E011"]
    assert sentence in found.msg


@pytest.mark.sqlite
@pytest.mark.parametrize("value", ["cache", "cache:", "default", None, 1])
def test_invalid_results_setting_is_reported_by_check(value: Any) -> None:
    with override_settings(TASKS=tasks(RESULTS=value)):
        assert any(one.id == "stoker.E001" for one in run_checks())
