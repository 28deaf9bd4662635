"""Signals and results that are built only if a receiver is connected."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.brokers.contract import Delivery
from stoker.compat import TASKS_APP, task_signals
from stoker.conf import settings_for
from stoker.jobs import outcomes
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted
from stoker.jobs.package import JobOptions, Package, sealer_for
from stoker.jobs.running import are_signals_heard, is_heard
from stoker.signals import post_execute_in_worker, pre_execute
from stoker.values.ids import new_job_id

from tests.app import tasks

pytestmark = pytest.mark.unit

SIGNALS = [
    task_signals.task_started,
    task_signals.task_finished,
    pre_execute,
    post_execute_in_worker,
]


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Turn Django's log lines about tasks off, like most projects."""
    logger = logging.getLogger(TASKS_APP)
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


def delivery_of(task: Any, *args: Any) -> Delivery:
    job_id = new_job_id()
    options = JobOptions(max_attempts=1)
    package = Package(job_id, task.module_path, args, {}, "default", 0, 0.0, options)
    return Delivery(job_id, 1, sealer_for(settings_for()).seal(package), "default", 0, 1)


def run(task: Any, *args: Any) -> Attempted:
    return Executor(settings_for(), worker_id="me").run(delivery_of(task, *args))


@pytest.mark.parametrize("signal", SIGNALS)
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
