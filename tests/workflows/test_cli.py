"""``manage.py stoker workflows``: its output and its exit code."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker import chain, chord, get_workflow, group
from stoker.testing import drain

from tests.workflows.tasks import FAILING, double, note, tell, total

pytestmark = pytest.mark.django_db

WIDTH = 60


@pytest.fixture(autouse=True)
def _this_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not set the database deadlines of commands in the test process."""
    monkeypatch.setattr("stoker.management.subcommand.within_deadlines", lambda settings: settings)


def stoker(*words: str) -> tuple[str, int]:
    output, errors, code = StringIO(), StringIO(), 0
    try:
        call_command("stoker", "workflows", *words, stdout=output, stderr=errors)
    except SystemExit as left:
        code = int(left.code or 0)
    return output.getvalue() + errors.getvalue(), code


def plain(*words: str) -> Any:
    return json.loads(stoker(*words, "--json")[0])


def test_list_filters_by_state_and_shows_pages() -> None:
    ids = [chain(note.si("a")).enqueue(name=f"flow {number}").id for number in range(3)]
    drain()
    chain(note.si("b")).enqueue()
    text, code = stoker("list", "--state", "SUCCESSFUL", "--limit", "2")
    assert code == 0
    first, name, done, second, *_ = text.splitlines()
    assert (first, second) == (f"{ids[2]}  successful", f"{ids[1]}  successful")
    assert name == "  flow 2"
    assert done.startswith("  1 of 1 task done, created ")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert f"--after {ids[1]}" in text
    assert "flow 0" in stoker("list", "--after", ids[1])[0]
    page = plain("list", "--limit", "10")
    assert page["workflows"][0]["progress"]["enqueued"] == 1
    assert page["next"] is None
    assert stoker("list", "--state", "failed")[0] == "No such workflows.\n"
    with pytest.raises(CommandError, match="not the mark of a page of this list"):
        stoker("list", "--after", "x")


def test_list_takes_the_same_number_of_queries_for_any_number_of_workflows() -> None:
    counts = []
    for number in (1, 49):
        for _ in range(number):
            chain(note.si("a")).enqueue()
        with CaptureQueriesContext(connection) as captured:
            stoker("list", "--limit", "100")
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_show_draws_the_tree_of_steps() -> None:
    members = [double.s(1), double.s(2)]
    workflow = chord(members, total.s().undo(tell.s())).enqueue(name="sums")
    drain()
    text, _ = stoker("show", workflow.id)
    assert "3 of 4 tasks done" in text
    assert "    group  successful" in text
    assert "undo: tests.workflows.tasks.tell  pending" in text
    shown = plain("show", workflow.id)
    assert (shown["state"], len(shown["steps"])) == ("SUCCESSFUL", 6)


def test_show_names_on_error_steps() -> None:
    workflow = chain(note.s("a")).on_error(tell.s()).enqueue()
    assert "  on_error: tests.workflows.tasks.tell  pending" in stoker("show", workflow.id)[0]


def test_cancel_and_retry_change_the_workflow_and_set_the_exit_code() -> None:
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    assert stoker("cancel", workflow.id, "--by", "carol", "--because", "wrong")[1] == 0
    assert get_workflow(workflow.id).reason == "cancelled by carol: wrong"
    assert stoker("cancel", workflow.id)[1] == 1
    FAILING.add("a")
    assert stoker("retry", workflow.id)[1] == 0
    drain()
    FAILING.clear()
    assert plain("retry", workflow.id)["sent"] == 1
    drain()
    assert stoker("retry", workflow.id)[1] == 1
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_steps_lists_failed_ones_first_and_one_is_retried() -> None:
    FAILING.add("b")
    workflow = group(note.si("a"), note.si("b"), note.si("c")).enqueue()
    drain()
    FAILING.clear()
    text, code = stoker("steps", workflow.id, "--limit", "1")
    assert code == 0
    assert text.startswith("1 failed, 2 successful\n")
    assert "  dead letter " in text
    assert "--after " in text
    assert max(map(len, text.splitlines())) <= WIDTH
    (failed,) = plain("steps", workflow.id, "--state", "failed")["steps"]
    page = plain("steps", workflow.id, "--limit", "1")
    rest = plain("steps", workflow.id, "--after", page["next"])
    assert [one["state"] for one in rest["steps"]] == ["SUCCESSFUL"] * 2
    with pytest.raises(CommandError, match="--after"):
        stoker("steps", workflow.id, "--after", "x")
    text, code = stoker("retry", workflow.id, "--step", rest["steps"][0]["id"])
    assert (code, "only a failed or cancelled step" in text) == (1, True)
    assert plain("retry", workflow.id, "--step", failed["id"])["sent"] == 1
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_retry_ends_when_all_steps_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.operations.bulk.AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr("stoker.workflows.control.AT_A_TIME", 1)
    FAILING.update("ab")
    workflow = group(note.si("a"), note.si("b")).enqueue()
    drain()
    FAILING.clear()
    output = StringIO()
    words = ("bulk", "start", "retry-step", "--workflow", workflow.id, "--dry-run")
    call_command("stoker", *words, stdout=output)
    assert output.getvalue() == "Retry this step: 2 steps.\n"
    text, code = stoker("retry", workflow.id)
    assert (text, code) == ("The workflow continues: 2 of 2 steps retried.\n", 0)
    drain()
    assert get_workflow(workflow.id).status == "SUCCESSFUL"


def test_retry_of_a_step_is_undone_by_the_id_of_its_step_or_job() -> None:
    FAILING.add("a")
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    drain()
    FAILING.clear()
    (failed,) = plain("steps", workflow.id, "--state", "failed")["steps"]
    assert stoker("undo", workflow.id, "--step", failed["id"])[1] == 1
    stoker("retry", workflow.id, "--step", failed["id"])
    undone = plain("undo", workflow.id, "--step", failed["id"])
    assert (undone["state"], undone["undone"]) == ("FAILED", True)
    stoker("retry", workflow.id, "--step", failed["id"])
    (again,) = plain("steps", workflow.id, "--state", "enqueued")["steps"]
    assert f"  earlier job {failed['job_id']} failed" in stoker("steps", workflow.id)[0]
    text, code = stoker("undo", workflow.id, "--step", again["job_id"], "--by", "carol")
    assert (text, code) == ("The retry is undone: the step has failed again.\n", 0)
    assert get_workflow(workflow.id).status == "FAILED"
    with pytest.raises(CommandError, match="There is no workflow"):
        stoker("undo", failed["id"], "--step", failed["id"])


def test_unknown_id_is_an_error() -> None:
    with pytest.raises(CommandError, match="id of a workflow"):
        stoker("show", "x")
