"""What is kept of tasks: rows, signals, save limits, pickles."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db.models.signals import post_save
from django.dispatch import Signal
from django.test import override_settings

from stoker.brokers.adapters import broker_for
from stoker.cluster.callbacks import Callbacks
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.contrib.django_q import conf, recording, signals
from stoker.contrib.django_q.models import Task
from stoker.contrib.django_q.recording import prune
from stoker.contrib.django_q.tasks import (
    async_iter,
    async_task,
    fetch,
    fetch_cached,
    result,
    result_cached,
    schedule,
)
from stoker.jobs.package import sealer_for
from stoker.models import Job
from stoker.operations.details import opened_call
from stoker.signals import call_project_with
from stoker.tasks.arguments import HIDDEN, hidden_pattern, shown_call
from stoker.tasks.registry import task_of
from stoker.testing import drain
from stoker.values.pickles import nothing_unpickled

from tests.contrib.django_q import functions
from tests.contrib.django_q.test_schedules import fire
from tests.integration.work import work_off

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"


@contextmanager
def heard(signal: Signal, **connect: Any) -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    def note(**given: Any) -> None:
        found.append(given)

    signal.connect(note, weak=False, **connect)
    yield found
    signal.disconnect(note, **connect)


def test_signals_are_sent_for_each_step() -> None:
    with (
        heard(signals.pre_enqueue) as enqueued,
        heard(signals.pre_execute) as begun,
        heard(signals.post_execute_in_worker) as ended,
        heard(signals.post_execute) as recorded,
    ):
        task_id = async_task(f"{HERE}.add", 1, two=2, task_name="sum")
        assert (enqueued[0]["task"]["name"], enqueued[0]["task"]["args"]) == ("sum", (1,))
        drain()
    assert begun[0]["func"] is functions.add
    assert begun[0]["task"]["id"] == task_id
    assert ended[0]["task"]["result"] == 3
    assert recorded[0]["task"]["success"]
    assert recorded[0]["task"]["result"] == 3
    assert recorded[0]["task"]["kwargs"] == {"two": 2}
    assert [len(one) for one in (enqueued, begun, ended, recorded)] == [1, 1, 1, 1]


def test_receiver_that_raises_is_ignored() -> None:
    def raising(**_: Any) -> None:
        raise ZeroDivisionError

    everything = (signals.pre_enqueue, signals.pre_execute, signals.post_execute)
    for signal in everything:
        signal.connect(raising)
    post_save.connect(raising, sender=Task)
    task_id = async_task(f"{HERE}.add", 1)
    drain()
    for signal in everything:
        signal.disconnect(raising)
    post_save.disconnect(raising, sender=Task)
    assert result(task_id) == 1


def test_slow_receivers_do_not_delay_cached_results(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, are_seen = threading.Event(), []

    def wait_and_look(task: dict[str, Any], **_: Any) -> None:
        are_seen.append(result_cached(task["id"]))
        may_end.wait()

    is_kept = [threading.Event(), threading.Event()]
    put = recording.keep

    def keep(row: Task, seconds: float) -> None:
        put(row, seconds)
        is_kept[row.open_values().result].set()

    monkeypatch.setattr(recording, "keep", keep)
    monkeypatch.setattr(recording, "CACHE_SECONDS", 60.0)
    callbacks = Callbacks(lambda: None)
    call_project_with(callbacks.put)
    signals.post_execute.connect(wait_and_look)
    try:
        ids = [async_task(f"{HERE}.add", number, cached=True) for number in (0, 1)]
        drain()
        assert all(one.wait(60) for one in is_kept)
        assert [result_cached(one) for one in ids] == [0, 1]
    finally:
        may_end.set()
        callbacks.close(60)
        call_project_with(None)
        signals.post_execute.disconnect(wait_and_look)
    assert sorted(are_seen) == [0, 1], "a receiver can read the result"


def test_receivers_wait_once_for_a_cache_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise their queue would be full, and would slow down the process that records."""
    waits: list[float | None] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0)

    puts: list[Callable[[], object]] = []
    tells: list[Callable[[], object]] = []
    monkeypatch.setattr(recording, "threading", SimpleNamespace(Event=Event))
    call_project_with(lambda _, call, is_apart: (puts if is_apart else tells).append(call))
    try:
        with heard(signals.post_execute) as recorded:
            for number in range(3):
                async_task(f"{HERE}.add", number, cached=True)
            drain()
            tells[0]()
            tells[1]()
            assert (len(recorded), len(waits)) == (2, 1)
            puts[0]()
            tells[2]()
            assert (len(recorded), len(waits)) == (3, 2), "the cache has answered again"
            puts[1]()
    finally:
        call_project_with(None)


def test_receivers_and_caches_cannot_block_the_process_that_records() -> None:
    """The monitor makes such calls in a separate thread."""
    calls: list[Callable[[], object]] = []
    call_project_with(lambda _, call, __: calls.append(call))
    try:
        with heard(signals.post_execute) as recorded, heard(post_save, sender=Task) as saved:
            async_task(f"{HERE}.add", 1)
            cached = async_task(f"{HERE}.add", 2, cached=True)
            drain()
            assert (recorded, saved, fetch_cached(cached)) == ([], [], None)
            for call in calls:
                call()
            assert [len(recorded), len(saved), result_cached(cached)] == [2, 1, 2]
    finally:
        call_project_with(None)


@override_settings(Q_CLUSTER={"name": "default", "save_limit": 2})
def test_upkeep_prunes_and_recording_does_not() -> None:
    for number in range(4):
        async_task(f"{HERE}.add", number)
    drain()
    assert Task.objects.count() == 4
    settings = conf.settings()
    Upkeep(Plan(), settings, broker_for(settings), lambda: None).run()
    assert sorted(row.result for row in Task.objects.all()) == [2, 3]


@override_settings(Q_CLUSTER={"name": "default", "save_limit": 2})
def test_calls_in_this_process_prune_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(recording, "_next_at", 0.0)
    for number in range(4):
        async_task(f"{HERE}.add", number, sync=True)
    assert sorted(row.result for row in Task.objects.all()) == [2, 3]


def test_post_save_is_sent_for_recorded_tasks() -> None:
    with heard(post_save, sender=Task) as saved:
        async_task(f"{HERE}.add", 1)
        drain()
    assert [one["instance"].result for one in saved] == [1]


def test_failing_task_row_does_not_fail_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(recording, "task_row", fail)
    async_task(f"{HERE}.add", 1)
    drain()
    assert Job.objects.using(recording.conf.database()).get().status == "SUCCESSFUL"
    assert "could not be shown as a Task" in caplog.text


@override_settings(Q_CLUSTER={"name": "default", "save_limit": 3})
def test_save_limit_keeps_the_newest_successes() -> None:
    for number in range(5):
        async_task(f"{HERE}.fail_on", number, -1)
        async_task(f"{HERE}.fail", ack_failure=True)
    drain()
    assert prune(conf.settings()) == 2
    assert sorted(row.result for row in Task.objects.filter(success=True)) == [2, 3, 4]
    assert Task.objects.filter(success=False).count() == 5


@override_settings(Q_CLUSTER={"name": "default", "save_limit": 1, "save_limit_per": "group"})
def test_save_limit_per_group_counts_each_group() -> None:
    for number in range(6):
        async_task(f"{HERE}.add", number, group=f"g{number % 2}")
    drain()
    prune(conf.settings())
    assert sorted(row.result for row in Task.objects.all()) == [4, 5]


def run_without_hooks() -> None:
    """Run the waiting tasks but not their hooks, and delete what upkeep may prune meanwhile."""
    work_off(conf.settings())
    Task.objects.all().delete()
    Job.objects.using(conf.database()).exclude(status=None).delete()


@override_settings(Q_CLUSTER={"name": "default", "save_limit": 1})
@pytest.mark.usefixtures("each_serializer")
def test_hooks_get_the_task_after_its_row_and_job_were_pruned() -> None:
    ids = [async_task(f"{HERE}.add", n, two=0.5, hook=f"{HERE}.hook_whole") for n in (1, 2)]
    run_without_hooks()
    drain()
    found = {row.id: (row.args, row.kwargs, row.result, row.success) for row in functions.done}
    assert found == {
        ids[0]: ([1], {"two": 0.5}, 1.5, True),
        ids[1]: ([2], {"two": 0.5}, 2.5, True),
    }
    assert all(row.func == f"{HERE}.add" and row.time_taken() >= 0 for row in functions.done)


def test_hook_of_a_result_that_is_too_large_for_its_package_reads_the_row() -> None:
    async_task(f"{HERE}.repeat", "x", 1 << 20, hook=f"{HERE}.hook", save=True)
    drain()
    assert [len(one[3]) for one in functions.done] == [1 << 20]


@pytest.mark.parametrize("length", [1, 1 << 20])
def test_hook_that_runs_late_gets_the_time_of_its_unsaved_task(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """The long result is not in the package of the hook, which then reads the job."""
    async_task(f"{HERE}.repeat", "x", length, hook=f"{HERE}.hook_whole", save=False)
    work_off(conf.settings())
    an_hour_later = SimpleNamespace(time=lambda: time.time() + 3600)
    monkeypatch.setattr("stoker.contrib.django_q.models.task.time", an_hour_later)
    drain()
    (row,) = functions.done
    assert len(row.result) == length
    assert 0 <= row.time_taken() < 600


def test_hook_of_an_unsaved_task_does_not_need_the_package_of_its_job() -> None:
    async_task(f"{HERE}.add", 1, hook=f"{HERE}.hook_whole", save=False)
    work_off(conf.settings())
    ended = Job.objects.using(conf.database()).exclude(status=None)
    ended.update(package=b"signed with a key that was removed")
    drain()
    assert [row.result for row in functions.done] == [1]


@pytest.mark.usefixtures("each_serializer")
def test_package_of_a_hook_shows_neither_arguments_nor_result() -> None:
    async_task(f"{HERE}.sign_in", "ben", "correct horse", token="battery", hook=f"{HERE}.hook")
    run_without_hooks()
    (job,) = Job.objects.using(conf.database())
    shown = opened_call(conf.settings(), bytes(job.package))
    assert shown is not None
    hidden = {name for name, value in shown.args[2].items() if value == HIDDEN}
    assert hidden == {"args", "kwargs", "result"}
    assert "correct horse" not in str(shown)
    assert "battery" not in str(shown)


@override_settings(Q_CLUSTER={"name": "default", "save_limit": -1})
def test_negative_save_limit_keeps_no_success() -> None:
    async_task(f"{HERE}.add", 1)
    async_task(f"{HERE}.add", 2, save=True)
    drain()
    assert [row.result for row in Task.objects.all()] == [2]


class Parcel:
    """A value that only pickle can serialise."""

    opened_by: list[str] = []

    def __init__(self, content: int) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parcel) and other.content == self.content

    def __hash__(self) -> int:
        return hash(self.content)


@pytest.fixture
def pickled() -> Iterator[None]:
    tasks = {"default": {**settings.TASKS["default"]}}
    tasks["default"]["OPTIONS"] = {**tasks["default"]["OPTIONS"], "SERIALIZER": "pickle"}
    with override_settings(TASKS=tasks):
        yield


@pytest.fixture(params=["json", "pickle"])
def each_serializer(request: pytest.FixtureRequest) -> None:
    if request.param == "pickle":
        request.getfixturevalue("pickled")


@pytest.mark.usefixtures("pickled")
def test_pickle_serializer_passes_any_value() -> None:
    task_id = async_task(f"{HERE}.note", Parcel(7))
    whole = async_iter(f"{HERE}.note", [Parcel(1), Parcel(2)])
    schedule(f"{HERE}.note", 5)
    fire()
    drain()
    assert result(task_id) == (Parcel(7),)
    row = fetch(task_id)
    assert row is not None
    assert row.args == [Parcel(7)]
    assert result(whole) == [(Parcel(1),), (Parcel(2),)]
    assert ((5,), {}) in functions.done


@pytest.mark.usefixtures("pickled")
def test_secrets_among_pickled_arguments_are_hidden() -> None:
    async_task(f"{HERE}.sign_in", "ben", "correct horse", token="battery")
    package = sealer_for(conf.settings()).open(bytes(Job.objects.get().package))
    shown = shown_call(package, conf.settings().redact)
    assert shown.args[-1] == [["ben", HIDDEN], {"token": HIDDEN}]
    pattern = hidden_pattern(task_of(package), package, conf.settings().redact)
    assert pattern.sub(HIDDEN, "ben: correct horse, battery") == f"ben: {HIDDEN}, {HIDDEN}"


@pytest.mark.usefixtures("pickled")
def test_pickled_arguments_are_hidden_where_nothing_is_unpickled() -> None:
    async_task(f"{HERE}.sign_in", "ben", "correct horse")
    package = sealer_for(conf.settings()).open(bytes(Job.objects.get().package))
    with nothing_unpickled():
        shown = shown_call(package, conf.settings().redact)
    assert shown.args[-1] == [[HIDDEN], {}]


def test_doctor_finds_no_fault() -> None:
    """Jobs of Django Q's API are ordinary jobs."""
    async_task(f"{HERE}.add", 1, hook=f"{HERE}.hook")
    async_iter(f"{HERE}.add", [1, 2])
    async_task(f"{HERE}.add", 1, sync=True)
    drain()
    told = StringIO()
    call_command("stoker", "doctor", stdout=told)
    assert "No guarantee is broken" in told.getvalue()
