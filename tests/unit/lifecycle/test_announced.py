"""Signals and results that are built only if a receiver is connected."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from django.dispatch import Signal
from django.utils import timezone, translation

from stoker.brokers.contract import Delivery
from stoker.compat import TASKS_APP, task_signals
from stoker.conf import settings_for
from stoker.jobs import outcomes
from stoker.jobs.attempt_signals import PUBLIC, are_signals_heard
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted
from stoker.jobs.package import JobOptions, Package, sealer_for
from stoker.jobs.running import Running, is_heard
from stoker.signals import attempt_failed
from stoker.values.ids import new_job_id

from tests.app import tasks

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Turn Django's log lines about tasks off, like most projects."""
    logger = logging.getLogger(TASKS_APP)
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


def delivery_of(task: Any, *args: Any, **options: Any) -> Delivery:
    job_id, options_of_job = new_job_id(), JobOptions(**{"max_attempts": 1, **options})
    package = Package(job_id, task.module_path, args, {}, "default", 0, 0.0, options_of_job)
    return Delivery(job_id, 1, sealer_for(settings_for()).seal(package), "default", 0, 1)


def run(task: Any, *args: Any, **options: Any) -> Attempted:
    return Executor(settings_for(), worker_id="me").run(delivery_of(task, *args, **options))


def run_on_loop(task: Any, *args: Any, **options: Any) -> Attempted:
    executor = Executor(settings_for(), worker_id="me")
    opened = executor.open(delivery_of(task, *args, **options))
    assert not isinstance(opened, Attempted)
    return asyncio.run(executor.run_opened_async(opened))


@contextmanager
def connected(signal: Signal, receiver: Any) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.mark.parametrize("signal", PUBLIC)
def test_connected_receiver_gets_the_signal(signal: Any) -> None:
    assert not is_heard(signal)
    heard = []

    def listen(task_result: Any, **_: Any) -> None:
        heard.append(task_result)

    signal.connect(listen)
    try:
        assert is_heard(signal)
        run(tasks.add, 1, 2)
    finally:
        signal.disconnect(listen)

    assert [result.args for result in heard] == [[1, 2]]
    assert not is_heard(signal)


@pytest.mark.parametrize("signal", PUBLIC)
def test_async_receiver_gets_the_signal_of_an_async_task(signal: Any) -> None:
    heard = []

    async def listen(task_result: Any, **_: Any) -> None:
        heard.append(task_result.args)

    with connected(signal, listen):
        attempted = run_on_loop(tasks.add_later, 1, 2)

    assert isinstance(attempted.outcome, outcomes.Succeeded)
    assert heard == [[1, 2]]


@pytest.mark.parametrize("signal", PUBLIC)
def test_receiver_for_an_async_task_may_use_the_orm(signal: Any) -> None:
    """Django refuses that in a thread with a running event loop."""
    heard = []

    def listen(**_: Any) -> None:
        heard.append(async_to_sync(asyncio.sleep)(0, "done"))

    with connected(signal, listen):
        run_on_loop(tasks.add_later, 1, 2)

    assert heard == ["done"]


def test_receiver_sees_the_error_of_an_async_task() -> None:
    heard = []

    def listen(task_result: Any, **_: Any) -> None:
        heard.append((sys.exc_info()[0], task_result.errors[0].traceback))

    with connected(task_signals.task_finished, listen):
        attempted = run_on_loop(tasks.add_later, "one", 2)

    assert isinstance(attempted.outcome, outcomes.Failed)
    ((kind, traceback),) = heard
    assert kind is TypeError
    assert traceback == attempted.outcome.fault.traceback
    assert "in_thread" not in traceback


@pytest.mark.parametrize("signal", PUBLIC)
@pytest.mark.parametrize(("start", "task"), [(run, tasks.add), (run_on_loop, tasks.add_later)])
def test_receiver_that_ends_its_thread_does_not_harm_the_job(
    start: Any, task: Any, signal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(**_: Any) -> None:
        sys.exit("not now")

    with connected(signal, listen):
        attempted = start(task, 1, 2)

    assert isinstance(attempted.outcome, outcomes.Succeeded)
    assert [r.getMessage() for r in caplog.records if "SystemExit('not now')" in r.getMessage()]


def test_replaced_receiver_is_noticed() -> None:
    assert not are_signals_heard()
    signal, djangos = task_signals.task_started, task_signals.log_task_started

    def listen(**_: Any) -> None: ...

    signal.disconnect(djangos)
    signal.connect(listen)
    try:
        assert len(signal.receivers) == 1
        assert are_signals_heard()
    finally:
        signal.disconnect(listen)
        signal.connect(djangos)
    assert not are_signals_heard()


def test_djangos_log_lines_are_written_at_level_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, TASKS_APP):
        run(tasks.add, 1, 2)

    assert len([record for record in caplog.records if record.name == TASKS_APP]) == 2


def test_failure_is_always_logged(caplog: pytest.LogCaptureFixture) -> None:
    run(tasks.fail_once)

    told = [(record.name, record.levelno) for record in caplog.records]
    assert told == [("stoker", logging.WARNING), (TASKS_APP, logging.ERROR)]


def test_result_has_the_arguments_before_the_task_changed_them() -> None:
    seen = []

    def listen(task_result: Any, **_: Any) -> None:
        seen.append(task_result.args)

    executor = Executor(settings_for(), worker_id="me")
    opened = executor.open(delivery_of(tasks.empty_and_fail, [1, 2]))
    assert not isinstance(opened, Attempted)
    task_signals.task_finished.connect(listen)
    try:
        attempted = executor.run_opened(opened)
    finally:
        task_signals.task_finished.disconnect(listen)

    assert isinstance(attempted.outcome, outcomes.Failed)
    assert seen == [[[1, 2]]]


def test_job_is_opened_on_the_event_loop_only_if_that_does_not_block() -> None:
    """To import a module, and to tell receivers that a job cannot be run, takes a thread."""
    heard = []

    def listen(failure: Any, **_: Any) -> None:
        heard.append(failure.reason)

    executor = Executor(settings_for(), worker_id="me")
    wanted, late = delivery_of(tasks.add, 1, 2), delivery_of(tasks.add, 1, 2, expires_at=1.0)
    with connected(attempt_failed, listen):
        assert executor.open_without_blocking(wanted) is None
        assert isinstance(executor.open(wanted), Running)
        assert isinstance(executor.open_without_blocking(wanted), Running)
        assert executor.open_without_blocking(late) is None
        assert executor.open_without_blocking(wanted._replace(package=b"unreadable")) is None
        assert heard == []
        executor.open(late)
        assert heard == ["expired"]


def test_language_and_time_zone_of_a_job_do_not_reach_the_next() -> None:
    """Its database connection does."""
    runs = [run(tasks.change_context, "de", "Asia/Tokyo") for _ in range(2)]
    values = []
    for one in runs:
        assert isinstance(one.outcome, outcomes.Succeeded)
        values.append(sealer_for(settings_for()).open_value(one.outcome.value))
    here = (translation.get_language(), timezone.get_current_timezone_name())
    assert values == [(*here, id(connections["default"]))] * 2
    assert here != ("de", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("start", "task", "outcome"),
    [
        (run, tasks.enqueue_what_cannot_be_kept, outcomes.Retried),
        (run, tasks.return_what_cannot_be_kept, outcomes.Failed),
        (run_on_loop, tasks.return_what_cannot_be_kept_async, outcomes.Failed),
    ],
)
def test_only_an_unserialisable_return_value_prevents_the_retry(
    start: Any, task: Any, outcome: type
) -> None:
    """The task may have had the same error with the values of other jobs."""
    attempted = start(task, max_attempts=2)
    assert isinstance(attempted.outcome, outcome)
    assert attempted.outcome.fault.exception_class == "stoker.exceptions.NotSerializable"
