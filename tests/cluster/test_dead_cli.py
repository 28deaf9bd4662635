"""`manage.py stoker dead` in separate processes on the tests' database."""

import getpass
import json
import subprocess
from typing import Any

import pytest
from django.core.management import call_command

from stoker.models import DeadLetter, Ready

from tests.app import frail
from tests.app.tasks import add, fail_once
from tests.cluster.clusters import run_command
from tests.integration.letters import dead as died
from tests.integration.work import work_off

pytestmark = pytest.mark.django_db(transaction=True)

TASK = "tests.app.tasks.fail_once"


def dead(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return run_command("stoker", "dead", *arguments)


def dead_json(*arguments: str) -> dict[str, Any]:
    done = dead(*arguments, "--json")
    assert not done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def letters(number: int) -> list[str]:
    """Make this many dead letters and return their ids, oldest first."""
    fail_once.enqueue_many([((), {})] * number)
    assert work_off() == number
    return [
        str(pk)
        for pk in DeadLetter.objects.order_by("failed_at", "pk").values_list("pk", flat=True)
    ]


def assert_refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_dead_letter_is_listed_shown_requeued_discarded_and_purged() -> None:
    """In the order in which the help shows the subcommands."""
    assert dead("list").stdout == "No dead letters.\n"
    ids = letters(3)
    listed = dead("list", "--limit", "2").stdout
    assert ids[2] in listed
    assert "2 of 3 dead letters" in listed
    mark = listed.splitlines()[-1].partition("--after ")[2].strip("'")
    assert ids[0] in dead("list", "--after", mark).stdout
    assert "3 dead letters of 1 task in 1 queue; " in dead("stats").stdout
    shown = dead("show", ids[0]).stdout
    for part in (
        f"dead letter   {ids[0]} (open)",
        "reason            error\n",
        TASK,
        "failed        ",
        "Traceback (most recent",
    ):
        assert part in shown
    assert dead("requeue", "--task", TASK, "--dry-run").stdout == "3 would be requeued\n"
    assert not Ready.objects.exists()
    done = dead("requeue", ids[0], "--because", "it is mended")
    letter = DeadLetter.objects.get(pk=ids[0])
    said = f"1 requeued\n{ids[0]} continues as job {letter.successor_id}\n"
    assert (done.returncode, done.stdout) == (0, said)
    assert (letter.state, letter.last_requeued_by) == ("requeued", getpass.getuser())
    assert "it is mended" in dead("show", ids[0]).stdout
    again = dead("requeue", ids[0])
    assert again.returncode == 1
    assert "continues it already" in again.stdout
    assert dead("requeue", "--all", "--current-options").stdout == "2 requeued\n"
    assert work_off() == 3
    assert dead("list").stdout.count("2 times") == 3
    assert dead("discard", "--all", "--limit", "2").stdout == "2 discarded\n"
    assert dead("purge", "--older-than", "1d").stdout == "0 purged\n"
    assert dead("purge", "--older-than", "0s", "--state", "all", "--dry-run").stdout == (
        "3 would be purged\n"
    )
    assert dead("purge", "--older-than", "0s", "--state", "all").stdout == "3 purged\n"
    assert not DeadLetter.objects.exists()


def test_list_by_text_searches_arguments_and_gives_no_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is in an argument only, which the database cannot search."""
    letter = died(frail.fetch, "news", note="in a hurry")

    def told(*arguments: str) -> str:
        call_command("stoker", "dead", *arguments, no_color=True)
        return capsys.readouterr().out

    listed = told("list", "--text", "in a hurry")
    assert str(letter.pk) in listed
    assert listed.endswith("\n1 dead letter\n")
    shown = json.loads(told("list", "--text", "in a hurry", "--json"))
    assert ([one["id"] for one in shown["letters"]], shown["count"]) == ([str(letter.pk)], None)
    assert told("list", "--text", "at leisure") == "No dead letters.\n"
    assert told("requeue", "--text", "in a hurry", "--dry-run") == "0 would be requeued\n"
    assert told("stats", "--text", "in a hurry").startswith("0 dead letters")
    monkeypatch.setattr("stoker.dead_letters.search.READ", 1)
    died(frail.charge, "order 1")
    listed = told("list", "--text", "in a hurry")
    assert listed.startswith("No matching dead letter among those that were searched.\nThe next")


def test_every_subcommand_prints_json() -> None:
    ids = letters(2)
    listed = dead_json("list")
    assert [one["id"] for one in listed["letters"]] == ids[::-1]
    assert (listed["count"], listed["next"]) == (2, None)
    shown = dead_json("show", ids[0])
    assert (shown["letter"]["id"], shown["args"], shown["kwargs"]) == (ids[0], [], {})
    assert shown["attempts"][0]["kind"] == "failed"
    seen = dead_json("stats")
    assert (seen["total"], seen["faults"][0]["task"]) == (2, TASK)
    assert dead_json("requeue", "--all", "--dry-run") == {
        "matched": 2, "done": 0, "others": [], "dry_run": True
    }  # fmt: skip
    requeued = dead_json("requeue", ids[0])
    successor_id = DeadLetter.objects.get(pk=ids[0]).successor_id
    assert requeued["done"] == 1
    assert requeued["jobs"] == [{"id": ids[0], "job_id": str(successor_id)}]
    (other,) = dead_json("discard", ids[0])["others"]
    assert (other["id"], other["fate"]) == (ids[0], "under_way")
    assert dead_json("discard", ids[1])["done"] == 1
    purged = {"matched": 1, "done": 1, "dry_run": False}
    assert dead_json("purge", "--older-than", "0s") == purged


def test_dead_letter_can_be_requeued_with_other_arguments() -> None:
    add.using(max_attempts=1).enqueue(1, "2")  # type: ignore[arg-type] # on purpose
    work_off()
    letter = DeadLetter.objects.get()
    done = dead("requeue", str(letter.job_id), "--args", "[1, 2]", "--to-queue", "mended")
    assert done.returncode == 0, done.stderr
    work_off()
    assert add.get_result(str(DeadLetter.objects.get().successor_id)).return_value == 3
    assert DeadLetter.objects.get().state == "resolved"
    for change, outcome in (("requeue", "requeued"), ("discard", "discarded")):
        refused = dead(change, str(letter.pk))
        assert refused.returncode == 1
        assert f"{letter.pk} was not {outcome}: it is resolved\n" in refused.stdout


def test_undo_takes_a_requeue_back() -> None:
    (only,) = letters(1)
    assert dead("requeue", only).returncode == 0
    undone = dead("undo", only, "--because", "a mistake")
    assert (undone.returncode, undone.stdout) == (0, "1 undone\n")
    assert not Ready.objects.exists()
    again = dead("undo", only)
    assert again.returncode == 1
    assert f"{only} was not undone: it is not requeued\n" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["requeue"], "Give ids, filters (--task"),
        (["discard", "--all", "--task", TASK], "Give either ids, or filters, or --all."),
        (["show", "nothing"], "There is no dead letter 'nothing'."),
        (["requeue", "01a1fead-623a-79c2-8aa5-667b5b8d6a38"], "There is no dead letter"),
        (["requeue", "--all", "--args", "[1]"], "give one ID with them"),
        (["list", "--after", "nowhere"], "is not the mark of a page"),
        (["list", "--failed-after", "soon"], "is not a time: write 2h, or 2030-01-31"),
        (["list", "--reason", "bad luck"], "invalid choice: 'bad luck'"),
        (["list", "--limit", "0"], "must be a whole number above 0"),
        (["purge"], "the following arguments are required: --older-than"),
        (["purge", "--older-than", "1y"], '"2d" or a number of seconds'),
        (["resurrect"], "invalid choice: 'resurrect'"),
        (["list", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.sqlite
def test_invalid_command_is_refused_with_a_reason(arguments: list[str], sentence: str) -> None:
    assert_refused(dead(*arguments), sentence)
