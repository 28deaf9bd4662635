"""What a worker gathers of the lines of its jobs."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace
from typing import Any, ClassVar, TextIO, cast
from uuid import UUID

import pytest
from django.test import override_settings

from stoker.conf import read_settings, settings_for
from stoker.exceptions import TaskCancelled, TaskTimeout
from stoker.jobs.running import current
from stoker.logs import capture as capture_module
from stoker.logs.capture import CHUNK_CHARACTERS, LINE_CHARACTERS, Capture, Printed
from stoker.setting_values import LogKeeping

from tests.app.wordy import log_secrets
from tests.unit.running import make_running

pytestmark = pytest.mark.unit


@pytest.fixture
def capture() -> Capture:
    settings = read_settings("default", {"OPTIONS": {}})
    return Capture(settings, LogKeeping(max_lines=5, max_bytes=20_000))


@pytest.fixture
def job(capture: Capture) -> Iterator[Any]:
    """A job that this thread runs."""
    with gathered(capture, "1234", "hunter22", 7) as job:
        yield job


@contextmanager
def gathered(capture: Capture, *args: Any) -> Iterator[Any]:
    """Run a job with these arguments in this thread."""
    job = make_running("tests.app.wordy.log_secrets", 2, calls=log_secrets, args=args)
    capture.begin(job)
    token = current.set(job)
    yield job
    current.reset(token)


def taken(capture: Capture) -> list[str]:
    return [line[3] for _, _, lines in capture.take() for line in json.loads(lines)]


def test_record_that_project_code_made_fails_no_job(
    capture: Capture, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fields may have any type, or be missing."""
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    root.addHandler(logging.NullHandler())
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", StringIO())
    capture.install()
    for fields in ({}, {"name": 7, "levelname": 8}, {"created": "yesterday"}):
        root.handle(logging.makeLogRecord({"levelno": 40, "msg": "seen", **fields}))
    assert taken(capture)[:2] == ["seen", "seen"]


def test_missing_output_stays_missing(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has none if the descriptors were closed at its start. print() allows that."""
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.INFO))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    capture.install()
    print("lost")
    assert (sys.stdout, sys.stderr) == (None, None)


def test_lines_without_a_job_are_not_gathered(capture: Capture) -> None:
    capture.put(1.5, "INFO", "shop", "nobody's")
    capture.put_printed("stdout", "nobody's\n")
    assert capture.take() == []


def test_line_is_packed_with_job_and_attempt(capture: Capture, job: Any) -> None:
    capture.put(1.5, "INFO", "shop", "one\ntwo")
    ((job_id, attempt, lines),) = capture.take()
    assert (UUID(bytes=job_id), attempt) == (job.delivery.job_id, 2)
    assert json.loads(lines) == [[1500, "INFO", "shop", "one\ntwo"]]
    assert capture.take() == []


def test_printed_text_without_a_line_feed_is_kept_until_the_end(capture: Capture, job: Any) -> None:
    for text in ("a", "b\nc\n", "", "d"):
        capture.put_printed("stdout", text)
    capture.put_printed("stderr", "e\n")
    assert taken(capture) == ["ab", "c", "e"]
    capture.end(job.delivery.job_id)
    assert taken(capture) == ["d"]


def test_progress_bar_is_one_line(capture: Capture, job: Any) -> None:
    for percent in range(0, 101, 50):
        capture.put_printed("stderr", f"\r{percent} %")
    capture.put_printed("stderr", "\n")
    assert taken(capture) == ["100 %"]


def test_long_lines_are_shortened_and_parts_without_line_feed_do_not_pile_up(
    capture: Capture, job: Any
) -> None:
    capture.put(1, "INFO", "shop", "x" * (LINE_CHARACTERS + 1000))
    capture.put_printed("stdout", "y" * (LINE_CHARACTERS + 1))
    first, second = taken(capture)
    assert "(1000 characters left out)" in first
    assert second.startswith("yyy")


def test_lines_after_the_bound_are_dropped_and_counted(capture: Capture, job: Any) -> None:
    for number in range(8):
        capture.put(1, "INFO", "shop", str(number))
    capture.end(job.delivery.job_id)
    assert taken(capture) == ["0", "1", "2", "3", "4", "3 more lines were dropped."]
    capture.put(1, "INFO", "shop", "late")
    assert taken(capture) == []


def test_unsent_lines_are_bounded(
    capture: Capture, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "MOST_WAITING", 2)
    for number in range(4):
        capture.put(1, "INFO", "shop", str(number))
    capture.end(job.delivery.job_id)
    assert taken(capture) == ["0", "1", "2 more lines were dropped."]


def test_large_logs_are_cut_into_rows(job: Any) -> None:
    settings = read_settings("default", {"OPTIONS": {}})
    capture = Capture(settings, LogKeeping(max_lines=100, max_bytes=10**6))
    capture.begin(job)
    for _ in range(10):
        capture.put(1, "INFO", "shop", "z" * LINE_CHARACTERS)
    sizes = [len(lines) for _, _, lines in capture.take()]
    assert len(sizes) == 3
    assert max(sizes) < CHUNK_CHARACTERS + 1000


def test_unstorable_characters_are_escaped(capture: Capture, job: Any) -> None:
    capture.put(1, "INFO", "shop", "\x00 \ud800")
    assert taken(capture) == ["\\x00 \\ud800"]


def test_hidden_arguments_are_hidden(capture: Capture, job: Any) -> None:
    capture.put(1, "INFO", "shop", "1234 and hunter22, order 7")
    assert taken(capture) == ["[withheld] and [withheld], order 7"]


def test_printed_secret_of_several_lines_is_hidden(capture: Capture) -> None:
    key = "-- KEY --\r\n  abcd\nef\n-- END --"
    with gathered(capture, "1234", key, 7):
        capture.put_printed("stdout", f"{key}\n")
        assert taken(capture) == ["[withheld]", "  [withheld]", "ef", "[withheld]"]
        capture.put(1, "INFO", "shop", key)
        assert taken(capture) == ["[withheld]"]


def test_hidden_argument_that_the_task_removes_is_hidden(capture: Capture) -> None:
    with gathered(capture, "1234", "hunter22", {"api_key": "tok-4711"}) as job:
        key = job.package.args[2].pop("api_key")
        capture.put(1, "INFO", "shop", f"using {key}")
        assert taken(capture) == ["using [withheld]"]


class Bomb:
    """An argument that can be unpickled only the first time."""

    is_lit: ClassVar[BaseException | None] = None

    def __reduce__(self) -> Any:
        return Bomb.make, ()

    @staticmethod
    def make() -> Any:
        if Bomb.is_lit is not None:
            raise Bomb.is_lit
        return Bomb()


@contextmanager
def gathered_pickle(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    """Run a job whose package raises this error if it is opened again."""
    options = {"SERIALIZER": "pickle"}
    tasks = {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}
    with override_settings(TASKS=tasks):
        settings = settings_for("default")
        capture = Capture(settings, LogKeeping())
        with gathered(capture, "1234", "hunter22", Bomb()):
            monkeypatch.setattr(Bomb, "is_lit", error)
            yield capture


def test_line_of_a_job_whose_package_cannot_be_opened_again_is_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gathered_pickle(ValueError("the row is gone"), monkeypatch) as capture:
        capture.put(1, "INFO", "shop", "1234 and order 7")
        assert taken(capture) == ["[withheld] and order 7"]


@pytest.mark.parametrize("error", [TaskTimeout("late"), TaskCancelled("stop")])
def test_request_to_end_while_the_hidden_arguments_are_read_reaches_the_task(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gathered_pickle(error, monkeypatch) as capture:
        with pytest.raises(type(error)):
            capture.put(1, "INFO", "shop", "one")
        monkeypatch.undo()
        capture.put(1, "INFO", "shop", "two of 1234")
        assert taken(capture) == ["two of [withheld]"]


def test_secret_at_the_limit_of_a_line_is_hidden(capture: Capture, job: Any) -> None:
    before = "x" * (LINE_CHARACTERS // 2 - 4)
    capture.put(1, "INFO", "shop", f"{before}hunter22{'y' * LINE_CHARACTERS}")
    (line,) = taken(capture)
    assert "hunt" not in line


@pytest.fixture
def log(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A logger whose records a capture gathers, and that a handler of the project gets, too."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=len))
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=len))
    theirs = Theirs()
    root.setLevel(logging.WARNING)
    root.addHandler(theirs)
    capture.install()
    yield logging.getLogger("shop.capture")
    root.setLevel(level)
    for handler in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(handler)
    for handler in handlers:
        handler.filters.clear()


class Theirs(logging.Handler):
    """A handler of the project."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


def test_records_are_gathered_from_the_level_on(
    capture: Capture, job: Any, log: logging.Logger
) -> None:
    log.debug("too detailed")
    log.info("order %s", 7)
    log.warning("order %s is late", 7)
    assert taken(capture) == ["order 7", "order 7 is late"]
    theirs = next(one for one in logging.getLogger().handlers if isinstance(one, Theirs))
    assert theirs.seen == ["order 7 is late"], "its records are what they were"


def test_stokers_own_events_are_not_gathered(
    capture: Capture, job: Any, log: logging.Logger
) -> None:
    log.warning("job_started", extra={"stoker_event": "job_started"})
    assert taken(capture) == []


def test_record_that_cannot_be_formatted_does_not_harm_the_job(
    capture: Capture, job: Any, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.info("order %d", cast("int", "seven"))
    log.info("next")
    assert taken(capture) == ["next"]


def test_printed_text_reaches_the_stream(capture: Capture, job: Any) -> None:
    stream = StringIO()
    printed = Printed(stream, "stdout", capture)
    print("one", file=cast("TextIO", printed))
    printed.writelines(["two\n", "three\n"])
    assert taken(capture) == ["one", "two", "three"]
    assert stream.getvalue() == "one\ntwo\nthree\n"
    assert not printed.isatty(), "everything else is the stream's"
