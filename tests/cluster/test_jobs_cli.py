"""``manage.py stoker jobs`` and ``stoker tasks``, and what all lists have in common."""

import json
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from stoker.models import Job, LogChunk
from stoker.testing import drain

from tests.app import payments
from tests.app.tasks import add, fail_unretried, nothing

pytestmark = pytest.mark.django_db(transaction=True)

WIDTH = 60


def told(*arguments: str, code: int = 0) -> str:
    output = StringIO()
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        call_command("stoker", *arguments, stdout=output, no_color=True)
    assert code == (ended.value.code if ended else 0)
    return output.getvalue()


def plain(*arguments: str, code: int = 0) -> Any:
    return json.loads(told(*arguments, "--json", code=code))


def test_list_searches_arguments_and_times() -> None:
    job = payments.plain.enqueue(4711, note="alice")
    payments.pay.enqueue(7, payments.IBAN)
    for given in (["note=alice"], ["4711"], ["alice", "--since", "2h"]):
        assert plain("jobs", "list", "--search", *given)["jobs"][0]["id"] == job.id
    assert not plain("jobs", "list", "--search", payments.IBAN)["jobs"]
    assert not plain("jobs", "list", "--until", "2h", "--node", "alpha")["jobs"]
    assert len(plain("jobs", "list", "--text", "payments.pay")["jobs"]) == 1
    with pytest.raises(CommandError, match="is not a time: write 2h"):
        told("jobs", "list", "--since", "soon")


def test_list_shows_states_and_pages() -> None:
    assert told("jobs", "list") == "No jobs. Enqueue one: manage.py stoker enqueue TASK\n"
    done, failed = add.enqueue(1, 2), fail_unretried.enqueue()
    drain()
    waiting = nothing.using(queue_name="mail", run_after=None).enqueue()
    text = told("jobs", "list")
    assert f"{done.id}  successful\n  tests.app.tasks.add\n  first=1, second=2\n  queue" in text
    assert f"{failed.id}  failed\n" in text
    assert f"{waiting.id}  ready\n  tests.app.tasks.nothing\n  queue mail, enqueued " in text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert told("jobs", "list", "--state", "blocked") == "No such jobs.\n"
    (job,) = plain("jobs", "list", "--state", "successful")["jobs"]
    assert (job["label"], job["args"], job["kwargs"]) == ("", ["1", "2"], {})
    assert [one["id"] for one in plain("jobs", "list", "--state", "failed")["jobs"]] == [failed.id]
    assert [one["id"] for one in plain("jobs", "list", "--queue", "mail")["jobs"]] == [waiting.id]
    first = plain("jobs", "list", "--limit", "2")
    second = plain("jobs", "list", "--limit", "2", "--after", first["next"])
    seen = [one["id"] for one in (*first["jobs"], *second["jobs"])]
    assert (sorted(seen), second["next"]) == (sorted([done.id, failed.id, waiting.id]), None)


def test_show_prints_call_result_timeline_and_errors() -> None:
    done, failed = add.enqueue(1, second=2), fail_unretried.enqueue()
    drain()
    text = told("jobs", "show", done.id)
    for part in ("tests.app.tasks.add", "first=1, second=2", "successful", "result            3"):
        assert part in text
    shown = plain("jobs", "show", done.id)
    assert (shown["args"], shown["kwargs"], shown["value"]) == (["1"], {"second": "2"}, "3")
    assert shown["life"][0]["kind"] == "enqueued"
    assert "  attempt 1 began\n" in text
    text = told("jobs", "show", failed.id)
    assert re.search(r"  attempt 1 failed after \d+ ms: 'not a connection error'\n", text)
    assert "KeyError: 'not a connection error'" in text
    (error,) = plain("jobs", "show", failed.id)["errors"]
    assert (error["number"], error["exception_class"]) == (1, "builtins.KeyError")
    with pytest.raises(CommandError, match="There is no job"):
        told("jobs", "show", str(uuid4()))
    with pytest.raises(CommandError, match="is not a job id"):
        told("jobs", "show", "seven")


def test_show_and_why_print_the_causes_of_waiting() -> None:
    job = add.enqueue(1, 2)
    Job.objects.update(enqueued_at=F("enqueued_at") - timedelta(seconds=100))
    drain()
    text = "1 min 4[0-9] s in the queue or with a busy worker"
    assert re.search(f"\nwaited            {text}\n", told("jobs", "show", job.id))
    assert re.search(f"\n  It waited {text}\\.\n", told("why", job.id))
    waits = plain("jobs", "show", job.id)["waits"]
    (cause,) = waits["causes"]
    assert (cause["cause"], cause["seconds"]) == ("queue", waits["seconds"])
    assert plain("why", job.id)["facts"]["waits"] == waits


def test_show_says_why_a_waiting_job_will_not_run() -> None:
    job = nothing.enqueue()
    text = told("jobs", "show", job.id)
    sentence = "No cluster of the backend 'default' is alive."
    assert f"\nWhy it is not running\n  {sentence}\n  Start one with `manage.py stoker run`" in text
    drain()
    assert "Why it is not running" not in told("jobs", "show", job.id)


def test_cancel_withdraws_waiting_jobs_only() -> None:
    done = add.enqueue(1, 2)
    drain()
    waiting = nothing.enqueue()
    answers = plain("jobs", "cancel", waiting.id, done.id, "seven", "--because", "twice", code=1)
    assert [one["is_done"] for one in answers["jobs"]] == [True, False, False]
    assert answers["jobs"][1]["sentence"] == "The job has ended already: SUCCESSFUL."
    row = Job.objects.get(pk=waiting.id)
    assert row.status == Job.Status.CANCELLED
    assert row.reason.endswith(": twice")


def test_run_enqueues_an_ended_job_again() -> None:
    done = add.enqueue(1, 2)
    drain()
    (answer,) = plain("jobs", "run", done.id)["jobs"]
    assert answer["is_done"]
    drain()
    assert add.get_result(answer["job_id"]).return_value == 3
    waiting = nothing.enqueue()
    (refused,) = plain("jobs", "run", waiting.id, code=1)["jobs"]
    assert not refused["is_done"]


def test_run_tells_new_jobs_also_if_another_is_refused(settings: Any) -> None:
    first, second = nothing.using(queue_name="mail").enqueue(), nothing.enqueue()
    drain()
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail"]}}
    made, refused = plain("jobs", "run", first.id, second.id, code=1)["jobs"]
    assert made["is_done"]
    assert Job.objects.filter(pk=made["job_id"]).exists()
    assert not refused["is_done"]
    assert "default" in refused["sentence"]


def test_change_moves_reschedules_and_edits_waiting_jobs() -> None:
    job = add.enqueue(1, 2)
    answers = plain(
        "jobs", "change", job.id, "--queue", "slow", "--priority", "50", "--args", "[3, 4]",
        "--hold", "--because", "wrong price",
    )["jobs"]  # fmt: skip
    assert [one["is_done"] for one in answers] == [True] * 4
    assert answers[-1]["sentence"].startswith("The job is held")
    drain()
    row = Job.objects.get(pk=job.id)
    assert (row.queue, row.priority, row.finished_at) == ("slow", 50, None)
    told("jobs", "change", job.id, "--now")
    drain()
    assert add.get_result(job.id).return_value == 7
    (refused,) = plain("jobs", "change", job.id, "--priority", "1", "--now", code=1)["jobs"]
    assert not refused["is_done"]


def test_changes_that_are_impossible_change_nothing() -> None:
    job = add.enqueue(1, 2)
    for change, sentence in (
        (["--args", "[1, 2, 3]"], "does not take these arguments"),
        (["--priority", "high"], "Write a priority between -100 and 100."),
        (["--run-after", "soon"], "soon"),
        (["--queue", ""], "queue"),
    ):
        (refused,) = plain("jobs", "change", job.id, *change, code=1)["jobs"]
        assert not refused["is_done"]
        assert sentence in refused["sentence"], refused
    for wrong, sentence in (([], "Name a change"), (["--now", "--hold"], "only one of")):
        with pytest.raises(CommandError, match=sentence):
            told("jobs", "change", job.id, *wrong)
    drain()
    assert add.get_result(job.id).return_value == 3


def test_tasks_lists_declared_and_executed_tasks() -> None:
    text = told("tasks")
    assert "tests.app.tasks.add\n  queue default, attempts" in text
    listed = {one["name"]: one for one in plain("tasks", "--since", "7d")["tasks"]}
    assert listed["tests.app.tasks.fail_unretried"]["options"]["max_attempts"] == 3
    assert listed["tests.app.tasks.fail_unretried"]["is_declared"]


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("clusters", "list"), "No cluster is running. Start one: manage.py stoker run\n"),
        (("workflows", "list"), "No workflows. Enqueue one: chain(...).enqueue()\n"),
        (("dead", "list"), "No dead letters.\n"),
    ],
)
def test_empty_list_prints_a_sentence(words: tuple[str, ...], hint: str) -> None:
    assert told(*words) == hint


def test_logs_shows_pages_of_lines() -> None:
    result = add.enqueue(1, 2)
    assert told("jobs", "logs", result.id).startswith("Log lines of jobs are not stored: set LOGS")
    lines = [(n, 1000 * n, "WARNING", "shop", f"line {n}") for n in range(3)]
    LogChunk.objects.create(
        job_id=result.id,
        attempt=2,
        lines=json.dumps([line[1:] for line in lines]),
        keep_until=datetime.now(UTC),
    )
    text = told("jobs", "logs", result.id, "--limit", "2").splitlines()
    assert text[0] == "[2] 00:00:00.000 WARNING shop: line 0"
    assert text[2].startswith("The next page: --after '")
    page = plain("jobs", "logs", result.id, "--limit", "2")
    rest = plain("jobs", "logs", result.id, "--after", page["next"])
    (line,) = rest["lines"]
    assert (line["attempt"], line["level"], line["source"], line["text"]) == (
        2, "WARNING", "shop", "line 2",
    )  # fmt: skip
    drain()
    followed = told("jobs", "logs", result.id, "--follow", "--json").splitlines()
    assert [json.loads(one)["text"] for one in followed] == ["line 0", "line 1", "line 2"]
    with pytest.raises(CommandError, match="--after: 'x' is not the mark"):
        told("jobs", "logs", result.id, "--after", "x")
    with pytest.raises(CommandError, match="There is no job"):
        told("jobs", "logs", str(uuid4()))
