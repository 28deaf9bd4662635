"""``manage.py stoker workflows``: its output and its exit code."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from stoker import chain, chord, get_workflow
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
    assert (name, done[:29]) == ("  flow 2", "  1 of 1 tasks done, created ")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert f"--after {ids[1]}" in text
    assert "flow 0" in stoker("list", "--after", ids[1])[0]
    page = plain("list", "--limit", "10")
    assert page["workflows"][0]["progress"]["enqueued"] == 1
    assert page["next"] is None
    assert stoker("list", "--state", "failed")[0] == "No such workflows.\n"
    with pytest.raises(CommandError, match="is not the id"):
        stoker("list", "--after", "x")


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


def test_unknown_id_is_an_error() -> None:
    with pytest.raises(CommandError, match="id of a workflow"):
        stoker("show", "x")
