"""Reporters are loaded by name, cost nothing if there are none, and cannot harm jobs."""

import os
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
import sentry_sdk
from django.test import override_settings

from stoker import signals
from stoker.conf import read_settings
from stoker.exceptions import ConfigurationError
from stoker.reporters import desk as loading
from stoker.reporters import sentry
from stoker.reporters.base import Reporter
from stoker.reporters.desk import HOOKS, MOST_WAITING, Mailbox, check_reporters
from stoker.setting_values import NamedReporter

from tests.app import tasks

pytestmark = pytest.mark.unit

HERE = __name__


class Diary(Reporter):
    """Records its calls."""

    told: list[Any] = []
    never_waits = True

    def __init__(self, *, page: int = 1) -> None:
        self.page = page

    def begin(self, role: str) -> None:
        self.told.append((role, self.page))

    def on_enqueue(self, task: Any, job_id: Any, metadata: dict[str, str]) -> None:
        metadata["trace"] = "abc"
        raise RuntimeError("no ink")


class Other(Diary):
    """Another reporter."""


class Alerts(Reporter):
    queue_name = "alerts"


class NoReporter:
    """A class that is no reporter."""


@pytest.fixture
def diary() -> list[Any]:
    Diary.told.clear()
    return Diary.told


def with_reporters(value: Any) -> Any:
    entry = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"REPORTERS": value}}
    return override_settings(TASKS={"default": entry})


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "stoker"]


@pytest.mark.parametrize(
    ("name", "facts", "sentence"),
    [
        ("jobs_rescued", {"count": 1}, "1 job was taken over from a cluster that is gone."),
        (
            "jobs_rescued",
            {"count": 2000},
            "2,000 jobs were taken over from a cluster that is gone.",
        ),
        ("records_wait", {"count": 1}, "1 outcome waits for rows that other transactions have"),
        (
            "cluster_buried",
            {"count": 1, "name": "shop", "host": "a"},
            "Cluster shop on a is gone; 1 of its leases is freed.",
        ),
    ],
)
def test_log_line_about_one_is_in_the_singular(
    name: str, facts: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "stoker"):
        signals.tell(name, **facts)
    assert told(caplog)[-1].startswith(sentence)


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["sentry", {"sentry": None}, ["sentry", 1], {"": {}}, {"x": {"a b": 1}}, 1]
)
def test_invalid_reporters_setting_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="REPORTERS"):
        read_settings("default", {"OPTIONS": {"REPORTERS": value}})


def test_reporters_are_read_with_and_without_options() -> None:
    settings = read_settings("default", {"OPTIONS": {"REPORTERS": ["sentry"]}})
    assert settings.reporters == (NamedReporter("sentry", {}),)
    settings = read_settings("default", {"OPTIONS": {"REPORTERS": {"a.B": {"page": 2}}}})
    assert settings.reporters == (NamedReporter("a.B", {"page": 2}),)
    assert hash(settings)


# -- loading --------------------------------------------------------------------------------------


def test_dotted_path_loads_a_reporter_with_options() -> None:
    diary = loading.load("default", NamedReporter(f"{HERE}.Diary", {"page": 3}))
    assert isinstance(diary, Diary)
    assert diary.page == 3


def test_entry_point_name_loads_a_reporter(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("diary", f"{HERE}:Diary", loading.GROUP)
    monkeypatch.setattr(loading, "entry_points", lambda group: [point])
    assert isinstance(loading.load("default", NamedReporter("diary")), Diary)
    with pytest.raises(ConfigurationError, match=r"'dairy'.*write one of diary, opentelemetry"):
        loading.load("default", NamedReporter("dairy"))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("nobody", {}, "is not the name of a reporter"),
        ("no.such.module", {}, "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}.Nobody", {}, "cannot be imported: ImportError"),
        (f"{HERE}.NoReporter", {}, "not a subclass of stoker.reporters.base.Reporter"),
        (f"{HERE}.Diary", {"pages": 1}, "does not take its options: TypeError"),
    ],
)
def test_unloadable_reporter_fails_the_check_and_harms_no_other(
    name: str, options: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    with with_reporters({name: options, f"{HERE}.Other": {}}):
        (message,) = check_reporters()
        assert message.id == "stoker.E010"
        assert sentence in message.msg
        assert 'TASKS["default"]["OPTIONS"]["REPORTERS"]' in message.msg
        assert any(sentence in line for line in told(caplog))
        assert signals.pre_enqueue.receivers, "the other reporter is connected"
    assert check_reporters() == []


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollbar", None)
    monkeypatch.delitem(sys.modules, "stoker.reporters.rollbar", raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install 'django-stoker\[rollbar\]'"):
        loading.load("default", NamedReporter("rollbar"))


@pytest.mark.parametrize(
    ("name", "init", "others"),
    [
        ("sentry", "sentry_sdk.init", {"dsn": "https://a@sentry.example.com/2"}),
        ("rollbar", "rollbar.init", {"access_token": "two"}),
    ],
)
def test_backends_with_different_options_of_one_sdk_are_refused(
    name: str, init: str, others: dict[str, Any]
) -> None:
    """The SDK belongs to the process, so all reports would go to one of the projects."""
    same = {**dict.fromkeys(others, "https://a@sentry.example.com/1"), "environment": "tests"}
    given: list[Any] = [same, {**same, "report_retries": True}, {**same, **others}, {}]
    tasks = {
        alias: {
            "BACKEND": "stoker.backend.StokerBackend",
            "OPTIONS": {"CLUSTER": alias, "REPORTERS": {name: options}},
        }
        for alias, options in zip(("default", "alike", "other", "plain"), given, strict=True)
    }
    with mock.patch(init) as called, override_settings(TASKS=tasks):
        (message,) = check_reporters()
        assert message.id == "stoker.E010"
        assert 'TASKS["other"]' in message.msg
        assert 'TASKS["default"]' in message.msg
        assert next(iter(others)) in message.msg
        assert "environment" not in message.msg
        assert "example.com" not in message.msg
    assert all(call.kwargs == called.call_args.kwargs for call in called.call_args_list)


def test_options_of_one_sdk_that_differ_only_in_objects_are_accepted() -> None:
    tasks = {
        alias: {
            "BACKEND": "stoker.backend.StokerBackend",
            "OPTIONS": {
                "CLUSTER": alias,
                "REPORTERS": {
                    "sentry": {
                        "dsn": "https://a@sentry.example.com/1",
                        "integrations": [object()],
                        "before_send": lambda event, _: event,
                    }
                },
            },
        }
        for alias in ("default", "other")
    }
    with mock.patch("sentry_sdk.init") as called, override_settings(TASKS=tasks):
        assert check_reporters() == []
    assert called.call_count == len(tasks)


def test_reporters_own_attribute_queue_name_is_not_checked() -> None:
    """It may be the name of a queue elsewhere."""
    backend = {
        "BACKEND": "stoker.backend.StokerBackend",
        "QUEUES": ["default"],
        "OPTIONS": {"REPORTERS": {f"{HERE}.Alerts": {}}},
    }
    with override_settings(TASKS={"default": backend}):
        assert check_reporters() == []


def test_sentrys_event_processor_is_added_once() -> None:
    with mock.patch("sentry_sdk.init"):
        for _ in range(3):
            loading.load("default", NamedReporter("sentry"))
    known = sentry_sdk.get_global_scope()._event_processors
    assert known.count(sentry._leave_out_told) == 1


# -- at the desk ----------------------------------------------------------------------------------


def test_no_reporter_connects_no_signal() -> None:
    with with_reporters([]):
        for signal in HOOKS.values():
            assert not [one for one in signal.receivers if "Desk" in repr(one)]
    script = (
        "import sys, django; django.setup();"
        "print([m for m in sys.modules if m.startswith('stoker.reporters.')])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "['stoker.reporters.logs']"


def test_only_overridden_hooks_are_connected(diary: list[Any]) -> None:
    with with_reporters([f"{HERE}.Diary"]):
        signals.post_spawn.send(None, role="worker", number=0, backend="default")
        signals.post_spawn.send(None, role="worker", number=0, backend="another")
        assert diary == [("worker", 1)]
        assert not [one for one in signals.pre_execute.receivers if "Desk" in repr(one)]


def test_failing_hook_is_reported_once_and_its_metadata_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with with_reporters([f"{HERE}.Diary"]):
        for _ in range(3):
            metadata: dict[str, str] = {}
            call = {"task": tasks.add, "args": (1, 2), "kwargs": {}, "job_id": uuid4()}
            signals.pre_enqueue.send(None, **call, metadata=metadata)
            assert metadata == {"trace": "abc"}
    (line,) = [line for line in told(caplog) if "no ink" in line]
    assert "on_enqueue" in line


def test_slow_flush_does_not_delay_the_exit() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def flush(_: Reporter, seconds: float) -> None:
        begun.set()
        go_on.wait(3600)

    with with_reporters([f"{HERE}.Diary"]), mock.patch.object(Diary, "flush", flush):
        signals.pre_exit.send(None, seconds=0.05)  # returns, else this test hangs
        assert begun.wait(120)
        go_on.set()


# -- the mailbox ----------------------------------------------------------------------------------


def test_reports_are_sent_in_order_by_another_thread() -> None:
    mailbox, sent = Mailbox("test"), []
    for number in range(10):
        mailbox.put(lambda number=number: sent.append((number, threading.current_thread())))  # type: ignore[misc] # bound now
    mailbox.flush(120)
    assert [number for number, _ in sent] == list(range(10))
    assert {thread.name for _, thread in sent} == {"stoker-test"}


def test_reporter_that_ends_its_thread_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    class Leaving(Reporter):
        told: list[Any] = []

        def on_failure(self, failure: Any) -> None:
            self.told.append(failure)
            sys.exit("no more")

    seat = loading.LoadedReporter("leaving", Leaving())
    for number in range(2):
        seat.send("on_failure", number)
    seat.flush(120)
    assert Leaving.told == [0, 1]
    assert [line for line in told(caplog) if "SystemExit: no more" in line]


def test_full_mailbox_drops_and_logs_reports(caplog: pytest.LogCaptureFixture) -> None:
    mailbox, go_on, sent = Mailbox("test"), threading.Event(), []
    mailbox.put(lambda: go_on.wait(600))
    for _ in range(MOST_WAITING + 30):
        mailbox.put(lambda: sent.append(1))
    assert mailbox.dropped >= 29
    mailbox.flush(0.01)
    assert not sent, "flush() waits no longer than its limit"
    go_on.set()
    mailbox.flush(120)
    assert len(sent) + mailbox.dropped == MOST_WAITING + 30
    assert [line for line in told(caplog) if "1 report was dropped" in line]
    assert len([line for line in told(caplog) if "dropped" in line]) == 2


def test_forked_child_has_its_own_mailbox() -> None:
    mailbox, go_on = Mailbox("test"), threading.Event()
    mailbox.put(lambda: go_on.wait(600))
    mailbox.put(lambda: None)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        mailbox.put(lambda: os.write(writer, b"sent"))
        mailbox.flush(120)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"sent"
    go_on.set()
