"""Log records as JSON, one line each."""

import json
import logging
from typing import Any
from uuid import uuid4

import pytest

from stoker.jobs.running import current
from stoker.json_lines import JsonLines
from stoker.reporters.logs import put_into_words

from tests.unit.running import make_running

pytestmark = pytest.mark.unit


class Lines(logging.Handler):
    """Keeps the formatted lines."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def last(self) -> dict[str, Any]:
        assert "\n" not in self.lines[-1]
        told: dict[str, Any] = json.loads(self.lines[-1])
        return told


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.fixture
def lines() -> Any:
    handler = Lines()
    loggers = [logging.getLogger(name) for name in ("shop", "stoker")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_record_outside_a_job_has_no_job_fields(lines: Lines) -> None:
    logging.getLogger("shop").info("order %s\npaid", 7, extra={"order": 7, "who": uuid4()})
    told = lines.last()
    assert told["message"] == "order 7\npaid"
    assert (told["level"], told["logger"], told["order"]) == ("INFO", "shop", 7)
    assert told["time"].endswith("+00:00")
    assert isinstance(told["who"], str)
    assert not {"job_id", "task", "queue", "attempt", "event"} & {*told}


def test_record_inside_a_job_names_the_job(lines: Lines) -> None:
    running = make_running("shop.tasks.charge", 2)
    token = current.set(running)
    try:
        logging.getLogger("shop").warning("late", extra={"job_id": "mine"})
    finally:
        current.reset(token)
    told = lines.last()
    assert told["job_id"] == str(running.job_id), "the fields of the job take precedence"
    assert (told["task"], told["queue"], told["attempt"]) == ("shop.tasks.charge", "mail", 2)


def test_exception_and_failing_str_are_written(lines: Lines) -> None:
    try:
        int("no")
    except ValueError:
        logging.getLogger("shop").exception("failed", extra={"rude": Rude()})
    told = lines.last()
    assert told["exception"].startswith("Traceback")
    assert told["rude"] == "<its text could not be read: RuntimeError>"


def test_values_that_json_cannot_hold_are_written_as_text(lines: Lines) -> None:
    number = uuid4()
    around: list[Any] = []
    around.append(around)
    for value in ({number: 1}, {("a", 1): 2}, around, {number: Rude()}):
        logging.getLogger("shop").info("paid", extra={"order": value, "count": 3})
        told = lines.last()
        assert (told["message"], told["count"]) == ("paid", 3), "other values keep their type"
        assert isinstance(told["order"], str)
    logging.getLogger("shop").info("paid", extra={"order": {number: 1}})
    assert str(number) in lines.last()["order"]


def test_line_begins_with_the_time_and_ends_with_values_from_extra(lines: Lines) -> None:
    logging.getLogger("shop").info("paid", extra={"order": 7})
    assert list(lines.last()) == [
        "time", "level", "logger", "message", "process", "pid", "order"
    ]  # fmt: skip
    logging.getLogger("shop").info("paid", extra={"level": "high", "order": {(1, 2): 3}})
    told = lines.last()
    assert (next(iter(told)), told["level"], told["order"]) == ("time", "INFO", "{(1, 2): 3}")


def test_seconds_of_a_job_are_rounded_as_in_its_message(lines: Lines) -> None:
    facts = {"task": "shop.tasks.pay", "short_id": "01a1", "outcome": "failed", "attempt": 1}
    put_into_words("job_ended", {**facts, "seconds": 0.02866196632385254})
    told = lines.last()
    assert (told["outcome"], told["seconds"]) == ("failed", 0.029)
    assert "in 0.029 s" in told["message"]


def test_stoker_event_is_named(lines: Lines) -> None:
    put_into_words("cluster_stopped", {"name": "stoker"})
    assert lines.last()["event"] == "cluster_stopped"
