"""The log of a cluster: its handlers, levels and format."""

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.utils.log import DEFAULT_LOGGING

from stoker.cluster.console import Console, PlainLines, log_to_console
from stoker.compat import TASKS_APP
from stoker.jobs.running import current
from stoker.json_lines import JsonLines

from tests.unit.running import make_running

pytestmark = pytest.mark.unit

NAMES = ("", "stoker", "stoker.jobs", TASKS_APP, "django", "shop", "till")


@contextmanager
def fresh_loggers() -> Iterator[None]:
    """Set up loggers as in a project without logging, without pytest's handlers."""
    loggers = [logging.getLogger(name) for name in NAMES]
    kept = [(one.handlers[:], one.level, one.propagate) for one in loggers]
    hooks = sys.excepthook, threading.excepthook
    for logger in loggers:
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET if logger.name != "root" else logging.WARNING)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook = hooks
        for logger, (handlers, level, propagate) in zip(loggers, kept, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)


def enabled(name: str, level: int) -> bool:
    return logging.getLogger(name).isEnabledFor(level)


@fresh_loggers()
def test_log_goes_to_standard_error_without_configuration() -> None:
    log_to_console("WARNING")
    log_to_console("WARNING")
    (handler,) = logging.root.handlers
    assert isinstance(handler, Console)
    assert handler.stream is sys.stderr
    assert logging.getLogger("stoker").level == logging.WARNING


@fresh_loggers()
def test_logging_of_the_project_is_kept() -> None:
    own = logging.NullHandler()
    logging.root.addHandler(own)
    log_to_console("DEBUG", as_json=True)
    assert logging.root.handlers == [own]
    assert enabled("stoker", logging.DEBUG)
    logging.getLogger("stoker").setLevel(logging.ERROR)
    log_to_console("DEBUG")
    assert logging.getLogger("stoker").level == logging.ERROR


@fresh_loggers()
def test_record_handled_by_a_logger_of_the_project_is_written_once() -> None:
    logging.getLogger("shop").addHandler(logging.StreamHandler())
    logging.getLogger("till").addHandler(logging.NullHandler())  # as libraries do
    log_to_console("INFO")
    (console,) = logging.root.handlers
    for name, is_written in (("shop", False), ("shop.orders", False), ("till", True)):
        record = logging.getLogger(name).makeRecord(name, 30, "", 0, "sold", (), None)
        assert bool(console.filter(record)) is is_written


@pytest.mark.parametrize(
    ("level", "is_terminal", "are_shown"),
    [
        ("DEBUG", False, True),
        ("INFO", True, True),
        ("INFO", False, False),
        ("WARNING", True, False),
    ],
)
@fresh_loggers()
def test_job_lines_are_shown_on_terminals_or_at_level_debug(
    monkeypatch: pytest.MonkeyPatch, level: str, is_terminal: bool, are_shown: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    log_to_console(level)
    assert enabled("stoker.jobs", logging.INFO) is are_shown


@fresh_loggers()
def test_level_of_job_lines_set_by_the_project_is_kept() -> None:
    logging.getLogger("stoker.jobs").setLevel(logging.INFO)
    log_to_console("INFO")
    assert enabled("stoker.jobs", logging.INFO)


@fresh_loggers()
def test_failed_tasks_are_not_mailed_by_djangos_default_logging() -> None:
    assert "mail_admins" in DEFAULT_LOGGING["loggers"]["django"]["handlers"]
    log_to_console("INFO")
    assert not enabled(TASKS_APP, logging.ERROR)


@fresh_loggers()
def test_djangos_lines_about_tasks_follow_the_projects_level() -> None:
    logging.getLogger(TASKS_APP).setLevel(logging.INFO)
    log_to_console("INFO")
    assert enabled(TASKS_APP, logging.INFO)


@fresh_loggers()
def test_djangos_console_handler_gets_the_same_format() -> None:
    handler, formed = logging.StreamHandler(), logging.StreamHandler()
    formed.setFormatter(own := logging.Formatter("%(message)s"))
    logging.getLogger("django").handlers[:] = [handler, formed]
    log_to_console("INFO", as_json=True)
    assert isinstance(handler.formatter, JsonLines)
    assert formed.formatter is own


@fresh_loggers()
def test_warnings_and_unhandled_errors_become_records(caplog: pytest.LogCaptureFixture) -> None:
    log_to_console("INFO", as_json=True)
    logging.root.addHandler(caplog.handler)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        warnings.warn("old and grey", UserWarning, stacklevel=1)
    error = ValueError("nobody caught it")
    sys.excepthook(ValueError, error, None)
    thread = threading.Thread(target=int, args=("seven",))
    thread.start()
    thread.join()
    told = [(record.name, record.exc_info and record.exc_info[0]) for record in caplog.records]
    assert told == [
        ("py.warnings", None),
        ("stoker.python", ValueError),
        ("stoker.python", ValueError),
    ]


@fresh_loggers()
def test_lines_of_the_project_begin_with_their_job() -> None:
    running = make_running("shop.tasks.send")
    record = logging.getLogger("shop").makeRecord("shop", 30, "", 0, "no %s", ("stamp",), None)
    lines = PlainLines("%(message)s")
    assert lines.format(record) == "no stamp"
    token = current.set(running)
    try:
        assert lines.format(record) == f"shop.tasks.send[{running.short_id}] no stamp"
        record.stoker_event = "put_back"
        assert lines.format(record) == "no stamp"
    finally:
        current.reset(token)


def test_control_characters_of_a_record_are_written_as_escapes() -> None:
    record = logging.getLogger("shop").makeRecord(
        "shop", 30, "", 0, "%s", ("\x1b[2J\u202e\x9b",), None
    )
    assert PlainLines("%(message)s").format(record) == "\\x1b[2J\\u202e\\x9b"
    assert "\x9b" not in JsonLines().format(record)
