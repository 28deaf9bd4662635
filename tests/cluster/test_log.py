"""What a cluster writes to standard error if the project sets up no logging."""

import json
import os
from typing import Any

import pytest

from tests.app.tasks import add, ask_for_retry, fail_unretried, log_a_line, warn
from tests.cluster.clusters import (
    DJANGO,
    WAIT_SECONDS,
    environment_of_commands,
    run_command,
    start_command,
    wait_for,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


def drain(*arguments: str) -> str:
    done = run_command("stoker", "run", "--drain", *arguments, WORKERS=1)
    assert done.returncode == 0, done.stderr
    return done.stderr


def lines_of(log: str) -> list[dict[str, Any]]:
    """The lines of a log in JSON: each has to be an object."""
    return [json.loads(line) for line in log.splitlines()]


def test_json_lines_name_task_and_job_from_start_to_end() -> None:
    result = add.enqueue(1, 2)
    lines = lines_of(drain("--log-json", "-v", "2"))
    of_job = [line for line in lines if line.get("job_id") == result.id]
    assert [line["event"] for line in of_job] == ["job_started", "job_ended"]
    assert {line["task"] for line in of_job} == {"tests.app.tasks.add"}
    assert {line["attempt"] for line in of_job} == {1}
    assert of_job[1]["outcome"] == "succeeded"
    assert 0 <= of_job[1]["seconds"] < WAIT_SECONDS
    assert result.id[-12:] in of_job[0]["message"]
    assert result.id[-12:] in of_job[1]["message"]


def test_each_failed_attempt_is_one_line_with_its_traceback() -> None:
    final, again = fail_unretried.enqueue(), ask_for_retry.enqueue(3600)
    lines = lines_of(drain("--log-json"))
    failed = {line["job_id"]: line for line in lines if line.get("event") == "attempt_failed"}
    assert {*failed} == {final.id, again.id}
    assert {line["level"] for line in failed.values()} == {"WARNING"}
    assert "in fail_unretried\n    raise" in failed[final.id]["exception"]
    assert "The job has ended" in failed[final.id]["message"]
    assert "in ask_for_retry" in failed[again.id]["exception"]
    assert "The next attempt is in 3600.0 s" in failed[again.id]["message"]
    # Nothing repeats it, except the one line with the outcome of the job.
    others = [line for line in lines if "exception" in line and line not in failed.values()]
    assert others == []
    dead = [line for line in lines if line["level"] == "ERROR"]
    assert [(line["event"], line["job_id"]) for line in dead] == [("dead_lettered", final.id)]
    assert dead[0]["message"].endswith(": error: builtins.KeyError: 'not a connection error'.")


def test_json_log_includes_python_warnings_and_lines_of_tasks() -> None:
    logged, warned = log_a_line.enqueue("mind the gap"), warn.enqueue("old and grey")
    lines = lines_of(drain("--log-json"))
    (own,) = (line for line in lines if line["message"] == "mind the gap")
    assert (own["job_id"], own["task"]) == (logged.id, "tests.app.tasks.log_a_line")
    (warning,) = (line for line in lines if "old and grey" in line["message"])
    assert (warning["job_id"], warning["logger"]) == (warned.id, "py.warnings")


def test_successful_jobs_are_not_logged_without_a_terminal() -> None:
    result, logged, failed = (
        add.enqueue(1, 2),
        log_a_line.enqueue("mind the gap"),
        fail_unretried.enqueue(),
    )
    log = drain()
    assert result.id[-12:] not in log
    assert f"tests.app.tasks.log_a_line[{logged.id[-12:]}] mind the gap" in log
    assert f"tests.app.tasks.fail_unretried[{failed.id}] failed after" in log
    assert log.count("Traceback (most recent call last)") == 1


def test_jobs_are_shown_on_a_terminal() -> None:
    result = add.enqueue(1, 2)
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", 0) as seen, os.fdopen(theirs, "wb", 0) as terminal:
        os.set_blocking(ours, False)
        arguments = ["stoker", "run", "--drain"]
        process = start_command(
            DJANGO, arguments, environment_of_commands(WORKERS=1), terminal, terminal
        )
        text = b""

        def has_ended() -> bool:
            nonlocal text
            text += seen.read(65536) or b""
            return process.poll() is not None

        wait_for(has_ended)
        text += seen.read(65536) or b""
    assert f"tests.app.tasks.add[{result.id[-12:]}] started, attempt 1".encode() in text
    assert f"tests.app.tasks.add[{result.id[-12:]}] succeeded in ".encode() in text
